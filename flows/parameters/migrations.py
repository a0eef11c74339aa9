"""What newer versions ask of the parameter files of older ones: new sections, moved keys, defaults that have changed.

A version is pyproject's number and a commit, and between two releases any commit may be in use. So a migration recognizes what it
changes by the file itself, and applied twice it does nothing the second time. Only a changed default cannot be seen in a file: such
a migration is applied to files of versions before `since`.

`python -m flows.parameters.migrations --made TIME --told FILE` migrates the files of the current folder. `retemper upgrade` runs it
with the newer version's code, and reads FILE, a JSON object of lines by file.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml.comments import CommentedMap

from flows.parameters import edit
from tasks.core.errors import one_line_errors
from tasks.core.files import write_json, write_text
from tasks.core.metrics.selection import METRIC
from tasks.core.params.sections import read_yaml
from tasks.params import RETRIEVE

File = Literal["params.yaml", "runtime.yaml", "retraining.yaml"]
FILES: tuple[File, ...] = ("params.yaml", "runtime.yaml", "retraining.yaml")


@dataclass(frozen=True)
class Migration:
    """One change of a file's form. `since`: when the product first required it (ISO 8601 with a time zone).

    `apply` edits the document in place and returns a line that says how, or "" if there is nothing to do. `default`: it keeps a former
    default, and is applied only to files of versions before `since`.
    """

    since: str
    file: File
    apply: Callable[[CommentedMap], str]
    default: bool = False
    adds: str = ""  # a section of params.yaml without which nothing runs


def add_section(document: CommentedMap, *, name: str, value: str, after: str, comment: str) -> str:
    """Add a section that dvc.yaml reads, if the file lacks it."""
    if name in document:
        return ""
    edit.insert(document, name, edit.parse(value), after=after, comment=comment)
    return f"{name}: {value} added ({comment})"


def move_to_retrieve(document: CommentedMap) -> str:
    """Move depth, precision, and the treatment of the query's own document from `evaluate` to `retrieve`, now the stage that makes runs."""
    entry = document.get("evaluate")
    moved = [key for key in entry if key in RETRIEVE] if isinstance(entry, CommentedMap) else []
    if not moved:
        return ""
    if not isinstance(document.get("retrieve"), CommentedMap):
        document.pop("retrieve", None)
        edit.insert(document, "retrieve", CommentedMap(), after="study", comment="runs of the models, which evaluate measures")
    for key in moved:
        edit.move(document, f"evaluate.{key}", f"retrieve.{key}")
    return f"evaluate.{', evaluate.'.join(moved)} moved to retrieve"


def add_texts(document: CommentedMap) -> str:
    """Add the source of pre-training texts, which dvc.yaml reads."""
    entry = document.get("chunk")
    if not isinstance(entry, CommentedMap) or "texts" in entry:
        return ""
    edit.assign(document, "chunk.texts", "articles")
    return "chunk.texts: articles added (articles | corpus: pre-training on your own documents)"


def add_metric(document: CommentedMap) -> str:
    """Add the measure by which fusions are chosen, which dvc.yaml reads."""
    entry = document.get("report")
    if not isinstance(entry, CommentedMap) or "metric" in entry:
        return ""
    edit.assign(document, "report.metric", METRIC)
    return f"report.metric: {METRIC} added, the default"


def rename_anew(document: CommentedMap) -> str:
    """Replace `optimizer_from: anew` by its new name, fresh."""
    rounds = document.get("rounds")
    round_names = [name for name, entry in rounds.items() if isinstance(entry, CommentedMap)] if isinstance(rounds, CommentedMap) else []
    changed = [name for name in round_names if rounds[name].get("optimizer_from") == "anew"]
    for name in changed:
        rounds[name]["optimizer_from"] = "fresh"
    return f"optimizer_from: anew renamed to fresh in rounds.{', rounds.'.join(changed)}" if changed else ""


def keep_not_worse(document: CommentedMap) -> str:
    """Keep the former default rule of promotion for a team that has set up retraining; the new default is `guaranteed`."""
    entry = document.get("promotion")
    if isinstance(entry, CommentedMap) and "rule" in entry:
        return ""
    edit.assign(document, "promotion.rule", "not_worse")
    return "promotion.rule: not_worse added, the former default; remove it for the new one, guaranteed (docs/retraining.md)"


def _section(since: str, name: str, value: str, *, after: str, comment: str) -> Migration:
    """The migration that adds a section without which nothing runs."""
    return Migration(since, "params.yaml", partial(add_section, name=name, value=value, after=after, comment=comment), adds=name)


# In the order in which they are applied: a section is inserted after one that exists by then.
MIGRATIONS = (
    Migration("2026-11-22T22:59:07+00:00", "params.yaml", move_to_retrieve),
    Migration("2026-11-23T11:41:27+00:00", "params.yaml", rename_anew),
    _section("2026-11-22T22:59:07+00:00", "retrieve", "{}", after="study", comment="depth: ranks of a model's run, 1000"),
    _section("2026-11-23T06:30:12+00:00", "fuse", "{}", after="adore", comment="hybrid: {first: bm25, second: star}, two systems as one"),
    _section("2026-11-23T12:12:45+00:00", "encoders", "{}", after="base", comment="e5: {source: PATH}, more that rounds may start from"),
    _section("2026-11-23T19:20:11+00:00", "queries", "corpus", after="dataset", comment="corpus | pseudo: made from the documents"),
    _section("2026-11-23T19:20:11+00:00", "pseudo", "{}", after="base", comment="for queries: pseudo"),
    _section("2026-11-23T20:37:15+00:00", "failures", "{}", after="evaluate", comment="which systems are compared by groups of queries"),
    _section("2026-11-23T21:06:41+00:00", "analyses", "{}", after="evaluate", comment="star: {round: star, negatives: warmup}"),
    Migration("2026-11-23T22:09:54+00:00", "params.yaml", add_texts),
    Migration(
        "2026-11-24T20:57:32+00:00",
        "params.yaml",
        partial(add_section, name="extra", value="{}", after="evaluate", comment='{scifact: "beir:../scifact"}, further data sets'),
    ),
    Migration("2026-11-24T22:32:24+00:00", "retraining.yaml", keep_not_worse, default=True),
    Migration("2026-11-28T02:00:00+00:00", "params.yaml", add_metric),
)
ADDED = tuple(migration.adds for migration in MIGRATIONS if migration.adds)


def migrate(document: CommentedMap, file: File, made: datetime | None) -> list[str]:
    """Bring a file's document, written for the version made at `made`, up to date; return a line for each change.

    Without `made`, former defaults are not kept.
    """
    changes = []
    for migration in MIGRATIONS:
        due = not migration.default or (made is not None and made < datetime.fromisoformat(migration.since))
        if migration.file == file and due and (line := migration.apply(document)):
            changes.append(line)
    return changes


def migrated(text: str, file: File, made: datetime | None = None) -> tuple[str, list[str]]:
    """`migrate` on the text of a file, keeping comments and order; the same text if there is nothing to do."""
    document = edit.load(text.replace("\r\n", "\n"))
    if not (changes := migrate(document, file, made)):
        return text, []
    dumped = edit.dump(document)
    return dumped.replace("\n", "\r\n") if "\r\n" in text else dumped, changes


def missing_sections(sections: Mapping[str, Any]) -> list[str]:
    """The sections that an older params.yaml lacks, and without which nothing runs, by name."""
    return [name for name in ADDED if name not in sections]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--made", type=datetime.fromisoformat, help="when the version of the files was made (ISO 8601)")
    parser.add_argument("--told", type=Path, required=True, help="where to write what was changed: JSON, lines by file")
    arguments = parser.parse_args()
    changes: dict[str, list[str]] = {}
    for file in FILES:
        path = Path(file)
        if path.is_file():
            read_yaml(path)  # a UserError if it cannot be read
            before = path.read_bytes().decode("utf-8")
            after, changes[file] = migrated(before, file, arguments.made)
            if after != before:
                write_text(path, after)
    write_json(arguments.told, {file: lines for file, lines in changes.items() if lines})


if __name__ == "__main__":
    with one_line_errors():
        main()
