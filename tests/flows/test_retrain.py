"""Real retrainings of a toy project: its own parameters and sources, real git, DVC and Prefect, stages that take no time.

A document's text is a number; what a model learns is their mean, and what it scores on query i is that plus i / 1000. So the
data alone decides which model is better.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows import champion, worktree

ROOT = Path(__file__).resolve().parents[2]
CLI = "import sys; from flows.cli import main; sys.exit(main())"

STAGES = {
    "prepare": """
import json, sys, shutil
from pathlib import Path
out = Path("data/corpus")
source = Path(json.loads(Path("data/source.json").read_text())["dataset"]["source"].removeprefix("beir:"))
shutil.copytree(source, out)
""",
    "train": """
import json, os, sys, time
from pathlib import Path
out = Path(sys.argv[1])
act = Path(os.environ["TOY_ACTS"]).read_text()
(Path(os.environ["TOY_ACTS"]).parent / "at_work").write_text(str(os.getpid()))
if act == "hang":
    time.sleep(120)
if act == "fail":
    print("retemper: corpus.jsonl:7: found nothing, expected a number; mend it", file=sys.stderr)
    sys.exit(2)
if act == "linger":
    time.sleep(20)
values = [float(json.loads(line)["text"]) for line in Path("data/corpus/corpus.jsonl").read_text().splitlines()]
out.mkdir(parents=True)
(out / "model").write_text(json.dumps(sum(values) / len(values)))
Path("data/indexes").mkdir(exist_ok=True)
(Path("data/indexes") / out.name).write_text("index of " + out.name)
""",
    "tokenize": "import sys; from pathlib import Path; Path('tokens').mkdir()",
    "encode": "import sys; from pathlib import Path; Path('embeddings').mkdir()",
    "evaluate": """
import argparse, json
from pathlib import Path
import pyarrow as pa
from tasks.core.tables import write_table
known = argparse.ArgumentParser()
for name in ("name", "encoder", "embeddings", "tokens", "qrels", "runs", "metrics"):
    known.add_argument("--" + name)
given = known.parse_args()
model = json.loads((Path(given.encoder) / "model").read_text())
lines = (Path(given.qrels) / "dev.tsv").read_text().splitlines()[1:]
queries = sorted({line.split()[0] for line in lines})
values = [model + number / 1000 for number in range(len(queries))]
schema = pa.schema([("query", pa.string()), ("nDCG@10", pa.float64())])
write_table(Path(given.runs) / "dev.parquet", schema, [pa.table({"query": queries, "nDCG@10": values}, schema)])
Path(given.metrics).parent.mkdir(parents=True, exist_ok=True)
Path(given.metrics).write_text(json.dumps({"dev": {"nDCG@10": sum(values) / len(values)}}))
""",
    "report": "from pathlib import Path; Path('data/report').mkdir(); Path('data/report/report.html').write_text('<p>report')",
}
GRAPH = """
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
      params: ["rounds.${key}"]
      outs: ["data/encoders/${key}", "data/indexes/${key}"]
      meta: {slot: device}
  evaluate:
    foreach: ${rounds}
    do:
      cmd: >-
        python -m tasks.evaluate --name ${key} --encoder data/encoders/${key} --qrels data/corpus/qrels
        --runs data/runs/${key} --metrics data/metrics/${key}.json
      deps: ["data/encoders/${key}", data/corpus/qrels]
      outs: ["data/runs/${key}"]
      metrics: ["data/metrics/${key}.json"]
  report:
    cmd: python -m tasks.report
    deps: [data/metrics]
    outs: [data/report]
"""


@dataclass
class Project:
    """A toy project and the source it reads."""

    folder: Path
    source: Path
    environment: dict[str, str]

    def add(self, *values: float, folder: Path | None = None) -> None:
        """Documents with these texts, as the next lines of the source."""
        path = (folder or self.source) / "corpus.jsonl"
        there = len(path.read_text().splitlines()) if path.exists() else 0
        with path.open("a") as corpus:
            corpus.writelines(json.dumps({"_id": f"d{there + n}", "text": str(value)}) + "\n" for n, value in enumerate(values))

    def act(self, act: str) -> None:
        Path(self.environment["TOY_ACTS"]).write_text(act)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CLI, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, status: int = 0, **environment: str) -> tuple[str, str]:
        """Output and errors of the command, which must end with `status`."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=170)
        assert process.returncode == status, f"status {process.returncode}\n{out}\n{err}"
        return out, err

    def retrain(self, status: int = 0, **environment: str) -> str:
        """The last line of a retraining."""
        return self.call("retrain", status=status, **environment)[0].splitlines()[-1]

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.folder, env=self.environment, check=True, capture_output=True, text=True)
        return done.stdout.rstrip("\n")

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("-c", "user.name=toy", "-c", "user.email=toy@example.com", "commit", "--quiet", "-m", "toy")

    def champion(self) -> champion.Champion | None:
        return champion.current(self.folder)

    def at_work(self) -> int:
        """Wait for a training to be at work; its process id."""
        path = Path(self.environment["TOY_ACTS"]).parent / "at_work"
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if path.exists() and (text := path.read_text()):
                path.unlink()
                return int(text)
            time.sleep(0.05)
        raise AssertionError("no training ever began")


def processes_below(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and (entry / "cwd").readlink().is_relative_to(folder):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command and "State:\tZ" not in (entry / "status").read_text():
                    found.append(command)
        except OSError:
            continue
    return found


def wait_until(true: Callable[[], Any], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def project(tmp_path: Path, toy_environment: dict[str, str]) -> Project:
    """A project of one round, nothing run yet, no git identity, on a source of ten good documents and twenty dev queries."""
    folder, source = tmp_path / "toy", tmp_path / "source"
    (source / "qrels").mkdir(parents=True)
    (source / "queries.jsonl").write_text("".join(json.dumps({"_id": f"q{n:02}", "text": "what"}) + "\n" for n in range(20)))
    for split in ("train", "dev", "test"):
        (source / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{n:02}\td0\t1\n" for n in range(20)))
    (folder / "data").mkdir(parents=True)
    (folder / "tasks").mkdir()
    (folder / "tasks/__init__.py").write_text("from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n")
    for name, text in STAGES.items():
        (folder / "tasks" / name).mkdir()
        (folder / "tasks" / name / "__main__.py").write_text(text)
        for part in ("__init__.py", "params.py"):
            if (ROOT / "tasks" / name / part).exists():
                (folder / "tasks" / name / part).write_text("from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n")
            break
    (folder / "encoder").mkdir()
    (folder / "encoder/config.json").write_text("{}")
    (folder / "encoder/model.safetensors").write_text("")
    (folder / "encoder/tokenizer.json").write_text("{}")
    yaml = YAML()
    params = yaml.load((ROOT / "params.yaml").read_text())
    params["rounds"] = {"a": {"init": "base", "negatives": "bm25"}}
    params["mine"] = {}
    params["dataset"]["source"] = "beir:../source"
    params["encoder"]["source"] = "./encoder"
    with (folder / "params.yaml").open("w") as handle:
        yaml.dump(params, handle)
    (folder / "dvc.yaml").write_text(GRAPH)
    (folder / "data/.gitignore").write_text("/*\n!/.gitignore\n!/source.json\n")
    (folder / ".gitignore").write_text(".retemper/\n__pycache__/\n")
    environment = {
        name: value for name, value in toy_environment.items() if not name.startswith("GIT_A") and not name.startswith("GIT_COMM")
    }
    found = Project(folder, source, environment | {"TOY_ACTS": str(tmp_path / "acts"), "PREFECT_HOME": toy_environment["PREFECT_HOME"]})
    found.act("")
    found.add(*[0.5] * 10)
    found.git("init", "--quiet", "--initial-branch=main")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=folder, env=environment, check=True)
    found.commit()
    return found


@pytest.fixture
def served(project: Project, server_url: str) -> Project:
    """The project, with the session's Prefect server set."""
    project.environment["PREFECT_API_URL"] = server_url
    return project


def test_from_the_first_champion_to_one_that_is_refused(served: Project) -> None:
    project = served
    remote = project.folder.parent / "remote.git"
    project.git("init", "--quiet", "--bare", str(remote))
    project.git("remote", "add", "origin", str(remote))
    (project.folder / "params.yaml").write_text((project.folder / "params.yaml").read_text() + "# a dirty tree\n")
    head, before = project.git("rev-parse", "HEAD"), project.git("status", "--porcelain")
    assert project.retrain() == "retraining promoted: a is the first champion"
    first = project.champion()
    assert first
    assert (first.number, first.model, first.cause, first.replaced) == (1, "a", "first", None)
    assert first.metrics["dev"]["nDCG@10"] == pytest.approx(0.5 + 0.0095)
    assert project.git("rev-parse", "HEAD") == head, "nobody's branch has moved"
    assert project.git("status", "--porcelain") == before, "nobody's tree has changed"
    assert not (project.folder / "data/corpus").exists()

    assert project.retrain().startswith("retraining unchanged: a is champion/1 itself")
    assert project.champion() == first

    project.add(*[0.9] * 10)
    assert project.retrain().startswith(
        "retraining promoted: a against champion/1: nDCG@10 +0.2000 on dev (20 queries), lower bound +0.2000"
    )
    second = project.champion()
    assert second
    assert (second.number, second.replaced, second.previous, second.cause) == (2, 1, 1, "promoted")
    assert second.digests["encoder"] != first.digests["encoder"]
    assert second.data["digest"] != first.data["digest"]

    project.add(*[0.0] * 20)
    assert project.retrain().startswith("retraining refused: a against champion/2: nDCG@10 -0.3500 on dev")
    assert project.champion() == second

    tip = project.git("rev-parse", "retemper/retraining")
    assert project.git("ls-remote", str(remote), "refs/heads/*").split()[0] == tip, "branch and tags are pushed"
    assert len(project.git("ls-remote", str(remote), "refs/tags/champion/?").splitlines()) == 2
    assert project.git("log", "-1", "--format=%an %ae", tip) == "retemper retemper@localhost", "no identity is needed"
    files = project.git("ls-tree", "-r", "--name-only", second.commit).splitlines()
    assert {"dvc.lock", "params.yaml", "data/source.json", "retraining.json", "dvc.yaml"} <= set(files)
    lock = YAML(typ="safe").load(project.git("show", f"{second.commit}:dvc.lock"))
    assert {out["md5"] for out in lock["stages"]["train@a"]["outs"]} >= {second.digests["encoder"]}
    entries = json.loads(project.call("champion", "--history", "--json")[0])
    assert [entry["result"] for entry in entries] == ["promoted", "unchanged", "promoted", "refused"]
    assert [entry["champion"] for entry in entries] == [1, 1, 2, 2]

    clone = project.folder.parent / "clone"
    project.git("clone", "--quiet", str(remote), str(clone), "--branch", "retemper/retraining")
    assert champion.current(clone) == second, "the lineage is the team's"

    out, _ = project.call("champion", "rollback")
    assert out.startswith("champion/3: a, nDCG@10 0.5095 on dev (rollback)")
    third = project.champion()
    assert third
    assert (third.digests, third.commit) == (first.digests, first.commit)
    assert "champion/3 is the first; there is nothing to go back to" in project.call("champion", "rollback", status=2)[1]
    project.call("champion", "set", "champion/2")
    project.call("champion", "set", "a")
    now = project.champion()
    assert now
    assert (now.number, now.commit) == (5, tip), "the model of the last retraining"
    assert now.digests["encoder"] not in (first.digests["encoder"], second.digests["encoder"])
    project.call("champion", "set", f"{second.commit}:a")
    project.call("champion", "export", "served")
    assert json.loads((project.folder / "served/encoder/model").read_text()) == pytest.approx(0.7)
    assert (project.folder / "served/index").read_text() == "index of a"
    assert json.loads((project.folder / "served/champion.json").read_text())["number"] == 6
    for wanted, word in (("nobody", "no encoder nobody, expected one of a"), ("nowhere:a", "no commit nowhere")):
        errors = project.call("champion", "set", wanted, status=2)[1]
        assert len(errors.splitlines()) == 1
        assert word in errors
    assert "not empty" in project.call("champion", "export", "served", status=2)[1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_failed_a_stopped_and_a_killed_run_leave_the_champion(served: Project) -> None:
    project = served
    project.retrain()
    first = project.champion()
    project.add(*[0.9] * 10)
    project.act("fail")
    out, errors = project.call("retrain", status=1)
    assert out.splitlines()[-1] == "retraining failed: corpus.jsonl:7: found nothing, expected a number; mend it"
    assert "Traceback" not in errors
    for number in (signal.SIGTERM, signal.SIGKILL):
        project.act("hang")
        run = project.start("retrain")
        project.at_work()
        with pytest.raises(AssertionError, match="a run is at work in this folder"):
            project.call("retrain")
        run.send_signal(number)
        run.wait(timeout=20)
        assert wait_until(lambda: not processes_below(project.folder), 3), processes_below(project.folder)
        assert project.champion() == first
    folder = project.folder / worktree.FOLDER
    git_folder = Path(worktree.git(folder, "rev-parse", "--absolute-git-dir"))
    (git_folder / "index.lock").touch()  # as a kill may leave them
    (project.folder / ".git" / f"{worktree.BRANCH}.lock").touch()
    (folder / "params.yaml").write_text("cut sho")
    project.act("")
    assert project.retrain().startswith("retraining promoted")
    entries = json.loads(project.call("champion", "history", "--json")[0])
    assert [entry["result"] for entry in entries] == ["promoted", "failed", "stopped", "killed", "promoted"]
    shutil.rmtree(folder / ".dvc")
    (folder / ".git").unlink()  # half of a worktree
    assert project.retrain().startswith("retraining unchanged")


def test_a_batch_in_the_inbox_and_a_webhook_that_is_away(served: Project) -> None:
    project = served
    inbox = project.folder.parent / "inbox"
    (inbox / ".unfinished").mkdir(parents=True)
    (project.folder / "retraining.yaml").write_text("intake: {inbox: ../inbox}\npromotion: {rule: better, metric: nDCG@10}\n")
    project.commit()
    secret = "http://127.0.0.1:9/secret-path"
    out, errors = project.call("retrain", RETEMPER_WEBHOOK=secret)
    assert "RETEMPER_WEBHOOK: not notified of promoted (URLError)" in errors
    assert "secret-path" not in out + errors
    (inbox / "001").mkdir()
    project.add(*[0.7] * 10, folder=inbox / "001")  # the same ids: each document has changed
    assert "nDCG@10 +0.2000" in project.retrain()
    (project.folder / "retraining.yaml").write_text("promotion: {rule: bettr}\n")
    project.commit()
    assert project.retrain(status=1).startswith("retraining failed: retraining.yaml.promotion.rule: found 'bettr'")
    project.git("checkout", "--quiet", "--detach")
    assert "nowhere: no such commit" in project.call("retrain", "--follow", "nowhere", status=1)[0]
    assert project.retrain(status=1).startswith("retraining failed: retraining.yaml"), "a detached HEAD is followed as well"
