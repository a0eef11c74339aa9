"""Which systems the page is opened with, and what is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.results import browse
from tasks.core.errors import UserError
from tasks.search.browse import arguments

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def browse_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would run, in a project with a hybrid of bm25 and star_adore that is the best on dev."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[3] / "params.yaml", tmp_path)
    for name, value in {"bm25": 0.6, "star": 0.7, "star_adore": 0.8, "hybrid": 0.9}.items():
        Path("data/metrics").mkdir(parents=True, exist_ok=True)
        Path(f"data/metrics/{name}.json").write_text(json.dumps({"dev": {"nDCG@10": value}}))
    for folder in ("data/indexes/star", "data/indexes/star_adore", "data/bm25", "data/runs/hybrid"):
        Path(folder).mkdir(parents=True)
    Path("data/indexes/star_adore/index.json").write_text('{"round": "star"}')
    Path("data/runs/hybrid/fusion.json").write_text('{"first": "bm25", "second": "star_adore", "method": "linear"}')
    commands: list[list[str]] = []
    monkeypatch.setattr(browse.subprocess, "run", lambda command, **_: commands.append(command) or SimpleNamespace(returncode=0))
    return commands


def test_the_best_on_dev_against_bm25(browse_commands: list[list[str]]) -> None:
    assert browse.browse(None, None, split="dev", port=0, batch=Path("judged")) == 0
    parsed = arguments().parse_args(browse_commands[0][3:])
    assert browse_commands[0][2] == "tasks.search.browse"
    assert parsed.model == [["star_adore", "data/encoders/star_adore", "data/indexes/star"]]
    assert parsed.fusion == [["hybrid", "data/runs/hybrid/fusion.json"]]
    assert (parsed.chosen, parsed.metric, parsed.corpus) == (["hybrid", "bm25"], "nDCG@10", Path("data/corpus"))


def test_a_model_in_both_systems_is_opened_once(browse_commands: list[list[str]]) -> None:
    browse.browse("hybrid", "star_adore", split="dev", port=0, batch=Path("judged"))
    parsed = arguments().parse_args(browse_commands[0][3:])
    assert parsed.model == [["star_adore", "data/encoders/star_adore", "data/indexes/star"]]
    assert (parsed.fusion, parsed.chosen) == ([["hybrid", "data/runs/hybrid/fusion.json"]], ["hybrid", "star_adore"])


def test_bm25_against_the_best_other_system(browse_commands: list[list[str]]) -> None:
    browse.browse("bm25", None, split="test", port=7, batch=Path("judged"))
    parsed = arguments().parse_args(browse_commands[0][3:])
    assert (parsed.chosen, parsed.split, parsed.port) == (["bm25", "hybrid"], "test", 7)


def test_two_named_systems(browse_commands: list[list[str]]) -> None:
    browse.browse("star", "star_adore", split="dev", port=0, batch=Path("judged"))
    parsed = arguments().parse_args(browse_commands[0][3:])
    assert [model[0] for model in parsed.model] == ["star", "star_adore"]
    assert parsed.fusion == []


def test_ctrl_c_ends_it_with_a_line_that_says_so(
    browse_commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(browse.subprocess, "run", interrupt)
    assert browse.browse(None, None, split="dev", port=0, batch=Path("judged")) == 0
    assert browse_commands == []
    assert tuple(capsys.readouterr()) == ("", "\nretemper: stopped\n")


def test_what_cannot_be_searched_is_refused(browse_commands: list[list[str]]) -> None:
    with pytest.raises(UserError, match="no index of model nobody, expected one of star, star_adore"):
        browse.browse("nobody", None, split="dev", port=0, batch=Path("judged"))
    shutil.rmtree("data/indexes")
    with pytest.raises(UserError, match="no index of model star_adore, nor of any other; run retemper run"):
        browse.browse("hybrid", "bm25", split="dev", port=0, batch=Path("judged"))
    assert browse_commands == []


@pytest.mark.usefixtures("browse_commands")
def test_a_project_without_a_run_is_told_so() -> None:
    shutil.rmtree("data/metrics")
    with pytest.raises(UserError, match="no model with an index and nDCG@10 on dev; run retemper run first, on data with dev queries"):
        browse.browse(None, None, split="dev", port=0, batch=Path("judged"))


def test_without_bm25_nothing_is_marked(browse_commands: list[list[str]]) -> None:
    Path("data/bm25").rmdir()
    with pytest.raises(UserError, match="data/bm25: no BM25 index"):
        browse.browse("star", "star_adore", split="dev", port=0, batch=Path("judged"))
    assert browse_commands == []


@pytest.mark.parametrize(
    ("out", "systems"),
    [("data/indexes/star", ("bm25", "hybrid")), ("data/encoders/star_adore", (None, None)), ("data/bm25", ("star", "star"))],
)
def test_an_artifact_that_lacks_bytes_is_not_opened(browse_commands: list[list[str]], out: str, systems: tuple[str | None, ...]) -> None:
    """faiss opens an index that lacks its last bytes, and finds other documents."""
    Path("dvc.lock").write_text(json.dumps({"stages": {"made": {"outs": [{"path": out, "md5": "a.dir", "size": 1000}]}}}))
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / "file").write_bytes(b"x" * 1000)
    first, second = systems
    browse.browse(first, second, split="dev", port=0, batch=Path("judged"))
    (Path(out) / "file").write_bytes(b"x" * 993)
    with pytest.raises(UserError, match=rf"^{out}: found 993 bytes, expected the 1,000 of dvc\.lock"):
        browse.browse(first, second, split="dev", port=0, batch=Path("judged"))
    assert len(browse_commands) == 1


def test_bm25_of_another_generation_is_refused(browse_commands: list[list[str]]) -> None:
    corpus = {"prepare": {"outs": [{"path": "data/corpus", "md5": "b.dir"}]}}
    stale = {"bm25": {"deps": [{"path": "data/corpus", "md5": "a.dir"}], "outs": [{"path": "data/bm25", "md5": "c.dir"}]}}
    Path("dvc.lock").write_text(json.dumps({"stages": corpus | stale}))
    with pytest.raises(UserError, match=r"^dvc\.lock: model bm25: bm25 was made from another data/corpus"):
        browse.browse("bm25", "star", split="dev", port=0, batch=Path("judged"))
    assert browse_commands == []
