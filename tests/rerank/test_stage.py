"""A reranked run is the best of the run, ordered by the model's own scores; the latency is in its own file."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tasks.core.files import partial_path
from tasks.core.stage.frozen import freeze_parameters


def test_the_best_of_a_run_is_reordered_by_model_scores(
    tiny_corpus: Any, tiny_reranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_corpus.records, tmp_path / "corpus")
    (tmp_path / "run").mkdir()
    lists = {q: list(tiny_corpus.documents)[n : n + 9] for n, q in enumerate(tiny_corpus.queries["dev"])}
    lines = [f"{q} Q0 {doc} {rank} {-rank} x" for q, docs in lists.items() for rank, doc in enumerate(docs, 1)]
    (tmp_path / "run" / "dev.trec").write_text("\n".join(lines) + "\n")
    entry = "{run: bm25, reranker: r, depth: 6, max_length: 48, precision: fp32}"
    (tmp_path / "params.yaml").write_text(f"text: {{titles: false}}\nrerank: {{m: {entry}}}\n")
    freeze_parameters(tmp_path)
    (tmp_path / "runtime.yaml").write_text("device: cpu\n")
    monkeypatch.chdir(tmp_path)
    arguments = f"--name m --run run --reranker {tiny_reranker} --corpus corpus --out out --latency latency.json"
    monkeypatch.setattr(sys, "argv", ["rerank", *arguments.split()])
    rerank = import_module("tasks.rerank.__main__")
    places: list[Path] = []
    monkeypatch.setattr(
        rerank,
        "corpus_texts",
        lambda *arguments, corpus_texts=rerank.corpus_texts, **more: places.append(arguments[2]) or corpus_texts(*arguments, **more),
    )
    rerank.main()
    assert places[0].parent.parent.resolve() == partial_path(tmp_path / "out").resolve(), "where the next attempt cleans up after a kill"
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["dev.trec"], "a split without a run gets none"
    run_lines = [line.split() for line in (tmp_path / "out" / "dev.trec").read_text().splitlines()]
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(tiny_reranker).eval(),
        AutoTokenizer.from_pretrained(tiny_reranker),
    )
    expected = []
    for query, docs in lists.items():
        scored = []
        for doc in docs[:6]:
            texts = tiny_corpus.queries["dev"][query], tiny_corpus.documents[doc][1]
            with torch.no_grad():
                scored.append((float(model(**tokenizer(*texts, truncation=True, max_length=48, return_tensors="pt")).logits), doc))
        expected += [
            (query, "Q0", doc, rank, pytest.approx(score, abs=1e-4), "m")
            for rank, (score, doc) in enumerate(sorted(scored, reverse=True), 1)
        ]
    assert [(query, q0, doc, int(rank), float(score), tag) for query, q0, doc, rank, score, tag in run_lines] == expected
    assert [row[2] for row in run_lines] != [doc for docs in lists.values() for doc in docs[:6]]
    latency = json.loads((tmp_path / "latency.json").read_text())
    assert 0 < latency["milliseconds a query"]["dev"]["p50"] <= latency["milliseconds a query"]["dev"]["p95"]
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "data", "run", "params.yaml", "runtime.yaml", "out", "latency.json"}
