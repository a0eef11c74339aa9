"""Which measures may choose systems."""

from typing import Any

import pytest

from flows.parameters.checks import check
from tasks.core.errors import UserError


def test_what_dvc_yaml_reads_for_a_fusion_is_written(full_params: dict[str, Any]) -> None:
    full_params |= {"fuse": {"hybrid": {"first": "bm25", "second": "star", "method": "linear"}}, "report": {"alpha": 0.01}}
    with pytest.raises(UserError, match=r"^params.yaml: report.metric: missing, and stage fuse reads it; add metric: nDCG@10 to report"):
        check(full_params)
    check(full_params | {"fuse": {}})


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("Hole@10", "report.metric: found 'Hole@10', which counts mistakes, expected a measure that is higher for a better system"),
        ("NumRel", "report.metric: found 'NumRel', a count that does not say how good a system is, expected a measure such as"),
        ("NumRet(rel=1)", "report.metric: found 'NumRet(rel=1)', a count that does not say how good a system is"),
        ("Coverage@20", "report.metric: found 'Coverage@20', which reads documents, expected a measure of the runs alone, by which fuse."),
    ],
)
def test_what_chooses_systems_is_higher_for_better_ones(full_params: dict[str, Any], metric: str, message: str) -> None:
    full_params["evaluate"]["measures"] = ["nDCG@10", metric]
    full_params["report"]["metric"] = metric
    full_params["fuse"] = {"hybrid": {"first": "bm25", "second": "star", "method": "linear"}}
    with pytest.raises(UserError) as refusal:
        check(full_params)
    assert message in str(refusal.value)
    if metric == "Coverage@20":
        full_params["fuse"]["hybrid"]["weight"] = 0.5
        check(full_params)
