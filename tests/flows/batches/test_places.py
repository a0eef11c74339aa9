"""A folder that a command writes: whole, and in the place of nothing."""

from pathlib import Path

import pytest

from flows.batches.places import new_place
from tasks.core.errors import UserError


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_folder_appears_whole(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "out"
    if exists:
        folder.mkdir()
    with new_place(folder) as place:
        (place / "a").write_text("1")
        assert not (folder / "a").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (folder / "a").read_text() == "1"


def test_nothing_is_left_of_what_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), new_place(tmp_path / "out") as place:
        (place / "a").write_text("1")
        raise ValueError("no")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_has_come_to_be_there_stays(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "out"
    other = folder if kind == "file" else folder / "mine"
    with pytest.raises(UserError, match="another process created it in the meantime"), new_place(folder) as place:
        (place / "a").write_text("1")
        other.parent.mkdir(exist_ok=True)
        other.write_text("mine")
    assert other.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(UserError, match="another process created it in the meantime"), new_place(folder) as first:
        (first / "first").write_text("1")
        with new_place(folder) as second:
            (second / "second").write_text("2")
    assert [path.name for path in folder.iterdir()] == ["second"]


def test_a_mount_point_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a container's volume: no folder can take its place."""
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "out")
    message = f"^{tmp_path}/out: found a mount point, expected a new folder; name one below it: {tmp_path}/out/data$"
    with pytest.raises(UserError, match=message), new_place(tmp_path / "out"):
        pytest.fail("hours of work")
    with new_place(tmp_path / "out/data") as place:
        (place / "a").write_text("1")
    assert (tmp_path / "out/data/a").exists()
