"""A prepared Python runs what a new one would, and no process outlives whoever waits for it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from flows.process import prepared
from flows.process.prepared import FORKS, PreparedPython
from flows.process.processes import environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a prepared Python is the ordinary one elsewhere")

PROGRAMS = {
    "say": """
        import json, os, sys
        print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("COLOUR"), os.environ.get("OTHER"), __spec__.name]))
        print("to stderr", file=sys.stderr)
        sys.exit(int(sys.argv[1]))
    """,
    "words": "import sys; sys.exit('a sentence')",
    "fail": "raise RuntimeError('boom')",
    "loaded": "import sys; print(*sorted({name.split('.')[0] for name in sys.modules} & {'flows', 'json', 'tasks', 'xmlrpc'}))",
    "hang": """
        import os, subprocess, sys, time
        from pathlib import Path
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        Path(sys.argv[1]).write_text(f"{os.getpid()} {helper.pid}")
        time.sleep(300)
    """,
    "farewell": """
        import signal, sys, time
        from pathlib import Path
        def stop(*_):
            print("stopped")
            sys.exit(7)
        signal.signal(signal.SIGTERM, stop)
        Path(sys.argv[1]).write_text("ready")
        time.sleep(300)
    """,
    "workers": """
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        def double(value):
            return 2 * value
        if __name__ == "__main__":
            with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
                print(*pool.map(double, [1, 2, 3]))
    """,
    "arrow": "import pyarrow; print(pyarrow.default_memory_pool().backend_name)",
    "owner": "import os; from pathlib import Path; print(Path(f'/proc/{os.getppid()}/cmdline').read_text())",
    "title": "from pathlib import Path; print(Path('/proc/self/cmdline').read_text().replace(chr(0), ' ').strip())",
    "atexit": """
        import atexit, threading, time
        atexit.register(print, "last")
        threading.Thread(target=lambda: (time.sleep(.2), print("thread"))).start()
    """,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs `tasks.NAME`."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "tasks").mkdir()
    for name, text in PROGRAMS.items():
        (folder / f"tasks/{name}.py").write_text(dedent(text))
    return folder


@pytest.fixture
def python(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(project)
    for name in (FORKS, "PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    with PreparedPython(["xmlrpc.client"]) as prepared:
        wait_until(lambda: "fork_server.py" in call(prepared, "owner").stdout)
        yield prepared


def wait_until(condition: Callable[[], Any], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_arrow_gives_back_what_is_freed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It chooses its allocator when it is imported, so before a stage begins."""
    monkeypatch.chdir(project)
    for name in (FORKS, "PYTHONPATH", "PYTHONSAFEPATH", "ARROW_DEFAULT_MEMORY_POOL"):
        monkeypatch.delenv(name, raising=False)
    with PreparedPython(["pyarrow"]) as prepared:
        wait_until(lambda: "fork_server.py" in call(prepared, "owner").stdout)
        assert call(prepared, "arrow").stdout == "system\n"


def is_alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def call(python: PreparedPython, name: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    env = environment(**python.environment, **extra)
    return subprocess.run(
        [python.python, "-m", f"tasks.{name}", *arguments], env=env, capture_output=True, text=True, timeout=120, check=False
    )


def start(python: PreparedPython, name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [python.python, "-m", f"tasks.{name}", *arguments]
    return subprocess.Popen(command, env=environment(**python.environment), stdout=subprocess.PIPE, text=True)


def start_hanging(python: PreparedPython, project: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A client, and the processes that hang behind it."""
    note = project / f"hangs{time.monotonic_ns()}"
    client = start(python, "hang", str(note))
    wait_until(lambda: note.exists() and note.read_text())
    return client, [int(text) for text in note.read_text().split()]


def test_a_program_gets_what_a_new_python_would_give_it(python: Any) -> None:
    result = call(python, "say", "3", "two words", COLOUR="red", OTHER="blue")
    env = environment(COLOUR="red", OTHER="blue")
    plain = subprocess.run([sys.executable, "-m", "tasks.say", "3", "two words"], env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (3, plain.stdout, "to stderr\n")
    assert '["3", "two words"]' in result.stdout
    assert call(python, "say", "0").stdout.endswith('null, null, "tasks.say"]\n'), "one program's environment is not the next one's"


def test_its_end_is_that_of_a_new_python(python: Any) -> None:
    sentence, failed = call(python, "words"), call(python, "fail")
    assert (sentence.returncode, sentence.stderr) == (1, "a sentence\n")
    assert failed.returncode == 1
    assert failed.stderr.endswith("RuntimeError: boom\n")
    assert call(python, "nothing").returncode == 1
    assert call(python, "atexit").stdout == "thread\nlast\n"


def test_prepared_modules_are_there_and_none_of_ours(python: Any) -> None:
    wait_until(lambda: "xmlrpc" in call(python, "loaded").stdout)
    assert call(python, "loaded").stdout.split() == ["json", "tasks", "xmlrpc"]


def test_an_edited_program_is_read_again_and_a_frozen_copy_comes_first(python: Any, project: Path, tmp_path: Path) -> None:
    place = project / "tasks/edited.py"
    place.write_text("print('before')")
    assert call(python, "edited").stdout == "before\n"
    place.write_text("print('now, after')")
    assert call(python, "edited").stdout == "now, after\n"
    frozen = tmp_path / "tasks/edited.py"
    frozen.parent.mkdir()
    frozen.write_text("print('frozen')")
    assert call(python, "edited", PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1").stdout == "frozen\n"


def test_workers_are_new_processes(python: Any) -> None:
    result = call(python, "workers")
    assert result.stdout == "2 4 6\n", result.stderr


def test_ps_shows_the_program(python: Any) -> None:
    assert call(python, "title", "--name", "x").stdout == "python -m tasks.title --name x\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_program_is_told_as_such(python: Any, project: Path, number: signal.Signals) -> None:
    client, (program, helper) = start_hanging(python, project)
    os.kill(program, number)
    assert client.wait(timeout=300) == -number
    wait_until(lambda: not is_alive(helper))


def test_a_killed_client_takes_its_program_with_it(python: Any, project: Path) -> None:
    client, processes = start_hanging(python, project)
    other, other_processes = start_hanging(python, project)
    client.kill()
    wait_until(lambda: not any(map(is_alive, processes)))
    assert all(map(is_alive, other_processes)), "only its own"
    other.kill()
    wait_until(lambda: not any(map(is_alive, other_processes)))


def test_a_killed_server_takes_its_programs_with_it_and_python_starts_as_ever(python: Any, project: Path) -> None:
    client, (program, _) = start_hanging(python, project)
    server = int(Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server, signal.SIGKILL)
    assert client.wait(timeout=300) == -signal.SIGKILL
    wait_until(lambda: not is_alive(program))
    assert call(python, "say", "5").returncode == 5


def test_sigterm_reaches_the_program(python: Any, project: Path) -> None:
    note = project / "farewell"
    client = start(python, "farewell", str(note))
    wait_until(note.exists)
    client.terminate()
    assert client.communicate(timeout=300)[0] == "stopped\n"
    assert client.returncode == 7


def test_many_at_once(python: Any) -> None:
    clients = [start(python, "say", str(number)) for number in range(20)]
    assert [client.wait(timeout=120) for client in clients] == list(range(20))


def test_other_commands_run_in_an_ordinary_python(python: Any) -> None:
    result = subprocess.run([python.python, "-c", "print(6 * 7)"], capture_output=True, text=True, check=False)
    assert result.stdout == "42\n"


def test_runs_within_a_run_use_its_server(python: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FORKS, python.environment[FORKS])
    monkeypatch.chdir(tmp_path)
    with PreparedPython(["xmlrpc.client"]) as inner:
        assert inner.environment[FORKS] == python.environment[FORKS]
        assert Path(inner.python).is_relative_to(tmp_path)
        (tmp_path / "tasks").mkdir()
        (tmp_path / "tasks/mine.py").write_text("print('of this project')")
        assert call(inner, "mine").stdout == "of this project\n"
    monkeypatch.chdir(Path(python.python).parents[2])
    assert "fork_server.py" in call(python, "owner").stdout, "it is still at work"


def test_a_file_system_without_programs_has_the_ordinary_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one that is mounted noexec."""
    monkeypatch.chdir(tmp_path)
    assert prepared.python({FORKS: "name"}) == str(tmp_path / ".retemper/bin/python")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert prepared.python({FORKS: "name"}) == sys.executable


def test_set_to_nothing_it_is_the_ordinary_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORKS, "")
    with PreparedPython(["xmlrpc.client"]) as ordinary:
        assert (ordinary.python, ordinary.environment) == (sys.executable, {})
