"""The record of the Retemper that a project's code is from: retemper.toml in the project, and what identifies a version.

A version is pyproject's number and a commit: between two releases the number alone identifies nothing.
"""

import tomllib
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from platform import python_version

from flows.parameters.edit import literal
from flows.repository.git import git
from tasks.core.errors import UserError, redacted

RECORD = Path("retemper.toml")
HEADING = "# The Retemper that this project's code is from; `retemper new` and `retemper upgrade` write it.\n"
CHECKOUT = Path(__file__).resolve().parents[2]  # the folder that this Retemper is installed from
LIBRARIES = ("torch", "faiss-cpu", "faiss-gpu")  # those on which results depend most
MARKS = ("dvc.yaml", "params.yaml", "pyproject.toml", "flows", "tasks")  # a checkout of Retemper has them all


@dataclass(frozen=True)
class Record:
    """The content of retemper.toml. `source`: a git URL, or an absolute path."""

    source: str
    version: str
    commit: str

    @property
    def text(self) -> str:
        return HEADING + "".join(f"{key} = {literal(value)}\n" for key, value in vars(self).items())


@dataclass(frozen=True)
class Version:
    """A commit of Retemper, the version number in its pyproject.toml, and when it was made."""

    number: str
    commit: str
    made: datetime

    def __str__(self) -> str:
        return f"{self.number} ({self.commit[:7]}, {self.made:%Y-%m-%d})"


def parse_record(text: str | None) -> Record | None:
    """The record in this text, None without one. Raises UserError if it is invalid."""
    if text is None:
        return None
    try:
        values = tomllib.loads(text)
        return Record(*(str(values[key]) for key in ("source", "version", "commit")))
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise UserError(f"{RECORD}: invalid ({error}), expected source, version, and commit; restore it: git checkout {RECORD}") from None


def read_record() -> Record | None:
    """The record of the project that this code is in; None if it is in a checkout of Retemper itself."""
    path = CHECKOUT / RECORD
    return parse_record(path.read_text(encoding="utf-8") if path.is_file() else None)


def version_of(commit: str, folder: Path) -> Version:
    """The version at a commit of the git repository in `folder`. Raises UserError if that commit is not one of Retemper."""
    try:
        project = tomllib.loads(git("show", f"{commit}:pyproject.toml", folder=folder, check=False))["project"]
        if project["name"] != "retemper":
            raise KeyError("retemper")
    except (tomllib.TOMLDecodeError, KeyError):
        raise UserError(f"{commit[:12]}: found no Retemper at that commit, expected its pyproject.toml; name another source") from None
    made = datetime.fromisoformat(git("show", "--no-patch", "--format=%cI", commit, folder=folder))
    return Version(str(project["version"]), commit, made)


def installed_source() -> str:
    """The git checkout that this Retemper is installed from, or, if that is a project, the source of its code.

    Raises UserError if it is not installed from a checkout.
    """
    if record := read_record():
        return record.source
    if not all((CHECKOUT / name).exists() for name in MARKS) or not (CHECKOUT / ".git").exists():
        raise UserError(f"{CHECKOUT}: found no git checkout of Retemper there, expected one that it is installed from; name a source")
    return str(CHECKOUT)


def running() -> str:
    """Two lines on the code that runs: version, commit, and folder; versions of Python and LIBRARIES. None of them is imported."""
    record, project = read_record(), CHECKOUT / "pyproject.toml"
    if record:
        number, commit = record.version, record.commit
    else:
        number = str(tomllib.loads(project.read_text("utf-8"))["project"]["version"]) if project.is_file() else metadata.version("retemper")
        commit = git("rev-parse", "HEAD", folder=CHECKOUT, check=False) if (CHECKOUT / ".git").exists() else ""
    versions = [f"{name} {installed}" for name in LIBRARIES if (installed := _installed(name))]
    first = f"retemper {number}{f' (commit {commit[:12]})' if commit else ''}, {CHECKOUT}"
    return f"{first}\n{', '.join([f'Python {python_version()}', *versions])}"


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def is_url(source: str, folder: Path = Path()) -> bool:
    """Whether git in `folder` reads `source` as a URL: SCHEME://..., or HOST:PATH, where no such folder exists."""
    return "://" in source or (":" in source.partition("/")[0] and not (folder / source).exists())


def recorded_name(source: str, commit: str) -> str:
    """The form in which a source is recorded. If a checkout's remote has the commit, it is the remote's URL, which a whole team can use."""
    place = Path(source)
    if not place.is_dir():
        return redacted(source)
    origin = git("config", "--get", "remote.origin.url", folder=place, check=False)
    pushed = origin and git("branch", "--remotes", "--contains", commit, folder=place, check=False)
    if not pushed:
        return str(place.resolve())
    return redacted(origin) if is_url(origin, place) else str((place / origin).resolve())
