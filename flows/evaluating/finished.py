"""What a failed run in a second tree has measured, and what only an earlier run has."""

from pathlib import Path

from flows.repository.graph import read_graph, read_status
from flows.repository.lock import LOCK, read_lock
from flows.repository.project import dvc_errors, repository
from flows.results.metrics import METRICS
from flows.team.sync import restorable


def discard_earlier_metrics(project: Path) -> None:
    """Remove the metrics that an earlier run measured for other inputs: an evaluation is checked out of the cache before the stages that
    it reads from run, and stays if one of them fails."""
    if not any((project / METRICS).glob("*.json")):
        return
    with dvc_errors(), repository(project) as repo:
        graph = read_graph(repo)
        status = read_status(repo, graph.stages)
        missing = restorable(status, read_lock(project / LOCK))
        for stage in graph.downstream_of(status.keys() - missing):
            for out in graph.stages[stage].outs:
                if out.parent.name == METRICS.name:
                    out.unlink(missing_ok=True)
