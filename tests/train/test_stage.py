"""The stage as the pipeline runs it: its artifacts load, a kill costs nothing, a round of no steps changes nothing."""

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from tasks.core.files import file_digest, folder_digest
from tasks.core.models.bi_encoder import load_towers
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import read_table
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.companions import KNOWN

OUTS = ("encoder", "state", "curves")
PARAMS = """
text: {titles: false}
tokenize: {query_length: 16, document_length: 32}
bm25: {depth: 20}
base: {}
encoders: {known: {source: ./outside}}
rounds:
  init: {init: base, negatives: none, steps: 0}
  wide: {init: base, negatives: none, steps: 0, projector: linear, start_share: 0.5}
  warmup: {init: base, negatives: bm25, train_queries: 24, split_seed: 1, steps: 40, batch_queries: 8, lr: 1e-4, batch_tokens: 512}
  watched: {init: base, negatives: bm25, steps: 40, batch_queries: 8, lr: 1e-4, batch_tokens: 512, validate_every: 5, validation_queries: 8}
  adapted: {init: base, negatives: bm25, steps: 40, batch_queries: 8, lr: 1e-3, batch_tokens: 512, lora: {rank: 4, dropout: 0.1}}
  judged: {init: base, negatives: bm25, steps: 12, lr: 1e-2, lora: {targets: [query]}, validate_every: 2, validation_queries: 8}
  halved: {init: base, negatives: bm25, steps: 4, batch_queries: 8, lr: 1e-2, lora: {targets: [query]}, start_share: 0.5}
  unhalved: {init: base, negatives: bm25, steps: 4, batch_queries: 8, lr: 1e-2, lora: {targets: [query]}}
  star: {init: base, negatives: bm25, steps: 3, batch_queries: 8, loss: ranknet, alpha: 0.1, optimizer: lamb, lr: 1e-4, hard_negatives: 2}
  long: {init: base, negatives: bm25, steps: 5, batch_queries: 16, lr: 1e-4, schedule_steps: 5}
  first: {init: base, negatives: bm25, steps: 2, batch_queries: 16, lr: 1e-4, schedule_steps: 5}
  fresh: {init: first, negatives: bm25, steps: 1, batch_queries: 8, lr: 1e-4}
  kept: {init: first, negatives: bm25, steps: 1, batch_queries: 8, lr: 1e-4, optimizer_from: moments}
  unguided: {init: base, negatives: bm25, steps: 3, batch_queries: 8, lr: 1e-4}
  deaf: {init: base, negatives: bm25, steps: 3, batch_queries: 8, lr: 1e-4, guide: init, guide_margin: -1e9}
  strict: {init: base, negatives: bm25, steps: 3, batch_queries: 8, lr: 1e-4, guide: init, guide_margin: 1e9}
  guided: {init: base, negatives: bm25, steps: 3, batch_queries: 8, lr: 1e-4, guide: init}
  asked: {init: base, negatives: bm25, steps: 2, batch_queries: 16, lr: 1e-4, hard_negatives_from: positives}
  mixed: {init: first, negatives: bm25, steps: 1, batch_queries: 8, lr: 1e-4, start_share: 0.25}
  still: {init: known, negatives: none, steps: 0}
  unmoved: {init: known, negatives: bm25, steps: 1, batch_queries: 8, lr: 1e-12, validate_every: 1, validation_queries: 8}
  again: {init: still, negatives: bm25, steps: 2, batch_queries: 8, replay: 0.25}
  late: {init: first, negatives: bm25, steps: 1, batch_queries: 8, lr: 1e-4, validate_every: 1, validation_queries: 8}
  later: {init: watched, negatives: bm25, steps: 1, batch_queries: 8, lr: 1e-4, validate_every: 1, validation_queries: 8}
  last: {init: late, negatives: bm25, steps: 1, batch_queries: 8, lr: 1e-4, validate_every: 1, validation_queries: 8}
  copied: {init: first, negatives: none, steps: 0}
  after: {init: copied, negatives: bm25, steps: 1, batch_queries: 8, lr: 1e-4, validate_every: 1, validation_queries: 8}
  others: {init: first, negatives: bm25, steps: 1, batch_queries: 8, lr: 1e-4, seed: 7}
  second: {init: first, negatives: bm25, steps: 3, batch_queries: 16, lr: 1e-4, schedule_steps: 5, optimizer_from: continue}
"""


def train_arguments(name: str, negatives: str, out: str, init: str = "base") -> list[str]:
    outs = [part for kind in OUTS for part in (f"--{kind}", f"{out}/{kind}")]
    return ["--name", name, "--init", init, "--negatives", negatives, "--tokens", "tokens", "--corpus", "corpus", *outs]


def write_runtime(folder: Path, seconds: int) -> None:
    """0: one after each step, which takes most of the time of so small a training."""
    (folder / "runtime.yaml").write_text(f"device: cpu\nthreads: 1\ncheckpoint_seconds: {seconds}\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Any, tiny_encoder: Path, run_stage: Any) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "params.yaml").write_text(f"encoder: {{source: '{tiny_encoder}'}}\n{PARAMS}")
    write_runtime(folder, 30)
    shutil.copytree(tiny_corpus.records, folder / "corpus")
    run_stage(folder, "base", "--encoder", "base", "--state", "base_state", "--tokenizer", "tokenizer")
    run_stage(folder, "tokenize", "--corpus", "corpus", "--tokenizer", "tokenizer", "--out", "tokens")
    run_stage(folder, "bm25", "--corpus", "corpus", "--index", "bm25", "--candidates", "candidates", "--negatives", "negatives")
    return folder


@pytest.fixture(scope="module")
def train_undisturbed(project: Path, run_stage: Any) -> Callable[[str], str]:
    """Trains a round undisturbed into whole/NAME, once; returns what it printed."""
    return cache(lambda name: run_stage(project, "train", *train_arguments(name, "negatives", f"whole/{name}")))


@pytest.mark.parametrize(
    ("name", "message"), [("warmup", "24 queries, hard negatives"), ("watched", "8 training queries are held out"), ("adapted", "LoRA")]
)
def test_killed_and_resumed_equals_undisturbed(
    project: Path, train_undisturbed: Callable[[str], str], run_stage: Any, kill_training: Any, name: str, message: str
) -> None:
    killed = f"killed/{name}"
    assert message in train_undisturbed(name)
    shutil.rmtree(project / ".retemper/scratch", ignore_errors=True)  # the whole one's checkpoint is kept until DVC has its outs
    write_runtime(project, 0)
    kill_training(project, 7, "train", *train_arguments(name, "negatives", killed))
    write_runtime(project, 30)
    assert not any((project / killed / out).exists() for out in OUTS), "a killed stage left an out"
    output = run_stage(project, "train", *train_arguments(name, "negatives", killed))
    assert "resuming from step 7" in output
    for out in OUTS:
        assert folder_digest(project / "whole" / name / out) == folder_digest(project / killed / out), out
    (scratch,) = project.glob(".retemper/scratch/*/*")
    assert (scratch / "finished").exists(), "scratch is kept until the outs are safe in the cache, and marked"
    assert not list(project.glob("killed/*/.*")), "a killed stage left litter behind"


def test_the_best_of_the_validations_is_saved(project: Path, train_undisturbed: Callable[[str], str]) -> None:
    train_undisturbed("watched")
    lines = (project / "whole/watched/curves/plots/metrics/validation/nDCG@10.tsv").read_text().splitlines()
    header, *rows = [line.split("\t") for line in lines]
    scores = {int(row[header.index("step")]): float(row[-1]) for row in rows}
    assert set(scores) == {0, 5, 10, 15, 20, 25, 30, 35, 40}
    state = json.loads((project / "whole/watched/state/state.json").read_text())
    assert state["steps"] == max(scores, key=lambda step: scores[step])
    assert state["of"] == 32, "of 40 queries, eight are never trained on"
    assert len(state["held_out"]) == 64, "a digest of them"


def test_a_start_that_knows_held_out_queries_is_reported(project: Path, train_undisturbed: Callable[[str], str], run_stage: Any) -> None:
    """`late` holds them out, but its start does not; `copied` has the weights of `first`."""
    for name in ("first", "watched"):
        train_undisturbed(name)
    for name, start, expected in (
        *[("late", "first", True), ("later", "watched", False), ("last", "late", True)],
        *[("copied", "first", False), ("after", "copied", True)],
    ):
        arguments = train_arguments(name, "negatives", f"whole/{name}", f"whole/{start}/encoder")
        output = run_stage(project, "train", *arguments, "--init-state", f"whole/{start}/state")
        assert (f"{name}: {start}, or a round before it, was trained without holding these queries out" in output) == expected, name


def test_training_learns_and_keeps_its_curve(project: Path, train_undisturbed: Callable[[str], str]) -> None:
    train_undisturbed("warmup")
    losses = [
        float(line.split("\t")[1]) for line in (project / "whole/warmup/curves/plots/metrics/train/loss.tsv").read_text().splitlines()[1:]
    ]
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    state = load_file(project / "whole/warmup/state/optimizer.safetensors")
    assert json.loads((project / "whole/warmup/state/state.json").read_text()) == {"steps": 40, "seed": 42, "queries": 320, "of": 24}
    assert {name.rsplit(".", 1)[1] for name in state} == {"exp_avg", "exp_avg_sq", "step"}


def test_round_of_zero_steps_keeps_the_encoder_unchanged(project: Path, run_stage: Any) -> None:
    run_stage(project, "train", *train_arguments("init", "negatives", "init"))
    assert file_digest(project / "init/encoder/model.safetensors") == file_digest(project / "base/model.safetensors")
    assert json.loads((project / "init/encoder/sentence_bert_config.json").read_text())["max_seq_length"] == 32
    run_stage(project, "train", *train_arguments("wide", "negatives", "wide"))  # nothing was trained, so nothing is averaged
    assert file_digest(project / "wide/encoder/model.safetensors") == file_digest(project / "base/model.safetensors")


def test_all_new_queries_and_a_share_of_those_that_the_encoder_knows(project: Path, run_stage: Any) -> None:
    """The list comes with an encoder from outside, and goes on through a round of no steps, which leaves the weights as they are."""
    shutil.copytree(project / "base", project / "outside")
    ids = read_table(project / "tokens/queries/train/ids.parquet", IDS)["id"].to_pylist()
    (project / "outside" / KNOWN).write_text(json.dumps(ids[4:36]))
    run_stage(project, "base", "--name", "known", "--encoder", "known", "--state", "known_state", "--tokenizer", "tokenizer")
    assert sorted(path.name for path in (project / "known_state").iterdir()) == [KNOWN, "state.json"]
    assert not (project / "known" / KNOWN).exists(), "or the same weights would have another digest"
    assert folder_digest(project / "known") == folder_digest(project / "base")
    run_stage(project, "train", *train_arguments("still", "negatives", "still", "known"), "--init-state", "known_state")
    output = run_stage(project, "train", *train_arguments("unmoved", "negatives", "unmoved", "known"), "--init-state", "known_state")
    assert " of the held-out queries, so the validation at step 0 is too good" in output
    assert json.loads((project / "unmoved/state/state.json").read_text()) == {"steps": 0} and (project / "unmoved/state" / KNOWN).exists()
    arguments = train_arguments("again", "negatives", "again", "still/encoder")
    assert "again: 8 new queries, and 8 of 32 known ones (replay 0.25)" in run_stage(
        project, "train", *arguments, "--init-state", "still/state"
    )
    assert json.loads((project / "again/state/state.json").read_text())["of"] == 16
    assert not (project / "again/state" / KNOWN).exists(), "a trained round knows the new ones too"
    with pytest.raises(AssertionError, match=r"rounds.again.replay: found 0.25, but its first weights do not say which queries they know"):
        run_stage(project, "train", *arguments, "--init-state", "base_state")


def test_star_as_published_runs_with_lamb(project: Path, run_stage: Any) -> None:
    run_stage(project, "train", *train_arguments("star", "negatives", "star"))
    assert file_digest(project / "star/encoder/model.safetensors") != file_digest(project / "base/model.safetensors")


def test_continued_rounds_equal_one_long_training(project: Path, run_stage: Any) -> None:
    """Weights, optimizer, schedule, order of queries (into the second epoch) and dropout go on: 2 + 3 steps are 5, bit for bit."""
    run_stage(project, "train", *train_arguments("long", "negatives", "long"))
    run_stage(project, "train", *train_arguments("first", "negatives", "first"))
    run_stage(project, "train", *train_arguments("second", "negatives", "second", "first/encoder"), "--init-state", "first/state")
    assert file_digest(project / "second/encoder/model.safetensors") == file_digest(project / "long/encoder/model.safetensors")
    assert folder_digest(project / "second/state") == folder_digest(project / "long/state")
    repeated = "the first 32 of 40 queries are those that first was trained on (seed 42); set another seed"
    arguments = [*train_arguments("fresh", "negatives", "fresh", "first/encoder"), "--init-state", "first/state"]
    assert f"fresh: {repeated}" in run_stage(project, "train", *arguments)
    arguments = [*train_arguments("others", "negatives", "others", "first/encoder"), "--init-state", "first/state"]
    assert "was trained on" not in run_stage(project, "train", *arguments), "another seed"


def test_kept_moments_have_a_schedule_of_their_own(project: Path, run_stage: Any) -> None:
    """The round `fresh` but for what came before in the optimizer's state: its third step, at the lr of a first."""
    for name in ("first", "fresh", "kept"):
        init = ["base"] if name == "first" else ["moments/first/encoder"]
        state = [] if name == "first" else ["--init-state", "moments/first/state"]
        run_stage(project, "train", *train_arguments(name, "negatives", f"moments/{name}", *init), *state)
    states = {name: load_file(project / f"moments/{name}/state/optimizer.safetensors") for name in ("first", "fresh", "kept")}
    counts = {name: {int(tensor) for key, tensor in state.items() if key.endswith(".step")} for name, state in states.items()}
    assert counts == {"first": {2}, "fresh": {1}, "kept": {3}}
    rates = [(project / f"moments/{name}/curves/plots/metrics/train/lr.tsv").read_text() for name in ("fresh", "kept")]
    assert rates[0] == rates[1]
    key = next(key for key in states["kept"] if key.endswith(".exp_avg"))
    assert not torch.equal(states["kept"][key], states["fresh"][key])


def test_a_guide_masks_negatives(project: Path, run_stage: Any) -> None:
    """A huge margin masks every negative, a huge negative one none."""
    losses, weights = {}, {}
    for name in ("unguided", "deaf", "strict", "guided"):
        run_stage(project, "train", *train_arguments(name, "negatives", f"guides/{name}"))
        lines = (project / f"guides/{name}/curves/plots/metrics/train/loss.tsv").read_text().splitlines()[1:]
        losses[name] = [float(line.split("\t")[1]) for line in lines]
        weights[name] = file_digest(project / f"guides/{name}/encoder/model.safetensors")
    assert weights["deaf"] == weights["unguided"]
    assert losses["strict"] == [0, 0, 0]
    assert losses["guided"][0] < losses["unguided"][0], "at the start the guide knows every negative that costs"


def test_a_round_draws_hard_negatives_from_training_positives(project: Path, run_stage: Any) -> None:
    """A third of the documents are those of dev and test."""
    mean = r"hard negatives: ([\d.]+) per query to draw from"
    outputs = {name: run_stage(project, "train", *train_arguments(name, "negatives", f"asked/{name}")) for name in ("first", "asked")}
    drawn = {name: float(match[1]) for name, out in outputs.items() if (match := re.search(mean, out))}
    assert drawn["asked"] < 0.8 * drawn["first"]


def test_the_saved_weights_have_a_share_of_the_start(project: Path, run_stage: Any) -> None:
    run_stage(project, "train", *train_arguments("first", "negatives", "shares/first"))
    for name in ("fresh", "mixed"):
        run_stage(project, "train", *train_arguments(name, "negatives", f"shares/{name}", "shares/first/encoder"))
    first, fresh, mixed = (load_file(project / f"shares/{name}/encoder/model.safetensors") for name in ("first", "fresh", "mixed"))
    for key, weight in mixed.items():
        torch.testing.assert_close(weight, 0.75 * fresh[key] + 0.25 * first[key], rtol=1e-5, atol=1e-7)
    assert folder_digest(project / "shares/fresh/state") == folder_digest(project / "shares/mixed/state"), (
        "the optimizer's are the trained ones"
    )


def changed_weights(project: Path, name: str) -> set[str]:
    """Names of an encoder's weights that differ from those of base."""
    start, trained = (load_file(project / folder / "model.safetensors") for folder in ("base", f"{name}/encoder"))
    assert trained.keys() == start.keys()
    return {key for key, weight in trained.items() if not torch.equal(weight, start[key])}


def test_a_round_of_adapters_is_saved_as_a_plain_encoder(project: Path, train_undisturbed: Callable[[str], str]) -> None:
    """No trace of peft, and only linear layers of the transformer moved."""
    train_undisturbed("adapted")
    folder, layers = project / "whole/adapted/encoder", r"encoder\..*\.(query|key|value|dense)\.weight"
    assert {file.name for file in folder.iterdir()} == {file.name for file in (project / "base").iterdir()} - {"mlm_head"}
    assert (folder / "config.json").read_bytes() == (project / "base/config.json").read_bytes()
    assert changed_weights(project, "whole/adapted") == {
        key for key in load_file(project / "base/model.safetensors") if re.fullmatch(layers, key)
    }
    texts = ["a river in Germany", "an American singer"]
    encoded = load_tokenizer(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        vectors = load_towers(folder).document(encoded["input_ids"], encoded["attention_mask"])
    pure = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(pure, vectors, rtol=1e-4, atol=1e-5)
    state = load_file(project / "whole/adapted/state/optimizer.safetensors")
    assert len(state) == 3 * 2 * 12 and all(".lora_" in name for name in state)
    lines = (project / "whole/adapted/curves/plots/metrics/train/loss.tsv").read_text().splitlines()[1:]
    losses = [float(line.split("\t")[1]) for line in lines]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_adapters_under_validation_and_with_a_share_of_the_start(project: Path, run_stage: Any) -> None:
    for name in ("judged", "halved", "unhalved"):
        run_stage(project, "train", *train_arguments(name, "negatives", f"adapters/{name}"))
    queries = {f"encoder.layer.{n}.attention.self.query.weight" for n in (0, 1)}
    assert changed_weights(project, "adapters/halved") == changed_weights(project, "adapters/unhalved") == queries
    lines = (project / "adapters/judged/curves/plots/metrics/validation/nDCG@10.tsv").read_text().splitlines()[1:]
    values = {int(step): float(value) for step, value in (line.split("\t") for line in lines)}
    assert list(values) == [0, 2, 4, 6, 8, 10, 12] and len(set(values.values())) > 1, "what is measured has its adapters"
    steps = json.loads((project / "adapters/judged/state/state.json").read_text())["steps"]
    assert values[steps] == max(values.values()) and changed_weights(project, "adapters/judged") == (queries if steps else set())
    folders = ("base", "adapters/halved/encoder", "adapters/unhalved/encoder")
    base, half, full = (load_file(project / folder / "model.safetensors") for folder in folders)
    for key in queries:
        torch.testing.assert_close(half[key], (base[key] + full[key]) / 2, rtol=1e-5, atol=1e-7)


def test_a_user_mistake_is_one_line(project: Path, try_stage: Any) -> None:
    result = try_stage(project, "train", *train_arguments("warmup", "nowhere", "mistake"))
    assert (result.status, len(result.err.splitlines())) == (2, 1), result
    assert result.err.startswith("retemper: nowhere")
