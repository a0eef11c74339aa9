"""Export a record to every target of export.yaml, each in its own process, within a time limit. A failure gives one warning.

`python -m flows.exporting.export TARGET FILE` is such a process. The targets' packages are imported only there.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flows.exporting.record import Record, gather
from flows.exporting.settings import Export, Mlflow, TensorBoard
from flows.process import locks
from flows.process.processes import Processes, environment
from tasks.core.errors import printable, redacted
from tasks.core.files import read_mapping, write_json
from tasks.core.params.sections import Params

FOLDER = Path(".retemper/export")
DONE = FOLDER / "done.json"  # by target, the digest of the last export: a run that changes nothing exports nothing
FAILED = "export failed: "
SQLITE = "sqlite:///"
OURS = {  # defaults, unless the environment sets them
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def export_run(
    project: Path, settings: Export, warn: Callable[[str], None], *, commit: str = "", outcome: Mapping[str, Any] | None = None
) -> list[str]:
    """Export the last run of the current folder (`gather`), with the settings and scratch of `project`. Never raises."""
    if not settings.targets:
        return []
    try:
        return export(project, settings, gather(commit, outcome), warn=warn)
    except Exception as error:  # the run itself is done
        warn(printable(f"this run was not exported: {type(error).__name__}: {' '.join(str(error).split())[:200]}"))
        return []


def export(project: Path, settings: Export, record: Record | None, *, warn: Callable[[str], None]) -> list[str]:
    """Export `record` from the folder `project`; return the targets that it was sent to. Targets that have it already are skipped.

    One export at a time: a run and a retraining may end at once.
    """
    if not record:
        return []
    with locks.wait_and_hold(project / FOLDER / "lock"):
        return _export(project, settings, record, warn=warn)


def _export(project: Path, settings: Export, record: Record, *, warn: Callable[[str], None]) -> list[str]:
    wanted = {name: f"{record.digest} {target.model_dump_json()}" for name, target in settings.targets.items()}
    done = read_mapping(project / DONE)
    due = [name for name, target in settings.targets.items() if done.get(name) != wanted[name] or is_lost(project, target, record.key)]
    if not due:
        return []
    file = (project / FOLDER / "record.json").absolute()
    write_json(file, {"settings": settings.model_dump(), "record": vars(record)})
    problems = _run(project, due, file, seconds=settings.seconds)
    sent = [name for name in due if not problems[name]]
    write_json(project / DONE, done | {name: wanted[name] for name in sent})
    for name, problem in problems.items():
        if problem:
            warn(f"not exported to {name}: {problem}; the next run tries again")
    return sent


def is_lost(project: Path, target: Params, key: str) -> bool:
    """Whether files of a target on this machine are gone. Of a server, this is unknown."""
    if isinstance(target, TensorBoard):
        return not any((project / Path(target.folder).expanduser()).glob(f"*-{key}"))
    database = target.uri.removeprefix(SQLITE) if isinstance(target, Mlflow) and target.uri.startswith(SQLITE) else ""
    return bool(database) and not (project / database.partition("?")[0]).exists()  # after it: options, such as timeout=30


def _run(project: Path, names: list[str], file: Path, *, seconds: float) -> dict[str, str]:
    """Run the exports in parallel; return the problem of each, empty if there was none."""
    processes, deadline = Processes(), time.monotonic() + seconds
    env = {**OURS, **environment()}
    logs = {name: project / FOLDER / f"{name}.log" for name in names}
    running = {
        name: processes.start([sys.executable, "-m", "flows.exporting.export", name, str(file)], env, logs[name], folder=project)
        for name in names
    }
    problems = {}
    try:
        for name, process in running.items():
            while (status := process.poll()) is None and time.monotonic() < deadline:
                time.sleep(0.05)
            problems[name] = "" if status == 0 else _problem(logs[name]) if status else f"no answer within {seconds:g} s"
    finally:
        for process in running.values():
            processes.end(process)
    return problems


def _problem(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    messages = [line.removeprefix(FAILED) for line in lines if line.startswith(FAILED)]
    return redacted(printable(messages[-1])) if messages else f"its process ended unexpectedly (log: {FOLDER / log.name})"


def main(arguments: list[str]) -> int:
    """Export to one target; return the exit status. A failure prints one line that begins with FAILED, and is status 1."""
    name, file = arguments
    content = json.loads(Path(file).read_text(encoding="utf-8"))
    settings, record = Export.model_validate(content["settings"]), Record(**content["record"])
    try:
        if name == "mlflow" and settings.mlflow:
            from flows.exporting.to_mlflow import send as to_mlflow

            to_mlflow(settings.mlflow, record)
        if name == "wandb" and settings.wandb:
            from flows.exporting.to_wandb import send as to_wandb

            to_wandb(settings.wandb, record, settings.seconds)
        if name == "tensorboard" and settings.tensorboard:
            from flows.exporting.to_tensorboard import send as to_tensorboard

            to_tensorboard(settings.tensorboard, record)
    except ImportError as error:
        print(f"{FAILED}{error.name or name} is not installed; pip install -c constraints.txt 'retemper[{name}]'", flush=True)
        return 1
    except Exception as error:  # whatever the target's package raises
        print(f"{FAILED}{type(error).__name__}: {' '.join(str(error).split())[:200]}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
