"""Prefect's server in a fork of the prepared Python: `python -m tests.served OPTIONS OF UVICORN`."""

import sys

import prefect.context
import uvicorn
from prefect.logging.configuration import setup_logging

CLIENT = "import sys; from flows.process import fork_client as client; client.PREFIXES = ('tests.',); client.main(sys.argv[1:])"
FORKED = [sys.executable, "-c", CLIENT, "-m", "tests.served"]

if __name__ == "__main__":
    prefect.context.refresh_global_settings_context()
    setup_logging()
    uvicorn.main(sys.argv[1:])
