"""A preview's second run is carried out in this process, as an evaluation's is."""

from tests.flows.evaluating.conftest import run_plan

__all__ = ["run_plan"]
