"""Every small file of pairs beside every small data set of pairs: what is merged is what the rows say, or the file is kept out.

A cell is (id, text). The answers are enumerated, each beside a question of its own, or the questions, each beside such an answer."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flows.batches import pairs_files
from tasks.core.errors import UserError
from tasks.core.sources.datasets import SPLITS, DatasetSpec
from tasks.core.sources.forgotten import Kind
from tasks.core.sources.pairs import Columns
from tasks.core.text.plain import Shares, digest
from tasks.prepare.commands import pairs_batch
from tasks.prepare.readers import pairs
from tasks.prepare.source import At

NEGATIVE = "negative"  # in place of the id of a text that a row has as a negative
Cell = tuple[str, str]
Cells = Sequence[Cell]
TEXTS = [next(text for text in map("text {}".format, count()) if Shares(0.1, 0.1).split("train", text) == split) for split in SPLITS]
TWO_TEXTS, CHANGES = "for two different texts", "found another text for"


class Merged(NamedTuple):
    """Texts of documents and queries by id, judged and negative pairs of ids, and the ids that are judged in each split."""

    documents: dict[str, str]
    queries: dict[str, str]
    judged: frozenset[tuple[str, str]]
    negatives: frozenset[tuple[str, str]]
    splits: dict[str, frozenset[str]]

    def pairs(self) -> set[tuple[str, str]]:
        """The judged and the negative pairs of texts."""
        return {(self.queries[query], self.documents[doc]) for query, doc in self.judged | self.negatives}


Read = Callable[..., list[Merged]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Read a data set and each of some batches, in memory. UserError if one is kept out."""
    files: dict[Path, list[pairs.Row]] = {}
    for module in (pairs, pairs_batch):
        monkeypatch.setattr(module, "rows", lambda file, _columns: iter(files[file]))
        monkeypatch.setattr(module, "columns_in", lambda _file, _columns: Columns(0, 1, None, 2, 3, None, (4,)), raising=False)
    monkeypatch.setattr(pairs, "pairs_file", lambda file: file)
    shared: dict[Path, pairs_batch.Shared] = {}
    texts: dict[Path, Merged] = {}
    monkeypatch.setattr(pairs_files, "_shared", lambda folder, kind: shared[folder].get(kind, {}))

    def texts_of(folder: Path, kind: Kind) -> Iterator[tuple[str, str, str]]:
        records = texts[folder].documents if kind == "document" else texts[folder].queries
        return ((name, digest(text), f"{folder}:1") for name, text in records.items())

    monkeypatch.setattr(pairs_files, "_texts", texts_of)

    def read_files(*contents: list[pairs.Row], marks: frozenset[str] = frozenset()) -> list[Merged]:
        paths = [Path(f"{number}.csv") for number in range(len(contents))]
        files.update(zip(paths, contents, strict=True))
        specs = [DatasetSpec("pairs", str(path)) for path in paths]
        for number, path in enumerate(paths):
            addition = pairs_batch.read(specs[number], specs[0] if number else None, marks)
            texts[path], shared[path] = contents_of(addition.source), addition.shared
            if number:
                pairs_files.refuse_changes(path, path, paths[1:number])
        return [texts[path] for path in paths]

    return read_files


def contents_of(source: Any) -> Merged:
    splits = {split: [(one.query, one.doc) for one in judged()] for split, judged in source.qrels.items()}
    return Merged(
        {one.id: one.text for one in source.documents()},
        {one.id: one.text for one in source.queries[""]()},
        frozenset(pair for judged in splits.values() for pair in judged),
        frozenset((one.query, one.doc) for one in source.negatives()),
        {split: frozenset(query for query, _ in judged) for split, judged in splits.items()},
    )


def merge(parts: Sequence[Merged]) -> Merged:
    """As flows.batches.merge: the latest record with an id counts."""
    documents, queries = ({name: text for part in parts for name, text in part[place].items()} for place in (0, 1))
    judged, negatives = (frozenset[tuple[str, str]]().union(*(part[place] for part in parts)) for place in (2, 3))
    splits = {split: frozenset[str]().union(*(part.splits[split] for part in parts)) for split in parts[0].splits}
    return Merged(documents, queries, judged, negatives, splits)


def rows_of(number: int, cells: Cells, kind: Kind) -> list[pairs.Row]:
    """The rows of the file `number`: the cells, each beside another text of its own."""
    rows = []
    for line, (name, text) in enumerate(cells, 2):
        own, at = f"own {number} {line}", At(f"{number}.csv", line)
        if name == NEGATIVE:
            rows.append(pairs.Row(at, own, f"answer {own}", "", "", "", "train", [text]))
        elif kind == "document":
            rows.append(pairs.Row(at, own, text, "", name, "", "train", []))
        else:
            rows.append(pairs.Row(at, text, own, "", "", name, "train", []))
    return rows


def expected_pairs(files: Sequence[Cells], kind: Kind) -> set[tuple[str, str]]:
    """What the rows say: each keeps its text, but an id gets the text that the latest file has for it."""
    found = set[tuple[str, str]]()
    for number, cells in enumerate(files):
        for line, (name, text) in enumerate(cells, 2):
            own, later = f"own {number} {line}", [dict(cells)[name] for cells in files[number + 1 :] if name in dict(cells)]
            known = {other for other_name, other in cells if other_name == name}
            final = text if name in ("", NEGATIVE) or not later or later[-1] in known else later[-1]
            if name == NEGATIVE:
                found.add((own, f"answer {own}"))
            found.add((own, final) if kind == "document" else (final, own))
    return found


def corrections(base: Cells, cells: Cells) -> list[Cell]:
    known = {name for name, _ in base} - {"", NEGATIVE}
    return [cell for cell in cells if cell[0] in known and cell not in base]


def is_clear(base: Cells, cells: Cells) -> bool:
    """Whether only the corrected ids have the old and the new texts, in either file."""
    both = [*base, *cells]
    affected = {(text, name) for name, new in corrections(base, cells) for text in (new, *(old for other, old in base if other == name))}
    return all(other == name for text, name in affected for other, other_text in both if other_text == text)


def sequences(length: int, most: int, fixed: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """Sequences of `fixed` values and up to `most` others, which are numbered in the order of their first use."""
    for values in product([*fixed, *map(str, range(most))], repeat=length):
        others = [value for value in values if value not in fixed]
        if [*dict.fromkeys(others)] == [*map(str, range(len({*others})))]:
            yield values


def cases(lengths: Sequence[int], ids: int, fixed: Sequence[str]) -> Iterator[list[Cells]]:
    """Files of these numbers of cells, with up to three texts."""
    for names in sequences(sum(lengths), ids, fixed):
        for texts in sequences(sum(lengths), 3):
            cells = [(f"n{name}" if name.isdigit() else name, TEXTS[int(text)]) for name, text in zip(names, texts, strict=True)]
            ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
            yield [cells[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def check(read: Read, files: Sequence[Cells], kind: Kind) -> str:
    """Check one case; return what happened."""
    base, *batches = files
    rows = [rows_of(number, cells, kind) for number, cells in enumerate(files)]
    try:
        parts = read(*rows)
    except UserError as error:
        problem = str(error)
    else:
        assert all(is_clear(base, cells) for cells in batches), files
        merged = merge(parts)
        assert merged.pairs() == expected_pairs(files, kind), files
        assert merge([*parts, *parts[1:]]) == merged, "the same batches again"
        if len(files) == 2:
            assert all(len({*texts.values()}) == len(texts) for texts in (merged.documents, merged.queries)), (files, "no text twice")
        if kind == "query":
            for name, _ in (cell for cells in batches for cell in corrections(base, cells)):
                assert sum(name in queries for queries in merged.splits.values()) == 1, (files, "a corrected question keeps its split")
        return "corrected" if any(corrections(base, cells) for cells in batches) else "added"
    assert "\n" not in problem
    if TWO_TEXTS in problem:
        named = [{cell for cell in cells if cell[0] not in ("", NEGATIVE)} for cells in files]
        assert any(len(cells) > len(dict(cells)) for cells in named), files
        return "two texts"
    assert CHANGES in problem and not problem.startswith("0.csv"), (files, problem)
    if len(files) == 2:
        assert not is_clear(base, batches[0]), (files, "kept out without a reason")
        fixed = [(name, text if name in ("", NEGATIVE) else dict(batches[0]).get(name, text)) for name, text in base]
        assert merge(read(rows_of(0, fixed, kind), rows[1])).pairs() == expected_pairs([fixed, batches[0]], kind), (files, "the remedy")
    return "kept out"


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [("document", (2, 2)), ("query", (2, 2)), ("document", (1, 1, 1)), ("query", (1, 2, 1)), ("query", (2, 1, 1)), ("query", (1, 1, 2))],
    ids=str,
)
def test_every_row_keeps_its_text_or_is_corrected(read: Read, kind: Kind, lengths: Sequence[int]) -> None:
    """Also tried, but slow: files of (3, 2) and (2, 3) cells, and for documents three files of four cells."""
    fixed = ["", NEGATIVE] if kind == "document" else [""]
    outcomes = Counter(check(read, files, kind) for files in cases(lengths, 3, fixed))
    assert outcomes["corrected"] and outcomes["added"] and outcomes["kept out"]
