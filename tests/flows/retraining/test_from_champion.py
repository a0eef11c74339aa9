"""Retrainings from the champion by the real stages, on a tiny corpus: which vectors, weights and names come out."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow.parquet import read_table

from flows.champions import champion, measurement
from flows.champions import tree as retraining_tree
from flows.parameters import edit
from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository.git import git
from flows.repository.worktree import remove_worktree
from tasks.core.files import folder_digest
from tasks.core.params.sections import read_yaml
from tasks.core.retrieval.ann.search import open_index
from tasks.core.retrieval.embeddings import open_embeddings

PARAMS = {
    "encoder.source": "package:cognition/model",
    "tokenize.document_length": 24,
    "encode.precision": "fp32",
    "pretrain": {},
    "mine": {},
    "rounds": {"warmup": {"init": "base", "negatives": "bm25", "steps": 2, "batch_queries": 8, "precision": "fp32"}},
    "adore": {"tower": {"round": "warmup", "negatives": "none", "steps": 2, "lr": 1e-4, "precision": "fp32"}},
    "fuse": {"hybrid": {"first": "bm25", "second": "tower"}},
    "report.baselines": ["bm25"],
}


class Project:
    """A project on a part of the tiny corpus; the rest comes in batches."""

    def __init__(self, folder: Path, corpus: Any, environment: dict[str, str]) -> None:
        self.folder, self.corpus, self.environment = folder, corpus, environment
        self.tree = folder / retraining_tree.FOLDER
        self.inbox = folder.parent / "inbox"
        self.promotion: dict[str, Any] = {"margin": 1.0}
        self.inbox.mkdir()

    def write(self, place: Path, documents: range, train: range, splits: tuple[str, ...] = ()) -> None:
        """A BEIR folder of some documents, and some training queries."""
        texts = [(f"d{number:02}", self.corpus.documents[f"d{number:02}"]) for number in documents]
        query_ids = {"train": [q for q in self.corpus.queries["train"] if int(q[1:]) in train]} | {
            s: self.corpus.queries[s] for s in splits
        }
        (place / "qrels").mkdir(parents=True)
        lines = [json.dumps({"_id": d, "title": title, "text": text}) for d, (title, text) in texts]
        (place / "corpus.jsonl").write_text("".join(f"{line}\n" for line in lines))
        lines = [json.dumps({"_id": q, "text": self.corpus.queries[s][q]}) for s, queries in query_ids.items() for q in queries]
        (place / "queries.jsonl").write_text("".join(f"{line}\n" for line in lines))
        for split, queries in query_ids.items():
            rows = [f"{q}\t{self.corpus.qrels[split][q]}\t1" for q in queries]
            (place / f"qrels/{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows, ""]))

    def retrain(self, **settings: Any) -> str:
        """The last line of a retraining with these settings of `retrain`."""
        rules = {"intake": {"inbox": "../inbox"}, "promotion": self.promotion, "retrain": settings}
        (self.folder / "retraining.yaml").write_text(json.dumps(rules))
        git("add", "--all", folder=self.folder)
        author = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        git(*author, "commit", "--quiet", "--allow-empty", "-m", "settings", folder=self.folder)
        return self.call("retrain").splitlines()[-1]

    def call(self, *words: str) -> str:
        command = [sys.executable, "-m", "flows.cli", *words]
        result = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"status {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def current_champion(self) -> champion.Champion:
        current = champion.current(self.folder)
        assert current
        return current

    def shards(self) -> set[str]:
        return {path.name for path in (self.tree / ".retemper/shards").glob("*.npy")}

    def vectors(self, name: str, folder: Path | None = None) -> dict[str, bytes]:
        embeddings = open_embeddings(folder or self.tree / "data/embeddings" / name)
        rows = np.concatenate([block for _, block in embeddings.blocks()])
        return {name: row.tobytes() for name, row in zip(embeddings.ids().to_pylist(), rows, strict=True)}


@pytest.fixture
def project(tmp_path: Path, checkout: Path, tiny_corpus: Any, toy_environment: dict[str, str]) -> Project:
    folder = tmp_path / "project"
    subprocess.run(["git", "clone", "--quiet", str(checkout), str(folder)], check=True)
    git("remote", "remove", "origin", folder=folder)  # champions are pushed there, and the next test would have them
    toy = Project(folder, tiny_corpus, toy_environment | {"PYTHONPATH": str(folder)})
    toy.write(tmp_path / "source", range(52), range(40), ("dev", "test"))
    settings = PARAMS | {"dataset.source": "beir:../source", "prepare.unknown_documents": "drop"}
    edit.apply([f"{key}={json.dumps(value)}" for key, value in settings.items()], folder / "params.yaml", lambda _: None)
    return toy


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_what_is_kept_of_the_champion(project: Project, tmp_path: Path) -> None:
    assert project.retrain(mode="auto").startswith("retraining promoted")
    project.call("champion", "set", "hybrid")
    hybrid, before, shards = project.current_champion(), project.vectors("warmup"), project.shards()
    assert project.retrain(mode="auto") == "retraining unchanged: no document and no training query is new since champion/2"

    project.write(project.inbox / "001", range(0), range(40, 52))  # of documents that are there: others would be new with 002
    output = project.retrain(mode="query_tower", adore={"lr": 1e-4})
    params = read_yaml(project.tree / "params.yaml")
    assert params["rounds"] == {"tower": {"init": "from_champion", "negatives": "none", "steps": 0}}, output
    champion.get_out(project.folder, hybrid.commit, "data/encoders/tower", out=tmp_path / "encoder")
    assert folder_digest(project.tree / "data/encoders/tower") == folder_digest(tmp_path / "encoder"), "the champion's own weights"
    assert project.vectors("tower") == before, "the champion's own, bit for bit"
    assert project.shards() == shards, "no document was encoded"
    champion.get_out(project.folder, hybrid.commit, "data/embeddings/warmup", out=tmp_path / "before")
    assert folder_digest(tmp_path / "before") == folder_digest(project.tree / "data/embeddings/tower"), "so their readers do not run again"
    document = "data/encoders/tower_queries/document"
    assert folder_digest(project.tree / document) == folder_digest(tmp_path / "encoder/document")
    assert folder_digest(project.tree / "data/encoders/tower_queries") != folder_digest(project.tree / "data/encoders/tower")
    project.call("champion", "set", "hybrid")
    second = project.current_champion()
    assert second.digests["encoder"] != hybrid.digests["encoder"]
    assert second.fusion["hybrid"]["second"] == "tower_queries"

    project.write(project.inbox / "002", range(52, 60), range(54, 55))  # too few to train on
    output = project.retrain(mode="auto", document_share=1, least_share=0.05)
    third = project.current_champion()
    assert (third.cause, third.model, third.fusion) == ("data", "hybrid", second.fusion), output
    assert third.digests["encoder"] == second.digests["encoder"] and third.digests["index"] != second.digests["index"]
    after = project.vectors("tower_queries")
    assert len(after) == 60 and {name: after[name] for name in before} == before, "new documents beside those that were there"
    assert json.loads((project.tree / "retraining.json").read_text())["how"]["mode"] == "index"

    project.write(project.inbox / "003", range(0), range(55, 56))
    output = project.retrain(mode="auto", document_share=1, least_share=0.05)
    how = json.loads((project.tree / "retraining.json").read_text())["how"]
    assert (how["mode"], how["start"], how["news"]["queries"]) == ("query_tower", third.number, 1), output
    (path,) = (project.tree / ".retemper/starts").glob("*/known_queries.json")
    trained = sorted(query for query in project.corpus.queries["train"] if int(query[1:]) < 52)
    assert sorted(json.loads(path.read_text())) == trained, "neither the query of 002, which was only indexed beside, nor that of 003"


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_one_more_round_of_no_steps_is_the_champion(project: Project) -> None:
    project.retrain()
    project.call("champion", "set", "warmup")
    first = project.current_champion()
    project.write(project.inbox / "001", range(52, 56), range(40, 60))
    output = project.retrain(mode="continue", round={"steps": 0})
    current = project.current_champion()
    assert output.endswith("is the model of champion/2, with new data"), output
    assert current.digests["encoder"] == first.digests["encoder"]
    trained, weights = (project.tree / "data/encoders" / name for name in ("warmup_continued", "from_champion"))
    assert folder_digest(trained) == folder_digest(weights)
    project.write(project.inbox / "002", range(56, 60), range(0))
    output = project.retrain(mode="continue", round={"steps": 3})
    assert folder_digest(trained) != folder_digest(weights), output


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_an_index_of_its_own_takes_new_documents(project: Project, tmp_path: Path) -> None:
    """A query tower that was trained over a compressed index is re-indexed, compared, and trained further with that index."""

    def decoded_vectors(place: Path, name: str) -> dict[str, bytes]:
        index, ids = open_index(place / "index.faiss"), open_embeddings(project.tree / "data/embeddings" / name).ids().to_pylist()
        return {name: index.reconstruct(row).tobytes() for row, name in enumerate(ids)}

    edit.apply(["adore.tower.index=PQ4x4"], project.folder / "params.yaml", lambda _: None)
    project.retrain()
    project.call("champion", "set", "tower")
    first = project.current_champion()
    champion.get_out(project.folder, first.commit, "data/indexes/tower", out=tmp_path / "index")
    before = decoded_vectors(tmp_path / "index", "warmup")

    project.write(project.inbox / "001", range(52, 60), range(0))
    output = project.retrain(mode="auto", document_share=1)
    second = project.current_champion()
    assert (second.cause, second.model) == ("data", "tower"), output
    assert second.digests["encoder"] == first.digests["encoder"] and second.digests["index"] != first.digests["index"]
    after = decoded_vectors(project.tree / "data/indexes/tower", "tower_documents")
    assert len(after) == 60 and {name: after[name] for name in before} == before, "known documents have the codes that they had"

    project.write(project.inbox / "002", range(0), range(40, 52))
    output = project.retrain(mode="query_tower", adore={"lr": 1e-4})
    record = json.loads((project.tree / "retraining.json").read_text())
    assert (record["how"]["mode"], record["comparison"] is None) == ("query_tower", False), output
    assert record["candidate"] != "tower_documents" in record["metrics"]
    assert record["metrics"][f"champion/{second.number}"]["dev"] == second.metrics["dev"], "measured as it was, over the same documents"
    assert read_yaml(project.tree / "params.yaml")["adore"]["tower_queries"]["quantizer"] == "given"
    third = project.current_champion()

    project.write(project.inbox / "003", range(0), range(52, 60))
    output = project.retrain(mode="continue", round={"lr": 1e-6})
    assert read_yaml(project.tree / "params.yaml")["adore"]["tower_continued"]["index"] == "PQ4x4", "trained on the vectors of new weights"
    output = project.retrain(mode="full")
    record = json.loads((project.tree / "retraining.json").read_text())
    assert f"champion/{third.number}" in record["metrics"], f"compared with it over the new corpus: {output}"


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_made_dev_queries_measure_a_champion_that_reads_texts_differently(
    project: Project, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read back, not made again, so the champion needs neither the tokenizer nor the settings of the new model."""

    def edit_params(**settings: Any) -> None:
        edit.apply([f"{key}={json.dumps(value)}" for key, value in settings.items()], project.folder / "params.yaml", lambda _: None)

    project.promotion = {"margin": 1.0, "rule": "not_worse"}
    edit_params(
        queries="pseudo", pseudo={"dev": "pseudo", "dev_share": 0.5}, adore={}, fuse={"hybrid": {"first": "bm25", "second": "warmup"}}
    )
    assert project.retrain().startswith("retraining promoted")
    project.call("champion", "set", "hybrid")
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as patch:
        patch.chdir(project.tree)
        hybrid = project.current_champion()
        measured = measurement.evaluate_champion(project.folder, hybrid, processes=Processes(), display=Display())
        assert measured["dev"] == hybrid.metrics["dev"], "as it was measured on what stage pseudo wrote"
        corpus = measurement.SCRATCH / "tree/data/corpus"
        for name in ("documents.parquet", "queries/dev.parquet", "qrels/dev.parquet"):
            assert read_table(corpus / name).equals(read_table(Path("data/pseudo", name))), name
        remove_worktree(measurement.SCRATCH)

    other = tmp_path / "other"
    shutil.copytree(tiny_encoder, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = not tokenizer["normalizer"]["lowercase"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    edit_params(**{"encoder.source": str(other), "text.titles": True, "tokenize.document_length": 16, "bm25.k1": 2.0})
    project.write(project.inbox / "001", range(52, 60), range(0))
    output = project.retrain()
    record = json.loads((project.tree / "retraining.json").read_text())
    assert "against champion/2: nDCG@10" in output, output
    assert record["metrics"]["champion/2"]["dev"].keys() == hybrid.metrics["dev"].keys()
