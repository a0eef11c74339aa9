"""data/source.json: content by digest, wherever it is, and remembered while it is unavailable."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import flows.parameters.sources
from flows.parameters.sources import dataset_entry, source_keys, watch, write_source
from tasks.core.errors import UserError
from tasks.core.files import partial_path


@pytest.fixture
def read_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose content is read."""
    names: list[str] = []
    digest = flows.parameters.sources.file_digest

    def spy(path: Path) -> str:
        names.append(path.name)
        return digest(path)

    monkeypatch.setattr(flows.parameters.sources, "file_digest", spy)
    return names


def test_an_entry_holds_the_digests_of_its_files(place: Any) -> None:
    entry = place.write()["dataset"]
    assert entry["source"] == "beir:beir"
    names = ["corpus.jsonl", "qrels/test.tsv", "queries.jsonl"]
    assert entry["files"] == {name: hashlib.sha256(Path("beir", name).read_bytes()).hexdigest() for name in names}


def test_a_digest_is_of_content_not_of_place(place: Any) -> None:
    before = place.write()
    Path("beir").rename("moved")
    Path("model").rename("elsewhere")
    after = place.write("beir:moved", f"{Path.cwd()}/elsewhere")
    for kind in ("dataset", "encoder"):
        assert after[kind]["digest"] == before[kind]["digest"]
        assert after[kind]["source"] != before[kind]["source"]
    Path("moved/corpus.jsonl").write_text('{"_id": "d", "text": "u"}\n')
    changed = place.write("beir:moved", "elsewhere")
    assert changed["dataset"]["digest"] != before["dataset"]["digest"]
    assert changed["encoder"]["digest"] == before["encoder"]["digest"]
    Path("moved/qrels/test.tsv").rename("moved/qrels/dev.tsv")
    assert place.write("beir:moved", "elsewhere")["dataset"]["digest"] != changed["dataset"]["digest"]


def test_a_file_is_known_by_its_name_and_content(place: Any) -> None:
    Path("in").mkdir()
    Path("in/faq.csv").write_text("question,answer\na,b\n")
    before = place.write("pairs:in/faq.csv")["dataset"]
    assert before["files"] == {"faq.csv": hashlib.sha256(b"question,answer\na,b\n").hexdigest()}
    Path("in").rename("moved")
    assert place.write("pairs:moved/faq.csv")["dataset"]["digest"] == before["digest"]
    Path("moved/faq.csv").write_text("question,answer\na,b\nc,d\n")
    changed = place.write("pairs:moved/faq.csv")["dataset"]["digest"]
    assert changed != before["digest"]
    entries = [
        place.write(f"pairs:moved/faq.csv#{columns}")["dataset"]
        for columns in ("query=answer,passage=question", "passage=question,query=answer")
    ]
    assert entries[0]["digest"] == entries[1]["digest"] != changed, "the columns are part of what is read"
    assert entries[0]["files"].keys() == {"faq.csv"}


def test_files_are_read_once_and_the_same_entry_is_not_written_again(place: Any, read_names: list[str]) -> None:
    place.write()
    assert sorted(read_names) == ["config.json", "corpus.jsonl", "queries.jsonl", "test.tsv"]
    mtime = place.source.stat().st_mtime_ns
    read_names.clear()
    place.write()
    assert read_names == []
    assert place.source.stat().st_mtime_ns == mtime
    os.utime("beir/corpus.jsonl", ns=(1, 1))
    place.write()
    assert read_names == ["corpus.jsonl"], "a new mtime: read again, and found the same"
    assert place.source.stat().st_mtime_ns == mtime


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "in place"])
def test_a_file_of_the_same_size_and_mtime_is_read_again(place: Any, read_names: list[str], replaced: bool) -> None:
    """An archive with fixed times, unpacked over the former one."""
    path = Path("beir/corpus.jsonl")
    os.utime(path, ns=(10**18, 10**18))
    before = place.write()
    status, text = path.stat(), path.read_text()
    read_names.clear()
    if replaced:
        path.rename("former")  # so that its inode is not given to the next
    path.write_text(text.replace('"t"', '"u"'))
    os.utime(path, ns=(10**18, 10**18))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    after = place.write()
    assert after["dataset"]["digest"] != before["dataset"]["digest"]
    assert read_names == ["corpus.jsonl"]


@pytest.mark.parametrize("field", ["st_ctime_ns", "st_ino"])
def test_a_file_that_differs_in_ctime_or_inode_alone_is_read_again(
    place: Any, read_names: list[str], monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """Two files may be written within one tick of the clock, and clocks may be set back."""
    before = place.write()
    read_names.clear()
    stat = Path.stat

    def changed_stat(path: Path, **options: Any) -> Any:
        status = stat(path, **options)
        if path.name != "corpus.jsonl":
            return status
        fields = {name: getattr(status, name) for name in dir(status) if name.startswith("st_")}
        return SimpleNamespace(**fields | {field: fields[field] + 1})

    monkeypatch.setattr(Path, "stat", changed_stat)
    assert place.write() == before
    assert read_names == ["corpus.jsonl"]


def test_a_memory_of_an_earlier_version_is_not_trusted(place: Any, read_names: list[str]) -> None:
    before = place.write()
    memory = flows.parameters.sources.MEMORY
    record = json.loads(memory.read_text())
    record["files"] = {name: [size, mtime, digest] for name, (size, mtime, _, _, digest) in record["files"].items()}
    memory.write_text(json.dumps(record))
    read_names.clear()
    assert place.write() == before
    assert len(read_names) == 4


def test_two_commands_may_write_the_memory_at_once(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run and a sweep share the name of the file until it is complete; whoever is second finds it renamed."""
    half = partial_path(flows.parameters.sources.MEMORY)
    monkeypatch.setattr(os, "fsync", lambda _: half.exists() and half.replace(flows.parameters.sources.MEMORY))
    assert place.write()["dataset"]["digest"]
    assert json.loads(flows.parameters.sources.MEMORY.read_text())["entries"]


def test_an_unavailable_source_keeps_its_entry(place: Any) -> None:
    before = place.write()
    Path("other").mkdir()
    shutil.copytree("beir", "other", dirs_exist_ok=True)
    Path("other/corpus.jsonl").write_text('{"_id": "d", "text": "other"}\n')
    other = place.write("beir:other")
    shutil.rmtree("beir")
    assert place.write() == before, "switched back while it is unavailable"
    assert "beir" in place.warnings[0]
    assert place.write("beir:other") == other
    assert len(place.warnings) == 1

    shutil.rmtree(".retemper")  # a fresh clone: only source.json knows
    shutil.rmtree("other")
    assert place.write("beir:other") == other


def test_a_malformed_source_is_not_taken_for_unavailable(place: Any) -> None:
    before = place.write()
    Path("beir/qrels/all.tsv").write_text("q\td\t1\n")
    with pytest.raises(UserError, match=r"^beir/qrels/all.tsv: found qrels of an unknown split"):
        place.write()
    Path("beir/qrels/all.tsv").unlink()
    Path("beir/corpus.jsonl").rename("corpus.jsonl")
    with pytest.raises(UserError, match=r"^beir/corpus.jsonl: not found, expected"):
        place.write()
    assert place.warnings == []
    shutil.rmtree("beir")
    Path("beir").mkdir()  # a disk that is not mounted
    assert place.write() == before
    assert "found an empty folder" in place.warnings[0]
    Path("model/config.json").unlink()
    assert place.write() == before
    assert "encoder model: found an empty folder" in place.warnings[2]


def test_malformed_articles_are_reported_and_have_no_digest(place: Any) -> None:
    Path("wiki").mkdir()
    Path("wiki/enwiki-20260101-pages-articles.xml").write_text("a")
    sections = {"dataset": {"source": "beir:beir"}, "encoder": {"source": "model"}, "articles": {"source": "dump:wiki"}}
    Path("params.yaml").write_text(json.dumps(sections))
    write_source(warn=place.warnings.append)
    assert json.loads(place.source.read_text())["articles"]["digest"]
    Path("wiki/enwiki-20260201-pages-articles.xml").write_text("b")
    write_source(warn=place.warnings.append)
    assert json.loads(place.source.read_text())["articles"]["digest"] == ""
    assert "articles.source: wiki/enwiki-20260201-pages-articles.xml: repeats articles of" in place.warnings[0]


def test_a_source_never_seen_is_refused_and_nothing_is_written(place: Any) -> None:
    before = place.write()
    with pytest.raises(UserError, match=r"^nowhere: not found"):
        place.write("beir:nowhere")
    with pytest.raises(UserError, match=r"encoder '\./nowhere'"):
        place.write(encoder="./nowhere")
    assert json.loads(place.source.read_text()) == before


def test_a_source_without_files_is_known_by_its_id_and_its_reader(place: Any) -> None:
    first, second = place.write("irds:vaswani")["dataset"], place.write("irds:cranfield")["dataset"]
    assert first["files"] == {}
    assert "ir_datasets" in first["packages"]
    assert first["digest"] != second["digest"]
    assert place.write("irds:vaswani")["dataset"] == first


def test_rerankers_are_kept_by_name(place: Any) -> None:
    plain = place.write(encoder="./model")
    sections = {"dataset": {"source": "beir:beir"}, "encoder": {"source": "./model"}, "rerankers": {"a": {"source": "./model"}}}
    Path("params.yaml").write_text(json.dumps(sections))
    write_source(warn=place.warnings.append)
    text = place.source.read_text()
    assert json.loads(text) == {**plain, "rerankers": {"a": plain["encoder"]}}
    Path("model").rename("away")
    write_source(warn=place.warnings.append)
    assert place.source.read_text() == text
    assert len(place.warnings) == 2
    Path(".retemper/digests.json").unlink()
    write_source(warn=place.warnings.append)
    assert place.source.read_text() == text, "from the file itself"
    Path("away").rename("model")
    assert place.write(encoder="./model") == plain, "a removed one goes"


def test_the_generator_of_queries_has_an_entry_that_is_empty_without_one(place: Any) -> None:
    def write(generator: str | None) -> dict[str, Any]:
        sections = {"dataset": {"source": "beir:beir"}, "encoder": {"source": "./model"}, "pseudo": {"generator": generator}}
        Path("params.yaml").write_text(json.dumps(sections))
        write_source(warn=place.warnings.append)
        entries: dict[str, Any] = json.loads(place.source.read_text())
        return entries

    without, with_generator = write(None), write("./model")
    assert (without["generator"]["source"], without["generator"]["files"]) == ("", {})
    assert (
        with_generator["generator"] == with_generator["encoder"] and with_generator["generator"]["digest"] != without["generator"]["digest"]
    )
    with pytest.raises(UserError, match="nowhere"):
        write("./nowhere")
    assert write(None) == without


def test_a_further_data_set_is_known_by_content_and_remembered(place: Any, tmp_path: Path) -> None:
    source = place.write()
    entry = dataset_entry("extra.nq", "beir:beir", warn=place.warnings.append)
    assert entry["digest"] == source["dataset"]["digest"] and json.loads(place.source.read_text()) == source
    (tmp_path / "beir").rename(tmp_path / "gone")
    assert dataset_entry("extra.nq", "beir:beir", warn=place.warnings.append) == entry
    assert len(place.warnings) == 1 and place.warnings[0].startswith("params.yaml: extra.nq.source: beir: not found, expected a BEIR")
    with pytest.raises(UserError, match=r"^params.yaml: extra.other.source: beir: not found"):
        dataset_entry("extra.other", "beir:beir")
    (tmp_path / "gone").rename(tmp_path / "beir")
    (tmp_path / "beir/qrels/test.tsv").unlink()
    with pytest.raises(UserError, match=r"^params.yaml: extra.nq.source: beir/qrels: found no qrels"):
        dataset_entry("extra.nq", "beir:beir")


def test_articles_have_their_own_entry_and_are_not_required_until_needed(place: Any) -> None:
    def write(source: str) -> dict[str, Any]:
        sections = {"dataset": {"source": "beir:beir"}, "encoder": {"source": "model"}, "articles": {"source": source}}
        Path("params.yaml").write_text(json.dumps(sections))
        write_source(warn=place.warnings.append)
        entry: dict[str, Any] = json.loads(place.source.read_text())["articles"]
        return entry

    assert write("dump:wiki") == {"source": "dump:wiki", "digest": "", "files": {}, "packages": {}}
    assert not place.warnings, "no pre-training may need them"
    Path("wiki").mkdir()
    Path("wiki/pages.xml.bz2").write_bytes(b"pages")
    available = write("dump:wiki")
    assert available["files"] == {"pages.xml.bz2": hashlib.sha256(b"pages").hexdigest()}
    Path("wiki").rename("moved")
    assert write("dump:wiki") == available, "unavailable, but remembered"
    assert "wiki" in place.warnings[0]
    assert write("dump:moved")["digest"] == available["digest"]


def test_every_key_that_names_a_source_is_listed() -> None:
    sections = {
        "dataset": {"source": "beir:../data"},
        "encoder": {"source": "model"},
        "articles": {"source": "jsonl:wiki"},
        "rerankers": {"small": {"source": "../ce", "negatives": "none"}, "broken": None},
        "pseudo": {"generator": "../t5"},
        "train": {"source": "no section of that kind"},
    }
    expected = {
        "dataset.source": "beir:../data",
        "encoder.source": "model",
        "articles.source": "jsonl:wiki",
        "rerankers.small.source": "../ce",
        "pseudo.generator": "../t5",
    }
    assert dict(source_keys(sections)) == expected
    assert source_keys({"dataset": {"source": "demo"}, "encoder": {"source": "model"}, "rerankers": None}) == [
        ("dataset.source", "demo"),
        ("encoder.source", "model"),
    ]


def write_hub_model(cache: Path, *names: str) -> None:
    """The model org/model as huggingface_hub lays it out."""
    repository = cache / "models--org--model"
    files = ("config.json", "model.safetensors", *names)
    texts = {f"snapshots/0123/{name}": Path(name).name for name in files}
    texts |= {"refs/main": "0123", "trees/0123.json": json.dumps({"files": dict.fromkeys(files)})}
    for place, text in texts.items():
        (repository / place).parent.mkdir(parents=True, exist_ok=True)
        (repository / place).write_text(text)


def test_a_hugging_face_id_has_one_digest_on_every_machine(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloaded when first named; kept where it is known but not here; the same whatever else someone has of it."""
    names: list[str] = []
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "one"))
    monkeypatch.setattr(flows.parameters.sources, "encoder_folder", lambda name: (names.append(name), write_hub_model(tmp_path / "one")))
    entry = place.write(encoder="org/model")["encoder"]
    assert names == ["org/model"] and sorted(entry["files"]) == ["config.json", "model.safetensors"]
    assert place.write(encoder="org/model")["encoder"] == entry and names == ["org/model"]
    write_hub_model(tmp_path / "full", "pytorch_model.bin", "README.md")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "full"))
    assert place.write(encoder="org/model")["encoder"] == entry
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))  # a colleague's fresh clone
    shutil.rmtree(".retemper")
    assert place.write(encoder="org/model")["encoder"] == entry and names == ["org/model"]
    assert watch(["encoder"]) == ({"problem": "", "files": {}}, [])
    assert "not on this machine yet; continuing with its last known digest" in place.warnings[-1]


def test_a_hugging_face_id_that_cannot_be_downloaded(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_download(name: str) -> None:
        raise UserError(f"encoder {name}: not on this machine, and the download failed")

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(flows.parameters.sources, "encoder_folder", fail_download)
    with pytest.raises(UserError, match="the download failed"):
        place.write(encoder="org/model")
    assert not place.source.exists()


@pytest.mark.parametrize("name", ["é", "--", "model.", "a" * 97])
def test_a_name_that_the_hub_does_not_allow(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="no such folder and not a Hugging Face id"):
        place.write(encoder=name)
    assert not place.source.exists()


def test_a_folder_without_a_model_is_refused_before_it_is_read(place: Any, read_names: list[str]) -> None:
    place.write()
    read_names.clear()
    before = Path("data/source.json").read_text()
    foreign = Path("../etc").resolve()
    (foreign / "ssl").mkdir(parents=True)
    for name in ("passwd", "ssl/private.key", "notes.json"):
        (foreign / name).write_text("secret")
    with pytest.raises(UserError, match=r"^encoder '\.\./etc': no config\.json in \.\./etc, expected a Hugging Face model folder"):
        place.write(encoder="../etc")
    assert not read_names and Path("data/source.json").read_text() == before
    (foreign / "config.json").write_text("{}")
    assert list(place.write(encoder="../etc")["encoder"]["files"]) == ["config.json", "notes.json"]


def test_only_tables_that_the_format_names_are_read(place: Any) -> None:
    for name in ("documents.parquet", "queries/train.parquet", "qrels/train.parquet", "other/private.parquet", "salaries.parquet"):
        Path("tables", name).parent.mkdir(parents=True, exist_ok=True)
        Path("tables", name).write_bytes(b"x")
    files = place.write(dataset="parquet:tables")["dataset"]["files"]
    assert list(files) == [
        "documents.parquet",
        "qrels/train.parquet",
        "queries/train.parquet",
    ]
