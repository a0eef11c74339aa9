"""The stages as the pipeline runs them: articles to chunks to an encoder; a kill costs nothing; projector and MLM head stay out."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from tasks.core.files import folder_digest
from tasks.core.models.bi_encoder import load_towers
from tasks.core.models.mlm_head import MLMHead, find_head, load_head
from tasks.core.training.companions import KNOWN, LEARNED

PARAMS = """
base: {}
articles: {source: "jsonl:articles.jsonl"}
chunk: {length: 64}
pretrain:
  costa: {init: base, steps: 24, batch_texts: 8, spans: 2, paragraph: [32, 48], lr: 5e-4, batch_tokens: 512}
  small: {init: base, steps: 2, batch_texts: 4, paragraph: [32, 48], batch_tokens: 512, scratch: {layers: 1, width: 32, heads: 2}}
  ict: {init: costa, objective: ict, steps: 2, batch_texts: 4, batch_tokens: 512}
  bare: {init: base, steps: 1, batch_texts: 4096, paragraph: [32, 48], batch_tokens: 512, mlm_weight: 0}
  deep: {init: base}
"""


def write_runtime(folder: Path, seconds: int) -> None:
    """0: one after each step, which takes most of the time of so small a training."""
    (folder / "runtime.yaml").write_text(f"device: cpu\nthreads: 1\ncheckpoint_seconds: {seconds}\n")


def pretrain_arguments(name: str, init: str, out: str) -> list[str]:
    return [
        "--name",
        name,
        "--init",
        init,
        "--chunks",
        "chunks",
        "--encoder",
        f"{out}/encoder",
        "--state",
        f"{out}/state",
        "--curves",
        f"{out}/curves",
    ]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Any, tiny_encoder: Path, run_stage: Any) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "params.yaml").write_text(f"encoder: {{source: '{tiny_encoder}'}}\n{PARAMS}")
    write_runtime(folder, 30)
    rows = [{"id": d, "title": title, "text": text} for d, (title, text) in tiny_corpus.documents.items()]
    (folder / "articles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_stage(folder, "base", "--encoder", "base", "--state", "base_state", "--tokenizer", "tokenizer")
    run_stage(folder, "articles", "--out", "articles")
    run_stage(folder, "chunk", "--texts", "articles", "--tokenizer", "tokenizer", "--out", "chunks")
    run_stage(folder, "pretrain", *pretrain_arguments("costa", "base", "whole"))
    return folder


def curve(folder: Path, name: str) -> list[float]:
    return [float(line.split("\t")[1]) for line in (folder / f"plots/metrics/train/{name}.tsv").read_text().splitlines()[1:]]


def test_killed_and_resumed_equals_undisturbed(project: Path, run_stage: Any, kill_training: Any) -> None:
    shutil.rmtree(project / ".retemper/scratch", ignore_errors=True)  # the whole one's checkpoint is kept until DVC has its outs
    write_runtime(project, 0)
    kill_training(project, 7, "pretrain", *pretrain_arguments("costa", "base", "killed"))
    write_runtime(project, 30)
    assert not (project / "killed/encoder").exists(), "a killed stage left an out"
    assert "resuming from step 7" in run_stage(project, "pretrain", *pretrain_arguments("costa", "base", "killed"))
    for out in ("encoder", "curves"):
        assert folder_digest(project / "whole" / out) == folder_digest(project / "killed" / out), out
    assert [path.name for path in project.glob(".retemper/scratch/*/*/finished")] == ["finished"], "scratch is marked as done with"


def test_losses_fall_and_vectors_spread(project: Path) -> None:
    curves = project / "whole/curves"
    assert all((curves / f"plots/metrics/train/{name}.tsv").exists() for name in ("accuracy", "alignment", "token_accuracy", "uniformity"))
    contrast = curve(curves, "contrastive_loss")
    assert len(contrast) == 24
    assert sum(contrast[-4:]) < 0.7 * sum(contrast[:4])
    assert sum(curve(curves, "uniformity")[-4:]) / 4 < -0.1, "0 would be a collapse"
    total, mlm = curve(curves, "loss"), curve(curves, "mlm_loss")
    assert total == pytest.approx([m + 0.1 * c for m, c in zip(mlm, contrast, strict=True)], rel=1e-5)
    assert mlm[0] < 9, "the source's MLM head is used: a new one begins at log(vocabulary), 10.3"


def test_the_exported_encoder_is_a_plain_one(project: Path) -> None:
    weights, before = load_file(project / "whole/encoder/model.safetensors"), load_file(project / "base/model.safetensors")
    assert {name: t.shape for name, t in weights.items()} == {name: t.shape for name, t in before.items()}, "no projector, no MLM head"
    assert [path.name for path in (project / "whole/encoder/projector").iterdir()] == ["tanh.safetensors"], "beside the encoder"
    assert any(not torch.equal(weights[name], before[name]) for name in weights)
    shape, expected = load_towers(project / "whole/encoder").document.shape, load_towers(project / "base").document.shape
    assert shape == expected
    AutoModel.from_pretrained(project / "whole/encoder")


def test_mlm_head_comes_from_the_source(project: Path, tiny_encoder: Path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(tiny_encoder, dtype=torch.float32).eval()
    head = MLMHead(model.config)
    assert load_head(head, project / "base")
    ids = torch.tensor([[101, 1996, 103, 2003, 2307, 102]])
    with torch.no_grad():
        ours = head(load_towers(project / "base").document.transformer(ids).last_hidden_state[0], model.get_input_embeddings().weight)
        torch.testing.assert_close(ours, model(ids).logits[0], rtol=1e-4, atol=1e-4)
    assert find_head(project / "whole/encoder"), "a pre-training can go on from a pre-training"


def test_a_head_of_another_output_layer_is_not_taken_for_one_over_the_word_embeddings(tiny_encoder: Path, tmp_path: Path) -> None:
    for tied in (True, False):
        config = AutoConfig.from_pretrained(tiny_encoder, tie_word_embeddings=tied)
        AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path / str(tied))
        assert bool(find_head(tmp_path / str(tied))) == tied


def test_pretraining_without_mlm_keeps_its_head_unchanged(project: Path, run_stage: Any) -> None:
    output = run_stage(project, "pretrain", *pretrain_arguments("bare", "base", "bare"))
    before, after = find_head(project / "base"), find_head(project / "bare/encoder")
    assert before and before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    count = json.loads((project / "bare/curves/pretrain.json").read_text())["chunks"]
    assert f"pretrain.bare: {count:,} chunks, {count:,} texts per step" in output


def test_from_minilm_which_has_no_head_and_from_a_pretraining(project: Path, minilm: Path, run_stage: Any) -> None:
    assert not find_head(minilm)
    output = run_stage(project, "pretrain", *pretrain_arguments("ict", "whole/encoder", "ict"))
    assert "new MLM head" not in output
    output = run_stage(project, "pretrain", *pretrain_arguments("small", str(minilm), "small"))
    assert "a new MLM head, tied to the word embeddings" in output  # random weights, so the tokenizer alone is MiniLM's
    towers = load_towers(project / "small/encoder")
    assert (towers.document.width, towers.document.shape.pooling, towers.document.shape.similarity) == (32, "mean", "cosine")
    assert curve(project / "small/curves", "mlm_loss")[0] == pytest.approx(10.33, abs=0.3)  # log(30522)


def test_what_the_start_knows_is_passed_on_unless_its_weights_are_not_used(project: Path, run_stage: Any) -> None:
    """So that a round that starts here can say which of its held-out queries were trained on."""
    knows = {"seed": 7, "queries": 320, "of": 40, "held_out": "f" * 64}
    (project / "round").mkdir()
    for name, text in (("state.json", json.dumps({"steps": 40} | knows)), (KNOWN, '["q1"]'), (LEARNED, "of these very weights")):
        (project / "round" / name).write_text(text)
    for name, init, expected in (("ict", "whole/encoder", knows), ("small", "base", {})):
        run_stage(project, "pretrain", *pretrain_arguments(name, init, f"{name}_on"), "--init-state", "round")
        state = project / f"{name}_on/state"
        assert json.loads((state / "state.json").read_text()) == expected | {"steps": 0}
        assert [path.name for path in state.iterdir() if path.name != "state.json"] == ([KNOWN] if expected else [])


def test_a_user_mistake_is_one_line(project: Path, try_stage: Any) -> None:
    result = try_stage(project, "pretrain", *pretrain_arguments("deep", "base", "mistake"))
    assert (result.status, len(result.err.splitlines())) == (2, 1), result
    line = "retemper: params.yaml: pretrain.deep.paragraph: found [64, 128], but the longest text has 62 tokens; decrease it"
    assert result.err.startswith(line)
    assert not (project / "mistake/encoder").exists()


def test_chunks_longer_than_the_model_are_refused(project: Path, try_stage: Any) -> None:
    (project / "long").mkdir()
    (project / "long/params.yaml").write_text("chunk: {length: 1024}")
    result = try_stage(project / "long", "chunk", "--texts", "../articles", "--tokenizer", "../tokenizer", "--out", "chunks")
    assert "params.yaml: chunk.length: found 1024, expected at most 512" in result.err
    assert result.status == 2


def test_chunks_of_the_corpus_itself(project: Path, tmp_path: Path, tiny_corpus: Any, run_stage: Any) -> None:
    """Documents in place of articles: the same chunks as of articles with their ids and texts."""
    (tmp_path / "params.yaml").write_text("chunk: {length: 64, texts: corpus}\n")
    run_stage(tmp_path, "chunk", "--texts", str(tiny_corpus.records), "--tokenizer", str(project / "tokenizer"), "--out", "own")
    (tmp_path / "as_articles").mkdir()
    shutil.copy(tiny_corpus.records / "documents.parquet", tmp_path / "as_articles/articles.parquet")
    (tmp_path / "params.yaml").write_text("chunk: {length: 64, texts: articles}\n")
    run_stage(tmp_path, "chunk", "--texts", "as_articles", "--tokenizer", str(project / "tokenizer"), "--out", "other")
    assert folder_digest(tmp_path / "own") == folder_digest(tmp_path / "other")
