"""Whether a new model takes the champion's place: a paired, one-sided test on the same dev queries. retraining.yaml, as a record."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from flows.intake.settings import FILE, Intake
from flows.retraining.modes import Retrain
from tasks.core.metrics.added import lower_is_better
from tasks.core.stage.errors import UserError
from tasks.core.stage.params import Params, read_yaml, validate


class Promotion(Params):
    """When a new model becomes champion."""

    rule: Literal["not_worse", "better"] = Field("not_worse", description="what must be shown of the new model, at level alpha")
    margin: float = Field(0.01, ge=0, description="not_worse: the loss that is still accepted, in units of the measure")
    alpha: float = Field(0.05, gt=0, lt=0.5, description="level of the one-sided test")
    metric: str | None = Field(None, description="a measure of evaluate.measures; default: report.metric")


class Retraining(Params):
    """The whole file; every key is optional."""

    intake: Intake = Intake()
    retrain: Retrain = Retrain()
    promotion: Promotion = Promotion()


@dataclass(frozen=True)
class Verdict:
    """Means over the same `queries`, their difference (new - old), and the bound that decided."""

    promoted: bool
    reason: str
    measure: str
    queries: int
    new: float
    old: float
    difference: float
    bound: float


def read_retraining(path: Path = FILE) -> Retraining:
    """The file's record, or its defaults where it is missing; UserError, one line, for an invalid key or value."""
    return validate(Retraining, read_yaml(path), str(path)) if path.exists() else Retraining()


def lower_bound(differences: list[float], alpha: float) -> float:
    """The one-sided 1 - alpha lower confidence bound of the mean of paired `differences` [Q], by Student's t:

        L = mean(d) - t(1 - alpha, Q - 1) * s(d) / sqrt(Q)        s with Q - 1 in the denominator

    L >= -margin exactly where a one-sided paired t-test rejects "the mean is below -margin" at level alpha
    (non-inferiority: Wellek, Testing Statistical Hypotheses of Equivalence and Noninferiority, 2010, section 1).
    Equal differences have no spread: L is their value. UserError for fewer than two queries.
    """
    count = len(differences)
    if count < 2:
        raise UserError(f"dev: found {count} judged queries in common, expected at least 2 to compare models on; add queries and qrels")
    mean = math.fsum(differences) / count
    if min(differences) == max(differences):
        return differences[0]
    from scipy import stats

    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (count - 1))
    return mean - float(stats.t.ppf(1 - alpha, count - 1)) * spread / math.sqrt(count)


def judge(new: Mapping[str, float], old: Mapping[str, float], measure: str, rule: Promotion) -> Verdict:
    """Compare values of `measure` by query. not_worse: the bound L >= -margin; better: L > 0. UserError where the queries differ."""
    if new.keys() != old.keys():
        raise UserError(f"dev: the models were measured on different queries ({len(new)} and {len(old)}), expected the same")
    differences = [new[query] - old[query] for query in sorted(new)]
    bound = lower_bound(differences, rule.alpha)
    promoted = bound >= -rule.margin if rule.rule == "not_worse" else bound > 0
    wanted = f">= {-rule.margin:.4f}" if rule.rule == "not_worse" else "> 0"
    mean = math.fsum(differences) / len(differences)
    words = "" if promoted else "not "
    return Verdict(
        promoted,
        f"{measure} {mean:+.4f} on dev ({len(differences)} queries), lower bound {bound:+.4f} is {words}{wanted} ({rule.rule})",
        measure,
        len(differences),
        math.fsum(new.values()) / len(new),
        math.fsum(old.values()) / len(old),
        mean,
        bound,
    )


def measure_of(rule: Promotion, sections: Mapping[str, Any]) -> str:
    """The measure that chooses and decides; UserError where `evaluate` does not compute it."""
    measure = rule.metric or str((sections.get("report") or {}).get("metric", "nDCG@10"))
    known = (sections.get("evaluate") or {}).get("measures")
    if known and measure not in known:
        raise UserError(f"{FILE}: promotion.metric: found {measure!r}, expected one of evaluate.measures: {', '.join(known)}")
    if lower_is_better(measure):
        raise UserError(
            f"{FILE}: promotion.metric: found {measure!r}, which counts mistakes, expected a measure that is higher for a better model"
        )
    return measure
