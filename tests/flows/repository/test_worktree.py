"""Second trees: what killed commands left is removed, new code comes along, and a run there has the code of its tree."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo

from flows.process.owners import machine
from flows.process.processes import Processes
from flows.repository.git import git
from flows.repository.lock import commit_of
from flows.repository.project import edit_settings, repository
from flows.repository.worktree import (
    carry_changes,
    equip,
    is_temporary,
    link_sources,
    make_worktree,
    read_changes,
    remove_worktree,
    run_in,
    temp_tree,
    tree_place,
)
from flows.team.remotes import refuse_unmounted
from tasks.core.errors import UserError
from tasks.core.sources.forgotten import FILE, HEAD, mark


def test_trees_of_ended_processes_are_removed(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.folder)
    process = subprocess.Popen(["true"])
    process.wait()
    names = f"reproduce-{machine()}-{os.getpid()}", f"evaluate-{machine()}-{process.pid}", f"evaluate-{machine()}-no"
    alive, dead, strange = (Path(f".retemper/{name}-x") for name in names)
    foreign = Path(f".retemper/evaluate-12345678-{process.pid}-x")  # of a process of another machine, on a shared disk
    for tree in (alive, dead, foreign):
        make_worktree(tree, commit_of("HEAD"))
    strange.mkdir()
    for folder in (Path(".retemper/evaluate/store"), Path(".retemper/sweep")):
        folder.mkdir(parents=True)
    mine = temp_tree("evaluate")
    left = {path.relative_to(toy.folder / ".retemper").as_posix() for path in (toy.folder / ".retemper").iterdir()}
    assert left == {alive.name, foreign.name, mine.name, "evaluate", "sweep"} and mine.is_dir()
    listing = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert alive.name in listing and dead.name not in listing
    remove_worktree(alive)
    assert not alive.exists()


def test_a_worktree_of_the_user_on_an_unmounted_drive_is_kept(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`git worktree prune` removed its index and its HEAD, so that git took it for no repository once the drive was back."""
    monkeypatch.chdir(toy.folder)
    drive, room = tmp_path / "drive", Path(".retemper/room")
    toy.command("git", "worktree", "add", "--quiet", "-b", "mine", str(drive / "mine"))
    drive.rename(tmp_path / "unmounted")
    tree = make_worktree(tree_place(room), commit_of("HEAD"))
    (tree / ".git").write_text("gitdir: nowhere\n")
    (toy.folder / ".git/worktrees/tree/locked").write_text("initializing")  # as a kill of `git worktree add` leaves it
    assert make_worktree(tree_place(room), commit_of("HEAD")) == tree
    remove_worktree(room)
    (tmp_path / "unmounted").rename(drive)
    assert git("status", "--short", "--branch", folder=drive / "mine") == "## mine"
    assert [path.name for path in (toy.folder / ".git/worktrees").iterdir()] == ["mine"] and not room.exists()


def test_a_tree_that_ends_with_its_command_is_known(tmp_path: Path) -> None:
    state = tmp_path / ".retemper"
    for temporary in ("reproduce-7-x", "evaluate-7-x/a/b", "upgrade-7-x", "champion/tree"):
        assert is_temporary(state / temporary), temporary
    for lasting in ("retraining", "sweep/slot-0", "evaluate/store", ".."):
        assert not is_temporary(state / lasting), lasting
    assert not is_temporary(tmp_path / "evaluate-7-x") and not is_temporary(Path("/"))


def test_uncommitted_code_comes_along_and_is_executed(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.folder)
    (toy.folder / "tasks").mkdir()
    (toy.folder / "tasks/fresh.py").write_text("print('fresh code of', __file__)\n")
    tree = make_worktree(Path(".retemper/tree"), commit_of("HEAD"))
    carry_changes(read_changes(commit_of("HEAD")), tree)
    assert (tree / "tasks/fresh.py").exists()
    lines: list[str] = []
    code = "import os, json, runpy, sys; print(sys.path[1]); runpy.run_path('tasks/fresh.py'); p = os.environ['RETEMPER_PROBLEM']; "
    code += "print(os.environ['RETEMPER_TYPED']); "
    code += "open(p, 'w').write(json.dumps([{'kind': 'invalid', 'message': 'a: b', 'status': 2}])); sys.exit(2)"
    monkeypatch.setattr(sys, "argv", ["/bin/retemper", "evaluate", "--model", "a b"])
    status, problems = run_in(tree, [sys.executable, "-c", code], Processes(), show=lines.append, env={"X": "1"})
    assert (status, [problem.message for problem in problems]) == (2, ["a: b"])
    assert lines == [str(tree.absolute()), "fresh code of tasks/fresh.py", "retemper evaluate --model 'a b'"]


@pytest.mark.parametrize("below", ["", "service/search"])
def test_uncommitted_changes_come_along_from_a_subfolder_too(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    """`git apply` reads paths from the top of the repository, and ignores others without an error: the former code ran."""
    top, project = tmp_path / "top", tmp_path / "top" / below
    project.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(toy.folder, project, ignore=shutil.ignore_patterns(".git"))
    (top / "other").mkdir()
    (top / "other/params.yaml").write_text("x: 1\n")
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "x"], ["config", "diff.relative", "true"]):
        git(*command, folder=top)
    monkeypatch.chdir(project)
    for changed in (project / "params.yaml", project / "step.py"):
        changed.write_text("changed: 1\n")
    if below:
        (top / "other/params.yaml").write_text("x: 2\n")
    tree = make_worktree(Path(".retemper/tree"), commit_of("HEAD"))
    carry_changes(read_changes(commit_of("HEAD")), tree)
    assert tree.resolve() == (project / ".retemper/tree" / below).resolve()
    assert [(tree / name).read_text() for name in ("params.yaml", "step.py")] == ["changed: 1\n"] * 2
    assert (project / ".retemper/tree/other/params.yaml").read_text() == "x: 1\n", "what is not the project's stays as committed"


def test_a_project_at_a_path_of_any_letters_shares_its_settings(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC writes its settings as ASCII, so that no sweep, retraining, evaluation, or reproduction ran in a folder named "Müller"."""
    project = tmp_path / "Straße 日本"
    toy.folder.rename(project)
    monkeypatch.chdir(project)
    tree = make_worktree(Path(".retemper/tree"), commit_of("HEAD"))
    equip(tree)
    with Repo(str(tree)) as repo:
        assert Path(repo.cache.local_cache_dir) == project / ".dvc/cache"


def test_a_tree_has_its_own_cache_where_committed_settings_name_a_shared_one(toy: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """`dvc cache dir` writes them, and `reproduce --recompute` took every stage from there."""
    with (toy.folder / ".dvc/config").open("a") as settings:
        settings.write(f"[cache]\n    dir = {tmp_path / 'shared'}\n")
    toy.command("git", "commit", "--quiet", "-am", "share")
    monkeypatch.chdir(toy.folder)
    tree = make_worktree(Path(".retemper/tree"), commit_of("HEAD"))
    for own_cache, cache in ((True, tree.absolute() / ".dvc/cache"), (False, tmp_path / "shared")):
        equip(tree, own_cache=own_cache)
        with Repo(str(tree)) as repo:
            assert Path(repo.cache.local_cache_dir) == cache
    (toy.folder / ".dvc/config.local").write_text("[cache]\n    shared = group\n")  # as `cache share` sets it
    equip(tree, own_cache=True)
    monkeypatch.chdir(tree)
    refuse_unmounted(tree.absolute() / ".dvc/cache")


def test_a_remote_that_is_not_committed_is_used_in_a_tree(toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`retemper remote add` does not commit it, so every retraining crowned champions whose artifacts nobody else could get."""
    monkeypatch.chdir(toy.folder)
    tree = make_worktree(Path(".retemper/tree"), commit_of("HEAD"))
    bucket = {"url": "s3://retemper/cache", "endpointurl": "http://minio:9000"}
    with repository() as repo:
        with edit_settings(repo.config, "repo") as shared:
            shared["remote"] = {"team": bucket, "near": {"url": str(tmp_path / "store")}}
            shared["core"]["remote"] = "team"
        with edit_settings(repo.config, "local") as local:
            local["remote"] = {"team": {"secret_access_key": "k"}}
    with Path(".dvc/config").open("a") as file:
        file.write("['remote \"beside\"']\n    url = ../../store\n")
    equip(tree)
    with Repo(str(tree)) as repo:
        remotes = repo.config["remote"]
        assert repo.config["core"]["remote"] == "team"
        assert dict(remotes["team"]) == {**remotes["team"], **bucket, "secret_access_key": "k"}
        assert remotes["near"]["url"] == str(tmp_path / "store")
        assert Path(remotes["beside"]["url"]) == toy.folder.parent / "store", "relative to the project, not to the tree"
    with repository() as repo, edit_settings(repo.config, "local") as local:
        local["core"]["remote"] = "near"
    equip(tree)
    with Repo(str(tree)) as repo:
        assert repo.config["core"]["remote"] == "near", "what this clone uses"


def test_what_is_forgotten_and_not_committed_stays_out_of_a_tree(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is not changed (a file of pairs) brought it back with the next retraining, sweep, or evaluation."""
    monkeypatch.chdir(toy.folder)
    first, second, third = (f"document {mark('document', name)} 2026-11-29" for name in "abc")
    tree = make_worktree(Path(".retemper/tree"), commit_of("HEAD"))
    equip(tree)
    assert not (tree / FILE).exists()
    FILE.write_text(f"{HEAD}{first}\n{second}\n", encoding="utf-8-sig")
    equip(tree)
    assert (tree / FILE).read_text() == f"{HEAD}{first}\n{second}\n"
    (tree / FILE).write_text(f"{HEAD}{third}\n{second}")
    equip(tree)
    equip(tree)
    assert (tree / FILE).read_text() == f"{HEAD}{third}\n{second}\n{first}\n", "a commit of another branch may have others"


ROOM = Path(".retemper/sweep/slot-0")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree in ROOM, relative to its project, which is the current folder, eight folders below `tmp_path`."""
    project = tmp_path / "a/b/c/d/e/f/g/project"
    (project / tree_place(ROOM)).mkdir(parents=True)
    monkeypatch.chdir(project)
    return tree_place(ROOM)


def set_encoder(tree: Path, source: str) -> Path:
    """Make a folder, set it as the encoder of a tree, and return its absolute path."""
    Path(source).mkdir(parents=True)
    (tree / "params.yaml").write_text(f"encoder: {{source: {source}}}\n")
    return Path(source).resolve()


@pytest.mark.parametrize(("source", "link"), [("../x", "up/up/x"), ("../../x/y", "up/x/y"), ("../../../code", "code")])
@pytest.mark.parametrize("stale", ["", "gone", ".", "below"], ids=["new", "dangling", "of another", "of one below"])
def test_a_relative_source_is_linked_in_the_room(tree: Path, source: str, link: str, stale: str) -> None:
    target, place = set_encoder(tree, source), ROOM / link
    if stale == "below":
        place.mkdir(parents=True)
        (place / "z").symlink_to(target)
    elif stale:
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(Path(stale).absolute())
    for _ in range(2):
        link_sources(tree, ROOM)
        assert place.is_symlink() and place.resolve() == target == (tree / source).resolve()
    assert target.is_dir()


@pytest.mark.parametrize("source", ["../../../../x", "../../../../../code", "../../../../../../x"])
@pytest.mark.parametrize("occupied", [False, True])
def test_a_source_that_is_another_one_from_a_tree_is_refused(tree: Path, source: str, occupied: bool) -> None:
    """Further up is Retemper's own folder, and the project itself: a sweep would be told with results of other data."""
    target, other = set_encoder(tree, source), tree / source
    if occupied:
        other.mkdir()
    before = sorted(Path.cwd().parent.rglob("*"))
    with pytest.raises(
        UserError, match=rf"^params.yaml: encoder.source: {source} resolves to another folder from {tree}, where this runs; give"
    ):
        link_sources(tree, ROOM)
    assert sorted(Path.cwd().parent.rglob("*")) == before
    if occupied:
        other.rmdir()
    other.symlink_to(target)
    link_sources(tree, ROOM)
    assert other.resolve() == target, "the same place by another name"


def test_a_tree_elsewhere_has_links_beside_it_where_nothing_is(tree: Path, tmp_path: Path) -> None:
    """As in a tree made by `retemper reproduce --into`."""
    far_tree = tmp_path / "far/away"
    far_tree.mkdir(parents=True)
    target = set_encoder(tree, "../x")
    (far_tree / "params.yaml").write_text((tree / "params.yaml").read_text())
    link_sources(far_tree)
    assert (tmp_path / "far/x").resolve() == target
    (tmp_path / "far/x").unlink()
    (tmp_path / "far/x").mkdir()
    with pytest.raises(UserError, match="resolves to another folder from"):
        link_sources(far_tree)


def test_a_file_of_pairs_is_linked_without_its_columns(tree: Path) -> None:
    Path("../faq.csv").write_text("Frage,Antwort\na,b\n")
    for columns in ("", "#query=Frage,passage=Antwort"):
        (tree / "params.yaml").write_text(f"dataset: {{source: 'pairs:../faq.csv{columns}'}}\n")
        link_sources(tree, ROOM)
        (ROOM / "up/up/faq.csv").unlink()  # the link; FileNotFoundError without it


def test_a_source_that_git_has_in_a_tree_is_left_alone(tree: Path) -> None:
    set_encoder(tree, "./encoder")
    (tree / "encoder").mkdir()
    link_sources(tree)
    assert not (tree / "encoder").is_symlink()
    (tree / "encoder").rmdir()
    link_sources(tree)
    assert (tree / "encoder").resolve() == Path("encoder").resolve(), "what git does not have comes by a link"
