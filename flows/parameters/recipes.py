"""`--recipe NAME`: replace sections of params.yaml with those of docs/recipes/NAME.yaml; `--recipe none` restores the former ones.

Sections are replaced as text, comments included. The former ones are kept in `.retemper/recipe.json`.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from flows.parameters import edit
from flows.parameters.alike import expected_names
from flows.parameters.checks import PARAMS, check
from flows.parameters.sources import SOURCE
from tasks.core.errors import UserError
from tasks.core.files import file_digest, read_json, write_json, write_text
from tasks.core.params.safe_yaml import parse_yaml
from tasks.core.params.sections import read_yaml

FOLDER = Path("docs/recipes")
MEMORY = Path(".retemper/recipe.json")
TRIAL = Path(".retemper/trial.json")  # the files that an edit changes, as they were before; a dry run's to its end, else until written
NONE = "none"
ZERO_SHOT = "zero_shot"

Blocks = Mapping[str, str | None]  # the text of each section, without its last newline; None if it is missing
Record = Mapping[str, Any]  # of the recipe in place: its name, sections before and after; empty without a recipe


def apply(name: str, path: Path = PARAMS, memory: Path = MEMORY, *, folder: Path = FOLDER) -> str:
    """Put the recipe's sections into `path`, after taking back those of an earlier one; return the former text.

    The result is not checked. Raises UserError if there is no such recipe or, for `none`, nothing to take back.
    """
    before = edit.read_text(path)
    after, record = apply_to_text(before, name, folder, last=_last(memory))
    _remember(record, memory)
    write_text(path, after)
    return before


def apply_to_text(before: str, name: str, folder: Path, *, last: Record) -> tuple[str, Record]:
    """`apply` on the text of a file and the record of the last recipe; return both as they are to be written."""
    text = before.replace("\r\n", "\n")
    recipe = _read(name, folder) if name != NONE else {}
    if last and _is_in_place(text, last):
        text = replace_sections(text, last["before"])
    elif name == NONE:
        raise UserError(
            f"--recipe none: found no recipe applied to {PARAMS}, expected one to undo, from --recipe NAME; "
            f"to restore the committed file: git checkout {PARAMS}"
        )
    current = blocks(text)
    record = {"name": name, "before": {section: current.get(section) for section in recipe}, "after": recipe} if recipe else {}
    text = replace_sections(text, recipe)
    return text.replace("\n", "\r\n" if "\r\n" in before else "\n"), record


def _last(memory: Path) -> Record:
    return dict(read_json(memory)) if memory.exists() else {}


def _remember(record: Record, memory: Path) -> None:
    if record:
        write_json(memory, record)
    else:
        memory.unlink(missing_ok=True)


def names(folder: Path = FOLDER) -> list[str]:
    """The available recipes."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _read(name: str, folder: Path) -> dict[str, str]:
    if name not in names(folder):
        raise UserError(f"--recipe {name}: {folder / f'{name}.yaml'} not found, {expected_names(name, [*names(folder), NONE])}")
    path = folder / f"{name}.yaml"
    if not all(isinstance(section, str) for section in read_yaml(path)):
        raise UserError(f"{path}: found a section name that is not a string, expected sections of params.yaml")
    return blocks(path.read_text(encoding="utf-8").replace("\r\n", "\n"))


def _is_in_place(text: str, last: Mapping[str, Blocks]) -> bool:
    """Whether some section is still as the recipe has it; if not, someone has undone it in another way (git checkout)."""
    current = blocks(text)
    changed = [section for section, block in last["after"].items() if block != last["before"].get(section)]
    return any(current.get(section) == last["after"][section] for section in changed)


def blocks(text: str) -> dict[str, str]:
    """The text of each top-level section of a YAML mapping: from its name to its last line, comments on and between its lines included."""
    lines = text.split("\n")
    return {section: "\n".join(lines[first:last]) for section, (first, last) in _places(text).items()}


def replace_sections(text: str, new: Blocks) -> str:
    """`text` with its sections replaced by those of `new`. New sections come last; None removes a section."""
    lines = text.split("\n")
    places = _places(text)
    for section, (first, last) in sorted(places.items(), key=lambda item: -item[1][0]):  # bottom up, so that places stay valid
        if section in new:
            block = new[section]
            end = last + (block is None and last < len(lines) and not lines[last].strip())  # and the blank line after it
            lines[first:end] = [] if block is None else block.split("\n")
    text = "\n".join(lines)
    for section, block in new.items():
        if section not in places and block is not None:
            text = f"{text.rstrip()}\n\n{block}\n".lstrip("\n")
    return text


def _places(text: str) -> dict[str, tuple[int, int]]:
    """First line of each section, and the one after its last."""
    document = YAML().load(text) or CommentedMap()
    starts = [(str(section), int(document.lc.key(section)[0])) for section in document]
    lines = text.split("\n")
    places = {}
    for (section, first), (_, end) in zip(starts, [*starts[1:], ("", len(lines))], strict=True):
        while end > first + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):  # of the next section
            end -= 1
        places[section] = (first, end)
    return places


@contextmanager
def apply_edits(assignments: Sequence[str], recipe: str | None = None, *, lasting: bool) -> Iterator[Callable[[], None]]:
    """Apply `--recipe` and then `--set`; the caller holds the folder's lock. Yields a function that undoes them, also in data/source.json.

    They are undone on an error, and if not `lasting`; if this process is killed, then by the next one that edits here. A version of
    params.yaml that someone has saved in the meantime stays.
    """
    if TRIAL.exists():
        _undo(read_json(TRIAL))
    files = {str(path): path.read_text(encoding="utf-8") if path.exists() else None for path in (SOURCE, MEMORY)}
    trial: dict[str, Any] = {"params": None, "edited": None, "files": files}

    def undo() -> None:
        _undo(trial)

    kept = False
    try:
        before, after, record = _planned(assignments, recipe) if assignments or recipe is not None else ("", "", {})
        if after != before:
            trial |= {"params": before, "edited": hashlib.sha256(after.encode()).hexdigest()}
        if not lasting or recipe is not None:
            # First, so that no kill leaves one file without the other. Without SOURCE: git may have a newer one when this is undone, and
            # the command that undoes it brings that up to date.
            write_json(TRIAL, trial | {"files": {str(MEMORY): files[str(MEMORY)]}})
        if recipe is not None:
            _remember(record, MEMORY)
        if after != before:
            write_text(PARAMS, after)
        if lasting:
            TRIAL.unlink(missing_ok=True)
        yield undo
        kept = lasting
    finally:
        if not kept:
            undo()


def _planned(assignments: Sequence[str], recipe: str | None) -> tuple[str, str, Record]:
    """The text of params.yaml before and after an edit, checked, and the record of the recipe that is then in place."""
    before, record = edit.read_text(PARAMS), _last(MEMORY)
    after, record = apply_to_text(before, recipe, FOLDER, last=record) if recipe is not None else (before, record)
    text = edit.apply_to_text(after, assignments, check, by_user=True) if assignments else None
    if text is None and recipe is not None:
        check(parse_yaml(after) or {})
    return before, after if text is None else text, record


def _undo(trial: Mapping[str, Any]) -> None:
    """Restore files to their state before an edit; params.yaml only if it has not changed since the edit."""
    if trial["params"] is not None and PARAMS.exists() and file_digest(PARAMS) == trial["edited"]:
        write_text(PARAMS, trial["params"])
    for name, content in trial["files"].items():
        path = Path(name)
        if (path.read_text(encoding="utf-8") if path.exists() else None) != content:
            write_text(path, content) if content is not None else path.unlink()
    TRIAL.unlink(missing_ok=True)
