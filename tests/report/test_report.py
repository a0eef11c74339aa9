"""The stage from files to table, page, and tests: one to twenty systems, with or without dev, hostile texts, the same result twice."""

import json
import random
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.charts.page import POLICY
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import folder_digest, write_json
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES
from tasks.report.__main__ import main
from tasks.report.examples import cut, ranked_first
from tasks.report.page import source
from tasks.report.systems import DEPTH
from tasks.rerank.params import Rerank
from tasks.rescore.params import Rescore

HOSTILE = '<script>alert("x")</script> & <b>'
PARAMS = """
dataset: {source: 'beir:<i>here</i>'}
text: {titles: true}
report: {metric: AP, baselines: [bm25, init]}
rounds: {init: {init: base, negatives: none}, zeta: {init: base, negatives: bm25}, alpha: {init: zeta, negatives: bm25}}
"""


def table(path: Path, schema: pa.Schema, rows: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema), path)


def make_system(folder: Path, name: str, level: float, splits: tuple[str, ...], count: int = 40) -> None:
    """A system whose AP of query i is a seeded draw around `level`; its runs name document q first."""
    draw, metrics = random.Random(name), {}
    for split in splits:
        values = [(f"{split}{i:03}", min(1.0, max(0.0, level + draw.gauss(0, 0.1))), draw.random()) for i in range(count)]
        table(
            folder / "values" / name / f"{split}.parquet",
            pa.schema([("query", pa.string()), ("AP", pa.float64()), ("RR@10", pa.float64())]),
            values,
        )
        lines = [f"{query} Q0 d{place} {place} {1 / place} {name}\n" for query, _, _ in values for place in (1, 2)]
        (folder / "runs" / name).mkdir(parents=True, exist_ok=True)
        (folder / "runs" / name / f"{split}.trec").write_text("".join(lines))
        metrics[split] = {"AP": sum(row[1] for row in values) / count, "RR@10": sum(row[2] for row in values) / count}
    write_json(folder / "metrics" / f"{name}.json", metrics)


def make_corpus(folder: Path) -> None:
    table(folder / "corpus" / "documents.parquet", DOCUMENTS, [("d1", HOSTILE, f"one {HOSTILE}"), ("d2", "", "two"), ("d3", "", "three")])
    for split in ("dev", "test"):
        queries = [f"{split}{i:03}" for i in range(40)]
        table(folder / "corpus" / "queries" / f"{split}.parquet", QUERIES, [(query, f"{query} {HOSTILE}", []) for query in queries])
        table(
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
    compared = {"metric": "AP", "model": "alpha", "against": "bm25", "alpha": 0.05}
    write_json(folder / "groups.json", compared | {"splits": {"dev": [group | {"name": "won"}, lost, few], "test": []}})
    doc = {"id": "d1", "title": HOSTILE, "text": HOSTILE, "matched": [HOSTILE]}
    systems = {"alpha": {"first": doc, "relevant": False, "rank": 3}, "bm25": {"first": None, "relevant": False, "rank": None}}
    query = {"query": "dev001", "model": 0.25, "against": 1.0, "text": HOSTILE, "relevant": [doc], "systems": systems}
    write_json(folder / "worst.json", compared | {"split": "dev", "queries": [query]})
    (folder / "suspects").mkdir()
    (folder / "suspects" / "dev.csv").write_text('query-id,corpus-id,score,ranks,query,document\nq,d,,"a 1","two\nlines",t\n')


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS)
    make_corpus(tmp_path)
    return tmp_path


def report(monkeypatch: pytest.MonkeyPatch, out: str = "report") -> str:
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


def self_contained(page: str) -> list[str]:
    """Nothing is fetched, and the browser is told to refuse it; what the page draws and runs is all of its own."""
    own = re.sub(r"<script>.*?</script>", "<script></script>", page, flags=re.DOTALL)
    elements = Elements(own)
    assert elements.open == []
    assert all(one == "a href" for one in elements.fetched) and not re.search(r'href="[^#]', own)
    assert not {"link", "iframe", "img", "object"} & set(elements.names)
    assert page.count("<script>") == 2, "Vega and page.js"
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in page and "default-src 'none'" in POLICY
    assert not re.search(r"https?:|url\(|@import", own)
    return elements.names


def test_whole_report(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], charts_of: Callable[..., Any]
) -> None:
    for name, level in (("alpha", 0.8), ("bm25", 0.5), ("zeta", 0.52), ("init", 0.2)):
        make_system(project, name, level, ("dev", "test"))
    train = project / "curves" / "alpha" / "plots" / "metrics" / "train"
    train.mkdir(parents=True)
    (train / "loss.tsv").write_text("step\tloss\n1\t2.5\n2\tnan\n3\t1.5\n")
    write_json(project / "index_metrics" / "alpha.json", {"factory": "Flat<8>", "rows": 3, "recall@100": 0.987654})
    page = report(monkeypatch)
    self_contained(page)
    charts = dict(charts_of(page))
    assert list(charts) == [
        "AP of each system with 95% intervals",
        "difference on every query, alpha minus bm25",
        "AP, alpha minus bm25, by groups of queries",
        "loss over steps",
    ]
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in page
    assert "beir:&lt;i&gt;here&lt;/i&gt;" in page
    assert "Flat&lt;8&gt;" in page
    assert "0.9877" in page
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "beir:<i>here</i>, 3 documents, titles on; test, 40 queries"
    rows = [line.split() for line in printed[4:8]]
    assert [row[0] if row[0] not in "ab" else row[1] for row in rows] == [
        "bm25",
        "init",
        "zeta",
        "alpha",
    ]  # in the order of params.yaml, not alphabetical
    assert rows[3][:2] == ["alpha", "*"]
    drawn = {row["name"]: row for row in charts["AP of each system with 95% intervals"]["data"]["values"]}
    assert [name for name, row in drawn.items() if row["kind"] == "best"] == ["alpha"]
    assert charts["loss over steps"]["data"]["values"] == [
        {"name": "alpha", "x": 1.0, "y": 2.5, "note": "2.5"},
        {"name": "alpha", "x": 3.0, "y": 1.5, "note": "1.5"},
    ]
    means = {name: json.loads((project / "metrics" / f"{name}.json").read_text()) for name in ("bm25", "alpha")}
    assert f"{means['alpha']['test']['AP']:.4f}" in rows[3]
    assert (
        drawn["alpha"]["value"] == means["alpha"]["test"]["AP"] and drawn["alpha"]["low"] < drawn["alpha"]["value"] < drawn["alpha"]["high"]
    )
    assert rows[3][3] == "ab"
    assert rows[1][3] == "-a"
    result = json.loads((project / "report" / "significance.json").read_text())
    assert result["best"] == {"system": "alpha", "chosen_on": "dev"}
    assert [len(pairs) for pairs in result["splits"].values()] == [5, 5]
    pair = next(pair for pair in result["splits"]["test"] if (pair["system"], pair["baseline"]) == ("alpha", "bm25"))
    assert pair["difference"] == pytest.approx(means["alpha"]["test"]["AP"] - means["bm25"]["test"]["AP"])
    report(monkeypatch, "again")
    assert folder_digest(project / "report") == folder_digest(project / "again")


def test_every_query_is_a_step(project: Path, monkeypatch: pytest.MonkeyPatch, charts_of: Callable[..., Any]) -> None:
    for name, level in (("alpha", 0.8), ("bm25", 0.5)):
        make_system(project, name, level, ("dev", "test"))
    page = report(monkeypatch)
    spec = dict(charts_of(page))["difference on every query, alpha minus bm25"]
    values = {
        name: dict(pq.read_table(project / "values" / name / "test.parquet").select(["query", "AP"]).to_pandas().to_numpy().tolist())
        for name in ("alpha", "bm25")
    }
    wanted = sorted((values["bm25"][query] - values["alpha"][query], query) for query in values["alpha"])
    rows = spec["data"]["values"]
    assert [row["query"] for row in rows] == [query for _, query in wanted]
    assert [row["y"] for row in rows] == pytest.approx([-difference for difference, _ in wanted], abs=1e-6)
    assert [(row["x"], row["end"]) for row in rows] == [(place, place + 1) for place in range(40)]
    assert rows[0]["alpha"] == f"{values['alpha'][wanted[0][1]]:.4f}"
    won, lost = sum(difference < 0 for difference, _ in wanted), sum(difference > 0 for difference, _ in wanted)
    assert f"{won} won, {40 - won - lost} tied, {lost} lost" in page
    assert f'class="won" style="flex:{won}"' in page


def test_the_page_says_first_what_was_trained_and_where_it_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch, charts_of: Callable[..., Any]
) -> None:
    for name, level in (("alpha", 0.8), ("bm25", 0.5), ("init", 0.2)):
        make_system(project, name, level, ("dev", "test"))
    write_json(project / "index_metrics" / "alpha.json", {"factory": "Flat", "bytes_per_vector": 1536.5})
    train = {"queries": 1234, "positives": 2000, "words": None, "qrels": 2000, "positives_per_query": 1.6}
    write_json(project / "corpus" / "stats.json", {"documents": {"count": 3}, "splits": {"train": train}})
    page = report(monkeypatch)
    summary = page.partition('<dl class="summary">')[2].partition("</dl>")[0]
    rows = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", summary))
    assert rows["Trained"] == "3 rounds on 1,234 queries with 2,000 relevant documents."
    pairs = json.loads((project / "report" / "significance.json").read_text())["splits"]["test"]
    first = next(pair for pair in pairs if (pair["system"], pair["baseline"]) == ("alpha", "bm25"))
    assert rows["Better?"].startswith(f"alpha has {first['difference']:+.4f} against bm25 (significant, p &lt;\u00a00.0001), +")
    assert rows["Size"] == "Its index (alpha) takes 1,536 bytes a passage."
    escaped = "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &amp; &lt;b&gt;"
    assert rows["Where it fails"] == (
        f"On dev, significantly below bm25 in 1 of 2 groups of queries: source {escaped} (-0.1000). "
        "1 unjudged document that several systems rank high may be relevant."
    )
    spec = dict(charts_of(page))["AP, alpha minus bm25, by groups of queries"]
    assert [(row["name"], row["kind"]) for row in spec["data"]["values"]] == [
        ("source: won", "won"),
        (f"source: {HOSTILE}", "lost"),
        ("source: few", "plain"),
    ]
    links = re.findall(r'<a href="#(\w+)">', page.partition("<nav>")[2].partition("</nav>")[0])
    assert set(links) <= set(re.findall(r'id="(\w+)"', page)) and "weaknesses" in links
    assert "1 pairs of query and document" not in page and "1 pair of query and document" in page


def test_a_phone_sees_every_system_and_every_figure(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables become cards with labeled cells, and recipes are complete."""
    for name, level in (("alpha", 0.8), ("bm25", 0.5), ("init", 0.2)):
        make_system(project, name, level, ("dev", "test"))
    write_json(project / "index_metrics" / "alpha.json", {"factory": "Flat", "rows": 3, "recall@100": 0.9})
    page = report(monkeypatch)
    own = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert own.count('<table class="stack">') == own.count("<table")
    rows = re.findall(r"<tr.*?</tr>", own.partition("<tbody>")[2].partition("</tbody>")[0], re.DOTALL)
    assert len(rows) == 3
    assert all(re.findall(r'data-label="([^"]*)"', row) == ["AP", "RR@10", "dev AP"] for row in rows)
    cells = [re.findall("<td[^>]*>", row)[1:] for row in re.findall("<tr>.*?</tr>", own, re.DOTALL)]
    assert all("data-label=" in cell for row in cells for cell in row)


def test_the_best_system_is_chosen_on_dev_not_test(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_system(project, "bm25", 0.5, ("dev", "test"))
    make_system(project, "init", 0.4, ("dev", "test"))
    metrics = json.loads((project / "metrics" / "init.json").read_text())
    write_json(project / "metrics" / "init.json", metrics | {"test": {"AP": 0.99, "RR@10": 0.99}})
    report(monkeypatch)
    assert json.loads((project / "report" / "significance.json").read_text())["best"]["system"] == "bm25"


def test_ties_go_to_the_simpler_system(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule promotes models: `alpha` is listed before `zeta`, which it starts from."""
    for name in ("alpha", "zeta"):
        make_system(project, name, 0.5, ("dev", "test"))
        values = pq.read_table(project / "values" / "zeta" / "dev.parquet") if name == "zeta" else None
    assert values is not None
    pq.write_table(values, project / "values" / "alpha" / "dev.parquet")
    dev = json.loads((project / "metrics" / "zeta.json").read_text())["dev"]
    metrics = json.loads((project / "metrics" / "alpha.json").read_text())
    write_json(project / "metrics" / "alpha.json", metrics | {"dev": dev})
    (project / "params.yaml").write_text(
        PARAMS.replace(
            "zeta: {init: base, negatives: bm25}, alpha: {init: zeta, negatives: bm25}",
            "alpha: {init: zeta, negatives: bm25}, zeta: {init: base, negatives: bm25}",
        )
    )
    report(monkeypatch)
    assert json.loads((project / "report" / "significance.json").read_text())["best"]["system"] == "zeta"


@pytest.mark.parametrize(
    ("splits", "shown", "chosen_on"), [(("dev",), "dev", "dev"), (("test",), "test", "test"), (("dev", "test"), "test", "dev")]
)
@pytest.mark.parametrize("names", [("bm25",), ("init",), ("bm25", "init")])
def test_reports_of_few_systems_and_splits(
    project: Path, monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...], shown: str, chosen_on: str, names: tuple[str, ...]
) -> None:
    for level, name in enumerate(names, 1):
        make_system(project, name, level / 3, splits)
    page = report(monkeypatch)
    self_contained(page)
    assert f"Results on {shown}" in page
    assert json.loads((project / "report" / "significance.json").read_text())["best"] == {"system": names[-1], "chosen_on": chosen_on}
    assert ("query by query" in page) == (len(names) == 2)


@pytest.mark.parametrize(("relevance", "rank"), [("1", 2), ("2", None), ("{dev: 2}", None), ("{test: 2}", 2)])
def test_examples_use_the_relevance_grade_of_evaluate(
    project: Path, monkeypatch: pytest.MonkeyPatch, relevance: str, rank: int | None
) -> None:
    (project / "params.yaml").write_text(f"{PARAMS}evaluate: {{relevance: {relevance}}}\n")
    make_system(project, "bm25", 0.1, ("dev",))
    make_system(project, "init", 0.9, ("dev",))
    grades = [(f"dev{i:03}", doc, grade) for i in range(40) for doc, grade in (("d2", 1), ("d3", 2))]
    table(project / "corpus" / "qrels" / "dev.parquet", QRELS, grades)
    page = report(monkeypatch).partition('id="examples"')[2]  # every run has d1, d2
    assert ("relevant at rank 2" in page, "relevant not found" in page) == (rank == 2, rank is None)


def test_short_runs_and_missing_baselines_are_reported(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = "rerank: {few: {run: bm25, reranker: r, depth: 9}, ten: {run: bm25, reranker: r, depth: 10}}\nrescore: {default: {run: bm25}}\n"
    (project / "params.yaml").write_text(PARAMS.replace("[bm25, init]", "[bm25, wramup]") + rest)
    for name in ("bm25", "few", "ten", "default"):
        make_system(project, name, 0.5, ("dev", "test"))
    page = report(monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    line = "few has only 9 ranks, which lowers its RR@10"
    assert [told for told in printed if "ranks" in told] == [line] and f"{line}." in page
    assert [told for told in printed if "baselines" in told] == ["baselines not in the table: wramup"]
    assert {model.model_fields["depth"].default for model in (Rerank, Rescore)} == {DEPTH}


@pytest.mark.parametrize("dev", ["pseudo", "corpus"])
def test_queries_that_no_human_judged_are_told(
    dev: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {"title": {"made": 1581, "train": 9}, "span": {"made": 20, "train": 7}}
    write_json(project / "corpus" / "stats.json", {"documents": {"count": 3}, "splits": {}, "pseudo": {"kinds": kinds, "dev": dev}})
    make_system(project, "bm25", 0.5, ("dev", "test"))
    page = report(monkeypatch)
    printed = capsys.readouterr().out
    for told in (page.lower(), printed):
        assert "no human judged the training queries" in told and "9 from 1,581 titles, 7 from 20 spans" in told
        assert ("the choice of the best system used no human judgment" in told) == (dev == "pseudo")


def test_a_page_of_ten_systems_and_ten_thousand_queries_stays_small(
    project: Path, monkeypatch: pytest.MonkeyPatch, charts_of: Callable[..., Any]
) -> None:
    count = 10_000
    for split in ("dev", "test"):
        queries = [f"{split}{i:03}" for i in range(count)]
        table(project / "corpus" / "queries" / f"{split}.parquet", QUERIES, [(query, f"{query} {HOSTILE}", []) for query in queries])
        table(project / "corpus" / "qrels" / f"{split}.parquet", QRELS, [(query, "d2", 1) for query in queries])
    make_system(project, "bm25", 0.5, ("dev", "test"), count)
    for place in range(9):
        name = f"round_with_a_long_name_{place}"
        make_system(project, name, place / 20, ("dev", "test"), count)
        folder = project / "curves" / name / "plots" / "metrics" / "train"
        folder.mkdir(parents=True)
        (folder / "loss.tsv").write_text("step\tloss\n" + "".join(f"{step}\t{1 / step}\n" for step in range(1, 1000)))
    page = report(monkeypatch)
    self_contained(page)
    curves = dict(charts_of(page))["loss over steps"]["data"]["values"]
    assert len({row["name"] for row in curves}) == 9
    assert len(page.encode()) < 2_000_000, "5 MB is the limit; .9 are Vega"


def test_fusions_are_shown_with_their_choice_and_grid(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["bm25", "alpha", "mixed", "rrf", "blind"]
    for level, name in enumerate(names):
        make_system(project, name, 0.2 + level / 10, ("dev", "test"))
    fused = {name: {"first": "bm25", "second": "alpha"} for name in names[2:]}
    (project / "params.yaml").write_text(f"{PARAMS}fuse: {json.dumps(fused)}\n")
    told = {"first": "bm25", "second": "al<b>", "method": "linear", "weight": 0.35, "measure": "nDCG@10", "chosen_on": "dev"}
    grid = [{"weight": weight, "nDCG@10": value} for weight, value in ((0.0, 0.51239), (0.35, 0.71111))]
    write_json(project / "runs" / "mixed" / "fusion.json", told | {"grid": grid})
    write_json(project / "runs" / "rrf" / "fusion.json", told | {"method": "rrf", "k": 60, "grid": [{"k": 60, "nDCG@10": 0.4}]})
    write_json(project / "runs" / "blind" / "fusion.json", told | {"chosen_on": None, "grid": []})
    page = report(monkeypatch)
    self_contained(page)
    assert "linear of bm25 and al&lt;b&gt;, weight 0.35 of bm25, the best nDCG@10 on dev of these" in page
    assert "0.5124" in page and "0.7111" in page
    assert "rrf of bm25 and al&lt;b&gt;, k 60, the best nDCG@10 on dev" in page
    assert "weight 0.35 of bm25, not chosen: there are no judged dev queries" in page


def test_errors_are_one_line_and_leave_no_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="found no JSON file"):
        report(monkeypatch)
    make_system(project, "bm25", 0.5, ("test",))
    make_system(project, "init", 0.5, ("test",), count=39)
    with pytest.raises(UserError, match="init and bm25 have different test queries"):
        report(monkeypatch)
    (project / "params.yaml").write_text(PARAMS.replace("metric: AP", "metric: nDCG@10"))
    with pytest.raises(UserError, match=r"report.metric: found 'nDCG@10', expected one of evaluate.measures: AP, RR@10"):
        report(monkeypatch)
    assert not (project / "report").exists()


def test_first_document_and_first_relevant_rank(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a Q0 x 1 3 t\na Q0 y 2 2 t\na Q0 z 3 1 t\nb Q0 x 1 1 t\nc Q0 x 1 1 t\n")
    found = ranked_first(tmp_path / "run", {"a": ["z", "y"], "b": ["y"], "d": ["x"]})
    assert found == {"a": ("x", 2), "b": ("x", None)}
    (tmp_path / "wide").write_text("q\u00a0 Q0 d\u3000 1 3 t\n", encoding="utf-8")
    assert ranked_first(tmp_path / "wide", {"q\u00a0": ["d\u3000"]}) == {"q\u00a0": ("d\u3000", 1)}
    (tmp_path / "escaped").write_text("%00query%201 Q0 %00doc%201 1 3 t\n")
    assert ranked_first(tmp_path / "escaped", {"query 1": ["doc 1"]}) == {"query 1": ("doc 1", 1)}, "ids with white space"
    assert cut("word " * 100).endswith("word …")
    assert cut("short") == "short"


def test_a_source_is_shown_without_its_folders() -> None:
    assert source("beir:/a/b/scifact/") == "beir:scifact"
    assert source("irds:beir/scifact") == "irds:beir/scifact"
    assert source("demo") == "demo"
