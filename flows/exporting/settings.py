"""export.yaml: the targets to which the outcome of a run is copied. No stage reads it, and no digest covers it."""

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field

from tasks.core.errors import UserError
from tasks.core.params.sections import Params, read_yaml, validate

FILE = Path("export.yaml")


class Mlflow(Params):
    """A tracking server or store of MLflow. Credentials: MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN, in the environment."""

    uri: str = Field(min_length=1, description="tracking server (http://HOST:5000), or a file (sqlite:///.retemper/mlflow.db)")
    experiment: str = Field("retemper", min_length=1, description="experiment that the runs belong to; created if there is none")


class Wandb(Params):
    """Weights & Biases. The key: WANDB_API_KEY in the environment, or `wandb login`."""

    project: str = Field("retemper", min_length=1, description="project that the runs belong to")
    entity: str | None = Field(None, description="user or team; null: the default of the key")
    mode: Literal["online", "offline"] = Field("online", description="offline: written to .retemper/wandb, for `wandb sync`")


class TensorBoard(Params):
    """Event files, for `tensorboard --logdir FOLDER`."""

    folder: str = Field(".retemper/tensorboard", min_length=1, description="folder of the event files, one folder a run")


class Export(Params):
    """The whole file; every key is optional. A target that is not named is not used."""

    seconds: float = Field(
        60.0, gt=0, description="longest time that a run waits for its exports, s; what is not done by then is a warning"
    )
    mlflow: Mlflow | None = Field(None, description="needs pip install 'retemper[mlflow]'")
    wandb: Wandb | None = Field(None, description="needs pip install 'retemper[wandb]'")
    tensorboard: TensorBoard | None = Field(None, description="needs pip install 'retemper[tensorboard]'")

    @property
    def targets(self) -> dict[str, Params]:
        """The targets in use, by name."""
        named = {"mlflow": self.mlflow, "wandb": self.wandb, "tensorboard": self.tensorboard}
        return {name: target for name, target in named.items() if target}


def read_export(folder: Path = Path()) -> Export:
    """The file in `folder`, or no target if there is none. UserError if it is invalid, or holds a password."""
    path = folder / FILE
    settings = validate(Export, read_yaml(path), str(FILE)) if path.exists() else Export()
    if settings.mlflow and "://" in settings.mlflow.uri and _has_password(settings.mlflow.uri):
        raise UserError(f"{FILE}: mlflow.uri holds a password, which git would store; set MLFLOW_TRACKING_PASSWORD in the environment")
    return settings


def _has_password(uri: str) -> bool:
    try:
        return bool(urlsplit(uri).password)
    except ValueError:  # whose message may have the password
        raise UserError(f"{FILE}: mlflow.uri: found an invalid address, expected one such as http://HOST:5000") from None
