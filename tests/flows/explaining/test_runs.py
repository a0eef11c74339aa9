"""Runs of configurations that `why` and `bisect` make up."""

from pathlib import Path
from typing import Any

import pytest

from flows.explaining import runs
from flows.explaining.runs import Bench, Configuration, refuse_unmeasured
from flows.process.processes import Processes
from tasks.core.stage.errors import UserError


def test_a_configuration_need_not_have_the_systems_that_its_report_names(
    full_params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the entries of one model alone."""
    monkeypatch.setattr(runs, "make_worktree", lambda *_: tmp_path)
    full_params["failures"] = {"model": "left_out"}
    full_params["report"]["baselines"] = ["bm25", "left_out"]
    wrong = full_params | {"queries": "mine"}
    asked = {name: Configuration("", sections, {}, "star") for name, sections in (("fit", full_params), ("unfit", wrong))}
    found = Bench(tmp_path, "nDCG@10", Processes(), show=lambda *_: None).refusals(asked)
    assert found == {"unfit": "params.yaml: queries: found 'mine'; input should be 'corpus' or 'pseudo'"}


def test_bm25_is_made_from_no_round(full_params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`why` leaves its side no entry of rounds, and params.yaml must have one."""
    monkeypatch.setattr(runs, "make_worktree", lambda *_: tmp_path)
    entries = dict.fromkeys(("encoders", "pretrain", "rounds", "mine", "mix", "rerankers", "teacher", "rerank", "rescore", "adore", "fuse"))
    sections = full_params | {section: {} for section in entries} | {"study": {}, "analyses": {}}
    asked = {"bm25": Configuration("", sections, {}, "bm25"), "unfit": Configuration("", sections | {"queries": "mine"}, {}, "bm25")}
    found = Bench(tmp_path, "nDCG@10", Processes(), show=lambda *_: None).refusals(asked)
    assert found == {"unfit": "params.yaml: queries: found 'mine'; input should be 'corpus' or 'pseudo'"}


def test_a_measure_that_no_run_computes_is_refused() -> None:
    refuse_unmeasured("AP", {"evaluate": {}})
    refuse_unmeasured("P@5", {"evaluate": {"measures": ["RR@10", "P@5"]}})
    with pytest.raises(UserError, match=r"--measure: found AP, expected one of evaluate\.measures: RR@10, P@5"):
        refuse_unmeasured("AP", {"evaluate": {"measures": ["RR@10", "P@5"]}})
