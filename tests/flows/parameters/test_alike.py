"""What an unknown key may have meant."""

from pathlib import Path

import pytest

from flows.parameters import alike, checks
from tasks.core.errors import Invalid
from tasks.core.params.sections import read_yaml
from tasks.params import Parameters

PARAMS = Path(__file__).resolve().parents[3] / "params.yaml"


@pytest.mark.parametrize(
    ("place", "key", "suggestion"),
    [
        (("rounds", "warmup"), "lrr", "lr"),
        (("rounds", "warmup"), "learning_rate", "lr"),
        (("rounds", "warmup"), "per-device-train-batch-size", "batch_queries"),
        (("tokenize",), "document_lenght", "document_length"),
        (("tokenize",), "q_max_len", "query_length"),
        ((), "round", "rounds"),
    ],
)
def test_a_key_that_is_alike_is_suggested(place: tuple[str, ...], key: str, suggestion: str) -> None:
    sections = read_yaml(PARAMS)
    inner = sections
    for name in place:
        inner = inner[name]
    inner[key] = {} if not place else 1
    with pytest.raises(Invalid, match=rf"^params\.yaml: {'.'.join([*place, key])}: unknown key; did you mean {suggestion}$") as refusal:
        checks.check(sections)
    assert refusal.value.problem.remedy == f"use {suggestion}"


def test_nothing_is_suggested_where_nothing_is_alike() -> None:
    assert alike.closest_key("klingon", ["lr", "epochs"]) == ""
    assert alike.closest_key("learning_rate", ["k1", "b"]) == "", "a section that has no lr"
    with pytest.raises(Invalid, match=r"found 'fast'"), alike.suggesting():
        raise Invalid("lr: found 'fast'", where="lr")


def test_an_unknown_name_is_answered_with_the_one_that_is_alike_or_with_all() -> None:
    assert alike.expected_names("hybird", ["star", "hybrid"]) == "did you mean hybrid"
    assert alike.expected_names("moon", ["star", "hybrid"]) == "expected one of star, hybrid"


def test_every_suggestion_for_another_tools_key_is_a_key() -> None:
    schema = str(Parameters.model_json_schema())
    assert all(f"'{ours}'" in schema for ours in alike.ELSEWHERE.values())
