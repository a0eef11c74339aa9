"""Measures: names in the notation of ir_measures, values per query, and means."""

import ast
import math
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ir_measures
import pyarrow as pa

from tasks.core.metrics import added
from tasks.core.sources.grades import MOST

Qrels = dict[str, dict[str, int]]  # query -> document -> grade
Values = dict[str, float]  # measure's name -> value
Measure = Any  # of ir_measures, or an added.Added


def _literal(node: ast.expr | None) -> Any:
    """The value of a parameter in a measure's name; ValueError if ir_measures does not take such a value."""
    if isinstance(node, ast.Dict):
        return {_literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)}
    if not isinstance(node, ast.Constant):
        raise ValueError("its parameters are numbers from 0, strings, True, or False")
    return node.value


ir_measures.util._ast_to_value = _literal  # its own needs ast.Num, which Python 3.14 does not have


def parse(names: Sequence[str], relevance: int) -> dict[str, Measure]:
    """Measures by the names given; binary ones count grades >= `relevance` unless the name says otherwise.

    ValueError naming a measure that is unknown or that no installed provider computes.
    """
    parsed: dict[str, Measure] = {}
    for name in names:
        try:
            measure = added.find_measure(name, relevance) or _known(name, relevance)
        except (ValueError, NameError, AssertionError, SyntaxError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise ValueError(
                f"{name!r} is not a valid measure ({error}); expected names like nDCG@10, RR@10, R@100, AP (see ir-measur.es)"
            ) from None
        if measure in parsed.values():
            raise ValueError(f"{name!r} is listed twice; name each measure once")
        parsed[name] = measure
    return parsed


def _known(name: str, relevance: int) -> Measure:
    """A measure of ir_measures that can be computed here."""
    measure = ir_measures.parse_measure(name)
    if "rel" in measure.SUPPORTED_PARAMS and "rel" not in measure.params and measure.NAME != "NumRet":  # all that were retrieved
        measure = measure(rel=relevance)
    measure.validate_params()
    if measure.params.get("cutoff", 1) < 1:  # trec_eval aborts the process
        raise ValueError("its cutoff is below 1")
    if not 0 < measure.params.get("p", 0.5) < 1:  # of RBP and Compat; otherwise values are meaningless, some negative
        raise ValueError("its p is not between 0 and 1")
    if not 0 <= measure.params.get("recall", 0.0) <= 1:
        raise ValueError("its recall is not between 0 and 1")
    if max([measure.params.get("rel", 1), *measure.params.get("gains", {}).values()]) > MOST:
        raise ValueError(f"it has a grade above {MOST:,}, the maximum")
    if added.formula(measure):
        return measure
    if not ir_measures.DefaultPipeline.supports(measure):
        raise ValueError("no installed provider computes it")
    try:
        values = list(ir_measures.evaluator([measure], {"q": {"d": relevance}}).iter_calc({"q": {"other": 1.0}}))
    except (OSError, subprocess.SubprocessError, RuntimeError):
        raise ValueError("its provider fails on this machine") from None
    if not values:
        raise ValueError("it has no value for a query without results")
    return measure


def cutoff(name: str) -> int:
    """How many ranks a measure counts: 100 for R@100; 0 without a cutoff."""
    measure = added.find_measure(name, 1) or ir_measures.parse_measure(name)
    return measure.cutoff if isinstance(measure, added.Added) else int(measure.params.get("cutoff", 0))


def may_use_whole_run(name: str) -> bool:
    """Whether a measure may read a run at any rank: it has no cutoff, or judged_only discards documents before it counts ranks."""
    if added.find_measure(name, 1):
        return False
    params = ir_measures.parse_measure(name).params
    return "cutoff" not in params or bool(params.get("judged_only"))


def needs_texts(measures: Mapping[str, Measure]) -> list[str]:
    """The names of the measures that `per_query` cannot compute: they read documents (Coverage)."""
    return [name for name, measure in measures.items() if isinstance(measure, added.Added) and not added.formula(measure)]


def read_qrels(table: pa.Table) -> Qrels:
    """The judgments (schema QRELS) of every query.

    Means are over all of them, as trec_eval's are: a query without a relevant document counts 0.
    """
    qrels: Qrels = {}
    for query, doc, grade in zip(*(table[name].to_pylist() for name in ("query", "doc", "grade")), strict=True):
        qrels.setdefault(query, {})[doc] = grade
    return qrels


def per_query(measures: Mapping[str, Measure], qrels: Qrels, rankings: Mapping[str, Sequence[str]]) -> dict[str, Values]:
    """Values of every query in `qrels`; `rankings` are document ids, best first. A query without a ranking counts as an empty one.

    None of `measures` may need texts.
    """
    formulas = {name: formula for name, measure in measures.items() if (formula := added.formula(measure))}
    values: dict[str, Values] = {query: {} for query in qrels}
    library_measures = [measure for name, measure in measures.items() if name not in formulas]
    if qrels and library_measures:
        # ir_measures' providers break ties between scores differently, so they get descending ranks instead of scores.
        run = {query: {doc: float(-rank) for rank, doc in enumerate(docs)} for query, docs in rankings.items() if query in qrels and docs}
        names = {str(measure): name for name, measure in measures.items()}
        for metric in ir_measures.evaluator(library_measures, _computable(qrels)).iter_calc(run):
            values[metric.query_id][names[str(metric.measure)]] = float(metric.value)
    for name, formula in formulas.items():
        for query, grades in qrels.items():
            values[query][name] = formula(rankings.get(query, ()), grades)
    return values


def _computable(qrels: Qrels) -> Qrels:
    """The judgments, with 0 for all grades of a query with negative grades only, for which trec_eval's code reads outside its memory.

    This changes no measure. Beside a grade of 0 or more, a negative one stays: it marks a document of the pool that nobody judged, which
    infAP counts and Bpref skips.
    """
    return {query: grades if max(grades.values()) >= 0 else dict.fromkeys(grades, 0) for query, grades in qrels.items()}


def means(names: Iterable[str], values: Mapping[str, Values]) -> Values:
    """The mean of every measure over all queries in `values`, which must not be empty."""
    return {name: math.fsum(row[name] for row in values.values()) / len(values) for name in names}


def value_tables(names: Sequence[str], values: Mapping[str, Values]) -> Iterator[pa.Table]:
    """`values` as one table, sorted by query id: a string column `query` and a float64 column for each measure."""
    queries = sorted(values)
    columns = {"query": pa.array(queries, pa.string())}
    yield pa.table(columns | {name: pa.array([values[query][name] for query in queries], pa.float64()) for name in names})


def value_schema(names: Sequence[str]) -> pa.Schema:
    """The schema of `value_tables`."""
    return pa.schema([("query", pa.string()), *((name, pa.float64()) for name in names)])
