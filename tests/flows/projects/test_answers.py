"""What may be answered to the questions of `retemper new`, and what a first run is said to take."""

import json
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.measuring.sizes import Size, size_of
from flows.parameters.checks import check
from flows.projects.answers import default_queries, read_data, relative_answer, relative_data
from flows.projects.estimate import Known, Scaled, disk_line, known, scale_seconds, time_line
from tasks.core.errors import UserError
from tasks.core.models.folder import ROUTER, TOWERS
from tasks.core.params.sections import read_yaml
from tasks.params import Parameters


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["corpus.jsonl.gz"], "beir"),
        (["corpus.csv"], "csv"),
        (["collection.tsv", "queries.dev.tsv", "qrels.dev.tsv"], "msmarco"),
        (["documents.parquet"], "parquet"),
    ],
)
def test_a_folder_is_read_by_what_is_in_it(tmp_path: Path, files: list[str], kind: str) -> None:
    for name in files:
        (tmp_path / name).write_text("x")
    assert read_data(str(tmp_path)) == f"{kind}:{tmp_path}"
    assert read_data(f"{kind}:{tmp_path}") == f"{kind}:{tmp_path}"
    with pytest.raises(UserError):
        read_data("beir:" if kind == "beir" else "")


@pytest.mark.parametrize("name", ["faq.csv", "faq.tsv.gz", "train.jsonl", "train.parquet"])
def test_a_file_alone_has_pairs_and_judgments(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    assert read_data(str(tmp_path / name)) == read_data(f"pairs:{tmp_path / name}") == f"pairs:{tmp_path / name}"
    assert default_queries(f"pairs:{tmp_path / name}") == "corpus"
    with chdir(tmp_path):
        assert relative_data(Path("mine"), f"pairs:{name}") == f"pairs:../{name}"
        assert read_data(f"{name}#passage=Antwort,query=Frage") == f"pairs:{name}#query=Frage,passage=Antwort"
        assert relative_data(Path("mine"), f"pairs:{name}#query=Frage") == f"pairs:../{name}#query=Frage"


def test_a_packed_corpus_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "corpus.csv.zst").write_text("x")
    with pytest.raises(UserError, match=r"unpack it: unzstd .*corpus\.csv\.zst$"):
        read_data(str(tmp_path))


def test_queries_are_made_where_there_are_no_judgments(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("x")
    assert default_queries(f"beir:{tmp_path}") == "pseudo"
    (tmp_path / "queries.jsonl").write_text("x")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/train.tsv").write_text("x")
    assert default_queries(f"beir:{tmp_path}") == "corpus"
    assert default_queries("demo") == "corpus"


@pytest.mark.parametrize("qrels", ["qrels.parquet", "qrels/train.parquet", "default/train-00000-of-00001.parquet"])
def test_queries_are_made_for_tables_without_judgments(tmp_path: Path, qrels: str) -> None:
    for name in ("documents.parquet", "queries.parquet"):
        (tmp_path / name).write_text("x")
    assert default_queries(f"parquet:{tmp_path}") == "pseudo"
    (tmp_path / qrels).parent.mkdir(exist_ok=True)
    (tmp_path / qrels).write_text("x")
    assert default_queries(f"parquet:{tmp_path}") == "corpus"


def test_relative_paths_are_seen_from_the_project(tmp_path: Path) -> None:
    (tmp_path / "here/data").mkdir(parents=True)
    with chdir(tmp_path / "here"):
        project = Path("mine")
        assert relative_data(project, "beir:data") == "beir:../data"
        assert relative_data(project, f"beir:{tmp_path}") == f"beir:{tmp_path}"
        assert relative_data(project, "beir:~/data") == "beir:~/data"
        assert relative_data(project, "irds:beir/scifact") == "irds:beir/scifact"
        assert relative_answer(project, "data") == "../data"
        assert relative_answer(project, "intfloat/e5") == "intfloat/e5", "a Hugging Face id is no path"


SIZE = Size(documents=1000, train=200, dev=10, test=30, tokens=40)


@pytest.fixture
def parameters(checkout: Path) -> Parameters:
    sections = read_yaml(checkout / "params.yaml")
    sections["rounds"] = {
        "init": {"init": "base", "negatives": "none", "steps": 0},
        "a": {"init": "base", "negatives": "bm25", "epochs": 2.0},
        "b": {"init": "base", "negatives": "bm25", "steps": 10, "batch_queries": 16},
    }
    sections |= {
        "pretrain": {},
        "adore": {},
        "fuse": {},
        "mine": {"a": {"search": "embeddings", "depth": 20}},
        "report": {"metric": "nDCG@10", "baselines": ["bm25"]},
    }
    return check(sections)


SECONDS = {
    "prepare": 4.0,
    "base": 7.0,
    "train@init": 3.0,
    "train@a": 100.0,
    "train@removed": 50.0,
    "encode@init": 10.0,
    "encode@a": 30.0,
    "mine@a": 5.0,
    "evaluate@a": 8.0,
    "chunk": 9.0,
}


def test_seconds_grow_with_the_work_of_a_stage(parameters: Parameters) -> None:
    like = Known(SIZE, parameters, "digest", SECONDS)
    scaled = scale_seconds(["prepare", "base", "mine@a", "evaluate@a"], SIZE, parameters, like=like)
    assert scaled == Scaled(4 + 7 + 5 + 8, [], 1.0)
    larger = replace(SIZE, documents=3000, train=400, tokens=80)
    # documents x tokens: 6 times; the two encodings took 40 s for twice the corpus. 160 queries of b against 400 of a, at twice the tokens
    scaled_up = scale_seconds(["prepare", "encode@b", "train@b", "mine@a", "chunk", "study@x"], larger, parameters, like=like)
    assert scaled_up.seconds == pytest.approx(4 * 6 + 20 * 6 + 103 * 160 / 400 * 2 + 5 * 2 * 1_003_000 / 1_001_000)
    assert (scaled_up.unknown, scaled_up.factor) == (["chunk", "study@x"], 6.0)


def test_what_is_said_of_the_time(parameters: Parameters) -> None:
    recorded = Known(SIZE, parameters, "digest", SECONDS)

    def line(size: Size = SIZE, encoder: str = "digest", like: Known | None = recorded) -> str:
        return time_line(["prepare", "mine@a", "chunk"], size, parameters, encoder=encoder, like=like, place=Path("there"))

    assert line().startswith("time of the first run: about 9.0 s, from the stages recorded in there, scaled")
    assert "it may take half or twice as long; unknown: chunk" in line()
    assert "unknown, as no finished run is recorded in there" in line(like=None)
    assert "unknown, as the runs recorded in there used another encoder" in line(encoder="other")
    alone = Known(SIZE, parameters, "digest", {"evaluate@a": 8.0})
    assert "unknown, as no run of these stages is recorded in there" in line(like=alone)
    assert "too small to scale (1,000 documents, 200 training queries)" in line(replace(SIZE, documents=31_000))
    assert "about" in line(replace(SIZE, documents=30_000))


def test_disk_is_counted_by_hand(parameters: Parameters, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 256}))
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1024)
    sections = parameters.model_copy(update={"encoder": parameters.encoder.model_copy(update={"source": str(tmp_path)})})
    million = replace(SIZE, documents=1 << 20)
    # 3 rounds x 2^20 vectors x 256 numbers x 4 bytes = 3 GiB, an index of each, all of it twice
    line = disk_line(million, sections, tmp_path, shares=False)
    assert line.startswith("disk of the first run: about 12.0 GiB (vectors 3.0, flat indexes 3.0, weights")
    assert line.endswith("; each once in data/ and once in the cache)")
    line = disk_line(million, sections, tmp_path, shares=True)
    assert line.startswith("disk of the first run: about 6.0 GiB (vectors 3.0,") and line.endswith("; data/ and the cache share them)")
    assert "unknown until the encoder is downloaded" in disk_line(million, sections, None, shares=True)


@pytest.mark.parametrize(
    ("config", "towers"),
    [
        ({"model_type": "t5", "d_model": 256}, False),
        ({"model_type": "gpt2", "n_embd": 256}, False),
        ({"model_type": "distilbert", "dim": 256}, False),
        ({"model_type": "bert", "hidden_size": 256}, True),
    ],
)
def test_the_hidden_width_is_found_whatever_its_name(parameters: Parameters, config: dict[str, Any], towers: bool, tmp_path: Path) -> None:
    places = [tmp_path / name for name in TOWERS] if towers else [tmp_path]
    for place in places:
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(config))
        (place / "model.safetensors").write_bytes(b"0" * 1024)
    if towers:
        (tmp_path / ROUTER).write_text("{}")
    sections = parameters.model_copy(update={"encoder": parameters.encoder.model_copy(update={"source": str(tmp_path)})})
    line = disk_line(replace(SIZE, documents=1 << 20), sections, tmp_path, shares=True)
    assert line.startswith("disk of the first run: about 6.0 GiB (vectors 3.0, flat indexes 3.0, weights")


@pytest.mark.parametrize("config", [{"model_type": "bert", "hidden_size": "wide"}, {"model_type": "no such"}, {"model_type": "clip"}, []])
def test_an_unknown_hidden_width_is_said(parameters: Parameters, config: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = disk_line(SIZE, parameters, tmp_path, shares=True)
    assert line == "disk of the first run: unknown, as the encoder's config.json does not give its hidden size"


def test_what_a_project_has_recorded_is_read(small_project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.projects.estimate.recorded_seconds", lambda lock: dict.fromkeys(lock, 1.0))
    monkeypatch.setattr("flows.projects.estimate.read_lock", lambda: {"prepare": {}})
    recorded = known(small_project.folder)
    assert recorded is not None
    assert (recorded.size.documents, recorded.size.train, recorded.seconds) == (60, 40, {"prepare": 1.0})
    assert recorded.size.tokens == 24, "no more is read"
    assert known(tmp_path) is None


def test_the_size_of_data_is_what_is_read_of_it(parameters: Parameters) -> None:
    counts = {split: {"queries": number} for number, split in enumerate(("train", "dev", "test"))}
    stats = {"documents": {"count": 5, "words": {"mean": 20.0}}, "splits": counts}
    assert size_of(stats, parameters.tokenize) == Size(5, 0, 1, 2, pytest.approx(1.35 * 20 + 2))
    stats["documents"]["words"] = {"mean": 500.0}  # type: ignore[index]
    assert size_of(stats, parameters.tokenize).tokens == 64
