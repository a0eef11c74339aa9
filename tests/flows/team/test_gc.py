"""What garbage collection keeps (branches, tags, experiments, working trees) and what it removes; never during a run."""

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dvc.fs import LocalFileSystem

from flows.process import locks
from flows.storage import cache as integrity
from flows.team import gc, remotes
from tasks.core.errors import UserError


def digest(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_what_a_tag_needs_stays_until_the_tag_goes(
    finished_toy: Any, tmp_path: Path, executed: Callable[[dict[str, str]], set[str]]
) -> None:
    assert finished_toy.call("remote", "add", "team", str(tmp_path / "remote")).returncode == 0
    finished_toy.run()  # which pushes
    branch = "retemper/retraining"
    finished_toy.command("git", "checkout", "--quiet", "-b", branch)
    finished_toy.command("git", "add", "dvc.lock")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    finished_toy.command("git", "tag", "-a", "champion/1", "-m", "first")
    finished_toy.command("git", "checkout", "--quiet", "-")
    finished_toy.command("git", "branch", "--quiet", "-D", branch)
    (finished_toy.folder / "dvc.lock").write_text("")  # checkout has removed it
    (finished_toy.folder / "dvc.lock").unlink()
    old_digest = digest(finished_toy.folder / "data/encoders/b")
    finished_toy.set_rounds(a="1", b="3")
    assert "train@b" in executed(finished_toy.run())
    cache = finished_toy.folder / ".dvc/cache/files/md5"
    runs = finished_toy.folder / ".dvc/cache/runs"
    assert integrity.object_path(cache, old_digest).exists()

    def gc(*options: str) -> str:
        result = finished_toy.call("gc", *options)
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    assert "would remove: 0 objects" in gc("--dry-run")
    finished_toy.command("git", "tag", "-d", "champion/1")
    output = gc("--dry-run", "--remote", "team")
    assert "remote team: would remove: 0 objects" in output, "colleagues push before they commit"
    assert "3 more objects" in output
    foreign = tmp_path / "remote/files/md5/upload.tmp"
    foreign.write_text("another program's")
    output = gc("--dry-run", "--remote", "team", "--days", "0")
    assert "data/encoders/b" in output
    assert "3 objects" in output
    assert "3 recorded runs" in output
    assert "no git remote: only this clone's" in output
    assert integrity.object_path(cache, old_digest).exists(), "a dry run removes nothing"
    record_count = len(list(runs.glob("*/*/*")))
    torn = cache / ".duEh8J9R-T9BUlUhGCRYvg.tmp"
    torn.write_text("what a killed DVC was writing")
    gc("--remote", "team", "--days", "0")
    assert not torn.exists()
    assert finished_toy.call("verify", "--remote", "team").returncode == 0
    assert foreign.exists(), "what is not named like an object is neither garbage nor corrupt"
    for root in (cache, tmp_path / "remote/files/md5"):
        assert not integrity.object_path(root, old_digest).exists()
        assert integrity.object_path(root, digest(finished_toy.folder / "data/encoders/b")).exists()
    assert len(list(runs.glob("*/*/*"))) == record_count - 3, "no record is left of runs whose outs are gone"
    assert len(list((tmp_path / "remote/runs").glob("*/*/*"))) == record_count - 3
    assert executed(finished_toy.run()) == set()
    finished_toy.set_rounds(a="1", b="2")
    assert executed(finished_toy.run()) == {"train@b", "evaluate@b", "report"}


def test_gc_is_refused_while_a_run_is_in_progress(finished_toy: Any) -> None:
    import sys

    script = "from flows.process import locks\nwith locks.hold_run_lock():\n    print('held', flush=True)\n    input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=finished_toy.folder,
        env=finished_toy.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    result = finished_toy.call("gc")
    holder.kill()
    holder.wait()
    assert result.returncode == 2
    assert "another run is in progress in this folder" in result.stderr


def test_nothing_is_removed_after_a_kill_that_truncated_dvc_lock(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    entry = "schema: '2.0'\nstages:\n  train:\n    cmd: x\n    outs:\n    - path: data/x\n      hash: md5\n      md5: {}\n"
    (tmp_path / locks.BEFORE).parent.mkdir()
    (tmp_path / locks.BEFORE).write_text(entry.format("before"))
    lock = tmp_path / locks.DVC_LOCK
    for cut in ("", entry[:30], entry[:44], entry.format("no")[:-1]):
        lock.write_text(cut)
        with pytest.raises(UserError, match=r"dvc\.lock: truncated"):
            gc.find_needs([], [tmp_path])
    lock.write_text(entry.format("now"))
    assert gc.find_needs([], [tmp_path]).oids == {"before", "now"}


def test_what_further_data_sets_were_measured_with_is_needed(tmp_path: Path) -> None:
    lock = tmp_path / ".retemper/extra/nq/systems.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("schema: '2.0'\nstages:\n  encode:\n    cmd: x\n    outs:\n    - {path: data/x, hash: md5, md5: theirs}\n")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert gc.find_needs([], [tmp_path]).oids == {"theirs"}


def test_files_of_a_needed_folder_are_needed() -> None:
    needs = gc.Needs()
    needs.add({"train": {"outs": [{"path": "data/x", "md5": "aa.dir"}, {"path": "data/y", "md5": "bb"}]}})
    needs.names["cc.dir"] = "an earlier data/z"
    contents = {"aa.dir": {"one": "11", "two": "22"}, "cc.dir": {"three": "33", "two": "22"}}
    assert gc.with_contents(needs, contents.get) == {"aa.dir", "bb", "11", "22"}
    assert needs.names["33"] == "an earlier data/z/three"
    needs.add({"train": {"outs": [{"path": "data/w", "md5": "dd.dir"}]}})
    gc.with_contents(needs, contents.get)
    assert needs.unread == ["train: data/w"]


@pytest.mark.parametrize("entry", [{}, {"outs": None}, {"outs": [{"path": "x"}]}])
def test_entries_without_digests_need_nothing(entry: dict[str, Any]) -> None:
    assert list(integrity.outs(entry)) == []


def test_dvc_files_and_inner_locks_of_every_reference_are_needed(tmp_path: Path) -> None:
    """Whatever their names, and even where the working tree has none of them."""

    def git(*words: str) -> None:
        author = ["-c", "user.name=toy", "-c", "user.email=toy@example.com"]
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch=main")
    project = tmp_path / "project"
    (project / ".dvc").mkdir(parents=True)
    (project / "params.yaml").write_text("")
    (tmp_path / "beside.dvc").write_text("outs: [{path: x, md5: beside}]\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "empty")
    for branch, name in (("added", "völlig.dvc"), ("below", "inner folder/x.dvc"), ("locked", "inner/dvc.lock"), ("exp", "e.dvc")):
        git("checkout", "--quiet", "-b", branch, "main")
        (project / name).parent.mkdir(exist_ok=True)
        outs = f"outs: [{{path: x, md5: {branch}}}]"
        (project / name).write_text(f"stages: {{a: {{{outs}}}}}\n" if name.endswith("lock") else f"{outs}\n")
        git("add", ".")
        git("commit", "--quiet", "-m", branch)
    git("tag", "-a", "v1", "-m", "v1", "added")
    git("update-ref", "refs/exps/aa/bb/name", "exp")
    git("checkout", "--quiet", "main")
    git("branch", "--quiet", "-D", "added", "exp")
    for stash in ("first", "second"):
        (project / "stashed.dvc").write_text(f"outs: [{{path: x, md5: {stash}}}]\n")
        git("add", ".")
        git("stash")
    git("tag", "blob", "HEAD:beside.dvc")  # a tag need not point to a commit
    (project / "größe.dvc").write_text("outs: [{path: x, md5: here}]\n")
    needs = gc.find_needs([project], [project])
    assert needs.oids == {"added", "below", "locked", "exp", "here", "first", "second"}
    assert needs.without == ["refs/heads/main", "refs/tags/blob"]
    git("checkout", "--quiet", "below")
    (project / "inner folder/x.dvc").write_text("a line")
    with pytest.raises(UserError, match=r"x\.dvc: invalid \.dvc file"):
        gc.find_needs([], [project])


def add_object(objects: Path, content: bytes, kind: str = "") -> str:
    """Put an object below a `files/md5`; returns its digest."""
    oid = hashlib.md5(content).hexdigest() + kind
    path = integrity.object_path(objects, oid)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return oid


class Collected:
    """A project whose dvc.lock has a folder, and its objects."""

    def __init__(self, folder: Path) -> None:
        self.objects = folder / ".dvc/cache/files/md5"
        self.inner = [add_object(self.objects, content) for content in (b"a", b"b")]
        self.text = json.dumps([{"md5": oid, "relpath": name} for oid, name in zip(self.inner, "ab", strict=True)]).encode()
        self.listing = add_object(self.objects, self.text, ".dir")
        self.write_lock()

    def write_lock(self, stage: str = "prepare") -> None:
        out = f"    - path: data/corpus\n      hash: md5\n      md5: {self.listing}\n"
        Path("dvc.lock").write_text(f"schema: '2.0'\nstages:\n  {stage}:\n    cmd: x\n    outs:\n{out}")

    def gc(self, remote: str | None = None, days: float = 0) -> str:
        lines: list[str] = []
        gc.collect(False, remote, lines.append, days=days)
        return "\n".join(lines)

    def gc_refusal(self, remote: str | None = None) -> str:
        with pytest.raises(UserError) as refusal:
            self.gc(remote)
        assert self.is_whole()
        return str(refusal.value)

    def is_whole(self) -> bool:
        return all(integrity.object_path(self.objects, oid).exists() for oid in self.inner)


def test_files_of_a_needed_folder_stay_where_its_listing_is_lost(root: Path, tmp_path: Path) -> None:
    project = Collected(root)
    assert "removed: 0 objects" in project.gc()
    path = integrity.object_path(project.objects, project.listing)
    path.write_bytes(project.text[:-9])
    message = f"prepare: data/corpus: its listing {project.listing} is missing or corrupt, so which files it needs is unknown"
    assert project.gc_refusal() == f"{message}; run retemper run prepare in {root}"
    project.write_lock("of_a_removed_round")
    assert project.gc_refusal().endswith("; run retemper verify, then dvc fetch --all-commits")
    path.unlink()
    project.write_lock()
    assert project.gc_refusal() == f"{message}; run retemper run prepare in {root}"

    remotes.add("team", str(tmp_path / "remote"), [])
    add_object(tmp_path / "remote/files/md5", project.text, ".dir")
    assert "removed: 0 objects" in project.gc()
    assert project.is_whole(), "the remote says what it needs"
    (integrity.object_path(tmp_path / "remote/files/md5", project.listing)).write_bytes(b"[{")
    project.gc_refusal()
    project.write_lock("of_a_removed_round")
    assert "found a corrupt listing, so which files it needs is unknown, and nothing was removed; run retemper verify --remote team" in (
        project.gc_refusal("team")
    )
    output = project.gc()
    assert (
        "1 folder of other commits is neither here nor on the remote, so no file is kept for them: of_a_removed_round: data/corpus"
        in output
    )
    assert not project.is_whole()


def test_a_folder_without_files_needs_none(root: Path) -> None:
    project = Collected(root)
    project.listing = add_object(project.objects, b"[]", ".dir")
    project.write_lock()
    assert "removed: 3 objects" in project.gc()


def test_a_truncated_listing_that_reached_the_remote_is_one_line(root: Path, tmp_path: Path) -> None:
    """A recent folder that nothing needs: its files are kept too, but which files they are is unknown."""
    project = Collected(root)
    remotes.add("team", str(tmp_path / "remote"), [])
    listing = integrity.object_path(tmp_path / "remote/files/md5", add_object(tmp_path / "remote/files/md5", b"[1]", ".dir"))
    listing.write_bytes(b"[1")
    with pytest.raises(UserError, match=r"found a corrupt listing.* run retemper verify --remote team"):
        project.gc("team", 7)


def test_what_failed_pushes_left_on_a_remote_is_removed(root: Path, tmp_path: Path) -> None:
    project = Collected(root)
    remotes.add("team", str(tmp_path / "remote"), [])
    names = ("files/md5/ab/.duEh8J9R-T9BUlUhGCRYvg.tmp", f"runs/ab/{'ab' * 32}/.{'0f' * 16}.partial")
    old, young = ([tmp_path / "remote" / name.replace("ab/.", f"{prefix}/.") for name in names] for prefix in ("01", "02"))
    for path in [*old, *young]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    for path in old:
        os.utime(path, (time.time() - 3 * 86400,) * 2)
    assert "unfinished" not in project.gc("team", 4)
    assert "remote team: removed 2 unfinished copies that failed pushes left" in project.gc("team", 0)
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in young), "a push may be writing them"


def test_runs_that_only_a_remote_has_are_removed_there_and_not_copied_here(root: Path, tmp_path: Path) -> None:
    project, remote, lines = Collected(root), tmp_path / "remote", list[str]()
    remotes.add("team", str(remote), [])
    add_object(remote / "files/md5", project.text, ".dir")
    oids = {"needed": project.listing, "lost": add_object(remote / "files/md5", b"lost")}
    for folder, names in ((remote, ("needed", "lost")), (root / ".dvc/cache", ("needed",))):
        for name in names:
            path = folder / "runs/ab" / f"ab{name}" / name
            path.parent.mkdir(parents=True)
            path.write_text(f"cmd: x\nouts:\n- path: data/{name}\n  hash: md5\n  md5: {oids[name]}\n")

    def names_in(folder: Path) -> set[str]:
        return {path.name for path in (folder / "runs").glob("*/*/*")}

    gc.collect(True, "team", lines.append, days=0)
    output = "\n".join(lines)
    assert "an earlier data/lost" in output
    assert "remote team: would remove: 1 object, 0.000 MB, 1 recorded run" in output, output
    assert "cache: would remove: 0 objects, 0.000 MB, 0 recorded runs" in output, output
    assert (names_in(root / ".dvc/cache"), names_in(remote)) == ({"needed"}, {"needed", "lost"}), "a dry run changes nothing"
    project.gc("team")
    assert names_in(root / ".dvc/cache") == names_in(remote) == {"needed"}
    assert not integrity.object_path(remote / "files/md5", oids["lost"]).exists()


def test_a_truncated_record_of_a_run_does_not_hide_the_remotes(tmp_path: Path) -> None:
    text = "cmd: x\nouts:\n- path: data/a\n  md5: one\n"
    runs = {"here": {"same": text, "truncated": text[: text.index("5: one")]}, "team": {"same": text, "truncated": text, "theirs": text}}
    for place, texts in runs.items():
        for name, content in texts.items():
            path = tmp_path / place / "runs/ab/abc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    needs = gc.Needs()
    remote = SimpleNamespace(fs=LocalFileSystem(), path=str(tmp_path / "team"))
    entries = gc.remote_runs(remote, tmp_path / "here", needs)
    entry = {"cmd": "x", "outs": [{"path": "data/a", "md5": "one"}]}
    assert entries == {str(tmp_path / "team/runs/ab/abc" / name): entry for name in runs["team"]}
    assert needs.names == {"one": "an earlier data/a"}


def test_what_the_remote_is_still_to_be_sent_stays(
    finished_toy: Any, tmp_path: Path, executed: Callable[[dict[str, str]], set[str]]
) -> None:
    """Until it is sent, or the user says so."""

    def gc(*options: str) -> str:
        result = finished_toy.call("gc", *options)
        assert (result.returncode, result.stderr) == (0, "")
        return str(result.stdout)

    assert finished_toy.call("remote", "add", "team", str(tmp_path / "remote")).returncode == 0
    finished_toy.run()
    finished_toy.command("git", "add", ".")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    (tmp_path / "remote").rename(tmp_path / "away")
    for value in ("3", "4"):
        finished_toy.set_rounds(a="1", b=value)
        assert executed(finished_toy.run()) == {"train@b", "evaluate@b", "report"}
    finished_toy.command("git", "checkout", "--quiet", "--", "dvc.lock", "params.yaml")
    message = "MB, not pushed yet: retemper run pushes them, --unsent removes them\n"
    for options in (["--dry-run"], []):
        output = gc(*options)
        assert output.startswith("kept: 6 objects, 0.00"), output
        assert message in output
        assert ": 0 objects" in output
    (tmp_path / "away").rename(tmp_path / "remote")
    assert executed(finished_toy.run()) == set()
    assert message not in (output := gc())
    assert "6 objects" in output
    assert executed(finished_toy.run()) == set()
    finished_toy.set_rounds(a="1", b="3")
    assert executed(finished_toy.run()) == set(), "the remote has it"
    (finished_toy.folder / ".retemper/pushed.json").unlink()  # a new remote, which has none of the earlier results
    finished_toy.command("git", "checkout", "--quiet", "--", "dvc.lock", "params.yaml")
    assert message in gc("--dry-run")
    assert message not in (output := gc("--unsent"))
    assert "3 objects" in output


@pytest.mark.parametrize("days", [-7, float("nan")])
def test_days_are_a_number_of_days(days: float) -> None:
    with pytest.raises(UserError, match=r"--days: found (-7|nan), expected 0 or more"):
        gc.collect(False, "team", print, days=days)


def test_a_link_to_a_cache_is_not_this_projects_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("project", "shared"):
        (tmp_path / name / ".dvc").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "project")], check=True)
    monkeypatch.chdir(tmp_path / "project")
    cache = Path.cwd() / ".dvc/cache"
    assert gc.users_of(cache) == ([Path.cwd()], [Path.cwd()])
    cache.symlink_to(tmp_path / "shared")
    with pytest.raises(UserError, match="this cache is outside the project, and who else uses it is unknown"):
        gc.users_of(cache)
    remotes.register(tmp_path / "shared", Path.cwd())
    assert gc.users_of(cache) == ([Path.cwd()], [Path.cwd()])


def test_a_run_makes_the_cache_of_another_clone_a_shared_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage collection in that clone removed what this one had committed."""
    owner, other = tmp_path / "owner", tmp_path / "other"
    for clone in (owner, other):
        (clone / ".dvc").mkdir(parents=True)
        subprocess.run(["git", "init", "--quiet", str(clone)], check=True)
    cache = owner / ".dvc/cache"
    cache.mkdir()
    monkeypatch.chdir(owner)
    remotes.register_again(cache, pytest.fail)
    assert not (cache / "projects").exists(), "its own alone"
    monkeypatch.chdir(other)
    remotes.register_again(cache, pytest.fail)
    remotes.register_again(cache, pytest.fail)
    assert sorted(remotes.registered(cache)) == [other, owner]
    monkeypatch.chdir(owner)
    assert gc.users_of(cache) == ([owner, other], [owner, other])
