"""How busy a machine is, with and without GPUs."""

import re
from pathlib import Path

import psutil
import pytest

from flows.watching.machine import describe_load

PLAIN = r"\d+ cores \d+% busy, [\d.]+ of [\d.]+ GiB of memory, [\d.]+ GiB of disk free"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, ""),
        ("echo '37, 2048, 81920'; echo '0, 10, 81920'", ", GPU 0 37% busy, 2.0 of 80.0 GiB, GPU 1 0% busy, 0.0 of 80.0 GiB"),
        ("echo '[N/A], 2048, 81920'; echo '5, [N/A], [N/A]'", ", GPU 0, 2.0 of 80.0 GiB, GPU 1 5% busy"),
        ("echo No devices were found", ""),
        ("echo broken driver >&2; exit 9", ""),
    ],
)
def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, expected: str) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin" if answer else str(tmp_path))
    if answer:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert re.fullmatch(PLAIN + re.escape(expected), describe_load(tmp_path))


def test_the_first_answer_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an interval, psutil returns 0 on each thread's first call, and a server has many threads."""
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval=None: 42.0 if interval else 0.0)
    assert " cores 42% busy, " in describe_load(tmp_path)
