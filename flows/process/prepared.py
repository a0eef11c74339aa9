"""Python for the stages of a run, with heavy modules imported once: the server of fork_server.py, and a `python` that asks it."""

import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import Popen

from flows.process import fork_client, fork_server
from flows.process.processes import Processes, environment
from tasks.core.stage.files import new_file

FORKS = "RETEMPER_FORKS"  # environment: the name of a running server; empty: use none
PYTHON = Path(".retemper/bin/python")  # fork_client.py; its folder is the first of PATH for the commands of a run
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
    """A `python` for the commands of a run; `environment` brings it to them.

    It is the ordinary Python on other systems than Linux, if `modules` is empty, and if FORKS is set to an empty value.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        """Start the server, unless FORKS names one; `modules` are imported in this order while there is nothing else to do."""
        self.environment: dict[str, str] = {}
        self.python = sys.executable  # what to start in place of `python`
        self._process: Popen[bytes] | None = None
        name = os.environ.get(FORKS)
        if name == "" or not modules or sys.platform != "linux":
            return
        if not name:
            name = f"retemper-{secrets.token_hex(16)}"
            LOG.parent.mkdir(parents=True, exist_ok=True)
            self._processes = Processes()  # of its own: a run that is stopped ends its stages, then this
            command = [sys.executable, fork_server.__file__, name, *modules]
            self._process = self._processes.start(command, environment(PYTHONSAFEPATH="1"), LOG)
        self.python = python({FORKS: name})
        path = os.pathsep.join([str(PYTHON.parent.absolute()), environment()["PATH"]])
        self.environment = {"PATH": path, FORKS: name}

    def __enter__(self) -> "PreparedPython":
        return self

    def __exit__(self, *_: object) -> None:
        """End the server, at once."""
        if self._process:
            self._processes.end(self._process)


def python(env: Mapping[str, str]) -> str:
    """What to start in place of `python` for a command that gets `env`; PYTHON is written where a server is named."""
    if not env.get(FORKS):
        return sys.executable
    client = shlex.join([sys.executable, "-I", "-S", fork_client.__file__])
    if not PYTHON.exists() or client not in PYTHON.read_text(encoding="utf-8"):
        with new_file(PYTHON) as shim:
            shim.write_text(f'#!/bin/sh\nexec {client} "$@"\n', encoding="utf-8")
            shim.chmod(0o755)
    return str(PYTHON.absolute())
