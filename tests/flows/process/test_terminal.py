"""A run as a person sees it: on a terminal of its own, whose Ctrl-C goes to the foreground group."""

import os
import pty
import re
import select
import sys
import time
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Terminal:
    """A program in the foreground of a pseudo-terminal."""

    def __init__(self, toy: Any, *arguments: str) -> None:
        self.text = ""
        self.pid, self._screen = pty.fork()
        self._readable = select.poll()  # select.select refuses a descriptor above 1,023, and pytest may have that many files open
        if self.pid == 0:
            os.chdir(toy.folder)
            script = "import sys; from flows.cli.main import main; sys.exit(main(check=lambda: None))"
            os.execve(sys.executable, [sys.executable, "-c", script, *arguments], toy.environment | {"COLUMNS": "60", "TERM": "xterm"})
        self._readable.register(self._screen, select.POLLIN)

    def read(self, seconds: float, pattern: str = "\\Z.") -> bool:
        """Read until a pattern is shown; False if it never is, or the program ends."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            if time.monotonic() > deadline:
                return False
            if self._readable.poll(100):
                try:
                    self.text += os.read(self._screen, 4096).decode()
                except OSError:  # the program has let go of its terminal
                    return False
        return True

    def press(self, key: str) -> None:
        os.write(self._screen, key.encode())

    def end(self) -> int:
        """The exit status (128 + signal, if killed)."""
        self.read(60)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._screen)
        return code if code >= 0 else 128 - code


CTRL_C = "\x03"


@pytest.mark.parametrize("presses", [1, 3])
def test_progress_is_redrawn_and_ctrl_c_says_what_is_kept(served_toy: Any, presses: int) -> None:
    served_toy.set_acts(encoders__a="hang")
    terminal = Terminal(served_toy, "run", "train@a")
    assert terminal.read(120, "train@a +[0-9]+ s > half way"), terminal.text
    assert terminal.read(60, "train@a +[0-9]+ s > running\r\x1b\\[2K"), "the line in passing is taken off again"
    start = time.monotonic()
    terminal.press(CTRL_C)
    if presses > 1:
        # The moment when a second one used to meet Python's own handler. Ctrl-C drops what is not shown yet, so both lines come first.
        assert terminal.read(60, "retemper: stopped.*\r?\n.*retemper: .*\r?\n"), terminal.text
        for _ in range(presses - 1):
            terminal.press(CTRL_C)
            time.sleep(0.2)
    assert terminal.end() == 130, terminal.text
    assert time.monotonic() - start < 60, "the stage would have slept for two minutes"
    assert "Traceback" not in terminal.text
    assert terminal.text.count("retemper: ") == 2, terminal.text
    assert not re.search("\x1b\\[(?!2K|0m)", terminal.text), "lines erased, no more (0m is a library's): no hidden cursor"
    assert "\x1b[2K" not in terminal.text[terminal.text.index("retemper: ") :], "nothing is drawn over what is said last"
    assert "retemper: stopped in train@a; finished stages are kept, and the same command resumes" in terminal.text
    assert served_toy.wait_for_end(), served_toy.processes()


def test_a_log_is_quiet(served_toy: Any) -> None:
    result = served_toy.call("run", "train@a")
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert " > " not in result.stdout
