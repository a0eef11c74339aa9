"""Parameters as frozen records: each section of params.yaml is parsed by a pydantic model that knows every key."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from tasks.core.errors import Invalid, Missing, UserError
from tasks.core.files import read_json
from tasks.core.params.safe_yaml import parse_yaml, refuse_bomb


class Params(BaseModel):
    """Base of every stage's parameters: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


P = TypeVar("P", bound=Params)
PARAMETERS = "RETEMPER_PARAMS"  # environment: the parameter file that a stage reads instead of FROZEN
STAGE = "DVC_STAGE"  # environment, set by DVC: the name of the stage it runs
UNION = re.compile(r"constrained-\w+|literal\[.*\]")  # pydantic's names for the members of a union, in the path to an error
TAG = re.compile(rf"{UNION.pattern}|\[key\]")  # parts of such a path that are not in the file
SHOWN = 200  # characters of a value in an error line
FROZEN = Path("data/params.json")  # params.yaml as it was when the run began (tasks.core.stage.frozen)
Warmup = Annotated[
    float, Field(ge=0, lt=1, description="fraction of the steps over which lr rises linearly from 0; it then falls linearly to 0")
]
TrainingPrecision = Annotated[
    Literal["bf16", "fp32"], Field(description="bf16: autocast over fp32 weights where the hardware supports it, else fp32")
]
TrainingTokens = Annotated[
    int | None,
    Field(
        ge=512,
        description="maximum tokens per forward pass, padding included (a step is split into these); null: 2,048 on a CPU (bf16 "
        "with AMX: 8,192), 16,384 on a GPU (for rounds, adore, and pretrain of encoders like BERT up to "
        "131,072), or what half of its memory holds",
    ),
]
InferenceTokens = Annotated[
    int | None,
    Field(ge=512, description="maximum tokens per batch, padding included; null: 2,048 on a CPU (bf16: 8,192), 65,536 on a GPU"),
]


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML 1.2 mapping (`1e-05` is a number); UserError if the file is missing, malformed, nested too deeply, or an alias bomb."""
    text = _text_of(path)
    with yaml_errors(str(path)):
        value = parse_yaml(text)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{path}: found a {type(value).__name__}, expected a mapping of sections; fix the file")
    return value


def refuse_yaml_bomb(path: Path) -> None:
    """UserError if `path` would make DVC run out of memory or stack; a missing file is fine."""
    if path.exists():
        text = _text_of(path)
        with yaml_errors(str(path)):
            refuse_bomb(text)


@contextmanager
def yaml_errors(where: str) -> Iterator[None]:
    """Turn a YAML reader's errors into one line, with the line number if known."""
    try:
        yield
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{where}:{line}: not YAML ({error.problem}); fix that line") from None
    except (YAMLError, ValueError) as error:  # a control character; an invalid date or number
        raise UserError(f"{where}: not YAML ({' '.join(str(error).split())}); fix it") from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run retemper in the project's folder") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def validate(model: type[P], value: object, where: str, *, section: str = "") -> P:
    """`value`, from `section` of `where`, as a record of type `model`.

    UserError naming `where`, the key, what was found, and what was expected.
    """
    if not isinstance(value, dict):
        place = f"{where}: {section}" if section else where
        raise Invalid(where=place, found=_shown(value), expected=f"a mapping with {', '.join(model.model_fields)}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first, *others = error.errors()
        key = f"{where}: {'.'.join(filter(None, (section, *(str(part) for part in first['loc'] if not TAG.fullmatch(str(part))))))}"
        if first["type"] == "extra_forbidden":
            known_keys = ", ".join(_known(model, first["loc"][:-1]))
            raise Invalid(f"{key}: unknown key, expected one of {known_keys}", where=key, expected=known_keys) from None
        if first["type"] == "missing":
            raise Missing(f"{key}: missing; add it", where=key, remedy="add it") from None
        if first["type"] == "value_error":
            expected = str(first["ctx"]["error"])
            if isinstance(first["input"], dict):  # a section whose keys contradict each other, which the message names
                raise Invalid(f"{key}: {expected}", where=key, expected=expected) from None
        elif first["type"] in ("model_type", "dict_type") and not UNION.fullmatch(str(first["loc"][-1])):
            keys = f" with {', '.join(_known(model, first['loc']))}" if first["type"] == "model_type" else ""
            expected = f"expected a mapping{keys}"
        else:
            expected = _wish([first, *(other for other in others if other["loc"][:-1] == first["loc"][:-1])])
        found = _shown(first["input"])
        raise Invalid(f"{key}: found {found}; {expected}", where=key, found=found, expected=expected) from None


def _wish(errors: Sequence[Mapping[str, Any]]) -> str:
    """What the first error expects, in words: "input should be a valid integer or 'auto'", if the other errors are of the same union."""
    expected = str(errors[0]["msg"]).partition(" or instance of ")[0]
    if UNION.fullmatch(str(errors[0]["loc"][-1])):
        first = expected if errors[0]["type"] == "literal_error" else expected.partition(",")[0]
        expected = " or ".join([first, *(error["msg"].removeprefix("Input should be ") for error in errors[1:])])
    return f"{expected[0].lower()}{expected[1:]}"


def _shown(value: object) -> str:
    """A value as an error line shows it, truncated where it is long."""
    text = "a mapping" if value and isinstance(value, dict) else repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _known(model: type[Params], place: tuple[int | str, ...]) -> list[str]:
    """The keys that a record nested in `model` may have; `place` is the path to it through fields and dicts of records."""
    annotation: Any = model
    for key in place:
        fields = getattr(annotation, "model_fields", {})
        annotation = fields[key].annotation if key in fields else get_args(annotation)[-1]
        if isinstance(annotation, UnionType):  # RECORD | None
            annotation = get_args(annotation)[0]
    return list(annotation.model_fields)


def frozen_parameters() -> Path:
    """The parameter file that this stage reads: FROZEN, or the one that PARAMETERS names. UserError if DVC would record another one."""
    path = os.environ.get(PARAMETERS)
    if path is not None and STAGE in os.environ:
        raise UserError(
            f"{PARAMETERS}: found {path}, but DVC records that {os.environ[STAGE]} reads {FROZEN}; unset {PARAMETERS}, and run again"
        )
    return Path(path or FROZEN)


def read_parameters(path: Path | None = None) -> dict[str, Any]:
    """All sections of the frozen parameters, or of the file `path` if given. UserError if it is missing or malformed."""
    path = path or frozen_parameters()
    if path.suffix != ".json":
        return read_yaml(path)
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: found a {type(value).__name__}, expected a mapping of sections; run retemper run, which writes it")
    return value


def load(model: type[P], section: str, path: Path | None = None) -> P:
    """Section `section` (dotted: `rounds.star`) of the parameters, as of the start of the run, as a record of type `model`."""
    value: Any = read_parameters(path)
    place = path or "params.yaml"
    for key in section.split("."):
        if not isinstance(value, dict) or key not in value:
            raise UserError(f"{place}: no section {section}; add it")
        value = value[key]
    return validate(model, {} if value is None else value, str(place), section=section)
