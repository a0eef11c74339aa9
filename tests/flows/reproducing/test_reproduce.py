"""A fresh clone of a revision makes the same digests, and a digest that it does not make is told."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dvc.config import Config
from dvc.repo import Repo

from flows.measuring import environments, timing
from flows.repository.lock import read_lock
from flows.reproducing.reproduce import _forget_remote, _largest_distance, compare
from flows.storage.cache import file_md5, object_path
from flows.team.sync import remote_name
from tasks.core.sources.forgotten import HEAD, mark

REPRODUCE = """
import sys
from pathlib import Path
from flows.reproducing.reproduce import How, reproduce
from tests.forks import FORK
run = [*FORK, "tests.forked", "--toy", "run"]
sys.exit(reproduce(sys.argv[1], Path(sys.argv[2]), How(sys.argv[3] == "recompute"), run=run))
"""


def test_what_was_not_made_is_not_equal(reduced_toy: Any, tmp_path: Path) -> None:
    """The clone begins with the revision's own dvc.lock: its entries prove nothing, least of all those of a removed round."""
    script = REPRODUCE.replace('[*FORK, "tests.forked", "--toy", "run"]', '[sys.executable, "-c", "import sys; sys.exit(1)"]')
    for mode in ("recompute", "from the cache"):
        result = reduced_toy.call("HEAD", str(tmp_path / mode), mode, script=script)
        assert result.returncode == 1, result.stdout + result.stderr
        assert result.stdout.count("different: not made") == 2
        assert "0 outs equal, 2 different" in result.stdout


def test_records_that_were_forgotten_since_are_told_where_a_source_is_not_as_it_was(reduced_toy: Any, tmp_path: Path) -> None:
    """The source's error alone would tell the user to `restore` what was forgotten."""
    script = REPRODUCE.replace('[*FORK, "tests.forked", "--toy", "run"]', '[sys.executable, "-c", "import sys; sys.exit(2)"]')
    forgotten = reduced_toy.folder / "forgotten.txt"
    for name, message in (("before", ""), ("after", "1 record forgotten since then (forgotten.txt) cannot be made again: ")):
        result = reduced_toy.call("HEAD", str(tmp_path / name), "cached", script=script)
        assert f"revision HEAD: {message}its output is above" in result.stderr, result.stdout + result.stderr
        forgotten.write_text(f"{HEAD}document {mark('document', 'd1')} 2026-11-29\n")


def test_times_are_not_compared(tmp_path: Path) -> None:
    def lock(time: str) -> dict[str, Any]:
        return {"rerank@a": {"outs": [{"path": "data/metrics/a.json", "md5": "1"}, {"path": "data/latency/a.json", "md5": time}]}}

    assert list(compare(lock("2"), lock("3"), tmp_path, other=tmp_path)) == [("data/metrics/a.json", "1", "equal")]


def test_what_is_missing_or_corrupt_is_not_close(tmp_path: Path) -> None:
    def add_values(cache: str, value: float) -> str:
        np.save(tmp_path / "values.npy", np.array([value]))
        path = object_path(tmp_path / cache, oid := file_md5(tmp_path / "values.npy"))
        path.parent.mkdir(parents=True)
        (tmp_path / "values.npy").rename(path)
        return oid

    caches, digests = (tmp_path / "old", tmp_path / "new"), (add_values("old", 1.0), add_values("new", 1.5))
    assert _largest_distance("data/values.npy", digests, caches) == 0.5
    path = object_path(caches[1], digests[1])
    path.write_bytes(object_path(caches[0], digests[0]).read_bytes())
    assert _largest_distance("data/values.npy", digests, caches) == math.inf, "another file in its place"
    path.unlink()
    assert _largest_distance("data/values.npy", digests, caches) == math.inf


def test_a_revision_is_made_again_digest_by_digest(finished_toy: Any, tmp_path: Path) -> None:
    result = finished_toy.call("reproduce", "HEAD")
    assert result.returncode == 2
    assert "its commit has no dvc.lock" in result.stderr
    finished_toy.command("git", "add", "dvc.lock")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    finished_toy.set_rounds(a="1", b="9")  # a dirty tree does not matter
    result = finished_toy.call("HEAD", str(tmp_path / "again"), "recompute", script=REPRODUCE)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "executed 6, cached 0" in result.stdout
    assert "6 outs equal, 0 different" in result.stdout
    assert "already exists" in finished_toy.call("HEAD", str(tmp_path / "again"), "cached", script=REPRODUCE).stderr


def test_a_remote_by_any_settings_is_not_used(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default remote may be in the user's own settings, which are not the tree's to change."""
    monkeypatch.setenv("DVC_GLOBAL_CONFIG_DIR", str(tmp_path / "settings"))
    for folder, name in ((tmp_path / "settings", "mine"), (toy.folder / ".dvc", "team")):
        folder.mkdir(exist_ok=True)
        (folder / "config").write_text(f"[core]\n    remote = {name}\n['remote \"{name}\"']\n    url = {tmp_path / name}\n")
    assert Config(str(toy.folder / ".dvc"))["core"]["remote"] == "team"
    _forget_remote(toy.folder)
    with Repo(str(toy.folder)) as repo:
        assert remote_name(repo) is None


def test_a_digest_that_is_not_made_is_told(finished_toy: Any, tmp_path: Path) -> None:
    lock = finished_toy.folder / "dvc.lock"
    text = lock.read_text()
    records = environments.of_artifacts(read_lock(lock), finished_toy.folder / timing.LOG)
    assert [record["threads"] for record in records.values()] == [1] * 6, "by the stages themselves"
    digest = text[text.index("path: data/report") :].split("md5: ")[1].split("\n")[0]
    lock.write_text(text.replace(digest, digest[::-1]))
    finished_toy.command("git", "add", "dvc.lock")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    result = finished_toy.call("HEAD", str(tmp_path / "again"), "cached", script=REPRODUCE)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"data/report          {digest[::-1]}  different: {digest}" in result.stdout
    assert "5 outs equal, 1 different" in result.stdout
    assert "\nreport: there is no record of what it was computed with" in result.stdout


def test_a_revision_is_made_again_after_its_source_has_grown(retraining: Any, server_url: str) -> None:
    project = retraining
    project.environment["PREFECT_API_URL"] = server_url
    project.call("run")
    project.commit()
    project.add(0.9, 0.9)
    out, err = project.call("reproduce", "HEAD")
    assert "executed 0, cached 5" in out, out + err
    assert " outs equal, 0 different" in out
    for options in ("--recompute",), ():  # a stage that needs the former source would have to read the current one
        if not options:
            (project.folder / ".dvc/cache").rename(project.folder / ".dvc/away")
        err = project.call("reproduce", "HEAD", *options, status=2)[1]
        assert len(err.splitlines()) == 1, err
        assert "revision HEAD: dataset.source beir:../source: has changed: found sha256 " in err
    (project.folder / ".dvc/away").rename(project.folder / ".dvc/cache")
    assert "executed 5" in project.call("run")[0], "here the new source is read, and nothing of the refused runs was kept"
