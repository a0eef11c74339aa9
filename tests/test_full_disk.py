"""A full disk, in every stage and under every library that writes: one line, status 2, nothing half-written, and a next run that works.

Needs a file system of a few pages, which only root may mount; elsewhere these tests are skipped.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from flows.parameters.sources import write_source
from flows.pipeline.stage import run_stage
from flows.process.processes import Processes
from tasks.core.files import file_digest, folder_digest

PAGES = (0, 4, 64, 1024, 16384)  # KiB that are free: what fills up first differs


class Disk:
    """A small file system of `kib` KiB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mount(self, kib: int) -> None:
        self.folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={kib + 4}k", "tmpfs", self.folder]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("only root may mount")
        (self.folder / "page").write_bytes(b"x" * 4096)  # a size of 0 would be no limit

    def grow(self, kib: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={kib}k", self.folder], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.folder], check=False, capture_output=True)


@pytest.fixture
def disk(small: Any) -> Iterator[Disk]:
    full_disk = Disk(small.folder / "full")
    yield full_disk
    full_disk.unmount()


def digest(path: Path) -> str:
    return folder_digest(path) if path.is_dir() else file_digest(path)


STAGES = [
    "prepare", "base", "tokenize", "bm25", "train@init", "train@warmup", "encode@warmup", "index@warmup", "mine@warmup",
    "retrieve_bm25", "retrieve@warmup", "evaluate@warmup", "report",
]  # fmt: skip


@pytest.mark.parametrize("name", STAGES)
def test_stages(small: Any, disk: Disk, name: str) -> None:
    shutil.rmtree(small.folder / ".retemper")
    (small.folder / ".retemper").symlink_to("full/.retemper")  # checkpoints and shards too
    refusals = 0
    for kib in PAGES:
        disk.mount(kib)
        (disk.folder / ".retemper").mkdir()
        result = small.stage(name, *small.elsewhere(name, "full"))
        if result.status == 0:
            break
        refusals += 1
        lines = [line for line in result.err.splitlines() if line.startswith("retemper: ")]
        assert (result.status, len(lines)) == (2, 1), result
        assert "No space left on device" in lines[0] and "make room and run again" in lines[0]
        leftovers = {file.name for file in disk.folder.rglob("*") if file.name.endswith(".partial")}
        assert not leftovers, f"{kib} KiB: {leftovers}"
        if kib != PAGES[-1]:
            disk.unmount()
    assert refusals, "the disk was never full"
    disk.grow(200_000)
    assert small.stage(name, *small.elsewhere(name, "full")).status == 0
    for out in small.outs[name]:
        if "curves" not in out:  # they hold times
            assert digest(disk.folder / out) == digest(small.folder / out), out


def test_the_cache_of_dvc(small: Any, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC itself ends with status 0 there, its lock written; the outs are whole, and the next run stores them."""
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    tell: Callable[[str], None] = lambda _: None  # noqa: E731
    disk.folder = small.folder / ".dvc/cache"
    disk.mount(8)
    with chdir(small.folder):
        failed = run_stage("prepare", Processes(), tell)
        assert (failed.state, failed.status) == ("Failed", 2), failed
        assert failed.problem and failed.problem.kind == "disk"
        assert "No space left on device" in failed.problem.message and "\n" not in failed.problem.message
        disk.grow(10_000)
        assert run_stage("prepare", Processes(), tell).state == "Ran"
        assert run_stage("prepare", Processes(), tell).state == "Cached"


def test_a_stage_that_fails_leaves_its_last_outs(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC takes outs away before it runs a stage; the stage's own line comes through, and the outs come back."""
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    with chdir(small.folder):
        assert run_stage("prepare", Processes(), lambda _: None).state == "Ran"
        small.write("beir/corpus.jsonl", small.read("beir/corpus.jsonl").replace(b'"_id": "d07"', b'"_ie": "d07"'))
        write_source()
        before = small.state()
        failed = run_stage("prepare", Processes(), lambda _: None)
        assert (failed.state, failed.status) == ("Failed", 2)
        assert failed.problem and failed.problem.message == "beir/corpus.jsonl:8: no _id, found _ie, title, text; every line needs one"
        assert small.state() == before


@pytest.mark.slow
@pytest.mark.parametrize("kib", [200])
def test_prefect(small: Any, disk: Disk, kib: int) -> None:
    """Locks, logs and Prefect's database lie in .retemper."""
    shutil.rmtree(small.folder / ".retemper")
    disk.folder = small.folder / ".retemper"
    disk.mount(kib)
    command = [sys.executable, "-m", "flows.cli", "run", "prepare"]
    for status in (2, 0):
        process = subprocess.run(command, cwd=small.folder, capture_output=True, text=True, timeout=500, check=False)
        assert process.returncode == status, process
        if status:
            assert process.stderr.startswith("retemper: ") and process.stderr.count("\n") == 1, process.stderr
            assert "No space left on device" in process.stderr
            disk.grow(100_000)
