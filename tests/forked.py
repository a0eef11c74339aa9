"""`retemper` in a fork of the prepared Python, whose imports are done: `python -m tests.forked [--toy] ARGUMENTS...`.

Prefect reads its settings when it is imported. Here it has been already, with the environment of the tests, so it reads them again
where a new process would import it.
`--alone`: `python -m flows.pipeline.alone`, in place of a command.
`--toy`: params.yaml is not that of a real project, and is not checked.
"""

import sys

import prefect.context
from prefect.logging.configuration import setup_logging

from flows.cli.main import main
from flows.explaining import runs
from flows.pipeline import alone, server
from flows.repository import worktree
from tests.forks import FORK

of_process, of_run = server.set_environment, server.use_server


def read_settings() -> None:
    prefect.context.refresh_global_settings_context()
    setup_logging()


def set_environment() -> None:
    """Sets the environment of a process that has not imported Prefect."""
    imported = sys.modules.pop("prefect")
    try:
        of_process()
    finally:
        sys.modules["prefect"] = imported
    read_settings()


def use_server() -> server.Server | None:
    ours = of_run()
    if ours:
        read_settings()  # with its address
    return ours


if __name__ == "__main__":
    server.set_environment, server.use_server = set_environment, use_server
    runs.RUN = (*FORK, "tests.forked", "--alone")
    if sys.argv[1:2] == ["--alone"]:
        del sys.argv[1]
        sys.exit(alone.main())
    toy = sys.argv[1:2] == ["--toy"]
    server.SERVER[:3] = [*FORK, "tests.served"]  # in place of python -m uvicorn
    worktree.RUN = (*FORK, "tests.forked", *["--toy"] * toy, "run")  # its users have not been imported yet
    del sys.argv[1 : 1 + toy]
    sys.exit(main(check=(lambda: None) if toy else None))
