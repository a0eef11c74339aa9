"""Faults in files (benchmarks/faulty_files.py): a few over the file layer of stages, and a slice of benchmarks/faults.py.

Linux with a C compiler; elsewhere these tests are skipped.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tasks.core.files import file_digest, folder_digest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
PROGRAM = """
from pathlib import Path
from tasks.core.errors import one_line_errors
from tasks.core.files import new_folder, write_json
from tasks.core.stage.scratch import is_sealed, seal
with one_line_errors():
    piece = Path(".retemper/scratch/piece")
    piece.parent.mkdir(parents=True, exist_ok=True)
    if not is_sealed(piece):
        piece.write_text("unfinished work " * 1000)
        seal(piece)
    with new_folder(Path("data/corpus")) as folder:
        (folder / "qrels").mkdir()
        (folder / "qrels/dev").write_text("judgments " * 1000)
        (folder / "documents").write_bytes(piece.read_bytes())
    write_json(Path("data/metrics.json"), {"dev": {str(number): 0.5 for number in range(500)}})
"""
CARELESS = """
from pathlib import Path
Path("data").mkdir(exist_ok=True)
Path("data/new").write_text("careless " * 1000)
Path("data/new").rename("data/metrics.json")
Path("data/after").touch()
"""


@pytest.fixture(scope="module")
def faulty() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import faulty_files
    finally:
        sys.path.remove(str(BENCHMARKS))
    if not faulty_files.compiler():
        pytest.skip("no C compiler, or not Linux")
    return faulty_files


@pytest.fixture(scope="module")
def library(faulty: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(faulty.build(tmp_path_factory.mktemp("library")))


def run(faults: object, root: Path, library: Path, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    root.mkdir(exist_ok=True)
    variables = {"LD_PRELOAD": str(library), "DVC_STAGE": "made", "PYTHONPATH": str(BENCHMARKS.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env=os.environ | variables | faults.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def final_outs(root: Path) -> dict[str, str]:
    """What stands under its final name rather than under a temporary one."""
    outs = {"data/corpus": folder_digest, "data/metrics.json": file_digest}
    return {name: digest(root / name) for name, digest in outs.items() if (root / name).exists()}


def test_the_file_layer_under_forty_faults(tmp_path: Path, faulty: ModuleType, library: Path) -> None:
    """Killed, torn, failing, full, or without power at a drawn call: whole files or none, one line, and a next run that works."""
    root = tmp_path / "project"
    census = faulty.Faults(tmp_path / "census", root, census=True)
    assert run(census, root, library).returncode == 0
    complete = final_outs(root)
    assert len(complete) == 2
    calls = census.census()
    assert {call.role for call in calls} == {"stage:made"}
    assert {call.kind for call in calls} == {"outs", "scratch", "records", "other"}  # other: data itself
    counts: Counter[str] = Counter()
    for number in range(40):
        fault = faulty.draw(calls, random.Random(number))
        root = tmp_path / f"project{number}"
        faults = faulty.Faults(tmp_path / "faults", root, fault)
        process = run(faults, root, library)
        assert len(faults.hits()) == 1, fault
        counts[fault.kind] += 1
        if fault.kind == "cut":
            faulty.power_cut(faults, str(number))
        if fault.kind in ("EIO", "ENOSPC"):
            reason = {"EIO": "Input/output error", "ENOSPC": "No space left on device"}[fault.kind]
            assert (process.returncode, process.stderr.count("\n")) == (2, 1), (fault, process)
            assert process.stderr.startswith("retemper: ")
            assert reason in process.stderr
            assert not list(root.rglob("*.partial")), fault
        else:
            assert process.returncode == -9, (fault, process)
        assert final_outs(root).items() <= complete.items(), fault
        assert run(faulty.Faults(tmp_path / "faults", root), root, library).returncode == 0, fault
        assert final_outs(root) == complete, fault
        assert not list(root.rglob("*.partial")), fault
    assert set(counts) == set(faulty.ALL)


def test_a_fault_strikes_at_the_same_call_again(tmp_path: Path, faulty: ModuleType, library: Path) -> None:
    fault = faulty.Fault("torn", faulty.Place("stage:made", "write", "outs"), 2, 0.5)
    hits, sizes = [], []
    for number in range(2):
        faults = faulty.Faults(tmp_path / "faults", tmp_path / str(number), fault)
        assert run(faults, tmp_path / str(number), library).returncode == -9
        hits.append(faults.hits())
        sizes.append(sorted(path.stat().st_size for path in (tmp_path / str(number)).rglob("*") if path.is_file()))
    assert hits[0] == hits[1] == ["torn write outs stage:made 2\tdata/.corpus.partial/documents"]
    assert sizes[0] == sizes[1]
    assert 8000 in sizes[0], "half of 16,000 bytes"


def test_a_rename_without_fsync_is_seen_to_lose_content(tmp_path: Path, faulty: ModuleType, library: Path) -> None:
    """The model of a power cut finds what careless code does; the file layer passes the same seeds above."""
    fault = faulty.Fault("cut", faulty.Place("stage:made", "open", "outs"), 2, 0.2)  # before `after` is made
    outcomes = set()
    for number in range(6):
        root = tmp_path / str(number)
        faults = faulty.Faults(tmp_path / "faults", root, fault)
        assert run(faults, root, library, CARELESS).returncode == -9
        faulty.power_cut(faults, str(number))
        path = root / "data/metrics.json"
        outcomes.add("lost" if not path.exists() else "whole" if path.stat().st_size == 9000 else "torn")
    assert outcomes == {"lost", "whole", "torn"}


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_slice_of_the_simulation(faulty: ModuleType) -> None:
    """At most five minutes on a quiet machine; the whole simulation is benchmarks/faults.py."""
    assert faulty.compiler()
    command = [sys.executable, str(BENCHMARKS / "faults.py"), "--schedules=1000", "--seed=7", "--minutes=4", "--jobs=2"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{process.stdout[-6000:]}\n{process.stderr[-3000:]}"
