"""The evidence that rule guaranteed needs in addition to values by query, read from the worktree and from the champion's commit."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flows.champions import champion
from flows.champions.champion import Champion
from flows.champions.measurement import values
from flows.champions.outs import Lost
from flows.champions.parts import Parts
from flows.promotion.records import Evidence, Promotion
from flows.promotion.rule import decide
from flows.promotion.vetoes import slices_of
from flows.results.fusions import fusion_parts, fusions, record_of
from flows.results.metrics import Metrics, served_models
from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.statistics.clusters import read_groups
from tasks.core.statistics.confirmation import ONE_IN, is_selection_query
from tasks.core.statistics.groups import read_columns
from tasks.core.statistics.judged import judged_queries
from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import QRELS
from tasks.core.text.mapped import query_texts

VALUES = Path("data/values")


def choosing_metrics(metrics: Metrics, measure: str, rule: Promotion, *, groups: Mapping[str, str]) -> Metrics:
    """`metrics` with its dev means taken over only the queries that choose among systems: with rule guaranteed, one in ONE_IN, else all.

    `groups`: those of dev queries. Raises UserError if dev has none of the queries that choose.
    """
    if rule.rule != "guaranteed":
        return metrics
    chosen_on: dict[str, dict[str, Any]] = {}
    for model, splits in metrics.items():
        if measure not in splits.get("dev", {}) or not (VALUES / model / "dev.parquet").exists():
            continue
        all_values = values(VALUES / model, measure)
        choosing = _selection_queries([*all_values], groups)
        mean = math.fsum(all_values[query] for query in choosing) / len(choosing)
        chosen_on[model] = {**splits, "dev": {**splits["dev"], measure: mean}}
    return chosen_on


def chosen_on(model: str, measure: str, rule: Promotion, *, groups: Mapping[str, str]) -> str:
    """On which dev queries `model` was chosen by `measure`, in words; empty if on all."""
    folder = VALUES / model
    if rule.rule != "guaranteed" or not (folder / "dev.parquet").exists():
        return ""
    judged = [*values(folder, measure)]
    return f", chosen on the {len(_selection_queries(judged, groups)):,} of {len(judged):,} dev queries that choose (rule guaranteed)"


def _selection_queries(judged: Sequence[str], groups: Mapping[str, str]) -> list[str]:
    """Those of the `judged` queries that choose among systems with rule guaranteed. Raises UserError if there are none."""
    choosing = [query for query in judged if is_selection_query(query, groups)]
    if not choosing:
        problem = f"none of its {len(judged):,} judged queries is" if len(judged) != 1 else "its only judged query is not"
        raise UserError(
            f"dev: {problem} among the one in {ONE_IN} that choose the new model; "
            f"add queries, or set promotion.rule of retraining.yaml to not_worse"
        )
    return choosing


def foresee(corpus: Path, measure: str, rule: Promotion, *, warn: Callable[[str], None]) -> None:
    """Raise UserError if none of the dev queries of a corpus folder can choose a new model; warn if no comparison on them can be decided.

    Ids and judgments alone decide that. Without dev queries, nothing is done.
    """
    path = corpus / "qrels/dev.parquet"
    queries = sorted({*read_table(path, QRELS, ["query"])["query"].to_pylist()}) if path.exists() else []
    if not queries:
        return
    dev_groups = groups(corpus)
    if rule.rule == "guaranteed":
        _selection_queries(judged_queries(queries), dev_groups)
    equal = dict.fromkeys(queries, 0.0)
    try:
        decide(Evidence(equal, {0: equal}, groups=dev_groups), measure, rule)
    except UserError as error:
        warn(f"{error}; until then, no new model can be compared with a champion")


def count_looks(metrics: Metrics, measure: str, sections: Mapping[str, Any], *, fused: bool = True) -> int:
    """How many systems the candidate was chosen from with the help of the queries that confirm; 1 if they had no influence.

    A fusion whose weight was chosen on all of dev counts once for each weight of its grid (a fusion of such fusions: the product of the
    grids). Its weight also affects its result on the queries that choose, so every other system counts as well. `fused`: whether a fusion
    may be the candidate.
    """
    counts = [_settings(model, sections) for model in served_models(metrics, measure, sections, fused=fused)]
    return sum(counts) if max(counts, default=1) > 1 else 1


def _settings(model: str, sections: Mapping[str, Any]) -> int:
    if model not in fusions(sections):
        return 1
    records = [read_json(record_of(name, sections)) for name in fusion_parts(model, sections)[1]]
    return math.prod(len(record["grid"]) for record in records if record["chosen_on"] == "dev")


def fresh_queries(project: Path, now: Champion, candidate: Parts, *, queries: Collection[str], warn: Callable[[str], None]) -> set[str]:
    """The `queries` that had no judgment when `now` was crowned; none, with a warning, if the judgments of that time are lost.

    UserError if they are only on the remote, and that is unavailable.
    """
    if now.digests.get("corpus") == candidate.digests.get("corpus"):
        return set()
    try:
        with TemporaryDirectory() as folder:
            judged = Path(folder) / "dev.parquet"
            champion.get_out(project, now.commit, f"{champion.parts_at(project, now).paths['corpus']}/qrels/dev.parquet", out=judged)
            return set(queries) - set(read_table(judged, QRELS, ["query"])["query"].to_pylist())
    except Lost as error:
        warn(f"dev: cannot tell which queries are newer than champion/{now.number}, so none counts as new: {error}")
        return set()


def slices(corpus: Path) -> dict[str, list[str]]:
    """The groups of dev queries, by name, of a corpus folder; empty if it has no dev queries."""
    if not (corpus / "queries/dev.parquet").exists():
        return {}
    return slices_of(dict(query_texts(corpus, "dev")), read_columns(corpus / "columns/dev.parquet"))


def groups(corpus: Path) -> dict[str, str]:
    """By dev query of a corpus folder: its group of queries that share a relevant document, but for queries of a click log."""
    return read_groups(corpus / "qrels/dev.parquet")
