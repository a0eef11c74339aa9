"""`retemper bisect`: which batch of the inbox made the model worse, by retrainings on the first few of them."""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.champions import history
from flows.champions.champion import Champion, current
from flows.explaining import costs
from flows.explaining.data import Inbox
from flows.explaining.plan import reseed
from flows.explaining.runs import TRAINED, Bench, Configuration, Failed, Measured, evaluation, refuse_unmeasured, training
from flows.explaining.search import LEAST_NOISE, Search, paired_difference
from flows.explaining.sides import read_side
from flows.intake.settings import FILE
from flows.parameters.sources import write_source
from flows.process import locks
from flows.process.display import Display, clock, text_table
from flows.process.problems import tell
from flows.process.processes import Processes, stopping_on_signals
from flows.repository.lock import commit_of, read_blob
from flows.repository.worktree import SOURCE
from tasks.core.metrics.added import lower_is_better
from tasks.core.metrics.selection import metric_of
from tasks.core.stage.errors import UserError, counted, printable
from tasks.core.stage.files import read_json, write_text
from tasks.core.stage.safe_yaml import parse_yaml

FOLDER = Path(".retemper/bisect")
Z = 1.645  # of a one-sided test at 5 %

Train = Callable[[int, int], Measured]  # from the number of batches (the first ones) and the repetition, from 0


@dataclass(frozen=True)
class Tried:
    """A retraining on the first `batches` of the inbox: its difference from the good one over their common queries, and its error."""

    batches: int
    difference: float
    error: float


@dataclass(frozen=True)
class Found:
    """What a search found: the bad `batch` (counted from 1), None if all batches together do no harm.

    `drop`: the difference that all of them make, negative if worse; `error`: its standard error; both in units of the measure. Errors are
    over queries; what a seed adds to all queries alike is not measured (flows.explaining.search).
    """

    batch: int | None
    probability: float
    drop: float
    error: float
    queries: int
    tried: Sequence[Tried]


@dataclass(frozen=True)
class Range:
    """The batches to search: those after the first `good`, up to the first `bad` ones. `names`: of all batches."""

    names: Sequence[str]
    good: int
    bad: int

    @property
    def steps(self) -> int:
        """How many retrainings plain bisection takes, not counting the two ends."""
        return math.ceil(math.log2(self.bad - self.good))


@locks.hold_run_lock(FOLDER / "bisect.lock")  # also for a dry run: finding the champion's batches uses the folder that trainings read
def bisect(*, model: str | None, good: str | None, bad: str | None, follow: str, measure: str | None, dry_run: bool, as_json: bool) -> int:
    """Print the batch of the inbox that makes the model worse. Return the exit status: 1 if the search is not sure.

    `good`: the last batch that does no harm (default: the last that the champion was trained on). `bad`: the last one to search.
    """
    commit = commit_of(follow)
    sections = parse_yaml(read_blob(commit, "params.yaml") or "") or {}
    inbox, now = Inbox(FOLDER / "data", sections), current(Path.cwd())
    chosen = range_of(inbox, now, good, bad=bad)
    own = model_of(now, sections) if now else None
    model = model or own
    if model is None:
        raise UserError("bisect: there is no champion yet, so no model to look at; name one: --model NAME")
    measure = measure or (now.measure if now and model == own else "") or metric_of(sections)
    refuse_unmeasured(measure, sections)
    refuse_other_graph(commit, sections, model)
    source = _source(commit, sections, inbox)
    processes, display = Processes(), Display()
    say = (lambda _: None) if as_json else display.line
    estimate = _estimate(chosen, now)
    say(f"{counted(chosen.bad - chosen.good, 'batches')}, {chosen.names[chosen.good]} to {chosen.names[chosen.bad - 1]}: {estimate}")
    if dry_run:
        if as_json:
            print(json.dumps({"batches": list(chosen.names[chosen.good : chosen.bad]), "estimate": estimate}, indent=2))
        return 0
    with (
        stopping_on_signals(processes),
        Bench(FOLDER, measure, processes, show=(lambda *_: None) if as_json else display.output) as bench,
    ):

        def train(count: int, repetition: int) -> Measured:
            data = inbox.merge(chosen.names[:count])
            parameters = reseed(sections, repetition) | {"dataset": {**sections["dataset"], "source": data.spec}}
            one = Configuration(commit, parameters, {**source, "dataset": data.entry}, model)
            return bench.measured(one, one, counted(count, "batches") + (f", seed {repetition + 1}" if repetition else ""))

        try:
            found = search(chosen, train, fewer=lower_is_better(measure))
        except Failed as failed:
            tell([failed.problem])
            return 1
        bench.close()
        shutil.rmtree(FOLDER / "data", ignore_errors=True)
    if as_json:
        name = chosen.names[found.batch - 1] if found.batch else None
        told = {**asdict(found), "batch": name, "model": model, "measure": measure, "retrainings": bench.trained}
        print(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        print(printable(text(found, chosen, what=f"{measure} of {model}", trained=bench.trained)))
    return 0 if found.batch is None or found.probability >= Search.SURE else 1


def model_of(now: Champion, sections: Mapping[str, Any]) -> str:
    """The champion's model as params.yaml names it: a retraining that starts from a champion gives its model another name."""
    if any(now.model in (sections.get(section) or {}) for section in TRAINED):
        return now.model
    entry = history.read_outcome(Path.cwd(), now.commit)
    how = entry.how if entry else None
    return str(((how or {}).get("origins") or {}).get(now.model, now.model))


def refuse_other_graph(commit: str, sections: Mapping[str, Any], model: str) -> None:
    """Raise UserError if the dvc.yaml of `commit` lacks the stage that trains `model`, or the one that evaluates it."""
    stages = (parse_yaml(read_blob(commit, "dvc.yaml") or "") or {}).get("stages") or {}
    one = Configuration(commit, sections, {}, model)
    trains = [training(one)] if any(model in (sections.get(section) or {}) for section in TRAINED) else []
    for stage in [*trains, evaluation(one)]:
        name = stage.partition("@")[0]
        if name not in stages:
            raise UserError(
                f"dvc.yaml: found no stage {name} in commit {commit[:7]}, expected one, since {model} needs it; "
                "commit a dvc.yaml that has it, or name another revision: --follow REV"
            )


def search(chosen: Range, train: Train, *, fewer: bool = False) -> Found:
    """Find the batch after which the measure has dropped. `fewer`: lower values of the measure are better.

    Both ends are trained first (the cache has them if they were retrainings); unless the drop is larger than its noise, there is nothing
    to find. Then prefixes are trained as Search chooses them; one that is measured again gets another seed. The search ends when it is
    sure, at the latest after twice the retrainings of plain bisection.
    """
    sign = -1.0 if fewer else 1.0
    start = train(chosen.good, 0)

    def difference(count: int, repetition: int) -> tuple[float, float, int]:
        made = train(count, repetition)
        queries = sorted(made.values.keys() & start.values.keys())
        if not queries:
            raise UserError(
                f"dev: found no query in common between {chosen.good} and {counted(count, 'batches')}, expected some to compare them on"
            )
        mean, error = paired_difference([made.values[one] for one in queries], [start.values[one] for one in queries])
        return sign * mean, error, len(queries)

    drop, error, queries = difference(chosen.bad, 0)
    if drop + Z * error >= 0:
        return Found(None, 1.0, drop, error, queries, ())
    looking, tried = Search(chosen.bad - chosen.good, drop), list[Tried]()
    while not looking.sure and len(tried) < 2 * chosen.steps:
        count = chosen.good + looking.next()
        mean, noise, _ = difference(count, sum(one.batches == count for one in tried))
        looking.add(count - chosen.good, mean, noise)
        tried.append(Tried(count, mean, noise))
    return Found(chosen.good + looking.best, max(looking.posterior()), drop, error, queries, tuple(tried))


def range_of(inbox: Inbox, now: Champion | None, good: str | None, *, bad: str | None) -> Range:
    """The batches to search. Raises UserError for an unknown batch, for fewer than two, and without an inbox in mode append."""
    names = list(inbox.batches)
    if not names:
        raise UserError(
            f"{FILE}: found no batches to search, expected an intake.inbox with some, mode append, and dataset.source beir:, csv:, or "
            "pairs:"
        )
    for option, name in (("--good", good), ("--bad", bad)):
        if name is not None and name not in names:
            raise UserError(f"{option} {name}: no such batch in the inbox, expected one of {', '.join(names)}")
    first, last = names.index(good) + 1 if good else 0, names.index(bad) + 1 if bad else len(names)
    if good is None and now:
        known = inbox.find(now.data).batches if now.data.get("digest") else None
        first = len(known) if known and len(known) < last else 0
    if last - first < 2:
        after = f" after {names[first - 1]}" if first else ""
        raise UserError(
            f"bisect: batches to search{after}: found {max(last - first, 0)}, expected at least two to search; see --good and --bad"
        )
    return Range(names, first, last)


def text(found: Found, chosen: Range, *, what: str, trained: int) -> str:
    """The report: the retrainings tried, and the bad batch."""
    ends = f"first {counted(chosen.good, 'batches')}" if chosen.good else "dataset.source alone"
    noise = f"standard error {found.error:.4f}, {counted(found.queries, 'queries')}"
    told = [f"{what}: {found.drop:+.4f} with the first {counted(chosen.bad, 'batches')} against {ends} ({noise})"]
    if found.batch is None:
        return "\n".join([*told, "no batch to find: that is no loss, or within its noise"])
    rows = [
        [str(one.batches), chosen.names[one.batches - 1], f"{one.difference:+.4f}", f"{one.error:.4f}", _verdict(one, found)]
        for one in found.tried
    ]
    told.append(text_table(["batches", "last of them", "difference", "error", "looks"], rows))
    name = chosen.names[found.batch - 1]
    sure = found.probability >= Search.SURE
    told.append(f"{'bad batch' if sure else 'most likely'}: {name} (probability {found.probability:.2f}; retrainings: {trained})")
    shared = LEAST_NOISE * abs(found.drop)
    told.append(f"it holds if another seed moves the mean by less than {shared:.4f}, a tenth of the drop: that noise is not measured")
    told.append(
        f"a batch whose name begins with a dot is left out: rename it to .{name}, and run retemper retrain"
        if sure
        else "the noise is too large to be sure: search a smaller range (--good, --bad), or add dev queries"
    )
    return "\n".join(told)


def _verdict(one: Tried, found: Found) -> str:
    return "bad" if one.difference < found.drop / 2 else "good"


def _source(commit: str, sections: Mapping[str, Any], inbox: Inbox) -> dict[str, Any]:
    """data/source.json for parameters `sections` with the inbox's data set; unavailable sources are as in `commit`."""
    scratch, described = FOLDER / "params.yaml", FOLDER / "source.json"
    write_text(scratch, json.dumps({**sections, "dataset": {**sections["dataset"], "source": inbox.merge(()).spec}}, ensure_ascii=False))
    write_text(described, read_blob(commit, SOURCE) or "{}")
    write_source(scratch, described)
    try:
        return dict(read_json(described))
    finally:
        scratch.unlink()
        described.unlink()


def _estimate(chosen: Range, now: Champion | None) -> str:
    """A clause on how many retrainings it takes, and how long at most by recorded times."""
    most = chosen.steps + 2
    told = f"retrainings: {chosen.steps}, and the two ends where they are not in the cache"
    seconds = sum(costs.recorded_seconds(read_side(f"champion/{now.number}").stages).values()) if now else 0
    return f"{told}, about {clock(most * seconds)} at most by recorded times" if seconds else told
