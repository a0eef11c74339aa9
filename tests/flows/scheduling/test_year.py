"""Weeks of a simulated year over the real stages, a real schedule and a search server (benchmarks/year.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.heavy
@pytest.mark.timeout(3600)  # a minute a week, and the machine may be busy
def test_weeks_of_a_year(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks/year.py", "--weeks", "9", "--seed", "2", "--folder", tmp_path / "year"]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=3500, check=False)
    print(result.stdout)
    assert result.returncode == 0, f"{result.stdout[-6000:]}\n{result.stderr[-3000:]}"
