"""Names of entries in params.yaml, and cycles among them."""

import itertools
from pathlib import Path

import pytest

from flows.parameters.checks import check_file, check_names, find_cycle
from tasks.core.stage.errors import UserError


def test_a_name_in_two_sections_of_one_namespace() -> None:
    with pytest.raises(UserError, match=r"^p: rounds.costa: the name costa is taken by pretrain.costa"):
        check_names({"pretrain": {"costa": {}}, "rounds": {"costa": {}}}, "p")
    with pytest.raises(UserError, match=r"^p: mix.warmup: the name warmup is taken by mine.warmup"):
        check_names({"rounds": {"warmup": {}}, "mine": {"warmup": {}}, "mix": {"warmup": {}}}, "p")


def test_a_name_twice_in_one_section(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("rounds:\n  a: {}\n  a: {}\n")
    with pytest.raises(UserError, match=rf"^{file}:\d+: not YAML"):
        check_file(file)


def test_cycles_are_found_exactly_where_there_are_some() -> None:
    """Every graph of three names with up to two edges each, against the powers of its adjacency matrix."""
    names = "abc"
    choices = [list(edges) for size in range(3) for edges in itertools.combinations(names, size)]
    for needs in itertools.product(choices, repeat=3):
        graph = dict(zip(names, needs, strict=True))
        reach = {(a, b) for a in names for b in graph[a]}
        for _ in names:
            reach |= {(a, d) for a, b in reach for c, d in reach if b == c}
        cyclic = any((name, name) in reach for name in names)
        path = find_cycle(graph)
        assert bool(path) == cyclic, graph
        if path:
            assert path[0] == path[-1]
            assert all(second in graph[first] for first, second in itertools.pairwise(path))
