"""Code that a parameter names, as `tasks.own.listnet:loss`: a function of a module below tasks/.

A stage is up to date while the code that it imports is. What a parameter names is imported by that name alone, so a frozen value has the
digest of that code too, `tasks.own.listnet:loss@5f1d...`: when it changes, only what has this parameter runs again.
"""

import ast
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from tasks.core.stage.code import PACKAGE, Reader, module_file
from tasks.core.stage.errors import UserError

PATTERN = rf"^{PACKAGE}(\.[A-Za-z_]\w*)+:[A-Za-z_]\w*(@[0-9a-f]{{16}})?$"


def _checked(value: object) -> object:
    if not isinstance(value, str) or not re.match(PATTERN, value):
        raise PydanticCustomError("reference", "Input should be MODULE:FUNCTION of tasks")
    return value


Reference = Annotated[str, BeforeValidator(_checked), WithJsonSchema({"type": "string", "pattern": PATTERN})]  # as written or as frozen


def freeze_references(value: Any, reader: Reader, key: str = "") -> Any:
    """`value` (of params.yaml: mappings, lists, scalars) with the digest of its code behind every reference.

    UserError naming the key if the reader's code lacks the module or its function, or if a digest was written by hand.
    """
    if isinstance(value, Mapping):
        return {name: freeze_references(below, reader, f"{key}.{name}" if key else str(name)) for name, below in value.items()}
    if isinstance(value, list):
        return [freeze_references(below, reader, key) for below in value]
    if not isinstance(value, str):
        return value
    if not re.match(PATTERN, value):
        return value
    if "@" in value:
        raise UserError(f"params.yaml: {key}: found {value}, expected MODULE:FUNCTION alone; remove the @ and what follows it")
    module, _, name = value.partition(":")
    file = module_file(reader.root, module)
    if file is None:
        expected = f"{module.replace('.', '/')}.py"
        raise UserError(f"params.yaml: {key}: found {value}, but there is no {expected}; write it, or fix the name")
    digest = reader.module_digest(file)
    if not any(isinstance(part, ast.FunctionDef) and part.name == name for part in ast.parse(file.read_bytes()).body):
        raise UserError(
            f"params.yaml: {key}: found {value}, but {file.relative_to(reader.root)} defines no function {name}; add it, or fix the name"
        )
    return f"{value}@{digest[:16]}"


def frozen_references(value: Any) -> dict[str, str]:
    """The digest of every reference in a frozen value, by what it names."""
    if isinstance(value, Mapping | list):
        inside = value.values() if isinstance(value, Mapping) else value
        return {name: digest for below in inside for name, digest in frozen_references(below).items()}
    name, _, digest = str(value).partition("@")
    return {name: digest} if digest and re.match(PATTERN, str(value)) else {}


def named_code(reference: str) -> Callable[..., Any] | None:
    """The function that a reference names, imported; None for any other value."""
    if not re.match(PATTERN, reference):
        return None
    module, _, name = reference.partition("@")[0].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
