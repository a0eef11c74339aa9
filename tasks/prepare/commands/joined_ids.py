"""The ids of a file of pairs in one column, beside those of the data set that it adds to (tasks.prepare.commands.pairs_batch)."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from tasks.core.errors import Invalid
from tasks.prepare.readers.lines import SHOWN
from tasks.prepare.readers.pairs import Ids
from tasks.prepare.source import At


@dataclass(frozen=True)
class JoinedIds:
    """Texts are keys here, by their digest. A text has the id of its first row, in the file as in the data set."""

    own: Ids  # of the file
    replaced: Collection[str] = ()  # ids in the data set that other batches give another text
    rows: dict[str, tuple[At, str]] = field(default_factory=dict)  # of the file, by id: the first, and its text
    unnamed: set[str] = field(default_factory=set)  # texts of the file in rows without an id, and negatives
    known: dict[str, str] = field(default_factory=dict)  # ids in the data set, by text
    known_unnamed: set[str] = field(default_factory=set)  # texts of the file that the data set has without an id
    known_ids: set[str] = field(default_factory=set)  # ids of the file that the data set has, too
    sharing: dict[str, set[str]] = field(default_factory=dict)  # by text whose id the file has: ids of the data set's rows

    def add(self, at: At, record_id: str, text: str) -> None:
        """Add a row of the file. UserError if the file itself has an id for two texts."""
        if record_id:
            self.own.add(at, record_id, text)
            self.rows.setdefault(record_id, (at, text))
        else:
            self.unnamed.add(text)

    def add_known(self, record_id: str, text: str) -> None:
        """Add a row of the data set, or a negative, which has no id."""
        if record_id in self.rows:
            self.known_ids.add(record_id)
        if not record_id:
            if text in self.own.by_text or text in self.unnamed:
                self.known_unnamed.add(text)
        elif self.known.setdefault(text, record_id) in self.rows:
            self.sharing.setdefault(text, set()).add(record_id)

    def taken(self) -> dict[str, str]:
        """The ids in the data set that texts of the file get, by text: those that the file itself gives no other text.

        A text that the data set has without an id has its digest for one."""
        texts = self.own.by_text.keys() | self.unnamed
        found = {text: self.known.get(text, text) for text in texts if text in self.known or text in self.known_unnamed}
        others = {text: other for text, name in found.items() if (other := self.own.texts.get(name, text)) != text}
        kept = found.keys() - others.keys()
        freed = {other: text for text, other in others.items()}
        for text in [*kept]:  # a text that gets a known id leaves its own to the one that has it in the data set
            while text := freed.pop(text, ""):
                kept.add(text)
        return {text: found[text] for text in kept}

    def final(self) -> dict[str, str]:
        """The ids of texts of the file, by text, where they are neither its own nor, without one, the digest.

        In place of one of the data set's that another batch gives another text, a text has its own, or its digest if that is known."""
        final = self.taken()
        for text, name in final.items():
            own = self.own.by_text.get(text, text)
            if name in self.replaced and name != own:
                final[text] = text if own in self.known_ids else own
        return final

    def foreign(self) -> dict[str, str]:
        """The texts that other batches must not replace, by the ids in the data set that they get in place of their own."""
        return {name: text for text, name in self.taken().items() if name != self.own.by_text.get(text)}

    def new_texts(self) -> dict[str, str]:
        """The file's new texts of ids in the data set, by the old text."""
        taken = self.taken()
        new = ((text, self.own.texts.get(name, text)) for text, name in self.known.items() if name in self.own.texts)
        return {text: other for text, other in new if other != text and other not in taken}

    def refuse_shared(self, base: Path) -> None:
        """UserError if the file replaces a text that the data set has under other ids too: their rows would get the new text as well."""
        for text, new in self.new_texts().items():
            first = self.known[text]
            at, _ = self.rows[first]
            others = sorted(name for name in self.sharing[text] - {first} if name not in self.rows or self.rows[name][1] != new)
            if others:
                raise Invalid(
                    where=str(at),
                    found=f"another text for {self.own.role} {first[:SHOWN]!r}, whose text rows with other ids of {base} have too, such as "
                    f"{others[0][:SHOWN]!r}",
                    expected="a text of that id alone, since those rows would get the new text as well",
                    remedy=f"change the row in {base.name} instead",
                )
