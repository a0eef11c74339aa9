"""The stage as the pipeline runs it: every step's list is brute force's, a kill costs nothing, what comes out loads and serves."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tasks.adore import data as data_module
from tasks.adore import step as step_module
from tasks.adore import study as study_module
from tasks.adore import work
from tasks.adore.data import read_data
from tasks.adore.documents import Compressed, Exact, Rescored
from tasks.adore.params import Adore
from tasks.adore.work import compressed_documents
from tasks.core.encoding.encode import encode
from tasks.core.errors import UserError
from tasks.core.files import file_digest, folder_digest
from tasks.core.metrics.measures import means, parse, per_query
from tasks.core.metrics.qrels import load_qrels
from tasks.core.models.bi_encoder import load_towers
from tasks.core.params.sections import read_yaml, validate
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.stage.scratch import remove_finished
from tasks.core.statistics.judged import click_id
from tasks.core.tables.ids import Ints
from tasks.core.tables.judgments import SameTexts
from tasks.core.tables.parquet import write_table
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.training.figures import Figures
from tasks.core.training.loop import Steps
from tests.adore.conftest import CPU, DEPTH, DOCUMENTS, INDEXES, OUTS, QUERIES, STEPS


class Killed(Exception):
    pass


def curve(out: Path, name: str) -> list[float]:
    lines = (out / "curves" / "plots" / "metrics" / "train" / f"{name}.tsv").read_text().splitlines()[1:]
    return [float(line.split("\t")[1]) for line in lines]


def test_list_of_every_step_equals_brute_force(run: Callable[[str, str], Path], project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = open_embeddings(project / "embeddings")
    vectors = np.concatenate([block for _, block in embeddings.blocks()]).astype(np.float64)
    owners, ids = embeddings.owners().tolist(), embeddings.ids().to_pylist()
    seen: list[np.ndarray] = []
    real = step_module.Corpus.top_rows

    def found(self: step_module.Corpus, queries_BD: torch.Tensor) -> np.ndarray:
        rows = real(self, queries_BD)
        for query, actual in zip(queries_BD.detach().numpy().astype(np.float64), rows, strict=True):
            best: dict[int, float] = {}
            for row, vector in enumerate(vectors):
                best[owners[row]] = max(best.get(owners[row], -9.0), float(query @ vector))
            expected = sorted(best, key=lambda d: (best[d], ids[d]), reverse=True)[:DEPTH]
            assert [owners[row] for row in actual.tolist()] == expected
        seen.append(queries_BD.detach().numpy())
        return rows

    monkeypatch.setattr(step_module.Corpus, "top_rows", found)
    out = run("dynamic", "brute")
    assert len(seen) == STEPS and len({vectors.tobytes() for vectors in seen}) == STEPS
    assert set(curve(out, "overlap")) == {1.0}  # the negatives are the dynamic ones


@pytest.mark.parametrize(
    ("name", "harmed"),
    [
        *[("dynamic", ""), ("refreshed", ""), ("jpq", "")],
        *[("refreshed", "lists-4.npy"), ("refreshed", "checkpoint.safetensors"), ("ivf", "index.faiss")],
        ("ivf", "trained_index.safetensors"),
    ],
)
def test_killed_and_resumed_equals_undisturbed(
    name: str,
    harmed: str,
    run: Callable[[str, str], Path],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also if the power failure that killed it truncated a file in its scratch folder."""
    undisturbed = run(name, f"{name}{harmed}/whole")
    remove_finished()
    real = work.make_step

    def make_fatal_step(*arguments: Any) -> Steps[int]:
        backward = real(*arguments)

        def step(number: int) -> Figures:
            if number == 6:
                raise Killed
            return backward(number)

        return Steps.undrawn(step)

    with monkeypatch.context() as patch:
        patch.setattr(work, "make_step", make_fatal_step)
        with pytest.raises(Killed):
            run(name, f"{name}{harmed}/killed")
    assert not any((project / f"{name}{harmed}" / "killed" / out).exists() for out in OUTS)
    for file in project.glob(f".retemper/scratch/*/*/{harmed}") if harmed else ():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    capsys.readouterr()
    resumed = run(name, f"{name}{harmed}/killed")
    assert ("resuming from step 6" in capsys.readouterr().out) == (harmed in ("", "index.faiss", "trained_index.safetensors"))
    for out in OUTS:
        assert folder_digest(undisturbed / out) == folder_digest(resumed / out), out
    remove_finished()
    assert not list(project.glob(".retemper/scratch/*/*")), "scratch is marked as done with"


def test_only_the_query_tower_is_trained_and_it_learns(run: Callable[[str, str], Path], project: Path) -> None:
    out = run("dynamic", "learns")
    before, after = load_towers(project / "r"), load_towers(out / "encoder")
    for name, weight in before.document.state_dict().items():
        assert torch.equal(weight, after.document.state_dict()[name]), name
    assert not torch.equal(next(before.query.parameters()), next(after.query.parameters()))
    assert file_digest(out / "encoder" / "document" / "model.safetensors") == file_digest(project / "r" / "model.safetensors")
    assert curve(out, "loss")[-1] < 0.8 * curve(out, "loss")[0]
    assert len(curve(out, "mrr_10")) == len(curve(out, "hit_10")) == STEPS
    assert json.loads((out / "index" / "index.json").read_text()) == {"round": "r", "factory": "Flat", "centroids": False}
    assert not (out / "index" / "index.faiss").exists()  # the round's own serves


def test_all_new_queries_and_a_share_of_those_that_the_round_knows(
    run: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []
    real = step_module.batch_of

    def batch_of(*arguments: Any) -> Any:
        seen.extend(real(*arguments).tolist())
        return real(*arguments)

    monkeypatch.setattr(step_module, "batch_of", batch_of)
    run("replayed", "replayed")
    assert "adore.replayed: 8 new queries, and 8 of 16 known ones (replay 0.5)" in capsys.readouterr().out
    assert len(seen) == 8 * STEPS and len(set(seen)) == 16
    assert {0, 1, 2, 3, 20, 21, 22, 23} < set(seen)


@pytest.mark.parametrize("name", ["ndcg", "ltre", "random", "given", "ivf"])
def test_every_kind_of_training_runs(name: str, run: Callable[[str, str], Path]) -> None:
    out = run(name, f"kinds/{name}")
    assert len(curve(out, "loss")) == len(curve(out, "overlap")) == STEPS
    assert (out / "index" / "index.faiss").exists() == (name == "ivf")
    if name in ("random", "given"):
        assert max(curve(out, "overlap")) < 0.5
    if name == "ivf":
        assert faiss.extract_index_ivf(faiss.read_index(str(out / "index" / "index.faiss"))).nprobe == 2


def test_scores_over_a_compressed_index_are_as_said(run: Callable[[str, str], Path]) -> None:
    exact, decoded = (run(name, f"scores/{name}") for name in ("exact", "decoded"))
    assert file_digest(exact / "index" / "index.faiss") == file_digest(decoded / "index" / "index.faiss")
    assert folder_digest(exact / "encoder") != folder_digest(decoded / "encoder")
    index, vectors = faiss.read_index(str(exact / "index" / "index.faiss")), Exact(open_embeddings(Path("embeddings")), CPU, Path())
    entries = read_yaml(Path("params.yaml"))["adore"]
    kinds = {
        name: type(compressed_documents(index, lambda: vectors, validate(Adore, entries[name], name), name, CPU))
        for name in ("exact", "decoded")
    }
    assert kinds == {"exact": Rescored, "decoded": Compressed}


@pytest.mark.parametrize(("name", "function"), [("dynamic", "complete_lists"), ("given", "unranked_lists")])
def test_copies_of_positives_reach_the_lists(
    name: str, function: str, project: Path, run: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Document 0 has the text of what is relevant to query 0."""
    copied = project / "copied"
    copied.mkdir(exist_ok=True)
    tokens = {kind: open_tokens(project / "tokens" / kind) for kind in ("documents", "queries/train")}
    qrels = project / "corpus/qrels/train.parquet"
    twin = int(read_data(tokens["queries/train"], tokens["documents"], qrels, None, DEPTH, copied).positives.of(0)[0])

    def same_texts(tokens: Tokens, rows: Ints) -> SameTexts:
        members = np.union1d(rows, [0]) if len(tokens.ids()) == DOCUMENTS else np.unique(rows)
        return SameTexts(members, np.where(members == twin, 0, members) if len(tokens.ids()) == DOCUMENTS else members)

    monkeypatch.setattr(data_module, "same_texts", same_texts)
    read = read_data(tokens["queries/train"], tokens["documents"], qrels, None, DEPTH, copied)
    assert {0, twin} <= set(read.known.of(0).tolist()) and 0 not in read.positives.of(0)
    real, seen = getattr(step_module, function), list[list[int]]()

    def record_positives(*arguments: Any) -> Any:
        seen.extend(own.tolist() for own in arguments[3 if function == "complete_lists" else 1])
        return real(*arguments)

    monkeypatch.setattr(step_module, function, record_positives)
    shutil.rmtree(project / ".retemper/scratch", ignore_errors=True)  # another test's, which has no step left to do
    run(name, f"copied/{name}")
    assert read.known.of(0).tolist() in seen


def test_grades_of_judgments_reach_the_loss(project: Path, run: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    qrels, real, seen = project / "corpus/qrels/train.parquet", step_module.list_loss, list[int]()
    table = pq.read_table(qrels)
    graded = table.set_column(table.schema.get_field_index("grade"), table.schema.field("grade"), pa.array([3] * len(table), pa.int32()))

    def record_grades(queries: Any, lists: Any, corpus: Any, grades: Any, params: Any) -> Any:
        seen.extend([int(lists.grades.max()), int(grades.max())])
        return real(queries, lists, corpus, grades, params)

    monkeypatch.setattr(step_module, "list_loss", record_grades)
    try:
        write_table(qrels, table.schema, [graded])
        run("ndcg", "graded")
    finally:
        write_table(qrels, table.schema, [table])
    assert set(seen) == {3}


def test_the_saved_index_serves_the_trained_centroids(run: Callable[[str, str], Path]) -> None:
    out = run("jpq", "served")
    index = faiss.read_index(str(out / "index" / "index.faiss"))
    plain = faiss.deserialize_index(faiss.serialize_index(INDEXES["IVF1,PQ2x8"]))
    start = faiss.vector_to_array(plain.pq.centroids).reshape(2, 256, -1) + plain.quantizer.reconstruct(0).reshape(2, 1, -1)
    changes = np.abs(faiss.vector_to_array(index.pq.centroids) - start.ravel())
    assert 0.01 < changes.max() < 0.1  # nine steps of AdamW at 1e-2 or less, from the folded centroids
    assert not index.quantizer.reconstruct(0).any()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jpq_flat", "params.yaml: adore.jpq_flat: index Flat has no centroids"),
        ("jpq_sq", "params.yaml: adore.jpq_sq: index SQ8: centroids: true requires PQ"),
        ("unknown", "params.yaml: adore.unknown.index: found 'Falt'; expected a faiss factory string"),
        ("greedy", r"params.yaml: adore.greedy.index: found IVF500,Flat, which cannot be trained on \d+ vectors; faiss says"),
    ],
)
def test_mistakes_are_one_line(name: str, words: str, run: Callable[[str, str], Path], project: Path) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        run(name, "mistake")
    assert "\n" not in str(refusal.value)
    assert not any((project / "mistake" / out).exists() for out in OUTS)


def test_depth_beyond_the_corpus_retrieves_all_of_it(run: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = run("deep", "deep")
    assert f"depth 1000 exceeds the corpus; every list contains all {DOCUMENTS} documents" in capsys.readouterr().out
    assert curve(out, "recall") == [1.0]


def test_short_lists_are_told_once(run: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run("ivf", "enough")
    run("short", "few")
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "too few" in line]
    assert warning.startswith("adore short (cpu, float32): ") and warning.endswith("raise nprobe (1 of 50 inverted lists probed)")


def test_study_tabulates_train_index_by_serve_index(run: Callable[[str, str], Path], project: Path) -> None:
    out = run("s", "study")
    table = json.loads((out / "table.json").read_text())
    assert [index["factory"] for index in table["indexes"]] == ["Flat", "PQ2"]
    assert table["indexes"][0]["recall@20 dev"] == 1.0 > table["indexes"][1]["recall@20 dev"]
    assert table["indexes"][0]["bytes_per_vector"] > 512 > table["indexes"][1]["bytes_per_vector"] > 2
    assert [(c["trained"], c["served"]) for c in table["cells"]] == [(t, s) for s in ("Flat", "PQ2") for t in ("none", "Flat", "PQ2")]
    towers, tokens = load_towers(project / "r"), open_tokens(project / "tokens" / "queries" / "dev")
    embeddings = open_embeddings(project / "embeddings")
    vectors, owners = np.concatenate([block for _, block in embeddings.blocks()]), embeddings.owners()
    query_vectors = encode(towers.query, tokens, np.arange(QUERIES), 4096, CPU)
    judged = load_qrels(project / "corpus" / "qrels" / "dev.parquet", "dev", 2)
    rankings = {}
    total = 0.0
    for number, query in enumerate(query_vectors):
        ranking = list(dict.fromkeys(owners[np.argsort(-(vectors @ query), kind="stable")].tolist()))[:20]
        rankings[f"q{number:03}"] = [f"d{d:03}" for d in ranking]
        hits = [rank for rank, d in enumerate(ranking[:10], 1) if judged[f"q{number:03}"].get(f"d{d:03}", 0) >= 2]
        total += 1 / hits[0] if hits else 0.0
    assert table["cells"][0]["RR@10"] == pytest.approx(total / QUERIES, abs=1e-6)
    measures = ["RR@10", "R@20"]
    expected = means(measures, per_query(parse(measures, 2), judged, rankings))
    assert {name: table["cells"][0][name] for name in measures} == pytest.approx(expected, abs=1e-6), "as evaluate measures"
    assert "RR@10 on dev, trained over (rows) x served (columns)" in (out / "table.md").read_text()


def test_a_study_counts_no_queries_of_a_click_log(run: Callable[[str, str], Path], project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one of the dev queries are such ones: the other one alone decides."""
    judged = load_qrels(project / "corpus" / "qrels" / "dev.parquet", "dev", 2)
    asked = min(query for query, grades in judged.items() if max(grades.values()) >= 2)
    monkeypatch.setattr(
        study_module, "load_qrels", lambda *_: {query if query == asked else click_id(query): judged[query] for query in judged}
    )
    seen: list[set[str]] = []
    monkeypatch.setattr(
        study_module, "per_query", lambda measures, qrels, ranked: seen.append({*qrels}) or per_query(measures, qrels, ranked)
    )
    run("s", "study")
    assert seen and all(queries == {asked} for queries in seen)
