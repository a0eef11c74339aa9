"""MTEB's form of a result, against the fields that mteb 2.1's TaskResult validates, written out."""

import json

import pytest

from tasks.core.metrics.mteb import task_name, task_result

MEANS = {"nDCG@10": 0.5, "RR@10": 0.4, "R@100": 0.9, "AP": 0.3, "AP@10": 0.29, "P@3": 0.2, "Hole@10": 0.1, "nDCG(judged_only=True)@10": 0.6}


def test_a_task_result() -> None:
    assert task_result("beir:/data/scifact/", "abc", {"test": MEANS, "dev": {"AP": 0.1}}, {"dev": 1, "test": 1}) == {
        "dataset_revision": "abc",
        "task_name": "scifact",
        "mteb_version": None,
        "evaluation_time": None,
        "kg_co2_emissions": None,
        "scores": {
            "test": [
                {
                    "ndcg_at_10": 0.5,
                    "mrr_at_10": 0.4,
                    "recall_at_100": 0.9,
                    "map_at_10": 0.29,
                    "precision_at_3": 0.2,
                    "main_score": 0.5,
                    "hf_subset": "default",
                    "languages": ["und-Zyyy"],
                }
            ]
        },
    }


def test_measures_with_another_relevant_grade_are_not_mtebs() -> None:
    (scores,) = task_result("demo", "", {"test": MEANS}, {"test": 2})["scores"]["test"]
    assert sorted(scores) == ["hf_subset", "languages", "main_score", "ndcg_at_10"]


def test_queries_of_a_click_log_are_no_split_of_a_task() -> None:
    assert task_result("demo", "", {"dev": MEANS, "clicks": MEANS}, {"dev": 1, "test": 1})["scores"].keys() == {"dev"}


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("demo", "demo"),
        ("beir:a/b", "b"),
        ("irds:beir/scifact/test", "beir/scifact/test"),
        ("msmarco:/x/doc/", "doc"),
        ("pairs:a/f.csv#query=A/B", "f.csv"),
    ],
)
def test_names_of_tasks(dataset: str, name: str) -> None:
    assert task_name(dataset) == name


def test_mteb_itself_reads_it_where_it_is_installed() -> None:
    results = pytest.importorskip("mteb.results.task_result")
    record = task_result("demo", "abc", {"test": MEANS}, {"test": 1})
    result = results.TaskResult.from_dict(json.loads(json.dumps(record)))
    assert result.get_score() == 0.5
