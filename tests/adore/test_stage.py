"""The stage as the pipeline runs it: every step's list is brute force's, a kill costs nothing, what comes out loads and serves."""

import json
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
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
from tasks.adore import work
from tasks.adore.data import read_data
from tasks.adore.documents import Compressed, Exact, Rescored
from tasks.adore.params import Adore
from tasks.adore.work import compressed_documents
from tasks.core.encoding.encode import encode
from tasks.core.metrics.measures import means, parse, per_query
from tasks.core.metrics.qrels import load_qrels
from tasks.core.models.bi_encoder import load_towers, save_towers
from tasks.core.models.folder import Shape
from tasks.core.retrieval import faiss_build
from tasks.core.retrieval.embeddings import Embeddings, Manifest, open_embeddings, write_manifest
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import file_digest, folder_digest, write_json
from tasks.core.stage.params import read_yaml, validate
from tasks.core.stage.scratch import remove_finished
from tasks.core.tables.ids import IDS, Ints
from tasks.core.tables.judgments import SameTexts
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.core.text.tokenizer import load_tokenizer
from tasks.core.text.tokens import Tokens, open_tokens
from tasks.core.training.figures import Figures
from tasks.core.training.loop import Steps
from tasks.core.training.replay import KNOWN

QUERIES, DOCUMENTS, DEPTH, STEPS = 24, 170, 12, 9
CPU = torch.device("cpu")
OUTS = ("encoder", "index", "curves", "state")
COMMON = f"round: r, steps: {STEPS}, batch_queries: 8, depth: {DEPTH}, lr: 1e-3, precision: fp32"
ENTRIES = {
    "dynamic": "negatives: none",
    "ndcg": "negatives: none, metric: ndcg, cut: 5, missing: jpq",
    "ltre": "negatives: none, loss: ranknet, missing: ltre",
    "replayed": "negatives: none, replay: 0.5",
    "refreshed": "negatives: none, lists: refreshed, refresh: 4, loss: ranknet",
    "random": "negatives: none, lists: random, loss: ranknet",
    "given": "negatives: g, lists: given, loss: ranknet",
    "ivf": 'negatives: none, index: "IVF8,Flat", nprobe: 2',
    "short": 'negatives: none, index: "IVF50,Flat", nprobe: 1, steps: 2',
    "exact": "negatives: none, index: PQ2",
    "decoded": "negatives: none, index: PQ2, scores: decoded",
    "jpq": 'negatives: none, index: "IVF1,PQ2x8", centroids: true, centroid_lr: 1e-2, missing: jpq',
    "jpq_flat": "negatives: none, centroids: true",
    "jpq_sq": "negatives: none, index: SQ8, centroids: true",
    "unknown": "negatives: none, index: Falt",
    "greedy": 'negatives: none, index: "IVF500,Flat"',
    "deep": "negatives: none, depth: 1000, steps: 1",
}
STUDY = f'{{{COMMON}, factories: [Flat, "PQ2"], serve_depth: 20, measures: [RR@10, R@20]}}'
INDEXES: dict[str, Any] = {}  # 256 centroids take a while to find


class Killed(Exception):
    pass


def write_tokens(folder: Path, name: str, rows: list[list[int]], owners: list[int]) -> None:
    folder.mkdir(parents=True)
    np.array([token for row in rows for token in row], dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))
    np.save(folder / "owners.npy", np.array(owners, dtype=np.int32))
    write_table(folder / "ids.parquet", IDS, [pa.table([[f"{name}{n:03}" for n in range(max(owners) + 1)]], schema=IDS)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": 8, "prefix": "", "tokenizer": ""})


@pytest.fixture(scope="module")
def project(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random documents of one to three passages with the vectors of a real encoder; every query of train has one to three positives.

    On dev, where grade 2 is relevant, half of the queries have no relevant document.
    """
    folder = tmp_path_factory.mktemp("adore")
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    draw = np.random.default_rng(3)
    owners = np.repeat(np.arange(DOCUMENTS), draw.integers(1, 4, size=DOCUMENTS)).tolist()
    rows = draw.integers(1000, 30000, size=(len(owners), 6)).tolist()
    write_tokens(folder / "tokens" / "documents", "d", rows, owners)
    (folder / "r").mkdir()
    save_towers(load_towers(tiny_encoder, Shape("mean", "none", "cosine")), load_tokenizer(tiny_encoder), folder / "r", max_length=8)
    judged = []
    for split in ("train", "dev"):
        asked = []
        for query in range(QUERIES):
            relevant = draw.choice(DOCUMENTS, size=1 + query % 3, replace=False)
            grade = 1 if split == "train" else (2, 1, 2, 0)[query % 4]
            judged += [(split, f"q{query:03}", f"d{d:03}", grade) for d in relevant]
            asked.append([*rows[owners.index(int(relevant[0]))][:3], *draw.integers(1000, 30000, size=2).tolist()])
        write_tokens(folder / "tokens" / "queries" / split, "q", asked, list(range(QUERIES)))
        columns = [list(column) for column in zip(*[row[1:] for row in judged if row[0] == split], strict=True)]
        write_table(folder / "corpus" / "qrels" / f"{split}.parquet", QRELS, [pa.table(columns, schema=QRELS)])
    given = [(f"q{q:03}", f"d{d:03}", rank, 0.5) for q in range(QUERIES) for rank, d in enumerate(draw.integers(DOCUMENTS, size=15), 1)]
    table = pa.table([list(column) for column in zip(*given, strict=True)], schema=RANKED)
    write_table(folder / "g" / "train.parquet", RANKED, [table])
    tokens = open_tokens(folder / "tokens" / "documents")
    vectors = encode(load_towers(folder / "r").document, tokens, np.arange(len(tokens)), 4096, CPU)
    (folder / "embeddings").mkdir()
    for number, part in enumerate(np.split(vectors, [100])):
        np.save(folder / "embeddings" / f"{number:05}.npy", part)
    manifest = Manifest(len(vectors), 128, "float32", [100, len(vectors) - 100], "", "", 8, "")
    write_manifest(folder / "embeddings", manifest, tokens.folder)
    entries = "\n".join(f"  {name}: {{{', '.join([entry, *_unless(entry)])}}}" for name, entry in ENTRIES.items())
    (folder / "params.yaml").write_text(f"adore:\n{entries}\nstudy: {{s: {STUDY}}}\nevaluate: {{relevance: {{dev: 2}}}}\n")
    write_json(folder / "state" / KNOWN, [f"q{query:03}" for query in range(4, 20)])
    (folder / "runtime.yaml").write_text("device: cpu\nthreads: 1\ncheckpoint_seconds: 0\n")
    return folder


def _unless(entry: str) -> list[str]:
    """What every entry has, but what it says itself."""
    return [part for part in COMMON.split(", ") if f"{part.split(':')[0]}:" not in entry.replace("centroid_lr", "")]


@pytest.fixture
def run(project: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Run an entry into a folder below the project."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    monkeypatch.chdir(project)
    real = faiss_build.build

    def build_once(embeddings: Embeddings, recipe: Any, key: str, **named: Any) -> Any:
        if recipe.factory not in INDEXES:
            INDEXES[recipe.factory] = real(embeddings, recipe, key, **named)
        return faiss.deserialize_index(faiss.serialize_index(INDEXES[recipe.factory]))

    monkeypatch.setattr(faiss_build, "build", build_once)

    def go(name: str, out: str) -> Path:
        outs = [part for kind in OUTS for part in (f"--{kind}", f"{out}/{kind}")]
        chosen = ["--name", name, "--negatives", "g", *outs] if name in ENTRIES else ["--study", name, "--out", out]
        paths = "--round r --round-state state --embeddings embeddings --tokens tokens --corpus corpus"
        monkeypatch.setattr(sys, "argv", ["adore", *paths.split(), *chosen])
        import_module("tasks.adore.__main__").main()
        return project / out

    return go


def curve(out: Path, name: str) -> list[float]:
    lines = (out / "curves" / "plots" / "metrics" / "train" / f"{name}.tsv").read_text().splitlines()[1:]
    return [float(line.split("\t")[1]) for line in lines]


def test_list_of_every_step_equals_brute_force(run: Callable[[str, str], Path], project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings = open_embeddings(project / "embeddings")
    vectors = np.concatenate([block for _, block in embeddings.blocks()]).astype(np.float64)
    owners, ids = embeddings.owners().tolist(), embeddings.ids().to_pylist()
    seen: list[np.ndarray] = []
    real = step_module.Corpus.found

    def found(self: step_module.Corpus, queries_BD: torch.Tensor) -> np.ndarray:
        rows = real(self, queries_BD)
        for query, listed in zip(queries_BD.detach().numpy().astype(np.float64), rows, strict=True):
            best: dict[int, float] = {}
            for row, vector in enumerate(vectors):
                best[owners[row]] = max(best.get(owners[row], -9.0), float(query @ vector))
            expected = sorted(best, key=lambda d: (best[d], ids[d]), reverse=True)[:DEPTH]
            assert [owners[row] for row in listed.tolist()] == expected
        seen.append(queries_BD.detach().numpy())
        return rows

    monkeypatch.setattr(step_module.Corpus, "found", found)
    out = run("dynamic", "brute")
    assert len(seen) == STEPS and len({vectors.tobytes() for vectors in seen}) == STEPS
    assert set(curve(out, "overlap")) == {1.0}  # the negatives are the dynamic ones


@pytest.mark.parametrize(
    ("name", "harmed"),
    [
        *[("dynamic", ""), ("refreshed", ""), ("jpq", "")],
        *[("refreshed", "lists-4.npy"), ("refreshed", "checkpoint.safetensors"), ("ivf", "index.faiss")],
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
    """Also where the loss of power that killed it cut a file in its scratch folder."""
    whole = run(name, f"{name}{harmed}/whole")
    remove_finished()
    real = work.make_step

    def mortal(*arguments: Any) -> Steps[int]:
        backward = real(*arguments)

        def step(number: int) -> Figures:
            if number == 6:
                raise Killed
            return backward(number)

        return Steps.undrawn(step)

    with monkeypatch.context() as patch:
        patch.setattr(work, "make_step", mortal)
        with pytest.raises(Killed):
            run(name, f"{name}{harmed}/killed")
    assert not any((project / f"{name}{harmed}" / "killed" / out).exists() for out in OUTS)
    for file in project.glob(f".retemper/scratch/*/*/{harmed}") if harmed else ():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    capsys.readouterr()
    again = run(name, f"{name}{harmed}/killed")
    assert ("resuming from step 6" in capsys.readouterr().out) == (harmed in ("", "index.faiss"))
    for out in OUTS:
        assert folder_digest(whole / out) == folder_digest(again / out), out
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


@pytest.mark.parametrize(("name", "function"), [("dynamic", "completed"), ("given", "unranked")])
def test_copies_of_positives_reach_the_lists(
    name: str, function: str, project: Path, run: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Document 0 has the text of what is relevant to query 0."""
    copied = project / "copied"
    copied.mkdir(exist_ok=True)
    tokens = {kind: open_tokens(project / "tokens" / kind) for kind in ("documents", "queries/train")}
    qrels = project / "corpus/qrels/train.parquet"
    twin = int(read_data(tokens["queries/train"], tokens["documents"], qrels, None, DEPTH, copied).positives.of(0)[0])

    def same_texts(asked: Tokens, of: Ints) -> SameTexts:
        members = np.union1d(of, [0]) if len(asked.ids()) == DOCUMENTS else np.unique(of)
        return SameTexts(members, np.where(members == twin, 0, members) if len(asked.ids()) == DOCUMENTS else members)

    monkeypatch.setattr(data_module, "same_texts", same_texts)
    read = read_data(tokens["queries/train"], tokens["documents"], qrels, None, DEPTH, copied)
    assert {0, twin} <= set(read.known.of(0).tolist()) and 0 not in read.positives.of(0)
    real, seen = getattr(step_module, function), list[list[int]]()

    def spied(*given: Any) -> Any:
        seen.extend(own.tolist() for own in given[3 if function == "completed" else 1])
        return real(*given)

    monkeypatch.setattr(step_module, function, spied)
    shutil.rmtree(project / ".retemper/scratch", ignore_errors=True)  # another test's, which has no step left to do
    run(name, f"copied/{name}")
    assert read.known.of(0).tolist() in seen


def test_grades_of_judgments_reach_the_loss(project: Path, run: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    qrels, real, seen = project / "corpus/qrels/train.parquet", step_module.list_loss, list[int]()
    table = pq.read_table(qrels)
    graded = table.set_column(table.schema.get_field_index("grade"), table.schema.field("grade"), pa.array([3] * len(table), pa.int32()))

    def spied(queries: Any, lists: Any, corpus: Any, grades: Any, params: Any) -> Any:
        seen.extend([int(lists.grades.max()), int(grades.max())])
        return real(queries, lists, corpus, grades, params)

    monkeypatch.setattr(step_module, "list_loss", spied)
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
    moved = np.abs(faiss.vector_to_array(index.pq.centroids) - start.ravel())
    assert 0.01 < moved.max() < 0.1  # nine steps of AdamW at 1e-2 or less, from the folded centroids
    assert not index.quantizer.reconstruct(0).any()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jpq_flat", "params.yaml: adore.jpq_flat: index Flat has no centroids"),
        ("jpq_sq", "params.yaml: adore.jpq_sq: index SQ8: centroids: true trains those of PQ"),
        ("unknown", "params.yaml: adore.unknown.index: found 'Falt'; expected a faiss factory string"),
        ("greedy", r"params.yaml: adore.greedy.index: found IVF500,Flat, which cannot be trained on \d+ vectors; faiss says"),
    ],
)
def test_mistakes_are_one_line(name: str, words: str, run: Callable[[str, str], Path], project: Path) -> None:
    with pytest.raises(UserError, match=words) as refused:
        run(name, "mistake")
    assert "\n" not in str(refused.value)
    assert not any((project / "mistake" / out).exists() for out in OUTS)


def test_depth_beyond_the_corpus_retrieves_all_of_it(run: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = run("deep", "deep")
    assert f"depth 1000 exceeds the corpus; every list contains all {DOCUMENTS} documents" in capsys.readouterr().out
    assert curve(out, "recall") == [1.0]


def test_short_lists_are_told_once(run: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run("ivf", "enough")
    run("short", "few")
    (told,) = [line for line in capsys.readouterr().out.splitlines() if "too few" in line]
    assert told.startswith("adore short (cpu, float32): ") and told.endswith("raise nprobe (1 of 50 inverted lists probed)")


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
    asked = encode(towers.query, tokens, np.arange(QUERIES), 4096, CPU)
    judged = load_qrels(project / "corpus" / "qrels" / "dev.parquet", "dev", 2)
    rankings = {}
    total = 0.0
    for number, query in enumerate(asked):
        ranking = list(dict.fromkeys(owners[np.argsort(-(vectors @ query), kind="stable")].tolist()))[:20]
        rankings[f"q{number:03}"] = [f"d{d:03}" for d in ranking]
        hits = [rank for rank, d in enumerate(ranking[:10], 1) if judged[f"q{number:03}"].get(f"d{d:03}", 0) >= 2]
        total += 1 / hits[0] if hits else 0.0
    assert table["cells"][0]["RR@10"] == pytest.approx(total / QUERIES, abs=1e-6)
    measures = ["RR@10", "R@20"]
    wanted = means(measures, per_query(parse(measures, 2), judged, rankings))
    assert {name: table["cells"][0][name] for name in measures} == pytest.approx(wanted, abs=1e-6), "as evaluate measures"
    assert "RR@10 on dev, trained over (rows) x served (columns)" in (out / "table.md").read_text()
