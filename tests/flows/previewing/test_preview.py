"""`retemper preview`: which rounds it takes, that the figures are those of its sample, and which mistakes are refused before it runs."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.evaluating.evaluate import Plan
from flows.parameters import edit
from flows.parameters.checks import check
from flows.pipeline.run import StagesFailed
from flows.previewing import preview as module
from flows.previewing.preview import preview, systems
from flows.previewing.sample import Part, Sample
from flows.process.problems import RunFailed
from tasks.core.errors import Problem, UserError
from tasks.core.params.safe_yaml import parse_yaml
from tasks.core.params.sections import read_yaml

INIT = {"init": "base", "negatives": "none", "steps": 0}
WARMUP = {"init": "base", "negatives": "bm25", "epochs": 3.0}
STAR = {"init": "warmup", "negatives": "warmup"}


def choose_systems(rounds: dict[str, Any], name: str | None = None, **sections: Any) -> Any:
    return systems({"rounds": rounds, **sections}, name)


def test_the_encoder_as_it_is_and_the_first_round_that_needs_no_other() -> None:
    choice = choose_systems({"init": INIT, "star": STAR, "warmup": WARMUP, "later": WARMUP})
    assert (choice.start, choice.trained, choice.rounds) == ("init", "warmup", {"init": INIT, "warmup": WARMUP})
    assert choose_systems({"init": INIT, "warmup": WARMUP, "later": WARMUP}, "later").trained == "later"
    alone = choose_systems({"star": STAR, "warmup": WARMUP})
    assert alone.rounds == {"start": INIT, "warmup": WARMUP}, "the start is shown although no round is without training"
    assert choose_systems({"start": WARMUP}).rounds == {"as_it_is": INIT, "start": WARMUP}


def test_the_encoder_as_it_is_takes_no_name_of_the_users() -> None:
    """A round of that name would be trained in full, and shown as the encoder as it is."""
    long = {**WARMUP, "steps": 500}
    assert choose_systems({"warmup": WARMUP, "start": long}).rounds == {"as_it_is": INIT, "warmup": WARMUP}
    assert choose_systems({"start": WARMUP}, encoders={"as_it_is": {}}).rounds == {"as_it_is_2": INIT, "start": WARMUP}


def test_a_pre_trained_start_is_replaced_and_another_encoder_kept() -> None:
    from_costa = choose_systems({"init": INIT, "a": {**WARMUP, "init": "costa"}}, pretrain={"costa": {}})
    assert from_costa.rounds == {"init": INIT, "a": WARMUP}
    other = {**WARMUP, "init": "e5"}
    assert choose_systems({"init": INIT, "a": other}, encoders={"e5": {}}).rounds == {"start": {**INIT, "init": "e5"}, "a": other}


def test_without_a_round_that_can_be_trained_there_is_the_encoder_alone() -> None:
    for rounds in ({"init": INIT}, {"init": INIT, "star": STAR, "given": {**WARMUP, "negatives": "official"}}):
        choice = choose_systems(rounds)
        assert (choice.trained, choice.rounds) == (None, {"init": INIT})
    assert choose_systems({"init": INIT, "warmup": WARMUP}, "init").rounds == {"init": INIT}


@pytest.mark.parametrize("init", ["warmup", "costa"])
def test_a_round_without_steps_is_not_trained(init: str) -> None:
    """It would be trained from base, and shown as if it were the truncated encoder that it is in params.yaml."""
    rounds = {"init": INIT, "warmup": WARMUP, "narrow": {**INIT, "init": init, "width": 128}}
    with pytest.raises(UserError, match=rf"^--round narrow: needs init: {init}, expected .*, such as warmup$"):
        choose_systems(rounds, "narrow", pretrain={"costa": {}})
    narrow = {**INIT, "width": 128}
    assert choose_systems({**rounds, "narrow": narrow}, "narrow").rounds == {"narrow": narrow}
    mined = choose_systems({**rounds, "narrow": {**narrow, "negatives": "warmup"}}, "narrow")  # which it does not read
    written = next(one for one in module.edits({}, mined, steps=4) if one.startswith("rounds="))
    assert parse_yaml(written.removeprefix("rounds=")) == {"narrow": narrow}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"documents": 199}, "--documents 199: expected at least 200, for 10 dev queries"),
        ({"name": "none"}, "--round none: found no such round in params.yaml, expected one of init, warmup, taught"),
        ({"name": "taught"}, "--round taught: needs init: warmup, expected a round that needs no earlier one, such as warmup"),
        ({"sets": ["prepare.leaks=drop"]}, "set this first: retemper run prepare --set prepare.leaks=drop"),
        ({"sets": ["queries=pseudo"]}, "set this first: retemper run prepare --set queries=pseudo"),
        ({"sets": ["rounds.warmup.lrr=1"]}, "rounds.warmup.lrr: unknown key"),
        ({"sets": ["rounds.warmup.steps=6", "rounds.warmup.epochs=2"]}, "has no effect, because rounds.warmup.steps is 6"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(arguments: dict[str, Any], message: str, small: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(small.folder)
    monkeypatch.setattr(module.pipeline, "run", lambda *_, **__: pytest.fail("a stage was run"))
    with pytest.raises(UserError) as refusal:
        preview(**{"documents": 400, **arguments})
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
    assert not module.FOLDER.exists()


@pytest.fixture
def run_preview(small: Any, run_plan: Callable[[Plan], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Plan]]:
    """`run_preview(...)`: a preview whose second run is in this process; its exit status and plan."""
    monkeypatch.chdir(small.folder)
    plans = list[Plan]()

    def prepare(targets: list[str], *, nested: bool) -> None:
        assert targets == ["prepare"] and nested

    @contextmanager
    def second_run(plan: Plan, folder: Path, **_: Any) -> Iterator[Path]:
        assert folder == module.FOLDER
        plans.append(plan)
        yield run_plan(plan)

    monkeypatch.setattr(module.pipeline, "run", prepare)
    monkeypatch.setattr(module, "second_run", second_run)
    return lambda documents=400, **options: (preview(documents, **options), plans[-1])


def test_a_preview_measures_on_dev_of_the_sample(run_preview: Any, small: Any, capsys: Any) -> None:
    project, before = small.folder, small.read("params.yaml")
    status, plan = run_preview(sets=["rounds.warmup.lr=1e-3", "rounds.warmup.batch_queries=16"])
    out = capsys.readouterr().out
    folder = project.with_name("beside")
    rounds = read_yaml(folder / "params.yaml")["rounds"]
    train = json.loads((folder / "data/corpus/stats.json").read_text())["splits"]["train"]["queries"]
    assert status == 0 and list(plan.targets) == ["evaluate_bm25", "evaluate@init", "evaluate@warmup"]
    changes = {"lr": 1e-3, "batch_queries": 16, "steps": -(-train // 16), "train_queries": None, "train_share": 1.0}
    assert rounds["warmup"] == read_yaml(project / "params.yaml")["rounds"]["warmup"] | changes
    metrics = {path.stem: json.loads(path.read_text()) for path in (folder / "data/metrics").glob("*.json")}
    assert metrics.keys() == {"bm25", "init", "warmup"} and all(figures.keys() == {"dev"} for figures in metrics.values())
    for name, figures in metrics.items():
        assert any(name in line and f"{figures['dev']['nDCG@10']:.4f}" in line for line in out.splitlines()), name
    assert f"warmup: {-(-train // 16)} step" in out and "Holm over 3 pairs" in out and "next: retemper run --dry-run" in out
    assert "favors BM25" not in out
    assert (project / "params.yaml").read_bytes() == before, "the setting was for the preview alone"


@pytest.mark.parametrize(
    "sets", [["rounds.warmup.epochs=2"], ["rounds.star.epochs=2"], ["pretrain.costa.steps=", "pretrain.costa.epochs=2"]]
)
def test_epochs_may_be_set_though_a_preview_sets_steps_and_drops_rounds(sets: list[str], checkout: Path, tmp_path: Path) -> None:
    text, path = (checkout / "params.yaml").read_text(), tmp_path / "params.yaml"
    sections = parse_yaml(edit.apply_to_text(text, sets, check, by_user=True) or "")
    choice = systems(sections, "warmup")
    path.write_text(text)
    edit.apply([*sets, *module.edits(sections, choice, steps=31)], path, lambda _: None)  # as the run in the second tree does
    assert read_yaml(path)["rounds"]["warmup"]["steps"] == 31 and read_yaml(path)["rounds"].keys() == choice.rounds.keys()


def test_without_train_queries_the_encoders_are_measured(run_preview: Any, small: Any, capsys: Any) -> None:
    for folder in ("queries", "qrels"):
        (small.folder / f"data/corpus/{folder}/train.parquet").unlink()
    status, plan = run_preview()
    assert status == 0 and list(plan.targets) == ["evaluate_bm25", "evaluate@init"]
    assert "Holm over 1 pair," in capsys.readouterr().out
    with pytest.raises(UserError, match=r"--round warmup: .* found no train queries"):
        run_preview(name="warmup")


def test_made_queries_are_made_from_the_sample(run_preview: Any, small: Any, capsys: Any) -> None:
    small.set("queries", "pseudo")
    small.set("pseudo", {"dev": "pseudo", "dev_share": 0.4, "per_document": 2})
    status, _ = run_preview()
    out = capsys.readouterr().out
    assert status == 0 and " of 8 queries; a full run" in out and "which favors BM25" in out
    assert (small.folder.with_name("beside") / "data/pseudo/qrels/dev.parquet").exists()


@pytest.mark.usefixtures("run_preview", "small")
def test_why_a_run_failed_is_told(monkeypatch: Any, capsys: Any) -> None:
    @contextmanager
    def fail_training(*_: Any, **__: Any) -> Iterator[Path]:
        raise RunFailed(Problem("stage", "train@warmup: the disk is full", 1))
        yield Path()

    monkeypatch.setattr(module, "second_run", fail_training)
    assert preview(400) == 1 and "retemper: train@warmup: the disk is full" in capsys.readouterr().err

    def refuse_corpus(*_: Any, **__: Any) -> None:
        raise StagesFailed([Problem("user", "corpus.jsonl:7: found no text", 2)], 2)

    monkeypatch.setattr(module.pipeline, "run", refuse_corpus)
    assert preview(400) == 2 and "retemper: corpus.jsonl:7: found no text" in capsys.readouterr().err


def test_where_a_training_began_is_told() -> None:
    end = "; a full run has its own steps or epochs"
    first, other = (SimpleNamespace(init=init, batch_queries=64) for init in ("base", "costa"))
    assert module.describe_training("a", first, 1, origin="base") == f"a: 1 step of 64 queries{end}"
    assert module.describe_training("a", other, 16, origin="base") == f"a: 16 steps of 64 queries from base, in place of costa{end}"


def test_what_was_drawn_is_told() -> None:
    sample = Sample(Part(2000, 10033), {"dev": Part(100, 930), "train": Part(1, 1)}, held_out=False)
    assert module.describe_sample(sample) == "2,000 of 10,033 documents, 100 of 930 queries of dev, 1 of 1 query of train"
    drawn = Sample(Part(5, 5), {"dev": Part(1, 1), "train": Part(0, 3)}, held_out=True)
    assert module.describe_sample(drawn) == "5 of 5 documents, 1 of 1 query of dev; dev is held out of train, as the data has none"
