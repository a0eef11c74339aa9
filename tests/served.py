"""Prefect's server in a fork of the prepared Python: `python -m tests.served OPTIONS OF UVICORN`."""

import prefect.context
import uvicorn
from prefect.logging.configuration import setup_logging

if __name__ == "__main__":
    prefect.context.refresh_global_settings_context()
    setup_logging()
    uvicorn.main()
