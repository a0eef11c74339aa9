"""What the page shows: every query, what it says first, cards on a phone, many systems, fusions."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.files import write_json
from tasks.core.tables.schemas import QRELS, QUERIES
from tasks.report.page import format_value
from tasks.report.weaknesses import Weaknesses, weakness_sentence
from tests.report.project import HOSTILE, PARAMS, check_self_contained, make_system, run_report, write_rows


def test_every_query_is_a_step(project: Path, monkeypatch: pytest.MonkeyPatch, charts_of: Callable[..., Any]) -> None:
    for name, level in (("alpha", 0.8), ("bm25", 0.5)):
        make_system(project, name, level, ("dev", "test"))
    page = run_report(monkeypatch)
    spec = dict(charts_of(page))["difference on every query, alpha minus bm25"]
    values = {
        name: dict(pq.read_table(project / "values" / name / "test.parquet").select(["query", "AP"]).to_pandas().to_numpy().tolist())
        for name in ("alpha", "bm25")
    }
    expected = sorted((values["bm25"][query] - values["alpha"][query], query) for query in values["alpha"])
    rows = spec["data"]["values"]
    assert [row["query"] for row in rows] == [query for _, query in expected]
    assert [row["y"] for row in rows] == pytest.approx([-difference for difference, _ in expected], abs=1e-6)
    assert [(row["x"], row["end"]) for row in rows] == [(n, n + 1) for n in range(40)]
    assert rows[0]["first"] == f"{values['alpha'][expected[0][1]]:.4f}"
    won, lost = sum(difference < 0 for difference, _ in expected), sum(difference > 0 for difference, _ in expected)
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
    page = run_report(monkeypatch)
    summary = page.partition('<dl class="summary">')[2].partition("</dl>")[0]
    rows = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", summary))
    assert rows["Trained"] == "3 rounds on 1,234 queries with 2,000 relevant pairs."
    pairs = json.loads((project / "report" / "significance.json").read_text())["splits"]["test"]
    first = next(pair for pair in pairs if (pair["system"], pair["baseline"]) == ("alpha", "bm25"))
    assert rows["Better?"].startswith(f"alpha has {first['difference']:+.4f} against bm25 (significant, p &lt;\u00a00.0001), +")
    assert rows["Size"] == "Its index (alpha) takes 1,536 bytes per passage."
    escaped = "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &amp; &lt;b&gt;"
    assert rows["Where it fails"] == (
        f"On dev, alpha is significantly below bm25 in 1 group of queries (2 tested, 1 too small to test): source {escaped} (-0.1000). "
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
    page = run_report(monkeypatch)
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert markup.count('<table class="stack">') == markup.count("<table")
    rows = re.findall(r"<tr.*?</tr>", markup.partition("<tbody>")[2].partition("</tbody>")[0], re.DOTALL)
    assert len(rows) == 3
    assert all(re.findall(r'data-label="([^"]*)"', row) == ["AP", "RR@10", "dev AP"] for row in rows)
    cells = [re.findall("<td[^>]*>", row) for row in re.findall("<tr>.*?</tr>", markup, re.DOTALL)]
    assert all("data-label=" in cell for row in cells for cell in row)


def test_a_page_of_ten_systems_and_ten_thousand_queries_stays_small(
    project: Path, monkeypatch: pytest.MonkeyPatch, charts_of: Callable[..., Any]
) -> None:
    count = 10_000
    for split in ("dev", "test"):
        queries = [f"{split}{i:03}" for i in range(count)]
        write_rows(project / "corpus" / "queries" / f"{split}.parquet", QUERIES, [(query, f"{query} {HOSTILE}", []) for query in queries])
        write_rows(project / "corpus" / "qrels" / f"{split}.parquet", QRELS, [(query, "d2", 1) for query in queries])
    make_system(project, "bm25", 0.5, ("dev", "test"), count)
    for n in range(9):
        name = f"round_with_a_long_name_{n}"
        make_system(project, name, n / 20, ("dev", "test"), count)
        folder = project / "curves" / name / "plots" / "metrics" / "train"
        folder.mkdir(parents=True)
        (folder / "loss.tsv").write_text("step\tloss\n" + "".join(f"{step}\t{1 / step}\n" for step in range(1, 1000)))
    page = run_report(monkeypatch)
    check_self_contained(page)
    curves = dict(charts_of(page))["loss over steps"]["data"]["values"]
    assert len({row["name"] for row in curves}) == 9
    assert len(page.encode()) < 2_000_000, "5 MB is the limit; .9 are Vega"


def test_fusions_are_shown_with_their_choice_and_grid(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["bm25", "alpha", "mixed", "rrf", "blind", "zeta"]
    for level, name in enumerate(names):
        make_system(project, name, 0.2 + level / 10, ("dev", "test"))
    fused = {name: {"first": "bm25", "second": "alpha"} for name in names[2:]}
    (project / "params.yaml").write_text(f"{PARAMS}fuse: {json.dumps(fused)}\n")
    choice = {"first": "bm25", "second": "al<b>", "method": "linear", "weight": 0.35, "measure": "nDCG@10", "chosen_on": "dev"}
    grid = [{"weight": weight, "nDCG@10": value} for weight, value in ((0.0, 0.51239), (0.35, 0.71111))]
    write_json(project / "runs" / "mixed" / "fusion.json", choice | {"grid": grid})
    write_json(project / "runs" / "rrf" / "fusion.json", choice | {"method": "rrf", "k": 60, "grid": [{"k": 60, "nDCG@10": 0.4}]})
    write_json(project / "runs" / "blind" / "fusion.json", choice | {"chosen_on": None, "grid": []})
    write_json(project / "runs" / "zeta" / "fusion.json", choice | {"chosen_on": None, "grid": [], "why": "none of 6 <b>"})
    page = run_report(monkeypatch)
    check_self_contained(page)
    assert "linear of bm25 and al&lt;b&gt;, weight 0.35 of bm25, the best nDCG@10 on dev of these" in page
    assert "0.5124" in page and "0.7111" in page
    assert "rrf of bm25 and al&lt;b&gt;, k 60, the best nDCG@10 on dev" in page
    assert "weight 0.35 of bm25, not chosen: there are no judged dev queries" in page
    assert "not chosen: none of 6 &lt;b&gt;." in page


def groups_text(**differences: float) -> str:
    """What is said of groups with these differences, of which the first is tested."""
    groups = [
        {"dimension": "length", "name": name, "difference": difference, "p_holm": None if n else 0.5}
        for n, (name, difference) in enumerate(differences.items())
    ]
    return weakness_sentence(Weaknesses("AP", "alpha", "bm25", "dev", groups, [], {}, 0.05))


def test_where_it_does_not_fail_is_said_of_the_tested_groups() -> None:
    assert groups_text(short=0.0, long=-0.2) == (
        "On dev, alpha is not significantly below bm25 in any group of queries (1 tested, 1 too small to test); "
        "its lowest difference is +0.0000 (length short)."
    )
    assert "(1 tested); its lowest" in groups_text(short=0.1)


def test_encoders_curves_and_what_cannot_be_reached(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoders that a training starts from are named, curves are explained, and more queries than anyone has are sorted last."""
    for name, level in (("alpha", 0.8), ("bm25", 0.5), ("init", 0.2)):
        make_system(project, name, level, ("dev", "test"))
    values = pq.read_table(project / "values" / "alpha" / "test.parquet")
    shifted = values.set_column(
        1, "AP", pa.array([value + (1e-3 if n % 2 else 1e-9 - 1e-3) for n, value in enumerate(values["AP"].to_pylist())])
    )
    pq.write_table(shifted, project / "values" / "init" / "test.parquet")
    params = PARAMS.replace("zeta: {init: base", "zeta: {init: e5")
    (project / "params.yaml").write_text(f"{params}encoder: {{source: me/mini}}\nencoders: {{e5: {{source: me/e5}}}}\n")
    folder = project / "curves" / "alpha" / "plots" / "metrics" / "train"
    folder.mkdir(parents=True)
    for name in ("loss", "accuracy", "gradient_norm", "hit_10", "mrr_10"):
        (folder / f"{name}.tsv").write_text(f"step\t{name}\n0\t1\n1\t2\n")
    page = run_report(monkeypatch)
    assert "Rounds start from the encoder <code>me/mini</code> or <code>me/e5</code> (e5), directly or through another training." in page
    assert "3 rounds, from me/mini and me/e5." in page
    explained = ["accuracy", "mrr_10", "hit_10", "gradient_norm"]  # "that search", of hit_10, is the one of mrr_10
    assert re.findall(r"<dt>(\w+)</dt>", page.partition('id="training"')[2].partition("</section>")[0]) == explained
    assert '<td data-label="queries for 80%" data-value="1e10">&gt; 10⁹</td>' in page
    assert not re.search(r"\d[ \u00a0]%", page.partition("<script>")[0]), "no space before %"


@pytest.mark.parametrize(
    "value, cell", [(0.25, "0.2500"), (1.0, "1.00"), (5.5, "5.50"), (132.54, "132.5"), (1234, "1,234"), (True, "True"), ("bm25", "bm25")]
)
def test_a_number_has_the_digits_that_say_something(value: object, cell: str) -> None:
    assert format_value(value) == cell


def test_one_query_is_told_as_one_and_nothing_is_drawn_of_no_groups(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], charts_of: Callable[..., Any]
) -> None:
    for name, level in (("bm25", 0.5), ("alpha", 0.8)):
        make_system(project, name, level, ("dev", "test"), 1)
    header = {"metric": "AP", "model": "alpha", "against": "bm25", "alpha": 0.05}
    write_json(project / "failures" / "groups.json", header | {"splits": {"dev": [], "test": []}})
    page = run_report(monkeypatch)
    check_self_contained(page)
    text = re.sub(r"\s+", " ", page.partition('<script>"')[0])
    assert "Means over 1 query." in text and "AP of the one test query." in text and "over 1 pair tested on test" in text
    assert "On test, alpha against bm25: there is one query, so nothing can be tested.</p>" in text
    assert text.count("(one query, so nothing can be tested)") == 2, "the lead and the summary"
    assert "significant, p" not in text and '<td data-label="p, Holm">-</td>' in text
    assert "Nothing divides the dev queries into groups." in text
    assert not re.search(r"\b1 (queries|pairs|groups)\b", text)
    assert not any("by groups" in name for name, _ in charts_of(page))
    assert "test, 1 query\n" in capsys.readouterr().out


def test_levels_of_intervals_are_not_rounded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, level in (("alpha", 0.8), ("bm25", 0.5)):
        make_system(project, name, level, ("dev", "test"))
    (project / "params.yaml").write_text(PARAMS.replace("metric: AP,", "metric: AP, alpha: 0.001,"))
    page = run_report(monkeypatch)
    assert page.count("99.9% interval") >= 2, "of the means, and of the differences"
    assert "100% interval" not in page and "95% interval, not corrected" in page


def test_suspects_of_a_file_of_pairs_may_be_rows_of_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, level in (("alpha", 0.8), ("bm25", 0.5)):
        make_system(project, name, level, ("dev", "test"))
    hint = "turns them into a batch of the inbox, which <code>retemper retrain</code> takes in."
    add = "Or add a row to the data set's file for each question and text that answers it."
    page = run_report(monkeypatch)
    assert hint in page and add not in page
    (project / "params.yaml").write_text(PARAMS.replace("beir:<i>here</i>", "pairs:faq.csv"))
    assert f"{hint} {add}" in run_report(monkeypatch)
