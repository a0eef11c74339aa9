"""Refuse a data set that has lost much since the champion was trained: more likely a truncated delivery than a smaller data set."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flows.champions import champion
from flows.champions.champion import Champion
from flows.champions.outs import Lost
from flows.intake.settings import FILE
from tasks.core.errors import UserError
from tasks.core.files import read_json

STATS = Path("data/corpus/stats.json")


def refuse(project: Path, now: Champion, max_loss: float, *, kept_out: Sequence[str] = (), warn: Callable[[str], None]) -> None:
    """Raise UserError if the prepared data set has lost more than the share `max_loss` of the documents, or of a split's queries, of `now`.

    The current folder is the retrainings' worktree. `kept_out`: batches that the data set had before. If the champion's data are
    lost, warn instead of checking. UserError also if they are only on the remote, and that is unavailable.
    """
    try:
        with TemporaryDirectory() as folder:
            out = Path(folder) / STATS.name
            champion.get_out(project, now.commit, str(STATS), out=out)
            counts = dict(_counts(read_json(out)))
    except Lost as error:
        warn(f"cannot check whether the data set has lost records since champion/{now.number}: {error}")
        return
    batches = f" (kept out now: batch {', '.join(kept_out)}; see retemper intake)" if kept_out else ""
    for kind, count in _counts(read_json(STATS)):
        former = counts.get(kind, 0)
        if former - count > max_loss * former:
            raise UserError(
                f"data set: found {count:,} {kind}, champion/{now.number} had {former:,}; expected at least {100 - 100 * max_loss:g}% of "
                f"them (intake.shrink of {FILE}); put back what is missing{batches}, or raise intake.shrink (null: any loss)"
            )


def _counts(stats: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    yield "documents", stats["documents"]["count"]
    for split, figures in stats["splits"].items():
        yield f"{split} queries", figures["queries"]
