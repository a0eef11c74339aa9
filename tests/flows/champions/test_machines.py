"""Several machines with one git remote: a bare repository that refuses every forced push and deletion, clones, no DVC."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from flows.champions import champion, history, machines, tree
from flows.champions.champion import Champion
from flows.champions.history import Ended, Result
from flows.repository.git import GitFailed, git
from flows.repository.tags import TAGS


@dataclass
class Machine:
    """A clone."""

    folder: Path

    def commit(self, content: str, *parents: str | None) -> str:
        """A commit like those of the branch, without a ref; `content` is its record."""
        blob = git("hash-object", "-w", "--stdin", text=content, folder=self.folder)
        files = git("mktree", text=f"100644 blob {blob}\t{tree.RECORD}\n", folder=self.folder)
        words = [word for parent in parents if parent for word in ("-p", parent)]
        return git("commit-tree", files, *words, text=content[:20], folder=self.folder)

    def record_retraining(self, result: Result, identity: str, number: int | None = None) -> str:
        """A retraining with this result; a promotion crowns `number`."""
        tip = tree.resolve(self.folder, tree.BRANCH)
        current = champion.current(self.folder)
        after = number or (current.number if current else None)
        new = self.commit(json.dumps(asdict(Ended(identity, result, f"{identity} {result}", identity, after, "a"))), tip)
        if number:
            cause = "promoted" if number > 1 else "first"
            replaced = number - 1 or None
            crowned = Champion(number, "a", cause, identity, replaced=replaced, previous=replaced, commit=new)
            champion.crown(self.folder, crowned, (new, tip))
        else:
            tree.move(self.folder, [f"update {tree.BRANCH} {new} {tip or tree.ZERO}"])
        return new

    def crown_by_hand(self, cause: str, number: int, **facts: int) -> None:
        tip = tree.resolve(self.folder, "HEAD") or tree.resolve(self.folder, tree.BRANCH)
        champion.crown(self.folder, Champion(number, "a", cause, f"by hand {number} of {self.folder.name}", commit=str(tip), **facts))

    def refs(self) -> dict[str, str]:
        return machines._refs(self.folder)

    def champions(self) -> list[tuple[int, str, str]]:
        return [(entry.number, entry.cause, entry.when) for entry in champion.read_champions(self.folder)]

    def records(self) -> list[tuple[str, str, int | None]]:
        return [(entry.id, entry.result, entry.champion) for entry in history.read_history(self.folder)]


@pytest.fixture
def make_clone(tmp_path: Path) -> Callable[[], Machine]:
    git("init", "--quiet", "--bare", "remote.git", folder=tmp_path)
    for rule in ("receive.denyNonFastForwards", "receive.denyDeletes"):
        git("config", rule, "true", folder=tmp_path / "remote.git")
    count = iter(range(9))

    def clone() -> Machine:
        name = f"clone{next(count)}"
        git("clone", "--quiet", "remote.git", name, folder=tmp_path)
        return Machine(tmp_path / name)

    return clone


@pytest.fixture
def machine_pair(make_clone: Callable[[], Machine]) -> tuple[Machine, Machine]:
    """Two machines that both have champion/1."""
    one, other = make_clone(), make_clone()
    one.record_retraining("promoted", "1 shared", 1)
    assert machines.push(one.folder) == machines.Met()
    assert machines.fetch(other.folder) == machines.Met()
    return one, other


def assert_one_lineage(*all_machines: Machine) -> None:
    """All have the same refs, and the branch's record commits form one line with every earlier one in it."""
    for machine in all_machines:
        outcome = machines.fetch(machine.folder)
        assert (outcome.problem, outcome.merged) == (None, None)
    first = all_machines[0]
    for machine in all_machines[1:]:
        assert machine.refs() == first.refs()
        assert machine.records() == first.records()
    bare = first.folder.parent / "remote.git"
    assert git("for-each-ref", "--format=%(refname) %(objectname)", folder=bare).splitlines() == [
        f"{name} {digest}" for name, digest in sorted(first.refs().items())
    ]


def test_what_one_crowns_the_other_has(machine_pair: tuple[Machine, Machine]) -> None:
    one, other = machine_pair
    first = tree.resolve(one.folder, tree.BRANCH)
    assert tree.resolve(other.folder, tree.BRANCH) == first
    other.record_retraining("promoted", "2 other", 2)
    assert machines.fetch(other.folder) == machines.Met(), "ahead"
    assert machines.push(other.folder) == machines.Met()
    assert_one_lineage(one, other)
    unrelated = one.commit("unrelated")
    assert not tree.is_ancestor(one.folder, unrelated, str(first))
    shutil.move(one.folder.parent / "remote.git", one.folder.parent / "away.git")
    assert (machines.fetch(one.folder).problem or "").startswith("git remote origin: cannot be asked for other machines' champions")
    one.record_retraining("refused", "3 offline")
    problem = machines.push(one.folder).problem or ""
    assert re.fullmatch(r"git remote origin: branch and tags are not pushed \(.*; the next retraining tries again", problem)
    assert (machines.peek(one.folder) or "").startswith("git remote origin: cannot be asked")


def test_the_second_of_two_champions_is_superseded_and_kept(machine_pair: tuple[Machine, Machine]) -> None:
    one, other = machine_pair
    lost = one.record_retraining("promoted", "2 one", 2)
    theirs = one.refs()[f"{TAGS}2"]
    other.record_retraining("promoted", "2 other", 2)
    assert machines.push(other.folder) == machines.Met()
    assert "the next retraining settles it" in (machines.peek(one.folder) or "")
    assert one.champions()[-1][2] == "2 one", "a server that looks changes nothing"
    outcome = machines.push(one.folder)
    assert outcome.again
    assert outcome.merged == (
        "another machine crowned a champion or retrained at the same time, and its records come first: "
        "champion/2 of this machine (a) is superseded by another machine's champion/2"
    )
    assert_one_lineage(one, other)
    assert one.champions() == [(1, "first", "1 shared"), (2, "promoted", "2 other")]
    assert one.records() == [("1 shared", "promoted", 1), ("2 other", "promoted", 2), ("2 one", "superseded", 2)]
    assert tree.is_ancestor(other.folder, lost, tree.BRANCH), "its record is in every clone, as it was written"
    tags = [name for name in other.refs() if name.startswith(machines.SUPERSEDED)]
    assert tags == [f"{machines.SUPERSEDED}champion-2-{theirs[:10]}"]
    assert other.refs()[tags[0]] == theirs
    assert machines.push(one.folder) == machines.Met(), "nothing is left to do"


def test_a_history_of_this_machine_says_what_all_say(machine_pair: tuple[Machine, Machine]) -> None:
    one, other = machine_pair
    one.record_retraining("promoted", "2 one", 2)
    (one.folder / ".retemper").mkdir()
    history.remember(one.folder, Ended("2 one", "promoted", "2 one promoted", "2 one", champion=2, commit="x"), print)
    other.record_retraining("promoted", "2 other", 2)
    machines.push(other.folder)
    machines.push(one.folder)
    machines.fetch(other.folder)
    assert sorted(one.records()) == sorted(other.records())
    assert ("2 one", "superseded", 2) in one.records()


def test_one_that_is_behind_has_nothing_to_push(machine_pair: tuple[Machine, Machine]) -> None:
    one, other = machine_pair
    other.record_retraining("refused", "2 other")
    machines.push(other.folder)
    assert machines.push(one.folder) == machines.Met()
    one.crown_by_hand("set", 2, replaced=1, previous=1)
    assert machines.push(one.folder) == machines.Met(), "the tag alone"
    assert_one_lineage(one, other)
    assert machines.peek(one.folder) is None


def test_a_refusal_follows_and_a_promotion_against_the_same_champion_stays(machine_pair: tuple[Machine, Machine]) -> None:
    one, other = machine_pair
    one.record_retraining("promoted", "2 one", 2)
    other.record_retraining("refused", "2 other")
    assert machines.push(other.folder) == machines.Met()
    outcome = machines.push(one.folder)
    assert outcome == machines.Met(
        None, "another machine crowned a champion or retrained at the same time, and its records come first: those of this machine follow"
    )
    assert_one_lineage(one, other)
    assert one.champions() == [(1, "first", "1 shared"), (2, "promoted", "2 one")]
    assert [identity for identity, *_ in one.records()] == ["1 shared", "2 other", "2 one"]


def test_weeks_without_the_remote(machine_pair: tuple[Machine, Machine]) -> None:
    """Both did a lot; a rollback of what is superseded goes with it, another choice by hand is renumbered."""
    one, other = machine_pair
    for number in (2, 3):
        other.record_retraining("promoted", f"{number} other", number)
    machines.push(other.folder)
    one.record_retraining("promoted", "2 one", 2)
    one.crown_by_hand("rollback", 3, replaced=2)
    one.record_retraining("refused", "4 one")
    one.crown_by_hand("set", 4, replaced=3, previous=3)
    outcome = machines.fetch(one.folder)
    assert outcome.again
    assert (outcome.merged or "").endswith(
        "champion/2 of this machine (a) is superseded by another machine's champion/3; "
        "champion/3 of this machine (a) is superseded by another machine's champion/3; champion/4, set by hand, is champion/4 now"
    )
    assert machines.push(one.folder).problem is None
    assert_one_lineage(one, other)
    assert [(number, when) for number, _, when in other.champions()] == [
        (1, "1 shared"),
        (2, "2 other"),
        (3, "3 other"),
        (4, "by hand 4 of clone0"),
    ]
    assert [(identity, result) for identity, result, _ in other.records()] == [
        ("1 shared", "promoted"),
        ("2 other", "promoted"),
        ("3 other", "promoted"),
        ("2 one", "superseded"),
        ("4 one", "refused"),
    ]
    assert len([name for name in other.refs() if name.startswith(machines.SUPERSEDED)]) == 2


@pytest.mark.parametrize("latest", [2, 3, 4, 5])
def test_a_choice_that_follows_a_superseded_champion_goes_back_to_the_one_it_follows_now(
    machine_pair: tuple[Machine, Machine], latest: int
) -> None:
    one, other = machine_pair
    for number in range(2, latest + 1):
        other.record_retraining("promoted", f"{number} other", number)
    machines.push(other.folder)
    for number in (2, 3):
        one.record_retraining("promoted", f"{number} one", number)
    one.crown_by_hand("set", 4, replaced=3, previous=3)
    one.crown_by_hand("set", 5, replaced=4, previous=4)
    machines.fetch(one.folder)
    first, second = champion.read_champions(one.folder)[-2:]
    assert (first.number, first.replaced, first.previous) == (latest + 1, latest, latest)
    assert (second.number, second.replaced, second.previous) == (latest + 2, latest + 1, latest + 1)


def test_a_refusal_against_a_superseded_champion_is_no_reason_not_to_compare_again(machine_pair: tuple[Machine, Machine]) -> None:
    """Its champion/2 was another model than champion/2 now."""
    one, other = machine_pair
    one.record_retraining("promoted", "2 one", 2)
    one.record_retraining("refused", "3 one")
    other.record_retraining("promoted", "2 other", 2)
    machines.push(other.folder)
    machines.fetch(one.folder)
    last = history.read_history(one.folder)[-1]
    assert (last.id, last.result, last.champion) == ("3 one", "refused", None)
    assert last.reason == "3 one refused; that champion/2 is superseded by another machine's champion/2"


def test_choices_by_hand_at_once(machine_pair: tuple[Machine, Machine]) -> None:
    one, other = machine_pair
    other.crown_by_hand("set", 2, replaced=1, previous=1)
    machines.push(other.folder)
    one.crown_by_hand("set", 2, replaced=1, previous=1)
    one.crown_by_hand("rollback", 3, replaced=2, previous=0)
    outcome = machines.push(one.folder)
    assert not outcome.again
    assert (outcome.merged or "").endswith("champion/2, set by hand, is champion/3 now; champion/3, set by hand, is champion/4 now")
    assert_one_lineage(one, other)
    assert [number for number, *_ in other.champions()] == [1, 2, 3, 4]


def test_a_remote_with_a_tag_and_no_branch(make_clone: Callable[[], Machine]) -> None:
    one, other = make_clone(), make_clone()
    git("commit", "--quiet", "--allow-empty", "-m", "project", folder=other.folder)
    other.crown_by_hand("set", 1)
    machines.push(other.folder)
    one.record_retraining("promoted", "1 one", 1)
    assert machines.push(one.folder).again
    assert_one_lineage(one, other)
    assert other.records() == [("1 one", "superseded", 1)]
    assert [cause for _, cause, _ in other.champions()] == ["set"]


@pytest.mark.parametrize("step", ["_replayed", "move", "_send"])
def test_killed_half_way_the_next_run_goes_on(machine_pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    one, other = machine_pair
    one.record_retraining("promoted", "2 one", 2)
    before = one.refs()
    other.record_retraining("promoted", "2 other", 2)
    machines.push(other.folder)

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(machines, step, kill)
        with pytest.raises(KeyboardInterrupt):
            machines.push(one.folder)
    assert (one.refs() == before) == (step != "_send"), "all names move at once"
    machines.fetch(one.folder)
    assert machines.push(one.folder).problem is None
    assert_one_lineage(one, other)
    assert one.records() == [("1 shared", "promoted", 1), ("2 other", "promoted", 2), ("2 one", "superseded", 2)]


def fetch_and_die(machine: Machine, monkeypatch: pytest.MonkeyPatch, done: int) -> None:
    def move_some(folder: Path, updates: list[str]) -> None:
        tree.move(folder, updates[:done])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(machines, "move", move_some)
        with pytest.raises(KeyboardInterrupt):
            machines.fetch(machine.folder)


@pytest.mark.parametrize("done", [1, 2])
def test_killed_between_two_references_the_next_run_goes_on(
    machine_pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """git renames the locks of a transaction one by one. A lost tag made the superseded record's comparison unreachable."""
    one, other = machine_pair
    one.record_retraining("promoted", "2 one", 2)
    tag = one.refs()[f"{TAGS}2"]
    other.record_retraining("promoted", "2 other", 2)
    machines.push(other.folder)
    fetch_and_die(one, monkeypatch, done)
    machines.fetch(one.folder)
    assert machines.push(one.folder).problem is None
    assert_one_lineage(one, other)
    assert one.refs()[f"{machines.SUPERSEDED}champion-2-{tag[:10]}"] == tag
    assert one.records() == [("1 shared", "promoted", 1), ("2 other", "promoted", 2), ("2 one", "superseded", 2)]
    assert history.read_history(one.folder)[-1].reason.count("supersede") == 1


def test_a_promotion_whose_tag_git_has_replaced_is_superseded(machine_pair: tuple[Machine, Machine]) -> None:
    """git advises --force when two machines have crowned the same number. The two models were never compared."""
    one, other = machine_pair
    one.record_retraining("promoted", "2 one", 2)
    one.record_retraining("refused", "3 one")
    other.record_retraining("promoted", "2 other", 2)
    machines.push(other.folder)
    git("fetch", "--quiet", "--tags", "--force", folder=one.folder)
    outcome = machines.fetch(one.folder)
    assert outcome.again and (outcome.merged or "").endswith("champion/2 of this machine (a) is superseded by another machine's champion/2")
    assert one.records()[2:] == [("2 one", "superseded", 2), ("3 one", "refused", None)]
    assert machines.push(one.folder) == machines.Met()
    assert_one_lineage(one, other)


@pytest.mark.parametrize("kills", [0, 2])
def test_refusals_follow_choices_by_hand(machine_pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    one, other = machine_pair
    for number in (2, 3):
        one.crown_by_hand("set", number, replaced=number - 1, previous=number - 1)
        one.record_retraining("refused", f"{number} one")
    other.record_retraining("promoted", "2 other", 2)
    machines.push(other.folder)
    for _ in range(kills):
        fetch_and_die(one, monkeypatch, done=1)  # the branch has the new numbers, the tags have not
    machines.fetch(one.folder)
    assert one.champions()[-2:] == [(3, "set", "by hand 2 of clone0"), (4, "set", "by hand 3 of clone0")]
    assert one.records()[-2:] == [("2 one", "refused", 3), ("3 one", "refused", 4)], "champion/2 is another model now"


def test_a_third_machine_that_pushes_in_between(
    machine_pair: tuple[Machine, Machine], make_clone: Callable[[], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = machine_pair
    third = make_clone()
    machines.fetch(third.folder)
    third.record_retraining("refused", "2 third")
    one.record_retraining("promoted", "2 one", 2)
    other.record_retraining("promoted", "2 other", 2)
    machines.push(other.folder)
    send, before = machines._send, [third]

    def send_after_third(project: Path, *arguments: object) -> None:
        if project == one.folder and before:
            assert machines.push(before.pop().folder).merged
        send(project, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(machines, "_send", send_after_third)
    outcome = machines.push(one.folder)
    assert outcome.again and outcome.problem is None and (outcome.merged or "").count("another machine crowned") == 2
    assert_one_lineage(one, other, third)
    assert [identity for identity, *_ in one.records()] == ["1 shared", "2 other", "2 third", "2 one"]


def test_a_server_without_atomic_pushes(machine_pair: tuple[Machine, Machine]) -> None:
    one, other = machine_pair
    git("config", "receive.advertiseAtomic", "false", folder=one.folder.parent / "remote.git")
    one.record_retraining("promoted", "2 one", 2)
    assert machines.push(one.folder) == machines.Met()
    assert_one_lineage(one, other)


def test_a_project_below_the_root_of_its_repository(machine_pair: tuple[Machine, Machine]) -> None:
    one, _ = machine_pair
    below = one.folder / "below"
    below.mkdir()
    (below / tree.RECORD).write_text("{}")
    (one.folder / "beside").write_text("kept")
    subprocess.run(["git", "add", "."], cwd=one.folder, check=True)
    commit = git("commit-tree", git("write-tree", folder=one.folder), text="a record", folder=one.folder)
    new = machines._with_record(below, commit, Ended("x", "superseded", "why", "now"))
    assert json.loads(git("show", f"{new}:below/{tree.RECORD}", folder=one.folder))["result"] == "superseded"
    assert git("show", f"{new}:beside", folder=one.folder) == "kept"
    with pytest.raises(GitFailed):
        machines._with_record(below, "nothing", Ended("x", "superseded", "why", "now"))
