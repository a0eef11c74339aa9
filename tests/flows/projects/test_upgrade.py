"""`retemper upgrade` on projects of a tiny Retemper: what comes over, what stays, what is refused with nothing changed."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from flows.projects import upgrade as module
from flows.repository.git import GitFailed, git
from tasks.core.errors import UserError

from .conftest import CODE, GRAPH, MIGRATIONS, SECOND, Repository

Make = Callable[[str], Repository]


def version(repository: Repository, revision: str = "HEAD") -> str:
    number = re.search(r'version = "(.*)"', repository.git("show", f"{revision}:pyproject.toml"))
    day = repository.git("show", "--no-patch", "--format=%cd", "--date=format-local:%Y-%m-%d", revision)
    assert number
    return f"{number[1]} ({repository.git('rev-parse', revision)[:7]}, {day})"


@pytest.mark.parametrize("kind", ["new", "clone"])
def test_code_and_parameters_come_over_in_one_commit_that_can_be_reverted(source: Repository, make_project: Make, kind: str) -> None:
    project = make_project(kind)
    project.commit({"dvc.yaml": GRAPH + "\n  mine:\n    cmd: true\n", "tasks/mine.py": "mine\n", "tasks/code.py": CODE + "mine\n"})
    before, first = project.git("rev-parse", "HEAD"), version(source)
    source.commit(SECOND, "second")
    lines = project.upgrade(**({} if kind == "new" else {"source": str(source.folder)}))
    assert lines[0] == f"from {first} to {version(source)} of {source.folder}"
    assert lines[1:7] == [
        "- `b`: new.",
        "new parameter second (default 2): new",
        "no longer a parameter: gone",
        "changed default: first: 1, now 3",
        "params.yaml: first is called once",
        "params.yaml: second: 2 added",
    ]
    assert lines[7:10] == [
        "1 stage runs again, 1 may; how long that takes is not recorded here:",
        "  one: its code",
        "  two: only if a result above changes",
    ]
    commit = project.git("rev-parse", "HEAD")
    assert lines[10] == f"committed as {commit[:7]}; git revert {commit[:7]} undoes it"
    assert "make setup" in lines[11]
    assert len(lines) == 12
    assert project.git("rev-parse", "HEAD^") == before, "one commit, with one parent"
    assert project.git("status", "--porcelain") == ""
    assert project.read("params.yaml") == "# ours to edit\nonce: 1 # of all\nrounds:\n  a: {value: 9}\nsecond: 2 # new\n"
    assert project.read("tasks/code.py") == CODE.replace("line 2\n", "line two\n") + "mine\n"
    assert project.read("dvc.yaml").endswith("mine:\n    cmd: true\n")
    assert project.read("data/source.json") == '{"mine": {}}\n'
    assert (project.read("tasks/new.py"), project.read("tasks/mine.py")) == ("new\n", "mine\n")
    assert project.read("docs/added.md") == "new\n"
    assert not (project.folder / "docs/removed.md").exists(), "what the user removed stays removed"
    assert (project.folder / "tests/test_new.py").exists() == (kind == "clone"), "a project made by new has none of the product's tests"
    assert project.read("README.md") == ("mine\n" if kind == "new" else "the product's, newer\n")
    assert f'commit = "{source.git("rev-parse", "HEAD")}"' in project.read("retemper.toml")
    assert project.state()[3] == [], "nothing lies about"
    assert project.upgrade()[-1] == "nothing to do: code and parameters are up to date"
    assert project.git("rev-parse", "HEAD") == commit

    project.git("revert", "--no-edit", "HEAD")
    assert project.git("rev-parse", "HEAD^{tree}") == project.git("rev-parse", f"{before}^{{tree}}")
    second_lines = project.upgrade(**({} if kind == "new" else {"source": str(source.folder)}))
    assert second_lines[:10] == lines[:10]
    assert project.git("rev-parse", "HEAD^{tree}") == project.git("rev-parse", f"{commit}^{{tree}}")


def test_a_dry_run_changes_nothing(source: Repository, make_project: Make) -> None:
    project = make_project("new")
    source.commit(SECOND)
    before, files = project.state(), project.git("count-objects", "-v")
    lines = project.upgrade(dry=True)
    assert "  one: its code" in lines
    assert lines[-1] == "nothing was changed (--dry-run)"
    assert (project.state(), project.git("count-objects", "-v")) == (before, files)


def test_only_the_branch_that_is_named_moves(source: Repository, make_project: Make) -> None:
    project = make_project("new")
    source.commit(SECOND)
    before = project.git("rev-parse", "HEAD")
    assert "on branch newer" in project.upgrade(branch="newer")[-2]
    assert project.git("rev-parse", "HEAD") == before
    assert project.git("rev-parse", "newer^") == before
    assert project.read("params.yaml").startswith("# ours to edit\nfirst:")
    with pytest.raises(UserError, match="branch newer: exists"):
        project.upgrade(branch="newer")


def test_a_branch_leaves_files_that_are_not_in_git_and_says_how_to_change_them(source: Repository, make_project: Make) -> None:
    project = make_project("new")
    source.commit(SECOND)
    (project.folder / "runtime.yaml").write_text("first: y\n")
    lines = project.upgrade(branch="newer")
    assert project.read("runtime.yaml") == "first: y\n"
    (line,) = (line for line in lines if line.startswith("runtime.yaml: not in git"))
    advice = line.partition("to change: git merge newer, then retemper upgrade --from ")[2]
    project.git("merge", "--quiet", "newer")
    assert f"from {version(source, 'HEAD^')}" in (second := project.upgrade(since=advice))[0], "or a dated migration would not be due"
    assert second[-1] == "runtime.yaml: written (not in git)"
    assert project.read("runtime.yaml") == "once: y\nsecond: 2 # new\n"
    assert project.git("status", "--porcelain") == ""


def test_an_upgrade_that_is_killed_between_its_files_is_done_by_the_next(
    source: Repository, make_project: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are not in git come first: once the branch has moved, they would not be due."""
    project = make_project("new")
    source.commit(SECOND)
    (project.folder / "runtime.yaml").write_text("first: y\n")
    states = []

    def git_and_note(*words: str, **options: Any) -> str:
        if words[0] == "merge":
            states.append(project.read("runtime.yaml"))
        return git(*words, **options)

    monkeypatch.setattr(module, "git", git_and_note)
    project.upgrade()
    assert states == ["once: y\nsecond: 2 # new\n"]


def test_another_revision_is_taken_by_branch_tag_or_commit(source: Repository, make_project: Make) -> None:
    project = make_project("new")
    source.git("tag", "v1")
    source.git("checkout", "--quiet", "-b", "next")
    second = source.commit(SECOND)
    source.git("checkout", "--quiet", "main")
    assert project.upgrade()[-1].startswith("nothing to do")
    for revision in ("next", second, second[:10]):
        assert version(source, second) in project.upgrade(to=revision, dry=True)[0]
    project.upgrade(to="next")
    assert version(source, "v1") in project.upgrade(to="v1", dry=True)[0], "and back"
    with pytest.raises(UserError, match=r"revision v9: not found in the source, expected a branch, tag, or commit"):
        project.upgrade(to="v9")


def test_old_parameters_under_new_code_are_migrated_too(source: Repository, make_project: Make) -> None:
    """As after a merge of the code by hand."""
    source.commit(SECOND)
    project = make_project("new")
    project.commit({"retraining.yaml": "first: x\n"})
    (project.folder / "runtime.yaml").write_text("first: y\n")
    lines = project.upgrade()
    assert [line for line in lines if "second: 2 added" in line] == [
        f"{name}: second: 2 added" for name in ("params.yaml", "runtime.yaml", "retraining.yaml")
    ]
    assert project.read("retraining.yaml") == "once: x\nsecond: 2 # new\n"
    assert project.read("runtime.yaml") == "once: y\nsecond: 2 # new\n"
    assert project.git("show", "--format=", "--name-only", "HEAD").split() == ["params.yaml", "retraining.yaml"]
    assert not any(line.startswith(("- ", "new parameter")) for line in lines)


def test_conflicts_are_named_and_settled_file_by_file(source: Repository, make_project: Make) -> None:
    project = make_project("new")
    mine = CODE.replace("line 2\n", "line mine\n")
    project.commit({"tasks/code.py": mine, "constraints.txt": "a==9\n"})
    source.commit(SECOND)
    before = project.state()
    with pytest.raises(UserError) as refusal:
        project.upgrade()
    assert str(refusal.value).startswith(
        "constraints.txt, tasks/code.py: changed both in this project and in the newer Retemper; nothing was"
    )
    assert project.state() == before
    with pytest.raises(UserError, match=r"^constraints.txt: changed both"):
        project.upgrade(ours=["tasks/code.py"])
    with pytest.raises(UserError, match=r"^tasks/cod.py: found in neither"):
        project.upgrade(ours=["tasks/cod.py"])
    assert project.state() == before
    project.upgrade(ours=["tasks/code.py"], theirs=["constraints.txt"])
    assert (project.read("tasks/code.py"), project.read("constraints.txt")) == (mine, "a==2\n")


def test_removed_code_that_is_newer_is_a_conflict(source: Repository, make_project: Make) -> None:
    project = make_project("new")
    (project.folder / "tasks/code.py").unlink()
    project.commit({})
    source.commit(SECOND)
    with pytest.raises(UserError, match=r"^tasks/code.py: changed both"):
        project.upgrade()
    project.upgrade(ours=["tasks/code.py"])
    assert not (project.folder / "tasks/code.py").exists()


@pytest.mark.parametrize("staged", [False, True])
def test_uncommitted_changes_are_refused(source: Repository, make_project: Make, staged: bool) -> None:
    project = make_project("new")
    source.commit(SECOND)
    (project.folder / "dvc.yaml").write_text("stages: {}\n")
    if staged:
        project.git("add", "dvc.yaml")
    before = project.state()
    with pytest.raises(UserError, match=r"^dvc.yaml: found uncommitted changes, expected none; git commit or git stash them first$"):
        project.upgrade()
    assert project.state() == before


def test_an_untracked_file_in_the_way_is_refused_and_kept(source: Repository, make_project: Make) -> None:
    project = make_project("new")
    source.commit(SECOND)
    (project.folder / "tasks/new.py").write_text("precious\n")
    (project.folder / "runtime.yaml").write_text("first: y\n")
    before = project.git("rev-parse", "HEAD")
    with pytest.raises(GitFailed):
        project.upgrade()
    assert (project.git("rev-parse", "HEAD"), project.read("tasks/new.py")) == (before, "precious\n")
    assert project.read("params.yaml").startswith("# ours to edit\nfirst:")
    assert project.read("runtime.yaml") == "first: y\n"


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({"source": "nowhere"}, r"^nowhere: no such folder, expected a git repository of Retemper"),
        ({"source": "."}, r"found a project \(retemper.toml\), expected Retemper itself"),
        ({"source": "../other"}, r": found no Retemper at that commit, expected its pyproject.toml"),
        ({"source": "../plain"}, r"plain: git fetch: .*; expected the URL or folder of a git repository of Retemper$"),
        ({"source": "../fresh"}, r"^retemper.toml: commit [0-9a-f]{12} is not in the source"),
    ],
    ids=lambda value: value.get("source", "") if isinstance(value, dict) else "",
)
def test_unfit_sources_are_refused(source: Repository, make_project: Make, wish: dict[str, Any], expected: str) -> None:
    project = make_project("new")
    for name, files in (("other", {"x": "y\n"}), ("fresh", {"pyproject.toml": SECOND["pyproject.toml"]})):
        other = Repository(source.folder.with_name(name))
        other.folder.mkdir()
        other.git("init", "--quiet")
        other.commit(files)
    source.folder.with_name("plain").mkdir()
    before = project.state()
    with pytest.raises(UserError, match=expected) as refusal:
        project.upgrade(**wish)
    assert "\n" not in str(refusal.value)
    assert project.state() == before


def test_a_copy_without_history_or_record_needs_its_version_named(source: Repository, make_project: Make) -> None:
    project = make_project("new")
    project.git("rm", "--quiet", "retemper.toml")
    project.commit({})
    first = source.git("rev-parse", "HEAD")
    source.commit(SECOND)
    with pytest.raises(UserError, match=r"shares no commit with the source, and it has no retemper.toml; .*--from REV$"):
        project.upgrade(source=str(source.folder))
    assert project.upgrade(source=str(source.folder), since=first)[-2].startswith("committed as")
    assert (project.folder / "retemper.toml").exists()


def test_what_the_newer_code_refuses_is_said(source: Repository, make_project: Make) -> None:
    project = make_project("new")
    source.commit(SECOND | {"tasks/answer": "fail: no data here\n"})
    lines = project.upgrade(dry=True)
    assert "cannot tell here which stages will run again: fail: no data here" in lines
    source.commit({"flows/parameters/migrations.py": MIGRATIONS + "\nraise SystemExit('broken')\n"})
    before = project.state()
    with pytest.raises(UserError, match=r"the newer version's migrations failed: broken"):
        project.upgrade()
    assert project.state() == before


def test_a_project_below_the_top_of_its_repository(source: Repository, make_project: Make) -> None:
    repository = make_project("new")
    repository.git("rm", "-r", "--quiet", "--cached", ".")
    inside = repository.folder / "below"
    inside.mkdir()
    for path in [path for path in repository.folder.iterdir() if path.name not in (".git", "below")]:
        path.rename(inside / path.name)
    repository.commit({"tasks/code.py": "another project's\n", "below/tasks/mine.py": "mine\n"})
    source.commit(SECOND)
    below = Repository(inside)
    assert below.upgrade()[-2].startswith("committed as")
    assert below.read("tasks/code.py") == SECOND["tasks/code.py"]
    assert repository.read("tasks/code.py") == "another project's\n"
    assert below.read("params.yaml").startswith("# ours to edit\nonce:")
