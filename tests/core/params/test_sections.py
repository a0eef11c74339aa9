"""What params.yaml may contain, and the error line for anything else."""

from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.params.runtime import Runtime
from tasks.core.params.sections import PARAMETERS, Params, load, validate
from tasks.core.text.document import Text
from tasks.evaluate.params import Evaluate
from tasks.train.params import Round


def round_of(tmp_path: Path, text: str) -> Round:
    path = tmp_path / "params.yaml"
    path.write_text(f"rounds:\n  star: {text}\n", encoding="utf-8")
    return load(Round, "rounds.star", path)


def test_numbers_are_read_as_in_yaml_1_2(tmp_path: Path) -> None:
    assert round_of(tmp_path, "{init: base, negatives: bm25, lr: 1e-05}").lr == 1e-5


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{init: base}", r"rounds\.star\.negatives: missing"),
        ("{init: base, negatives: bm25, lrr: 1}", r"rounds\.star\.lrr: unknown key, expected one of init, negatives,"),
        ("{init: base, negatives: bm25, lr: fast}", r"rounds\.star\.lr: found 'fast'; input should be a valid number"),
        ("{init: base, negatives: bm25, lr: 0}", r"rounds\.star\.lr: found 0; input should be greater than 0"),
        ("{init: base, negatives: bm25, lr: .nan}", r"rounds\.star\.lr: found nan"),
        ("{init: base, negatives: bm25, loss: mse}", r"rounds\.star\.loss: found 'mse'; input should be 'nll', "),
        ("{init: base, negatives: bm25, window: [20, 3]}", r"rounds\.star.*1 <= first <= last"),
        ("{init: base, negatives: bm25, alpha: 0.1}", r"rounds\.star.*alpha weights ranknet's in-batch pairs"),
        ("{init: base, negatives: bm25, hard_negatives: 0, in_batch: false}", r"rounds\.star.*so there are no negatives"),
        ("{init: base, negatives: bm25, lora: {r: 8}}", r"rounds\.star\.lora\.r: unknown key, expected one of rank, alpha, drop"),
        ("{init: base, negatives: bm25, lora: 8}", r"rounds\.star\.lora: found 8; expected a mapping with rank, alpha, drop"),
        ("{init: base, negatives: bm25, lora: {targets: []}}", r"rounds\.star\.lora\.targets: found \[\]; tuple should have at least 1"),
        ("3", r"rounds\.star: found 3, expected a mapping with init, negatives"),
    ],
)
def test_invalid_values_are_refused_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        round_of(tmp_path, text)
    assert "\n" not in str(error.value)


def test_an_unknown_nested_key_lists_the_valid_ones() -> None:
    class Sections(Params):
        rounds: dict[str, Round]
        text: Text

    valid = {"init": "base", "negatives": "bm25"}
    with pytest.raises(UserError, match=r"^p: rounds\.star\.lrr: unknown key, expected one of init, negatives, width, steps"):
        validate(Sections, {"rounds": {"star": {**valid, "lrr": 1}}, "text": {}}, "p")
    with pytest.raises(UserError, match=r"^p: text\.title: unknown key, expected one of titles, separator"):
        validate(Sections, {"rounds": {"star": valid}, "text": {"title": True}}, "p")
    with pytest.raises(UserError, match=r"^p: txt: unknown key, expected one of rounds, text"):
        validate(Sections, {"rounds": {"star": valid}, "text": {}, "txt": {}}, "p")


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    with pytest.raises(UserError, match="not found"):
        load(Round, "rounds.star", path)
    path.write_text("rounds:\n  star: {init: base\n")
    with pytest.raises(UserError, match=r"params\.yaml:\d+: not YAML"):
        load(Round, "rounds.star", path)
    path.write_bytes(b"rounds: \xff\n")
    with pytest.raises(UserError, match="not UTF-8 at byte 8"):
        load(Round, "rounds.star", path)
    for text in ("a: b\x07\n", "a: 2024-13-45\n", "a: !!int x\n"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"params\.yaml:?\d*: not YAML") as error:
            load(Round, "rounds.star", path)
        assert "\n" not in str(error.value)
    path.write_text("- a\n")
    with pytest.raises(UserError, match="found a list, expected a mapping"):
        load(Round, "rounds.star", path)
    path.write_text("rounds: {}\n")
    with pytest.raises(UserError, match=r"no section rounds\.star"):
        load(Round, "rounds.star", path)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("graph_tokens", "x", "graph_tokens: found 'x'; input should be a valid integer or 'auto'"),
        ("graph_tokens", -1, "graph_tokens: found -1; input should be greater than or equal to 0 or 'auto'"),
        ("workers", [2], "workers: found [2]; input should be a valid integer or 'all'"),
        ("slots", {"cpu": 2}, "slots: found a mapping; input should be a valid integer"),
        ("slots", list(range(1000)), f"slots: found {str(list(range(1000)))[:197]}...; input should be a valid integer"),
    ],
)
def test_a_value_of_one_of_several_types_is_refused_by_its_key_alone(key: str, value: object, line: str) -> None:
    with pytest.raises(UserError) as error:
        validate(Runtime, {key: value}, "runtime.yaml")
    assert str(error.value) == f"runtime.yaml: {line}"


def test_a_key_that_is_none_of_the_splits_is_refused_by_its_name() -> None:
    with pytest.raises(UserError) as error:
        validate(Evaluate, {"relevance": {"train": 1}}, "p", section="evaluate")
    assert str(error.value) == "p: evaluate.relevance.train: found 'train'; input should be 'dev' or 'test'"


def test_keys_that_contradict_each_other_are_told_without_the_section() -> None:
    with pytest.raises(UserError) as error:
        validate(Round, {"init": "base", "negatives": "bm25", "window": [20, 3]}, "p", section="rounds.star")
    assert str(error.value).startswith("p: rounds.star: window (20, 3): ")
    with pytest.raises(UserError) as error:
        validate(Round, "x" * 1000, "p", section="rounds.star")
    assert str(error.value).startswith(f"p: rounds.star: found '{'x' * 196}..., expected a mapping with init")


def test_a_stage_of_dvc_reads_no_other_parameters_than_dvc_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("rounds: {star: {init: base, negatives: bm25}}\n")
    monkeypatch.setenv(PARAMETERS, str(path))
    assert load(Round, "rounds.star").init == "base"
    monkeypatch.setenv("DVC_STAGE", "train@star")
    with pytest.raises(UserError) as error:
        load(Round, "rounds.star")
    message = f"found {path}, but DVC records that train@star reads data/params.json; unset RETEMPER_PARAMS, and run again"
    assert str(error.value) == f"RETEMPER_PARAMS: {message}"
    assert load(Round, "rounds.star", path).init == "base", "one that the caller names"
