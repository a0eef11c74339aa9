"""Estimates by records: scaled by hand, never without a record; a run that the disk cannot hold is refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.pipeline import forecast
from flows.pipeline.forecast import Forecast, forecasts, lines, refuse_small_disk, total_line
from flows.repository.lock import entry_digest, read_lock
from flows.storage import makings
from tasks.core.errors import DiskError

THEN = {"documents": 1000, "train": 100, "dev": 10, "test": 10, "tokens": 29.0}
Project = Callable[..., None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of 3,000 documents of 20 words, and no run yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("")
    (tmp_path / ".dvc" / "cache").mkdir()
    splits = {"train": {"queries": 400}, "dev": {"queries": 10}, "test": {"queries": 30}}
    write("data/corpus/stats.json", {"documents": {"count": 3000, "words": {"mean": 20}}, "splits": splits})
    write("data/params.json", {"tokenize": {"document_length": 96}, "rounds": {"a": {"steps": None, "epochs": 2.0, "batch_queries": 8}}})
    return tmp_path


def write(path: str, value: object) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(value))


def save_making(stage: str, digest: str, **fields: Any) -> None:
    record = {
        "stage": stage,
        "seconds": 100.0,
        "at": 1_700_000_000.0,
        "cost": {"peak_mib": 512.0, "seconds": 60.3},
        "size": THEN,
        "bytes": 2**30,
    }
    makings.save(Path(".dvc/cache"), digest, record | fields)


@pytest.mark.usefixtures("project")
def test_times_and_disk_grow_with_the_data() -> None:
    save_making("encode@a", "0a" * 32)
    save_making("retrieve@a", "0b" * 32)
    save_making("train@a", "0c" * 32, round={"steps": 50, "epochs": None, "batch_queries": 4})
    encode, retrieve, train, other = forecasts(["encode@a", "retrieve@a", "train@a", "train@b"])
    tokens = 20 * 1.35 + 2
    assert tokens == 29.0
    assert (encode.seconds, encode.peak_mib, encode.bytes) == (pytest.approx(40.0 + 60.0 * 3), 512.0, 3 * 2**30)
    assert encode.since == "made 2023-11-14 from 1,000 documents, time x 3.00, disk x 3.00"
    assert (retrieve.seconds, retrieve.bytes) == (pytest.approx(40.0 + 60.0 * (40 * 1_003_000) / (20 * 1_001_000)), 2 * 2**30)
    assert (train.seconds, train.bytes) == (pytest.approx(40.0 + 60.0 * (2 * 400) / (50 * 4)), 2**30)
    assert (other.seconds, other.bytes, other.line) == (None, None, "train@b: time, memory, and disk unknown")
    assert encode.line.startswith("encode@a: about 3m40s, 512 MiB of memory, 3.00 GiB of disk (made")
    assert total_line([encode, retrieve, train, other]).endswith("6.00 GiB of new files in the cache; unknown: train@b")
    assert total_line([other]) == "time and disk: unknown, as no run of these stages is recorded; this one will be"
    assert lines([encode, other]) == [encode.line, other.line]


def test_what_most_estimates_are_based_on_is_said_once() -> None:
    alike = [Forecast(f"encode@{name}", 40.0, since="made 2023-11-14") for name in "abcd"]
    other = Forecast("index@a", 7.0, since="made before")
    shown = [*(f"encode@{name}: about 40.0 s" for name in "abcd"), "index@a: about 7.0 s (made before)"]
    assert lines([*alike, other]) == [*shown, "(estimates without a note: made 2023-11-14)"]
    assert lines([*alike[:3], other]) == [*(cost.line for cost in alike[:3]), other.line], "few"


def test_many_stages_that_nothing_is_known_of_are_named_in_the_last_line_alone() -> None:
    known, many = Forecast("encode@a", 40.0, 512.0, 2**30, "made before"), [Forecast(f"train@{name}") for name in "abcd"]
    assert lines([known, *many]) == [known.line]
    assert lines([known, *many[1:]]) == [known.line, *(unknown.line for unknown in many[1:])]
    assert total_line([known, *many]).endswith("; unknown: train@a, train@b, train@c, train@d")
    assert total_line(many).endswith("no run of these stages is recorded; this one will be: train@a, train@b, train@c, train@d")


@pytest.mark.usefixtures("project")
def test_a_stage_without_a_record_is_estimated_by_one_of_its_kind() -> None:
    """Steps count with the batch of each; a batch that is not set is 64."""
    rounds = {"a": {"steps": 10}, "b": {"epochs": 2.0}, "c": {"steps": 20, "batch_queries": 32}}
    write("data/params.json", {"tokenize": {"document_length": 96}, "rounds": rounds})
    save_making("train@a", "0a" * 32, round={"steps": 10, "epochs": None, "batch_queries": None}, size=THEN | {"documents": 3000})
    save_making("pretrain@p", "0b" * 32)
    a, b, c, other = forecasts(["train@a", "train@b", "train@c", "pretrain@q"])
    assert (a.seconds, b.seconds, c.seconds) == (100.0, pytest.approx(40.0 + 60.0 * (2 * 400) / (10 * 64)), pytest.approx(100.0))
    assert b.since == "by train@a, made 2023-11-14 from 3,000 documents, time x 1.25"
    assert other.seconds is None, "how long a pre-training takes does not follow from the data"
    assert [estimate.seconds for estimate in forecasts(["train@a", "train@b"], by_kind=False)] == [100.0, None]
    assert forecasts(["train@b"])[0].seconds is None
    assert [estimate.seconds for estimate in forecasts(["prepare", "train@a", "train@b"])] == [None, 100.0, None], "the size is not known"


def test_a_new_entry_is_estimated_by_a_finished_one(project: Path) -> None:
    """The finished one does not run again: dvc.lock has it."""
    (project / "dvc.lock").write_text("schema: '2.0'\nstages:\n  encode@a:\n    cmd: x\n    outs:\n    - path: e\n      size: 5\n")
    save_making("encode@a", entry_digest(read_lock()["encode@a"]), seconds=7.0, size=THEN | {"documents": 3000})
    (estimate,) = forecasts(["encode@more"])
    assert (estimate.seconds, estimate.since) == (7.0, "by encode@a, made 2023-11-14 from 3,000 documents")
    assert forecasts(["index@more"])[0].seconds is None
    save_making("retrieve_adore@t", "0b" * 32, size=THEN | {"documents": 3000})
    origins = [other.since.partition(",")[0] for other in forecasts(["retrieve_adore@t", "retrieve@a"])]
    assert origins == ["made 2023-11-14 from 3", "by retrieve_adore@t"]
    save_making("retrieve@b", "0c" * 32, size=THEN | {"documents": 3000})
    assert forecasts(["retrieve_adore@t", "retrieve@b", "retrieve@a"])[2].since.startswith("by retrieve@b"), "which does just that"


@pytest.mark.usefixtures("project")
def test_a_start_takes_as_long_on_more_data() -> None:
    save_making("encode@a", "0a" * 32, seconds=3.0, cost={"seconds": 0.2})
    save_making("encode@b", "0b" * 32, seconds=3.0, cost={})
    assert [estimate.seconds for estimate in forecasts(["encode@a", "encode@b"])] == [3.0, pytest.approx(0.3 + 2.7 * 3)]


@pytest.mark.usefixtures("project")
def test_what_prepare_may_change_is_not_scaled() -> None:
    save_making("encode@a", "0a" * 32)
    save_making("index@a", "0b" * 32, size=None)
    _, encode, index = forecasts(["prepare", "encode@a", "index@a"])
    assert (encode.seconds, encode.bytes) == (100.0, 2**30) and "once it is prepared" in encode.since
    assert index.seconds == 100.0 and index.since == "made 2023-11-14, on data of unknown size"


def test_the_record_of_the_lock_counts_before_later_ones(project: Path) -> None:
    (project / "dvc.lock").write_text("schema: '2.0'\nstages:\n  encode@a:\n    cmd: x\n    outs:\n    - path: e\n      size: 5\n")
    save_making("encode@a", entry_digest(read_lock()["encode@a"]), seconds=7.0, size=THEN | {"documents": 3000})
    save_making("encode@a", "0a" * 32, at=1_800_000_000.0)
    assert forecasts(["encode@a"])[0].seconds == pytest.approx(7.0)
    save_making("index@a", "0b" * 32, seconds=1.0)
    save_making("index@a", "0c" * 32, seconds=2.0, at=1_800_000_000.0, size=THEN | {"documents": 3000})
    assert forecasts(["index@a"])[0].seconds == 2.0


@pytest.mark.parametrize(
    ("kind", "free_gib", "fits"), [("copy", 4.1, False), ("copy", 6.1, True), ("hardlink", 2.9, False), ("reflink", 3.1, True)]
)
def test_a_disk_that_is_too_small_is_refused(
    kind: str, free_gib: float, fits: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 GiB in the cache, and as much in data/, unless it has links."""
    save_making("encode@a", "0a" * 32)
    monkeypatch.setattr(forecast.links, "kind", lambda _: kind)
    usage = shutil.disk_usage(project)
    monkeypatch.setattr(forecast.shutil, "disk_usage", lambda _: usage._replace(free=int(free_gib * 2**30)))
    refuse_small_disk(["train@b"])  # no record, no refusal
    if fits:
        refuse_small_disk(["encode@a", "train@b"])
        return
    with pytest.raises(DiskError, match=r"GiB free, expected about .* GiB for the new files of 1 stage .*--ignore-disk") as refusal:
        refuse_small_disk(["encode@a", "train@b"])
    assert "\n" not in str(refusal.value) and refusal.value.problem.status == 2
