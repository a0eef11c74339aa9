"""Unfinished work: kept while it may be needed, and no longer."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tasks.core.stage import scratch
from tasks.core.stage.scratch import KEPT, code_digest, is_sealed, mark_finished, remove_finished, scratch_folder, seal


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_limited_number_of_unfinished_works_is_kept() -> None:
    for number in range(KEPT + 2):
        (scratch_folder("train-star", f"{number}" * 40) / "checkpoint").touch()
    assert len(list(Path(".retemper/scratch/train-star").iterdir())) == KEPT


@pytest.mark.parametrize("direction", [1, -1])
def test_the_latest_unfinished_works_are_kept(direction: int) -> None:
    names = [f"{number}" * 32 for number in range(KEPT + 2)]
    for seconds, name in enumerate(names[::direction], start=1):
        folder = Path(".retemper/scratch/train-star", name)
        folder.mkdir(parents=True)
        os.utime(folder, (seconds, seconds))
    new = scratch_folder("train-star", "f" * 40)
    assert {path.name for path in new.parent.iterdir()} == {new.name, *names[::direction][1 - KEPT :]}


def test_a_finished_work_stays_until_its_outs_are_safe() -> None:
    finished, other = scratch_folder("train-star", "a" * 40), scratch_folder("train-warmup", "b" * 40)
    (finished / "checkpoint").touch()
    mark_finished(finished)
    assert scratch_folder("train-star", "a" * 40) == finished
    assert (finished / "checkpoint").exists(), "a re-run resumes from it: a kill came before DVC had its outs"
    remove_finished()
    assert (finished.exists(), other.exists()) == (False, True)


def test_a_removal_that_is_cut_short_is_ended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = scratch_folder("train-star", "a" * 40)
    (finished / "curves").mkdir()
    (finished / "checkpoint").touch()
    mark_finished(finished)

    def fail(_: Path) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(scratch, "_flush", fail)
        remove_finished()
    assert [path.name for path in finished.iterdir()] == [scratch.FINISHED], "its mark is the last to go"
    remove_finished()
    assert not finished.exists()


def test_a_finished_work_is_replaced_by_another_of_its_kind() -> None:
    finished, other = scratch_folder("train-star", "a" * 40), scratch_folder("train-warmup", "b" * 40)
    mark_finished(finished)
    mark_finished(other)
    assert scratch_folder("train-star", "c" * 40).exists()
    assert (finished.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("harm", ["cut", "empty", "one bit", "gone", "no seal", "half a seal", "bytes for a seal"])
def test_a_seal_detects_corruption(harm: str, tmp_path: Path) -> None:
    piece, mark = tmp_path / "piece.npy", tmp_path / "piece.npy.sha256"
    content = bytes(range(256)) * 40
    piece.write_bytes(content)
    assert not is_sealed(piece), "written but not yet sealed"
    seal(piece)
    assert is_sealed(piece)
    if harm in ("gone", "no seal"):
        (piece if harm == "gone" else mark).unlink()
    elif "seal" in harm:
        mark.write_bytes(mark.read_bytes()[:30] if harm == "half a seal" else b"\xff\xfe")
    else:
        piece.write_bytes({"cut": content[:5000], "empty": b"", "one bit": b"\x01" + content[1:]}[harm])
    assert not is_sealed(piece)
    piece.write_bytes(content)
    seal(piece)
    assert is_sealed(piece)


@pytest.mark.parametrize("library", ["torch", "transformers", "tokenizers", "numpy", "faiss-cpu", "faiss-gpu"])
def test_work_of_another_version_of_a_library_is_not_gone_on_with(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed_version(name: str) -> str:
        if name in scratch.FAISS and library in scratch.FAISS and name != library:
            raise PackageNotFoundError
        return "0.0.1" if name == library else version(name)

    before = code_digest("freeze")
    monkeypatch.setattr(scratch, "version", changed_version)
    assert code_digest("freeze") != before


def test_work_of_another_code_of_its_stage_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_digest("train") != code_digest("mine")
    for name in ("one", "two"):
        (tmp_path / "tasks" / name).mkdir(parents=True)
        (tmp_path / "tasks" / name / "__main__.py").write_text(f"from tasks.{name} import own\n")
        (tmp_path / "tasks" / name / "own.py").write_text("x = 1\n")
    monkeypatch.setattr("tasks.__file__", str(tmp_path / "tasks/__init__.py"))
    before = code_digest("one"), code_digest("two")
    (tmp_path / "tasks/one/own.py").write_text("x = 2\n")
    assert code_digest("one") != before[0] and code_digest("two") == before[1]


def test_work_that_cannot_be_resumed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    message = "train-star: starting over; the unfinished work found was begun with different inputs, "
    first = scratch_folder("train-star", "a" * 40)
    scratch_folder("train-star", "b" * 40)
    assert not capsys.readouterr().out, "nothing was done there"
    (first / "checkpoint").touch()
    scratch_folder("train-star", "a" * 40)
    scratch_folder("train-star", "b" * 40)
    scratch_folder("train-warmup", "c" * 40)
    assert not capsys.readouterr().out, "its own, one that is known, and one of another kind"
    scratch_folder("train-star", "c" * 40)
    assert capsys.readouterr().out.startswith(message)
    mark_finished(first)
    scratch_folder("train-star", "d" * 40)
    assert not capsys.readouterr().out, "what is finished does not count"
