"""Which index serves a model."""

from pathlib import Path

import pytest

from flows.results import search
from tasks.core.stage.errors import UserError


def test_a_query_tower_is_served_by_its_own_index_or_its_rounds(tmp_path: Path) -> None:
    for name, files in {"star": ["index.faiss"], "over_pq": ["index.faiss", "index.json"], "over_flat": ["index.json"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text('{"round": "star", "factory": "Flat", "centroids": false}')
    assert search.served_index("star", tmp_path) == tmp_path / "star"
    assert search.served_index("over_pq", tmp_path) == tmp_path / "over_pq"
    assert search.served_index("over_flat", tmp_path) == tmp_path / "star"


def test_the_command_pairs_the_query_tower_with_its_rounds_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "data" / "indexes" / "star_adore"
    index.mkdir(parents=True)
    (index / "index.json").write_text('{"round": "star"}')
    monkeypatch.chdir(tmp_path)
    commands: list[list[str]] = []

    class Done:
        returncode = 0

    monkeypatch.setattr(search.subprocess, "run", lambda command, **_: commands.append(command) or Done())
    assert search.search("words", 3, "star_adore") == 0
    said = commands[0]
    assert said[said.index("--encoder") + 1] == "data/encoders/star_adore" and said[said.index("--index") + 1] == "data/indexes/star"
    with pytest.raises(UserError, match="no index of model nobody, expected one of star_adore"):
        search.search("words", 3, "nobody")
