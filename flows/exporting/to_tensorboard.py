"""Export to event files of TensorBoard, one folder per run, which is written completely and then replaces a former one."""

import shutil
import time
from pathlib import Path

from flows.exporting.record import Record
from flows.exporting.settings import TensorBoard
from tasks.core.files import new_folder


def send(target: TensorBoard, record: Record) -> str:
    """Write or replace the folder of this key; return its path."""
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(target.folder).expanduser()
    place = folder / f"{time.strftime('%Y-%m-%d_%H-%M', time.gmtime(record.at))}-{record.key}"
    folder.mkdir(parents=True, exist_ok=True)
    with new_folder(place) as new, SummaryWriter(str(new)) as writer:
        for name, value in record.metrics.items():
            writer.add_scalar(name, value, 0, walltime=record.at)
        for name, points in record.curves.items():
            for step, value in points:
                writer.add_scalar(name, value, step, walltime=record.at)
        for title, rows in (("parameters", record.params), ("tags", record.tags)):
            lines = [f"| {key} | {text.replace('|', chr(92) + '|')} |" for key, text in rows.items()]
            writer.add_text(title, "\n".join(["| | |", "|---|---|", *lines]), 0)
        if record.table:
            writer.add_text("table", "\n".join(f"    {line}" for line in record.table.splitlines()), 0)
    for former in folder.glob(f"*-{record.key}"):  # of another time: git rewrites dvc.lock
        if former != place:
            shutil.rmtree(former)
    return str(place)
