"""Small files are listed at once: how many operations that takes does not depend on how many there are."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dvc.fs import LocalFileSystem, MemoryFileSystem
from dvc.stage.cache import StageCache

from flows.storage import makings, patches
from flows.storage.small_files import Place, copy


class Counted:
    """A remote filesystem that counts what it is asked; joining paths is free."""

    def __init__(self) -> None:
        self.inner = MemoryFileSystem(global_store=False)
        self.asked: Counter[str] = Counter()

    @property
    def fs(self) -> Any:
        """fsspec's own, for listings with sizes."""
        return SimpleNamespace(find=lambda *arguments, **options: self.asked.update(["find"]) or self.inner.fs.find(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if not callable(attribute) or name in ("join", "parent"):
            return attribute

        def count_call(*arguments: Any, **options: Any) -> Any:
            self.asked[name] += 1
            return attribute(*arguments, **options)

        return count_call


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def run_name(number: int) -> str:
    key = digest(number)
    return f"{key[:2]}/{key}/{digest(-number)}"


@pytest.fixture
def transfer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str]]]:
    monkeypatch.setattr(StageCache, "transfer", StageCache.transfer)  # put back afterwards
    patches.compare_runs_by_listing()
    return lambda *arguments, **options: StageCache.transfer(SimpleNamespace(), *arguments, **options)


@pytest.mark.parametrize("count", [10, 1000])
def test_recorded_runs(tmp_path: Path, transfer: Any, count: int) -> None:
    fs = Counted()
    remote, cache = SimpleNamespace(fs=fs, path="/remote"), SimpleNamespace(fs=LocalFileSystem(), path=str(tmp_path))
    local, sent = Place(cache.fs, str(tmp_path / "runs")), Place(fs, "/remote/runs")
    for number in range(count):
        local.write(run_name(number), b"run")
    assert len(transfer(cache, remote)) == count
    fs.asked.clear()
    assert transfer(cache, remote) == [] and transfer(remote, cache, force=False) == []
    assert fs.asked == {"find": 2}, "nothing is new"
    sent.write(run_name(count), b"theirs")
    local.write(run_name(count + 1), b"ours")
    fs.asked.clear()
    assert transfer(remote, cache, force=False) == [(digest(count), digest(-count))]
    assert len(transfer(cache, remote)) == 1
    assert fs.asked == {"find": 2, "cat_file": 1, "makedirs": 1, "pipe_file": 1}
    assert local.names() == sent.names()
    sent.write(run_name(1), b"")
    local.write(run_name(2), b"r")
    assert transfer(cache, remote) == [(digest(1), digest(-1))] and sent.read(run_name(1)) == b"run", "truncated there"
    assert sent.read(run_name(2)) == b"run", "truncated here"
    assert transfer(remote, cache, force=False) == [(digest(2), digest(-2))] and local.read(run_name(2)) == b"run"
    assert local.read(run_name(count)) == b"theirs"
    key = run_name(0).rpartition("/")[0]
    sent.write(f"{key}/{digest(-9999)}", b"the same stage made something else elsewhere")
    assert transfer(remote, cache, force=False) == [], "one record of a stage's inputs is enough"


@pytest.mark.parametrize("count", [10, 1000])
def test_records_of_makings(tmp_path: Path, count: int) -> None:
    fs = Counted()
    local = Place(LocalFileSystem(), str(tmp_path / makings.FOLDER))
    for number in range(count):
        local.write(f"{digest(number)[:2]}/{digest(number)}.json", b'{"at": 1}')
    assert makings.send(tmp_path, fs, "/remote") == count
    fs.asked.clear()
    digests = [digest(0), digest(3), digest(-1)]
    assert makings.send(tmp_path, fs, "/remote") == makings.fetch(tmp_path, fs, "/remote", digests=digests[:2]) == 0
    assert fs.asked == {"find": 1}
    fs.asked.clear()
    assert makings.fetch(tmp_path / "fresh", fs, "/remote", digests=digests) == 2, "one has no record"
    assert fs.asked == {"cat_file": 3}, "however many the remote has"
    assert makings.read(tmp_path / "fresh", digests) == {digest(0): {"at": 1}, digest(3): {"at": 1}}


def test_a_place_that_is_missing_or_half_written(tmp_path: Path) -> None:
    for fs in (LocalFileSystem(), MemoryFileSystem(global_store=False)):
        assert Place(fs, "/nowhere/at/all").names() == set()
    place = Place(LocalFileSystem(), str(tmp_path))
    (tmp_path / ".abc.partial").write_bytes(b"of a process that was killed")
    assert place.names() == set()
    assert copy(place, Place(LocalFileSystem(), str(tmp_path / "to")), ["missing"]) == 0
    (tmp_path / "way").write_text("a file in the way")
    with pytest.raises(OSError):
        Place(LocalFileSystem(), str(tmp_path / "way")).write("one", b"1")
