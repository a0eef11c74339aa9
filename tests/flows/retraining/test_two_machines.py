"""Two machines that retrain at once: two clones of a toy project (conftest) with one git remote and one DVC remote."""

import shutil
from importlib.util import find_spec
from typing import Any

import pytest

from flows.champions import champion, history, machines


@pytest.fixture
def pair(retraining: Any, server_url: str) -> tuple[Any, Any]:
    """Two clones, each with data and trainings of its own; the second has the better data."""
    first = retraining
    first.environment["PREFECT_API_URL"] = server_url
    top = first.folder.parent
    first.git("init", "--quiet", "--bare", str(top / "remote.git"))
    for rule in ("receive.denyNonFastForwards", "receive.denyDeletes"):
        first.git("--git-dir", str(top / "remote.git"), "config", rule, "true")
    first.git("remote", "add", "origin", str(top / "remote.git"))
    first.call("remote", "add", "team", str(top / "team"))
    first.commit()
    first.git("push", "--quiet", "origin", "main")
    (top / "second").mkdir()
    shutil.copytree(first.source, top / "second/source")
    first.git("clone", "--quiet", "--branch", "main", str(top / "remote.git"), str(top / "second/toy"))
    acts = {"TOY_ACTS": str(top / "second/acts")}
    second = type(first)(top / "second/toy", top / "second/source", first.environment | acts)
    second.set_act("")
    second.add(*[0.9] * 10)
    return first, second


def outcomes(project: Any) -> list[tuple[str, str, int | None]]:
    entries = [entry for entry in history.read_history(project.folder) if entry.commit]
    return sorted((entry.id, entry.result, entry.champion) for entry in entries)


def test_the_second_decides_again(pair: tuple[Any, Any]) -> None:
    first, second = pair
    (second.folder / "export.yaml").write_text("tensorboard: {folder: events}\nseconds: 300\n")
    second.set_act("wait")
    process = second.start("retrain")
    second.wait_for_start()
    assert first.retrain() == "retraining promoted: a is the first champion"
    second.set_act("")
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert (
        "another machine crowned a champion or retrained at the same time, and its records come first: "
        "champion/1 of this machine (a) is superseded by another machine's champion/1"
    ) in out.splitlines()
    assert out.splitlines()[-1].startswith("retraining promoted: a against champion/1: nDCG@10 +0.2000 on dev")
    if find_spec("tensorboard"):
        assert len(list((second.folder / "events").glob("*/events.out.tfevents.*"))) == 1, "the outcome that counts"
    assert first.retrain().startswith("retraining refused: a against champion/2: nDCG@10 -0.2000 on dev")
    assert machines.fetch(second.folder) == machines.Met()
    assert champion.read_champions(first.folder) == champion.read_champions(second.folder)
    assert [(entry.number, entry.cause, entry.replaced) for entry in champion.read_champions(first.folder)] == [
        (1, "first", None),
        (2, "promoted", 1),
    ]
    assert outcomes(first) == outcomes(second)
    assert sorted(result for _, result, _ in outcomes(first)) == ["promoted", "promoted", "refused", "superseded"]
    assert first.git("rev-parse", "retemper/retraining") == second.git("rev-parse", "retemper/retraining")


@pytest.mark.heavy
def test_what_was_decided_without_the_remote_is_settled_when_it_is_back(pair: tuple[Any, Any]) -> None:
    """And the same data and code on both: the other machine's champion is this one's model."""
    first, second = pair
    shutil.rmtree(second.source)
    shutil.copytree(first.source, second.source)
    bare = first.folder.parent / "remote.git"
    bare.rename(bare.with_name("away.git"))
    out, errors = second.call("retrain")
    assert out.splitlines()[-1] == "retraining promoted: a is the first champion"
    assert "branch and tags are not pushed (" in errors and "; the next retraining tries again" in errors
    bare.with_name("away.git").rename(bare)
    assert first.retrain() == "retraining promoted: a is the first champion"
    out, _ = second.call("retrain")
    assert "is superseded by another machine's champion/1" in out
    assert out.splitlines()[-1].startswith("retraining unchanged: a is champion/1 itself")
    assert champion.read_champions(first.folder) == champion.read_champions(second.folder)
    first.retrain()
    assert outcomes(first) == outcomes(second)


def test_a_rollback_during_a_retraining(pair: tuple[Any, Any]) -> None:
    """Done by hand on the other machine and fetched here: the comparison is made again."""
    _, second = pair
    second.retrain()
    second.add(*[1.2] * 20)
    second.set_act("wait")
    process = second.start("retrain")
    second.wait_for_start()
    champion.choose(second.folder, "champion/1")
    second.set_act("")
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "the champion was changed by hand, or by another machine, during this retraining; deciding again" in out
    assert out.splitlines()[-1].startswith("retraining promoted: a against champion/2: ")
    assert [entry.replaced for entry in champion.read_champions(second.folder)] == [None, 1, 2]
