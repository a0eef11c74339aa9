"""Code that a parameter names, as `tasks.own.listnet:loss`: a function of a module below tasks/.

A stage is up to date while the code that it imports is. Code that a parameter names is not among its imports, so a frozen value has the
digest of that code too, `tasks.own.listnet:loss@5f1d...`: when the code changes, only stages with this parameter run again.
"""

import ast
import re
import symtable
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from tasks.core.errors import UserError
from tasks.core.stage.code import PACKAGE, Reader, module_file, our_imports

PATTERN = re.compile(rf"{PACKAGE}(\.[A-Za-z_]\w*)+:[A-Za-z_]\w*(@[0-9a-f]{{16}})?")


def _checked(value: object) -> object:
    if not isinstance(value, str) or not PATTERN.fullmatch(value):
        raise PydanticCustomError("reference", "Input should be MODULE:FUNCTION of tasks")
    return value


SCHEMA = {"type": "string", "pattern": f"^{PATTERN.pattern}$"}
Reference = Annotated[str, BeforeValidator(_checked), WithJsonSchema(SCHEMA)]  # as written or as frozen


def freeze_references(value: Any, reader: Reader, key: str = "") -> Any:
    """Add to every reference in `value` (of params.yaml: mappings, lists, scalars) the digest of the code that it names.

    UserError naming the key if the reader's code lacks the module or its function, or if a digest was written by hand. UserError naming the
    line if the module imports one of tasks that the reader's code lacks.
    """
    if isinstance(value, Mapping):
        return {name: freeze_references(child, reader, f"{key}.{name}" if key else str(name)) for name, child in value.items()}
    if isinstance(value, list):
        return [freeze_references(child, reader, key) for child in value]
    if not isinstance(value, str) or not PATTERN.fullmatch(value):
        return value
    found = f"params.yaml: {key}: found {value}"
    if "@" in value:
        raise UserError(f"{found}, expected MODULE:FUNCTION alone; remove the @ and what follows it")
    module, _, name = value.partition(":")
    file = module_file(reader.root, module)
    if file is None:
        path = f"{module.replace('.', '/')}.py"
        raise UserError(f"{found}, but there is no {path}; write it (other worktrees have it once it is committed), or fix the name")
    digest = reader.module_digest(module)  # before the file is parsed here: it refuses one that is not Python
    if name not in _names(file):
        raise UserError(f"{found}, but {file.relative_to(reader.root)} defines no {name}; add it, or fix the name")
    if missing := _missing_import(file, reader.root):
        line, other = missing
        raise UserError(
            f"{file.relative_to(reader.root)}:{line}: imports {other}, which does not exist; fix the import (modules: docs/design.md)"
        )
    return f"{value}@{digest[:16]}"


def frozen_references(value: Any) -> dict[str, str]:
    """The digests of all references in a frozen value, by reference (MODULE:FUNCTION)."""
    if isinstance(value, Mapping | list):
        children = value.values() if isinstance(value, Mapping) else value
        return {name: digest for child in children for name, digest in frozen_references(child).items()}
    name, _, digest = value.partition("@") if isinstance(value, str) and PATTERN.fullmatch(value) else ("", "", "")
    return {name: digest} if digest else {}


def without_digests(value: Any) -> Any:
    """A frozen value as params.yaml has it: without the digests of references."""
    if isinstance(value, Mapping):
        return {name: without_digests(child) for name, child in value.items()}
    if isinstance(value, list):
        return [without_digests(child) for child in value]
    return value.partition("@")[0] if isinstance(value, str) and PATTERN.fullmatch(value) else value


def named_code(reference: str) -> Callable[..., Any] | None:
    """The function that a reference names, imported; None for any other value."""
    if not PATTERN.fullmatch(reference):
        return None
    module, _, name = without_digests(reference).partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _missing_import(file: Path, root: Path) -> tuple[int, str] | None:
    """The first line of a module that imports a module of tasks that is not there, and that module's name."""
    package = ".".join(file.relative_to(root).parent.parts)
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = list(our_imports(node, package))
            for name in names[:1] if isinstance(node, ast.ImportFrom) else names:  # what else it imports may be a function
                if module_file(root, name) is None:
                    return node.lineno, name
    return None


def _names(file: Path) -> set[str]:
    """The names that a module assigns, defines, or imports."""
    table = symtable.symtable(file.read_text(encoding="utf-8"), str(file), "exec")
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
