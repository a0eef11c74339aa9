"""Run git without prompts, editors, or hooks."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tasks.core.errors import FULL, UserError

GIT = [
    *("git", "-c", f"core.hooksPath={os.devnull}"),  # after `dvc install`, git checkout returns the status of its hook
    *("-c", "core.fsync=committed"),  # after a power cut, an unflushed object or reference is empty; git < 2.36 ignores this
    *("-c", "log.showSignature=false"),  # git log and git show would print a line on it before what was asked for
]
QUIET = {"GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true", "LC_ALL": "C"}
NOBODY = {  # the identity of commits if git has none, or if no person commits
    f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in (("NAME", "retemper"), ("EMAIL", "retemper@localhost"))
}
KEPT = ("GIT_CONFIG", "GIT_SSH", "GIT_AUTHOR", "GIT_COMMITTER")  # GIT_ variables of the caller to keep; GIT_DIR of a hook is not one
DUBIOUS = "dubious ownership"  # git's words if the folder belongs to another user
TRUST = "run as its owner, or, if you trust it: git config --global --add safe.directory '{}'"
FULL_BYTES = 1 << 20  # with less free space than this, the disk is full
WHO = ("GIT_", "EMAIL", "HOME", "XDG_CONFIG")  # variables that may give git an identity

_known: set[tuple[str, tuple[tuple[str, str], ...]]] = set()  # (folder, environment) pairs in which git has an identity


class GitFailed(UserError):
    """git failed. The message has git's own line."""


def refuse_no_git() -> None:
    """UserError if git is not installed."""
    if shutil.which("git") is None:
        raise UserError("git: not found on PATH; install it")


def git(
    *words: str,
    folder: Path | None = None,
    check: bool = True,
    text: str | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a git command in `folder` (default: the current one) and return its output without the last newline.

    `text` goes to its standard input, `timeout` is in seconds, `env` is added to its environment. GitFailed if it
    fails (with `check`) or does not answer in time.
    """
    try:
        process = subprocess.run(
            [*GIT, *words],
            cwd=folder,
            env={**_inherited(), **QUIET, **identity(folder), **(env or {})},
            input=None if text is None else text.encode("utf-8", "surrogateescape"),
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GitFailed(f"git {words[0]}: no answer within {timeout:g} s") from None
    # A diff may have any bytes, and \r\n.
    output, errors = (stream.decode("utf-8", "surrogateescape") for stream in (process.stdout, process.stderr))
    if check and process.returncode:
        lines = [line for line in errors.splitlines() if line.strip() and not line.startswith("hint:")] or [f"status {process.returncode}"]
        foreign = f"; {TRUST.format(Path(folder or '.').absolute())}" if DUBIOUS in errors else ""
        reason = next((line for line in lines if line.startswith(("fatal:", "error:", " !"))), lines[-1])
        full = f"; {FULL}, make room and run again" if shutil.disk_usage(folder or ".").free < FULL_BYTES else ""  # git may not say so
        raise GitFailed(f"git {words[0]}: {reason.strip().removeprefix('fatal: ')}{foreign}{full}")
    return output.removesuffix("\n")


def identity(folder: Path | None = None) -> dict[str, str]:
    """The environment variables needed to commit in `folder` (default: the current one). Empty if git has an identity there."""
    inherited = _inherited()
    environment = tuple(sorted((name, value) for name, value in inherited.items() if name.startswith(WHO)))
    place = str(Path(folder or ".").absolute())  # a repository may have its own identity
    command = ["git", "var", "GIT_COMMITTER_IDENT"]
    if (place, environment) not in _known and subprocess.run(
        command, cwd=folder, env=inherited, capture_output=True, check=False
    ).returncode:
        return NOBODY
    _known.add((place, environment))
    return {}


def _inherited() -> dict[str, str]:
    """The caller's environment without the variables by which a git hook names its repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(KEPT)}
