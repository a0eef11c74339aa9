"""Which champions a candidate is compared with."""

from dataclasses import replace
from typing import Any

import pytest

from flows.champions.champion import Champion
from flows.promotion.records import Promotion
from flows.promotion.standing import rivals, standing, way_out
from tasks.core.errors import UserError


def make_champion(number: int, cause: str, **comparison: Any) -> Champion:
    return Champion(number, "a", cause, "now", replaced=number - 1, digests={"encoder": f"e{number}"}, comparison=comparison)


def winner(number: int, against: list[int], beaten: list[int], measure: str = "m") -> Champion:
    return make_champion(number, "promoted", rule="guaranteed", measure=measure, against={str(n): {} for n in against}, beaten=beaten)


def numbers(champions: list[Champion], anchor: int | None = None) -> list[int]:
    return [champion.number for champion in standing(champions, "m", anchor)]


def test_a_champion_stands_until_a_later_one_is_shown_to_beat_it() -> None:
    first = make_champion(1, "first")
    assert numbers([]) == []
    assert numbers([first]) == [1]
    assert numbers([first, winner(2, [1], [])]) == [2, 1]
    assert numbers([first, winner(2, [1], []), winner(3, [1, 2], [1])]) == [3, 2]
    assert numbers([first, winner(2, [1], [1]), winner(3, [2], [])]) == [3, 2], "the anchor was beaten by one that stands"
    assert numbers([first, winner(2, [1], [1], "other")]) == [2, 1], "by another measure, which says nothing of this one"
    assert numbers([first, winner(2, [1], [1], "other"), winner(3, [2], [], "other")]) == [3, 1], "nor does it show the anchor to be beaten"
    assert numbers([first, winner(2, [1], [1], "other"), winner(3, [2, 1], [1])]) == [3, 2]


def test_a_chain_begins_anew_by_hand_and_after_other_rules_and_the_anchor_stays() -> None:
    first, second = make_champion(1, "first"), winner(2, [1], [1])
    assert numbers([first, second, make_champion(3, "set")]) == [3, 1]
    assert numbers([first, second, make_champion(3, "set"), winner(4, [3, 1], [])]) == [4, 3, 1]
    assert numbers([first, second, make_champion(3, "set"), winner(4, [3, 1], [1, 3])]) == [4]
    assert numbers([first, second, make_champion(3, "set")], anchor=2) == [3, 2]
    assert numbers([first, second, make_champion(3, "promoted", rule="not_worse", bound=0.1)]) == [3, 1]
    assert numbers([first, make_champion(2, "promoted", bound=0.1)]) == [2, 1], "a record from before there were rules in it"
    assert numbers([first, second, replace(winner(3, [2], []), cause="rollback")]) == [3, 1], "by hand, whatever it won once"
    with pytest.raises(UserError, match=r"promotion.anchor: found 7, expected the number of a champion: 1 to 2"):
        standing([first, second], "m", 7)


def test_one_model_is_compared_with_once() -> None:
    first, second = make_champion(1, "first"), winner(2, [1], [])
    third = Champion(3, "a", "rollback", "now", digests=first.digests)
    assert numbers([first, second, third]) == [3], "the first one again, which is the anchor too"
    assert numbers([first, second, third, winner(4, [3], [3])]) == [4], "it was shown to beat the anchor's model"
    data = Champion(3, "a", "data", "now", replaced=2, digests=second.digests | {"corpus": "new"})
    assert numbers([first, second, data]) == [3, 1], "the same model over new data takes its place"


def test_a_champion_that_cannot_be_measured_has_a_way_out_that_works() -> None:
    """As long as the rule asks for a comparison with it, no model can be promoted, whatever is crowned by hand."""
    first, second = make_champion(1, "first"), winner(2, [1], [])
    crown, set_anchor = "crown a model by hand: retemper champion set MODEL", "set promotion.anchor of retraining.yaml to "

    def advice(champions: list[Champion], number: int, **rule: Any) -> str:
        rival = next(champion for champion in rivals(champions, "m", Promotion(**rule)) if champion.number == number)
        return way_out(champions, rival, "m", rule=Promotion(**rule))

    assert advice([first], 1, rule="not_worse") == crown
    assert advice([first, second], 2, rule="better") == crown
    assert [rival.number for rival in rivals([first, second], "m", Promotion(rule="better"))] == [2]
    assert rivals([], "m", Promotion()) == rivals([], "m", Promotion(rule="better")) == []
    assert advice([first], 1) == advice([first, second], 1) == f"{crown}, and {set_anchor}its number", "of its chain, and the anchor"
    assert advice([first, second], 2) == advice([first, second], 1, anchor=2) == crown, "of its chain alone"
    data = Champion(2, "a", "data", "now", replaced=1, digests=first.digests | {"corpus": "new"})
    assert advice([first, data], 2) == f"{crown}, and {set_anchor}its number", "the anchor's model, over new data"
    by_hand = [first, second, make_champion(3, "set")]
    assert advice(by_hand, 1) == f"{set_anchor}3", "the anchor alone"
    assert numbers(by_hand, anchor=3) == [3], "so that works"
