"""What is known of a source that is unavailable: what git brings, then what this machine remembers; and records that are forgotten."""

import json
from pathlib import Path
from typing import Any

from flows.parameters.sources import dataset_entry, write_source
from tasks.core.sources.forgotten import mark


def test_a_list_of_forgotten_records_is_part_of_the_data_set(place: Any) -> None:
    before = place.write()["dataset"]
    place.write()
    lines = [f"document {mark('document', name)} 2026-11-24\n" for name in ("d1", "d2")]
    Path("forgotten.txt").write_text("".join(lines))
    assert (changed := place.write()["dataset"])["digest"] != before["digest"]
    assert changed["files"] == before["files"]
    Path("forgotten.txt").write_text("# sorted otherwise\n" + "".join(lines[::-1]))
    assert place.write()["dataset"] == changed
    Path("forgotten.txt").write_text("# none\n")
    assert place.write()["dataset"] == before, "a project without forgotten records is as it was"


def test_what_git_brings_counts_more_than_the_memory_of_an_unavailable_source(place: Any) -> None:
    """A colleague has run on new data and pushed; then an old revision is checked out."""
    encoders = {"dataset": {"source": "beir:beir"}, "encoder": {"source": "./model"}, "rerankers": {"a": {"source": "./model"}}}

    def write() -> str:
        Path("params.yaml").write_text(json.dumps(encoders))
        write_source(warn=place.warnings.append)
        return place.source.read_text()

    first = write()
    Path("beir/corpus.jsonl").write_text('{"_id": "e", "text": "new"}\n')
    Path("model/config.json").write_text('{"new": 1}')
    write_source(memory=Path("colleague.json"))
    second = place.source.read_text()
    assert all(json.loads(first)[kind] != json.loads(second)[kind] for kind in ("dataset", "encoder", "rerankers"))
    Path("beir").rename("gone")
    Path("model").rename("gone too")
    assert write() == second, "pulled"
    assert place.write("beir:gone", "gone too")["dataset"]["source"] == "beir:gone"
    assert write() == second, "another source, and back"
    place.source.write_text(first)
    assert place.write("beir:gone", "gone too")["dataset"]["source"] == "beir:gone"
    assert write() == first, "checked out"


def test_articles_without_digest_leave_the_known_one(place: Any) -> None:
    sections = {"dataset": {"source": "beir:beir"}, "encoder": {"source": "model"}, "articles": {"source": "dump:wiki"}}
    Path("params.yaml").write_text(json.dumps(sections))
    write_source(warn=place.warnings.append)
    unknown = place.source.read_text()
    write_source(warn=place.warnings.append)
    assert place.source.read_text() == unknown and not place.warnings
    Path("wiki").mkdir()
    Path("wiki/pages.xml.bz2").write_bytes(b"pages")
    write_source(warn=place.warnings.append)
    content = place.source.read_text()
    Path("wiki").rename("moved")
    place.source.write_text(unknown)  # git checkout of the commit before
    write_source(warn=place.warnings.append)
    assert place.source.read_text() == content != unknown


def test_a_new_list_of_forgotten_records_counts_where_the_source_is_unavailable(place: Any) -> None:
    """Then prepare is stale, and needs the source, or the outs of a colleague who has it."""
    original = place.write()
    Path("beir").rename("gone")
    line = f"document {mark('document', 'd1')} 2026-11-24\n"
    Path("forgotten.txt").write_text(line)
    changed = place.write()
    extra = dataset_entry("extra.nq", "beir:gone", warn=place.warnings.append)
    assert changed["dataset"]["digest"] != original["dataset"]["digest"] and changed["encoder"] == original["encoder"]
    assert place.warnings == [place.warnings[0]] and place.warnings[0].endswith(
        "continuing with its last known files, without the records of forgotten.txt"
    )
    assert place.write() == changed and place.warnings[1].endswith("continuing with its last known digest")
    Path("gone").rename("beir")
    assert place.write() == changed, "as with the source"
    assert extra["digest"] == changed["dataset"]["digest"]
    assert dataset_entry("extra.nq", "beir:beir") == extra | {"source": "beir:beir"}
    Path("forgotten.txt").unlink()
    Path("beir").rename("gone")
    assert place.write() == original
    assert dataset_entry("extra.nq", "beir:beir", warn=place.warnings.append)["digest"] == original["dataset"]["digest"]
