"""Names of entries in params.yaml."""

from pathlib import Path

import pytest

from flows.parameters.checks import check_file, check_names, check_references
from tasks.core.errors import UserError


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


def test_pretraining_starts_from_one_tower() -> None:
    """A trained entry of adore has a query tower of its own."""
    rounds = {"star": {"init": "base", "negatives": "none"}}
    tower = {"round": "star", "negatives": "none"}
    sections = {"rounds": rounds, "adore": {"tower": tower}, "pretrain": {"costa": {"init": "tower"}}}
    with pytest.raises(UserError, match=r"^p: pretrain.costa.init: found 'tower', expected one of base, star$"):
        check_references(sections, "p")
    check_references(sections | {"adore": {"tower": tower | {"steps": 0}}}, "p")
    rounds |= {"after": {"init": "tower", "negatives": "none"}, "later": {"init": "after", "negatives": "none"}}
    with pytest.raises(UserError, match=r"^p: pretrain.costa.init: found 'later', expected one of base, star$"):
        check_references(sections | {"pretrain": {"costa": {"init": "later"}}}, "p")
