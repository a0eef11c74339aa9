"""The load of this machine."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ASKED = ("utilization.gpu", "memory.used", "memory.total")
ANSWER_SECONDS = 5
LOOKED = 0.2  # seconds to measure; without, psutil reports the time since the same thread's last call, and 0 on the first


def describe_load(folder: Path) -> str:
    """`2 cores 97% busy, 6.2 of 23.5 GiB of memory, 80.1 GiB of disk free`; and the load of GPUs, if nvidia-smi answers."""
    import psutil  # type: ignore[import-untyped]

    memory, gib = psutil.virtual_memory(), 2**30
    parts = [
        f"{os.cpu_count()} cores {psutil.cpu_percent(LOOKED):.0f}% busy",
        f"{(memory.total - memory.available) / gib:.1f} of {memory.total / gib:.1f} GiB of memory",
        f"{shutil.disk_usage(folder).free / gib:.1f} GiB of disk free",
    ]
    return ", ".join([*parts, *_gpus()])


def _gpus() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    try:
        command = [tool, f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
    except (subprocess.SubprocessError, OSError):
        return []
    rows = [[_number(cell) for cell in line.split(",")] for line in process.stdout.splitlines() if line.strip()]
    return [f"GPU {number}{_gpu(row)}" for number, row in enumerate(rows) if len(row) == len(ASKED)]


def _gpu(row: Sequence[float | None]) -> str:
    """` 97% busy, 6.2 of 79.6 GiB`, without what the driver does not report (for part of a GPU, or memory shared with the CPU)."""
    use, used, total = row
    busy = "" if use is None else f" {use:.0f}% busy"
    memory = "" if used is None or total is None else f", {used / 1024:.1f} of {total / 1024:.1f} GiB"
    return busy + memory


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:  # [N/A]
        return None
