"""What the history holds: retrainings, champions set by hand, and nothing twice."""

import errno
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flows.champions import champion, history
from flows.champions import tree as retraining_tree
from flows.cli.operate.champion import _show_history
from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository import lock as lock_module
from flows.repository.git import git
from flows.retraining import decision, outlook, retrain
from tasks.core.errors import UserError


def crown_first(folder: Path, identity: str) -> None:
    """The record of a retraining on the branch, and the next champion."""
    number, tip = len(champion.read_champions(folder)) + 1, retraining_tree.resolve(folder, retraining_tree.BRANCH)
    entry = history.Ended(identity, "promoted", "", identity, number)
    blob = git("hash-object", "-w", "--stdin", text=json.dumps(asdict(entry)), folder=folder)
    content = git("mktree", text=f"100644 blob {blob}\t{retraining_tree.RECORD}\n", folder=folder)
    commit = git("commit-tree", content, *(["-p", tip] if tip else []), text=identity, folder=folder)
    champion.crown(folder, make_champion(number, "promoted", identity, commit=commit), (commit, tip))


def make_champion(number: int, cause: str, encoder: str, corpus: str = "c1", when: str = "now", **fields: Any) -> champion.Champion:
    digests = {"encoder": encoder, "index": f"{encoder}{corpus}", "corpus": corpus}
    return champion.Champion(number, "a", cause, when, digests=digests, **fields)


def test_the_history_has_rollbacks_and_crownings_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the retrainings, by time; which champion each brought back, and which one it replaced."""
    monkeypatch.setattr(history, "read_history", lambda _: [history.Ended("r", "refused", "worse", "2026-01-03T00:00:00+00:00")])
    crownings = [
        make_champion(1, "first", "e1", when="2026-01-01T00:00:00+00:00"),
        make_champion(2, "set", "e2", when="2026-01-02T00:00:00+00:00", replaced=1, commit="f" * 40),
        make_champion(3, "rollback", "e1", when="2026-01-04T00:00:00+00:00", replaced=2),
    ]
    monkeypatch.setattr(champion, "read_champions", lambda _: crownings)
    events = history.read_events(tmp_path)
    assert [(event.result, event.champion, event.reason) for event in events] == [
        ("set", 2, "a of commit ffffffffff, by hand, in place of champion/1"),
        ("refused", None, "worse"),
        ("rollback", 3, "champion/1 again, by hand, in place of champion/2"),
    ]
    with pytest.raises(UserError, match=r"champion/3 is champion/1 again, the first champion: .* crowns one of them$"):
        champion.roll_back(tmp_path)
    crownings[1:] = [make_champion(3, "set", "e3", replaced=2, previous=2)]
    with pytest.raises(UserError, match=r"^champion/2, which was before champion/3, has no tag here; .* retemper champion set champion/N$"):
        champion.roll_back(tmp_path)
    crownings[1:] = []
    with pytest.raises(UserError, match=r"champion/1 is the first champion: .* another model of the last retraining$"):
        champion.roll_back(tmp_path)


def test_a_clock_that_was_set_back_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times fall from one event to the next, but for the failure before champion/3."""

    def outcome(name: str, result: history.Result, number: int | None, when: str) -> history.Ended:
        return history.Ended(name, result, "", when, champion=number)

    later = [make_champion(2, "set", "e2", when="7"), make_champion(3, "rollback", "e1", when="5"), make_champion(5, "set", "e3", when="1")]
    monkeypatch.setattr(champion, "read_champions", lambda _: [make_champion(1, "first", "e1", when="9"), *later])
    retrained = [
        outcome("a", "promoted", 1, "9"),
        outcome("b", "refused", 1, "8"),
        outcome("c", "refused", 2, "6"),
        outcome("d", "killed", None, "4"),
        outcome("e", "promoted", 4, "3"),
        outcome("f", "failed", 4, "2"),
        outcome("g", "killed", None, "0"),
        outcome("h", "refused", 5, "0"),
    ]
    monkeypatch.setattr(history, "read_history", lambda _: list(retrained))
    order = [event.id.removeprefix("champion/") for event in history.read_events(tmp_path)]
    assert order == ["a", "b", "2", "c", "d", "3", "e", "f", "g", "5", "h"]


def test_records_of_other_machines_are_between_those_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the branch, which is that in which they ended; what is only in this folder stays where it was."""
    on_branch = {name: history.Ended(name, "refused", "", "now") for name in ("theirs 1", "ours 1", "theirs 2", "ours 2")}
    monkeypatch.setattr(retraining_tree, "known_tip", lambda _: "tip")
    monkeypatch.setattr(retraining_tree, "records", lambda *_: list(on_branch))
    monkeypatch.setattr(history, "read_outcomes", lambda _, commits: [on_branch[commit] for commit in commits])
    (tmp_path / ".retemper").mkdir()
    for name in ("failed 1", "ours 1", "failed 2", "ours 2", "failed 3"):
        line = json.dumps(asdict(history.Ended(name, "refused", "", "now")))
        with (tmp_path / history.HISTORY).open("a") as lines:
            lines.write(f"{line}\n")
    ids = [record.id for record in history.read_history(tmp_path)]
    assert ids == ["theirs 1", "failed 1", "ours 1", "theirs 2", "failed 2", "ours 2", "failed 3"]


def test_the_branch_is_read_by_as_many_processes_of_git_however_long_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hourly schedule makes thousands of records in a year, and each retraining reads them three times."""
    git("init", "--quiet", folder=tmp_path)
    project = tmp_path / "law"
    project.mkdir()
    calls, counts = list[str](), list[int]()
    monkeypatch.setattr(history, "git", lambda *words, **options: calls.append(words[0]) or git(*words, **options))
    for number in range(3):
        record = history.Ended(str(number), "refused", f"schlechter als vorher, über {number}\nqueries", "now")
        (project / retraining_tree.RECORD).write_text(json.dumps(asdict(record), ensure_ascii=False), encoding="utf-8")
        git("add", ".", folder=project)
        git("commit", "--quiet", "-m", "a retraining", folder=project)
        git("update-ref", retraining_tree.BRANCH, "HEAD", folder=project)
        read = history.read_history(project)
        assert [entry.id for entry in read] == [str(earlier) for earlier in range(number + 1)]
        assert read[-1] == replace(record, commit=git("rev-parse", "HEAD", folder=project))
        counts.append(len(calls))
    assert counts == [1, 2, 3], "one more for each history"


def test_a_full_disk_makes_no_run_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".retemper").mkdir()
    (tmp_path / history.AT_WORK).write_text(json.dumps(asdict(history.Ended("1", "killed", "killed half-way", "now"))))
    warnings: list[str] = []

    def raise_disk_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(history, "append_line", raise_disk_full)
        history.remember(tmp_path, history.Ended("1", "refused", "worse", "now"), warnings.append)
    assert warnings == [f"{history.HISTORY}: No space left on device; this retraining is missing there: retraining refused: worse"]
    assert history.remember_killed(tmp_path) is None
    assert history.read_history(tmp_path) == []


@pytest.mark.parametrize("on_branch", [None, "promoted"])
def test_whoever_is_told_of_retrainings_is_told_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_branch: history.Result | None
) -> None:
    """Even if it was killed right after the promotion, which only the branch has recorded."""
    notices: list[tuple[str, str, Any]] = []
    monkeypatch.setattr(retrain.notify, "notify", lambda event, text, _, **facts: notices.append((event, text, facts["champion"])))
    monkeypatch.setattr(retraining_tree, "prepare", lambda *_: (_ for _ in ()).throw(UserError("no")))
    monkeypatch.setattr(retraining_tree, "resolve", lambda *_: "tip" if on_branch else None)
    monkeypatch.setattr(retraining_tree, "records", lambda *_: ["commit"])
    dead = history.Ended("1", "killed", "killed half-way", "then")
    monkeypatch.setattr(history, "read_outcomes", lambda *_: [replace(dead, result="promoted", reason="better", champion=2)])
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".retemper").mkdir()
    (tmp_path / history.AT_WORK).write_text(json.dumps(asdict(dead)))
    retrain.retrain(tmp_path)
    name = tmp_path.name
    first = ("promoted", f"{name}: retraining promoted: better", 2) if on_branch else ("killed", f"{name}: {dead.line}", None)
    assert notices == [first, ("failed", f"{name}: retraining failed: no", None)]
    retrain.retrain(tmp_path)
    assert len(notices) == 3, "once"


@pytest.mark.parametrize(
    ("change", "result"),
    [({}, "unchanged"), ({"lock": "other"}, "refused"), ({"champion": 2}, "refused"), ({"rules": "promotion: {margin: 0.5}"}, "refused")],
    ids=["nothing", "artifacts", "champion", "rules"],
)
def test_a_refusal_is_not_repeated_until_something_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], result: str
) -> None:
    """Otherwise a schedule would add a commit, a notice, and a line of history every minute."""
    monkeypatch.chdir(tmp_path)
    digests = {"data/encoders/a": "e2", "data/indexes/a": "i1", "data/corpus": "c1"}
    lock = json.dumps({"stages": {"all": {"outs": [{"path": path, "md5": digest} for path, digest in digests.items()]}}})
    Path("dvc.lock").write_text(lock)
    Path("params.yaml").write_text("report: {metric: nDCG@10}\n")
    record = {"id": "0", "result": "refused", "reason": "a is worse", "when": "then", "champion": change.get("champion", 3)}
    committed = {
        "dvc.lock": lock.replace("e2", change.get("lock", "e2")),
        "retraining.json": json.dumps(record),
        "retraining.yaml": change.get("rules"),
    }
    taken_back = [make_champion(1, "first", "e1"), make_champion(2, "promoted", "e2"), make_champion(3, "rollback", "e1")]
    monkeypatch.setattr(retrain, "run_pipeline", lambda *_, **__: None)
    monkeypatch.setattr(outlook.shrinkage, "refuse", lambda *_, **__: None)
    monkeypatch.setattr(outlook.measurement, "warn_if_not_comparable", lambda *_, **__: None)
    monkeypatch.setattr(decision.metrics, "read_metrics", lambda: {"a": {"dev": {"nDCG@10": 0.5}}})
    monkeypatch.setattr(decision.metrics, "best_model", lambda *_, **__: "a")
    monkeypatch.setattr(champion, "read_champions", lambda _: taken_back)
    for module in (lock_module, history, decision):
        monkeypatch.setattr(module, "read_blob", lambda _, name, __: committed.get(name))
    monkeypatch.setattr(retraining_tree, "commit", lambda *_: "f" * 40)
    monkeypatch.setattr(retraining_tree, "move", lambda *_: None)
    monkeypatch.setattr(decision, "git", lambda *_, **__: "")
    monkeypatch.setattr(decision, "refuse_other_projects", lambda _: None)
    tree = retraining_tree.Tree(tmp_path, tmp_path, "", "tip")
    outcome = retrain._retrain_once(
        tmp_path, tree, history.Ended("1", "killed", "", "now"), check=lambda: None, processes=Processes(), display=Display()
    )
    decided = "a is champion/2, which was rolled back by hand; champion/3 stays"
    assert (outcome.result, outcome.reason) == (result, "nothing new since then: a is worse" if result == "unchanged" else decided)


def test_the_same_unchanged_again_is_one_line_of_history(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".retemper").mkdir()
    for number, (result, reason) in enumerate([("unchanged", "as it was"), ("unchanged", "as it was"), ("failed", "x"), ("failed", "x")]):
        history.remember(tmp_path, history.Ended(str(number), result, reason, f"at {number}"), pytest.fail)
    assert [record.id for record in history.read_history(tmp_path)] == ["0", "2", "3"]


def test_records_of_newer_versions_and_what_follows_a_torn_line_are_read(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    first, second, third = (
        history.Ended(name, "failed", reason, "now") for name, reason in zip("123", ("a\u2028b\x85c", "d", "e"), strict=True)
    )
    history.remember(tmp_path, first, pytest.fail)
    (tmp_path / history.AT_WORK).write_text(json.dumps(asdict(second) | {"of_a_newer_version": 1}))
    history.remember_killed(tmp_path)
    with (tmp_path / history.HISTORY).open("a") as lines:
        lines.write(json.dumps(asdict(second) | {"id": "2b", "of_a_newer_version": 1}) + '\n{"id": "to')
    with (tmp_path / history.HISTORY).open("ab") as raw:
        raw.write("\u00e9".encode()[:1])
    history.remember(tmp_path, third, pytest.fail)
    assert history.read_history(tmp_path) == [first, second, replace(second, id="2b"), third]


def test_a_record_of_a_newer_version_on_the_branch_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = history.Ended("1", "promoted", "better", "now", commit="f" * 40)
    monkeypatch.setattr(history, "read_blob", lambda *_: json.dumps(asdict(record) | {"of_a_newer_version": 1}))
    assert history.read_outcome(tmp_path, "f" * 40) == record


def test_a_clone_has_the_history_that_it_was_cloned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a command that writes, it has the remote's branch beside its own, or none of its own: nobody is told to retrain."""
    folder, clone = tmp_path / "project", tmp_path / "clone"
    git("init", "--quiet", "--initial-branch", "main", "project", folder=tmp_path)
    git("commit", "--quiet", "--allow-empty", "-m", "the project", folder=folder)
    crown_first(folder, "a")
    git("clone", "--quiet", "project", "clone", folder=tmp_path)
    assert [entry.id for entry in history.read_history(clone)] == ["a"]
    git("branch", "retemper/retraining", "origin/retemper/retraining", folder=clone)
    crown_first(folder, "b")
    git("fetch", "--quiet", folder=clone)
    assert [entry.id for entry in history.read_history(clone)] == ["a", "b"], "its own branch is behind"
    crown_first(clone, "c")
    assert [entry.id for entry in history.read_history(clone)] == ["a", "c"], "both sides have something: its own, until they are merged"

    git("clone", "--quiet", "--single-branch", "project", "narrow", folder=tmp_path)
    git("fetch", "--quiet", "--tags", folder=tmp_path / "narrow")
    monkeypatch.chdir(tmp_path / "narrow")
    assert _show_history(False) == 0
    told = capsys.readouterr().out
    assert told.startswith("no record of a retraining here; git fetch origin ")
    git(*told.rpartition("; git ")[2].split())
    assert [entry.id for entry in history.read_history(Path())] == ["a", "b"], "the line says what helps"
