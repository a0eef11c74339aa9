"""Commands that never outlive us."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows.process.processes import TYPED, Processes, Stopped, environment, name_user, typed_command

SLEEPERS = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep({seconds})"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


def is_alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def wait_for_end(process: int, seconds: float = 30) -> bool:
    """Whether a process ends; our sleepers sleep longer than we wait."""
    deadline = time.monotonic() + seconds
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_alive(process)


def python_command(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_output_comes_line_by_line_and_the_status_is_the_commands(tmp_path: Path) -> None:
    lines: list[str] = []
    mark = tmp_path / "heard"
    wait = f"import pathlib, time\nfor _ in range(6000):\n    if pathlib.Path({str(mark)!r}).exists(): break\n    time.sleep(0.01)\n"
    script = f"import sys; print('one'); print('two', file=sys.stderr)\n{wait}else: sys.exit('not as they come')\n"

    def tell(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            mark.touch()

    assert Processes().run(python_command(f"{script}print('half\\rwhole'); sys.exit(7)"), tell) == 7
    assert lines == ["one", "two", "half", "whole"]


def test_commands_and_all_that_they_start_ignore_sigint() -> None:
    """Otherwise one that it hits, even during imports, shows a KeyboardInterrupt."""
    lines: list[str] = []
    inner = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('and so does its child')"
    script = f"import os, signal, subprocess, sys; os.kill(os.getpid(), signal.SIGINT); print('it goes on', flush=True); \
subprocess.run([sys.executable, '-c', {inner!r}])"
    assert Processes().run(python_command(script), lines.append) == 0
    assert lines == ["it goes on", "and so does its child"]


def test_a_killed_command_and_a_missing_one() -> None:
    assert Processes().run(python_command("import os; os.kill(os.getpid(), 9)"), print) == 137
    lines: list[str] = []
    assert Processes().run(["no-such-command"], lines.append) == 127
    assert "no-such-command" in lines[0]


def test_commands_see_our_python_and_an_empty_stdin() -> None:
    lines: list[str] = []
    command = ["python", "-c", "import sys; print(sys.prefix); print(repr(sys.stdin.read()))"]
    assert Processes().run(command, lines.append, environment(EXTRA="1")) == 0
    assert lines == [sys.prefix, "''"]


def test_a_signal_during_a_destructor_stops_without_a_traceback() -> None:
    script = """
import os, signal
from flows.process.processes import Processes, Stopped, stopping_on_signals
class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
processes = Processes()
with stopping_on_signals(processes):
    last = Last()
    del last
    try:
        processes.start(["true"])
    except Stopped:
        print("nothing more is started", flush=True)
"""
    result = subprocess.run(python_command(script), capture_output=True, text=True, timeout=300, check=False)
    assert (result.stdout, result.stderr) == ("nothing more is started\n", "\nretemper: stopped\n")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
class TestNothingIsLeft:
    def test_of_a_command_that_ends(self) -> None:
        lines: list[str] = []
        start = time.monotonic()
        Processes().run(python_command(SLEEPERS.format(seconds=0)), lines.append)
        assert time.monotonic() - start < 55, "its child held the pipe open for a minute, and we did not wait for that"
        assert wait_for_end(int(lines[0]))

    def test_of_a_command_that_is_stopped(self) -> None:
        processes, started, lines = Processes(), threading.Event(), []

        def tell(line: str) -> None:
            lines.append(line)
            started.set()

        thread = threading.Thread(target=lambda: processes.run(python_command(SLEEPERS.format(seconds=60)), tell))
        thread.start()
        assert started.wait(60)
        processes.stop()
        thread.join(30)
        assert not thread.is_alive()
        assert wait_for_end(int(lines[0]))
        with pytest.raises(Stopped):
            processes.run(["true"], print)

    def test_of_a_command_that_ignores_signals(self) -> None:
        processes, started = Processes(), threading.Event()
        status: list[int] = []
        thread = threading.Thread(target=lambda: status.append(processes.run(python_command(STUBBORN), lambda _: started.set())))
        thread.start()
        assert started.wait(60)
        processes.stop()
        thread.join(30)
        assert status == [137]

    @pytest.mark.parametrize("victim", ["owner", "tether", "both"])
    def test_when_we_are_killed(self, victim: str) -> None:
        inner = [sys.executable, "-c", SLEEPERS.format(seconds=60)]
        script = f"from flows.process.processes import Processes; Processes().run({inner!r}, lambda line: print(line, flush=True))"
        root = str(Path(__file__).resolve().parents[3])
        owner = subprocess.Popen(python_command(script), stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": root})
        assert owner.stdout is not None
        grandchild = int(owner.stdout.readline())
        child = int(Path(f"/proc/{grandchild}/stat").read_text().rpartition(")")[2].split()[1])
        tether = os.getpgid(grandchild)
        assert tether not in (os.getpgid(0), owner.pid)
        if victim == "both":
            owner.send_signal(signal.SIGSTOP)  # it does nothing about the tether's death
        os.kill(owner.pid if victim == "owner" else tether, signal.SIGKILL)
        assert wait_for_end(child)
        if victim == "both":  # the command is gone; a stage then ends by itself (tasks.core.stage.entry)
            os.kill(grandchild, signal.SIGKILL)
            owner.kill()
        assert wait_for_end(grandchild)
        assert wait_for_end(tether)
        owner.wait(10)


def test_a_stop_that_a_library_turned_into_another_error_is_still_a_stop() -> None:
    """pydantic makes a PydanticSerializationError of a KeyboardInterrupt, while Prefect is imported: no traceback of it is shown."""
    script = (
        "import os, signal, sys\n"
        "from flows.process.processes import Processes, stopping_on_signals\n"
        "try:\n"
        "    with stopping_on_signals(Processes(), lambda: 'stopped'):\n"
        "        try:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "            signal.pause()\n"
        "        except KeyboardInterrupt as error:\n"
        "            raise ValueError('cannot serialize') from error\n"
        "except KeyboardInterrupt as error:\n"
        "    os._exit(error.args[0])\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert (result.returncode, result.stderr) == (signal.SIGTERM, "stopped")


@pytest.mark.parametrize(
    ("arguments", "inherited", "expected"),
    [
        (["/x/bin/retemper", "run", "--set", "a=b c"], "", "retemper run --set 'a=b c'"),
        (["/x/flows/cli/__main__.py", "retrain"], "", "retemper retrain"),
        (["/x/site-packages/prefect/flow_engine.py", "--x"], "", "retemper schedule"),
        (["/x/flows/scheduling/serve.py", '{"name": "a"}'], "", "retemper schedule"),
        (["/x/a/prefect/.venv/bin/retemper", "run"], "", "retemper run"),
        (["/x/flows/pipeline/alone.py", "evaluate@a"], "retemper bisect", "retemper bisect"),
    ],
)
def test_what_was_typed(monkeypatch: pytest.MonkeyPatch, arguments: list[str], inherited: str, expected: str) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setenv(TYPED, inherited)
    assert typed_command() == expected


@pytest.mark.parametrize("known", [True, False])
def test_a_user_without_a_name_gets_the_number(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    def getuser() -> str:
        if known:
            return "ada"
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setenv("LOGNAME", "before")
    monkeypatch.setattr("getpass.getuser", getuser)
    name_user()
    assert os.environ["LOGNAME"] == ("before" if known else str(os.getuid()))
