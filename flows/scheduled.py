"""The flow that a schedule starts: one whole run, in a process of its own."""

from prefect import flow

from flows.run import run


@flow(name="retemper-scheduled", persist_result=False)
def scheduled() -> None:
    """Bring the report up to date; fails where a stage does."""
    run()
