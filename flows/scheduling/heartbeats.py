"""Mark runs of a pool whose worker was killed as Crashed, by Prefect's heartbeats and an automation that notices missing ones.

Import after `flows.pipeline.server.set_environment`.
"""

import os
from datetime import timedelta
from typing import get_args

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from flows.champions.history import Result
from flows.scheduling.flow import SKIPPED

FREQUENCY = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"  # environment of whoever registers: seconds between two heartbeats of a run
DEFAULT, LEAST = 60, 30  # seconds; Prefect takes no fewer
MISSED = 5  # heartbeats that a run must miss in a row
HEARTBEAT = "prefect.flow-run.heartbeat"
# Names of the states after which no heartbeat comes: Prefect's, and those that our flow ends with.
ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "TimedOut", SKIPPED, *(result.capitalize() for result in get_args(Result)))


def frequency() -> int:
    """Seconds between two heartbeats of a run."""
    value = os.environ.get(FREQUENCY, "")
    return max(int(value), LEAST) if value.isdigit() else DEFAULT


def silent_runs(tag: str, seconds: int) -> AutomationCore:
    """The automation that marks runs with `tag`, and pipelines in them, as Crashed if MISSED heartbeats, one every `seconds`, are missing.

    Prefect names the event of an end after the state's name. After an end that is not expected here, a run would be marked Crashed.
    """
    within = MISSED * seconds
    return AutomationCore(
        name=f"Crash silent runs of {tag}",
        description="Registered by retemper schedule --pool. A run whose worker was killed or lost no longer sends heartbeats.",
        trigger=EventTrigger(
            after={HEARTBEAT},
            expect={HEARTBEAT, *(f"prefect.flow-run.{name}" for name in ENDS)},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            match_related=ResourceSpecification({"prefect.resource.id": [f"prefect.tag.{tag}"], "prefect.resource.role": ["tag"]}),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=within),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"no heartbeat for {within} s: its worker was killed or lost; the champion is unchanged",
            )
        ],
    )


def watch(tag: str, seconds: int) -> None:
    """Create the automation for runs with `tag`, or bring it up to date; others of the same name are removed."""
    automation = silent_runs(tag, seconds)
    with get_client(sync_client=True) as client:
        existing = client.read_automations_by_name(automation.name)
        if not existing:
            client.create_automation(automation)
            return
        client.update_automation(existing[0].id, automation)
        for other in existing[1:]:
            client.delete_automation(other.id)
