"""What is edited while a stage runs: the stage is recorded as it was read, and never under what it has not seen."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.remote import TURNS

Executed = Callable[[dict[str, str]], set[str]]


def locked(folder: Path, stage: str) -> dict[str, Any]:
    entry: dict[str, Any] = YAML(typ="safe").load(folder / "dvc.lock")["stages"][stage]
    return entry


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
    command = [sys.executable, "-m", "flows.remote", "repro", "prepare"]
    path = f"{Path(sys.executable).parent}:{toy.environment['PATH']}"  # as the flow sets it: `python` of a stage is this one
    environment = toy.environment | {TURNS: str(tmp_path / "turns"), "PATH": path}
    at_work = [subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True) for tree in trees]
    said = "".join(process.communicate(timeout=300)[0] for process in at_work)
    assert [process.returncode == 0 for process in at_work] == [act != "fail"] * 2, said
    assert said.count("at work on data/corpus") == (2 if act == "fail" else 1), said
    assert (said.count("is cached - skipping run") == 1) == (act != "fail")
    if act != "fail":
        assert {(tree / "data/corpus").read_text() for tree in trees} == {"one()"}
        locks = [json.dumps(locked(tree, "prepare")) for tree in trees]
        assert locks[0] == locks[1]
