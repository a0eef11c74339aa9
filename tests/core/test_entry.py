"""How a stage ends when it is interrupted."""

import signal
import subprocess
import sys
from pathlib import Path


def test_ctrl_c_is_one_line_and_status_130() -> None:
    script = "import time\nfrom tasks.core.entry import stage\nwith stage():\n    print('at work', flush=True)\n    time.sleep(60)"
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, "retemper: interrupted\n")
