"""Bad input, case by case, each as a user meets it: one line that says where, what and how to fix it, status 2, nothing changed.

Stages run by the commands of dvc.yaml, the command line as `retemper` does, both in this process (`small`, tests/conftest.py).
"""

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import faiss
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save

from tasks.core.files import folder_digest

Arrange = Callable[[Any], None]
CONFLICT = "<<<<<<< HEAD\n{0}=======\n{0}>>>>>>> other\n"


def assert_refused(project: Any, act: Callable[[], Any], *words: str) -> str:
    """Do what must be refused: status 2, one line with `words` (besides a stage's progress), every file as it was."""
    before = project.state()
    result = act()
    assert result.status == 2, result
    lines = [line for line in result.err.splitlines() if line.startswith("retemper: ")]
    assert len(lines) == 1 and result.err.endswith(f"{lines[0]}\n"), result.err
    assert all(word in lines[0] for word in words), lines[0]
    after = project.state()
    assert after == before, {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return lines[0]


def line(name: str, number: int, text: str | bytes) -> Arrange:
    """Replace line `number` of a file, counted from 1."""

    def arrange(project: Any) -> None:
        lines = project.read(name).splitlines(keepends=True)
        lines[number - 1] = (text if isinstance(text, bytes) else text.encode()) + b"\n"
        project.write(name, b"".join(lines))

    return arrange


def edit(name: str, change: Callable[[bytes], bytes]) -> Arrange:
    """Change the content of a file."""
    return lambda project: project.write(name, change(project.read(name)))


def remove(name: str) -> Arrange:
    """Remove a file or folder."""

    def arrange(project: Any) -> None:
        path = project.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return arrange


def all_of(*arrangements: Arrange) -> Arrange:
    def arrange(project: Any) -> None:
        for arrangement in arrangements:
            arrangement(project)

    return arrange


def flip_bit(data: bytes) -> bytes:
    """Flip one bit in the second half."""
    middle = 3 * len(data) // 4
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def document(**fields: object) -> str:
    return json.dumps({"_id": "d02", "title": "", "text": "some text", **fields})


# --- data: what prepare reads ---------------------------------------------------------------------------------------------

CORPUS, QUERIES, TRAIN, DEV = "beir/corpus.jsonl", "beir/queries.jsonl", "beir/qrels/train.tsv", "beir/qrels/dev.tsv"
SOURCES: dict[str, tuple[Arrange, tuple[str, ...]]] = {
    "corpus line that is not JSON": (
        line(CORPUS, 3, '{"_id": "d02", "text": '),
        (f"{CORPUS}:3: not JSON", "expected an object", "fix that line"),
    ),
    "corpus line that is a list": (line(CORPUS, 3, "[1]"), (f"{CORPUS}:3: found a JSON list", "expected an object")),
    "number without end": (line(CORPUS, 3, '{"_id": ' + "9" * 5000 + "}"), (f"{CORPUS}:3: found a number",)),
    "JSON without end": (line(CORPUS, 3, "[" * 200_000), (f"{CORPUS}:3: JSON nested too deeply",)),
    "missing _id": (line(CORPUS, 3, '{"title": "", "text": "x"}'), (f"{CORPUS}:3: no _id, found title, text", "every line needs one")),
    "_id of another type": (line(CORPUS, 3, document(_id=[1])), (f"{CORPUS}:3: found _id [1], expected a string or an integer",)),
    "text of another type": (line(CORPUS, 3, document(text=5)), (f"{CORPUS}:3: found text 5, expected a string",)),
    "duplicate document id": (
        line(CORPUS, 60, document(_id="d00")),
        (f"{CORPUS}:60: document id 'd00' is already used at {CORPUS}:1", "drop or rename"),
    ),
    "duplicate query id": (edit(QUERIES, lambda data: data * 2), (f"{QUERIES}:61: query id 'q00' is already used at",)),
    "empty text": (line(CORPUS, 3, document(text=" ")), (f"{CORPUS}:3: document d02 has an empty title and text", "empty_texts=drop")),
    "empty query": (line(QUERIES, 1, '{"_id": "q00", "text": ""}'), (f"{QUERIES}:1: query q00 has an empty text", "empty_texts=drop")),
    "half a character": (
        line(CORPUS, 3, document(text="\ud800")),
        (f"{CORPUS}:3: the text contains an unpaired surrogate", "fix that line"),
    ),
    "id with a blank": (line(CORPUS, 3, document(_id="d 2")), (f"{CORPUS}:3: found document id 'd 2', expected one without white space",)),
    "id with a tab": (line(CORPUS, 3, document(_id="d\t2")), (f"{CORPUS}:3: found document id 'd\\t2'",)),
    "id with a line end": (line(CORPUS, 3, document(_id="d2\n")), (f"{CORPUS}:3: found document id 'd2\\n'",)),
    "empty id": (line(CORPUS, 3, document(_id="")), (f"{CORPUS}:3: found an empty document id",)),
    "empty corpus": (lambda p: p.write(CORPUS, ""), ("beir:beir has no documents, expected at least one", "fix the source")),
    "qrel of an unknown document": (
        all_of(line(TRAIN, 2, "q00\tnowhere\t1"), line(TRAIN, 3, "q01\tnowhere\t1")),
        (f"{TRAIN}:2: document 'nowhere' is not in the dataset (2 such lines)", "prepare.unknown_documents=drop"),
    ),
    "qrel of an unknown query": (line(TRAIN, 2, "nobody\td00\t1"), (f"{TRAIN}:2: query 'nobody' is not in the dataset (1 such line",)),
    "grade 1.5": (line(TRAIN, 2, "q00\td00\t1.5"), (f"{TRAIN}:2: found grade '1.5', expected an integer", "fix that line")),
    "grade that is a word": (line(TRAIN, 3, "q01\td01\tyes"), (f"{TRAIN}:3: found grade 'yes', expected an integer",)),
    "two grades of one pair": (line(TRAIN, 3, "q00\td00\t2"), (f"{TRAIN}:3: query 'q00' and document 'd00' have grade 2", f"{TRAIN}:2")),
    "negative-only qrels": (
        edit(DEV, lambda data: data.replace(b"\t1\n", b"\t0\n")),
        (f"{DEV}: no relevant document in split dev, every grade is 0 or less", "expected at least one grade above 0"),
    ),
    "no qrels": (remove("beir/qrels"), ("beir/qrels: found no qrels, expected train.tsv", "add one")),
    "qrels of no split": (
        lambda p: p.write("beir/qrels/all.tsv", "q00\td00\t1\n"),
        ("beir/qrels/all.tsv: found qrels of an unknown split",),
    ),
    "wrong number of columns": (line(TRAIN, 4, "q02\td02"), (f"{TRAIN}:4: found 2 columns", "expected 3 separated by tabs")),
    "CSV where TSV is wanted": (
        line(TRAIN, 1, "query-id,corpus-id,score"),
        (f"{TRAIN}:1: found commas and no tabs", "expected 3 separated by"),
    ),
    "not UTF-8": (line(CORPUS, 3, b'{"_id": "d02", "text": "caf\xe9"}'), (f"{CORPUS}:3: not UTF-8 at byte 28", "save the file as UTF-8")),
    "UTF-16": (edit(CORPUS, lambda data: data.decode().encode("utf-16")), (f"{CORPUS}:1: not UTF-8 at byte 1",)),
    "truncated .gz": (
        all_of(lambda p: p.write(f"{CORPUS}.gz", gzip.compress(p.read(CORPUS))[:2000]), remove(CORPUS)),
        (f"{CORPUS}.gz:", "the gzip file is truncated or corrupt here", "download it again"),
    ),
    "damaged .gz": (
        all_of(lambda p: p.write(f"{CORPUS}.gz", flip_bit(gzip.compress(p.read(CORPUS)))), remove(CORPUS)),
        (f"{CORPUS}.gz:", "fix that line"),  # the unpacked text fails before the checksum does
    ),
    "both plain and packed": (lambda p: p.write(f"{CORPUS}.gz", b""), ("corpus.jsonl.gz exists too", "keep one")),
    "folder in place of a file": (all_of(remove(QUERIES), lambda p: (p.folder / QUERIES).mkdir()), (f"{QUERIES}: not found",)),
}


@pytest.mark.parametrize("case", SOURCES)
def test_data(small: Any, case: str) -> None:
    arrange, words = SOURCES[case]
    arrange(small)
    assert_refused(small, lambda: small.stage("prepare"), *words)


FOREIGN: dict[str, tuple[str, dict[str, str | bytes], tuple[str, ...]]] = {
    "passage with a third column": (
        "msmarco",
        {"collection.tsv": "0\tone\n1\ttwo\tthree\n", "queries.dev.tsv": "7\twhat\n", "qrels.dev.tsv": "7 0 0 1\n"},
        ("collection.tsv:2: found 3 columns", "expected 2 separated by tabs (passage id, passage)"),
    ),
    "qrels of three columns": (
        "msmarco",
        {"collection.tsv": "0\tone\n", "queries.dev.tsv": "7\twhat\n", "qrels.dev.tsv": "7 0 1\n"},
        ("qrels.dev.tsv:1: found 3 columns", "expected 4 (query id, 0, document id, grade)"),
    ),
    "file that is not Parquet": (
        "parquet",
        {"documents.parquet": b"PAR1", "queries.parquet": b"", "qrels/dev.parquet": b""},
        ("documents.parquet: cannot be read as Parquet", "write it again"),
    ),
    "unpacked nowhere": ("msmarco", {"collection.tar.gz": b""}, ("found no qrels, expected qrels.train.tsv",)),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_data_of_other_forms(small: Any, case: str) -> None:
    kind, files, words = FOREIGN[case]
    for name, text in files.items():
        small.write(f"other/{name}", text)
    small.set("dataset.source", f"{kind}:other")
    assert_refused(small, lambda: small.stage("prepare"), *words)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data + b"\n\r\n  \n",
        lambda data: data.rstrip(b"\n"),
    ],
    ids=["BOM", "Windows line ends", "blank last lines", "no last line end"],
)
def test_accepted(small: Any, change: Callable[[bytes], bytes]) -> None:
    before = folder_digest(small.folder / "data/corpus")
    for name in (CORPUS, QUERIES, TRAIN, DEV):
        small.write(name, change(small.read(name)))
    assert small.stage("prepare").status == 0
    assert folder_digest(small.folder / "data/corpus") == before


def test_dropped_and_counted_where_a_parameter_allows(small: Any) -> None:
    line(TRAIN, 2, "q00\tnowhere\t1")(small)
    line(TRAIN, 3, "nobody\td01\t1")(small)
    line(CORPUS, 60, document(_id="d59", text=""))(small)
    small.set("prepare", {"unknown_documents": "drop", "empty_texts": "drop"})
    result = small.stage("prepare")
    assert result.status == 0, result
    for reason in ("1 qrel of an unknown document", "1 qrel of an unknown query", "1 document without text"):
        assert reason in result.out, result.out


# --- parameters: what the command line refuses before anything runs -----------------------------------------------------------

SETTINGS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "missing folder": (["dataset.source=beir:nowhere"], ("nowhere: not found, expected a BEIR folder", "fix the path")),
    "file where a folder is wanted": (["dataset.source=beir:params.yaml"], ("params.yaml: found a file, expected a BEIR folder",)),
    "unknown kind of dataset": (["dataset.source=bier:x"], ("params.yaml: dataset.source", "unknown kind 'bier'", "beir:PATH")),
    "URL in place of a folder": (["dataset.source=irds:https://me:pass@x.org/y"], ("dataset.source", "https://***@x.org", "found a URL")),
    "no such encoder": (["encoder.source=./nowhere"], ("encoder './nowhere': no such folder and not a Hugging Face id",)),
    "no such package": (["encoder.source=package:nowhere/model"], ("package nowhere: not installed", "pip install")),
    "unknown parameter": (["bm25.k2=1"], ("params.yaml: bm25.k2: unknown key, expected one of k1, b",)),
    "unknown section": (["bm52.k1=1"], ("params.yaml: bm52: unknown key; did you mean bm25",)),
    "wrong type": (["rounds.warmup.lr=fast"], ("params.yaml: rounds.warmup.lr: found 'fast'", "number")),
    "value out of range": (["bm25.b=2"], ("params.yaml: bm25.b: found 2", "less than or equal to 1")),
    "not a number": (["rounds.warmup.lr=.nan"], ("params.yaml: rounds.warmup.lr: found nan",)),
    "unknown choice": (["bm25.stemmer=klingon"], ("params.yaml: bm25.stemmer: found 'klingon'",)),
    "init that names nothing": (
        ["rounds.warmup.init=warm"],
        ("rounds.warmup.init: found 'warm', expected one of base, costa, init, taught, tower",),
    ),
    "negatives that name nothing": (["rounds.warmup.negatives=bm52"], ("rounds.warmup.negatives: found 'bm52', expected one of bm25",)),
    "mine of no round": (["mine.star.search=indexes"], ("mine.star: no round star; negatives are mined with a round: init, warmup",)),
    "reserved name": (
        ["rounds.base.init=init", "rounds.base.negatives=none"],
        ("rounds.base: the name base is reserved", "choose another"),
    ),
    "malformed name": (["rounds.A-1.init=init", "rounds.A-1.negatives=none"], ("rounds.A-1: found the name 'A-1', expected up to",)),
    "name that climbs": (["rounds.../x={init: base, negatives: none}"], ("--set rounds.../x",)),
    "cycle": (
        ["rounds.a={init: b, negatives: none}", "rounds.b={init: a, negatives: none}"],
        ("rounds.a: depends on itself: a -> b -> a; let one of them start from base",),
    ),
    "metric that is not measured": (["report.metric=P@7"], ("params.yaml: report.metric: found 'P@7', expected one of evaluate.measures",)),
    "unknown measure": (
        ["evaluate.measures=[nDCG@10, Foo@3]"],
        ("params.yaml: evaluate", "'Foo@3' is not a valid measure", "expected names like"),
    ),
    "setting without a value": (["bm25.b"], ("--set bm25.b: expected section.key=value",)),
    "setting that is not YAML": (["bm25.b=[1"], ("--set bm25.b=[1: the value is not YAML", "quote it")),
    "setting below a value": (["bm25.b.c=1"], ("--set bm25.b.c=1: bm25.b is not a section",)),
    "section taken away": (["rounds="], ("params.yaml: rounds: missing",)),
    "control character in a source": (['encoder.source="a\\0b"'], ("source 'a\\x00b': found a control character, expected none",)),
    "control character in a data set": (['dataset.source="irds:a\\0b"'], ("source 'a\\x00b': found a control character",)),
    "control character in another encoder": (['encoders.e.source="\\e[2J"'], ("found a control character, expected none; remove it",)),
    "cutoff of no rank": (["evaluate.measures=[nDCG@0]"], ("params.yaml: evaluate", "'nDCG@0' is not a valid measure (its cutoff")),
    "grade beyond all": (["evaluate.relevance=1001"], ("params.yaml: evaluate.relevance.dev: found 1001", "less than or equal to 1000")),
    "number beyond all": (["rounds.warmup.window=[1, 10000000000000000000000]"], ("rounds.warmup.window.1: found 1", "2147483647")),
    "seed beyond all": (["analyses.seen.seed=4294967296"], ("analyses.seen.seed: found 4294967296", "less than or equal to 4294967295")),
    "level near zero": (["report.alpha=1e-320"], ("params.yaml: report.alpha: found 1e-320", "greater than or equal to 0.000001")),
    "endless epochs": (["rounds.warmup.steps=null", "rounds.warmup.epochs=1e308"], ("rounds.warmup.epochs: found 1e+308",)),
    "factory that faiss does not know": (["adore.tower.index=PQ"], ("params.yaml: adore.tower.index: found 'PQ'", "faiss says")),
    "factory of another width": (["index.factory=PQ48"], ("index.factory: found PQ48 for vectors of width 128", "such as PQ32")),
    "more numbers than a vector has": (["rounds.taught.width=129"], ("rounds.taught.width: found 129, expected at most 128",)),
    "value that climbs": (["rounds.warmup.init=../base"], ("rounds.warmup.init: found '../base', expected one of",)),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(small: Any, case: str) -> None:
    settings, words = SETTINGS[case]
    assert_refused(small, lambda: small.retemper("run", *(part for setting in settings for part in ("--set", setting))), *words)


LOCK = "schema: '2.0'\nstages: {}\n"
FILES: dict[str, tuple[Arrange, tuple[str, ...]]] = {
    "params.yaml with merge conflict markers": (
        edit("params.yaml", lambda data: data.replace(b"bm25:\n", CONFLICT.format("bm25:\n").encode())),
        ("params.yaml:", "found a merge conflict marker", "keep one side"),
    ),
    "dvc.yaml with merge conflict markers": (
        edit("dvc.yaml", lambda data: CONFLICT.format("stages:\n").encode() + data),
        ("dvc.yaml:", "found a merge conflict marker", "keep one side"),
    ),
    "dvc.lock with merge conflict markers": (
        lambda p: p.write("dvc.lock", CONFLICT.format(LOCK)),
        ("dvc.lock:1:", "found a merge conflict marker", "keep one side"),
    ),
    "truncated dvc.lock": (lambda p: p.write("dvc.lock", "schema: '2.0'\nstages: {pre"), ("dvc.lock", "git checkout dvc.lock")),
    "dvc.lock that is no lock": (lambda p: p.write("dvc.lock", "[1, 2]\n"), ("dvc.lock", "git checkout dvc.lock")),
    "params.yaml that is not YAML": (lambda p: p.write("params.yaml", "dataset: {source: demo\nbase: }"), ("params.yaml:2: not YAML",)),
    "params.yaml that is not UTF-8": (edit("params.yaml", lambda data: data + b"# caf\xe9\n"), ("params.yaml: not UTF-8 at byte",)),
    "params.yaml that is a list": (lambda p: p.write("params.yaml", "[1]"), ("params.yaml: found a list, expected a mapping",)),
    "no params.yaml": (remove("params.yaml"), ("no params.yaml here; run retemper in the project's folder",)),
    "no dvc.yaml": (remove("dvc.yaml"), ("no dvc.yaml here; run retemper in the project's folder",)),
    "no git repository": (remove(".git"), ("not in a git repository, expected one", "git init")),
    "no commit": (
        all_of(remove(".git"), lambda p: subprocess.run(["git", "init", "--quiet", str(p.folder)], check=True)),
        ("no commit in its git repository", "git commit"),
    ),
}
for folder in ("data", ".retemper"):
    arrange_file = all_of(remove(folder), lambda p, folder=folder: p.write(folder, ""))
    FILES[f"file where {folder} is expected"] = (arrange_file, (f"{folder}: found a file, expected a folder", "move it away"))


@pytest.mark.parametrize("case", FILES)
def test_files_of_the_project(small: Any, case: str) -> None:
    arrange, words = FILES[case]
    arrange(small)
    assert_refused(small, lambda: small.retemper("run"), *words)


@pytest.fixture
def read_only(small: Any) -> Iterator[Any]:
    """The project on a file system that cannot be written, which holds for root too."""
    mount = [["mount", "--bind", small.folder, small.folder], ["mount", "-o", "remount,ro,bind", small.folder]]
    try:
        if os.geteuid() or any(subprocess.run(command, capture_output=True, check=False).returncode for command in mount):
            pytest.skip("only root may mount")
        yield small
    finally:  # the second command may have failed alone
        subprocess.run(["umount", small.folder], capture_output=True, check=False)


@pytest.mark.parametrize("arguments", [["run"], ["run", "--dry-run"], ["run", "--set", "bm25.b=0.5"]], ids=" ".join)
def test_no_permission_to_write(read_only: Any, arguments: list[str]) -> None:
    assert_refused(read_only, lambda: read_only.retemper(*arguments), "no permission to write here", "run as its owner")


def test_stages_without_permission_to_write(read_only: Any) -> None:
    for name in ("prepare", "base", "retrieve_bm25", "evaluate_bm25"):
        assert_refused(read_only, lambda name=name: read_only.stage(name), "Read-only file system", "give access")


# --- models: what an encoder's folder may lack --------------------------------------------------------------------------------

BASE = "data/encoders/base"


def tensors(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Arrange:
    """Change the tensors of a safetensors file."""
    return lambda project: project.write(name, save(change(load_file(project.folder / name)), metadata={"format": "pt"}))


def with_nan(tensors: dict[str, Any]) -> dict[str, Any]:
    name = min(name for name in tensors if name.endswith("query.weight"))
    tensors[name][0, 0] = float("nan")
    return tensors


def enlarge(tensors: dict[str, Any]) -> dict[str, Any]:
    name = max(name for name in tensors if name.endswith(("output.LayerNorm.weight", "output.LayerNorm.gamma")))
    tensors[name] *= 1e7
    return tensors


def use_pickle(project: Any) -> None:
    """Weights as PyTorch pickles them, and no others."""
    remove(f"{BASE}/model.safetensors")(project)
    project.write(f"{BASE}/pytorch_model.bin", b"\x80\x02}q\x00.")


MODELS: dict[str, tuple[Arrange, tuple[str, ...]]] = {
    "folder without tokenizer": (all_of(remove(f"{BASE}/tokenizer.json"), remove(f"{BASE}/tokenizer_config.json")), (BASE, "no tokenizer")),
    "only a pickle": (use_pickle, (BASE, "expected config.json and model.safetensors")),
    "no config": (remove(f"{BASE}/config.json"), (BASE, "no config.json", "expected a Hugging Face model folder")),
    "config that is not JSON": (lambda p: p.write(f"{BASE}/config.json", "{"), (BASE, "cannot be loaded")),
    "weights cut short": (edit(f"{BASE}/model.safetensors", lambda data: data[:10_000]), (BASE, "cannot be loaded")),
    "weights of another width": (
        edit(f"{BASE}/config.json", lambda data: data.replace(b'"hidden_size": 128', b'"hidden_size": 64')),
        (BASE, "model.safetensors does not fit config.json"),
    ),
    "NaN in weights": (tensors(f"{BASE}/model.safetensors", with_nan), (BASE, "query.weight contains NaN or infinity", "choose another")),
    "remote code": (
        edit(
            f"{BASE}/config.json",
            lambda data: json.dumps(json.loads(data) | {"model_type": "own", "auto_map": {"AutoModel": "m.M"}}).encode(),
        ),
        (BASE, "cannot be loaded"),
    ),
    "modules that are not ours": (
        edit(f"{BASE}/modules.json", lambda data: data.replace(b"Pooling", b"Sparse")),
        (f"{BASE}/modules.json: found Transformer, Sparse", "expected Transformer, Pooling"),
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_models(small: Any, case: str) -> None:
    arrange, words = MODELS[case]
    arrange(small)
    small.set("encoder.source", BASE)
    assert_refused(small, lambda: small.stage("base", "--encoder", "data/encoders/other"), *words)


def test_unknown_model_while_offline(small: Any) -> None:
    small.set("encoder.source", "nobody/no-such-model")
    assert_refused(small, lambda: small.stage("base"), "encoder nobody/no-such-model: not on this machine", "go online")


# --- artifacts: what a stage reads of another's ---------------------------------------------------------------------------------

SHARD, MANIFEST = "data/embeddings/warmup/00000.npy", "data/embeddings/warmup/manifest.json"
OWNERS, INDEX = "data/embeddings/warmup/owners.npy", "data/indexes/warmup/index.faiss"
TOKENS = "data/tokens/documents"


def put_index(width: int, rows: int) -> Arrange:
    def arrange(project: Any) -> None:
        index = faiss.IndexFlatIP(width)
        index.add(np.ones((rows, width), dtype=np.float32))
        project.write(INDEX, faiss.serialize_index(index).tobytes())

    return arrange


def set_number(value: float) -> Arrange:
    """Replace one number of the shard, and its digest in the manifest, as if encode had computed it."""

    def arrange(project: Any) -> None:
        import hashlib

        vectors = np.load(project.folder / SHARD, allow_pickle=False)
        vectors[5, 7] = value
        (project.folder / SHARD).unlink()
        np.save(project.folder / SHARD, vectors)
        manifest = json.loads(project.read(MANIFEST))
        manifest["digests"][0] = hashlib.sha256(project.read(SHARD)).hexdigest()
        project.write(MANIFEST, json.dumps(manifest))

    return arrange


def manifest(**fields: object) -> Arrange:
    return edit(MANIFEST, lambda data: json.dumps(json.loads(data) | fields).encode())


ARTIFACTS: dict[str, tuple[str, Arrange, tuple[str, ...]]] = {
    "shard with a flipped bit": ("retrieve@warmup", edit(SHARD, flip_bit), (f"{SHARD}: unreadable shard", "run encode again")),
    "shard cut short": (
        "retrieve@warmup",
        edit(SHARD, lambda data: data[:-100]),
        (f"{SHARD}: unreadable shard", "run encode again"),
    ),
    "shard that is empty": ("index@warmup", lambda p: p.write(SHARD, b""), (f"{SHARD}: unreadable shard", "run encode again")),
    "shard that is gone": ("index@warmup", remove(SHARD), (f"{SHARD}: unreadable shard", "run encode again")),
    "NaN in embeddings": ("retrieve@warmup", set_number(float("nan")), ("vectors of rows 0 to 59: found NaN or infinity", "encode")),
    "manifest cut short": ("retrieve@warmup", edit(MANIFEST, lambda data: data[:40]), (f"{MANIFEST}: not JSON", "run again")),
    "manifest that is gone": ("retrieve@warmup", remove(MANIFEST), (f"{MANIFEST}: not found", "run the stage that makes it")),
    "manifest of other rows": (
        "index@warmup",
        manifest(rows=61),
        (f"{MANIFEST}: shards have 60 rows, expected 61", "encode again"),
    ),
    "manifest of another width": ("index@warmup", manifest(width=64), (f"{SHARD}: found (60, 128) float32, expected (60, 64)",)),
    "manifest with other fields": ("index@warmup", manifest(colour="red"), (f"{MANIFEST}: invalid manifest", "run encode again")),
    "manifest that is a list": ("index@warmup", lambda p: p.write(MANIFEST, "[]"), (f"{MANIFEST}: invalid manifest", "run encode again")),
    "manifest of words": ("index@warmup", manifest(shards=["x"]), (f"{MANIFEST}: invalid manifest", "run encode again")),
    "owners cut short": ("retrieve@warmup", edit(OWNERS, lambda data: data[:50]), (f"{OWNERS}: unreadable", "run encode again")),
    "owners of other rows": ("retrieve@warmup", lambda p: p.write(OWNERS, npy(np.arange(9, dtype=np.int32))), (f"{OWNERS}: found 9 rows",)),
    "weights whose width does not fit": (
        "retrieve@warmup",
        all_of(remove("data/embeddings/warmup"), lambda p: narrow(p, 64)),
        ("data/embeddings/warmup: width 64, but the encoder has 128", "encode again"),
    ),
    "faiss index of another width": ("mine@warmup", put_index(64, 60), (f"{INDEX}: found width 64, expected 128", "index again")),
    "faiss index of other rows": ("mine@warmup", put_index(128, 9), (f"{INDEX}: found vectors 9, expected 60", "index again")),
    "faiss index cut short": (
        "mine@warmup",
        edit(INDEX, lambda data: data[:200]),
        (f"{INDEX}: unreadable faiss index", "index again"),
    ),
    "file that is no faiss index": ("mine@warmup", lambda p: p.write(INDEX, "no"), (f"{INDEX}: unreadable faiss index", "index again")),
    "unknown kind of index": ("index@warmup", lambda p: p.set("index.factory", "Falt"), ("params.yaml: index.factory: found 'Falt'",)),
    "corpus that is no table": (
        "tokenize",
        lambda p: p.write("data/corpus/documents.parquet", "x"),
        ("documents.parquet: cannot be read",),
    ),
    "corpus cut short": ("bm25", edit("data/corpus/documents.parquet", lambda data: data[:99]), ("documents.parquet: cannot be read",)),
    "corpus that is gone": ("bm25", remove("data/corpus/documents.parquet"), ("documents.parquet: not found", "run the stage")),
    "tokens cut short": ("encode@warmup", edit(f"{TOKENS}/tokens.bin", lambda data: data[:-2]), (f"{TOKENS}/tokens.bin:", "tokenize")),
    "tokens without facts": ("encode@warmup", lambda p: p.write(f"{TOKENS}/meta.json", "{}"), (f"{TOKENS}: incomplete", "tokenize")),
    "tokenizer longer than the model": (
        "tokenize",
        lambda p: p.set("tokenize.document_length", 513),
        ("params.yaml: tokenize.document_length: found 513, expected at most 512",),
    ),
    "no training queries": (
        "train@warmup",
        lambda p: (remove(TRAIN)(p), p.stage("prepare"), p.stage("tokenize"), p.stage("bm25")),
        ("data/corpus/qrels/train.parquet: no training query has a relevant document", "steps: 0"),
    ),
    "metric that evaluate did not compute": (
        "report",
        lambda p: p.set("report.metric", "P@7"),
        ("params.yaml: report.metric: found 'P@7', expected one of evaluate.measures",),
    ),
    "device that is not there": ("train@warmup", lambda p: p.write("runtime.yaml", "device: cuda:7\n"), ("runtime.yaml: device cuda:7",)),
    "loss that is not a number": (
        "train@warmup",
        lambda p: p.set("rounds.warmup.lr", 1e30),
        ("train warmup (cpu, float32): step 1: loss nan", "decrease lr", "closer look: .retemper/scratch/train-warmup/"),
    ),
    "numbers too large for float16": (
        "encode@warmup",
        all_of(lambda p: p.set("encode.dtype", "float16"), tensors("data/encoders/warmup/model.safetensors", enlarge)),
        ("data/encoders/warmup: document d00 (row 0 of shard 0) gives NaN or infinity as float16", "retrain that model"),
    ),
    "unknown key of runtime.yaml": ("train@warmup", lambda p: p.write("runtime.yaml", "gpu: 1\n"), ("runtime.yaml: gpu: unknown key",)),
}


def npy(array: Any) -> bytes:
    import io

    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def narrow(project: Any, width: int) -> None:
    """Embeddings of another width, valid in themselves."""
    from tasks.core.retrieval.embeddings import Manifest, write_manifest

    folder = project.folder / "data/embeddings/warmup"
    folder.mkdir()
    np.save(folder / "00000.npy", np.ones((60, width), dtype=np.float32))
    write_manifest(folder, Manifest(60, width, "float32", [60], "", "", 24, ""), project.folder / TOKENS)


@pytest.mark.parametrize("case", ARTIFACTS)
def test_artifacts(small: Any, case: str) -> None:
    name, arrange, words = ARTIFACTS[case]
    arrange(small)
    assert_refused(small, lambda: small.stage(name), *words)


def test_the_checkpoint_before_a_loss_that_is_not_a_number_is_whole(small: Any) -> None:
    small.set("rounds.warmup.lr", 1e30)
    small.set("rounds.warmup.steps", 6)
    result = small.stage("train@warmup")
    path = result.err[result.err.rindex(".retemper") : result.err.rindex(")")]
    step = int(result.err.split(": step ")[1].split(":")[0])
    with safe_open(small.folder / path, framework="pt") as file:
        assert file.metadata()["step"] == str(step)
        weights = [file.get_tensor(name) for name in file.keys() if name.startswith("weights.")]  # noqa: SIM118
    assert weights and all(bool(weight.isfinite().all()) for weight in weights)


def test_a_harmed_shard_of_the_store_is_computed_anew(small: Any) -> None:
    before = folder_digest(small.folder / "data/embeddings/warmup")
    shards = sorted((small.folder / ".retemper/shards").glob("*.npy"))
    for shard in shards:
        edit(shard.relative_to(small.folder).as_posix(), flip_bit)(small)
    assert shards and small.stage("encode@warmup").status == 0
    assert folder_digest(small.folder / "data/embeddings/warmup") == before
