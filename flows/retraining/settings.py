"""retraining.yaml, as a record."""

from pathlib import Path

from flows.intake.settings import FILE, Intake
from flows.promotion.records import Promotion
from flows.retraining.modes import Retrain
from tasks.core.params.sections import Params, read_yaml, validate


class Retraining(Params):
    """The whole file; every key is optional."""

    intake: Intake = Intake()
    retrain: Retrain = Retrain()
    promotion: Promotion = Promotion()


def read_retraining(path: Path = FILE) -> Retraining:
    """The file's record, or defaults if it is missing. Raises UserError, one line, for an invalid key or value."""
    return validate(Retraining, read_yaml(path), str(path)) if path.exists() else Retraining()
