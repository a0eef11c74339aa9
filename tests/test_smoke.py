"""The whole graph, as a user runs it: a fresh clone, a tiny corpus, a tiny encoder, the command line. Takes minutes.

The clone knows no git identity, no DVC settings of the user's and no server.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.forks import retemper

OF_STAR = {f"{stage}@star" for stage in ("train", "encode", "index", "retrieve", "evaluate")}
OF_STAR |= {"adore@star_adore", "retrieve_adore@star_adore", "evaluate_adore@star_adore"}
OF_STAR |= {"fuse@hybrid", "evaluate_fuse@hybrid", "failures", "report"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]  # minutes of a quiet machine


class Project:
    """A clone of the project under test, and `retemper` in it."""

    def __init__(self, folder: Path, prepared: dict[str, str]) -> None:
        self.folder, self.prepared = folder, prepared
        self.params = folder / "params.yaml"

    def retemper(self, *arguments: str, new: bool = False) -> subprocess.CompletedProcess[str]:
        """The command, in a `new` process or as a fork of the prepared Python."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "DVC", "GIT"))}
        environment |= {
            "DVC_GLOBAL_CONFIG_DIR": str(self.folder.parent / "dvc"),
            "DVC_NO_ANALYTICS": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "OMP_NUM_THREADS": "1",  # as in `prepared`
            "PYTHONPATH": str(self.folder),
        }
        environment |= self.prepared
        if not new:
            return retemper(list(arguments), self.folder, environment)
        command = [sys.executable, "-m", "flows.cli", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2400, check=False
        )

    def run(self, *settings: str, new: bool = False) -> dict[str, str]:
        """`retemper run` with `--set` for each of `settings`; the state of every stage in its closing table."""
        process = self.retemper("run", *(part for setting in settings for part in ("--set", setting)), new=new)
        assert process.returncode == 0, f"status {process.returncode}\n{process.stdout[-6000:]}\n{process.stderr[-3000:]}"
        return states(process.stdout)

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


def read_yaml(path: Path) -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def states(output: str) -> dict[str, str]:
    """The state of every stage in the closing table of a run."""
    return dict(re.findall(r"^(\S+)\s+(Ran|Cached|Failed|Skipped)\b", output[output.rindex("\nstage ") :], re.MULTILINE))


def stages_run(outcomes: dict[str, str]) -> set[str]:
    return {name for name, state in outcomes.items() if state == "Ran"}


@pytest.fixture(scope="module")
def project(checkout: Path, tmp_path_factory: pytest.TempPathFactory, prepared: dict[str, str]) -> Project:
    folder = tmp_path_factory.mktemp("smoke") / "retemper"
    subprocess.run(["git", "clone", "--quiet", str(checkout), str(folder)], check=True)
    return Project(folder, prepared)


@pytest.fixture(scope="module")
def first_run(project: Project, tiny_corpus: Any) -> dict[str, str]:
    """States of the stages after the first run, which every test here begins with and leaves as it was."""
    quick = ["encoder.source=package:cognition/model", "pretrain.costa.steps=2", "rounds.costa_warmup.steps=4"]
    return project.run(f"dataset.source=beir:{tiny_corpus.beir}", *quick, new=True)


def test_the_first_run_executes_every_stage(first_run: dict[str, str], project: Project) -> None:
    graph = read_yaml(project.folder / "dvc.yaml")["stages"]
    graph = {name: stage for name, stage in graph.items() if name not in ("freeze", "pseudo")}  # the report needs none of them
    params = read_yaml(project.params)
    expected = {name for name, stage in graph.items() if "foreach" not in stage}
    expected |= {f"{name}@{key}" for name, stage in graph.items() if "foreach" in stage for key in params[stage["foreach"][2:-1]]}
    assert stages_run(first_run) == expected
    assert {path.suffix for path in (project.folder / "data" / "report").iterdir()} >= {".html"}


@pytest.mark.parametrize("system", ["bm25", "init", "warmup", "star", "star_adore"])
def test_metrics_are_those_of_the_run_files(first_run: dict[str, str], project: Project, tiny_corpus: Any, system: str) -> None:
    """RR@10 of every query from the TREC run by a plain loop. Each query has one relevant document."""
    assert first_run
    for split in ("dev", "test"):
        lines = (project.folder / "data" / "runs" / system / f"{split}.trec").read_text(encoding="utf-8").splitlines()
        ranks: dict[str, float] = {}
        for line in lines:
            query, _, document, rank, _, _ = line.split()
            if tiny_corpus.qrels[split][query] == document and int(rank) <= 10:
                ranks[query] = 1 / int(rank)
        value = sum(ranks.values()) / len(tiny_corpus.qrels[split])
        measured = project.read(f"data/metrics/{system}.json")[split]
        assert measured["RR@10"] == pytest.approx(value, abs=1e-6)
        assert set(measured) >= {"nDCG@10", "RR@10", "R@100", "AP"}
        if system == "bm25":
            assert value > 0.7, "queries share words with their documents: BM25 finds them"


def test_a_second_run_executes_nothing(first_run: dict[str, str], project: Project) -> None:
    process = project.retemper("run")
    assert process.returncode == 0, process.stderr
    again = states(process.stdout)
    assert set(again) == set(first_run)
    assert stages_run(again) == set()
    table = (project.folder / "data" / "report" / "table.txt").read_text(encoding="utf-8")
    assert table.rstrip() in process.stdout, "the report's own table, as when it was made"
    assert all(name in table for name in ("60 documents, titles off; test, 10 queries", "bm25", "star_adore"))


def test_a_changed_parameter_runs_what_reads_it_and_set_back_nothing_runs(first_run: dict[str, str], project: Project) -> None:
    assert first_run
    names = ("data/runs/star_adore/dev.trec", "data/metrics/star_adore.json")
    before = [(project.folder / name).read_text(encoding="utf-8") for name in names]
    assert stages_run(project.run("adore.star_adore.lr=3e-3")) == {
        f"{stage}@star_adore" for stage in ("adore", "retrieve_adore", "evaluate_adore")
    } | {"fuse@hybrid", "evaluate_fuse@hybrid", "failures", "report"}
    assert (project.folder / names[0]).read_text(encoding="utf-8") != before[0]
    assert stages_run(project.run("adore.star_adore.lr=")) == set()
    assert [(project.folder / name).read_text(encoding="utf-8") for name in names] == before


def stages_that_may_run(output: str) -> set[str]:
    """The stages that a dry run names, each with an estimate, or in the last line those that nothing is known of."""
    lines = output.splitlines()
    assert lines[-2].split(" ", 1)[1].startswith("stages may run") and lines[-1].startswith(("total: at most about", "time and disk"))
    unknown = lines[-1].partition("unknown: ")[2].split(", ") if "; unknown: " in lines[-1] else []
    return {line.partition(":")[0] for line in lines[:-2] if not line.startswith("(")} | set(unknown)


def test_a_changed_round_would_run_again_alone(first_run: dict[str, str], project: Project) -> None:
    assert first_run
    process = project.retemper("run", "--dry-run", "--set", "rounds.star.lr=3e-3")
    assert process.returncode == 0, process.stderr
    assert stages_that_may_run(process.stdout) == OF_STAR


def test_a_new_round_leaves_finished_ones_alone(first_run: dict[str, str], project: Project) -> None:
    assert first_run
    before = project.params.read_text(encoding="utf-8")
    process = project.retemper("run", "--dry-run", "--set", "rounds.more.init=star", "--set", "rounds.more.negatives=warmup")
    assert process.returncode == 0, process.stderr
    assert stages_that_may_run(process.stdout) == {
        "train@more",
        "encode@more",
        "index@more",
        "retrieve@more",
        "evaluate@more",
        "failures",
        "report",
    }
    assert project.params.read_text(encoding="utf-8") == before


def test_another_dataset_and_back_runs_nothing(first_run: dict[str, str], project: Project, tiny_corpus: Any, tmp_path: Path) -> None:
    assert first_run
    shutil.copytree(tiny_corpus.beir, tmp_path / "other")
    with (tmp_path / "other" / "corpus.jsonl").open("a", encoding="utf-8") as corpus:
        corpus.write('{"_id": "more", "title": "", "text": "one document more"}\n')
    for folder, expected, new_documents in [(tmp_path / "other", {"prepare"}, 1), (tiny_corpus.beir, set(), 0)]:
        process = project.retemper("run", "prepare", "--set", f"dataset.source=beir:{folder}")
        assert process.returncode == 0, process.stderr
        assert stages_run(states(process.stdout)) == expected
        assert project.read("data/corpus/stats.json")["documents"]["count"] == len(tiny_corpus.documents) + new_documents
    process = project.retemper("run", "--dry-run")  # tests/flows/pipeline/test_flow.py runs a whole graph on the other one, and back
    assert process.stdout.startswith("0 stages may run"), process.stdout + process.stderr


@pytest.mark.parametrize(
    "kills", ["--kills 4 --seed 436701 --patience 8", pytest.param("--kills 12 --seed 5 --patience 20", marks=pytest.mark.heavy)]
)
def test_killed_again_and_again_it_ends_with_the_same(
    kills: str, first_run: dict[str, str], project: Project, checkout: Path, tiny_corpus: Any, tmp_path: Path
) -> None:
    """A small part of the benchmark, over ten stages (the others have tests of their own); this project is its undisturbed run.

    Four kills: a stage, DVC as it records outs, the run, and the server that stages are forked from.
    """
    assert first_run
    options = f"{kills} --dataset beir:{tiny_corpus.beir} --until evaluate@warmup mine@warmup"
    folders = ["--folder", tmp_path / "kills", "--reference", project.folder]
    command = [sys.executable, checkout / "benchmarks" / "kills.py", *options.split(), *folders]
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=2400, check=False)
    assert process.returncode == 0, f"{process.stdout[-6000:]}\n{process.stderr[-3000:]}"


def test_search_prints_ranked_documents(first_run: dict[str, str], project: Project, tiny_corpus: Any) -> None:
    assert first_run
    process = project.retemper("search", "a novel of the jazz age", "-k", "3", new=True)
    assert process.returncode == 0, process.stderr
    hits = re.findall(r"^ *(\d+) +(-?[\d.]+) +(d\d\d)\b", process.stdout, re.MULTILINE)
    assert [rank for rank, _, _ in hits] == ["1", "2", "3"]
    scores = [float(score) for _, score, _ in hits]
    assert scores == sorted(scores, reverse=True)
    assert all(document in tiny_corpus.documents for _, _, document in hits)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rounds.star.lr=fast", "rounds.star.lr"),
        ("bm25.k9=1", "bm25.k9"),
        ("rounds.star.init=nowhere", "nowhere"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(first_run: dict[str, str], project: Project, setting: str, message: str) -> None:
    assert first_run
    before = project.params.read_text(encoding="utf-8")
    process = project.retemper("run", "--set", setting)
    assert process.returncode == 2
    assert len(process.stderr.strip().splitlines()) == 1, process.stderr
    assert message in process.stderr
    assert project.params.read_text(encoding="utf-8") == before
