"""`retemper compare A B ...`: systems of any revisions, or run files, against the first of them, query by query."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flows.experiments.draws import draws_of
from flows.experiments.store import PARAMS, best_model, flatten
from flows.parameters.alike import expected_names
from flows.process.display import fitted_table, terminal_width
from flows.repository.lock import (
    LOCK,
    TO_COMMIT,
    Lock,
    commit_of,
    corpus_of,
    current_lock,
    lock_of,
    mapping_at,
    out_digests,
    out_makers,
    parameters,
    tracked,
)
from flows.results.generations import outdated
from flows.storage.cache import cache_folder, intact_path, listing
from flows.team.exposure import champions
from flows.team.lineage import ancestors
from tasks.core.errors import UserError, printable
from tasks.core.metrics.added import lower_is_better
from tasks.core.metrics.selection import least_grade, metric_of
from tasks.core.params.sections import read_yaml
from tasks.core.stage.frozen import CODE
from tasks.core.statistics.tested import Tested, tests_of

if TYPE_CHECKING:
    from tasks.core.statistics.clusters import Floats, Numbers

VALUES = Path("data/values")
SOURCE = "data/source.json"
LISTED = 20  # differing parameters shown


@dataclass(frozen=True)
class Side:
    """One system: its values by query, and the stages that made it (none for a run file)."""

    name: str
    values: Mapping[str, float]
    stages: Lock = field(default_factory=dict)  # by their names in dvc.yaml
    model: str = ""


@dataclass(frozen=True)
class Row:
    """A side against the first one, over the queries that both have. `better` and `worse` count queries.

    `low` to `high`: the 1 - alpha interval of the difference (report.alpha). `power`: the chance of a t-test at alpha to find a difference
    this large; `detectable` and `needed`: for 80% power. They are None without variance. All of them treat `groups` of queries as
    independent, by report.draws; `largest_group`: the queries of the largest; `design_effect`: the variance of the mean difference over
    that with all queries independent.
    """

    name: str
    queries: int
    mean: float
    first_mean: float
    difference: float
    low: float | None
    high: float | None
    p: float
    p_holm: float
    better: int
    worse: int
    d: float | None
    d_low: float | None
    d_high: float | None
    power: float | None
    detectable: float | None
    needed: int | None
    groups: int
    largest_group: int
    design_effect: float
    warning: str
    differs: tuple[str, ...]


class Pair(NamedTuple):
    """Values of two systems on their common queries [Q], and the number of each query's group."""

    new: "Floats"
    old: "Floats"
    numbers: "Numbers"


def compare(names: Sequence[str], split: str, measure: str | None, *, shown: int, as_json: bool) -> None:
    """Print means, differences, and paired tests (report.test) of every system against the first, the differences in how they were made,
    and the `shown` queries that gain and lose most. Raises UserError if a system or its values cannot be found.
    """
    sections = read_yaml(Path(PARAMS))
    measure = measure or metric_of(sections)
    sides = [side_of(name, sections, split=split, measure=measure) for name in names]
    test = tests_of(sections, PARAMS)
    drawn = draws_of(split, [side.stages for side in sides])
    note = drawn.note if test.draws == "groups" else ""
    compared = rows(sides, test, split=split, fewer=lower_is_better(measure), groups=drawn.groups)
    if as_json:
        test_record = {"split": split, "measure": measure, "first": names[0], "test": test.test, "alpha": test.alpha, "note": note}
        print(json.dumps({**test_record, "systems": list(map(asdict, compared))}, indent=2))
        return
    print(text(sides, compared, split=split, measure=measure, test=test, width=terminal_width()))
    if note:
        print(f"note: {note}")
    texts = questions(split)
    for side in sides[1:]:
        for line in extremes(sides[0], side, shown, questions=texts, fewer=lower_is_better(measure)):
            print(printable(line))


def side_of(name: str, sections: Mapping[str, Any], *, split: str, measure: str) -> Side:
    """The system called `name`: a TREC run file, a MODEL of the working tree, REVISION:MODEL, champion/N, or a REVISION's best on dev."""
    if Path(name).is_file():
        return Side(name, _values_of_run(Path(name), sections, split=split, measure=measure))
    revision, colon, model = name.rpartition(":")
    workspace_lock = current_lock()
    if not colon and _evaluation(workspace_lock, name):
        return _measured(name, name, workspace_lock, split=split, measure=measure)
    try:
        commit = commit_of(revision if colon else name)
    except UserError:
        if colon:
            raise UserError(f"compare {name}: found neither a file nor revision {revision!r} in git, expected one; try git fetch") from None
        known = _models(workspace_lock)
        expected = expected_names(name, known) if known else "no model of this working tree is measured yet"
        raise UserError(
            f"compare {name}: found neither a file, a model of this working tree, nor a revision of git (or REVISION:MODEL); {expected}"
        ) from None
    lock = lock_of(commit, name)
    if lock is None:
        raise UserError(f"compare {name}: its commit has no {LOCK}; {TO_COMMIT}")
    if not colon:
        model = champions().get(name) or best_model(f"compare {name}", lock, mapping_at(commit, PARAMS))
    return _measured(name, model, lock, split=split, measure=measure)


def _models(lock: Lock) -> list[str]:
    paths = [Path(path) for path in out_makers(lock)]
    return [path.name for path in paths if path.parent == VALUES]


def _evaluation(lock: Lock, model: str) -> str:
    """The stage that measured `model`; empty if there is none."""
    return out_makers(lock).get(str(VALUES / model), "")


def _measured(name: str, model: str, lock: Lock, *, split: str, measure: str) -> Side:
    """A model of a dvc.lock, with its values from the cache. Before CLICKS were measured apart, dev had them too: they are left out."""
    import pyarrow.parquet as pq

    from tasks.core.statistics.judged import parts
    from tasks.core.tables.parquet import values_of

    stage = _evaluation(lock, model)
    if not stage:
        expected = expected_names(model, known) if (known := _models(lock)) else f"nor any other; {TO_COMMIT}"
        raise UserError(f"compare {name}: found no model {model!r} there, {expected}")
    if replaced := outdated(lock).get(stage):
        raise UserError(f"compare {name}: {model} was measured before {replaced} was replaced; run retemper run there")
    path = cached_file(f"compare {name}", VALUES / model / f"{split}.parquet", {stage: lock[stage]})
    columns = pq.read_schema(path).names
    if measure not in columns:
        raise UserError(
            f"compare {name}: found the measures {', '.join(columns[1:])}, expected {measure}; add it to evaluate.measures there"
        )
    values, stages = values_of(path, measure), {one: lock[one] for one in ancestors(lock, stage)}
    values = {query: values[query] for query in parts(split, values)[split]}
    return Side(name if name == model or name.endswith(f":{model}") else f"{name} ({model})", values, stages, model)


def cached_file(where: str, file: Path, stages: Lock) -> Path:
    """A system's `file` in the cache, such as data/FOLDER/MODEL/SPLIT.parquet, made by one of `stages`. UserError if it is missing."""
    outs = out_digests(stages)
    objects = cache_folder() / "files" / "md5"
    files = listing(objects, outs.get(str(file.parent), ""))
    if files and file.name not in files:
        raise UserError(f"{where}: {file.parent.name} was not measured on {file.stem}; found {', '.join(sorted(files))}")
    if path := intact_path(objects, files.get(file.name, "")):
        return path
    raise UserError(
        f"{where}: {file.parent} is missing from this clone's cache, or corrupt; run retemper verify, then "
        "dvc fetch --all-commits, or retemper run there"
    )


def _values_of_run(path: Path, sections: Mapping[str, Any], *, split: str, measure: str) -> dict[str, float]:
    """The values of a run file, made by any program, measured with this project's qrels."""
    from tasks.core.metrics.measures import needs_texts, parse, per_query
    from tasks.core.metrics.qrels import load_qrels
    from tasks.core.statistics.judged import parts
    from tasks.core.trec.external import read_trec_run

    qrels = Path(corpus_of(current_lock()), "qrels", f"{split}.parquet")
    if not qrels.exists():
        raise UserError(f"{qrels}: not found, and {path} is measured with it; run retemper run prepare")
    least = least_grade(split, sections)
    judged, ranked = load_qrels(qrels, split, least), read_trec_run(path)
    if not judged.keys() & ranked.keys():
        none = f"none of its {len(ranked):,} queries is" if len(ranked) != 1 else "its only query is not"
        raise UserError(f"{path}: {none} a judged query of {split} ({len(judged):,}); name another --split")
    try:
        measures = parse([measure], least)
    except ValueError as error:
        raise UserError(f"--measure: {error}") from None
    if needs_texts(measures):
        raise UserError(f"--measure: found {measure}, which reads documents, expected a measure of runs alone; {path} is only a run")
    values = per_query(measures, judged, ranked)
    return {query: values[query][measure] for query in parts(split, values)[split]}


def rows(sides: Sequence[Side], test: Tested, *, split: str, fewer: bool = False, groups: Mapping[str, str] | None = None) -> list[Row]:
    """Compare every side with the first one; p-values are corrected by Holm over all of them.

    `fewer`: lower values of the measure are better. `groups`: by query, see `draws_of`."""
    import numpy as np

    from tasks.core.statistics.paired_tests import holm

    first, *others = sides
    pairs: list[Pair] = []
    for side in others:
        common = sorted(side.values.keys() & first.values.keys())
        if not common:
            raise UserError(f"compare: {first.name} and {side.name} have no query in common; expected systems of one data set")
        new, old = (np.array([one.values[query] for query in common], dtype=np.float64) for one in (side, first))
        pairs.append(Pair(new, old, test.drawn(common, groups or {})))
    p_values = [test.p(*pair) for pair in pairs]
    return [
        _row(first, side, pair, p=p, p_holm=p_holm, alpha=test.alpha, split=split, fewer=fewer)
        for side, pair, p, p_holm in zip(others, pairs, p_values, holm(p_values), strict=True)
    ]


def _row(first: Side, side: Side, pair: Pair, *, p: float, p_holm: float, alpha: float, split: str, fewer: bool) -> Row:
    import numpy as np

    from tasks.core.statistics.clusters import design_effect
    from tasks.core.statistics.paired_tests import paired_t_test
    from tasks.core.statistics.power import effect, power_warning

    new, old, numbers = pair
    gains = old - new if fewer else new - old
    difference, size = float((new - old).mean()), effect(new - old, alpha, numbers)
    _, low, high = paired_t_test(new, old, alpha, numbers)
    return Row(
        name=side.name,
        queries=len(new),
        mean=float(new.mean()),
        first_mean=float(old.mean()),
        difference=difference,
        low=low,
        high=high,
        p=p,
        p_holm=p_holm,
        better=int((gains > 0).sum()),
        worse=int((gains < 0).sum()),
        d=size.d if size else None,
        d_low=size.d_low if size else None,
        d_high=size.d_high if size else None,
        power=size.power if size else None,
        detectable=size.detectable if size else None,
        needed=size.needed if size else None,
        groups=int(numbers.max()) + 1,
        largest_group=int(np.bincount(numbers).max()),
        design_effect=design_effect(new - old, numbers),
        warning="" if p_holm <= alpha else power_warning(f"{split}, {side.name} against {first.name}", len(new), difference, size),
        differs=tuple(differences(first, side)),
    )


def differences(first: Side, other: Side) -> Iterator[str]:
    """Lines on what differs in how two systems were made: parameters with both values, sources, and stages with other code.

    The entries of two different models are compared with each other, as `rounds.MODEL.lr`. Steps of only one of the two are named by
    their stages.
    """
    if not first.stages or not other.stages:
        yield "how a run file was made is not recorded"
        return
    renamed = first.model != other.model
    old_parameters, new_parameters = (
        _parameters(side, counterpart if renamed else None) for side, counterpart in ((first, other), (other, first))
    )
    shared = {_entry(key) for key in old_parameters} & {_entry(key) for key in new_parameters}
    changed = [
        key
        for key in {**old_parameters, **new_parameters}
        if old_parameters.get(key) != new_parameters.get(key) and (not renamed or _entry(key) in shared)
    ]
    for key in changed[:LISTED]:
        yield f"{key}: {_shown(old_parameters, key)} -> {_shown(new_parameters, key)}"
    if len(changed) > LISTED:
        yield f"{(left := len(changed) - LISTED)} more parameter{'s' * (left != 1)}"
    for kind, file in (("source", SOURCE), ("code", str(CODE))):
        old, new = (tracked(file, *side.stages.values()) for side in (first, other))
        if keys := sorted(key for key in old.keys() & new.keys() if old[key] != new[key]):
            yield f"{kind}: {', '.join(keys)}"
    ours, theirs = _own(first, other), _own(other, first)
    if unshared := sorted(stage for found, others in ((ours, theirs), (theirs, ours)) for one, stage in found.items() if one not in others):
        yield f"stages that only one of the two has: {', '.join(unshared)}"


def _own(side: Side, other: Side) -> dict[str, str]:
    """Stages that `other` lacks, by name without the model's, because `train` of two models is the same step."""
    return {stage.removesuffix(f"@{side.model}"): stage for stage in side.stages if stage not in other.stages}


def _parameters(side: Side, other: Side | None) -> dict[str, Any]:
    """Parameters by dotted key. With an `other` model, the side's own entry is `rounds.MODEL`, and has its own name too if both have it."""
    values = _flat(side)
    if other is None:
        return values
    theirs = {_entry(key) for key in _flat(other)}
    renamed = {
        ".".join("MODEL" if place == 1 and part == side.model else part for place, part in enumerate(key.split("."))): values[key]
        for key in values
    }
    return renamed | {key: value for key, value in values.items() if _entry(key) in theirs}


def _flat(side: Side) -> dict[str, Any]:
    return {key: value for entry in side.stages.values() for key, value in flatten(dict(parameters(entry))).items()}


def _entry(key: str) -> str:
    """`rounds.star` of rounds.star.lr."""
    return ".".join(key.split(".")[:2])


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "not given"


def text(sides: Sequence[Side], compared: Sequence[Row], *, split: str, measure: str, test: Tested, width: int | None = None) -> str:
    """The table, in lines of at most `width` if given, then the differences in making, and warnings of too few queries."""
    from tasks.core.statistics.clusters import describe_groups as clustered

    first = sides[0]
    mean = sum(first.values.values()) / len(first.values)
    body = [[first.name, str(len(first.values)), f"{mean:.4f}", *[""] * 7]]
    for row in compared:
        interval = "" if row.low is None or row.high is None else f"{row.low:+.4f} to {row.high:+.4f}"
        figures = [f"{row.mean:.4f}", f"{row.difference:+.4f}", interval, f"{row.p_holm:.2g}" if row.groups > 1 else ""]
        figures += ["", ""] if row.d is None or row.detectable is None else [f"{row.d:+.2f}", f"{row.detectable:.4f}"]
        figures += [str(row.better), str(row.worse)]
        body.append([row.name, str(row.queries), *figures])
    level = f"{100 - 100 * test.alpha:g}% interval"
    header = ["system", "queries", measure, "difference", level, "p (Holm)", "d", "80% power", "better", "worse"]
    table = fitted_table(header, body, width)
    lines = [f"{split}, against {first.name}: {test.tests} over the queries in common", table]
    lines.append("d: mean difference over its standard deviation; 80% power: the smallest difference that a t-test detects that often")
    lines += [row.warning for row in compared if row.warning]
    lines += [
        f"{row.name}: {clustered(row.queries, row.groups, row.design_effect, largest=row.largest_group)}"
        for row in compared
        if row.groups < row.queries or row.queries == 1
    ]
    for row in compared:
        lines.append(f"{row.name}: {'; '.join(row.differs) or 'nothing recorded differs'}")
        if missing := len(first.values) - row.queries:
            lines.append(f"{row.name}: lacks {missing:,} of the queries of {first.name}")
    return printable("\n".join(lines))


def extremes(first: Side, side: Side, shown: int, *, questions: Mapping[str, str], fewer: bool) -> Iterator[str]:
    """The `shown` queries that gain most over `first`, then those that lose most, with both values."""
    common = sorted(side.values.keys() & first.values.keys(), key=lambda query: (side.values[query] - first.values[query], query))
    best = common if fewer else common[::-1]
    for word, queries in (("gains", best[:shown]), ("losses", best[::-1][:shown])):
        for query in queries:
            old, new = first.values[query], side.values[query]
            if new != old and (new > old) == ((word == "gains") != fewer):
                yield f"{side.name} {word}: {old:.3f} -> {new:.3f}  {query}  {questions.get(query, '')}".rstrip()


def questions(split: str) -> dict[str, str]:
    """Texts of this working tree's queries; empty if they are missing."""
    from tasks.core.text.mapped import query_texts

    corpus = Path(corpus_of(current_lock()))
    return dict(query_texts(corpus, split)) if (corpus / "queries" / f"{split}.parquet").exists() else {}
