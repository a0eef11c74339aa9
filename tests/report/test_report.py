"""The stage from files to table, page, and tests: one to twenty systems, with or without dev, hostile texts, the same result twice."""

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.charts.curves import POINTS, read_tsv, thinned
from tasks.core.charts.svg import NARROW, ticks
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import folder_digest, write_json
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES
from tasks.report.__main__ import main
from tasks.report.examples import cut, ranked_first
from tasks.report.page import source
from tasks.report.systems import DEPTH, in_common, ordered, recipe
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


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS)
    make_corpus(tmp_path)
    return tmp_path


def report(monkeypatch: pytest.MonkeyPatch, out: str = "report") -> str:
    arguments = [
        part
        for name in ("metrics", "values", "runs", "index-metrics", "curves", "corpus")
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
    elements = Elements(page)
    assert elements.open == []
    assert elements.fetched == []
    assert not {"script", "link", "iframe", "img", "object"} & set(elements.names)
    assert not re.search(r"https?:|url\(|@import", page)
    return elements.names


def test_whole_report(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, level in (("alpha", 0.8), ("bm25", 0.5), ("zeta", 0.52), ("init", 0.2)):
        make_system(project, name, level, ("dev", "test"))
    train = project / "curves" / "alpha" / "plots" / "metrics" / "train"
    train.mkdir(parents=True)
    (train / "loss.tsv").write_text("step\tloss\n1\t2.5\n2\tnan\n3\t1.5\n")
    write_json(project / "index_metrics" / "alpha.json", {"factory": "Flat<8>", "rows": 3, "recall@100": 0.987654})
    page = report(monkeypatch)
    names = self_contained(page)
    assert names.count("svg") == 2 * 3 + 1 + 1  # dots, shares, differences, for wide pages and narrow ones; one curve and its legend
    assert "&lt;script&gt;alert" in page
    assert "<script>" not in page
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
    means = {name: json.loads((project / "metrics" / f"{name}.json").read_text()) for name in ("bm25", "alpha")}
    assert f"{means['alpha']['test']['AP']:.4f}" in rows[3]
    assert rows[3][3] == "ab"
    assert rows[1][3] == "-a"
    result = json.loads((project / "report" / "significance.json").read_text())
    assert result["best"] == {"system": "alpha", "chosen_on": "dev"}
    assert [len(pairs) for pairs in result["splits"].values()] == [5, 5]
    pair = next(pair for pair in result["splits"]["test"] if (pair["system"], pair["baseline"]) == ("alpha", "bm25"))
    assert pair["difference"] == pytest.approx(means["alpha"]["test"]["AP"] - means["bm25"]["test"]["AP"])
    report(monkeypatch, "again")
    assert folder_digest(project / "report") == folder_digest(project / "again")


def test_a_phone_sees_every_system_and_every_figure(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts have its width and nothing beyond their edges, tables become cards with labeled cells, recipes are complete."""
    for name, level in (("alpha", 0.8), ("bm25", 0.5), ("init", 0.2)):
        make_system(project, name, level, ("dev", "test"))
    write_json(project / "index_metrics" / "alpha.json", {"factory": "Flat", "rows": 3, "recall@100": 0.9})
    page = report(monkeypatch)
    narrow = re.findall(r'<div class="narrow">(.*?)</div>', page, re.DOTALL)
    drawings = [drawing for part in narrow for drawing in re.findall(r"<svg.*?</svg>", part, re.DOTALL)]
    assert [re.search(r'class="(\w+)"', drawing)[1] for drawing in drawings] == ["dots", "shares", "differences"]  # type: ignore[index]
    for drawing in drawings:
        assert f'viewBox="0 0 {NARROW} ' in drawing
        assert all(0 <= float(x) <= NARROW for x in re.findall(r' (?:x|cx|x1|x2)="([^"]*)"', drawing))
    assert all(re.search(f">{name}<", drawings[0]) for name in ("alpha", "bm25", "init"))
    assert page.count('<table class="stack">') == page.count("<table")
    rows = re.findall(r"<tr.*?</tr>", page.partition("<tbody>")[2].partition("</tbody>")[0], re.DOTALL)
    assert len(rows) == 3
    assert all(re.findall(r'data-label="([^"]*)"', row) == ["AP", "RR@10", "dev AP"] for row in rows)
    cells = [re.findall("<td[^>]*>", row)[1:] for row in re.findall("<tr>.*?</tr>", page, re.DOTALL)]
    assert all("data-label=" in cell for row in cells for cell in row)
    assert "line-clamp" not in page
    everywhere, phone = page.partition("@media print")[0].split("@media (max-width: 600px)")
    assert ".narrow { display: none; }" in everywhere
    assert ".broad { display: none; } .narrow { display: block; }" in phone
    assert all(rule in phone for rule in (".stack tr { display: grid;", "content: attr(data-label);", "scroll sideways"))


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
    page = report(monkeypatch)  # every run has d1, d2
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


def test_a_page_of_twenty_systems_stays_small(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_system(project, "bm25", 0.5, ("dev", "test"))
    for place in range(19):
        name = f"round_with_a_long_name_{place}"
        make_system(project, name, place / 20, ("dev", "test"))
        folder = project / "curves" / name / "plots" / "metrics" / "train"
        folder.mkdir(parents=True)
        (folder / "loss.tsv").write_text("step\tloss\n" + "".join(f"{step}\t{1 / step}\n" for step in range(1, 1000)))
    page = report(monkeypatch)
    self_contained(page)
    assert page.count("<polyline") == 19
    assert len(page) < 500_000


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


def test_curves_skip_non_finite_values_and_are_thinned(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("step\tloss\n0\t1.5\n1\tinf\n2\t\n3\t0.5\n")
    (tmp_path / "b.tsv").write_text("timestamp\tstep\tloss\n99\t7\t0.25\n")
    (tmp_path / "c.tsv").write_text("")
    assert read_tsv(tmp_path / "a.tsv") == [(0, 1.5), (3, 0.5)]
    assert read_tsv(tmp_path / "b.tsv") == [(7, 0.25)]
    assert read_tsv(tmp_path / "c.tsv") == []
    long = [(float(x), 2.0 * x) for x in range(POINTS * 3)]
    assert thinned(long)[:2] == [(1.0, 2.0), (4.0, 8.0)]
    assert len(thinned(long)) == POINTS


@pytest.mark.parametrize(("low", "high"), [(0.61, 0.84), (0, 0), (-3e-5, 5e-5), (1, 12345), (0.99999, 1)])
def test_ticks_span_the_data_and_are_few(low: float, high: float) -> None:
    marks = ticks(low, high)
    assert marks[0] <= low <= high <= marks[-1]
    assert 2 <= len(marks) <= 8


def test_a_recipe_names_the_pretraining_under_it() -> None:
    sections = {
        "pretrain": {"costa": {"init": "base", "objective": "costa"}},
        "rounds": {"a": {"init": "costa", "loss": "nll"}, "b": {"init": "a"}},
    }
    assert recipe("a", sections) == "from costa, loss nll (costa: from base, objective costa)"
    assert recipe("b", sections) == "from a"


def test_reordered_runs_have_recipes_and_follow_their_models() -> None:
    sections = {
        "rounds": {"a": {"init": "base"}},
        "adore": {"q": {"round": "a"}},
        "rerank": {"r": {"run": "a", "reranker": "small", "depth": 30}},
        "fuse": {"h": {"first": "bm25", "second": "q", "method": "linear"}},
        "rescore": {"b": {"run": "bm25", "round": "a"}},
    }
    assert recipe("h", sections) == "first bm25, second q, method linear"
    assert recipe("r", sections) == "run a, reranker small, depth 30"
    assert recipe("b", sections) == "run bm25, round a"
    assert ordered({"b", "r", "q", "a", "bm25", "h", "x"}, sections) == ["bm25", "a", "q", "h", "r", "b", "x"]


def test_settings_shared_by_all_rounds_are_listed_once() -> None:
    rounds: dict[str, dict[str, object]] = {name: {"init": "base", "lr": 1e-5, "steps": 7, "loss": "nll"} for name in "abcd"}
    rounds["d"] |= {"loss": "ranknet"}
    sections = {"rounds": {"init": {"init": "base", "steps": 0}, **rounds}, "adore": {"q": {"round": "a", "lr": 1e-5}}}
    assert in_common(sections) == "lr 1e-05, steps 7"
    assert recipe("a", sections) == "from base, loss nll"
    assert recipe("init", sections) == "from base, steps 0"
    assert recipe("q", sections) == "round a, lr 1e-05", "not a round: it lists its own settings"
    del rounds["b"], sections["rounds"]["b"]
    assert in_common(sections) == "", "few rounds list all their settings"


def test_a_source_is_shown_without_its_folders() -> None:
    assert source("beir:/a/b/scifact/") == "beir:scifact"
    assert source("irds:beir/scifact") == "irds:beir/scifact"
    assert source("demo") == "demo"
