"""Export to a run of Weights & Biases. Its id is the record's key, so the same run is resumed, not made twice."""

import shutil
from collections import defaultdict
from pathlib import Path

from flows.exporting.record import PREFIX, Record
from flows.exporting.settings import Wandb

FOLDER = Path(".retemper")  # wandb makes a folder `wandb` in it
SENT = f"{PREFIX}curves"  # in the summary: whether this run has its curves


def send(target: Wandb, record: Record, seconds: float) -> str:
    """Create or resume the run of this key; return its id. `seconds`: after which a server that does not answer is an error."""
    import wandb

    FOLDER.mkdir(exist_ok=True)
    if target.mode == "offline":
        for former in (FOLDER / "wandb").glob(f"offline-run-*-{record.key}"):
            shutil.rmtree(former)
    run = wandb.init(
        project=target.project,
        entity=target.entity,
        id=record.key,
        name=record.name,
        notes=record.table or None,
        config={**record.params, **record.tags},
        tags=[text for name, text in record.tags.items() if name == f"{PREFIX}result"],
        mode=target.mode,
        resume="allow" if target.mode == "online" else None,
        dir=str(FOLDER),
        settings=wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True, init_timeout=seconds
        ),
    )
    if not (run.resumed and run.summary.get(SENT)):  # a resumed run would get its curves again, after the first ones
        for model, rows in _by_step(record).items():
            run.define_metric(f"curves/{model}/*", step_metric=f"curves/{model}/step")
            for step, values in sorted(rows.items()):
                run.log({f"curves/{model}/step": step, **values})
    run.summary.update({**record.metrics, SENT: True})
    run.finish()
    return record.key


def _by_step(record: Record) -> dict[str, dict[int, dict[str, float]]]:
    """Values by model, step, and name."""
    by_model: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for name, points in record.curves.items():
        for step, value in points:
            by_model[name.split("/")[1]][step][name] = value
    return by_model
