"""retraining.yaml, as a record."""

from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, create_model

from flows.intake.settings import FILE, Intake
from flows.parameters.alike import suggesting
from flows.promotion.records import Promotion
from flows.retraining.modes import Retrain
from tasks.core.params.sections import Params, read_yaml, validate
from tasks.params import Parameters


class Retraining(Params):
    """The whole file; every key is optional."""

    intake: Intake = Intake()
    retrain: Retrain = Retrain()
    promotion: Promotion = Promotion()


def read_retraining(path: Path = FILE) -> Retraining:
    """The file's record, or defaults if it is missing. Raises UserError, one line, for an invalid key or value."""
    if not path.exists():
        return Retraining()
    with suggesting():
        settings = validate(Retraining, read_yaml(path), str(path))
        for key, section in (("round", "rounds"), ("adore", "adore")):  # `auto` decides each time which of them counts
            validate(_some_keys(section), getattr(settings.retrain, key), str(path), section=f"retrain.{key}")
    return settings


def _some_keys(section: str) -> type[Params]:
    """A record of some keys of an entry of params.yaml's `section`, each checked by itself."""
    _, entry = get_args(Parameters.model_fields[section].annotation)
    known = entry.model_fields.items()
    fields: dict[str, Any] = {name: (Annotated[field.annotation, Field(), *field.metadata], None) for name, field in known}
    return create_model(section, __base__=Params, **fields)
