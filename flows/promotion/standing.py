"""Which champions a candidate must be shown not to lose against, so that small losses cannot add up."""

from collections.abc import Sequence

from flows.champions.champion import Champion
from flows.champions.parts import is_same_model
from flows.intake.settings import FILE
from tasks.core.stage.errors import UserError


def standing(champions: Sequence[Champion], measure: str, anchor: int | None = None) -> list[Champion]:
    """The present champion, then each earlier one of its chain that no later one was shown to beat by `measure`, and the anchor likewise.

    A chain begins with the first champion, with one that a person set or went back to, and with one promoted by another measure or by a
    rule without a guarantee. The anchor is the first champion, or the one with the number `anchor`; it outlives chains. Raises UserError if
    no champion has that number.
    """
    chain: list[Champion] = []
    covered: set[int] = set()  # in the chain, or beaten by one that was
    for one in champions:
        comparison = one.comparison if one.cause == "promoted" else {}
        if one.cause == "data":  # the same model over new data
            chain = [old for old in chain if old.number != one.replaced] + [one]
            covered.add(one.number)
        elif comparison.get("rule") == "guaranteed" and comparison["measure"] == measure:
            tested = {int(number) for number in comparison["against"]}
            chain = [old for old in champions if old.number in tested - set(comparison["beaten"])] + [one]
            covered |= tested | {one.number}
        else:
            chain, covered = [one], {one.number}
    if not champions:
        return []
    fixed = next((one for one in champions if one.number == (anchor or champions[0].number)), None)
    if fixed is None:
        raise UserError(f"{FILE}: promotion.anchor: found {anchor}, expected the number of a champion: 1 to {champions[-1].number}")
    if fixed.number not in covered:
        chain.insert(0, fixed)
    found: list[Champion] = []
    for one in reversed(chain):
        if not any(is_same_model(one, other) for other in found):
            found.append(one)
    return found
