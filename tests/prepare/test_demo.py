"""The embedded default: its rules on a few articles by hand, and the real data by plain counting."""

import hashlib
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.core.sources.datasets import demo_file
from tasks.prepare.readers import demo

ARTICLES = {
    "Willy Brandt": ("Chancellor of  West Germany", "A politician."),
    "Konrad Adenauer": ("chancellor of west germany ", "Another politician."),
    "Carrot": ("Vegetable", "A root."),
    "The thing": ("The thing of the thing", "Said with one word."),
    "Nothing": ("", "No description."),
    "Null": (None, "No description either."),
    "Unwritten": ("Article without a lead", "  "),
    **{f"Bird {i}": ("Family of birds", f"Bird number {i}.") for i in range(6)},
    **{f"Fish {i}": ("Family of fishes", f"Fish number {i}.") for i in range(5)},
}


def test_rules_on_articles_by_hand(prepare: Any) -> None:
    articles = {title: {"title": title, "description": d, "extract": e, "topic": "x"} for title, (d, e) in ARTICLES.items()}
    prepared = prepare(demo.build(Path("file.json"), articles))
    assert [row[0] for row in prepared.documents] == [t.replace(" ", "_") for t in ARTICLES if t != "Unwritten"]
    assert prepared.documents[0] == ("Willy_Brandt", "Willy Brandt", "A politician.")
    texts = {row[1]: row[0] for rows in prepared.queries.values() for row in rows}
    assert set(texts) == {"Chancellor of West Germany", "Family of fishes"}
    relevant = defaultdict(set)
    for rows in prepared.qrels.values():
        for query, doc, grade in rows:
            assert grade == 1
            relevant[query].add(doc)
    assert relevant == {
        texts["Chancellor of West Germany"]: {"Willy_Brandt", "Konrad_Adenauer"},
        texts["Family of fishes"]: {f"Fish_{i}" for i in range(5)},
    }
    digest = hashlib.sha256(b"chancellor of west germany").hexdigest()
    assert texts["Chancellor of West Germany"] == digest[:16]
    split = ["train"] * 8 + ["dev", "test"]
    assert (digest[:16], "Chancellor of West Germany", []) in prepared.queries[split[int(digest, 16) % 10]]
    assert prepared.stats["dropped"] == {"descriptions of more than 5 articles": 1, "descriptions that say nothing": 3}


def test_real_data_equals_plain_counting(prepare: Any) -> None:
    prepared = prepare("demo")
    articles = json.loads(demo_file().read_text(encoding="utf-8"))
    counts = Counter(" ".join(article["description"].lower().split()) for article in articles.values())
    assert len(prepared.documents) == len({row[0] for row in prepared.documents}) == 10_033
    queries = {split: {row[1].lower() for row in rows} for split, rows in prepared.queries.items()}
    sizes = {split: len(rows) for split, rows in queries.items()}
    assert sizes == {"train": 7373, "dev": 930, "test": 939}
    assert not queries["train"] & queries["dev"] and not (queries["train"] | queries["dev"]) & queries["test"]
    kept_texts = set.union(*queries.values())
    left_out = {text: count for text, count in counts.items() if text not in kept_texts}
    assert all(count > 5 or len(text.split()) < 2 for text, count in left_out.items())
    assert sum(counts[text] for texts in queries.values() for text in texts) == sum(map(len, prepared.qrels.values()))


def test_another_version_of_the_data_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    monkeypatch.setattr(demo, "demo_file", lambda: tmp_path / "other.json")
    with pytest.raises(UserError, match=r"other.json: found SHA-256 44136fa355b3\.\.\., expected 05ed445d555b.*pip install"):
        demo.read()
