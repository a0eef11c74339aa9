"""What is edited while a stage runs: the stage is recorded as it was read, and never under what it has not seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

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
