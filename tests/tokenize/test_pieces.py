"""Documents tokenized by several processes, or resumed, give the bytes of one process; what is kept is checked before it is used."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.core.files import folder_digest
from tasks.core.tables.parquet import count_groups, write_table
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.document import Text
from tasks.core.tokens.bare_tokenizer import known_of
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_rows, write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.tokenize import pieces
from tasks.tokenize.pieces import Job, tokenize_documents

GROUPS = 5


@pytest.fixture
def documents(tiny_corpus: Any, tmp_path: Path) -> Path:
    """A corpus of GROUPS row groups."""
    rows = [(name, title, text) for name, (title, text) in tiny_corpus.documents.items()]
    size = -(-len(rows) // GROUPS)
    tables = [pa.table(list(map(list, zip(*rows[n : n + size], strict=True))), schema=DOCUMENTS) for n in range(0, len(rows), size)]
    write_table(tmp_path / "documents.parquet", DOCUMENTS, tables)
    assert count_groups(tmp_path / "documents.parquet") == GROUPS
    return tmp_path / "documents.parquet"


def write_and_digest(out: Path, job: Job, processes: int, scratch: Path | None) -> str:
    write_rows(out, tokenize_documents(job, processes, scratch), load_tokenizer(job.tokenizer), digest="d", cut=job.cut, total=60)
    return folder_digest(out)


@pytest.mark.parametrize("cut", [Cut(24, "passage: "), Cut(12, "", 4, 3)])
def test_any_number_of_processes_gives_the_bytes_of_one(
    cut: Cut, documents: Path, tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [(list(tiny_corpus.documents), [text for _, text in tiny_corpus.documents.values()])]
    write_tokens(tmp_path / "whole", batch, load_tokenizer(tiny_encoder), cut, digest="d", total=60)
    expected = folder_digest(tmp_path / "whole")
    job = Job(documents, tiny_encoder, Text(), cut)
    assert write_and_digest(tmp_path / "one", job, 1, None) == expected
    monkeypatch.setattr(pieces, "ALONE", 1)
    assert write_and_digest(tmp_path / "two", job, 2, None) == expected
    known = known_of(load_tokenizer(tiny_encoder), tiny_encoder)
    assert known
    assert write_and_digest(tmp_path / "kept", job._replace(known=known), 2, tmp_path / "scratch") == expected


def test_only_missing_or_damaged_pieces_are_made_again(
    documents: Path, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, scratch = Job(documents, tiny_encoder, Text(), Cut(24)), tmp_path / "scratch"
    expected = write_and_digest(tmp_path / "first", job, 1, scratch)
    (scratch / "000001").unlink()
    (scratch / "000003").write_bytes((scratch / "000003").read_bytes()[:-9])
    groups, real = list[int](), pieces.tokenize_group
    monkeypatch.setattr(pieces, "tokenize_group", lambda job, group: groups.append(group) or real(job, group))
    assert write_and_digest(tmp_path / "second", job, 1, scratch) == expected
    assert groups == [1, 3]


def test_the_stage_keeps_pieces_of_a_large_corpus_alone(documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pieces.is_large(documents)
    monkeypatch.setattr(pieces, "ALONE", GROUPS - 1)
    assert pieces.is_large(documents)
