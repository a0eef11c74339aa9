"""The flow that a schedule or a worker starts: one retraining in its own process. Prefect only observes; its server may be unavailable."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow, runtime, tags
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from flows.champions.champion import details, read_champions
from flows.champions.history import Ended
from flows.champions.tree import folder_of, hold_for_retraining
from flows.pages import measured
from flows.process.display import markdown_table
from flows.process.locks import Busy
from flows.results import metrics
from flows.retraining import notify
from flows.retraining.retrain import retrain
from tasks.core.errors import UserError, disk_fault, printable

SKIPPED = "Skipped"  # state of a run that found another one in progress


@flow(name="retemper-retraining", persist_result=False)
def scheduled(follow: str = "HEAD") -> State[None]:
    """Retrain the project in the current folder; the state's name and message say how that ended."""
    project = Path.cwd()
    try:
        with hold_for_retraining(project, lambda: print("waiting for retemper retrain --dry-run to end", flush=True)):
            pass
    except Busy as busy:
        return Completed(name=SKIPPED, message=str(busy))
    except (UserError, OSError) as error:  # a suspended dry run; the lock's file belongs to root after `sudo retemper retrain`
        return _failed(project, error)
    try:
        with tags(*runtime.flow_run.tags):  # so that its pipeline is watched too (flows.scheduling.heartbeats)
            ended = retrain(project, follow, dated=True)
    except (UserError, OSError) as error:
        return _failed(project, error)
    logger = get_run_logger()
    logger.log(40 if ended.result == "failed" else 20, ended.line)
    _quietly(lambda: _publish(project, ended))
    if ended.result == "failed":
        return Failed(message=ended.reason)
    return Completed(name=ended.result.capitalize(), message=ended.reason)


def _failed(project: Path, error: Exception) -> State[None]:
    """The state of a run that could not begin; people get a notice of it, which `retrain` sends only for what happens later."""
    message = printable((disk_fault(error) if isinstance(error, OSError) else "") or " ".join(str(error).split()))
    notify.notify("failed", f"{project.name}: retraining failed: {message}", lambda line: print(f"retemper: warning: {line}", flush=True))
    return Failed(message=message)


def _publish(project: Path, ended: Ended) -> None:
    """Put tables and the report's location on the flow run's page."""
    header, rows = metrics.rows(ended.metrics or {})
    text = [f"**{ended.result}**: {ended.reason}"]
    if rows:
        text.append(markdown_table(header, rows))
    champions = read_champions(project)
    if champions:
        text.append(f"```\n{details(champions[-1])}\n```")
    create_markdown_artifact("\n\n".join(text), key="retraining", description=ended.line)
    report = folder_of(project) / measured.PAGE
    if report.exists():
        create_link_artifact(report.resolve().as_uri(), "report.html", key="report", description="the report of the last retraining")


def _quietly(work: Callable[[], Any]) -> None:
    """Do `work`; an error, such as an unavailable server, only gives a warning: the page lacks tables, but the run succeeds."""
    try:
        work()
    except Exception as error:
        print(f"retemper: warning: not published on Prefect's page ({type(error).__name__})", flush=True)
