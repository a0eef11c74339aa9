"""No known positive is ever a negative, for any batch size; the stage's entry from corpus to files."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.bm25 import negatives
from tasks.bm25.negatives import only_positives, without_positives
from tasks.core.files import folder_digest
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES, RANKED, SPLITS
from tasks.search.lists import LexicalSystem


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 1000])
def test_equals_a_plain_loop(rows: int) -> None:
    draw = random.Random(rows)
    documents = [f"d{i}" for i in range(12)]
    candidates, expected, left_out = [], [], []
    qrels = [(f"q{q}", doc, draw.randint(0, 2)) for q in range(30) for doc in draw.sample(documents, 6)]
    positive = {(query, doc) for query, doc, grade in qrels if grade > 0}
    for q in range(30):
        docs = draw.sample(documents, draw.randint(0, 12))
        candidates += [(f"q{q}", doc, rank, 1 / rank) for rank, doc in enumerate(docs, 1)]
        remaining = [(doc, rank) for rank, doc in enumerate(docs, 1) if (f"q{q}", doc) not in positive]
        expected += [(f"q{q}", doc, new, pytest.approx(1 / old)) for new, (doc, old) in enumerate(remaining, 1)]
        other = [(doc, rank) for rank, doc in enumerate(docs, 1) if (f"q{q}", doc) in positive]
        left_out += [(f"q{q}", doc, new, pytest.approx(1 / old)) for new, (doc, old) in enumerate(other, 1)]
    table = pa.table([list(column) for column in zip(*candidates, strict=True)], schema=RANKED)
    judged = pa.table([list(column) for column in zip(*qrels, strict=True)], schema=QRELS)
    for part, expected_rows in ((without_positives, expected), (only_positives, left_out)):
        batches = part(table.to_batches(max_chunksize=rows), judged)
        assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == expected_rows


def test_only_positives_of_the_batchs_queries_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"q{q}", f"d{d}", d, 0.0) for q in range(9) for d in (1, 2)]
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=RANKED)
    judged = pa.table([[f"q{q}" for q in range(1000)], ["d1"] * 1000, [1] * 1000], schema=QRELS)
    sizes, real = list[int](), negatives._keys

    def record_size(query: pa.ChunkedArray, doc: pa.ChunkedArray) -> pa.ChunkedArray:
        sizes.append(len(query))
        return real(query, doc)

    monkeypatch.setattr(negatives, "_keys", record_size)
    remaining = pa.concat_tables(without_positives(table.to_batches(max_chunksize=6), judged))
    assert remaining["doc"].to_pylist() == ["d2"] * 9 and remaining["rank"].to_pylist() == [1] * 9
    assert max(sizes) == 6


def corpus(folder: Path) -> Path:
    documents = [("1", "Fish", "red fish"), ("2", "", "blue fish"), ("3", "", "one bird"), ("4", "", "fish fish fish")]
    tables = {"documents": pa.Table.from_pylist([dict(zip(DOCUMENTS.names, row, strict=True)) for row in documents], DOCUMENTS)}
    for split in SPLITS:
        queries = (
            []
            if split == "dev"
            else [{"id": f"{split}1", "text": "fish", "answers": []}, {"id": f"{split}2", "text": "cat", "answers": []}]
        )
        qrels = [] if split == "dev" else [{"query": f"{split}1", "doc": "4", "grade": 1}, {"query": f"{split}1", "doc": "1", "grade": 0}]
        tables[f"queries/{split}"] = pa.Table.from_pylist(queries, QUERIES)
        tables[f"qrels/{split}"] = pa.Table.from_pylist(qrels, QRELS)
    for name, table in tables.items():
        (folder / f"{name}.parquet").parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def test_stage(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tasks.bm25", "--corpus", str(corpus(tmp_path / "corpus"))]
    (tmp_path / "params.yaml").write_text("text: {titles: true}\nbm25: {depth: 2}\n")
    root = Path(__file__).parents[2]
    for run in ("a", "b"):
        outs = [str(tmp_path / run / name) for name in ("index", "candidates", "negatives")]
        arguments = [*command, "--index", outs[0], "--candidates", outs[1], "--negatives", outs[2]]
        shutil.rmtree(tmp_path / ".retemper", ignore_errors=True)  # the second run resumes nothing of the first
        subprocess.run(
            arguments, check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(root), "PYTHONHASHSEED": "1" if run == "a" else "2"}
        )
    assert folder_digest(tmp_path / "a") == folder_digest(tmp_path / "b")
    read = {path.stem: pq.read_table(path).to_pydict() for path in (tmp_path / "a" / "candidates").iterdir()}
    assert read["dev"]["query"] == []
    assert read["test"]["doc"] == ["4", "1", "2"]  # 1 has its title: "fish red fish"
    assert read["train"]["doc"] == ["4", "1"]  # depth 2
    rows = pq.read_table(tmp_path / "a" / "negatives" / "train.parquet").to_pydict()
    assert (rows["doc"], rows["rank"]) == (["1"], [1])  # grade 0 is judged, and no positive
    (tmp_path / "params.yaml").write_text("text: {titles: true}\nbm25: {depth: 0}\n")
    subprocess.run(arguments, check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(root)})
    assert pq.read_table(tmp_path / "b/candidates/train.parquet").num_rows == 0, "not searched"
    assert pq.read_table(tmp_path / "b/candidates/test.parquet").to_pydict() == read["test"]


def test_a_chinese_query_finds_its_document(tmp_path: Path) -> None:
    """The stage, then a search of its index; with words, nothing is found. Another setting does not resume what the first has left."""
    documents = [("1", "", "北京大学位于海淀区"), ("2", "", "上海是一座城市"), ("3", "", "red fish")]
    folder = corpus(tmp_path / "corpus")
    pq.write_table(
        pa.Table.from_pylist([dict(zip(DOCUMENTS.names, row, strict=True)) for row in documents], DOCUMENTS), folder / "documents.parquet"
    )
    pq.write_table(pa.Table.from_pylist([{"id": "q", "text": "海淀区在哪里？", "answers": []}], QUERIES), folder / "queries/test.parquet")
    for cjk, docs in {"words": [], "bigrams": ["1"]}.items():
        (tmp_path / "params.yaml").write_text(f"text: {{}}\nbm25: {{cjk: {cjk}}}\n")
        outs = [f"--{name}={tmp_path / cjk / name}" for name in ("index", "candidates", "negatives")]
        command = [sys.executable, "-m", "tasks.bm25", "--corpus", str(folder), *outs]
        subprocess.run(command, check=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])})
        assert pq.read_table(tmp_path / cjk / "candidates/test.parquet")["doc"].to_pylist() == docs
    (tmp_path / "params.yaml").unlink()
    ranked_lists = {cjk: LexicalSystem(tmp_path / cjk / "index").search(["海淀区", "fishes"], 3) for cjk in ("words", "bigrams")}
    assert {cjk: [ranked.documents for ranked in lists] for cjk, lists in ranked_lists.items()} == {
        "words": [[], ["3"]],
        "bigrams": [["1"], ["3"]],
    }
