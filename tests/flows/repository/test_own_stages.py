"""Stages that a team has added to dvc.yaml in any of DVC's forms belong to the graph."""

from flows.repository.lock import stages_in_graph

GRAPH = """stages:
  train: {foreach: "${rounds}", do: {cmd: x}}
  own: {foreach: "${own.names}", do: {cmd: x}}
  probe: {matrix: {model: [star], split: [dev, test]}, cmd: x}
"""


def test_stages_of_a_matrix_and_of_a_dotted_key_are_kept() -> None:
    lock: dict[str, dict[str, str]] = {name: {} for name in ("train@star", "train@gone", "own@a", "own@gone", "probe@star-dev", "old@a")}
    found = stages_in_graph(lock, GRAPH, "rounds: {star: {}}\nown: {names: [a]}\n")
    assert list(found) == ["train@star", "own@a", "probe@star-dev"]
    assert list(stages_in_graph({"train@star": {}, "train@gone": {}}, GRAPH, "rounds: {}\n")) == []


def test_stages_whose_keys_are_unknown_are_kept() -> None:
    """DVC has more forms than are resolved here, and gc deletes what belongs to no stage."""
    graph = """vars: [mine.yaml, {own: {names: [a, b]}}]
stages:
  one: {foreach: [{x: 1}, {x: 2}], do: {cmd: x}}
  two: {foreach: "${own.names}", do: {cmd: x}}
  three: {foreach: [true, false], do: {cmd: x}}
  four: {foreach: "${mine}", do: {cmd: x}}
  five: {foreach: ["${name}", b], do: {cmd: x}}
  six: {foreach: {k: 1, 7: 2}, do: {cmd: x}}
  plain: {cmd: x}
"""
    kept = ["one@0", "two@a", "three@true", "four@k", "five@c", "six@k", "six@7", "plain"]
    lock: dict[str, dict[str, str]] = {name: {} for name in (*kept, "six@gone", "plain@a", "gone@a", "gone")}
    assert list(stages_in_graph(lock, graph, "name: c\n")) == kept
