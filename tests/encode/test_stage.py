"""The stage, killed and resumed, with a grown corpus, or with corrupt files: it always equals an undisturbed encode, bit for bit."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.core.encoding.int8 import has_int8_layers
from tasks.core.errors import UserError
from tasks.core.files import folder_digest, read_json, write_json
from tasks.core.machine.devices import Precision, compute_dtype
from tasks.core.models.bi_encoder import Towers, load_towers, save_towers
from tasks.core.retrieval import embeddings
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.tables import ids
from tasks.core.tables.parquet import write_table
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.encode.shards import boundaries
from tasks.encode.vectors import Piece

pytestmark = pytest.mark.usefixtures("one_thread")

MEAN_ROWS = 5
Corpus = dict[str, list[list[int]]]  # a document's passages
PARAMS = "encode: {{precision: {precision}, dtype: {dtype}, batch_tokens: 512}}\n"


def corpus(count: int = 60) -> Corpus:
    """Documents of one to three passages."""
    draw = np.random.default_rng(0)
    return {
        f"doc-{n * 7919 % 1009}": [draw.integers(1000, 30000, draw.integers(2, 24)).tolist() for _ in range(n % 3 + 1)]
        for n in range(count)
    }


def write_corpus(folder: Path, documents: Corpus) -> None:
    """A token folder, written without the code under test."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = [row for passages in documents.values() for row in passages]
    np.array([token for row in rows for token in row], dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))
    np.save(folder / "owners.npy", np.repeat(np.arange(len(documents), dtype=np.int32), [len(passages) for passages in documents.values()]))
    write_table(folder / "ids.parquet", ids.IDS, [pa.table([list(documents)], schema=ids.IDS)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": 24, "prefix": "passage: ", "tokenizer": "abc"})


class Project:
    """A folder to run the stage in, with shards of MEAN_ROWS rows; `rows` were encoded by the last run."""

    mean_rows, rows = MEAN_ROWS, 0

    def __init__(self, folder: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.encoder, self.monkeypatch = folder, encoder, monkeypatch
        folder.mkdir()
        self.write_params()
        self.stage, self.worker = import_module("tasks.encode.__main__"), import_module("tasks.encode.vectors")

    def write_params(self, dtype: str = "float32", precision: str = "fp32") -> None:
        (self.folder / "params.yaml").write_text(PARAMS.format(dtype=dtype, precision=precision))

    def argv(self) -> list[str]:
        return ["encode", "--tokens", "tokens", "--encoder", str(self.encoder), "--out", "out"]

    def run(self) -> tuple[str, int]:
        """The digest of the output, and how many shards were computed."""
        computed = []

        def record_size(*arguments: object, **more: object) -> object:
            computed.append(len(arguments[2]))
            return encode(*arguments, **more)

        with self.monkeypatch.context() as patch:
            encode = self.worker.encode
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", self.argv())
            patch.setattr(self.worker, "encode", record_size)
            patch.setattr(self.stage, "boundaries", partial(boundaries, mean_rows=self.mean_rows))
            self.stage.main()
        self.rows = sum(computed)
        return folder_digest(self.folder / "out"), len(computed)


@pytest.fixture
def project(tmp_path: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Project]:
    def make(name: str, documents: Corpus | None = None, encoder: Path = tiny_encoder) -> Project:
        workspace = Project(tmp_path / name, encoder, monkeypatch)
        write_corpus(workspace.folder / "tokens", corpus() if documents is None else documents)
        return workspace

    return make


def test_a_shard_is_saved_while_the_next_one_is_encoded(project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = project("p")
    expected, count = workspace.run()
    encode, save = workspace.worker.encode, workspace.stage._save
    starts, following = [Event() for _ in range(count)], iter(range(count))
    saved: list[int] = []

    def encode_and_signal(*arguments: object, **more: object) -> object:
        starts[next(following)].set()
        return encode(*arguments, **more)

    def save_after_next_start(vectors: object, to: Path, piece: Piece, *arguments: object) -> None:
        assert starts[min(piece.number + 1, count - 1)].wait(60)
        save(vectors, to, piece, *arguments)
        saved.append(piece.number)

    monkeypatch.setattr(workspace.worker, "encode", encode_and_signal)
    monkeypatch.setattr(workspace.stage, "_save", save_after_next_start)
    shutil.rmtree(workspace.folder / ".retemper")
    assert workspace.run() == (expected, count)
    assert saved == list(range(count))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_row_has_the_vector_of_its_tokens(dtype: str, project: Callable[..., Project], tiny_encoder: Path) -> None:
    workspace = project("p")
    workspace.write_params(dtype)
    computed = workspace.run()[1]
    stored = open_embeddings(workspace.folder / "out")
    rows = [row for passages in corpus().values() for row in passages]
    assert len(stored) == len(rows) == 120 and computed == len(stored.manifest.shards) > 5
    tower = load_towers(tiny_encoder).document
    with torch.no_grad():
        expected = [tower(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.int64))[0].numpy() for row in rows]
    vectors = np.concatenate([block for _, block in stored.blocks()])
    assert vectors.dtype == np.dtype(dtype)
    np.testing.assert_allclose(vectors, expected, atol=1e-5 if dtype == "float32" else 2e-3)
    assert [first for first, _ in stored.blocks()] == np.cumsum([0, *stored.manifest.shards])[:-1].tolist()
    assert stored.ids().to_pylist() == list(corpus())
    assert stored.owners().tolist() == [n for n, passages in enumerate(corpus().values()) for _ in passages]
    manifest = stored.manifest
    assert (manifest.width, manifest.weights, manifest.tokenizer) == (128, folder_digest(tiny_encoder), "abc")
    assert (manifest.max_length, manifest.prefix) == (24, "passage: ")


def test_int8_where_the_cpu_multiplies_it_else_as_bf16(
    project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = project("p")
    exact, vectors = workspace.run()[0], np.load(workspace.folder / "out/00000.npy")
    workspace.write_params(precision="int8")
    with monkeypatch.context() as patch:
        patch.setattr(workspace.worker, "quantized_layers", lambda *_: None)
        patch.setattr(workspace.worker, "compute_dtype", lambda *_: torch.float32)
        assert workspace.run()[0] == exact
    needs = "requires an x86 CPU with AVX2, a BERT, RoBERTa, or XLM-R, and pooling cls, or mean over all tokens, prefixes included"
    assert f"encode.precision: int8: {needs}; encoding in float32 instead" in capsys.readouterr().out
    if has_int8_layers():
        assert workspace.run()[0] != exact, "the shards of float32 are not taken for those of int8"
        quantized = np.load(workspace.folder / "out/00000.npy")
        assert (vectors * quantized).sum(1).min() > 0.98 * (vectors * vectors).sum(1).min()


KILLED = """
import os, signal, sys
from functools import partial
import torch
import tasks.encode.__main__ as stage
torch.set_num_threads(1)
torch.utils.deterministic.fill_uninitialized_memory = True
stage.boundaries = partial(stage.boundaries, mean_rows=int(sys.argv.pop(1)))
save, saved = stage.np.save, []
def die_after_three(path, vectors):
    save(path, vectors)
    saved.append(path)
    if len(saved) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
stage.np.save = die_after_three
stage.main()
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_killed_encode_resumes_and_equals_an_undisturbed_one(precision: Precision, project: Callable[..., Project]) -> None:
    if compute_dtype(torch.device("cpu"), precision) != {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]:
        pytest.skip("this CPU has no bfloat16")
    undisturbed, killed = project("undisturbed"), project("killed")
    undisturbed.write_params(precision=precision)
    killed.write_params(precision=precision)
    expected, total = undisturbed.run()
    command = [sys.executable, "-c", KILLED, str(MEAN_ROWS), *killed.argv()[1:]]
    result = subprocess.run(command, cwd=killed.folder, capture_output=True, text=True, check=False)
    assert result.returncode == -9, result.stderr
    assert not (killed.folder / "out").exists()
    shard_count = len(list((killed.folder / ".retemper" / "shards").glob("*.npy")))
    assert 0 < shard_count < total
    assert killed.run() == (expected, total - shard_count)
    assert not list(killed.folder.glob(".*partial"))
    assert killed.run() == (expected, 0)  # DVC removes outs before a stage, so everything comes from the store


def test_a_failure_leaves_no_out_and_the_manifest_comes_last(project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = project("p")
    seen: list[list[str]] = []

    def look_and_fail(path: Path, _: object) -> None:
        seen.append(sorted(file.name for file in path.parent.iterdir()))
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(embeddings, "write_json", look_and_fail)
        with pytest.raises(OSError, match="no space"):
            workspace.run()
    assert sorted(file.name for file in workspace.folder.iterdir()) == [".retemper", "params.yaml", "tokens"]
    workspace.run()
    assert seen == [sorted({file.name for file in (workspace.folder / "out").iterdir()} - {"manifest.json"})]


def test_a_corrupt_shard_in_the_store_is_recomputed(project: Callable[..., Project]) -> None:
    workspace = project("p")
    expected, total = workspace.run()
    shard = sorted((workspace.folder / ".retemper" / "shards").glob("*.npy"))[0]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert workspace.run() == (expected, 1)
    assert workspace.run() == (expected, 0)
    assert total > 1


def change_corpus(documents: Corpus, change: str) -> Corpus:
    names = list(documents)
    if change == "append":
        return {**documents, "new-1": [[2000, 3000]], "new-2": [[4000], [5000, 6000]]}
    if change == "delete":
        return {name: rows for name, rows in documents.items() if name != names[30]}
    if change == "text":
        return {**documents, names[30]: [[7, 8, 9], *documents[names[30]][1:]]}
    return {"new": [[2000, 3000]], **documents}  # in front


@pytest.mark.parametrize("change", ["append", "delete", "text", "front"])
def test_a_changed_corpus_encodes_only_touched_shards(change: str, project: Callable[..., Project]) -> None:
    workspace = project("grown")
    _, before = workspace.run()
    write_corpus(workspace.folder / "tokens", change_corpus(corpus(), change))
    grown, computed = workspace.run()
    fresh, total = project("fresh", change_corpus(corpus(), change)).run()
    assert grown == fresh
    assert total >= before > 8 and 1 <= computed <= 3


def test_new_documents_spread_over_all_shards_cost_little_more_than_themselves(project: Callable[..., Project]) -> None:
    documents, draw = corpus(300), np.random.default_rng(1)  # 600 passages
    names = list(documents)
    spread = {name: documents[name] for name in names if name not in names[::100]}  # 3 are deleted
    for place in range(10, 300, 100):  # 3 are new
        spread = {**dict(list(spread.items())[:place]), f"new-{place}": [[place + 1000, 7]], **dict(list(spread.items())[place:])}
    for name in names[50::100]:  # 3 are changed
        spread[name] = [draw.integers(1000, 30000, 9).tolist()]
    workspaces, digests, shards = {}, {}, {}
    for name, content in (("grown", documents), ("fresh", spread)):
        workspaces[name] = project(name, content)
        workspaces[name].mean_rows = 150
        digests[name], shards[name] = workspaces[name].run()
    assert shards["fresh"] >= 2 and workspaces["fresh"].rows > 580
    write_corpus(workspaces["grown"].folder / "tokens", spread)
    assert workspaces["grown"].run()[0] == digests["fresh"] != digests["grown"]
    assert workspaces["grown"].rows <= 6 + 32 * shards["fresh"]


def test_a_deleted_document_leaves_no_trace(project: Callable[..., Project]) -> None:
    workspace, documents = project("p"), corpus()
    workspace.run()
    store = workspace.folder / ".retemper" / "shards"
    gone = list(documents)[31]
    stored = open_embeddings(workspace.folder / "out")
    vectors = np.concatenate([block for _, block in stored.blocks()])[stored.owners() == 31]
    digests = [hashlib.blake2b(np.array(row, dtype=np.uint16).tobytes(), digest_size=16).digest() for row in documents[gone]]
    needles = [*(vector.tobytes() for vector in vectors), *digests]

    def count_traces(folder: Path) -> int:
        contents = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
        return sum(part in content for part in needles for content in contents)

    assert count_traces(store) == 2 * len(vectors) > 0
    assert count_traces(workspace.folder / "out") == len(vectors)
    write_corpus(workspace.folder / "tokens", {name: rows for name, rows in documents.items() if name != gone})
    workspace.run()
    assert count_traces(workspace.folder) == 0 and gone not in open_embeddings(workspace.folder / "out").ids().to_pylist()
    stems = {file.stem for file in store.glob("*.npy")}
    assert len(stems) == len(open_embeddings(workspace.folder / "out").manifest.shards)
    assert {file.stem for file in store.glob("*.rows")} == stems == {file.stem for file in store.glob("*.sha256")}


def test_another_query_tower_encodes_no_document_again(project: Callable[..., Project], tiny_encoder: Path, tmp_path: Path) -> None:
    """An ADORE over these vectors, and another query prefix: the document tower, the vectors' bits, and the manifest are the same."""
    encoder, tower, tokenizer = tmp_path / "alone", load_towers(tiny_encoder), load_tokenizer(tiny_encoder)
    trained = load_towers(tiny_encoder).query
    with torch.no_grad():
        next(trained.parameters()).add_(0.1)
    encoder.mkdir()
    save_towers(tower, tokenizer, encoder, max_length=24, query_prefix="query: ")
    (tmp_path / "two").mkdir()
    save_towers(Towers(trained, load_towers(encoder).document), tokenizer, tmp_path / "two", 16, query_prefix="other: ")
    workspace = project("p", encoder=encoder)
    digest, total = workspace.run()
    assert workspace.rows == 120 and total > 5
    workspace.encoder = tmp_path / "two"
    assert (workspace.run(), workspace.rows) == ((digest, 0), 0)
    with_more = {**corpus(), **{f"new-{n}": rows for n, rows in enumerate(corpus(6).values())}}
    before = {name: vectors_of(workspace)[name] for name in corpus()}
    write_corpus(workspace.folder / "tokens", with_more)
    workspace.run()
    after = vectors_of(workspace)
    assert all((before[name] == after[name]).all() for name in corpus()), "vectors of known documents are the same, bit for bit"
    assert 12 <= workspace.rows <= 12 + 4 * MEAN_ROWS, "new documents, and known ones of the shard that they came into"


def vectors_of(workspace: Project) -> dict[str, np.ndarray]:
    stored = open_embeddings(workspace.folder / "out")
    vectors, names, owners = np.concatenate([block for _, block in stored.blocks()]), stored.ids().to_pylist(), stored.owners()
    return {name: vectors[owners == number] for number, name in enumerate(names)}


@pytest.mark.parametrize("change", ["weights", "prompt", "dtype", "code", "threads"])
def test_changes_that_alter_vectors_reuse_no_shard(
    change: str, project: Callable[..., Project], tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = project("p")
    _, total = workspace.run()
    if change == "weights":
        shutil.copytree(tiny_encoder, tmp_path / "other")
        (tmp_path / "other" / "config.json").write_text((tmp_path / "other" / "config.json").read_text() + "\n")
        workspace.encoder = tmp_path / "other"
    elif change == "prompt":  # other tokens that an encoder may not pool
        write_json(workspace.folder / "tokens/meta.json", read_json(workspace.folder / "tokens/meta.json") | {"prompt": 2})
    elif change == "dtype":
        workspace.write_params("float16")
    elif change == "code":
        monkeypatch.setattr(workspace.stage, "code_digest", lambda *_: "of other code")
    else:
        torch.set_num_threads(2)
    assert workspace.run()[1] == total


@pytest.mark.parametrize(("value", "dtype"), [(3e38, "float32"), (1e6, "float16")])
def test_non_finite_vectors_are_refused(
    value: float, dtype: str, project: Callable[..., Project], tiny_encoder: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_encoder, tmp_path / "other")
    weights = load_file(tmp_path / "other" / "model.safetensors")
    name = next(key for key in weights if key.endswith("layer.1.output.LayerNorm.beta"))
    save_file({**weights, name: torch.full_like(weights[name], value)}, tmp_path / "other" / "model.safetensors", {"format": "pt"})
    workspace = project("p", encoder=tmp_path / "other")
    workspace.write_params(dtype)
    with pytest.raises(UserError, match=rf"other: document doc-0 \(row 0 of shard 0\) gives NaN or infinity as {dtype}"):
        workspace.run()
    assert not (workspace.folder / "out").exists() and not list((workspace.folder / ".retemper").rglob("*.npy"))


def test_one_document_gives_one_shard(project: Callable[..., Project]) -> None:
    workspace = project("p", {"only": [[101, 2000, 102]]})
    assert workspace.run()[1] == 1
    assert open_embeddings(workspace.folder / "out").manifest.shards == [1]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda out: (out / "manifest.json").unlink(), "manifest.json: not found"),
        (lambda out: (out / "manifest.json").write_text("{}"), "invalid manifest"),
        (lambda out: (out / "manifest.json").write_text("[]"), "invalid manifest"),
        (lambda out: (out / "manifest.json").write_text((out / "manifest.json").read_text().replace('"rows": 120', '"rows": 121')), "121"),
        (lambda out: (out / "00001.npy").unlink(), "00001.npy: unreadable shard"),
        (lambda out: (out / "00001.npy").write_bytes((out / "00001.npy").read_bytes()[:-1]), "00001.npy: unreadable shard"),
        (lambda out: shutil.copyfile(out / "00000.npy", out / "00001.npy"), "00001.npy: unreadable shard"),
    ],
)
def test_a_corrupt_folder_is_refused_in_one_line(harm: Callable[[Path], object], words: str, project: Callable[..., Project]) -> None:
    workspace = project("p")
    workspace.run()
    harm(workspace.folder / "out")
    with pytest.raises(UserError, match=words) as refusal:
        list(open_embeddings(workspace.folder / "out").blocks())
    assert "\n" not in str(refusal.value)
