"""The writer: bounded memory, row groups independent of the source's blocks, the set of ids against Python's."""

import random
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.core.errors import UserError
from tasks.core.tables.id_sets import Ids
from tasks.core.tables.lengths import Lengths
from tasks.prepare.corpus import write_corpus
from tasks.prepare.params import Prepare
from tasks.prepare.source import At, Document, Qrel, Query, Source

LARGE = 200_000


def generate_source(documents: int, width: int = 150) -> Source:
    """A corpus that is never all in memory: 1,000 judged queries among 20,000."""

    def texts() -> Iterator[Document]:
        return (Document(At("documents", i + 1), f"document-{i}", "", f"{i:0{width}}") for i in range(documents))

    def queries() -> Iterator[Query]:
        return (Query(At("queries", i + 1), f"query-{i}", f"{i} ?", []) for i in range(20_000))

    def qrels() -> Iterator[Qrel]:
        return (Qrel(At("qrels", i + 1), f"query-{i * 20}", f"document-{i * 7 % documents}", 1) for i in range(1000))

    return Source(texts, {"": queries}, {"test": qrels})


def peak_bytes(documents: int, folder: Path) -> int:
    """The peak of bytes allocated by Python while writing the corpus."""
    folder.mkdir()
    tracemalloc.start()
    write_corpus(generate_source(documents), Prepare(), folder)
    _, bytes_at_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return bytes_at_peak


def test_memory_grows_only_with_the_ids(tmp_path: Path) -> None:
    peak_bytes(1000, tmp_path / "first")  # pyarrow's imports on first use do not count
    large, small = peak_bytes(LARGE, tmp_path / "large"), peak_bytes(LARGE // 10, tmp_path / "small")
    assert pq.ParquetFile(tmp_path / "large" / "documents.parquet").metadata.num_rows == LARGE
    # 8 bytes an id, kept, sorted once, and compared: at most 32 bytes a document; the texts alone would be 200
    assert large - small < 32 * LARGE * 0.9, f"{large:,} against {small:,} bytes"


def peak_bytes_of_judgments(judgements: int, folder: Path) -> int:
    """The same for a corpus of 1,000 documents and `judgements` judgments, the first of them given twice."""

    def qrels() -> Iterator[Qrel]:
        return (
            Qrel(At("qrels", n + 1), f"query-{i // 500}", f"document-{i % 500}", 1) for n, i in enumerate(chain(range(judgements), [0]))
        )

    def queries() -> Iterator[Query]:
        return (Query(At("queries", i + 1), f"query-{i}", f"{i} ?", []) for i in range(100))

    folder.mkdir()
    tracemalloc.start()
    corpus = write_corpus(Source(generate_source(1000, 5).documents, {"": queries}, {"train": qrels}), Prepare(), folder)
    _, bytes_at_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(corpus.train_positives) == judgements == pq.ParquetFile(folder / "qrels" / "train.parquet").metadata.num_rows
    return bytes_at_peak


def test_judgments_are_never_all_python_objects_at_once(tmp_path: Path) -> None:
    peak_bytes_of_judgments(1000, tmp_path / "first")
    small, large = peak_bytes_of_judgments(10_000, tmp_path / "small"), peak_bytes_of_judgments(50_000, tmp_path / "large")
    assert large - small < 90 * 40_000, f"{(large - small) / 40_000:.0f} bytes a judgment; two columns as strings take 150"


def test_equal_tables_give_equal_files(prepare: Any) -> None:
    """Row groups are the same whether queries come in one stream for all splits or in one per split."""
    source = generate_source(9000)
    first, second = prepare(source), prepare(source)
    judged = {row[0] for row in first.qrels["test"]}
    only_judged = prepare(Source(source.documents, {"test": lambda: (q for q in source.queries[""]() if q.id in judged)}, source.qrels))
    for name in ("documents", "queries/test", "queries/train", "qrels/test", "qrels/dev"):
        contents = {(corpus.folder / f"{name}.parquet").read_bytes() for corpus in (first, second, only_judged)}
        assert len(contents) == 1, name


def test_records_keep_source_order(prepare: Any) -> None:
    prepared = prepare(generate_source(9000, width=1))
    assert [row[0] for row in prepared.documents] == [f"document-{i}" for i in range(9000)]
    assert [row[0] for row in prepared.queries["test"]] == [f"query-{i * 20}" for i in range(1000)]
    assert prepared.qrels["test"] == [(f"query-{i * 20}", f"document-{i * 7 % 9000}", 1) for i in range(1000)]


def test_a_late_duplicate_names_both_lines(prepare: Any) -> None:
    source = generate_source(20_000, width=1)
    extra = Document(At("documents", 20_001), "document-3", "", "x")

    def documents() -> Iterator[Document]:
        yield from source.documents()
        yield extra

    with pytest.raises(UserError, match=r"documents:20001: document id 'document-3' is already used at documents:4;"):
        prepare(Source(documents, source.queries, source.qrels))


def test_a_hash_collision_is_not_a_duplicate(prepare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few hash values, the second pass over the ids themselves decides."""
    from tasks.core.tables import id_sets
    from tasks.prepare import corpus, documents

    real = id_sets.hashes
    monkeypatch.setattr(id_sets, "hashes", lambda names: real(names) // 2**56)
    for module in (corpus, documents):
        monkeypatch.setattr(module, "hashes", lambda names: real(names) // 2**56)
    assert len(prepare(generate_source(9000, width=1)).documents) == 9000


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_ids_equal_pythons_set_and_list(size: int) -> None:
    draw = random.Random(size)
    names = [f"id{draw.randrange(10**6)}" for _ in range(size)]
    names = list(dict.fromkeys(names))
    ids = Ids()
    for start in range(0, len(names), 7):
        ids.add(names[start : start + 7])
    lookups = [*names[::3], "id", "other", ""]
    draw.shuffle(lookups)
    assert len(ids) == len(names)
    assert ids.contain(lookups).tolist() == [name in set(names) for name in lookups]
    assert ids.ordinals(lookups).tolist() == [names.index(name) if name in names else -1 for name in lookups]
    assert not ids.repeated()


def test_lengths_equal_a_sorted_list() -> None:
    draw = random.Random(1)
    lengths, plain = Lengths(), []
    for _ in range(501):
        count = draw.randrange(1, 90)
        lengths.add([" \n".join("w" * count)])
        plain.append(count)
    plain.sort()
    assert lengths.mean() == pytest.approx(sum(plain) / 501)
    assert lengths.percentile(50) == plain[250]
    assert lengths.percentile(95) == plain[475]  # 476 of 501 texts are 95%
