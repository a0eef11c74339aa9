"""A preview's second run is carried out in this process, as an evaluation's is."""

from tests.flows.experiments.conftest import carried_out

__all__ = ["carried_out"]
