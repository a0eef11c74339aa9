"""What an earlier graph made is deleted; what no stage made is kept."""

import json
from pathlib import Path

import pytest

from flows.repository import leftovers


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("metrics/a.json", "metrics/b.json", "encoders/a/model", "encoders/b/model", "corpus/documents", "elsewhere/b.json"):
        Path("data", name).parent.mkdir(parents=True, exist_ok=True)
        Path("data", name).write_text(name)


def outs(*names: str) -> list[Path]:
    return [Path.cwd() / "data" / name for name in ("corpus", *names)]


def files() -> set[str]:
    return {path.relative_to("data").as_posix() for path in Path("data").rglob("*") if path.is_file()}


def test_outs_of_a_removed_round_go_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    paths = outs("metrics/a.json", "metrics/b.json", "encoders/a", "encoders/b")
    warnings: list[str] = []
    assert leftovers.remove(paths, warnings.append) == []
    assert set(json.loads(Path(".retemper/outs.json").read_text())) == {path.relative_to(Path.cwd()).as_posix() for path in paths}
    Path("data/encoders/.b.partial").mkdir()
    Path("data/encoders/.b.partial/half").write_text("half")
    Path("data/encoders/.gitignore").write_text("/a")
    deleted = leftovers.remove(outs("metrics/a.json", "encoders/a"), warnings.append)
    assert {path.as_posix() for path in deleted} == {"data/metrics/b.json", "data/encoders/b", "data/encoders/.b.partial"}
    assert files() == {"metrics/a.json", "encoders/a/model", "encoders/.gitignore", "corpus/documents", "elsewhere/b.json"}
    assert warnings == []
    assert capsys.readouterr().out == ""


def test_half_written_files_of_a_killed_stage_are_removed() -> None:
    Path("data/encoders/.a.partial").mkdir()
    Path("data/encoders/.a.partial/half").write_text("half")
    Path("data/metrics/.a.json.partial").write_text("half")
    Path("data/encoders/.somebody.partial").write_text("not an out's")
    before = files() - {"encoders/.a.partial/half", "metrics/.a.json.partial"}
    leftovers.remove_unfinished(outs("metrics/a.json", "encoders/a", "encoders/b"), Path(".dvc/cache"))
    assert files() == before


def test_temporary_files_of_a_killed_dvc_are_removed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """They would count as part of data/metrics, which the report reads (found by benchmarks/faults.py)."""
    ours, theirs = Path("data/metrics/.GImkppEpYRhZLT_ACBL1Fg.tmp"), Path("data/metrics/.note.tmp")
    warnings: list[str] = []
    for remove in (
        lambda paths: leftovers.remove(paths, warnings.append),
        lambda paths: leftovers.remove_unfinished(paths, Path(".dvc/cache")),
    ):
        ours.touch()
        remove(outs("metrics/a.json", "metrics/b.json", "encoders/a", "encoders/b"))
        assert not ours.exists()
    assert not warnings
    theirs.touch()
    half = [Path(name) for name in (".retemper/.report.html.partial", ".retemper/bin/.python.partial", ".dvc.lock.partial")]
    half.append(Path(".retemper/.pXj4rM15yDK6d9p5ZWJzJA.tmp"))  # of a try of links
    half.append(Path(".dvc/cache") / half[-1].name)
    for path in half:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    shared = tmp_path_factory.mktemp("shared") / half[-1].name  # may be of a run in progress elsewhere
    shared.touch()
    for cache in (Path(".dvc/cache"), shared.parent):
        leftovers.remove_unfinished(outs("metrics/a.json"), cache)
    assert shared.exists()
    assert theirs.exists()
    assert not any(path.exists() for path in half)
    for name in (
        ".GImkppEpYRhZLT_ACBL1Fg.tmp",
        "files/md5/.duEh8J9R-T9BUlUhGCRYvg.tmp",
        "files/md5/08/.LrTaKQChdEFa7HJFF1wOxw.tmp",
        "made/12/.12f6.json.partial",
        f"made/12/.{'0f' * 16}.partial",
        f"files/md5/08/.{'0f' * 15}.partial",
        f"files/md5/08/.{'0f' * 15}.dir.partial",
        f"runs/0f/{'0f' * 32}/.{'0f' * 32}.partial",
    ):
        (tmp_path / "cache" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache" / name).touch()
    (tmp_path / "cache/files/md5/08/266c998639c9b02a2f95a298abc16").touch()
    assert len(leftovers.unfinished_copies(tmp_path / "cache")) == 8


def test_outs_that_only_dvc_lock_knows_are_removed_too() -> None:
    Path("dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  evaluate@b:\n    cmd: x\n    outs:\n    - path: data/metrics/b.json\n      md5: 0\n"
    )
    assert leftovers.remove(outs("metrics/a.json"), print) == [Path("data/metrics/b.json")]


def test_a_users_own_files_stay_with_a_warning() -> None:
    Path("data/encoders/mine").mkdir()
    Path("data/encoders/mine/model").write_text("precious")
    warnings: list[str] = []
    assert leftovers.remove(outs("encoders/a", "encoders/b"), warnings.append) == []
    assert Path("data/encoders/mine/model").read_text() == "precious"
    assert len(warnings) == 1
    assert warnings[0].startswith("data/encoders/mine: no stage produced it")


def test_an_out_inside_a_folder_of_outs_keeps_the_folder() -> None:
    warnings: list[str] = []
    assert leftovers.remove(outs("encoders/a/model", "encoders/b"), warnings.append) == []
    assert "encoders/a/model" in files()
    assert warnings == []
