"""What is new between two versions of Retemper: entries of the changelog, and parameters."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MISSING = object()


@dataclass(frozen=True)
class Parameter:
    """A key of params.yaml, with NAME in place of an entry's name: `rounds.NAME.lr`. `default` is MISSING if there is none."""

    key: str
    default: Any
    description: str

    def __str__(self) -> str:
        default = "" if self.default is MISSING else f" (default {json.dumps(self.default, ensure_ascii=False)})"
        return f"{self.key}{default}{f': {self.description}' if self.description else ''}"


@dataclass(frozen=True)
class Parameters:
    """The parameters that are `new` in a version, `gone`, and `changed` in their default (former and present)."""

    new: tuple[Parameter, ...]
    gone: tuple[str, ...]
    changed: tuple[tuple[Parameter, Parameter], ...]


def entries(changelog: str) -> list[str]:
    """The entries of a changelog, in its order, each as one line."""
    items: list[str] = []
    inside = False
    for line in changelog.splitlines():
        if line.startswith("- "):
            items.append(line[2:].strip())
            inside = True
        elif inside and line.startswith("  ") and line.strip():
            items[-1] += f" {line.strip()}"
        else:
            inside = False
    return items


def changelog_news(old: str, new: str) -> list[str]:
    """The entries that `new` has and `old` does not, each once."""
    known = set(entries(old))
    return list(dict.fromkeys(entry for entry in entries(new) if entry not in known))


def parameter_news(old: Mapping[str, Any], new: Mapping[str, Any]) -> Parameters:
    """The difference of two JSON schemas of params.yaml (docs/params.schema.json)."""
    former, present = ({parameter.key: parameter for parameter in parameters(schema)} for schema in (old, new))
    new_keys = present.keys() - former.keys()
    added = [
        parameter for key, parameter in present.items() if key in new_keys and not any(key.startswith(f"{above}.") for above in new_keys)
    ]
    changed = [(former[key], parameter) for key, parameter in present.items() if key in former and former[key].default != parameter.default]
    return Parameters(tuple(added), tuple(key for key in former if key not in present), tuple(changed))


def parameters(schema: Mapping[str, Any]) -> Iterator[Parameter]:
    """Every key of a schema, each section before its keys."""
    yield from _below(schema, schema.get("$defs", {}), "")


def _below(node: Mapping[str, Any], records: Mapping[str, Any], prefix: str) -> Iterator[Parameter]:
    for key, field in node.get("properties", {}).items():
        name = f"{prefix}{key}"
        yield Parameter(name, field.get("default", MISSING), str(field.get("description", "")))
        for option in (field, *field.get("anyOf", ())):
            entry_schema = option.get("additionalProperties")
            if isinstance(entry_schema, Mapping):
                for schema in (entry_schema, *entry_schema.get("anyOf", ())):
                    yield from _record(schema, records, f"{name}.NAME.")
            yield from _record(option, records, f"{name}.")


def _record(node: Mapping[str, Any], records: Mapping[str, Any], prefix: str) -> Iterator[Parameter]:
    if reference := node.get("$ref"):
        yield from _below(records[reference.rpartition("/")[2]], records, prefix)
