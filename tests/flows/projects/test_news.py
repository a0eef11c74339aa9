"""What is new between two versions, and which stages that concerns."""

import json

import pytest

from flows.pipeline.reasons import reasons
from flows.projects.news import changelog_news, entries, parameter_news, parameters
from flows.projects.record import Record, parse_record
from flows.projects.rerun import Again, parse_plan
from flows.repository.graph import Graph, Stage
from tasks.core.errors import UserError

OLD = """\
# Changelog

## Unreleased
- Old, on
  two lines.
- Moved.

Text between.

## 0.1.0
- First.
"""
NEW = OLD.replace("## Unreleased\n", "## Unreleased\n- New, on\n  three\n  lines.\n\n## 0.2.0\n- New, on\n  three\n  lines.\n").replace(
    "First", "1st"
)


def test_entries_of_a_changelog_are_whole_and_new_ones_are_told_once() -> None:
    assert entries(OLD) == ["Old, on two lines.", "Moved.", "First."]
    assert changelog_news(OLD, NEW) == ["New, on three lines.", "1st."]
    assert changelog_news("", OLD) == entries(OLD)
    assert changelog_news(OLD, OLD) == []


def schema(*, lr: float, more: bool) -> dict[str, object]:
    fields: dict[str, object] = {
        "lr": {"default": lr, "description": "peak"},
        "deep": {"anyOf": [{"$ref": "#/$defs/Deep"}, {"type": "null"}]},
    }
    deep = {"properties": {"rank": {"description": "of it"}} | ({"alpha": {"default": None, "description": ""}} if more else {})}
    sections: dict[str, object] = {"rounds": {"additionalProperties": {"$ref": "#/$defs/Round"}}}
    sections |= (
        {"extra": {"default": {}, "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Deep"}, {"type": "string"}]}}}
        if more
        else {"old": {}}
    )
    return {"properties": sections, "$defs": {"Round": {"properties": fields}, "Deep": deep}}


def test_parameters_are_found_through_sections_and_records() -> None:
    assert [parameter.key for parameter in parameters(schema(lr=1, more=False))] == [
        "rounds",
        "rounds.NAME.lr",
        "rounds.NAME.deep",
        "rounds.NAME.deep.rank",
        "old",
    ]
    news = parameter_news(schema(lr=1, more=False), schema(lr=2, more=True))
    assert [str(parameter) for parameter in news.new] == ["rounds.NAME.deep.alpha (default null)", "extra (default {})"], (
        "not what is in a new section"
    )
    assert news.gone == ("old",)
    assert [(before.default, after.default) for before, after in news.changed] == [(1, 2)]
    unchanged = parameter_news(schema(lr=1, more=True), schema(lr=1, more=True))
    assert (unchanged.new, unchanged.gone, unchanged.changed) == ((), (), ())


def test_reasons_are_what_is_new_and_not_what_is_only_elsewhere() -> None:
    from pathlib import Path

    outs = {"prepare": "data/corpus", "train@a": "data/encoders/a", "evaluate@a": "data/metrics/a.json", "report": "data/report"}
    graph = Graph({name: Stage(name, (), (Path.cwd() / out,)) for name, out in outs.items()})
    status = {
        "prepare": [{"changed deps": {"data/code.json": {"prepare": "modified"}, "data/source.json": {"dataset.digest": "modified"}}}],
        "train@a": [
            {"changed deps": {"data/corpus": "deleted", "data/params.json": {"rounds.a": "modified", "text": "new"}}},
            {"changed outs": {"data/encoders/a": "deleted"}},
            "changed command",
        ],
        "evaluate@a": [{"changed outs": {"data/metrics/a.json": "not in cache"}}],
        "evaluate_bm25": [{"changed outs": {"data/metrics/bm25.json": "modified"}}],
        "report": [
            {"changed deps": {"data/metrics": "deleted", "data/corpus/qrels": "modified"}},
            {"changed outs": {"data/report": "deleted"}},
        ],
    }
    assert reasons(status, graph) == {
        "prepare": ["its code", "source dataset"],
        "train@a": ["rounds.a", "text (new)", "its command in dvc.yaml"],
        "evaluate@a": ["data/metrics/a.json is not in the cache"],
        "evaluate_bm25": ["data/metrics/bm25.json differs from dvc.lock"],
    }


def test_stages_behind_one_that_runs_may_run() -> None:
    stages = [
        {"stage": "a", "why": [], "reads": []},
        {"stage": "b", "why": ["its code"], "reads": ["a"]},
        {"stage": "c", "why": [], "reads": ["a", "b"]},
        {"stage": "d", "why": ["its code"], "reads": ["c"]},
        {"stage": "e", "why": [], "reads": ["a"]},
    ]
    plan = parse_plan(stages)
    assert (plan.because, plan.after) == ({"b": ["its code"], "d": ["its code"]}, ("c",))
    assert plan.lines({"b": 60, "c": 30, "e": 1000}) == [
        "2 stages run again, 1 may; at most 1m30s by recorded times (not recorded: 1 stage):",
        "  b, d: its code",
        "  c: only if a result above changes",
    ]
    assert Again({}, ()).lines({}) == ["no stage runs again"]


def test_a_record_is_read_back_and_an_invalid_one_is_refused() -> None:
    record = Record('a "quoted"\\place\\🔎', "0.1.0", "ab" * 20)
    assert parse_record(record.text) == record
    assert parse_record(None) is None
    for text in ("source = ", 'source = "x"\n', json.dumps({"source": 1})):
        with pytest.raises(UserError, match=r"^retemper.toml: invalid \(.*\), expected source, version, and commit"):
            parse_record(text)
