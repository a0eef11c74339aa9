"""A project of made-up systems, and its report."""

import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.charts.page import POLICY
from tasks.core.files import write_json
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES
from tasks.report.__main__ import main

HOSTILE = '<script>alert("x")</script> & <b>'
PARAMS = """
dataset: {source: 'beir:<i>here</i>'}
text: {titles: true}
report: {metric: AP, baselines: [bm25, init], draws: queries}
rounds: {init: {init: base, negatives: none}, zeta: {init: base, negatives: bm25}, alpha: {init: zeta, negatives: bm25}}
"""


def write_rows(path: Path, schema: pa.Schema, rows: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema), path)


def make_system(folder: Path, name: str, level: float, splits: tuple[str, ...], count: int = 40) -> None:
    """A system whose AP of query i is a seeded draw around `level`; its runs name document q first."""
    rng, metrics = random.Random(name), {}
    for split in splits:
        values = [(f"{split}{i:03}", min(1.0, max(0.0, level + rng.gauss(0, 0.1))), rng.random()) for i in range(count)]
        write_rows(
            folder / "values" / name / f"{split}.parquet",
            pa.schema([("query", pa.string()), ("AP", pa.float64()), ("RR@10", pa.float64())]),
            values,
        )
        lines = [f"{query} Q0 d{rank} {rank} {1 / rank} {name}\n" for query, _, _ in values for rank in (1, 2)]
        (folder / "runs" / name).mkdir(parents=True, exist_ok=True)
        (folder / "runs" / name / f"{split}.trec").write_text("".join(lines))
        metrics[split] = {"AP": sum(row[1] for row in values) / count, "RR@10": sum(row[2] for row in values) / count}
    write_json(folder / "metrics" / f"{name}.json", metrics)


def make_corpus(folder: Path) -> None:
    write_rows(
        folder / "corpus" / "documents.parquet", DOCUMENTS, [("d1", HOSTILE, f"one {HOSTILE}"), ("d2", "", "two"), ("d3", "", "three")]
    )
    for split in ("dev", "test"):
        queries = [f"{split}{i:03}" for i in range(40)]
        write_rows(folder / "corpus" / "queries" / f"{split}.parquet", QUERIES, [(query, f"{query} {HOSTILE}", []) for query in queries])
        write_rows(
            folder / "corpus" / "qrels" / f"{split}.parquet",
            QRELS,
            [(query, "d2", 1) for query in queries] + [(query, "d3", 0) for query in queries],
        )
    write_json(folder / "corpus" / "stats.json", {"documents": {"count": 3}, "splits": {}})
    make_failures(folder / "failures")


def make_failures(folder: Path) -> None:
    """What the stage failures writes: a group that wins, one that loses, one too small to test; a worst query; a suspect."""
    group = {
        "dimension": "source",
        "queries": 20,
        "model": 0.6,
        "against": 0.5,
        "difference": 0.1,
        "low": 0.05,
        "high": 0.15,
        "p_holm": 0.01,
    }
    lost = group | {"name": HOSTILE, "model": 0.4, "difference": -0.1, "low": -0.15, "high": -0.05, "p_holm": 0.02}
    few = group | {"name": "few", "queries": 2, "low": None, "high": None, "p_holm": None}
    header = {"metric": "AP", "model": "alpha", "against": "bm25", "alpha": 0.05}
    write_json(folder / "groups.json", header | {"splits": {"dev": [group | {"name": "won"}, lost, few], "test": []}})
    doc = {"id": "d1", "title": HOSTILE, "text": HOSTILE, "matched": [HOSTILE]}
    systems = {"alpha": {"first": doc, "relevant": False, "rank": 3}, "bm25": {"first": None, "relevant": False, "rank": None}}
    query = {"query": "dev001", "model": 0.25, "against": 1.0, "text": HOSTILE, "relevant": [doc], "systems": systems}
    write_json(folder / "worst.json", header | {"split": "dev", "queries": [query]})
    (folder / "suspects").mkdir()
    (folder / "suspects" / "dev.csv").write_text('query-id,corpus-id,score,ranks,query,document\nq,d,,"a 1","two\nlines",t\n')


def run_report(monkeypatch: pytest.MonkeyPatch, out: str = "report") -> str:
    arguments = [
        part
        for name in ("metrics", "values", "runs", "index-metrics", "curves", "failures", "corpus")
        for part in (f"--{name}", name.replace("-", "_"))
    ]
    write_json(Path("source.json"), {"dataset": {"digest": "d1g"}})
    monkeypatch.setattr("sys.argv", ["report", *arguments, "--source", "source.json", "--out", out])
    freeze_parameters()
    main()
    return Path(out, "report.html").read_text()


class Elements(HTMLParser):
    """Names of all elements, and everything that would be fetched; open elements must be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data", "xlink:href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_self_contained(page: str) -> list[str]:
    """Nothing is fetched, and the browser is told to refuse it; what the page draws and runs is all of its own."""
    markup = re.sub(r"<script>.*?</script>", "<script></script>", page, flags=re.DOTALL)
    elements = Elements(markup)
    assert elements.open == []
    assert all(link == "a href" for link in elements.fetched) and not re.search(r'href="[^#]', markup)
    assert not {"link", "iframe", "img", "object"} & set(elements.names)
    assert page.count("<script>") == 2, "Vega and page.js"
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in page and "default-src 'none'" in POLICY
    assert not re.search(r"https?:|url\(|@import", markup)
    return elements.names
