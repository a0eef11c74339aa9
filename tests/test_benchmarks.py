"""The benchmarks still run, and what they check themselves holds: each at its smallest size. Their figures mean nothing here."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command",
    [
        "search.py --rows 5000 --queries 64 --repeat 1",
        "gpu.py --rows 4000 --queries 8 --batches 4 --repeat 1 --encoder 1 48 6 --cosines 0.99",  # so alike that there is a second pass
        "bm25.py --passages 2000 --queries 200 --repeat 1",
        "data.py --passages 300 --repeat 1 --processes 1",
        "pretrain.py --steps 1 --texts 4 --layers 1 --width 48 --processes 1",
        "train.py --steps 1 --batch 4 --length 16 --repeat 1",
        "grow.py --documents 200 --share 0.1",
        "promotion.py --years 2 --queries 100 --only year",
    ],
)
def test_a_benchmark_runs(command: str, tmp_path: Path) -> None:
    name, *options = command.split()
    process = subprocess.run([sys.executable, BENCHMARKS / name, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.strip()
