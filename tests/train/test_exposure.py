"""The replay of a round equals what an instrumented run of the stage put into its loss, by plain loops."""

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.params.sections import load
from tasks.core.tokens.folder import open_tokens
from tasks.core.training.companions import KNOWN
from tasks.core.training.exposure import HARD, HELD_DOCUMENT, HELD_QUERY, IN_BATCH, POSITIVE, QUERY
from tasks.train import exposure, step
from tasks.train import inputs as entry
from tasks.train.batches import Batch, draw_batch
from tasks.train.params import Round

PARAMS = """
text: {titles: false}
tokenize: {query_length: 16, document_length: 24}
bm25: {depth: 20}
base: {}
rounds:
  first: {init: base, negatives: bm25, steps: 3, batch_queries: 16, hard_negatives: 2, schedule_steps: 6, batch_tokens: 512}
  second: {init: first, negatives: bm25, steps: 3, batch_queries: 16, schedule_steps: 6, optimizer_from: continue, batch_tokens: 512}
  again: {init: first, negatives: bm25, replay: 0.25, steps: 3, batch_queries: 8, batch_tokens: 512}
  lone: {init: base, negatives: random, steps: 2, batch_queries: 4, hard_negatives: 3, in_batch: false, batch_tokens: 512}
  watched: {init: base, negatives: none, train_share: 0.8, steps: 4, batch_queries: 8, validate_every: 2, validation_queries: 6}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Any, tiny_encoder: Path, run_stage: Any) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "params.yaml").write_text(f"encoder: {{source: '{tiny_encoder}'}}\n{PARAMS}")
    (folder / "runtime.yaml").write_text("device: cpu\nthreads: 1\n")
    shutil.copytree(tiny_corpus.records, folder / "corpus")
    run_stage(folder, "base", "--encoder", "base", "--state", "base_state", "--tokenizer", "tokenizer")
    run_stage(folder, "tokenize", "--corpus", "corpus", "--tokenizer", "tokenizer", "--out", "tokens")
    run_stage(folder, "bm25", "--corpus", "corpus", "--index", "bm25", "--candidates", "candidates", "--negatives", "negatives")
    return folder


def record_training(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, set[int]]]:
    """What the next run trains on, filled step by step: texts that are encoded, and the mask of negatives that reaches the loss."""
    steps: list[dict[str, set[int]]] = []
    backward, loss, nll = step.cached_backward, step.batch_loss, step.nll
    current: list[Batch] = []

    def watch_backward(sides: Any, *rest: Any) -> Any:
        steps.append(defaultdict(set))
        steps[-1][QUERY] = set(sides[0].rows.tolist())
        steps[-1]["encoded"] = set(sides[1].tokens.owners[sides[1].rows].tolist())
        return backward(sides, *rest)

    def watch_loss(scores: Any, batch: Batch, params: Round) -> Any:
        current[:] = [batch]
        return loss(scores, batch, params)

    def watch_nll(scores: Any, negative: Any, *rest: Any) -> Any:
        batch, size = current[0], len(current[0].queries)
        hard = (len(batch.slots) - size) // size
        for row in range(size):
            steps[-1][POSITIVE].add(int(batch.documents[batch.slots[row]]))
            for slot, document in enumerate(batch.documents[batch.slots].tolist()):
                if negative[row, slot]:
                    own = size + row * hard <= slot < size + (row + 1) * hard
                    steps[-1][HARD if own else IN_BATCH].add(document)
        return nll(scores, negative, *rest)

    monkeypatch.setattr(step, "cached_backward", watch_backward)
    monkeypatch.setattr(step, "batch_loss", watch_loss)
    monkeypatch.setattr(step, "nll", watch_nll)
    return steps


def arguments(name: str, negatives: str, init: str) -> list[str]:
    outs = [part for kind in ("encoder", "state", "curves") for part in (f"--{kind}", f"out/{name}/{kind}")]
    state = [] if init == "base" else ["--init-state", f"{init[: -len('encoder')]}state"]
    return ["--name", name, "--init", init, "--negatives", negatives, "--tokens", "tokens", "--corpus", "corpus", *outs, *state]


@pytest.mark.parametrize(
    ("name", "negatives", "init"),
    [
        ("first", "negatives", "base"),
        ("second", "negatives", "out/first/encoder"),
        ("again", "negatives", "out/first/encoder"),
        ("lone", "none", "base"),
        ("watched", "none", "base"),
    ],
)
def test_replay_equals_an_instrumented_run(
    project: Path, run_stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, name: str, negatives: str, init: str
) -> None:
    (project / "none").mkdir(exist_ok=True)
    shutil.copy(project / "negatives/train.parquet", project / "none/train.parquet")  # neither `random` nor `none` takes any from it
    state = project / "out/first/state"
    known = open_tokens(project / "tokens/queries/train").ids().to_pylist()[::2]
    if name == "again":  # all new queries, and a quarter of every second one, which its first weights know
        (state / KNOWN).write_text(json.dumps(known))
    trained = record_training(monkeypatch)
    samples: list[Any] = []
    hold_out = entry.hold_out
    monkeypatch.setattr(entry, "hold_out", lambda *inputs: samples.append(hold_out(*inputs)) or samples[0])
    run_stage(project, "train", *arguments(name, negatives, init))
    monkeypatch.setattr(entry, "hold_out", hold_out)
    trained_steps = json.loads((project / f"out/{name}/curves/round.json").read_text())["steps"]
    params = load(Round, f"rounds.{name}", project / "params.yaml")
    paths = {"tokens": project / "tokens", "corpus": project / "corpus", "negatives": project / negatives, "init-state": state}
    replay = exposure.replay(paths, params, tmp_path, behind=3, trained_steps=trained_steps)
    replayed = list(replay.steps)
    assert [number for number, _ in replayed] == list(range(trained_steps))
    assert replay.total == trained_steps
    assert trained_steps == len(trained) or (params.validate_every and trained_steps < len(trained)), "its best weights may be earlier ones"
    for (_, roles), trained_step in zip(replayed, trained, strict=False):
        step_roles = {role: set(ordinals.tolist()) for role, ordinals in roles.items()}
        assert step_roles == {role: trained_step[role] for role in (QUERY, POSITIVE, HARD, IN_BATCH)}
        assert step_roles[POSITIVE] | step_roles[HARD] <= trained_step["encoded"]
    if name == "again":
        places = {query for trained_step in trained for query in trained_step[QUERY]}
        assert 0 < sum(place % 2 == 0 for place in places) <= round(0.25 * len(known)), "some of the known ones"
    if params.validate_every:
        assert len(replay.beside[HELD_QUERY]) == 6
        assert np.array_equal(replay.beside[HELD_QUERY], samples[0][1].queries)
        assert np.array_equal(replay.beside[HELD_DOCUMENT], samples[0][1].documents)
        assert not {query for trained_step in trained for query in trained_step[QUERY]} & set(replay.beside[HELD_QUERY].tolist())
    assert len(open_tokens(project / "tokens/documents").ids()) == 60


@pytest.mark.parametrize("source", ["bm25", "random"])
@pytest.mark.parametrize("left_out", [{"validate_every": 2, "validation_queries": 20}, {"train_queries": 15}])
def test_no_positive_of_a_query_that_is_left_out_is_a_hard_negative(
    project: Path, tmp_path: Path, source: str, left_out: dict[str, int]
) -> None:
    inputs = entry.Inputs(project / "tokens", project / "corpus", project / "negatives")
    fields = {"init": "base", "negatives": source, "batch_queries": 8, "hard_negatives": 3, "hard_negatives_from": "positives"}
    params = Round.model_validate(fields | left_out)
    data = entry.read_data(inputs, params, inputs.queries(), inputs.documents(), scratch=tmp_path, key="rounds.x")
    training = data.training
    positives = {document for query in training.queries.tolist() for document in training.positives.of(query).tolist()}
    drawn = {document for step in range(40) for document in draw_batch(training, params, step).documents.tolist()}
    assert drawn == positives < set(training.positives.values.tolist())
    if data.held_out and source == "bm25":
        ranked = {*data.held_out.documents.tolist()} - {*training.positives.values.tolist()}
        assert ranked, "held-out queries rank hard negatives of all kinds"


def test_a_distillation_without_nll_has_no_in_batch_negatives() -> None:
    batch = Batch(np.array([4, 7]), np.array([1, 2, 3]), np.array([0, 1, 2, 2]), *masks())
    plain = Round.model_validate({"init": "base", "negatives": "x", "batch_queries": 2})
    assert {role: set(ordinals.tolist()) for role, ordinals in exposure.roles_of(batch, plain).items()} == {
        QUERY: {4, 7},
        POSITIVE: {1, 2},
        HARD: {3},
        IN_BATCH: {1, 2, 3},
    }
    taught = plain.model_copy(update={"loss": "margin_mse"})
    assert exposure.roles_of(batch, taught)[IN_BATCH].tolist() == []
    assert exposure.roles_of(batch, taught.model_copy(update={"nll_weight": 0.2}))[IN_BATCH].tolist() == [1, 2, 3, 3]


def masks() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two queries with a positive and a hard negative each, which is the same document."""
    positive = np.array([[True, False, False, False], [False, True, False, False]])
    own = np.array([[False, False, True, False], [False, False, False, True]])
    return positive, own, np.full((2, 2), np.nan, dtype=np.float32)
