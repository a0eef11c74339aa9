"""A run whose output nobody takes any more."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.process.display import Display
from flows.process.processes import Processes

RUN = """
import sys
from pathlib import Path
from flows.process.display import Display, Outcome
from flows.process.processes import Processes
display, seen = Display(), []
with display.open(["train@a"]):
    display.began("train@a")
    def tell(line):
        seen.append(line)
        display.output("train@a", line)
    status = Processes().run([sys.executable, "-c", "print('x' * 99 + chr(10), end='') or [print('y' * 99) for _ in range(5000)]"], tell)
    display.ended("train@a", Outcome("Ran", 1.0))
display.warn("said")
print("more, of others")
Path("ended").write_text(f"{status} {len(seen)}")
"""


@pytest.mark.parametrize("taken", ["nobody", "both", "closed", "full"])
def test_the_run_goes_on_and_ends_as_it_would_have(tmp_path: Path, taken: str) -> None:
    """Its pipe's reader is gone (`| head`, `2>&1 | head`), stdout is closed (`>&-`), or the disk under its log is full."""
    read, write = os.pipe()
    os.close(read)
    if taken == "full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    full = os.open("/dev/full", os.O_WRONLY) if taken == "full" else write
    command = [sys.executable, "-c", RUN]
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(
        shell if taken == "closed" else command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        stdout=subprocess.PIPE if taken == "closed" else full,
        stderr=write if taken == "both" else subprocess.PIPE,
        timeout=300,
        check=False,
    )
    assert (tmp_path / "ended").read_text() == "0 5001", "every line was read"
    assert (done.returncode, done.stderr) == (0, None if taken == "both" else b"retemper: warning: said\n")


def test_a_command_ends_where_who_is_told_cannot_listen() -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        raise BrokenPipeError

    script = "for _ in range(5000): print('y' * 99)"
    assert Processes().run([sys.executable, "-c", script], tell) == 0
    assert len(told) == 5000


def test_a_run_whose_reader_is_gone_has_its_true_state(served: Any) -> None:
    process = served.start("run", "prepare")
    assert process.stdout is not None
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(300) == 0, error
    assert "Traceback" not in error and "Broken" not in error
    assert "at work on data/corpus" in (served.folder / ".retemper/logs/prepare.log").read_text()
    assert (served.folder / "data/corpus").exists() and "prepare" in (served.folder / "dvc.lock").read_text()


def test_what_is_said_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.line("a line")
    display.warn("a warning")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("a line\n", "retemper: warning: a warning\n")
