"""Python for the stages of a run, with heavy modules imported only once: start fork_server.py, and provide a `python` that asks it."""

import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import Popen

from flows.process import fork_client, fork_server
from flows.process.processes import Processes, environment
from tasks.core.files import new_file

FORKS = "RETEMPER_FORKS"  # environment: the name of a running server; empty: use no server
PYTHON = Path(".retemper/bin/python")  # runs fork_client.py; its folder is first on PATH for the commands of a run
LOG = Path(".retemper/logs/fork-server.log")
DVC = (
    "dvc.cli.parser",
    "dvc.repo.reproduce",
    "dvc_data.hashfile.db.local",
    "dvc.stage.cache",
    "dvc.output",
    "dvc_data.index",
    "dvc.scm",
    "dvc.lock",
    "dvc.rwlock",
    "dvc.cachemgr",
    "dvc.data_cloud",
    "dvc.dirs",
    "dvc.repo.artifacts",
    "dvc.repo.datasets",
    "dvc.repo.metrics",
    "dvc.repo.params",
    "dvc.repo.plots",
    "dvc.repo.stage",
    "dvc.utils.strictyaml",
    "configobj",
    "fsspec.implementations.memory",
    "pyparsing",
)
TABLES = ("numpy", "pyarrow.parquet", "pyarrow.compute", "pydantic", "ruamel.yaml", "ir_measures", "scipy.stats")
MODELS = (
    "torch",
    "tokenizers",
    "transformers.modeling_utils",
    "transformers.models.bert.modeling_bert",
    "transformers.tokenization_utils_tokenizers",
    "faiss",
    "dvclive",
)


class PreparedPython:
    """A `python` for the commands of a run, which find it through `environment`.

    It is ordinary Python if the system is not Linux, if `modules` is empty, or if FORKS is set to an empty value.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        """Start the server, unless FORKS names one. It imports `modules` in this order while it has nothing else to do."""
        self.environment: dict[str, str] = {}
        self.python = sys.executable  # the program to start for `python`
        self._process: Popen[bytes] | None = None
        name = os.environ.get(FORKS)
        if name == "" or not modules or sys.platform != "linux":
            return
        if not name:
            name = f"retemper-{secrets.token_hex(16)}"
            LOG.parent.mkdir(parents=True, exist_ok=True)
            self._processes = Processes()  # separate: a stopped run ends its stages first, then this
            command = [sys.executable, fork_server.__file__, name, *modules]
            self._process = self._processes.start(command, environment(PYTHONSAFEPATH="1"), LOG)
        self.python = python({FORKS: name})
        path = os.pathsep.join([str(PYTHON.parent.absolute()), environment()["PATH"]])
        self.environment = {"PATH": path, FORKS: name}

    def __enter__(self) -> "PreparedPython":
        return self

    def __exit__(self, *_: object) -> None:
        """End the server at once."""
        if self._process:
            self._processes.end(self._process)


def python(env: Mapping[str, str]) -> str:
    """The program to start for `python`, for a command with environment `env`. If that names a server, PYTHON is written."""
    if not env.get(FORKS):
        return sys.executable
    client = shlex.join([sys.executable, "-I", "-S", fork_client.__file__])
    if not PYTHON.exists() or client not in PYTHON.read_text(encoding="utf-8"):
        with new_file(PYTHON) as shim:
            shim.write_text(f'#!/bin/sh\nexec {client} "$@"\n', encoding="utf-8")
            shim.chmod(0o755)
    return str(PYTHON.absolute()) if os.access(PYTHON, os.X_OK) else sys.executable  # not on a file system mounted noexec
