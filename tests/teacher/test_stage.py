"""The stage scores every pair that a round can draw, keeps the source's ranks, and its guard leaves out what its words say."""

import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tasks.core.files import folder_digest
from tasks.core.params.runtime import Runtime
from tasks.core.stage.scratch import remove_finished
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import RANKED
from tasks.core.workers.each import Alone
from tasks.teacher import pieces

Row = tuple[str, str, int, float]


@pytest.fixture
def project(tmp_path: Path, tiny_corpus: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(tiny_corpus.records, tmp_path / "corpus")
    draw = np.random.default_rng(0)
    rows: list[Row] = []
    for query, positive in list(tiny_corpus.qrels["train"].items())[:6]:
        others = [d for d in draw.permutation(list(tiny_corpus.documents)).tolist() if d != positive]
        rows += [(query, doc, rank, 0.0) for rank, doc in enumerate(others[:5], 1)]
    (tmp_path / "negatives").mkdir()
    write_table(tmp_path / "negatives" / "train.parquet", RANKED, [pa.table([list(c) for c in zip(*rows, strict=True)], schema=RANKED)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(project: Path, reranker: Path, monkeypatch: pytest.MonkeyPatch, options: str = "", out: str = "out") -> tuple[list[Row], list[Row]]:
    entry = f"{{negatives: n, reranker: r, depth: 4, max_length: 48, precision: fp32{options}}}"
    (project / "params.yaml").write_text(f"text: {{titles: false}}\nteacher: {{t: {entry}}}\n")
    (project / "runtime.yaml").write_text("device: cpu\n")
    arguments = f"--name t --negatives negatives --reranker {reranker} --corpus corpus --out {out}"
    monkeypatch.setattr(sys, "argv", ["teacher", *arguments.split()])
    import_module("tasks.teacher.__main__").main()
    tables = (read_table(project / out / f"{name}.parquet", RANKED) for name in ("train", "positives"))
    negatives, positives = ([tuple(row.values()) for row in table.to_pylist()] for table in tables)
    return negatives, positives


def test_every_score_is_the_models_own(project: Path, tiny_corpus: Any, tiny_reranker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(tiny_reranker).eval(),
        AutoTokenizer.from_pretrained(tiny_reranker),
    )

    def score(query: str, doc: str) -> float:
        texts = tiny_corpus.queries["train"][query], tiny_corpus.documents[doc][1]
        with torch.no_grad():
            return float(model(**tokenizer(*texts, truncation=True, max_length=48, return_tensors="pt")).logits)

    monkeypatch.setattr(pieces, "PIECE", 7)
    negatives, positives = run(project, tiny_reranker, monkeypatch)
    source = read_table(project / "negatives" / "train.parquet", RANKED).to_pylist()
    best_ranked = [row for row in source if row["rank"] <= 4]
    assert [row[:3] for row in negatives] == [(row["query"], row["doc"], row["rank"]) for row in best_ranked]
    assert {row[:2] for row in positives} == {
        (q, d) for q, d in tiny_corpus.qrels["train"].items() if q in {row["query"] for row in source}
    }
    for query, doc, _, value in negatives + positives:
        assert value == pytest.approx(score(query, doc), abs=1e-4)

    margin = 0.3
    best = {query: value for query, _, _, value in positives}
    guarded, _ = run(project, tiny_reranker, monkeypatch, f", absolute_margin: {margin}", "guarded")
    assert guarded == [row for row in negatives if row[3] <= best[row[0]] - margin]
    assert 0 < len(guarded) < len(negatives)


@pytest.mark.parametrize("harm", ["cut", "empty", "another score", "no seal", "half a seal"])
def test_corrupt_piece_is_scored_again(harm: str, project: Path, tiny_reranker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 11)
    run(project, tiny_reranker, monkeypatch)
    (scratch,) = (project / ".retemper" / "scratch").glob("teacher-t/*")
    piece, mark = scratch / "000001.npy", scratch / "000001.npy.sha256"
    content = piece.read_bytes()
    if harm in ("cut", "empty"):
        piece.write_bytes(content[: 150 * (harm == "cut")])
    elif harm == "another score":
        piece.write_bytes(content[:-1] + bytes([content[-1] ^ 64]))
    else:
        mark.unlink() if harm == "no seal" else mark.write_bytes(mark.read_bytes()[:30])
    calls: list[Path] = []
    real = pieces.new_file

    def record_file(path: Path) -> Any:
        calls.append(path)
        return real(path)

    monkeypatch.setattr(pieces, "new_file", record_file)
    run(project, tiny_reranker, monkeypatch, out="again")
    assert [path.name for path in calls] == [piece.name], "the other pieces were whole"
    assert piece.read_bytes() == content
    assert folder_digest(project / "again") == folder_digest(project / "out")


def test_negatives_are_read_in_groups(project: Path, tiny_reranker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than a group and a batch of the table is held, and what comes out is the same."""
    module, real, sizes = import_module("tasks.teacher.__main__"), import_module("tasks.teacher.__main__").ranked_groups, list[int]()
    monkeypatch.setattr(pieces, "PIECE", 4)  # the same pieces whatever the group
    expected = run(project, tiny_reranker, monkeypatch)
    remove_finished()
    monkeypatch.setattr("tasks.core.tables.judgments.GROUP", 4)
    monkeypatch.setattr("tasks.core.tables.parquet.BATCH_ROWS", 5)  # four of them within the depth

    def record_sizes(path: Path, window: tuple[int, int]) -> Any:
        for table in real(path, window):
            sizes.append(len(table))
            yield table

    monkeypatch.setattr(module, "ranked_groups", record_sizes)
    assert run(project, tiny_reranker, monkeypatch, out="again") == expected
    assert sizes == [4] * 12, "two passes: for the queries, and for the scores"


def test_long_texts_are_scored_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_table(tmp_path / "documents.parquet", IDS, [pa.table([[str(n) for n in range(20)]], schema=IDS)])
    texts, seen = ["x" * (n * 7 % 30) for n in range(20)], list[list[tuple[str, str]]]()

    def lengths(pairs: list[tuple[str, str]]) -> Any:
        seen.append(pairs)
        return np.array([len(text) for _, text in pairs], dtype=np.float32)

    monkeypatch.setattr(pieces, "TEXT", 40)
    rows = pa.table([["q"] * 20, [str(n) for n in range(20)], [1] * 20, [0.0] * 20], schema=RANKED)
    model = SimpleNamespace(texts=lambda query, place: (query, texts[place]), scores=lengths)
    results = pieces.Pieces(20, tmp_path / "documents.parquet", tmp_path).scored([rows], Alone(Runtime()), pieces.Score(model))
    ((_, scores),) = results
    assert scores.tolist() == list(map(len, texts))
    assert len(seen) > 5 and max(sum(len(q) + len(d) for q, d in part[:-1]) for part in seen) < 40


def test_killed_and_resumed(project: Path, tiny_reranker: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(pieces, "PIECE", 5)
    run(project, tiny_reranker, monkeypatch)
    remove_finished()
    calls: list[int] = []
    real = pieces.new_file

    def die_at_fourth_file(path: Path) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(path)

    monkeypatch.setattr(pieces, "new_file", die_at_fourth_file)
    with pytest.raises(KeyboardInterrupt):
        run(project, tiny_reranker, monkeypatch, out="again")
    assert not (project / "again").exists()
    calls[:] = [1] * 10
    run(project, tiny_reranker, monkeypatch, out="again")
    assert len(calls) == 10 + 7 - 3, "three of the seven pieces were there"
    assert folder_digest(project / "again") == folder_digest(project / "out")
    assert "30 pairs scored" in capsys.readouterr().out
