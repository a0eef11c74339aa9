"""Ctrl-C before a command begins."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.cli import entry
from flows.cli import main as command_line

ROOT = Path(__file__).resolve().parents[3]
INTERRUPTED = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos._exit(7)\n"  # what the first import does


@pytest.mark.parametrize(("handler", "status"), [(signal.SIG_DFL, -signal.SIGINT), (signal.SIG_IGN, 7)], ids=["by default", "ignored"])
def test_an_interrupted_import_is_no_traceback(tmp_path: Path, handler: signal.Handlers, status: int) -> None:
    (tmp_path / "typer.py").write_text(INTERRUPTED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    before = signal.signal(signal.SIGINT, handler)  # which the process inherits
    try:
        result = subprocess.run([sys.executable, "-m", "flows.cli", "run"], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.returncode, result.stdout, result.stderr) == (status, b"", b"")


def test_a_command_has_pythons_own_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = list[Any]()

    def interrupt() -> int:
        handlers.append(signal.getsignal(signal.SIGINT))
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "main", interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
    try:
        assert entry.main() == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert handlers == [signal.default_int_handler]
