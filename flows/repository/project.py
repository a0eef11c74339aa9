"""The project in the current folder: checks of its files, DVC's view of it, and DVC's errors as one line."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from flows.process.processes import name_user
from flows.repository.git import refuse_no_git
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml, refuse_yaml_bomb

GRAPH, LOCK = Path("dvc.yaml"), Path("dvc.lock")
KEPT = (GRAPH, LOCK, Path("params.yaml"), Path("data/source.json"))  # in git, so a merge may leave conflict markers
SETTINGS = Path(".dvc/config"), Path(".dvc/config.local")  # DVC's settings: committed, and of this clone only
CONFLICT = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


@contextmanager
def repository(folder: Path = Path()) -> Iterator[Any]:
    """Open DVC's view of the project in `folder`, also for a user without a name, and if DVC's memory is corrupt."""
    from dvc.repo import Repo

    name_user()
    replace_corrupt_state()
    repo = Repo(str(folder))
    try:
        yield repo
    finally:
        repo.close()


@cache
def replace_corrupt_state() -> None:
    """From now on, if DVC's memory of digests and links (an SQLite file outside the project) is corrupt, begin with an empty one.

    It is only there to save time.
    """
    from sqlite3 import DatabaseError, OperationalError

    from dvc_data.hashfile.state import State

    opened = State.__init__

    def open_or_replace(self: Any, root_dir: Any = None, tmp_dir: Any = None, ignore: Any = None) -> None:
        try:
            opened(self, root_dir, tmp_dir, ignore)
            for memory in (self.links, self.hashes) if tmp_dir else ():
                memory._sql("SELECT COUNT(*) FROM Cache").fetchall()  # reads every page, as nothing has been read yet
        except OperationalError:  # locked, or a full disk
            raise
        except DatabaseError:
            for name in ("links", "hashes"):
                shutil.rmtree(Path(tmp_dir, name), ignore_errors=True)
            opened(self, root_dir, tmp_dir, ignore)

    setattr(State, "__init__", open_or_replace)  # noqa: B010 - mypy forbids the plain form


@contextmanager
def edit_settings(config: Any, level: str, *, validate: bool = True) -> Iterator[Any]:
    """Edit a level of DVC's settings, written at the end, as UTF-8.

    DVC itself writes ASCII: at a path with any other letter it fails, and leaves an empty file.
    """
    _write_utf8()
    with config.edit(level, validate=validate) as edited:
        yield edited


@cache
def _write_utf8() -> None:
    from configobj import ConfigObj  # type: ignore[import-untyped]

    write = ConfigObj.write

    def write_utf8(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.default_encoding = "utf-8"
        return write(self, *args, **kwargs)

    setattr(ConfigObj, "write", write_utf8)  # noqa: B010 - mypy forbids the plain form


def lock_is_readable(lock: Path = LOCK) -> bool:
    """Whether dvc.lock is valid. Nothing else is checked."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        COMPILED_LOCKFILE_SCHEMA(read_yaml(lock))
    except (UserError, Invalid):
        return False
    return True


@contextmanager
def dvc_errors() -> Iterator[None]:
    """Turn DVC's errors into a UserError, one line."""
    from dvc.config import ConfigError
    from dvc.exceptions import DvcException

    try:
        yield
    except ConfigError as error:
        raise _settings_error(error) from error
    except DvcException as error:
        place, remedy = (LOCK, "; restore the last intact one: git checkout dvc.lock") if LOCK.name in str(error) else (GRAPH, "")
        try:
            read_yaml(place)  # its error has the line number
        except UserError as fault:
            raise UserError(f"{fault}{remedy}") from error
        cause = error.__cause__
        detail = f" ({cause})" if cause and str(cause) not in str(error) else ""
        raise UserError(f"{place}: {error}{detail}{remedy}") from error


@contextmanager
def settings_errors() -> Iterator[None]:
    """Turn DVC's refusal of its settings into a UserError, wherever it occurs. Does not import DVC."""
    try:
        yield
    except Exception as error:
        if "dvc.config" in sys.modules and isinstance(error, sys.modules["dvc.config"].ConfigError):
            raise _settings_error(error) from error
        raise


def _settings_error(error: Exception) -> UserError:
    reason = str(error).removeprefix("config file error: ")
    return UserError(f"{SETTINGS[0]} (or {SETTINGS[1].name} there): refused by DVC ({reason}); fix it, dvc config --help lists the options")


def refuse_settings(path: Path) -> None:
    """UserError if a file of DVC's settings cannot be read. A line may hold a password, so only a section or key of it is shown."""
    from configobj import ConfigObj, ConfigObjError, DuplicateError

    try:
        ConfigObj(path.read_text(encoding="utf-8").splitlines() if path.exists() else [])
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except ConfigObjError as error:
        fault = (error.errors or [error])[0]
        line, place = str(fault.line).strip(), f"{path}:{fault.line_number}"
        if isinstance(fault, DuplicateError):
            item = f"section {line}" if line.startswith("[") else f"key {line.partition('=')[0].strip()}"
            raise UserError(f"{place}: found {item} again, expected it once; merge the two") from None
        if CONFLICT.match(line):
            raise UserError(f"{place}: found a merge conflict marker; keep one side (git checkout --ours {path} keeps ours)") from None
        raise UserError(f"{place}: cannot be read, expected a line [section], ['remote \"NAME\"'], or key = value; fix the line") from None


def project_folder(merging: bool = False) -> None:
    """UserError if the current folder is not a project, is not writable, or (unless `merging`) has merge conflicts."""
    project = Path.cwd()
    refuse_separator(project)
    for name in ("dvc.yaml", "params.yaml", ".dvc"):
        if not Path(name).exists():
            raise UserError(f"{project}: no {name} here; run retemper in the project's folder")
    for path in map(Path, ("data", ".retemper")):
        if path.exists() and not path.is_dir():
            raise UserError(f"{project / path}: found a file, expected a folder; move it away")
    for path in KEPT if not merging else ():
        refuse_conflict(path)
        if path.suffix != ".json":
            refuse_yaml_bomb(path)
    for path in SETTINGS:
        refuse_settings(path)
    refuse_no_git()
    if not any((folder / ".git").exists() for folder in (project, *project.parents)):
        raise UserError(f"{project}: not in a git repository, expected one (DVC needs it); run git init")
    if not os.access(project, os.W_OK) or (Path("data").exists() and not os.access("data", os.W_OK)):
        raise UserError(f"{project}: no permission to write here; run as its owner, or copy the project")
    if sys.platform == "win32":
        raise UserError("Windows: process groups are needed; run in WSL")


def refuse_separator(folder: Path) -> None:
    """UserError if `folder` cannot be on PYTHONPATH, through which its own code is imported."""
    if os.pathsep in str(folder):
        raise UserError(f"{folder}: found {os.pathsep!r} in the folder's name, which separates folders in PYTHONPATH; rename it")


def refuse_conflict(path: Path) -> None:
    """UserError if a merge left conflict markers in `path`, or if it is not text."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    if mark := CONFLICT.search(text):
        line = text.count("\n", 0, mark.start()) + 1
        advice = "" if path == GRAPH else "take both sides (retemper merge), or "
        raise UserError(
            f"{path}:{line}: found a merge conflict marker; {advice}keep one side (git checkout --ours {path} keeps all of ours)"
        )
