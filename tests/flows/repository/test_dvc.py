"""What is edited while a stage runs: the stage is recorded as it was read, and never under what it has not seen."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.repository import dvc
from flows.repository.dvc import TURNS
from tasks.core.stage.entry import refuse_newer
from tasks.core.stage.errors import UserError

Executed = Callable[[dict[str, str]], set[str]]


def locked(folder: Path, stage: str) -> dict[str, Any]:
    entry: dict[str, Any] = YAML(typ="safe").load(folder / "dvc.lock")["stages"][stage]
    return entry


@pytest.mark.parametrize("wrong", [-15.0, 3600.0])
def test_a_change_is_dated_by_the_clock_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    """Whatever this machine's own says: a file server's may be ahead of it, or behind."""
    params = tmp_path / "params.yaml"
    params.write_text("a: 1\n")
    real = time.time()
    monkeypatch.setattr(dvc.time, "time", lambda: real + wrong)
    begun = dvc.files_time(tmp_path / ".retemper")
    assert abs(begun - real) < 10 and list((tmp_path / ".retemper").iterdir()) == []
    refuse_newer(repr(begun), params)
    time.sleep(0.05)  # the kernel's clock of files is coarse
    params.write_text("a: 2\n")
    with pytest.raises(UserError, match="changed while the stage was starting"):
        refuse_newer(repr(begun), params)
    (tmp_path / "file").write_text("")
    assert dvc.files_time(tmp_path / "file") == real + wrong, "nothing can be written there: this machine's own"


def test_what_was_changed_in_the_future_is_dated_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that was ahead at checkout."""
    code, params = tmp_path / "tasks/core/stage/entry.py", tmp_path / "params.yaml"
    code.parent.mkdir(parents=True)
    for path in (code, params):
        path.write_text("")
    before = {path: path.stat() for path in (code, params)}
    time.sleep(0.05)
    dvc.settle(tmp_path, tmp_path / "tasks")
    assert [path.stat().st_ctime_ns for path in before] == [found.st_ctime_ns for found in before.values()], "not in the future"
    monkeypatch.setattr(dvc, "files_time", lambda _: before[code].st_ctime - 3600)
    dvc.settle(tmp_path, tmp_path / "tasks")
    for path, found in before.items():
        assert path.stat().st_ctime_ns > found.st_ctime_ns
        assert path.stat().st_mtime_ns == found.st_mtime_ns
    params.unlink()
    dvc.settle(tmp_path, tmp_path / "nowhere")


def test_parameters_edited_meanwhile_are_a_change_for_the_next_run(served: Any, executed: Executed) -> None:
    served.acts(encoders__a="sleep 3")
    process = served.start("run")
    served.at_work("encoders/a")
    served.rounds(a="9", b="1")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "params.yaml: changed while train@a ran; recorded as it was before" in out
    assert locked(served.folder, "train@a")["params"]["params.yaml"] == {"rounds.a": {"value": 1}}
    assert (served.folder / "data/encoders/a").read_text().startswith("1(")
    served.acts()
    assert executed(served.run()) == {"train@a", "evaluate@a", "report"}
    assert (served.folder / "data/encoders/a").read_text().startswith("9(")
    served.rounds(a="1", b="1")
    assert executed(served.run()) == set()
    assert (served.folder / "data/encoders/a").read_text().startswith("1("), "from the run cache, under what it was made of"


def test_code_edited_meanwhile_is_a_change_for_the_next_run(served: Any, executed: Executed) -> None:
    served.acts(data__corpus="sleep 3")
    process = served.start("run")
    served.at_work("data/corpus")
    (served.folder / "step.py").write_text((served.folder / "step.py").read_text() + "# edited\n")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "step.py: changed while prepare ran; recorded as it was before" in out
    served.acts()
    assert executed(served.run()) == {"prepare"}


def test_data_changed_meanwhile_is_no_result(served: Any, executed: Executed) -> None:
    served.acts(encoders__a="sleep 3")
    process = served.start("run")
    served.at_work("encoders/a")
    corpus = served.folder / "data/corpus"
    corpus.unlink()  # it may be a link into the cache
    corpus.write_text("somebody's")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 2, out + err
    assert "data/corpus: changed while train@a ran; what it made is not kept, run again" in err
    assert "Traceback" not in out + err
    served.acts()
    assert "train@a" in executed(served.run())
    assert "somebody" not in (served.folder / "data/encoders/a").read_text()


@pytest.mark.parametrize("act", ["sleep 4", "fail"])
def test_of_two_runs_over_one_cache_one_computes_and_the_other_takes_its_outs(toy: Any, tmp_path: Path, act: str) -> None:
    """Where that one fails, the other is not kept waiting, and tries itself."""
    toy.acts(data__corpus=act)
    (toy.folder / ".dvc/config.local").write_text(f"[cache]\n    dir = {tmp_path / 'cache'}\n")
    trees = [shutil.copytree(toy.folder, tmp_path / name) for name in ("one", "other")]
    command = [sys.executable, "-m", "flows.repository.dvc", "repro", "prepare"]
    environment = toy.environment | {TURNS: str(tmp_path / "turns")}
    at_work = [subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True) for tree in trees]
    said = "".join(process.communicate(timeout=300)[0] for process in at_work)
    assert [process.returncode == 0 for process in at_work] == [act != "fail"] * 2, said
    assert said.count("at work on data/corpus") == (2 if act == "fail" else 1), said
    assert (said.count("is cached - skipping run") == 1) == (act != "fail")
    if act != "fail":
        assert {(tree / "data/corpus").read_text() for tree in trees} == {"one()"}
        locks = [json.dumps(locked(tree, "prepare")) for tree in trees]
        assert locks[0] == locks[1]
