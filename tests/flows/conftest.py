"""A toy project: a real git repository, real DVC and Prefect, and stages that are tiny scripts."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.forks import retemper

CLI = "import sys; from flows.cli.main import main; sys.exit(main(check=lambda: None))"

# step.py OUT VALUE IN...: writes VALUE and what it read. acts.json, which no stage tracks, says what else it does: `fail` (a user's
# mistake), `crash`, `hang` (at half way, if progress is asked for), `linger`, `sleep SECONDS`, or
# `meet NAME` (waits for another stage to begin).
STEP = """
import json, os, sys, time
from pathlib import Path
out, value, *reads = sys.argv[1:]
started = time.time()
name = Path(out).parent.name + "/" + Path(out).stem
print("at work on", name)
at_work = Path(".at_work") / name.replace("/", "_")
at_work.parent.mkdir(exist_ok=True)
at_work.write_text(str(os.getpid()))
if note := os.environ.get("RETEMPER_RECORD"):
    Path(note).write_text(json.dumps({"threads": 1}))
act = json.loads(Path("acts.json").read_text()).get(name, "") if Path("acts.json").exists() else ""
if act == "fail":
    line = "corpus.tsv:7: found 2 columns, expected 3; add the tab"
    print(f"retemper: {line}", file=sys.stderr)
    Path(os.environ["RETEMPER_PROBLEM"]).write_text(json.dumps([{"kind": "invalid", "message": line}]))
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
        if time.time() > started + 240:
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
    params: [{data/params.json: [first]}]
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
      params: [{data/params.json: ["rounds.${key}"]}]
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

    def set_rounds(self, first: str = "one", **values: str) -> None:
        lines = [f"  {name}: {{value: {value}}}" for name, value in values.items()]
        (self.folder / "params.yaml").write_text("\n".join([f"first: {first}", "rounds:", *lines, ""]))

    def set_acts(self, **acts: str) -> None:
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

    def call(self, *arguments: str, script: str = "") -> subprocess.CompletedProcess[str]:
        """The command, or a `script` in its place, in a process of its own."""
        if not script:
            return retemper(["--toy", *arguments], self.folder, self.environment)
        process = self.start(*arguments, script=script)
        try:
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def run(self, *arguments: str) -> dict[str, str]:
        """`retemper run`, which must succeed; the state of every stage."""
        result = self.call("run", *arguments)
        assert result.returncode == 0, f"status {result.returncode}\n{result.stdout}\n{result.stderr}"
        return states(result.stdout)

    def command(self, *words: str) -> None:
        subprocess.run(words, cwd=self.folder, env=self.environment, check=True, capture_output=True)

    def wait_for_start(self, name: str, seconds: float = 300) -> int:
        """Wait for a stage to start; returns its process id."""
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
        """Command lines of live processes in the folder."""
        commands = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and int(entry.name) != os.getpid() and (entry / "cwd").readlink() == self.folder:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if command and "State:\tZ" not in (entry / "status").read_text():
                        commands.append(command)
            except OSError:
                continue
        return commands

    def wait_for_end(self, seconds: float = 30) -> bool:
        """Whether all processes in the folder end within `seconds`."""
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
    return lambda stages: {name for name, state in stages.items() if state == "Ran"}


@pytest.fixture(scope="session")
def states_of() -> Callable[[str], dict[str, str]]:
    return states


@pytest.fixture(scope="session")
def toy_environment(
    tmp_path_factory: pytest.TempPathFactory, prepared_for_toys: dict[str, str], prefect: tuple[str, Path]
) -> dict[str, str]:
    """An environment without the user's settings; one Prefect home and one prepared Python for the session."""
    home = tmp_path_factory.mktemp("home")
    copy_database(prefect[1], home / "prefect")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "DVC", "GIT"))}
    dvc = {"DVC_GLOBAL_CONFIG_DIR": str(home / "dvc"), "DVC_NO_ANALYTICS": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    git = {f"GIT_{role}_{field}": "toy@example.com" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    root = Path(__file__).resolve().parents[2]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `python` is ours, with no environment activated too
    return (
        inherited
        | dvc
        | git
        | prepared_for_toys
        | {"PATH": path, "PREFECT_HOME": str(home / "prefect"), "PYTHONPATH": str(root), "HOME": str(home)}
    )


@pytest.fixture(scope="session")
def server_url(prefect: tuple[str, Path]) -> str:
    """One Prefect server for all tests that can share it."""
    return prefect[0]


@pytest.fixture(scope="session")
def _toy_template(tmp_path_factory: pytest.TempPathFactory, toy_environment: dict[str, str]) -> Toy:
    folder = tmp_path_factory.mktemp("laid_out") / "toy"
    (folder / "data").mkdir(parents=True)
    project = Toy(folder, toy_environment)
    (folder / "step.py").write_text(STEP)
    (folder / "dvc.yaml").write_text(GRAPH)
    (folder / "data" / ".gitignore").write_text("/*\n!/.gitignore\n")
    (folder / ".gitignore").write_text(".retemper/\n.at_work/\ntimes.log\nacts.json\n")
    project.set_rounds(a="1", b="1")
    project.set_acts()
    project.command("git", "init", "--quiet")
    project.command(sys.executable, "-m", "dvc", "init", "--quiet")
    project.command("git", "add", ".")
    project.command("git", "commit", "--quiet", "-m", "toy")
    return project


@pytest.fixture
def toy(_toy_template: Toy, tmp_path: Path) -> Toy:
    """A toy project of rounds a and b, nothing run yet, every change committed."""
    return copy_of(_toy_template, tmp_path / "toy")


def copy_database(home: Path, new_home: Path) -> None:
    """Copy the database of the Prefect server at `home`, which may be running, to `new_home`: creating one takes 5 s of CPU."""
    new_home.mkdir(parents=True)
    with closing(sqlite3.connect(home / "prefect.db")) as source, closing(sqlite3.connect(new_home / "prefect.db")) as target:
        source.backup(target)


def copy_of(project: Toy, folder: Path, **environment: str) -> Toy:
    shutil.copytree(project.folder, folder, symlinks=True)
    return Toy(folder, project.environment | environment)


@pytest.fixture
def reduced_toy(toy: Toy) -> Toy:
    """The toy project without round b, whose entry DVC keeps in dvc.lock; committed, nothing run."""
    toy.set_rounds(a="1")
    (toy.folder / "dvc.lock").write_text("""\
schema: '2.0'
stages:
  evaluate@a: {cmd: x, outs: [{path: data/metrics/a.json, md5: 0a}]}
  evaluate@b: {cmd: x, outs: [{path: data/metrics/b.json, md5: 0b}]}
  report: {cmd: x, deps: [{path: data/metrics, md5: 0c.dir}], outs: [{path: data/report, md5: 0d}]}
""")
    toy.command("git", "add", ".")
    toy.command("git", "commit", "--quiet", "-m", "b was removed")
    return toy


@pytest.fixture
def served_toy(toy: Toy, server_url: str) -> Toy:
    """The toy project, with Prefect's server set."""
    return Toy(toy.folder, toy.environment | {"PREFECT_API_URL": server_url})


@pytest.fixture(scope="session")
def _finished_template(_toy_template: Toy, tmp_path_factory: pytest.TempPathFactory, server_url: str) -> Toy:
    project = copy_of(_toy_template, tmp_path_factory.mktemp("finished") / "toy", PREFECT_API_URL=server_url)
    project.set_rounds(a="1", b="2")
    project.command("git", "commit", "--quiet", "-am", "two rounds")
    project.run()
    return project


@pytest.fixture
def finished_toy(_finished_template: Toy, tmp_path: Path) -> Toy:
    """A copy of a toy project whose two different rounds, a and b, have been run; dvc.lock is not committed."""
    return copy_of(_finished_template, tmp_path / "toy")


# A second toy project, for retrainings: the project's own parameters and sources, stages that take no time. A document's text is a
# number; what a model learns is their mean, and what it scores on query i is that plus i / 1000. So the data alone decides which
# model is better.
RETRAINING_STAGES = {
    "prepare": """
import json, sys, shutil
from pathlib import Path
from tasks.core.stage.entry import stage
out = Path("data/corpus")
source = Path(json.loads(Path("data/source.json").read_text())["dataset"]["source"].removeprefix("beir:"))
with stage():
    shutil.copytree(source, out)
""",
    "train": """
import json, os, shutil, sys, time
from pathlib import Path
out = Path(sys.argv[1])
Path("data/indexes").mkdir(exist_ok=True)
(Path("data/indexes") / out.name).write_text("index of " + out.name)
params = json.loads(Path("data/params.json").read_text())
if params["rounds"][out.name].get("steps") == 0:  # the encoder as it is
    another = params.get("encoders", {}).get(params["rounds"][out.name]["init"])
    shutil.copytree((another or params["encoder"])["source"], out)
    sys.exit()
act = Path(os.environ["TOY_ACTS"]).read_text()
(Path(os.environ["TOY_ACTS"]).parent / "at_work").write_text(str(os.getpid()))
if act == "hang":
    time.sleep(120)
while act == "wait":  # until it is told something else
    time.sleep(0.05)
    act = Path(os.environ["TOY_ACTS"]).read_text()
if act == "fail":
    line = "corpus.jsonl:7: found nothing, expected a number; fix it"
    print(f"retemper: {line}", file=sys.stderr)
    Path(os.environ["RETEMPER_PROBLEM"]).write_text(json.dumps([{"kind": "invalid", "message": line}]))
    sys.exit(2)
if act == "linger":
    started = time.time()
    time.sleep(3)
    with (Path(os.environ["TOY_ACTS"]).parent / "times").open("a") as times:
        print(started, time.time(), file=times)
values = [float(json.loads(line)["text"]) for line in Path("data/corpus/corpus.jsonl").read_text().splitlines()]
out.mkdir(parents=True)
(out / "model").write_text(json.dumps(sum(values) / len(values)))
(out / "config.json").write_text((out / "model").read_text())  # by which a source is known
""",
    "retrieve": """
import argparse, shutil
from pathlib import Path
known = argparse.ArgumentParser()
for name in ("name", "encoder", "out"):
    known.add_argument("--" + name)
given = known.parse_args()
Path(given.out).mkdir(parents=True)
shutil.copy(Path(given.encoder) / "model", given.out)
""",
    "evaluate": """
import argparse, json
from pathlib import Path
import pyarrow as pa
from tasks.core.tables.parquet import write_table
known = argparse.ArgumentParser()
for name in ("name", "runs", "qrels", "values", "metrics"):
    known.add_argument("--" + name)
given = known.parse_args()
model = json.loads((Path(given.runs) / "model").read_text())
lines = (Path(given.qrels) / "dev.tsv").read_text().splitlines()[1:]
queries = sorted({line.split()[0] for line in lines})
values = [model + number / 1000 for number in range(len(queries))]
schema = pa.schema([("query", pa.string()), ("nDCG@10", pa.float64())])
write_table(Path(given.values) / "dev.parquet", schema, [pa.table({"query": queries, "nDCG@10": values}, schema)])
Path(given.metrics).parent.mkdir(parents=True, exist_ok=True)
Path(given.metrics).write_text(json.dumps({"dev": {"nDCG@10": sum(values) / len(values)}}))
""",
    "report": "from pathlib import Path; Path('data/report').mkdir(); Path('data/report/report.html').write_text('<p>report')",
}
RETRAINING_GRAPH = """
stages:
  prepare:
    cmd: python -m tasks.prepare
    params: [{data/source.json: [dataset.digest]}]
    outs: [data/corpus]
  train:
    foreach: ${rounds}
    do:
      cmd: python -m tasks.train data/encoders/${key}
      deps: [data/corpus]
      params: [{data/params.json: ["rounds.${key}"]}, {data/source.json: [encoder.digest]}]
      outs: ["data/encoders/${key}", "data/indexes/${key}"]
      meta: {slot: device}
  retrieve:
    foreach: ${rounds}
    do:
      cmd: python -m tasks.retrieve --name ${key} --encoder data/encoders/${key} --out data/runs/${key}
      deps: ["data/encoders/${key}"]
      outs: ["data/runs/${key}"]
  evaluate:
    foreach: ${rounds}
    do:
      cmd: >-
        python -m tasks.evaluate --name ${key} --runs data/runs/${key} --qrels data/corpus/qrels --values data/values/${key}
        --metrics data/metrics/${key}.json
      deps: ["data/runs/${key}", data/corpus/qrels]
      outs: ["data/values/${key}"]
      metrics: ["data/metrics/${key}.json"]
  report:
    cmd: python -m tasks.report
    deps: [data/metrics]
    outs: [data/report]
"""


@dataclass
class Retraining:
    """A toy project and the source it reads."""

    folder: Path
    source: Path
    environment: dict[str, str]

    def add(self, *values: float, folder: Path | None = None) -> None:
        """Documents with these texts, as the next lines of the source."""
        path = (folder or self.source) / "corpus.jsonl"
        count = len(path.read_text().splitlines()) if path.exists() else 0
        with path.open("a") as corpus:
            corpus.writelines(json.dumps({"_id": f"d{count + n}", "text": str(value)}) + "\n" for n, value in enumerate(values))

    def set_act(self, act: str) -> None:
        """What a training does from now on: `hang`, `wait`, `fail`, `linger`, or nothing in particular."""
        path = Path(self.environment["TOY_ACTS"])
        path.with_name("at_work").unlink(missing_ok=True)
        path.write_text(act)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, status: int = 0, **environment: str) -> tuple[str, str]:
        """Output and errors of the command, which must end with `status`."""
        result = retemper(list(arguments), self.folder, self.environment | environment)
        assert result.returncode == status, f"status {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout, result.stderr

    def retrain(self, status: int = 0, **environment: str) -> str:
        """The last line of a retraining."""
        return self.call("retrain", status=status, **environment)[0].splitlines()[-1]

    def git(self, *words: str) -> str:
        result = subprocess.run(["git", *words], cwd=self.folder, env=self.environment, check=True, capture_output=True, text=True)
        return result.stdout.rstrip("\n")

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("-c", "user.name=toy", "-c", "user.email=toy@example.com", "commit", "--quiet", "-m", "toy")

    def champion(self) -> Any:
        from flows.champions.champion import current

        return current(self.folder)

    def processes(self) -> list[str]:
        """Command lines of live processes in the folder or below it."""
        commands = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and int(entry.name) != os.getpid() and (entry / "cwd").readlink().is_relative_to(self.folder):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if command and "State:\tZ" not in (entry / "status").read_text():
                        commands.append(command)
            except OSError:
                continue
        return commands

    def wait_for_end(self, seconds: float = 30) -> bool:
        """Whether all processes there end within `seconds`."""
        return self.wait_until(lambda: not self.processes(), seconds)

    @staticmethod
    def wait_until(condition: Callable[[], Any], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def wait_for_start(self, seconds: float = 300) -> int:
        """Wait for a training to start; returns its process id."""
        path = Path(self.environment["TOY_ACTS"]).parent / "at_work"
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if path.exists() and (text := path.read_text()):
                path.unlink()
                return int(text)
            time.sleep(0.05)
        raise AssertionError("no training ever began")


@pytest.fixture
def retraining(_toy_template: Toy, tmp_path: Path, toy_environment: dict[str, str], checkout: Path) -> Retraining:
    """A project of one round, nothing run yet, no git identity, on a source of ten good documents and twenty dev queries."""
    folder, source = tmp_path / "toy", tmp_path / "source"
    (source / "qrels").mkdir(parents=True)
    (source / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{n:02}", "text": "what"}) + "\n" for n in range(20)))
    for split in ("train", "dev", "test"):
        (source / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{n:02}\td0\t1\n" for n in range(20)))
    (folder / "data").mkdir(parents=True)
    (folder / "tasks").mkdir()
    before_ours = "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"  # what the toy lacks is the project's
    (folder / "tasks/__init__.py").write_text(before_ours)
    for name, text in RETRAINING_STAGES.items():
        (folder / "tasks" / name).mkdir()
        (folder / "tasks" / name / "__init__.py").write_text(before_ours)
        (folder / "tasks" / name / "__main__.py").write_text(text)
    (folder / "encoder").mkdir()
    (folder / "encoder/config.json").write_text("{}")
    (folder / "encoder/model.safetensors").write_text("")
    (folder / "encoder/tokenizer.json").write_text("{}")
    yaml = YAML()
    params = yaml.load((checkout / "params.yaml").read_text())
    params["rounds"] = {"a": {"init": "base", "negatives": "bm25"}}
    params["mine"] = {}
    params["adore"] = params["fuse"] = {}
    params["dataset"]["source"] = "beir:../source"
    params["encoder"]["source"] = "./encoder"
    with (folder / "params.yaml").open("w") as handle:
        yaml.dump(params, handle)
    (folder / "dvc.yaml").write_text(RETRAINING_GRAPH)
    (folder / "retraining.yaml").write_text("promotion: {rule: not_worse}\n")  # twenty queries are too few for a guarantee
    (folder / "data/.gitignore").write_text("/*\n!/.gitignore\n!/source.json\n")
    (folder / ".gitignore").write_text(".retemper/\n__pycache__/\n")
    environment = {name: value for name, value in toy_environment.items() if not name.startswith(("GIT_AUTHOR", "GIT_COMMITTER"))}
    del environment["PREFECT_HOME"]
    project = Retraining(folder, source, environment | {"TOY_ACTS": str(tmp_path / "acts")})
    project.set_act("")
    project.add(*[0.5] * 10)
    project.git("init", "--quiet", "--initial-branch=main")
    shutil.copytree(_toy_template.folder / ".dvc", folder / ".dvc")
    shutil.copy(_toy_template.folder / ".dvcignore", folder)
    project.commit()
    return project
