"""What a stage is told about its sources, as it starts."""

from pathlib import Path
from typing import Any

from flows.parameters.sources import watch
from tasks.core.sources.forgotten import FILE, HEAD, mark


def test_a_stage_learns_that_a_source_has_changed(place: Any) -> None:
    place.write()
    report = watch(["dataset"])
    assert report["problem"] == "" and sorted(Path(name).name for name in report["files"]) == ["corpus.jsonl", "queries.jsonl", "test.tsv"]
    Path("params.yaml").write_text("rounds: {}\n")  # edited during the run: for the next one
    assert watch(["dataset"]) == report
    with Path("beir/corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "e", "text": "u"}\n')
    report = watch(["encoder", "dataset"])
    assert report["problem"].startswith("dataset.source beir:beir: has changed: found sha256 ")
    assert report["problem"].endswith("of data/source.json; run again") and report.keys() == {"problem"}


def test_a_stage_learns_what_could_not_be_listed_and_what_lies_beside_its_files(place: Any) -> None:
    place.write()
    report = watch(["dataset"])
    folder = Path("beir").absolute()
    assert report["beside"] == {str(folder): ["corpus.jsonl", "qrels", "queries.jsonl"], str(folder / "qrels"): ["test.tsv"]}
    assert report["unavailable"] == []
    Path("beir/qrels").rename("beir/.qrels")
    assert watch(["dataset"]) == {"problem": "", "files": {}, "listed": [], "beside": {}, "unavailable": ["dataset.source beir:beir"]}


def test_a_stage_learns_that_more_is_forgotten(place: Any) -> None:
    """Where a revision is reproduced, that is not restored: the line names the list."""
    place.write()
    FILE.write_text(f"{HEAD}document {mark('document', 'a')} 2026-11-29\n")
    problem = watch(["dataset"])["problem"]
    assert problem.startswith("dataset.source beir:beir: the data or forgotten.txt has changed: found sha256 ")
