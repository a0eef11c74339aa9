"""How a stage ends when it is interrupted, orphaned, or its inputs change."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tasks
from tasks.core.errors import UserError
from tasks.core.stage.code import ASKED_BY, SNAPSHOT
from tasks.core.stage.entry import RECORD, execute_frozen, record_arithmetic


def test_ctrl_c_is_one_line_and_status_130() -> None:
    script = (
        "import signal, time\nfrom tasks.core.stage.entry import stage\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it, and children inherit that
        "with stage():\n    print('at work', flush=True)\n    time.sleep(60)"
    )
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (130, "retemper: interrupted\n")


def test_a_stage_whose_parent_dies_during_startup_does_no_work(tmp_path: Path) -> None:
    """The kernel reports a parent's death only to processes that asked, which a stage does after its imports."""
    stage = (
        "import os, time; from pathlib import Path; from tasks.core.stage.entry import stage\n"
        "Path('started').write_text(str(os.getpid())); parent = os.getppid()\n"
        "while {wait} and os.getppid() == parent: time.sleep(0.01)\n"
        "with stage(): Path('worked').touch()"
    )
    parent = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', sys.argv[1]]); time.sleep(60 * int(sys.argv[2]))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "RETEMPER_TETHER": "1"}

    def start(wait: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", parent, stage.format(wait=wait), str(wait)]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)

    assert start(0).wait(60) == 0
    (tmp_path / "worked").unlink()
    (tmp_path / "started").unlink()
    process = start(1)
    while not (tmp_path / "started").exists() or not (tmp_path / "started").read_text():
        time.sleep(0.01)
    process.kill()
    process.wait()
    orphan = Path("/proc") / (tmp_path / "started").read_text()
    deadline = time.monotonic() + 20
    while orphan.exists() and "State:\tZ" not in (orphan / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.monotonic() < deadline
    assert not (tmp_path / "worked").exists()


def test_what_a_command_asks_does_no_work_once_the_command_is_gone() -> None:
    """`retemper convert`, killed while its child process still imports: the child would write a folder that nobody waits for."""
    script = "import os\nfrom tasks.core.stage.entry import stage\nwith stage(): print('RETEMPER_ASKED_BY' in os.environ)"
    root = Path(__file__).resolve().parents[3]
    for parent, outcome in ((os.getpid(), (0, "False\n")), (os.getppid(), (143, ""))):
        environment = os.environ | {ASKED_BY: str(parent)}
        process = subprocess.run([sys.executable, "-c", script], cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        assert (process.returncode, process.stdout) == outcome


@pytest.mark.parametrize("edit", ["", "corpus/rows", "file"])
def test_a_stage_fails_if_its_inputs_change_while_it_runs(tmp_path: Path, edit: str) -> None:
    """DVC would record the inputs as they are when the stage ends."""
    (tmp_path / "data/corpus").mkdir(parents=True)
    for name in ("corpus/rows", "file"):
        (tmp_path / "data" / name).write_text("before")
    change = f"p = Path('data/{edit}'); p.unlink(); p.write_text('after')" if edit else "pass"
    script = (
        f"from pathlib import Path\nfrom tasks.core.stage.entry import stage\nwith stage():\n    {change}\n    Path('data/out').touch()\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "DVC_STAGE": "train@a"}
    command = [sys.executable, "-c", script, "--corpus", "data/corpus", "--file", "data/file", "--out", "data/out"]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    folder = edit.partition("/")[0]
    message = f"retemper: data/{folder}: changed while train@a ran; its output was discarded, run again\n" if edit else ""
    assert (process.returncode, process.stderr) == (2 if edit else 0, message)


def test_imported_objects_are_exempt_from_garbage_collection() -> None:
    code = "import gc\nfrom tasks.core.stage.entry import stage\nwith stage(): print(gc.get_freeze_count() > 1000, gc.isenabled())"
    root = Path(__file__).resolve().parents[3]
    process = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert process.stdout == "True True\n", process


@pytest.mark.parametrize("problem", ["", "dataset.source beir:x: has changed: run again"])
def test_a_stage_fails_if_its_sources_differ_from_its_dependencies(tmp_path: Path, problem: str) -> None:
    (tmp_path / "watched.json").write_text(json.dumps({"problem": problem, "files": {}}))
    script = "from tasks.core.stage.entry import stage\nwith stage(): print('read')\n"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "RETEMPER_SOURCES": str(tmp_path / "watched.json")}
    process = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    expected = (2, "", f"retemper: {problem}\n") if problem else (0, "read\n", "")
    assert (process.returncode, process.stdout, process.stderr) == expected


@pytest.mark.parametrize("content", [None, "", '{"threads": 2', "[2]"])
def test_a_missing_or_truncated_record_of_the_hardware_stops_no_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """On a cluster, a worker writes it, and NFS may still say that it is missing."""
    path = tmp_path / "encode@a.json"
    monkeypatch.setenv(RECORD, str(path))
    if content is not None:
        path.write_text(content)
    record_arithmetic("int8 onednn")
    assert (path.read_text() if path.exists() else None) == content, "a worker's hardware may still come"


def test_code_that_is_not_the_frozen_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A colon in the project's path hides the frozen copy from PYTHONPATH: what is installed would run under its digest."""
    monkeypatch.setenv(SNAPSHOT, str(Path(tasks.__file__).parents[1]))
    execute_frozen()
    monkeypatch.setenv(SNAPSHOT, str(tmp_path))
    with pytest.raises(UserError) as error:
        execute_frozen()
    assert str(error.value) == f"{tmp_path}: expected this stage's frozen code, but {tasks.__file__} was imported; run again"
