"""A cross-encoder used as is, and one fine-tuned over a plain encoder: it learns, resumes exactly, and draws reproducibly."""

import copy
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.errors import UserError
from tasks.core.files import file_digest, folder_digest
from tasks.core.models.cross_encoder import CrossEncoder, load_classifier, load_cross_encoder
from tasks.core.stage.scratch import remove_finished
from tasks.core.tables.judgments import DocumentLists
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import RANKED
from tasks.core.text.mapped import store_texts
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.figures import read_figures
from tasks.core.workers.gang import Gang
from tasks.reranker.groups import Groups, draw_groups
from tasks.reranker.params import Reranker
from tasks.reranker.step import make_step, parts_of
from tests.gangs import as_ranks

GROUPS = Groups(
    np.array([0, 2]),
    DocumentLists(np.array([0, 1, 1, 3]), np.array([3, 4, 5])),
    DocumentLists(np.array([0, 4, 4, 5]), np.array([0, 1, 7, 2, 6])),
    DocumentLists(np.array([0, 2, 2, 4]), np.array([3, 7, 4, 5])),  # 7 has the text of 3
)


def params_of(**values: Any) -> Reranker:
    return Reranker.model_validate({"source": "x", "negatives": "bm25", "steps": 1, **values})


def test_draws() -> None:
    params = params_of(batch_queries=2, hard_negatives=2)
    for step in range(20):
        drawn = draw_groups(GROUPS, params, step)
        assert drawn == draw_groups(GROUPS, params, step)
        assert sorted(query for query, _ in drawn) == [0, 2]
        for query, (positive, *hard) in drawn:
            assert positive in ({3} if query == 0 else {4, 5})
            assert set(hard) <= ({0, 1, 2} if query == 0 else {6})
            assert len(hard) == 2 and (query == 2 or len(set(hard)) == 2)


def test_gradients_do_not_depend_on_how_a_step_is_cut(tiny_reranker: Path, tmp_path: Path) -> None:
    """Against one softmax over all groups at once; dropout off."""
    texts = store_texts([f"document number {n} about thing {n * 7}" for n in range(7)], tmp_path / "t")
    gradients = []
    for batch_tokens in (512, 100_000):
        model = load_classifier(tiny_reranker).eval()
        encoder = CrossEncoder(model, load_tokenizer(tiny_reranker), 64, batch_tokens, torch.device("cpu"))
        params = params_of(batch_queries=2, hard_negatives=7, batch_tokens=batch_tokens)
        metrics = read_figures(make_step(encoder, ["one", "two", "three"], texts, GROUPS, params, torch.float32)(0))
        gradients.append((metrics["loss"], model.classifier.weight.grad.clone()))
    drawn = draw_groups(GROUPS, params, 0)
    scorer = load_cross_encoder(tiny_reranker, 64, 8192, torch.device("cpu"), torch.float32)
    expected = 0.0
    for query, documents in drawn:
        scores = scorer.scores([(["one", "two", "three"][query], texts[d]) for d in documents]).astype(np.float64)
        expected += float(np.log(np.exp(scores - scores[0]).sum())) / len(drawn)
    for loss, gradient in gradients:
        assert loss == pytest.approx(expected, rel=1e-4)
        torch.testing.assert_close(gradient, gradients[0][1], atol=1e-5, rtol=1e-4)


def test_ranks_add_up_to_one(tiny_reranker: Path, tmp_path: Path) -> None:
    """Two groups, one at a time, on two ranks and on three; dropout off."""
    texts = store_texts([f"document number {n} about thing {n * 7}" for n in range(7)], tmp_path / "t")
    params = params_of(batch_queries=2, hard_negatives=7, batch_tokens=512)

    loaded = load_classifier(tiny_reranker).eval()  # once: in several threads at a time, transformers leaves weights unmade ever after

    def step(gang: Gang | None = None) -> tuple[dict[str, Any], torch.Tensor]:
        model = copy.deepcopy(loaded)
        encoder = CrossEncoder(model, load_tokenizer(tiny_reranker), 64, 512, torch.device("cpu"))
        metrics = make_step(encoder, ["one", "two", "three"], texts, GROUPS, params, torch.float32, gang)(0)
        if gang is not None:
            gang.sum_gradients(model.parameters())
        return {name: float(value) for name, value in metrics.items()}, model.classifier.weight.grad

    metrics, gradient = step()
    for ranks in (2, 3):
        for rank_metrics, summed in as_ranks(ranks, step):
            assert rank_metrics == pytest.approx(metrics, rel=1e-6)
            torch.testing.assert_close(summed, gradient, atol=1e-6, rtol=1e-5)


def test_on_gpus_each_worker_has_a_part() -> None:
    assert parts_of(8, 5, 0) == [(0, 5), (5, 8)]
    assert parts_of(8, 8, 5) == [(0, 1), (1, 3), (3, 4), (4, 6), (6, 8)]
    assert parts_of(3, 8, 5) == [(0, 1), (1, 2), (2, 3)]
    assert parts_of(64, 2, 8) == [(start, start + 2) for start in range(0, 64, 2)], "more parts than workers"


def run(project: Path, entry: str, monkeypatch: pytest.MonkeyPatch, out: str, checkpoint_seconds: int = 30) -> Path:
    (project / "params.yaml").write_text(f"text: {{titles: false}}\nrerankers: {{r: {entry}}}\n")
    (project / "runtime.yaml").write_text(f"device: cpu\nthreads: 1\ncheckpoint_seconds: {checkpoint_seconds}\n")
    monkeypatch.chdir(project)
    arguments = f"--name r --negatives negatives --corpus corpus --near same.npy --out {out}/model --curves {out}/curves"
    monkeypatch.setattr(sys, "argv", ["reranker", *arguments.split()])
    import_module("tasks.reranker.__main__").main()
    return project / out


@pytest.fixture
def project(tmp_path: Path, tiny_corpus: Any) -> Path:
    shutil.copytree(tiny_corpus.records, tmp_path / "corpus")
    names = list(tiny_corpus.documents)
    rows = [
        (query, doc, rank, 0.0)
        for n, (query, positive) in enumerate(tiny_corpus.qrels["train"].items())
        for rank, doc in enumerate([d for d in names[n : n + 6] if d != positive], 1)
    ]
    np.save(tmp_path / "same.npy", np.empty(0, np.int64))
    (tmp_path / "negatives").mkdir()
    write_table(tmp_path / "negatives" / "train.parquet", RANKED, [pa.table([list(c) for c in zip(*rows, strict=True)], schema=RANKED)])
    return tmp_path


def test_reranker_without_training_is_unchanged(project: Path, tiny_reranker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = run(project, f"{{source: {tiny_reranker}, negatives: none}}", monkeypatch, "out")
    assert file_digest(out / "model" / "model.safetensors") == file_digest(tiny_reranker / "model.safetensors")
    load_cross_encoder(out / "model", 64, 512, torch.device("cpu"), torch.float32)


def test_new_head_is_trained_on_an_encoder(
    project: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = f"{{source: {tiny_encoder}, head: new, negatives: n, steps: 60, batch_queries: 8, hard_negatives: 3, max_length: 48, lr: 1e-3}}"
    first = run(project, entry, monkeypatch, "first")
    losses = [float(line.split("\t")[1]) for line in (first / "curves/plots/metrics/train/loss.tsv").read_text().splitlines()[1:]]
    assert losses[0] == pytest.approx(np.log(4), abs=0.3), "a new head knows nothing of four"
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    remove_finished()
    module, real, calls = import_module("tasks.core.training.loop"), import_module("tasks.core.training.loop").save_checkpoint, list[int]()

    def save_and_die(*arguments: Any) -> None:
        real(*arguments)
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "save_checkpoint", save_and_die)
        run(project, entry, patch, "second", checkpoint_seconds=0)
    assert not (project / "second" / "model").exists()
    second = run(project, entry, monkeypatch, "second")
    assert "resuming from step 5" in capsys.readouterr().out
    assert folder_digest(second / "model") == folder_digest(first / "model")


def test_mistakes(project: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="found 2 labels, expected 1"):
        run(project, f"{{source: {tiny_encoder}, negatives: none}}", monkeypatch, "x")
    with pytest.raises(UserError, match="no training query has both a positive and a negative at ranks 50 to 60"):
        run(project, f"{{source: {tiny_encoder}, head: new, negatives: n, steps: 2, window: [50, 60]}}", monkeypatch, "x")
    with pytest.raises(UserError, match="must be trained; set steps"):
        run(project, f"{{source: {tiny_encoder}, head: new, negatives: n}}", monkeypatch, "x")
    with pytest.raises(UserError, match=r"training \(steps 5\) needs a table"):
        run(project, f"{{source: {tiny_encoder}, head: new, negatives: none, steps: 5}}", monkeypatch, "x")
    assert not (project / "x").exists() or not list((project / "x").iterdir())
