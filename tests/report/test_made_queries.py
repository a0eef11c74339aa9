"""Dev queries that are made from documents: rounds are compared with each other, and nothing with BM25."""

import json
from pathlib import Path

import pytest

from tasks.core.files import write_json
from tests.report.project import PARAMS, make_system, run_report

KINDS = {"sentence": {"made": 80, "train": 40}}


@pytest.fixture
def made(project: Path) -> Path:
    """Two rounds; bm25 and a fusion of it, which are far above them."""
    (project / "params.yaml").write_text(f"{PARAMS}fuse: {{hybrid: {{first: bm25, second: alpha}}}}\n")
    write_json(project / "corpus" / "stats.json", {"documents": {"count": 3}, "splits": {}, "pseudo": {"kinds": KINDS, "dev": "pseudo"}})
    return project


def test_no_headline_test_or_letter_compares_with_bm25(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, level in (("bm25", 0.9), ("init", 0.2), ("alpha", 0.6), ("hybrid", 0.85)):
        make_system(made, name, level, ("dev",))
    page, printed = run_report(monkeypatch), capsys.readouterr().out
    significance = json.loads(Path("report/significance.json").read_text())
    assert significance["best"] == {"system": "alpha", "chosen_on": "dev"}
    assert [(pair["system"], pair["baseline"]) for pair in significance["splits"]["dev"]] == [("alpha", "init")]
    note = "favors BM25: on dev, compare nothing with bm25, hybrid"
    assert note in printed and f"{note}." in page
    assert "*: best AP on dev without BM25\n" in printed
    assert "<b>alpha</b> is the best of 2 systems without BM25 on dev" in page
    assert 'id="examples"' in page
    rows = {line.split()[0 if line[0] == " " else 1]: line for line in printed.splitlines()[4:8]}
    assert "bm25" in rows["bm25"][:8] and rows["bm25"].startswith(" "), "no letter"


def test_on_people_s_test_queries_bm25_is_compared(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, level in (("bm25", 0.9), ("init", 0.2), ("alpha", 0.6)):
        make_system(made, name, level, ("dev", "test"))
    page = run_report(monkeypatch)
    significance = json.loads(Path("report/significance.json").read_text())
    assert significance["best"] == {"system": "alpha", "chosen_on": "dev"}
    pairs = {split: [(pair["system"], pair["baseline"]) for pair in pairs] for split, pairs in significance["splits"].items()}
    assert 'id="examples"' not in page, "of the headline's pair, which has bm25"
    assert pairs == {"test": [("init", "bm25"), ("alpha", "bm25"), ("alpha", "init")], "dev": [("alpha", "init")]}
