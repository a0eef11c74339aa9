"""A tokenizer without transformers gives the same tokens as the one with it, or is not made."""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.tokens.bare_tokenizer import FILE, BareTokenizer, known_of
from tasks.core.tokens.tokenizer import load_tokenizer
from tests.core.tokens.test_words import texts

ROOT = Path(__file__).resolve().parents[3]
WORKER = """
import sys
from pathlib import Path
from tasks.core.tokens.bare_tokenizer import Known
from tasks.core.text.document import Text
from tasks.core.tokens.params import Cut
from tasks.tokenize.pieces import Job, tokenize_group
documents, tokenizer, pad, cls = sys.argv[1:]
found = tokenize_group(Job(Path(documents), Path(tokenizer), Text(), Cut(9), Known(int(pad), int(cls))), 0)
print(found[0].flat.tolist(), [name for name in ("torch", "transformers") if name in sys.modules])
"""


@pytest.mark.parametrize("settings", [{}, {"add_special_tokens": False}, {"truncation": True, "max_length": 7}])
def test_tokens_equal_those_of_transformers(settings: dict[str, Any], tiny_encoder: Path) -> None:
    theirs = load_tokenizer(tiny_encoder)
    known = known_of(theirs, tiny_encoder)
    assert known
    ours = BareTokenizer(tiny_encoder, known)
    assert (ours.get_vocab(), ours.pad_token_id, ours.cls_token_id) == (theirs.get_vocab(), theirs.pad_token_id, theirs.cls_token_id)
    for seed in range(3):
        samples = texts(seed, 100)
        assert ours(samples, **settings)["input_ids"] == theirs(samples, verbose=False, **settings)["input_ids"]
    our_row, their_row = (tokenizer(samples[2], return_special_tokens_mask=True, **settings) for tokenizer in (ours, theirs))
    assert (our_row["input_ids"], our_row["special_tokens_mask"]) == (their_row["input_ids"], their_row["special_tokens_mask"])
    assert our_row.word_ids() == their_row.word_ids()
    assert ours(samples, **settings).word_ids(5) == theirs(samples, **settings).word_ids(5)


def test_none_where_the_file_alone_says_something_else(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "model"))
    tokenizer = load_tokenizer(folder)
    assert known_of(tokenizer, folder)
    tokenizer.split_special_tokens = True
    assert not known_of(tokenizer, folder)
    tokenizer.split_special_tokens = False
    content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    content["normalizer"]["lowercase"] = not content["normalizer"]["lowercase"]
    (folder / FILE).write_text(json.dumps(content), encoding="utf-8")
    assert not known_of(tokenizer, folder)
    (folder / FILE).unlink()
    assert not known_of(tokenizer, folder)


def test_a_file_with_padding_and_truncation_of_an_earlier_call_is_known(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "model"))
    theirs = load_tokenizer(folder)
    theirs.backend_tokenizer.enable_truncation(4)
    theirs.backend_tokenizer.enable_padding(length=9)
    theirs.backend_tokenizer.save(str(folder / FILE))
    known = known_of(theirs, folder)
    assert known
    assert BareTokenizer(folder, known)("a b c d e f")["input_ids"] == theirs("a b c d e f")["input_ids"]


def test_a_tokenizer_that_looks_beyond_a_word_is_left_to_transformers(start: Any) -> None:
    folder = start("gpt2")
    assert not known_of(load_tokenizer(folder), folder)


@pytest.mark.parametrize("stage", ["tokenize", "chunk"])
def test_the_stages_use_it(stage: str, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = import_module(f"tasks.{stage}.pieces")
    known_args, real = [], pieces.cached_tokenizer
    monkeypatch.setattr(pieces, "cached_tokenizer", lambda folder, known: known_args.append(known) or real(folder, known))
    (pieces._rows if stage == "tokenize" else pieces._chunker).cache_clear()
    assert small.stage(stage, *small.elsewhere(stage, "bare")).status == 0
    assert known_args and all(known_args)


def test_a_worker_loads_neither_transformers_nor_torch(tiny_encoder: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "documents.parquet", DOCUMENTS, [pa.table([["d"], [""], ["a text of some words"]], schema=DOCUMENTS)])
    tokenizer = load_tokenizer(tiny_encoder)
    known = known_of(tokenizer, tiny_encoder)
    assert known
    words = [str(tmp_path / "documents.parquet"), str(tiny_encoder), *map(str, known)]
    process = subprocess.run([sys.executable, "-c", WORKER, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.stdout == f"{tokenizer('a text of some words', truncation=True, max_length=9)['input_ids']} []\n", process
