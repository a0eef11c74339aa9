"""Runs of configurations that `why` and `bisect` make up."""

from pathlib import Path
from typing import Any

import pytest

from flows.champions.parts import Parts
from flows.explaining import runs
from flows.explaining.runs import Bench, Configuration, Refused, refuse_unmeasured
from flows.process.problems import RunFailed
from flows.process.processes import Processes
from tasks.core.errors import InputChanged, UserError
from tasks.core.training.companions import LEARNED


def test_a_configuration_need_not_have_the_systems_that_its_report_names(
    full_params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the entries of one model alone."""
    monkeypatch.setattr(runs, "make_worktree", lambda *_: tmp_path)
    full_params["failures"] = {"model": "left_out"}
    full_params["report"]["baselines"] = ["bm25", "left_out"]
    invalid = full_params | {"queries": "mine"}
    configurations = {name: Configuration("", sections, {}, "star") for name, sections in (("fit", full_params), ("unfit", invalid))}
    refusals = Bench(tmp_path, "nDCG@10", Processes(), show=lambda *_: None).refusals(configurations)
    assert refusals == {"unfit": "params.yaml: queries: found 'mine'; input should be 'corpus' or 'pseudo'"}


def test_bm25_is_made_from_no_round(full_params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`why` leaves that side without rounds, and params.yaml must have one."""
    monkeypatch.setattr(runs, "make_worktree", lambda *_: tmp_path)
    entries = dict.fromkeys(("encoders", "pretrain", "rounds", "mine", "mix", "rerankers", "teacher", "rerank", "rescore", "adore", "fuse"))
    sections = full_params | {section: {} for section in entries} | {"study": {}, "analyses": {}}
    configurations = {
        "bm25": Configuration("", sections, {}, "bm25"),
        "unfit": Configuration("", sections | {"queries": "mine"}, {}, "bm25"),
    }
    refusals = Bench(tmp_path, "nDCG@10", Processes(), show=lambda *_: None).refusals(configurations)
    assert refusals == {"unfit": "params.yaml: queries: found 'mine'; input should be 'corpus' or 'pseudo'"}


@pytest.mark.parametrize(("error", "kind"), [(UserError("no such key"), Refused), (InputChanged("x: changed"), RunFailed)])
def test_a_file_that_changed_meanwhile_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: UserError, kind: type[Exception]
) -> None:
    """`why` reads a refusal as two factors that do not go together, and would count them as one."""
    for name in ("equip", "link_sources"):
        monkeypatch.setattr(runs, name, lambda *_: None)
    monkeypatch.setattr(runs, "make_worktree", lambda *_: tmp_path)
    monkeypatch.setattr(runs, "run_in", lambda *_, **__: (2, [error.problem]))
    with pytest.raises(kind, match=str(error)):
        Bench(tmp_path, "nDCG@10", Processes(), show=lambda *_: None)._run(tmp_path, Configuration("", {}, {}, "a"), "train@a", label="a")


def test_a_measure_that_no_run_computes_is_refused() -> None:
    refuse_unmeasured("AP", {"evaluate": {}})
    refuse_unmeasured("P@5", {"evaluate": {"measures": ["RR@10", "P@5"]}})
    with pytest.raises(UserError, match=r"--measure: found AP, expected one of evaluate\.measures: RR@10, P@5"):
        refuse_unmeasured("AP", {"evaluate": {"measures": ["RR@10", "P@5"]}})


def test_a_model_is_measured_with_what_its_own_index_has_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("data/encoders/a/document/model.safetensors", "data/encoders/a/config.json", f"data/indexes/a/{LEARNED}", "dvc.yaml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    parts = Parts({"encoder": "data/encoders/a"}, {}, {"a": "encoder"})
    for name, value in {"make_worktree": tmp_path, "read_lock": {}, "stages_in_graph": {}, "parts_of": parts}.items():
        monkeypatch.setattr(runs, name, lambda *_, value=value, **__: value)
    bench = Bench(tmp_path, "nDCG@10", Processes(), show=lambda *_: None)
    configuration = Configuration("", {"adore": {"a": {"round": "star", "index": "PQ8", "lr": 1e-5}}, "text": {"titles": False}}, {}, "a")
    measured = bench._on(Configuration("c", {"text": {"titles": True}}, {}, "b"), configuration, tmp_path)
    assert runs.evaluation(measured) == "evaluate_adore@a"
    assert measured.sections["adore"] == {
        "a": {"round": "a_documents", "negatives": "none", "steps": 0, "quantizer": "given", "index": "PQ8"}
    }
    assert measured.sections["rounds"] == {"a_documents": {"init": "base", "negatives": "none", "steps": 0}}
    files = measured.source["encoder"]["files"]
    assert set(files) == {"config.json", "document/model.safetensors", LEARNED}, "all of it counts as the source"
    assert measured.sections["text"] == {"titles": False}
    (tmp_path / "data/indexes/a" / LEARNED).unlink()
    with pytest.raises(UserError, match=r"^a: made before Retemper kept what its own index has learned, so it cannot be measured on other"):
        bench._on(measured, configuration, tmp_path)


@pytest.mark.parametrize(("second", "k1"), [("other", 0.9), ("bm25", 1.5)])
def test_a_fusion_brings_the_settings_of_bm25_if_it_searches_with_it(
    second: str, k1: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, they are those with which the yardstick's queries are made, and these would be others for each model."""
    names = [name for name in ("star", second) if name != "bm25"]
    for name in names:
        (tmp_path / f"data/encoders/{name}").mkdir(parents=True)
        (tmp_path / f"data/encoders/{name}/config.json").write_text(name)
    (tmp_path / "dvc.yaml").touch()
    setting = {"first": "star", "second": second, "weight": 0.25}
    fusion = {"both": setting} | ({"bm25": {"k1": 1.5}} if second == "bm25" else {})
    parts = Parts({}, {}, {name: f"encoder.{name}" for name in names}, fusion)
    for function, value in {"read_lock": {}, "stages_in_graph": {}, "parts_of": parts}.items():
        monkeypatch.setattr(runs, function, lambda *_, value=value, **__: value)
    fuse = {"both": {"first": "star", "second": second, "depth": 50}, "another": {"first": "star", "second": "bm25"}}
    configuration = Configuration("", {"fuse": fuse, "bm25": {"k1": 1.5}}, {}, "both")
    yardstick = Configuration("c", {"queries": "pseudo", "bm25": {"k1": 0.9}, "rounds": {"old": {}}}, {}, "old")
    measured = Bench(tmp_path, "nDCG@10", Processes(), show=lambda *_: None)._on(yardstick, configuration, tmp_path)
    assert runs.evaluation(measured) == "evaluate_fuse@both"
    assert measured.sections["fuse"] == {"both": {"first": "star", "second": second, "depth": 50, "weight": 0.25}}
    assert measured.sections["bm25"] == {"k1": k1}
    assert list(measured.sections["rounds"]) == names
