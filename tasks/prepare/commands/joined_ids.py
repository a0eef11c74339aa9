"""The ids of a file of pairs in one column, beside those of the data set of pairs that it adds to (tasks.prepare.commands.pairs_batch).

A text that the data set has gets its id there, always. An id that the data set has with another text is a correction. It is accepted only
if the data set has the old text, and the file the new one, under that id alone, and neither file has the other's. So each id has one text
in the end, and no row gets the text of another.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from tasks.core.errors import Invalid
from tasks.core.sources.forgotten import Kind, mark
from tasks.prepare.readers.lines import SHOWN
from tasks.prepare.readers.pairs import two_texts
from tasks.prepare.source import At

ROLES: dict[Kind, str] = {"document": "id", "query": "query_id"}


@dataclass(frozen=True)
class JoinedIds:
    """Texts are given by their digest."""

    kind: Kind
    names: dict[str, dict[str, At]] = field(default_factory=dict)  # of the file, by text: each id ("": none), with its first row
    texts: dict[str, str] = field(default_factory=dict)  # of the file, by id
    known: dict[str, str] = field(default_factory=dict)  # the data set's first id ("": none) of texts of the file
    earlier: dict[str, set[str]] = field(default_factory=dict)  # the data set's texts of ids of the file

    @property
    def role(self) -> str:
        return ROLES[self.kind]

    def add(self, at: At, record_id: str, text: str) -> None:
        """Add a row of the file, or a negative, which has no id. UserError if the file has the id for another text."""
        self.names.setdefault(text, {}).setdefault(record_id, at)
        if record_id and self.texts.setdefault(record_id, text) != text:
            raise two_texts(at, self.role, record_id)

    def add_known(self, record_id: str, text: str) -> None:
        """Add a row of the data set, or a negative."""
        if text in self.names and not self.known.get(text):
            self.known[text] = record_id
        if record_id in self.texts:
            self.earlier.setdefault(record_id, set()).add(text)

    def forgotten(self, marks: Collection[str]) -> dict[str, str]:
        """The texts of the file of which an id, there or in the data set, is forgotten, each with that id."""
        names = {text: (text, self.known.get(text), *ids) for text, ids in self.names.items()} if marks else {}
        found = ((text, name) for text, some in names.items() for name in some if name and mark(self.kind, name) in marks)
        return dict(found)

    def without(self, excluded: Collection[str]) -> "JoinedIds":
        """The same, but for rows of the file with one of these texts."""
        names = {text: ids for text, ids in self.names.items() if text not in excluded}
        return replace(self, names=names, texts={name: text for name, text in self.texts.items() if text in names})

    def final(self) -> dict[str, str]:
        """The id of each text of the file: the data set's, or else the file's first one, or without any the digest."""
        return {text: self.known.get(text) or _first(() if text in self.known else ids) or text for text, ids in self.names.items()}

    def corrected(self) -> dict[str, str]:
        """The new texts of ids that the data set has with another text, by id."""
        return {name: text for name, text in self.texts.items() if text not in self.earlier.get(name, {text})}

    def replaced(self) -> dict[str, str]:
        """The ids that the file corrects, by their old texts."""
        return {old: name for name in self.corrected() for old in self.earlier[name]}

    def shared(self) -> dict[str, tuple[str, int]]:
        """The texts that no other batch must replace, by id, each with the number of a row: those that not all rows have under one id."""
        found: dict[str, tuple[str, int]] = {}
        for text, final in self.final().items():
            ids = {name or text: at.line for name, at in self.names[text].items()}
            if ids.keys() != {final}:
                found |= {name: (text, ids.get(name, min(ids.values()))) for name in (*ids, final)}
        return found

    def refuse_shared(self, base: Path) -> None:
        """UserError for a correction whose old or new text the file has elsewhere, too, or whose new text the data set has."""
        for name, text in self.corrected().items():
            if text in self.known:
                raise self.refusal(name, f"{base} has the new text", self.known[text], base)
            for age, other in (("new", text), *(("old", old) for old in self.earlier[name])):
                for other_name, at in self.names.get(other, {}).items():
                    if other_name != name:
                        raise self.refusal(name, f"{at} has the {age} text", other_name, base)

    def refusal(self, name: str, other: str, other_name: str, base: Path) -> Invalid:
        """The error for a correction of an id, while `other`, in words, has one of its texts under another id ("": none)."""
        under = f"under {self.role} {other_name[:SHOWN]!r}" if other_name else f"under no {self.role}"
        return Invalid(
            where=str(self.names[self.texts[name]][name]),
            found=f"another text for {self.role} {name[:SHOWN]!r} than in {base.name}, while {other} {under}",
            expected="a correction of texts that only that id has",
            remedy=f"change the row in {base.name} instead, or if the column numbers rows, exclude it from both files: "
            f"dataset.source=pairs:FILE#{self.role}=",
        )


def _first(ids: Collection[str]) -> str:
    return next(filter(None, ids), "")
