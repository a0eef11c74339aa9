"""Means as MTEB writes a task's result, so that its leaderboards and tables can read them (mteb 2, mteb/results/task_result.py)."""

import re
from collections.abc import Mapping
from typing import Any

from tasks.core.sources.datasets import PATH_KINDS, parse_dataset

NAMES = {"nDCG": "ndcg", "AP": "map", "R": "recall", "P": "precision", "RR": "mrr"}
LANGUAGE = "und-Zyyy"  # ISO 639-3 and 15924 for undetermined; with none, TaskResult.get_score has nothing to average
MAIN = "nDCG@10"  # MTEB's score of retrieval
NAMED = re.compile(r"(nDCG|AP|R|P|RR)@(\d+)")


def task_result(dataset: str, revision: str, metrics: Mapping[str, Mapping[str, float]], relevance: Mapping[str, int]) -> dict[str, Any]:
    """The JSON object of one model on `dataset` (a SPEC), from {split: {measure: mean}}. Splits without MAIN or `relevance`
    (queries of a click log) are omitted.

    MTEB counts every grade above 0 as relevant, so binary measures are omitted where `relevance` of the split is higher. The language is
    not known here; `mteb_version` and `evaluation_time` are null, because MTEB did not run.
    """
    return {
        "dataset_revision": revision,
        "task_name": task_name(dataset),
        "mteb_version": None,
        "scores": {
            split: [_scores(means, relevance[split]) | {"main_score": means[MAIN], "hf_subset": "default", "languages": [LANGUAGE]}]
            for split, means in metrics.items()
            if MAIN in means and split in relevance
        },
        "evaluation_time": None,
        "kg_co2_emissions": None,
    }


def task_name(dataset: str) -> str:
    """`scifact` of beir:PATH/scifact, `beir/scifact` of irds:beir/scifact, `demo`."""
    spec = parse_dataset(dataset)
    return (spec.place.rstrip("/").rpartition("/")[2] if spec.kind in PATH_KINDS else spec.place) or spec.kind


def _scores(means: Mapping[str, float], relevance: int) -> dict[str, float]:
    matches = {name: match for name in means if (match := NAMED.fullmatch(name)) and (match[1] == "nDCG" or relevance == 1)}
    return {f"{NAMES[match[1]]}_at_{match[2]}": means[name] for name, match in matches.items()}
