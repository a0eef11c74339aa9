"""A cache file corrupted by hand: detected, restored from the workspace, fetched or computed again, never used."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.storage import cache


def damage(path: Path, keep_size: bool = True) -> None:
    """Change a cached file's bytes and mode, as an editor with permission would."""
    path.chmod(0o644)
    path.write_text("x" * path.stat().st_size if keep_size else "y")
    path.chmod(0o444)


def cached_file(toy: Any, out: str) -> Path:
    """The one cached file with the content of `out`."""
    digest = hashlib.md5((toy.folder / out).read_bytes()).hexdigest()
    return Path(toy.folder / ".dvc/cache/files/md5" / digest[:2] / digest[2:])


def cache_is_intact(toy: Any) -> bool:
    corrupt: list[Path] = []
    count, _ = cache.verify(toy.folder / ".dvc/cache/files/md5", corrupt.append)
    assert count
    return not corrupt


def test_corruption_in_the_cache_alone_is_fixed_from_the_workspace(finished_toy: Any) -> None:
    encoder = cached_file(finished_toy, "data/encoders/a")
    text = encoder.read_text()
    damage(encoder)
    result = finished_toy.call("run")
    assert result.returncode == 0, result.stderr
    assert "executed 0" in result.stdout
    assert "data/encoders/a: its copy in the cache was corrupt or missing; restored from this file" in result.stderr
    assert encoder.read_text() == text
    assert cache_is_intact(finished_toy)


@pytest.mark.parametrize("out", ["data/encoders/a", "data/metrics/a.json"])
def test_corruption_that_was_checked_out_is_computed_again(finished_toy: Any, executed: Callable[..., set[str]], out: str) -> None:
    """Plain DVC takes the corrupt file for intact; the next run does not."""
    text = (finished_toy.folder / out).read_text()
    damage(cached_file(finished_toy, out))
    (finished_toy.folder / out).unlink()
    finished_toy.command(sys.executable, "-m", "dvc", "checkout", out)
    assert (finished_toy.folder / out).read_text() == "x" * len(text), "this is what DVC does"
    stage = {"data/encoders/a": "train@a", "data/metrics/a.json": "evaluate@a"}[out]
    assert executed(finished_toy.run()) == {stage}
    assert (finished_toy.folder / out).read_text() == text
    assert cache_is_intact(finished_toy)


def test_a_corrupt_earlier_result_is_not_restored(finished_toy: Any, executed: Callable[..., set[str]]) -> None:
    first = cached_file(finished_toy, "data/encoders/b")
    text = first.read_text()
    finished_toy.set_rounds(a="1", b="3")
    finished_toy.run()
    damage(first, keep_size=False)
    finished_toy.set_rounds(a="1", b="2")
    assert executed(finished_toy.run()) == {"train@b"}, "computed again; what comes after it is in the cache"
    assert (finished_toy.folder / "data/encoders/b").read_text() == text
    assert cache_is_intact(finished_toy)


def test_a_corrupt_object_is_fetched_again_where_there_is_a_remote(
    finished_toy: Any, tmp_path: Path, executed: Callable[..., set[str]]
) -> None:
    assert finished_toy.call("remote", "add", "team", str(tmp_path / "remote")).returncode == 0
    finished_toy.run()  # pushes
    text = (finished_toy.folder / "data/encoders/a").read_text()
    damage(cached_file(finished_toy, "data/encoders/a"))
    (finished_toy.folder / "data/encoders/a").unlink()
    assert executed(finished_toy.run()) == set()
    assert (finished_toy.folder / "data/encoders/a").read_text() == text

    # and corruption in the remote is not taken over
    encoder = cached_file(finished_toy, "data/encoders/a")
    damage(tmp_path / "remote" / "files" / "md5" / encoder.parent.name / encoder.name)
    encoder.unlink()
    (finished_toy.folder / "data/encoders/a").unlink()
    assert executed(finished_toy.run()) == {"train@a"}
    assert (finished_toy.folder / "data/encoders/a").read_text() == text
    assert cache_is_intact(finished_toy)
    shutil.rmtree(tmp_path / "remote")


FOLDER_OUT = """
import sys
from pathlib import Path
from dvc.cli import main
from flows.repository.graph import read_status
from flows.repository.project import repository
from flows.storage import cache
from flows.storage.patches import check_by_content

main(["init", "--quiet", "--no-scm"])
main(["config", "--quiet", "cache.type", "symlink"])
make = "mkdir folder && echo one > folder/w && echo two > folder/c && echo three > file"
Path("dvc.yaml").write_text("stages: {a: {cmd: %s, outs: [folder, file]}}" % make)
assert main(["repro", "--quiet", "a"]) == 0
target = Path(sys.argv[1]).resolve()
assert "cache" in target.parts
target.chmod(0o644)
if sys.argv[2] == "missing":
    target.unlink()
else:
    target.write_text("wrong")
    target.chmod(0o444)
check_by_content()
with repository() as repo:
    names = cache.uncached(read_status(repo, ["a"]))
    cache.restore_from_workspace(repo, names, print)
    assert cache.uncached(read_status(repo, ["a"])) == names == ["a"], names
assert not Path(sys.argv[1]).is_symlink()
assert main(["repro", "--quiet", "a"]) == 0
print(Path("folder/w").read_text(), Path("file").read_text())
"""


@pytest.mark.parametrize("state", ["missing", "corrupt"])
@pytest.mark.parametrize("path", ["folder/w", "file"])
def test_an_out_linked_to_an_object_that_the_cache_has_lost_is_computed_again(tmp_path: Path, path: str, state: str) -> None:
    """Every later run ended in a traceback: DVC cannot read an out with a dangling link."""
    result = subprocess.run([sys.executable, "-c", FOLDER_OUT, path, state], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-3:] == ["one", " three", ""]


def test_outs_are_copied_from_the_cache_or_not_at_all(tmp_path: Path) -> None:
    """Whole folders, parts of them and files; nothing is left of what is missing or corrupt."""
    objects = tmp_path / ".dvc/cache/files/md5"

    def add_object(content: bytes, end: str = "") -> str:
        digest = hashlib.md5(content).hexdigest()
        path = objects / digest[:2] / f"{digest[2:]}{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return digest + end

    files = {"ids": add_object(b"ids"), "queries/train": add_object(b"train"), "queries_of_others": add_object(b"others")}
    listing = json.dumps([{"relpath": name, "md5": digest} for name, digest in files.items()]).encode()
    outs = [{"path": "data/tokens", "md5": add_object(listing, ".dir")}, {"path": "data/one.json", "md5": add_object(b"{}")}]
    lock = {"tokenize": {"outs": outs}}

    def copied_content(path: str) -> dict[str, bytes] | bytes | None:
        target = tmp_path / "to"
        shutil.rmtree(target, ignore_errors=True)
        target.unlink(missing_ok=True)
        if not cache.copy_cached(tmp_path, path, target, lock=lock):
            assert not target.exists()
            return None
        return (
            target.read_bytes()
            if target.is_file()
            else {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}
        )

    assert copied_content("data/tokens") == {"ids": b"ids", "queries/train": b"train", "queries_of_others": b"others"}
    assert copied_content("data/tokens/queries") == {"train": b"train"}
    assert copied_content("data/tokens/ids") == b"ids"
    assert copied_content("data/one.json") == b"{}"
    assert copied_content("data/tokens/nothing") is None
    assert copied_content("data/other") is None
    path = cache.object_path(objects, files["ids"])
    path.write_bytes(b"idS")
    assert copied_content("data/tokens/ids") is None, "corrupt"
    path.unlink()
    assert copied_content("data/tokens") is None, "missing"
    assert copied_content("data/tokens/queries") == {"train": b"train"}


def test_an_entry_of_the_run_cache_that_a_power_cut_truncated_is_left_out(tmp_path: Path) -> None:
    run = "cmd: a\nouts:\n- path: data/a\n  md5: one\n- path: data/ä\n  md5: two\n".encode()
    date = b"cmd: a\nouts:\n- path: data/a\n  md5: 2026-11-99\n"
    broken = {
        "item": run[: run.index(b"th:")],
        "letter": run[: run.index(b"\xc3") + 1],
        "outs": run[: run.index(b"\n-")],
        "zeros": bytes(len(run)),
        "empty": b"",
        "date": date,
        "pathless": b"cmd: a\nouts:\n- md5: one\n",
    }
    for name, text in {**broken, "whole": run}.items():
        path = tmp_path / "runs/ab/abc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    runs = {path.name: list(cache.outs(entry)) for path, entry in cache.recorded_runs(tmp_path)}
    assert runs == {"whole": [("one", "data/a"), ("two", "data/ä")]}
