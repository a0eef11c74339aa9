"""A toy project: a real git repository, real DVC and Prefect, and stages that are tiny scripts."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CLI = "import sys; from flows.cli import main; sys.exit(main(check=lambda: None))"

# step.py OUT VALUE IN...: writes VALUE and what it read. acts.json, which no stage tracks, says what else it does: `fail` (a user's
# mistake), `crash`, `hang` (at half way, if progress is asked for), `linger`, `sleep SECONDS`, or
# `meet NAME` (waits for another stage to begin).
STEP = """
import json, os, sys, time
from pathlib import Path
from ruamel.yaml import YAML
out, value, *reads = sys.argv[1:]
started = time.time()
name = Path(out).parent.name + "/" + Path(out).stem
print("at work on", name)
at_work = Path(".at_work") / name.replace("/", "_")
at_work.parent.mkdir(exist_ok=True)
at_work.write_text(str(os.getpid()))
act = json.loads(Path("acts.json").read_text()).get(name, "") if Path("acts.json").exists() else ""
if act == "fail":
    print("retemper: corpus.tsv:7: found 2 columns, expected 3; add the tab", file=sys.stderr)
    sys.exit(2)
if act == "crash":
    raise RuntimeError("boom")
if act == "hang":
    if os.environ.get("RETEMPER_LIVE"):
        print("\\rhalf way", file=sys.stderr)
    time.sleep(120)
if act == "linger":
    time.sleep(2)
if act.startswith("sleep "):
    time.sleep(float(act[6:]))
if act.startswith("meet "):
    other = Path(".at_work") / act[5:].replace("/", "_")
    while not other.exists():
        if time.time() > started + 60:
            sys.exit("alone")
        time.sleep(0.02)
def text(path):
    return "".join(text(below) for below in sorted(path.iterdir())) if path.is_dir() else path.read_text()
Path(out).parent.mkdir(parents=True, exist_ok=True)
made = value + "(" + ",".join(json.dumps(text(Path(read))) for read in reads) + ")"
Path(out).write_text(json.dumps({"dev": {"nDCG@10": 0.5, "made": made}}) if out.endswith("json") else made)
with open("times.log", "a") as log:
    log.write(json.dumps([name, started, time.time()]) + "\\n")
"""

GRAPH = """
stages:
  prepare:
    cmd: python step.py data/corpus ${first}
    deps: [step.py]
    params: [first]
    outs: [data/corpus]
  unused:
    cmd: python step.py data/unused ${first} data/corpus
    deps: [data/corpus]
    outs: [data/unused]
  train:
    foreach: ${rounds}
    do:
      cmd: python step.py data/encoders/${key} ${item.value} data/corpus
      deps: [data/corpus]
      params: ["rounds.${key}"]
      outs: ["data/encoders/${key}"]
      meta: {slot: device}
  evaluate:
    foreach: ${rounds}
    do:
      cmd: python step.py data/metrics/${key}.json evaluated data/encoders/${key}
      deps: ["data/encoders/${key}"]
      metrics: ["data/metrics/${key}.json"]
  report:
    cmd: python step.py data/report reported data/metrics
    deps: [data/metrics]
    outs: [data/report]
"""


@dataclass
class Toy:
    """The project's folder, and the command line in it."""

    folder: Path
    environment: dict[str, str]

    def rounds(self, **values: str) -> None:
        lines = [f"  {name}: {{value: {value}}}" for name, value in values.items()]
        (self.folder / "params.yaml").write_text("\n".join(["first: one", "rounds:", *lines, ""]))

    def acts(self, **acts: str) -> None:
        (self.folder / "acts.json").write_text(json.dumps({name.replace("__", "/"): act for name, act in acts.items()}))

    def start(self, *arguments: str, script: str = CLI) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, script: str = CLI) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, script=script)
        try:
            out, err = process.communicate(timeout=170)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def run(self, *arguments: str) -> dict[str, str]:
        """`retemper run`, which must succeed; the state of every stage."""
        done = self.call("run", *arguments)
        assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return states(done.stdout)

    def command(self, *words: str) -> None:
        subprocess.run(words, cwd=self.folder, env=self.environment, check=True, capture_output=True)

    def at_work(self, name: str, seconds: float = 60) -> int:
        """Wait for a stage to be at work; its process id."""
        path = self.folder / ".at_work" / name.replace("/", "_")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if path.exists() and (text := path.read_text()):
                return int(text)
            time.sleep(0.05)
        raise AssertionError(f"{name} never began")

    def times(self) -> dict[str, tuple[float, float]]:
        lines = (self.folder / "times.log").read_text().splitlines()
        return {name: (start, end) for name, start, end in map(json.loads, lines)}

    def processes(self) -> list[str]:
        """Command lines of live processes at work in the folder."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and int(entry.name) != os.getpid() and (entry / "cwd").readlink() == self.folder:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if command and "State:\tZ" not in (entry / "status").read_text():
                        found.append(command)
            except OSError:
                continue
        return found

    def gone(self, seconds: float) -> bool:
        """Whether no process is at work in the folder any more, `seconds` from now at the latest."""
        deadline = time.monotonic() + seconds
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def states(output: str) -> dict[str, str]:
    """State by stage, from the table at the end of a run."""
    return dict(re.findall(r"^(\S+)\s+(Ran|Cached|Failed|Skipped)\b", output[output.rindex("\nstage ") :], re.MULTILINE))


@pytest.fixture(scope="session")
def executed() -> Callable[[dict[str, str]], set[str]]:
    return lambda found: {name for name, state in found.items() if state == "Ran"}


@pytest.fixture(scope="session")
def read_states() -> Callable[[str], dict[str, str]]:
    return states


@pytest.fixture(scope="session")
def toy_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with no settings of the user's, and one Prefect home for the session."""
    home = tmp_path_factory.mktemp("home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "DVC", "GIT"))}
    own = {"DVC_GLOBAL_CONFIG_DIR": str(home / "dvc"), "DVC_NO_ANALYTICS": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    git = {f"GIT_{who}_{what}": "toy@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    root = Path(__file__).resolve().parents[2]
    return kept | own | git | {"PREFECT_HOME": str(home / "prefect"), "PYTHONPATH": str(root), "HOME": str(home)}


@pytest.fixture(scope="session")
def server_url(toy_environment: dict[str, str]) -> Iterator[str]:
    """One Prefect server for all tests that do not mind: it takes seconds to start."""
    script = "import flows.server as s; server = s.Server(); server.wait(); print(server.url, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=toy_environment,
        cwd=toy_environment["HOME"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL)  # the server goes with it
    process.wait()


@pytest.fixture
def toy(tmp_path: Path, toy_environment: dict[str, str]) -> Toy:
    """A toy project of rounds a and b, nothing run yet, every change committed."""
    return lay_out(tmp_path / "toy", toy_environment)


def lay_out(folder: Path, environment: dict[str, str]) -> Toy:
    (folder / "data").mkdir(parents=True)
    project = Toy(folder, environment)
    (folder / "step.py").write_text(STEP)
    (folder / "dvc.yaml").write_text(GRAPH)
    (folder / "data" / ".gitignore").write_text("/*\n!/.gitignore\n")
    (folder / ".gitignore").write_text(".retemper/\n.at_work/\ntimes.log\nacts.json\n")
    project.rounds(a="1", b="1")
    project.acts()
    project.command("git", "init", "--quiet")
    project.command(sys.executable, "-m", "dvc", "init", "--quiet")
    project.command("git", "add", ".")
    project.command("git", "commit", "--quiet", "-m", "toy")
    return project


@pytest.fixture
def served(toy: Toy, server_url: str) -> Toy:
    """The toy project, with Prefect's server set."""
    return Toy(toy.folder, toy.environment | {"PREFECT_API_URL": server_url})


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory, toy_environment: dict[str, str], server_url: str) -> Toy:
    project = lay_out(tmp_path_factory.mktemp("finished") / "toy", toy_environment | {"PREFECT_API_URL": server_url})
    project.rounds(a="1", b="2")
    project.command("git", "commit", "--quiet", "-am", "two rounds")
    project.run()
    return project


@pytest.fixture
def finished(_finished: Toy, tmp_path: Path) -> Toy:
    """A copy of a toy project whose rounds a and b, which differ, have been run; dvc.lock is not committed."""
    shutil.copytree(_finished.folder, tmp_path / "toy", symlinks=True)
    return Toy(tmp_path / "toy", _finished.environment)
