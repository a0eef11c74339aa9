"""What a stage is told about its sources as it starts, and what has changed in them when it has ended."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.parameters.sources import _stamps, changes, list_articles, watch
from tasks.core.sources.forgotten import FILE, HEAD, mark


def test_a_stage_learns_that_a_source_has_changed(place: Any) -> None:
    place.write()
    report = watch(["dataset"])
    assert report["problem"] == "" and sorted(Path(name).name for name in report["files"]["dataset"]) == [
        "corpus.jsonl",
        "queries.jsonl",
        "test.tsv",
    ]
    Path("params.yaml").write_text("rounds: {}\n")  # edited during the run: for the next one
    assert watch(["dataset"]) == report
    with Path("beir/corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "e", "text": "u"}\n')
    report = watch(["encoder", "dataset"])
    assert report["problem"].startswith("dataset.source beir:beir: has changed: found sha256 ")
    assert report["problem"].endswith("of data/source.json; run again") and not report["files"]


def test_a_stage_learns_that_more_is_forgotten(place: Any) -> None:
    """Where a revision is reproduced, that is not restored: the line names the list."""
    place.write()
    FILE.write_text(f"{HEAD}document {mark('document', 'a')} 2026-11-29\n")
    problem = watch(["dataset"])["problem"]
    assert problem.startswith("dataset.source beir:beir: the data or forgotten.txt has changed: found sha256 ")


def rewrite_with_the_same_time(path: Path) -> None:
    """As rsync and cp -p leave it."""
    modified = path.stat().st_mtime_ns
    path.write_text(path.read_text().replace("t", "u"))
    os.utime(path, ns=(modified, modified))


BEIR = Path("beir")
EDITS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "nothing": (lambda: None, []),
    "edited": (lambda: (BEIR / "corpus.jsonl").write_text("two"), ["beir/corpus.jsonl"]),
    "edited, with its old time": (lambda: rewrite_with_the_same_time(BEIR / "corpus.jsonl"), ["beir/corpus.jsonl"]),
    "linked, as another run does": (lambda: Path("link").hardlink_to(BEIR / "corpus.jsonl"), []),
    "qrels of another split": (lambda: (BEIR / "qrels/dev.tsv").touch(), ["beir/qrels/dev.tsv"]),
    "negatives, which are optional": (lambda: (BEIR / "negatives.tsv").touch(), ["beir/negatives.tsv"]),
    "files that no reader takes": (lambda: [(BEIR / name).touch() for name in ("README", "notes.tsv", ".corpus.jsonl")], []),
    "a list of forgotten records": (lambda: FILE.write_text(HEAD), ["forgotten.txt"]),
    "gone": (lambda: shutil.rmtree(BEIR), ["dataset.source beir:beir"]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_source_that_changes_while_a_stage_reads_it_is_named(place: Any, tmp_path: Path, edit: str) -> None:
    place.write()
    record = watch(["dataset", "encoder"])
    apply, changed = EDITS[edit]
    apply()
    assert changes(record) == [name if " " in name else str(tmp_path / name) for name in changed]


def test_a_new_folder_of_articles_is_named(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wikiextractor writes AA/wiki_00, AB/wiki_00, ...: a new folder lies beside no listed file."""
    place.write()
    article = '{"title": "a", "text": "t"}\n'
    (tmp_path / "wiki/AA").mkdir(parents=True)
    (tmp_path / "wiki/AA/wiki_00").write_text(article)
    monkeypatch.setattr("flows.parameters.sources._kinds", lambda _: {"articles": ("jsonl:wiki", list_articles)})
    record = {"files": {"articles": _stamps("articles", list_articles("jsonl:wiki"))}}
    assert changes(record) == []
    (tmp_path / "wiki/AB").mkdir()
    (tmp_path / "wiki/AB/wiki_00").write_text(article)
    assert changes(record) == [str(tmp_path / "wiki/AB/wiki_00")]


def test_a_source_that_was_unavailable_as_a_stage_began_is_named(place: Any) -> None:
    place.write()
    BEIR.rename("elsewhere")
    record = watch(["dataset"])
    assert record == {"problem": "", "files": {"dataset": None}}
    Path("elsewhere").rename(BEIR)
    assert changes(record) == ["dataset.source beir:beir"]
