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
from flows.explaining.runs import TRAINED, Bench, Configuration, Measured, evaluation, refuse_unmeasured, training
from flows.explaining.search import LEAST_NOISE, Search, Z, mean_and_error
from flows.explaining.sides import read_side
from flows.intake.settings import FILE
from flows.parameters.sources import write_source
from flows.process import locks
from flows.process.display import Display, clock, text_table
from flows.process.problems import RunFailed, print_problems
from flows.process.processes import Processes, stopping_on_signals
from flows.repository.lock import commit_of, mapping_at, read_blob
from flows.repository.worktree import SOURCE
from tasks.core.errors import UserError, printable
from tasks.core.files import read_json, write_text
from tasks.core.metrics.added import lower_is_better
from tasks.core.metrics.selection import metric_of
from tasks.core.plurals import counted
from tasks.core.statistics.judged import judged_queries

FOLDER = Path(".retemper/bisect")

Train = Callable[[int, int], Measured]  # from the number of batches (the first ones) and the repetition, from 0


@dataclass(frozen=True)
class Tried:
    """A retraining on the first `batches` of the inbox: its difference from the good one over their common queries, and its error."""

    batches: int
    difference: float
    error: float


@dataclass(frozen=True)
class Culprit:
    """What a search found: the bad `batch` (counted from 1), None if all batches together do no harm.

    `drop`: the difference that all of them make, negative if worse; `error`: what may be chance in it, divided by Z; both in units of
    the measure. Errors are over groups of queries; what a seed adds to all queries alike is not measured (flows.explaining.search).
    """

    batch: int | None
    probability: float
    drop: float
    error: float
    queries: int
    tried: Sequence[Tried]


@dataclass(frozen=True)
class Range:
    """The batches to search: those after the first `good`, up to the first `bad` ones. `names`: of all batches. `note`: for people."""

    names: Sequence[str]
    good: int
    bad: int
    note: str = ""

    @property
    def steps(self) -> int:
        """How many retrainings plain bisection takes, not counting the two ends."""
        return math.ceil(math.log2(self.bad - self.good))


@locks.hold_run_lock(FOLDER / "bisect.lock")  # also for a dry run: finding the champion's batches uses the folder that trainings read
def bisect(*, model: str | None, good: str | None, bad: str | None, follow: str, measure: str | None, dry_run: bool, as_json: bool) -> int:
    """Print the batch of the inbox that makes the model worse. Return the exit status: 1 if the search is not sure.

    `good`: the last batch known to be good (default: the last that the champion was trained on). `bad`: the last one to search.
    """
    commit = commit_of(follow)
    sections = mapping_at(commit, "params.yaml")
    inbox, champion = Inbox(FOLDER / "data", sections), current(Path.cwd())
    span = range_of(inbox, champion, good, bad=bad)
    champion_model = model_of(champion, sections) if champion else None
    model = model or champion_model
    if model is None:
        raise UserError("bisect: there is no champion yet, so no model to examine; name one: --model NAME")
    measure = measure or (champion.measure if champion and model == champion_model else "") or metric_of(sections)
    refuse_unmeasured(measure, sections)
    refuse_other_graph(commit, sections, model)
    source = _source(commit, sections, inbox)
    processes, display = Processes(), Display()
    say = (lambda _: None) if as_json else display.line
    estimate = _estimate(span, champion)
    if span.note:
        say(span.note)
    say(f"{counted(span.bad - span.good, 'batches')}, {span.names[span.good]} to {span.names[span.bad - 1]}: {estimate}")
    if dry_run:
        if as_json:
            print(json.dumps({"batches": list(span.names[span.good : span.bad]), "estimate": estimate, "note": span.note}, indent=2))
        return 0
    with (
        stopping_on_signals(processes),
        Bench(FOLDER, measure, processes, show=(lambda *_: None) if as_json else display.output) as bench,
    ):

        def train(count: int, repetition: int) -> Measured:
            data = inbox.merge(span.names[:count])
            parameters = reseed(sections, repetition) | {"dataset": {**sections["dataset"], "source": data.spec}}
            configuration = Configuration(commit, parameters, {**source, "dataset": data.entry}, model)
            return bench.measured(
                configuration, configuration, counted(count, "batches") + (f", seed {repetition + 1}" if repetition else "")
            )

        try:
            result = search(span, train, fewer=lower_is_better(measure))
        except RunFailed as failed:
            print_problems([failed.problem])
            return 1
        bench.close()
        shutil.rmtree(FOLDER / "data", ignore_errors=True)
    if as_json:
        name = span.names[result.batch - 1] if result.batch else None
        record = {**asdict(result), "batch": name, "model": model, "measure": measure, "retrainings": bench.trained, "note": span.note}
        print(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        print(printable(text(result, span, what=f"{measure} of {model}", trained=bench.trained)))
    return 0 if result.batch is None or result.probability >= Search.SURE else 1


def model_of(champion: Champion, sections: Mapping[str, Any]) -> str:
    """The champion's model as params.yaml names it: a retraining that starts from a champion gives its model another name."""
    if any(champion.model in (sections.get(section) or {}) for section in TRAINED):
        return champion.model
    entry = history.read_outcome(Path.cwd(), champion.commit)
    how = entry.how if entry else None
    return str(((how or {}).get("origins") or {}).get(champion.model, champion.model))


def refuse_other_graph(commit: str, sections: Mapping[str, Any], model: str) -> None:
    """Raise UserError if the dvc.yaml of `commit` lacks the stage that trains `model`, or the one that evaluates it."""
    stages = mapping_at(commit, "dvc.yaml").get("stages") or {}
    configuration = Configuration(commit, sections, {}, model)
    trains = [training(configuration)] if any(model in (sections.get(section) or {}) for section in TRAINED) else []
    for stage in [*trains, evaluation(configuration)]:
        name = stage.partition("@")[0]
        if name not in stages:
            raise UserError(
                f"dvc.yaml: found no stage {name} in commit {commit[:7]}, expected one, since {model} needs it; "
                "commit a dvc.yaml that has it, or name another revision: --follow REV"
            )


def search(span: Range, train: Train, *, fewer: bool = False) -> Culprit:
    """Find the batch after which the measure has dropped. `fewer`: lower values of the measure are better.

    Both ends are trained first (the cache has them if they were retrainings); unless the drop is larger than its noise, there is nothing
    to find. Then prefixes are trained as Search chooses them; one that is measured again gets another seed. The search ends when it is
    sure, at the latest after twice the retrainings of plain bisection.

    Whether there is a drop at all is asked of queries that might have been drawn. Where it is, is asked of the same queries: a prefix on
    which none of them changes is one without it.
    """
    sign = -1.0 if fewer else 1.0
    start = train(span.good, 0)

    mean_and_error({query: start.values[query] for query in judged_queries(start.values)}, start.groups)  # refuses before more is trained

    def difference(count: int, repetition: int, *, unseen: bool = False) -> tuple[float, float, int]:
        measured = train(count, repetition)
        queries = sorted(judged_queries(measured.values.keys() & start.values.keys()))
        if not queries:
            raise UserError(
                f"dev: found no query in common between {span.good} and {counted(count, 'batches')}, expected some to compare them on"
            )
        lost = {query: measured.values[query] - start.values[query] for query in queries}
        mean, error = mean_and_error(lost, measured.groups, unseen=unseen)
        return sign * mean, error, len(queries)

    drop, error, queries = difference(span.bad, 0, unseen=True)
    if drop + Z * error >= 0:
        return Culprit(None, 1.0, drop, error, queries, ())
    bisection, tried = Search(span.bad - span.good, drop), list[Tried]()
    while not bisection.sure and len(tried) < 2 * span.steps:
        count = span.good + bisection.next()
        mean, noise, _ = difference(count, sum(one.batches == count for one in tried))
        bisection.add(count - span.good, mean, noise)
        tried.append(Tried(count, mean, noise))
    return Culprit(span.good + bisection.best, max(bisection.posterior()), drop, error, queries, tuple(tried))


def range_of(inbox: Inbox, champion: Champion | None, good: str | None, *, bad: str | None) -> Range:
    """The batches to search. Raises UserError for an unknown batch, for fewer than two, and without an inbox in mode append."""
    names = list(inbox.batches)
    if not names and inbox.kept_out:
        raise UserError(
            f"{FILE}: intake.inbox: found no batches to search; kept out: {', '.join(inbox.kept_out)}; retemper intake says why"
        )
    if not names:
        raise UserError(
            f"{FILE}: found no batches to search, expected an intake.inbox with some, mode append, and dataset.source beir:, csv:, or "
            "pairs:"
        )
    for option, name in (("--good", good), ("--bad", bad)):
        if name is not None and name not in names:
            raise UserError(f"{option} {name}: no such batch in the inbox, expected one of {', '.join(names)}")
    first, last = names.index(good) + 1 if good else 0, names.index(bad) + 1 if bad else len(names)
    note = ""
    if good is None and champion:
        champion_batches = inbox.find(champion.data).batches if champion.data.get("digest") else None
        first = len(champion_batches) if champion_batches and len(champion_batches) < last else 0
        if champion_batches is None:
            note = (
                f"champion/{champion.number} was not trained on exactly the first batches by name (a new one may precede an old one, or "
                "the data set may have changed), so all are searched; --good BATCH names the last one known to be good"
            )
    if last - first < 2:
        after = f" after {names[first - 1]}" if first else ""
        raise UserError(f"bisect: batches to search{after}: found {max(last - first, 0)}, expected at least two; see --good and --bad")
    return Range(names, first, last, note)


def text(result: Culprit, span: Range, *, what: str, trained: int) -> str:
    """The report: the retrainings tried, and the bad batch."""
    ends = f"first {counted(span.good, 'batches')}" if span.good else "dataset.source alone"
    noise = f"up to {Z * result.error:.4f} may be chance, {counted(result.queries, 'queries')}"
    lines = [f"{what}: {result.drop:+.4f} with the first {counted(span.bad, 'batches')} against {ends} ({noise})"]
    if result.batch is None:
        return "\n".join([*lines, "no bad batch: the difference is not a loss, or is within the noise"])
    rows = [
        [
            str(attempt.batches),
            span.names[attempt.batches - 1],
            f"{attempt.difference:+.4f}",
            f"{Z * attempt.error:.4f}",
            _verdict(attempt, result),
        ]
        for attempt in result.tried
    ]
    lines.append(text_table(["batches", "last batch", "difference", "noise", "looks"], rows))
    name = span.names[result.batch - 1]
    sure = result.probability >= Search.SURE
    lines.append(f"{'bad batch' if sure else 'most likely'}: {name} (probability {result.probability:.2f}; retrainings: {trained})")
    if partial := [attempt for attempt in result.tried if result.drop < attempt.difference - Z * attempt.error and _is_loss(attempt)]:
        lines.append(
            f"the first {counted(partial[-1].batches, 'batches')} account for {partial[-1].difference:+.4f} of {result.drop:+.4f}, "
            f"so more than one batch may be bad: leave {name} out, and search again"
        )
    shared = LEAST_NOISE * abs(result.drop)
    lines.append(
        f"this holds if another seed moves the mean by less than {shared:.4f}, a tenth of the drop; noise of seeds is not measured"
    )
    lines.append(
        f"to leave it out, rename it to .{name}, and run retemper retrain"
        if sure
        else "the noise is too large to be sure: search a smaller range (--good, --bad), or add dev queries"
    )
    return "\n".join(lines)


def _is_loss(attempt: Tried) -> bool:
    """Whether the difference is below 0 by more than its noise."""
    return attempt.difference + Z * attempt.error < 0


def _verdict(attempt: Tried, result: Culprit) -> str:
    return "bad" if attempt.difference < result.drop / 2 else "good"


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


def _estimate(span: Range, champion: Champion | None) -> str:
    """A clause on how many retrainings it takes, and how long at most by recorded times."""
    retrainings = span.steps + 2
    message = f"retrainings: {span.steps}, and the two ends if they are not in the cache"
    seconds = sum(costs.recorded_seconds(read_side(f"champion/{champion.number}").stages).values()) if champion else 0
    return f"{message}, about {clock(retrainings * seconds)} at most by recorded times" if seconds else message
