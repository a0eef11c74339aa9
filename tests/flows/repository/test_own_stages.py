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
    assert list(stages_in_graph(lock, GRAPH, "rounds: {star: {}}\nown: [a]\n")) == ["train@star", "probe@star-dev"]
