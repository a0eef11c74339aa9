"""Export to a run of MLflow. In names of metrics, `_` replaces characters that MLflow refuses, as in nDCG_10."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

from flows.exporting.record import PREFIX, Record
from flows.exporting.settings import Mlflow

KEY = f"{PREFIX}key"
NOTE = "mlflow.note.content"  # the run's description, on its page
LENGTHS = {"key": 250, "param": 6000, "tag": 5000}  # the most characters that MLflow takes
BATCH = {"metrics": 1000, "params": 100, "tags": 100}  # the most that one request takes

T = TypeVar("T")


def send(target: Mlflow, record: Record) -> str:
    """Create the run of this key or bring it up to date; return its id. Nothing is sent twice, since MLflow's params cannot change."""
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=target.uri)
    at = int(record.at * 1000)
    existing = client.get_experiment_by_name(target.experiment)
    experiment = existing.experiment_id if existing else client.create_experiment(target.experiment)
    runs = client.search_runs([experiment], f"tags.`{KEY}` = '{record.key}'", max_results=1)
    run = runs[0] if runs else client.create_run(experiment, start_time=at, tags={KEY: record.key}, run_name=record.name)
    identity = run.info.run_id

    points = [(name, 0, value) for name, value in record.metrics.items() if run.data.metrics.get(_name(name)) != value]
    for name, curve in record.curves.items():
        sent_steps = {point.step for point in client.get_metric_history(identity, _name(name))} if runs else set()
        points += [(name, step, value) for step, value in curve if step not in sent_steps]
    metrics = [Metric(_name(name), value, at, step) for name, step, value in points]
    params = [Param(key[: LENGTHS["key"]], value[: LENGTHS["param"]]) for key, value in record.params.items() if key not in run.data.params]
    tag_texts = {**record.tags, "mlflow.source.git.commit": record.tags.get(f"{PREFIX}commit", ""), NOTE: _note(record.table)}
    tags = [RunTag(key[: LENGTHS["key"]], text[: LENGTHS["tag"]]) for key, text in tag_texts.items() if text]
    for kind, entries in {"metrics": metrics, "params": params, "tags": tags}.items():
        for part in _parts(entries, BATCH[kind]):
            client.log_batch(identity, **{kind: part})
    client.set_terminated(identity, end_time=at)
    return str(identity)


def _name(name: str) -> str:
    name = re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)
    return name if len(name) <= LENGTHS["key"] else f"{name[:200]}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _note(table: str) -> str:
    return f"```\n{table}\n```" if table else ""


def _parts(entries: Sequence[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(entries), size):
        yield list(entries[start : start + size])
