"""What a run tidies up when it has ended, and how a retraining's run continues without its server."""

import json
import os
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.pipeline import flow, run, server
from flows.pipeline.plan import Plan
from flows.process import locks
from flows.process.display import Display, Outcome
from flows.process.processes import Processes
from flows.repository.graph import Graph, Stage
from flows.retraining import pipeline
from flows.watching.record import RECORD, RunNow, StageNow, read, recording
from tasks.core.errors import DiskError, UserError
from tasks.core.stage.scratch import mark_finished


def recorded_run() -> RunNow:
    page = read()
    assert page is not None
    return page


WHOLE = {"a": Outcome("Ran"), "b": Outcome("Cached")}


def test_the_table_of_a_study_is_printed_by_every_run_that_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the stage itself where it runs, by the run where its table is there already, and never twice."""
    monkeypatch.chdir(tmp_path)
    graph = Graph({name: Stage(name, (), ()) for name in ("train@x", "study@x", "study@y")})
    monkeypatch.setattr(run, "make_plan", lambda *_, **__: Plan(graph, frozenset(), None, False, None))
    monkeypatch.setattr(run, "cache_folder", Path)
    monkeypatch.setattr(run.remotes, "register_again", lambda *_: None)
    for name in ("x", "z"):
        (tmp_path / "data/studies" / name).mkdir(parents=True)
        (tmp_path / "data/studies" / name / "table.md").write_text(f"| trained | served {name} |\n")
    for state, times in {"Cached": 1, "Ran": 0}.items():
        monkeypatch.setattr(run, "_execute", lambda *_, state=state, **__: dict.fromkeys(graph.stages, Outcome(state)))
        run.run(["study"])
        output = capsys.readouterr().out
        assert output.count("| trained | served x |") == times
        assert "served z" not in output, "another study, not asked for"


def test_a_nested_run_with_nothing_to_do_says_nothing_and_leaves_prefect_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A schedule's log would otherwise have the whole table each time. With something to do, everything is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    plan = Plan(Graph({name: Stage(name, (), ()) for name in WHOLE}), frozenset(), None, False, None)
    monkeypatch.setattr(run, "make_plan", lambda *_, **__: plan)
    monkeypatch.setattr(run, "cache_folder", Path)
    monkeypatch.setattr(run.remotes, "register_again", lambda *_: None)
    monkeypatch.setattr(run, "_execute", lambda *_, **__: WHOLE)
    assert {outcome.state for outcome in run.run(nested=True).values()} == {"Cached"}
    assert capsys.readouterr().out == ""
    plan = Plan(plan.graph, frozenset({"a"}), None, False, None)
    assert run.run(nested=True) == WHOLE
    assert "executed 1, cached 1" in capsys.readouterr().out


def test_pages_are_named_as_a_user_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative in the project, whole in another tree, and not at all in one that is gone afterwards."""
    own, kept, passing = (tmp_path / name for name in ("own", "own/.retemper/sweep/slot-0", "own/.retemper/reproduce-7-x"))
    for folder, second, expected in ((own, "", Path()), (kept, "1", kept), (passing, "1", None)):
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("RETEMPER_SECOND_TREE", second) if second else monkeypatch.delenv("RETEMPER_SECOND_TREE", raising=False)
        assert run._shown_folder(absolute=False) == expected
    monkeypatch.chdir(own)
    assert run._shown_folder(absolute=True) == own


def test_the_pages_show_more_than_the_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`retemper run study` once left a page without the pre-training, and with the costs and lineage of the study's stages alone."""
    monkeypatch.chdir(tmp_path)
    part, whole = (Graph({name: Stage(name, (), ()) for name in names}) for names in ("a", WHOLE))
    plan = Plan(part, frozenset("a"), None, False, None, shown=whole)
    monkeypatch.setattr(run, "make_plan", lambda *_, **__: plan)
    monkeypatch.setattr(run, "cache_folder", Path)
    monkeypatch.setattr(run.remotes, "register_again", lambda *_: None)
    graphs: list[Graph] = []
    monkeypatch.setattr(run.measured, "write", lambda graph, *_, **__: graphs.append(graph))

    def execute(_plan: Plan, _processes: object, _display: object, clock: run.timing.Clock, **_: object) -> dict[str, Outcome]:
        clock.spans.append(run.timing.Span("a", "Ran", 0.0, 1.0, 2.0, ""))
        return {"a": Outcome("Ran")}

    monkeypatch.setattr(run, "_execute", execute)
    run.run(["a"])
    assert graphs == [whole]


def test_finished_work_is_removed_only_after_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC may not have the outs yet of a stage that was not requested, or that Prefect did not reach."""
    monkeypatch.chdir(tmp_path)
    work = Path(".retemper/scratch/train/0")
    work.mkdir(parents=True)
    mark_finished(work)
    locks.remember()
    plan = Plan(Graph({name: Stage(name, (), ()) for name in WHOLE}), frozenset(WHOLE), None, False, None)
    monkeypatch.setattr(run, "make_plan", lambda *_, **__: plan)
    monkeypatch.setattr(run, "cache_folder", Path)
    monkeypatch.setattr(run.remotes, "register_again", lambda *_: None)

    def remains_after(targets: list[str], outcomes: dict[str, Outcome]) -> tuple[bool, bool]:
        """Whether the finished work and the memory of dvc.lock exist afterwards."""
        monkeypatch.setattr(run, "_execute", lambda *_, **__: outcomes)
        with suppress(run.StagesFailed):
            run.run(targets)
        return work.exists(), locks.BEFORE.exists()

    assert remains_after([], {}) == (True, True)
    assert remains_after([], {"a": Outcome("Ran")}) == (True, True)
    assert remains_after(["b"], WHOLE) == (True, False)
    assert remains_after([], WHOLE) == (False, False)


@pytest.mark.parametrize("denied", [".dvc/cache", ".dvc/cache/files/md5", ".dvc/cache/runs", ".dvc"])
def test_a_run_that_cannot_store_what_it_computes_is_refused_before_it_begins(
    denied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with nothing to compute needs no permission. Root is denied nothing, hence the stand-in."""
    monkeypatch.chdir(tmp_path)
    Path(".dvc/cache/files/md5" if "/" in denied else ".dvc").mkdir(parents=True)
    Path(denied).mkdir(exist_ok=True)
    plan = Plan(Graph({name: Stage(name, (), ()) for name in WHOLE}), frozenset(), None, False, None)
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).absolute() != Path(denied).absolute())
    monkeypatch.setattr(run, "make_plan", lambda *_, **__: plan)
    monkeypatch.setattr(run, "cache_folder", lambda: Path(".dvc/cache"))
    monkeypatch.setattr(run.remotes, "register_again", lambda *_: None)
    monkeypatch.setattr(run, "_execute", lambda *_, **__: WHOLE)
    run.run(nested=True)
    plan = Plan(plan.graph, frozenset({"a"}), None, False, None)
    with pytest.raises(DiskError, match=rf"{denied}: no permission to write to the cache, where this run would store what it computes; "):
        run.run()


@pytest.mark.parametrize("error", [server.ServerUnavailable(ConnectionError()), CancelledError()], ids=["away", "its lease forgotten"])
def test_a_pipeline_without_its_server_ignores_that_servers_limit(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments: list[dict[str, str]] = []

    def raise_error(**_: Any) -> None:
        raise error

    def record_environment(_: Processes, __: Any, ___: Any, env: dict[str, str]) -> int:
        environments.append(env)
        if len(environments) == 1:
            raise CancelledError  # Prefect's own comes late, wherever the thread is by then
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "run", raise_error)
    monkeypatch.setattr(Processes, "run", record_environment)
    for name in ("PREFECT_API_URL", "RETEMPER_DEVICE_LIMIT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/api")
    pipeline.run_pipeline(lambda: None, Processes(), Display())
    assert len(environments) == 2
    assert {"PREFECT_API_URL", "RETEMPER_DEVICE_LIMIT"}.isdisjoint(environments[0])
    assert environments[0]["PREFECT_HOME"]


def test_a_slot_forgotten_by_the_server_ends_no_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    slots: list[dict[str, Any]] = []

    def concurrency(name: str, **settings: Any) -> AbstractContextManager[None]:
        slots.append({"name": name, **settings})
        return nullcontext()

    monkeypatch.setattr(flow, "concurrency", concurrency)
    monkeypatch.setenv("RETEMPER_DEVICE_LIMIT", "gpu-here")
    with flow.shared_slot(3):
        assert slots == [{"name": "gpu-here", "occupy": 3, "strict": True, "raise_on_lease_renewal_failure": False}]


def test_a_refused_dry_run_leaves_the_parameters_frozen_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("value: 1\n")

    @contextmanager
    def edit_params() -> Iterator[None]:
        Path("params.yaml").write_text("value: 2\n")
        try:
            yield
        finally:
            Path("params.yaml").write_text("value: 1\n")

    def refuse(*_: Any, **__: Any) -> Plan:
        run.freeze()
        raise UserError("no stage nowhere")

    monkeypatch.setattr(run, "make_plan", refuse)
    with pytest.raises(UserError, match="no stage nowhere"):
        run.dry_run(["nowhere"], edited=edit_params())
    assert json.loads(Path("data/params.json").read_text())["value"] == 1


def test_a_run_is_recorded_without_estimates_where_they_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan: Any = SimpleNamespace(changed={"a": ()}, graph=SimpleNamespace(stages={"a": None}))
    for problem in (UserError("dvc.lock: invalid"), PermissionError("cache")):

        def fail(_stages: list[str], problem: Exception = problem) -> None:
            raise problem

        monkeypatch.setattr(run, "forecasts", fail)
        with run._record_run(plan, part=True):
            assert recorded_run().part
            assert [(stage.name, stage.estimate) for stage in recorded_run().stages] == [("a", None)]


def test_a_run_without_work_replaces_the_record_of_one_that_did_not_end_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan: Any = SimpleNamespace(changed={}, graph=SimpleNamespace(stages={"a": None, "b": None}))
    with suppress(KeyboardInterrupt), recording([StageNow("a"), StageNow("b")]):
        raise KeyboardInterrupt(2)
    assert not recorded_run().is_done
    with run._record_run(plan):
        assert not recorded_run().is_done, "it goes on"
    assert recorded_run().is_done and [stage.state for stage in recorded_run().stages] == ["cached", "cached"]
    before = RECORD.read_bytes()
    with run._record_run(plan):
        assert RECORD.read_bytes() == before, "one that is done stays"
