"""Which champions a candidate must be shown not to lose against, so that small losses cannot add up."""

from collections.abc import Sequence

from flows.champions.champion import Champion
from flows.champions.parts import is_same_model
from flows.intake.settings import FILE
from flows.promotion.records import Promotion
from tasks.core.errors import UserError


def rivals(champions: Sequence[Champion], measure: str, rule: Promotion) -> list[Champion]:
    """The champions that a new model may be compared with, the present one first. Raises UserError as `standing` does."""
    return standing(champions, measure, rule.anchor) if rule.rule == "guaranteed" else list(champions[-1:])


def way_out(champions: Sequence[Champion], rival: Champion, measure: str, *, rule: Promotion) -> str:
    """What a person can do if no model can be compared with `rival`, one of `rivals`."""
    now = champions[-1].number
    if rival.number not in {old.number for old in standing(champions, measure, now)}:
        return f"set promotion.anchor of {FILE} to {now}"
    crown = "crown a model by hand: retemper champion set MODEL"
    anchored = next((champion for champion in champions if champion.number == (rule.anchor or champions[0].number)), None)
    is_anchor = rule.rule == "guaranteed" and anchored is not None and is_same_model(rival, anchored)
    return f"{crown}, and set promotion.anchor of {FILE} to its number" if is_anchor else crown


def standing(champions: Sequence[Champion], measure: str, anchor: int | None = None) -> list[Champion]:
    """The current champion, then each earlier one of its chain that no later one was shown to beat by `measure`, and the anchor likewise.

    A chain begins with the first champion, with one that a person set or went back to, and with one promoted by another measure or by a
    rule without a guarantee. The anchor is the first champion, or the one with the number `anchor`; it outlives chains. Raises UserError if
    no champion has that number.
    """
    chain: list[Champion] = []
    covered: set[int] = set()  # in the chain, or beaten by one that was
    for champion in champions:
        comparison = champion.comparison if champion.cause == "promoted" else {}
        if champion.cause == "data":  # the same model over new data
            chain = [old for old in chain if old.number != champion.replaced] + [champion]
            covered.add(champion.number)
        elif comparison.get("rule") == "guaranteed" and comparison["measure"] == measure:
            tested = {int(number) for number in comparison["against"]}
            chain = [old for old in champions if old.number in tested - set(comparison["beaten"])] + [champion]
            covered |= tested | {champion.number}
        else:
            chain, covered = [champion], {champion.number}
    if not champions:
        return []
    anchored = next((champion for champion in champions if champion.number == (anchor or champions[0].number)), None)
    if anchored is None:
        raise UserError(f"{FILE}: promotion.anchor: found {anchor}, expected the number of a champion: 1 to {champions[-1].number}")
    if not any(champion.number in covered and is_same_model(champion, anchored) for champion in champions):
        chain.insert(0, anchored)
    distinct: list[Champion] = []
    for champion in reversed(chain):
        if not any(is_same_model(champion, other) for other in distinct):
            distinct.append(champion)
    return distinct
