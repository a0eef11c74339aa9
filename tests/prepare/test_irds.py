"""ir_datasets: ids and splits, read from a dataset registered here; a failed download is one line."""

import errno
from pathlib import Path
from typing import Any, NamedTuple

import ir_datasets
import pytest
from ir_datasets.formats import TrecQrels, TsvDocs, TsvQueries
from ir_datasets.util import Download

from tasks.core.errors import UserError, one_line_errors
from tasks.core.sources.datasets import parse_dataset
from tasks.prepare.commands.beir_folder import write_beir
from tasks.prepare.readers.kinds import read


class Titled(NamedTuple):
    doc_id: str
    url: str
    title: str
    body: str


class Bare(NamedTuple):
    doc_id: str
    said: str

    def default_text(self) -> str:
        return f"default {self.said}"


class Local(Download):  # type: ignore[misc]
    """A local file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def path(self, force: bool = True) -> str:  # noqa: ARG002 (ir_datasets passes it)
        return str(self.file)

    def stream(self) -> Any:
        return self.file.open("rb")


class Full(Local):
    def stream(self) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/docs")


class Unavailable(Local):
    def stream(self) -> Any:
        raise ConnectionError("no name\nresolved")


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """register("name", docs=..., queries=..., qrels=...): parts are file contents."""
    monkeypatch.setattr(ir_datasets.registry, "_registered", dict(ir_datasets.registry._registered))

    def run(name: str, doc_type: Any = Titled, kind: Any = Local, **parts: str) -> None:
        handlers = []
        for part, text in parts.items():
            file = tmp_path / f"{name.replace('/', '-')}-{part}"
            file.write_text(text, encoding="utf-8")
            forms = {
                "docs": lambda f: TsvDocs(kind(f), doc_cls=doc_type),
                "queries": lambda f: TsvQueries(kind(f), lang="en"),
                "qrels": lambda f: TrecQrels(kind(f), {1: "yes"}),
            }
            handlers.append(forms[part](file))
        ir_datasets.registry.register(name, ir_datasets.Dataset(*handlers))

    return run


DOCS = "d1\tu\tTitle\tbody one\nd2\tu\t\tbody two\n"


def test_children_are_splits(prepare: Any, register: Any) -> None:
    register("mine", docs=DOCS)
    register("mine/train", docs=DOCS, queries="1\tfirst\n2\tunjudged\n", qrels="1 0 d2 1\n")
    register("mine/validation", docs=DOCS, queries="3\tthird\n", qrels="3 0 d1 2\n3 0 d2 0\n")
    prepared = prepare("irds:mine")
    assert prepared.documents == [("d1", "Title", "body one"), ("d2", "", "body two")]
    assert prepared.queries == {"train": [("1", "first", [])], "dev": [("3", "third", [])], "test": []}
    assert prepared.qrels == {"train": [("1", "d2", 1)], "dev": [("3", "d1", 2), ("3", "d2", 0)], "test": []}
    child = prepare("irds:mine/validation")
    assert child.queries == {"train": [], "dev": [("3", "third", [])], "test": []}


def test_a_beir_folder_of_it_is_prepared_alike(prepare: Any, register: Any, tmp_path: Path) -> None:
    register("mine", docs=DOCS)
    register("mine/train", docs=DOCS, queries="1\tfirst\n2\tunjudged\n", qrels="1 0 d2 1\n")
    register("mine/dev", docs=DOCS, queries="1\tfirst\n3\tthird\n", qrels="3 0 d1 2\n3 0 d2 0\n")
    (tmp_path / "out").mkdir()
    assert write_beir(read(parse_dataset("irds:mine")), tmp_path / "out").documents == 2
    first, second = prepare("irds:mine"), prepare(f"beir:{tmp_path / 'out'}")
    assert (first.documents, first.queries, first.qrels) == (second.documents, second.queries, second.qrels)


def test_the_small_dev_set_wins_over_the_full_one(prepare: Any, register: Any) -> None:
    register("mine", docs=DOCS)
    register("mine/dev", docs=DOCS, queries="3\tthird\n4\tfourth\n", qrels="3 0 d1 1\n4 0 d2 1\n")
    register("mine/dev/small", docs=DOCS, queries="3\tthird\n", qrels="3 0 d1 1\n")
    assert prepare("irds:mine").queries["dev"] == [("3", "third", [])]
    assert len(prepare("irds:mine/dev").queries["dev"]) == 2


def test_a_judged_dataset_without_a_split_is_a_test_set(prepare: Any, register: Any) -> None:
    register("plain", doc_type=Bare, docs="d1\tone\n", queries="1\tfirst\n", qrels="1 0 d1 1\n")
    prepared = prepare("irds:plain")
    assert prepared.documents == [("d1", "", "default one")]
    assert prepared.queries["test"] == [("1", "first", [])]


def test_unusable_datasets_are_refused(prepare: Any, register: Any) -> None:
    with pytest.raises(UserError, match=r"irds:nobody/knows: unknown to ir_datasets"):
        prepare("irds:nobody/knows")
    register("unjudged", docs=DOCS, queries="1\tfirst\n")
    with pytest.raises(UserError, match=r"irds:unjudged: has no qrels with queries"):
        prepare("irds:unjudged")
    register("wordless", queries="1\tfirst\n", qrels="1 0 d1 1\n")
    with pytest.raises(UserError, match=r"irds:wordless: has no documents"):
        prepare("irds:wordless")
    register("graded", docs=DOCS, queries="1\tfirst\n", qrels="1 0 d1 1\n1 0 d2 1001\n")
    with pytest.raises(UserError, match=r"irds:graded.*2: found grade 1001, expected an integer up to 1,000"):
        prepare("irds:graded")
    register("far", kind=Unavailable, docs=DOCS, queries="1\tfirst\n", qrels="1 0 d1 1\n")
    with pytest.raises(UserError, match=r"irds:far.*could not read it \(ConnectionError: no name resolved\); go online once"):
        prepare("irds:far")


def test_a_full_disk_is_not_a_failed_download(prepare: Any, register: Any, capsys: pytest.CaptureFixture[str]) -> None:
    register("full", kind=Full, docs=DOCS, queries="1\tfirst\n", qrels="1 0 d1 1\n")
    with pytest.raises(SystemExit), one_line_errors():
        prepare("irds:full")
    message = capsys.readouterr().err
    assert "No space left on device" in message and "make room" in message and "go online" not in message
