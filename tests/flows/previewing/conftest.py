"""A preview's second run is carried out in this process, as an evaluation's is."""

from tests.flows.evaluating.conftest import carried_out

__all__ = ["carried_out"]
