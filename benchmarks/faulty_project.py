"""A project for faults to strike: real git, DVC and flow, four small stages over the product's own file layer.

Its stages write by `new_folder`, `write_table`, `seal`, `fit` with a checkpoint at every step, and the store of shards. Three ways
to start: `new` (nothing was run), `changed` (all was run, then the training's parameter changed; a remote takes the results), `cloned`
(a colleague has run it: the results are at a remote); the first two also up to one stage alone. Runs are forks of one prepared
Python, which has the library of faulty_files.py in front of its C library.
"""

import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ruamel.yaml import YAML
from workspace import OBJECT, ROOT, start_server

from flows.process import fork_server
from flows.process.prepared import DVC, FORKS, MODELS, TABLES
from tests.conftest import COMMAND
from tests.forks import retemper

ENTRIES = {
    "prepare": """
import json, sys
from pathlib import Path
import pyarrow as pa
from tasks.core.stage.entry import stage
from tasks.core.files import new_folder, write_json
from tasks.core.tables.parquet import write_table
with stage():
    first = json.loads(Path("data/params.json").read_text())["first"]
    with new_folder(Path("data/corpus")) as folder:
        schema = pa.schema([("id", pa.string()), ("text", pa.string())])
        rows = [(f"d{n}", f"{first} {n} " * 40) for n in range(200)]
        write_table(folder / "documents.parquet", schema, [pa.table(dict(zip(("id", "text"), zip(*rows))), schema)])
        (folder / "qrels").mkdir()
        for split in ("train", "dev"):
            (folder / "qrels" / f"{split}.tsv").write_text("".join(f"q{n}\\td{n}\\t1\\n" for n in range(400)))
        write_json(folder / "stats.json", {"documents": len(rows), "splits": {"train": {"queries": 9}, "dev": {"queries": 9}}})
""",
    "train": """
import hashlib, json, sys, zlib
from pathlib import Path
import numpy as np
import torch
from safetensors.torch import save_file
from tasks.core.stage.entry import stage
from tasks.core.files import new_folder, write_json
from tasks.core.stage.scratch import is_sealed, mark_finished, scratch_folder, seal, work_digest
from tasks.core.training.checkpoints import save_state
from tasks.core.training.loop import Journal, Schedule, Steps, fit
from tasks.core.training.optimizers import make_optimizer
from tasks.encode.shards import ShardStore
name = sys.argv[1]
with stage():
    value = json.loads(Path("data/params.json").read_text())["rounds"][name]["value"]
    torch.manual_seed(zlib.crc32(f"{name} {value}".encode()))
    module = torch.nn.Linear(64, 16)
    def backward(step):
        torch.manual_seed(step)
        loss = module(torch.randn(8, 64)).pow(2).mean()
        loss.backward()
        return {"loss": float(loss.detach())}
    scratch = scratch_folder("train", work_digest(Path("data/corpus"), name, value))
    with new_folder(scratch / "curves") as curves, new_folder(Path("data/encoders") / name) as folder:
        optimizer = make_optimizer("adamw", module, 1e-2, 0.01)
        fit(module, optimizer, Steps.undrawn(backward), Schedule(8, 0.1, 1.0), Journal(name, scratch, curves, 0))
        save_file({n: p.detach().contiguous() for n, p in module.named_parameters()}, folder / "model.safetensors")
        save_state(folder, 8, module, optimizer)
    piece = scratch / "piece.txt"
    if not is_sealed(piece):
        piece.write_text(f"{name} {value} " * 500)
        seal(piece)
    Path(".retemper/shards").mkdir(parents=True, exist_ok=True)
    store, weights = ShardStore(Path(".retemper/shards"), 1 << 20), module.weight.detach().numpy()
    with new_folder(Path("data/embeddings") / name) as folder:
        for shard in range(3):
            digest = hashlib.sha256(weights.tobytes() + bytes([shard])).hexdigest()
            to = folder / f"{shard}.npy"
            if not store.fetch(digest, to):
                vectors = np.tanh((np.arange(640, dtype=np.float32) + shard * 640).reshape(-1, 64) / 999 @ weights.T)
                store.keep(digest, vectors, b"rows" * 50)
                np.save(to, vectors)
        (folder / "piece.txt").write_bytes(piece.read_bytes())
        write_json(folder / "shards.json", {"shards": 3})
    store.forget("", 1e9)
    mark_finished(scratch)
""",
    "evaluate": """
import sys
from pathlib import Path
import numpy as np
from tasks.core.stage.entry import stage
from tasks.core.files import write_json
name = sys.argv[1]
with stage():
    total = sum(float(np.load(path).astype(np.float64).sum()) for path in sorted(Path("data/embeddings", name).glob("*.npy")))
    write_json(Path("data/metrics") / f"{name}.json", {"dev": {"nDCG@10": round(abs(total) % 1, 6)}})
""",
    "report": """
from pathlib import Path
from tasks.core.stage.entry import stage
from tasks.core.files import new_folder, read_json
with stage(), new_folder(Path("data/report")) as folder:
    lines = [f"{path.stem} {read_json(path)}" for path in sorted(Path("data/metrics").glob("*.json"))]
    (folder / "table.txt").write_text("\\n".join(lines) + "\\n")
    (folder / "report.html").write_text("<html><body><main>" + "".join(f"<p>{line}</p>" for line in lines) + "</main></body></html>")
""",
}
GRAPH = """
stages:
  prepare:
    cmd: python -m tasks.prepare
    params: [{data/params.json: [first]}]
    outs: [data/corpus]
  train:
    foreach: ${rounds}
    do:
      cmd: python -m tasks.train ${key}
      deps: [data/corpus]
      params: [{data/params.json: ["rounds.${key}"]}]
      outs: ["data/encoders/${key}", "data/embeddings/${key}"]
      meta: {slot: device}
  evaluate:
    foreach: ${rounds}
    do:
      cmd: python -m tasks.evaluate ${key}
      deps: ["data/embeddings/${key}"]
      metrics: ["data/metrics/${key}.json"]
  report:
    cmd: python -m tasks.report
    deps: [data/metrics]
    outs: [data/report]
"""
STARTS = {"prepare": 2, "train": 2, "cloned": 2, "new": 1, "changed": 1}  # and their shares of the schedules
HALF_WRITTEN = (".partial", ".tmp")
PASSING = (".git/", ".dvc/cache/", "remote/", ".retemper/logs/", ".retemper/environments/", ".retemper/shards/")  # overwritten, or for gc
LONGEST = 300.0
GONE_SECONDS = 5.0


@contextmanager
def prepared(folder: Path, library: Path) -> Iterator[dict[str, str]]:
    """The environment of all runs: a Prefect server, and a prepared Python with `library` in it."""
    (folder / "server").mkdir(parents=True)
    (folder / "logging.yaml").write_text("{version: 1, disable_existing_loggers: false}")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "DVC", "GIT", "RETEMPER"))}
    git = {f"GIT_{role}_{field}": "toy@example.com" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    environment = inherited | git | {
        "DVC_GLOBAL_CONFIG_DIR": str(folder / "dvc"),
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(folder / "site"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_LOGGING_SETTINGS_PATH": str(folder / "logging.yaml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    name = f"retemper-faults-{secrets.token_hex(8)}"
    modules = [*DVC, *TABLES, *COMMAND, *MODELS]
    prefect = start_server(folder / "server")
    server = subprocess.Popen(
        [sys.executable, fork_server.__file__, name, *modules], env=environment | {"LD_PRELOAD": str(library)}, cwd=folder
    )
    try:
        assert prefect.stdout
        url = prefect.stdout.readline().strip()
        yield environment | {FORKS: name, "LD_PRELOAD": str(library), "PREFECT_API_URL": url}
    finally:
        server.kill()
        prefect.kill()
        server.wait()
        prefect.wait()


class Project:
    """A folder in which the toy project is, and `retemper` in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str], target: str = "report") -> None:
        self.folder, self.environment, self.target = folder.resolve(), dict(environment), target

    def lay_out(self) -> None:
        """Write the project and commit it; nothing is run."""
        before_ours = "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"  # the rest is the product's
        files = {
            "tasks/__init__.py": before_ours,
            "dvc.yaml": GRAPH,
            "data/.gitignore": "/*\n!/.gitignore\n",
            ".gitignore": ".retemper/\nremote/\n",
        }
        for name, text in ENTRIES.items():
            files |= {f"tasks/{name}/__init__.py": before_ours, f"tasks/{name}/__main__.py": text}
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        self.set(1)
        for words in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
            self.command(*words)
        self.commit()

    def set(self, value: int) -> None:
        (self.folder / "params.yaml").write_text(f"first: one\nrounds:\n  a: {{init: base, value: {value}}}\n")

    def command(self, *words: str) -> None:
        environment = {name: value for name, value in self.environment.items() if name != "LD_PRELOAD"}
        subprocess.run(words, cwd=self.folder, env=environment, check=True, capture_output=True)

    def commit(self) -> None:
        self.command("git", "add", "--all")
        self.command("git", "commit", "--quiet", "--message", "toy")

    def copy_to(self, folder: Path) -> "Project":
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder, self.environment, self.target)

    def run(self, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """`retemper run` of the target."""
        return retemper(["--toy", "run", self.target], self.folder, self.environment | dict(extra or {}))

    def processes(self) -> dict[int, str]:
        """Live processes in the folder: their commands by number."""
        commands = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(self.folder):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if command and "State:\tZ" not in (entry / "status").read_text():
                        commands[int(entry.name)] = command
        return commands

    def end(self, seconds: float) -> list[str]:
        """Wait until no process is left; after `seconds`, kill those that are, and return their commands."""
        deadline = time.monotonic() + seconds
        while remaining := self.processes():
            if time.monotonic() > deadline:
                for number in remaining:
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                if seconds:
                    return list(remaining.values())
            time.sleep(0.01)
        return []

    def outs(self) -> dict[str, str]:
        """Digest by path of every out of dvc.lock."""
        stages = YAML(typ="safe", pure=True).load((self.folder / "dvc.lock").read_text())["stages"]
        return {out["path"]: out["md5"] for stage in stages.values() for out in stage["outs"]}

    def wrong_objects(self) -> list[str]:
        """Objects of the cache and the remote that do not have the content that their name says."""
        wrong = []
        for place in (self.folder / ".dvc/cache", self.folder / "remote"):
            for path in sorted(filter(Path.is_file, place.glob("files/md5/*/*"))):
                name = path.relative_to(place).as_posix()
                if OBJECT.fullmatch(name) and md5(path) != path.parent.name + path.stem:
                    wrong.append(f"{place.name}/{name} holds {path.stat().st_size} bytes of {md5(path)}")
        return wrong

    def wrong_outs(self) -> list[str]:
        """Outs in the folder that are not what dvc.lock says."""
        wrong = []
        for name, digest in self.outs().items():
            path, cached = self.folder / name, self.folder / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
            if not digest.endswith(".dir"):
                is_same = path.is_file() and md5(path) == digest
            else:
                cached_files = (
                    {entry["relpath"]: entry["md5"] for entry in json.loads(cached.read_text())} if cached.exists() else {"?": ""}
                )
                is_same = path.is_dir() and {p.relative_to(path).as_posix(): md5(p) for p in path.rglob("*") if p.is_file()} == cached_files
            if not is_same:
                wrong.append(name)
        return wrong

    def half_written(self) -> list[str]:
        """Temporary files. Those that a killed DVC leaves in the cache are for `retemper gc`, those at the remote for whoever owns it."""
        names = [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.name.endswith(HALF_WRITTEN)]
        return sorted(name for name in names if not name.startswith(PASSING))


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def starts(folder: Path, environment: Mapping[str, str]) -> dict[str, Project]:
    """A project for each of STARTS, to be copied; `prepare` is `new` up to that stage, `train` is `changed` up to that.

    The remote lies in the project, so that faults strike it too; it is added elsewhere, since `remote add` refuses such a place.
    """
    new = Project(folder / "new", environment)
    new.lay_out()
    changed = new.copy_to(folder / "changed")
    remote, config = folder / "remote", changed.folder / ".dvc/config"
    changed.command(sys.executable, "-m", "flows.cli", "remote", "add", "team", str(remote))
    remote.rename(changed.folder / "remote")
    config.write_text(config.read_text().replace(str(remote), "../remote"))  # also right in a copy
    changed.commit()
    run(changed)
    cloned = changed.copy_to(folder / "cloned")
    for name in (".retemper", ".dvc/cache", ".dvc/tmp"):
        shutil.rmtree(cloned.folder / name)
    cloned.command("git", "add", "dvc.lock")
    cloned.commit()
    cloned.command("git", "clean", "-fdxq", "data")
    changed.set(2)
    changed.commit()
    parts = {"prepare": Project(new.folder, environment, "prepare"), "train": Project(changed.folder, environment, "train@a")}
    return parts | {"cloned": cloned, "new": new, "changed": changed}


def run(project: Project) -> None:
    process = project.run()
    if process.returncode:
        raise SystemExit(f"an undisturbed run ended with status {process.returncode}\n{process.stdout}\n{process.stderr}")
