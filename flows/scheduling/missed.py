"""Correct Prefect's records of dead runs: those killed with their runner become Crashed, those that nothing started become Missed.

Import after `flows.pipeline.server.set_environment`. A killed runner or worker leaves its runs Running forever (PrefectHQ/prefect #16746).
"""

from datetime import UTC, datetime

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

LOOKED_AT = 100  # latest runs, whose pipelines a kill may have left Running
ALIVE = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def tidy(deployment: str, why: str, missed: bool = True) -> tuple[int, int]:
    """Mark dead runs of `deployment` (FLOW/NAME); return how many became Crashed and how many Missed.

    The caller knows that none of its runs is alive, because it holds the lock of the deployment's only runner.
    """
    with get_client(sync_client=True) as client:
        try:
            record = client.read_deployment_by_name(deployment)
        except ObjectNotFound:
            return 0, 0
        deployment_id = FlowRunFilterDeploymentId(any_=[record.id])
        crashed = _all(client, FlowRunFilter(deployment_id=deployment_id, state=_in(ALIVE)))
        last = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(deployment_id=deployment_id), sort=FlowRunSort.START_TIME_DESC, limit=LOOKED_AT
        )
        parents = FlowRunFilterParentFlowRunId(any_=[run.id for run in (*crashed, *last)])
        pipelines = _all(client, FlowRunFilter(parent_flow_run_id=parents, state=_in(ALIVE))) if last else []
        for run in (*pipelines, *crashed):
            client.set_flow_run_state(run.id, Crashed(message=why), force=True)
        missed_runs = []
        if missed:
            until = FlowRunFilterNextScheduledStartTime(before_=datetime.now(UTC))
            scheduled = _in([StateType.SCHEDULED])
            missed_runs = _all(client, FlowRunFilter(deployment_id=deployment_id, state=scheduled, next_scheduled_start_time=until))
            for run in missed_runs:
                client.set_flow_run_state(run.id, Cancelled(name="Missed", message="no scheduler was running at that time"), force=True)
    return len(crashed), len(missed_runs)


def _all(client: SyncPrefectClient, wanted: FlowRunFilter) -> list[FlowRun]:
    """All runs that `wanted` selects. Prefect returns 200 of them at a time."""
    runs: list[FlowRun] = []
    while part := client.read_flow_runs(flow_run_filter=wanted, offset=len(runs)):
        runs += part
    return runs


def _in(types: list[StateType]) -> FlowRunFilterState:
    return FlowRunFilterState(type=FlowRunFilterStateType(any_=types))
