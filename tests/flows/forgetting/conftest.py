"""The project with a cache, as for the tests of the team's commands."""

from tests.flows.team.conftest import dvc_project

__all__ = ["dvc_project"]
