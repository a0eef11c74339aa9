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
    report, kinds = watch(["dataset"])
    assert (report["problem"], kinds) == ("", ["dataset"])
    assert sorted(Path(name).name for name in report["files"]) == ["corpus.jsonl", "queries.jsonl", "test.tsv"]
    Path("params.yaml").write_text("rounds: {}\n")  # edited during the run: for the next one
    assert watch(["dataset"]) == (report, kinds)
    with Path("beir/corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "e", "text": "u"}\n')
    report, kinds = watch(["encoder", "dataset"])
    assert report["problem"].startswith("dataset.source beir:beir: has changed: found sha256 ")
    assert report["problem"].endswith("of data/source.json; run again") and not (report["files"] or kinds)


def test_a_stage_learns_that_more_is_forgotten(place: Any) -> None:
    """Where a revision is reproduced, that is not restored: the line names the list."""
    place.write()
    FILE.write_text(f"{HEAD}document {mark('document', 'a')} 2026-11-29\n")
    problem = watch(["dataset"])[0]["problem"]
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
    "gone": (lambda: shutil.rmtree(BEIR), ["beir/corpus.jsonl", "beir/qrels/test.tsv", "beir/queries.jsonl"]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_source_that_changes_while_a_stage_reads_it_is_named(place: Any, tmp_path: Path, edit: str) -> None:
    place.write()
    record, kinds = watch(["dataset", "encoder"])
    apply, changed = EDITS[edit]
    apply()
    assert changes(record["files"], kinds) == [str(tmp_path / name) for name in changed]


def test_a_hard_link_that_comes_or_goes_changes_no_source(place: Any, tmp_path: Path) -> None:
    """A rotating backup removes its oldest link while prepare reads. A file with links is looked at all the same."""
    FILE.write_text(HEAD)
    place.write()
    backup = Path("backup")
    backup.hardlink_to(BEIR / "corpus.jsonl")
    record, kinds = watch(["dataset"])
    backup.unlink()
    Path("list").hardlink_to(FILE)
    assert changes(record["files"], kinds) == []
    backup.hardlink_to(BEIR / "corpus.jsonl")
    rewrite_with_the_same_time(BEIR / "corpus.jsonl")
    assert changes(record["files"], kinds) == [str(tmp_path / "beir/corpus.jsonl")]


def test_a_new_folder_of_articles_is_named(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wikiextractor writes AA/wiki_00, AB/wiki_00, ...: a new folder lies beside no listed file."""
    place.write()
    article = '{"title": "a", "text": "t"}\n'
    (tmp_path / "wiki/AA").mkdir(parents=True)
    (tmp_path / "wiki/AA/wiki_00").write_text(article)
    monkeypatch.setattr("flows.parameters.sources._kinds", lambda _: {"articles": ("jsonl:wiki", list_articles)})
    files = _stamps("articles", list_articles("jsonl:wiki"))
    assert changes(files, ["articles"]) == []
    (tmp_path / "wiki/AB").mkdir()
    (tmp_path / "wiki/AB/wiki_00").write_text(article)
    assert changes(files, ["articles"]) == [str(tmp_path / "wiki/AB/wiki_00")]


def test_a_source_that_was_unavailable_as_a_stage_began_is_named_if_it_is_back(place: Any, tmp_path: Path) -> None:
    """If it is not back, nothing has changed: the report, which only names its digest, is made without it."""
    place.write()
    BEIR.rename("elsewhere")
    record, kinds = watch(["dataset"])
    assert (record, kinds) == ({"problem": "", "files": {}}, ["dataset"])
    assert changes(record["files"], kinds) == []
    Path("elsewhere").rename(BEIR)
    assert changes(record["files"], kinds)[0] == str(tmp_path / "beir/corpus.jsonl")
