"""The model that a revision stands for, and which sides cannot be split."""

import hashlib
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.explaining import sides
from flows.explaining import why as why_module
from flows.explaining.sides import Side, _best_model, refuse_made_dev
from flows.storage.cache import object_path
from tasks.core.errors import UserError


@pytest.mark.parametrize(
    ("means", "model", "note"),
    [
        (
            {"bm25": 0.9, "init": 0.5, "star": 0.75},
            "star",
            "HEAD: BM25 is the best on dev (nDCG@10 0.9000, star 0.7500), but is not trained, so star is explained; "
            "for BM25, name HEAD:bm25",
        ),
        ({"bm25": 0.7, "init": 0.5, "star": 0.75}, "star", ""),
        ({"bm25": 0.7}, "bm25", ""),
    ],
    ids=["better", "worse", "alone"],
)
def test_bm25_is_no_best_model(means: dict[str, float], model: str, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same whatever was trained, so a comparison of retrainings with it explains nothing."""
    monkeypatch.setattr(sides, "means_on_dev", lambda *_: means)
    assert _best_model("HEAD", {}, {"rounds": {"init": {}, "star": {}}}) == (model, note)


def pseudo_side(dev: str, *, setting: str | None, oid: str = "") -> Side:
    deps = [{"path": f"data/pseudo/{kind}/dev.parquet", "md5": dev} for kind in ("queries", "qrels")]
    stages = {"pseudo": {"outs": [{"path": "data/pseudo", "md5": oid}]}, "evaluate@a": {"deps": deps}}
    sections = {"queries": "pseudo", "pseudo": {"dev": setting}}
    return Side(f"side {dev}", "", "a", stages, sections, {}, {}, "nDCG@10", {})


def test_a_split_over_dev_queries_that_are_made_is_refused_unless_all_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made by the run of each side, and again by a run that measures a model, whose start encoder, a judge, is that model."""
    old, new = (pseudo_side(dev, setting="pseudo") for dev in "12")
    for pair, direct in (((old, new), True), ((old, old), False)):
        with pytest.raises(UserError, match=r"^side 1 and side .: found dev queries made from the documents .* set pseudo.dev=corpus$"):
            refuse_made_dev(*pair, direct=direct)
    refuse_made_dev(old, old, direct=True)

    def name_sides(first: Side, second: Side, *, direct: bool) -> None:
        named, split_up = {"old": first, "new": second}, SimpleNamespace(yardstick=SimpleNamespace(sections={}), factors=[])
        split_up.is_direct = lambda _: direct
        monkeypatch.setattr(why_module, "read_side", named.__getitem__)
        for name, value in (("make_plan", split_up), ("Bench", nullcontext()), ("Inbox", None)):
            monkeypatch.setattr(why_module, name, lambda *_, value=value, **__: value)
        monkeypatch.setattr(why_module.Work, "refuse_invalid", lambda _: None)
        monkeypatch.setattr(why_module.Work, "estimate", lambda _: pytest.fail("not refused before it"))

    monkeypatch.chdir(tmp_path)
    for pair, direct in (((old, new), True), ((old, old), False)):
        name_sides(*pair, direct=direct)
        with pytest.raises(UserError, match="found dev queries made"):
            why_module.why("old", "new", split=[], seeds=1, measure=None, dry_run=True, as_json=False)
    copied = [pseudo_side(dev, setting="corpus") for dev in "12"]
    refuse_made_dev(copied[0], copied[1], direct=False)
    plain = [replace(side, sections={"queries": "corpus", "pseudo": {"dev": "pseudo"}}) for side in (old, new)]
    refuse_made_dev(plain[0], plain[1], direct=False)


@pytest.mark.parametrize("origin", ["corpus", "pseudo"])
def test_without_pseudo_dev_the_stage_says_whether_it_made_dev(origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sides, "cache_folder", lambda: tmp_path)

    def put(content: object, suffix: str = "") -> str:
        data = json.dumps(content).encode()
        oid = hashlib.md5(data).hexdigest() + suffix
        path = object_path(tmp_path / "files/md5", oid)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return oid

    oid = put([{"md5": put({"pseudo": {"dev": origin}}), "relpath": "stats.json"}], ".dir")
    old, new = (pseudo_side(dev, setting=None, oid=oid) for dev in "12")
    if origin == "corpus":
        refuse_made_dev(old, new, direct=False)
    else:
        with pytest.raises(UserError, match="found dev queries made"):
            refuse_made_dev(old, new, direct=False)
