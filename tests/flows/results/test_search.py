"""Which index serves a model."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.results import search
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml


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
    command = commands[0]
    position = command.index("--model")
    assert command[position + 1 : position + 4] == ["star_adore", "data/encoders/star_adore", "data/indexes/star"]
    assert "--json" not in command
    assert search.search("words", 3, "star_adore", as_json=True) == 0
    assert commands[1] == [*command, "--json"]
    with pytest.raises(UserError, match="no index of model nobody, expected one of star_adore"):
        search.search("words", 3, "nobody")
    for name in ("", ".", "../indexes/star_adore"):
        with pytest.raises(UserError, match=r"no index of model .*, expected one of star_adore"):
            search.search("words", 3, name)


def test_a_fusion_is_searched_with_all_that_it_is_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[3] / "params.yaml", tmp_path)
    sections = read_yaml(tmp_path / "params.yaml")
    fuse = {
        "hybrid": {"first": "bm25", "second": "star_adore"},
        "three": {"first": "hybrid", "second": "star", "method": "rrf"},
        "new": {"first": "bm25", "second": "star"},
        "again": {"first": "bm25", "second": "over"},
    }
    rescore = {"over": {"run": "bm25", "round": "star", "encoder": "star"}}
    (tmp_path / "params.yaml").write_text(json.dumps(sections | {"fuse": fuse, "rescore": rescore}))
    for name, index_json in {"star": None, "star_adore": '{"round": "star"}'}.items():
        index = tmp_path / "data/indexes" / name
        index.mkdir(parents=True)
        (index / ("index.json" if index_json else "index.faiss")).write_text(index_json or "")
    for name in ("hybrid", "three", "again"):
        (tmp_path / "data/runs" / name).mkdir(parents=True)
        (tmp_path / f"data/runs/{name}/fusion.json").write_text(json.dumps({"method": "linear"} | fuse[name]))
    commands: list[list[str]] = []
    environments: list[dict[str, str]] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> SimpleNamespace:
        commands.append(command)
        environments.append(env)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(search.subprocess, "run", run)
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1:strict")
    assert search.search("words", 3, "three") == 0
    assert environments[0]["PYTHONIOENCODING"] == "latin-1:replace", "its process prints what an encoding lacks as `?`, too"
    systems = commands[0][3 : commands[0].index("--documents")]
    assert " ".join(systems) == (
        "--fusion hybrid data/runs/hybrid/fusion.json --fusion three data/runs/three/fusion.json "
        "--model star_adore data/encoders/star_adore data/indexes/star --model star data/encoders/star data/indexes/star "
        "--depth 1000 --lexical-depth 1000 --lexical data/bm25"
    )
    lock = {"stages": {"retrieve@star": {"params": {"data/params.json": {"retrieve": {"depth": 200}}}}}}
    (tmp_path / "dvc.lock").write_text(json.dumps(lock))
    assert search.search("words", 3, "three") == 0
    assert commands[1][commands[1].index("--depth") + 1] == "200", "of the runs that were fused, not of an edited params.yaml"
    (tmp_path / "dvc.lock").unlink()
    for model, message in {
        "new": "data/runs/new/fusion.json: not found: fuse.new has not run yet; run retemper run",
        "again": "fuse.again: is made from over, which reorders a run and cannot be searched for a new query",
        "over": "model over only reorders what others find, and cannot .*; expected one of star, star_adore, hybrid, three, new$",
        "bm25": "model bm25 is searched only as a part of a fusion, and shown by retemper browse; expected one of star, star_adore",
        "starr": "data/indexes/starr: no index of model starr, did you mean star$",
    }.items():
        with pytest.raises(UserError, match=message):
            search.search("words", 3, model)
    (tmp_path / "data/runs/hybrid/fusion.json").write_text(json.dumps(fuse["hybrid"] | {"method": "rrf"}))
    with pytest.raises(UserError, match=r"found method rrf, expected linear as in fuse\.hybrid of params\.yaml; run retemper run"):
        search.search("words", 3, "three")
