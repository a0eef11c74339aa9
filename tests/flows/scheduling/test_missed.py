"""Records of dead runs are corrected, also if there are more of them than Prefect's API returns at a time."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import StateType

from flows.scheduling import missed

AT_A_TIME = 3


class Api:
    """Prefect's API with runs of a deployment, by their states. The newest come first."""

    def __init__(self, *runs: tuple[StateType, UUID | None]) -> None:
        self.runs = [SimpleNamespace(id=uuid4(), type=kind, parent=parent, name="") for kind, parent in runs]

    def read_deployment_by_name(self, _: str) -> Any:
        return SimpleNamespace(id=uuid4())

    def read_flow_runs(self, *, flow_run_filter: Any, sort: Any = None, limit: int = AT_A_TIME, offset: int = 0) -> list[Any]:
        states = flow_run_filter.state.type.any_ if flow_run_filter.state else list(StateType)
        parents = flow_run_filter.parent_flow_run_id.any_ if flow_run_filter.parent_flow_run_id else [None]
        found = [run for run in self.runs if run.type in states and run.parent in parents]
        assert sort is None or not offset
        return found[offset : offset + limit]

    def set_flow_run_state(self, number: UUID, state: Any, force: bool) -> None:
        (run,) = (run for run in self.runs if run.id == number)
        run.type, run.name = state.type, state.name
        assert force


def test_all_dead_runs_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten days off, 240 hourly runs are late; those that were left would start retrainings now."""
    api = Api(*[(StateType.SCHEDULED, None)] * 7, *[(StateType.RUNNING, None)] * 6)
    api.runs += [SimpleNamespace(id=uuid4(), type=StateType.RUNNING, parent=run.id, name="") for run in api.runs[-5:]]
    monkeypatch.setattr(missed, "get_client", lambda **_: nullcontext(api))
    assert missed.tidy("flow/name", "killed") == (6, 7)
    assert [run.name for run in api.runs] == ["Missed"] * 7 + ["Crashed"] * 11
    assert missed.tidy("flow/name", "killed") == (0, 0)
