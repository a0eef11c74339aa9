"""Times of a schedule: the time zone, the branch that it follows, and an interval's anchor."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from flows.scheduling import times
from flows.scheduling.times import Schedule
from tasks.core.errors import UserError


def test_an_interval_is_counted_from_one_fixed_moment() -> None:
    (first,), (second,) = (times.prefect_schedules(Schedule("n", None, 604800, "UTC", "HEAD")) for _ in range(2))
    assert first.anchor_date == second.anchor_date == datetime(2024, 1, 1, tzinfo=UTC)


def test_the_time_zone_and_the_branch(monkeypatch: pytest.MonkeyPatch, retraining: Any) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert times.local_timezone() == "Europe/Berlin"
    monkeypatch.delenv("TZ")
    assert times.local_timezone()
    assert times.current_branch(retraining.folder) == "main"
    retraining.git("checkout", "--quiet", "--detach")
    assert times.current_branch(retraining.folder) == retraining.git("rev-parse", "HEAD")
    empty = retraining.folder.parent / "empty"
    empty.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=empty, check=True)
    with pytest.raises(UserError, match="has no commit"):
        times.current_branch(empty)


@pytest.mark.parametrize("name", ["UTC0", "CET-1CEST,M3.5.0,M10.5.0/3", ":Nowhere/City"])
def test_a_time_zone_without_a_name_is_refused_by_its_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The line was about --timezone, which nobody had given."""
    monkeypatch.setenv("TZ", name)
    with pytest.raises(UserError, match=rf"^TZ={name.removeprefix(':')}: found no time zone of that name, .*; give --timezone$"):
        times.local_timezone()


def test_a_time_zone_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", f":{tmp_path}/share/zoneinfo/Europe/Berlin")
    assert times.local_timezone() == "Europe/Berlin"
    (tmp_path / "localtime").symlink_to(tmp_path / "share/zoneinfo/Asia/Tokyo")
    monkeypatch.setenv("TZ", f"{tmp_path}/localtime")
    assert times.local_timezone() == "Asia/Tokyo"


@pytest.mark.parametrize(("text", "name"), [("Europe/Berlin\n", "Europe/Berlin"), ("\n", "UTC"), (None, "UTC")])
def test_the_time_zone_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, name: str) -> None:
    """Its /etc/localtime is a file, not a link."""
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr(times, "Path", lambda place: Path(f"{tmp_path}{place}"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/localtime").write_bytes(b"TZif")
    if text is not None:
        (tmp_path / "etc/timezone").write_text(text)
    assert times.local_timezone() == name
