"""The files of a new project: a copy of Retemper's own at one commit, with a README and a record of their origin.

It is a copy with its own history, not a clone: the project's log is about its data and models, champions' tags are its own, and Retemper's
tests and benchmarks would fail or mislead there. `retemper upgrade` needs no common history, only the commit in retemper.toml.
"""

from pathlib import Path

from flows.projects.record import CHECKOUT, RECORD, Record, Version, installed_source, read_record, recorded_name, version_of
from flows.projects.trees import fetch, resolve
from flows.repository.git import git
from tasks.core.errors import UserError
from tasks.core.files import write_text

LEFT_OUT = ("tests/", "benchmarks/", ".ci/", "README.md", "CHANGELOG.md", "data/source.json", "dvc.lock", str(RECORD))
README = """\
# {name}

A [Retemper](docs/commands.md) project: it trains retrievers on `{data}`, and retrains them as the data grows.

```
make run              # set up .venv, then run; or retemper run, if it is installed
retemper search "..."
retemper retrain      # after new data: promote a new model if it is not worse
retemper upgrade      # a newer Retemper
```

- `params.yaml`: data, rounds, lengths ([docs/parameters.md](docs/parameters.md), [docs/recipes.md](docs/recipes.md)). Its learning
  rates and steps are a start; choose your own on dev.
- `retraining.yaml` (optional): inbox, kind of retraining, promotion ([docs/retraining.md](docs/retraining.md)).
- `runtime.yaml` (optional, not in git): this machine's device and threads ([docs/machine.md](docs/machine.md)).
- `dvc.lock` says which results belong to which commit: commit it after a run, with `params.yaml` and `data/source.json`.
- `flows/`, `tasks/`, `dvc.yaml` are Retemper's code ({version}). Your own changes to them survive an upgrade, as git merges both.
"""


def code_source(place: str, scratch: Path) -> tuple[Path, str, str]:
    """A repository with Retemper's code, the commit, and the name of the source.

    `place`: a URL or folder; empty: the source that this Retemper is installed from. If it is not local, it is fetched to `scratch`.
    """
    record = None if place else read_record()
    source = place or installed_source()
    if not place and record is None:
        return CHECKOUT, git("rev-parse", "HEAD", folder=CHECKOUT), source
    git("init", "--quiet", "--bare", str(scratch))
    fetch(str(Path(source).resolve()) if Path(source).is_dir() else source, scratch)
    return scratch, resolve(record.commit if record else "HEAD", scratch), source


def lay_out(folder: Path, code: tuple[Path, str, str]) -> Version:
    """Write Retemper's files of a commit to the empty `folder`, make it a git repository, and record their origin."""
    repository, commit, source = code
    version = version_of(commit, repository)
    all_names = git("ls-tree", "-r", "--name-only", "-z", "--full-tree", commit, folder=repository).split("\0")
    names = [name for name in all_names if name and not name.startswith(LEFT_OUT)]
    if RECORD.name in all_names:
        raise UserError(f"{source}: found a project ({RECORD}), expected Retemper itself; name the source in that file")
    git("init", "--quiet", str(folder))
    git("symbolic-ref", "HEAD", "refs/heads/main", folder=folder)
    index = {"GIT_INDEX_FILE": str(folder.absolute() / ".git" / "retemper-index")}
    locations = ("--git-dir", git("rev-parse", "--absolute-git-dir", folder=repository), "--work-tree", str(folder.absolute()))
    git(*locations, "read-tree", commit, folder=folder, env=index)
    git(*locations, "checkout-index", "-z", "--stdin", folder=folder, env=index, text="".join(f"{name}\0" for name in names))
    (folder / ".git" / "retemper-index").unlink()
    write_text(folder / RECORD, Record(recorded_name(source, commit), version.number, commit).text)
    return version


def write_readme(folder: Path, *, name: str, data: str, version: Version) -> None:
    write_text(folder / "README.md", README.format(name=name, data=data, version=version))
