"""Decisions without a comparison: whether they are repeated, and what they advise."""

from pathlib import Path
from typing import Any

import pytest

from flows.champions import champion, history
from flows.champions import tree as retraining_tree
from flows.champions.measurement import NotComparable
from flows.champions.parts import Parts
from flows.process.display import Display
from flows.process.processes import Processes
from flows.promotion import evidence
from flows.promotion.records import Promotion
from flows.repository.git import git
from flows.retraining import decision

CHAMPIONS = [
    champion.Champion(1, "a", "first", "then", measure="AP", digests={"encoder": "e1"}),
    champion.Champion(2, "a", "set", "then", measure="AP", digests={"encoder": "e2"}),
]
NEW = champion.Champion(3, "a", "promoted", "now", measure="AP")
CANDIDATE = decision.Candidate(NEW, Parts({"corpus": "data/corpus"}, {"encoder": "e3"}, {}), {"a": {"dev": {"AP": 0.5}}}, 1)


@pytest.mark.parametrize(
    ("rule", "unmeasurable", "comparison", "expected"),
    [
        ("not_worse", [], None, None),
        ("not_worse", [2], None, "nothing new since then: a lost part"),
        ("not_worse", [1], None, None),
        ("guaranteed", [1], None, "nothing new since then: a lost part"),
        ("guaranteed", [], {"rule": "guaranteed"}, "nothing new since then: a lost part"),
    ],
)
def test_what_could_not_be_compared_is_decided_again_once_it_can(
    rule: Any, unmeasurable: list[int], comparison: Any, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = history.Ended("0", "refused", "a lost part", "then", champion=2, comparison=comparison)
    monkeypatch.setattr(decision, "_same_again", lambda *_: last)
    monkeypatch.setattr(decision, "is_measurable", lambda _, rival: rival.number not in unmeasurable)
    tree = retraining_tree.Tree(tmp_path, tmp_path, "", "tip")
    assert decision.nothing_new(tree, CANDIDATE, CHAMPIONS, rule=Promotion(rule=rule)) == expected


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_only_other_rules_are_a_reason_to_decide_again(line_end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rules = Path("retraining.yaml")
    rules.write_bytes(f"promotion:{line_end}  margin: 0.01{line_end}".encode())
    git("init", "--quiet")
    git("-c", "core.autocrlf=false", "add", rules.name)
    git("commit", "--quiet", "-m", "rules")
    last = history.Ended("0", "refused", "it loses", "then", champion=2)
    monkeypatch.setattr(history, "read_outcome", lambda *_: last)
    tree = retraining_tree.Tree(tmp_path, tmp_path, "", git("rev-parse", "HEAD"))
    assert decision._same_again(tree, 2) is last
    assert decision._same_again(tree, 3) is None
    rules.write_bytes(rules.read_bytes().replace(b"0.01", b"0.02"))
    assert decision._same_again(tree, 2) is None


def test_the_first_champion_says_what_it_was_chosen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the best on dev, which may be another one."""
    monkeypatch.setattr(evidence, "groups", lambda _: {})
    monkeypatch.setattr(evidence, "chosen_on", lambda model, measure, *_, **__: f", chosen by {measure} for {model}")
    decided = decision.make_decision(Path(), [], CANDIDATE, rule=Promotion(), processes=Processes(), display=Display())
    assert (decided.promoted, decided.reason) == (True, "a is the first champion, chosen by AP for a")


def test_a_comparison_that_is_impossible_names_what_can_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The anchor outlives champions that are set by hand: crowning the new model would not help."""
    monkeypatch.chdir(tmp_path)

    def evaluate(_project: Path, rival: champion.Champion, **_: object) -> Any:
        if rival.number == lost:
            raise NotComparable(f"champion/{rival.number}: data/encoders/a is lost")
        return {"dev": {"AP": 0.4}}

    monkeypatch.setattr(decision, "evaluate_champion", evaluate)
    values = {evidence.VALUES / "a": 0.9}  # the new model's; it passes against all that can be measured
    monkeypatch.setattr(decision, "values", lambda folder, *_: dict.fromkeys(map(str, range(900)), values.get(folder, 0.5)))
    monkeypatch.setattr(decision, "remove_worktree", lambda _: None)
    for name in ("groups", "slices"):
        monkeypatch.setattr(evidence, name, lambda _: {})
    monkeypatch.setattr(evidence, "fresh_queries", lambda *_, **__: set())
    reasons = []
    for lost in (1, 2):  # noqa: B007 (evaluate reads it)
        decided = decision.make_decision(tmp_path, CHAMPIONS, CANDIDATE, rule=Promotion(), processes=Processes(), display=Display())
        assert not decided.promoted
        reasons.append(decided.reason)
    cannot = "data/encoders/a is lost, so the two cannot be compared; champion/2 stays"
    assert reasons == [
        f"a against champion/1: {cannot} (set promotion.anchor of retraining.yaml to 2)",
        f"a against champion/2: {cannot} (crown a model by hand: retemper champion set MODEL)",
    ]
