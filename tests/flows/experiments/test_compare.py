"""`retemper compare` over a repository written by hand: a dvc.lock for each commit, and the cache that it names."""

import hashlib
import json
import random
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML
from scipy import stats

from flows.cli.main import main
from flows.experiments import store
from flows.experiments.compare import Side, compare, differences
from flows.repository.git import git
from flows.repository.lock import read_lock
from flows.storage.cache import intact_path, listing, object_id, object_path
from tasks.core.errors import UserError
from tasks.core.metrics.measures import value_schema
from tasks.core.statistics.judged import click_id
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QRELS, QUERIES

CLICK_1 = click_id("1")

QUERIES_OF = [f"q{n:02}" for n in range(40)]
EVALUATE = {"cmd": "evaluate ${key}", "outs": ["data/values/${key}"], "metrics": ["data/metrics/${key}.json"]}
GRAPH = {"stages": {stage: {"foreach": "${rounds}", "do": do} for stage, do in (("train", {"cmd": "train"}), ("evaluate", EVALUATE))}}
PARAMS = {"rounds": {"star": {}, "warmup": {}}, "report": {"metric": "RR@10"}}


def random_scores(seed: int, better: float = 0.0) -> dict[str, float]:
    draw = random.Random(seed)
    return {query: min(1.0, draw.random() * 0.6 + better) for query in QUERIES_OF}


class Project:
    """A repository whose commits hold systems that nobody trained."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.objects = folder, folder / ".dvc/cache/files/md5"
        (folder / ".dvc").mkdir(parents=True)
        (folder / ".dvc/config").write_text("")
        git("init", "--quiet", folder=folder)

    def add_object(self, content: bytes, suffix: str = "") -> str:
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest() + suffix
        path = self.objects / digest[:2] / digest[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return digest

    def add_values(self, scores: dict[str, float]) -> str:
        path = self.folder / "values.parquet"
        table = pa.table({"query": list(scores), "RR@10": list(scores.values())}, schema=value_schema(["RR@10"]))
        write_table(path, value_schema(["RR@10"]), [table])
        entries = [{"md5": self.add_object(path.read_bytes()), "relpath": "dev.parquet"}]
        path.unlink()
        return self.add_object(json.dumps(entries).encode(), ".dir")

    def add_run(self, lines: str) -> str:
        entries = [{"md5": self.add_object(lines.encode()), "relpath": "dev.trec"}]
        return self.add_object(json.dumps(entries).encode(), ".dir")

    def commit(self, systems: dict[str, tuple[float, str, dict[str, float]]], runs: Mapping[str, str] | None = None) -> str:
        """`systems`: the lr, code digest and values of each system; `runs`: the TREC lines of some."""
        stages: dict[str, Any] = {}
        for name, (lr, code, scores) in systems.items():
            params = {"data/params.json": {f"rounds.{name}": {"lr": lr}}, "data/code.json": {"train": code}}
            stages[f"train@{name}"] = {"cmd": "train", "params": params, "outs": [{"path": f"data/encoders/{name}", "md5": f"{lr}{code}"}]}
            metrics = self.add_object(json.dumps({"dev": {"RR@10": sum(scores.values()) / len(scores)}}).encode())
            outs = [
                {"path": f"data/values/{name}", "md5": self.add_values(scores)},
                {"path": f"data/metrics/{name}.json", "hash": "md5", "md5": metrics},
            ]
            if runs and name in runs:
                outs.append({"path": f"data/runs/{name}", "md5": self.add_run(runs[name])})
            deps = [{"path": f"data/encoders/{name}", "md5": f"{lr}{code}"}]
            stages[f"evaluate@{name}"] = {"cmd": f"evaluate {name}", "deps": deps, "outs": outs}
        for file, content in (("dvc.lock", {"schema": "2.0", "stages": stages}), ("dvc.yaml", GRAPH), ("params.yaml", PARAMS)):
            with (self.folder / file).open("w") as handle:
                YAML().dump(content, handle)
        git("add", "dvc.lock", "dvc.yaml", "params.yaml", folder=self.folder)
        git("commit", "--quiet", "-m", "one", folder=self.folder)
        return git("rev-parse", "HEAD", folder=self.folder)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path / "project")
    monkeypatch.chdir(project.folder)
    return project


def test_two_commits_and_the_one_parameter_that_differs(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, weak = random_scores(1), random_scores(2, better=0.2), random_scores(3, better=-0.2)
    project.commit({"star": (5e-5, "c1", old), "warmup": (1e-4, "c1", weak)})
    project.commit({"star": (1e-5, "c1", new), "warmup": (1e-4, "c1", weak)})
    compare(["HEAD~1", "HEAD"], "dev", None, shown=1, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["systems"]
    expected = stats.ttest_rel(list(new.values()), list(old.values()))
    assert row["name"] == "HEAD (star)", "the best on dev of each"
    assert (row["queries"], row["better"] + row["worse"]) == (40, 40)
    assert row["difference"] == pytest.approx(sum(new[q] - old[q] for q in QUERIES_OF) / 40)
    assert (row["p"], row["p_holm"]) == (pytest.approx(expected.pvalue), pytest.approx(expected.pvalue))
    interval = expected.confidence_interval(0.95)
    assert (row["low"], row["high"]) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert row["differs"] == ["rounds.star.lr: 5e-05 -> 1e-05"]
    compare(["HEAD~1", "HEAD"], "dev", None, shown=1, as_json=False)
    output = capsys.readouterr().out
    gains = max(QUERIES_OF, key=lambda query: new[query] - old[query])
    assert "HEAD (star): rounds.star.lr: 5e-05 -> 1e-05" in output
    assert f"HEAD (star) gains: {old[gains]:.3f} -> {new[gains]:.3f}  {gains}" in output


def test_clicks_of_a_commit_that_measured_them_with_dev_are_left_out(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    scores = random_scores(1)
    project.commit({"star": (5e-5, "c1", scores | {CLICK_1: 1.0})})
    project.commit({"star": (1e-5, "c1", scores)})
    compare(["HEAD~1", "HEAD"], "dev", None, shown=1, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[1:4] for line in lines if line[1:2] == ["(star)"]] == [["(star)", "40", f"{statistics.mean(scores.values()):.4f}"]] * 2


def test_a_champion_is_its_own_model_not_the_best_on_dev(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The selection rule or a person chose star, or only star can be served."""
    old, new, best = random_scores(1), random_scores(2, better=0.1), random_scores(3, better=0.4)
    for number, values in enumerate((old, new), 1):
        project.commit({"star": (number * 1e-5, "c1", values), "warmup": (1e-4, "c1", best)})
        git("tag", "-m", 'champion\n\n{"model": "star"}', f"champion/{number}", folder=project.folder)
    compare(["champion/1", "champion/2", "HEAD"], "dev", None, shown=0, as_json=True)
    champion, head = json.loads(capsys.readouterr().out)["systems"]
    assert (champion["name"], head["name"]) == ("champion/2 (star)", "HEAD (warmup)")
    assert champion["difference"] == pytest.approx(sum(new[q] - old[q] for q in QUERIES_OF) / 40)


def test_dvc_metrics_diff_has_the_same_means_and_difference(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.commit({"star": (5e-5, "c1", random_scores(1)), "warmup": (1e-4, "c1", random_scores(3))})
    project.commit({"star": (1e-5, "c1", random_scores(2, better=0.2)), "warmup": (1e-4, "c1", random_scores(3))})
    compare(["HEAD~1:star", "HEAD:star"], "dev", None, shown=0, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["systems"]
    with Repo() as repo:
        diff = repo.metrics.diff(a_rev="HEAD~1", b_rev="HEAD")["diff"]
    assert list(diff) == ["data/metrics/star.json"], "what is the same is not listed"
    figures = diff["data/metrics/star.json"]["dev.RR@10"]
    assert (figures["old"], figures["new"]) == (pytest.approx(row["first_mean"]), pytest.approx(row["mean"]))
    assert figures["diff"] == pytest.approx(row["difference"])


def test_models_and_code_of_one_working_tree(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.commit(
        {"star": (5e-5, "c1", random_scores(1)), "warmup": (1e-5, "c2", {q: v for q, v in random_scores(4).items() if q != "q00"})}
    )
    assert main(["compare", "star", "warmup", "--queries", "0"]) == 0
    output = capsys.readouterr().out
    assert "warmup: rounds.MODEL.lr: 5e-05 -> 1e-05; code: train\n" in output
    assert "warmup: lacks 1 of the queries of star\n" in output
    assert "warmup gains" not in output


def test_a_stage_that_both_go_through_is_of_neither_alone() -> None:
    def side(model: str, *stages: str) -> Side:
        return Side(model, {}, {stage: {} for stage in stages}, model)

    shared = ("prepare", "train@warmup", "encode@warmup")
    star_stages = (*shared, "mine@warmup", "train@star", "encode@star", "retrieve@star")
    warmup, star, reranked = side("warmup", *shared, "retrieve@warmup"), side("star", *star_stages), side("ce", *star_stages, "rerank@ce")
    assert list(differences(warmup, star)) == ["stages that only one of the two has: encode@star, mine@warmup, train@star"], (
        "retrieve is a step of both"
    )
    assert list(differences(star, reranked)) == ["stages that only one of the two has: rerank@ce"]
    assert list(differences(star, star)) == []


def test_a_round_that_the_other_model_is_made_from_is_compared_by_its_name() -> None:
    def stages_with_lr(lr: float) -> dict[str, Any]:
        return {"train@star": {"params": {"data/params.json": {"rounds.star": {"lr": lr}}}}}

    star, reranked = Side("star", {}, stages_with_lr(1e-5), "star"), Side("ce", {}, stages_with_lr(2e-5), "ce")
    assert list(differences(star, reranked)) == ["rounds.star.lr: 1e-05 -> 2e-05"]
    assert list(differences(reranked, star)) == ["rounds.star.lr: 2e-05 -> 1e-05"]


def test_p_values_are_holms_over_all(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    systems = {name: (1.0, "c", random_scores(n, better=0.02 * n)) for n, name in enumerate(("star", "warmup"))}
    project.commit(systems)
    run = project.folder / "other.trec"
    run.write_text("".join(f"{query} Q0 d1 1 2.0 x\n{query} Q0 d0 2 1.0 x\n" for query in QUERIES_OF[:30]))
    qrels = [(query, "d0", 1) for query in QUERIES_OF]
    write_table(Path("data/corpus/qrels/dev.parquet"), QRELS, [pa.table([list(c) for c in zip(*qrels, strict=True)], schema=QRELS)])
    queries = [(query, f"what is \x1b[2J{query}", []) for query in QUERIES_OF]
    write_table(Path("data/corpus/queries/dev.parquet"), QUERIES, [pa.table([list(c) for c in zip(*queries, strict=True)], schema=QUERIES)])
    compare(["star", "warmup", str(run)], "dev", None, shown=1, as_json=True)
    warmup, run_file = json.loads(capsys.readouterr().out)["systems"]
    assert run_file["differs"] == ["how a run file was made is not recorded"]
    assert run_file["mean"] == pytest.approx(0.5 * 30 / 40), "a query that the run lacks counts 0"
    smaller, larger = sorted((warmup["p"], run_file["p"]))
    assert sorted((warmup["p_holm"], run_file["p_holm"])) == [
        pytest.approx(min(1, 2 * smaller)),
        pytest.approx(max(larger, min(1, 2 * smaller))),
    ]
    compare(["star", "warmup"], "dev", None, shown=1, as_json=False)
    assert "what is \\x1b[2Jq" in capsys.readouterr().out


def test_size_power_and_too_few_queries(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = random_scores(1), random_scores(2)
    project.commit({"star": (1.0, "c", old), "warmup": (1.0, "c", new)})
    compare(["star", "warmup"], "dev", None, shown=0, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["systems"]
    differences = [new[query] - old[query] for query in QUERIES_OF]
    d = statistics.mean(differences) / statistics.stdev(differences)
    critical = stats.t.ppf(0.975, 39)
    assert row["d"] == pytest.approx(d)
    assert row["power"] == pytest.approx(
        float(stats.nct.sf(critical, 39, abs(d) * 40**0.5) + stats.nct.cdf(-critical, 39, abs(d) * 40**0.5))
    )
    assert row["power"] < 0.8 and row["needed"] > 40
    compare(["star", "warmup"], "dev", None, shown=0, as_json=False)
    output = capsys.readouterr().out
    assert row["warning"] and f"{row['warning']}\n" in output
    assert f" {row['detectable']:.4f} " in output
    assert "paired two-sided t-tests over the queries in common" in output


def test_the_projects_test_is_used(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    old = random_scores(1)
    new = {query: value + (0.01 if number < 8 else 0) for number, (query, value) in enumerate(old.items())}  # 8 of 40 differ, all for it
    project.commit({"star": (1.0, "c", old), "warmup": (1.0, "c", new)})
    params = project.folder / "params.yaml"
    params.write_text(params.read_text().replace("metric: RR@10", "metric: RR@10\n  test: permutation"))
    compare(["star", "warmup"], "dev", None, shown=0, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["test"], report["systems"][0]["p"]) == ("permutation", 2 / 2**8)
    params.write_text(params.read_text().replace("permutation", "wilcoxon"))
    with pytest.raises(UserError, match=r"params.yaml: report.test: found 'wilcoxon'"):
        compare(["star", "warmup"], "dev", None, shown=0, as_json=True)


def test_the_projects_level_is_used(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = random_scores(1), random_scores(2, better=0.02)
    project.commit({"star": (1.0, "c", old), "warmup": (1.0, "c", new)})
    params = project.folder / "params.yaml"
    params.write_text(params.read_text().replace("metric: RR@10", "metric: RR@10\n  alpha: 0.01"))
    compare(["star", "warmup"], "dev", None, shown=0, as_json=True)
    report = json.loads(capsys.readouterr().out)
    (row,) = report["systems"]
    result = stats.ttest_rel(list(new.values()), list(old.values()))
    interval = result.confidence_interval(0.99)
    assert (report["alpha"], row["low"], row["high"]) == (0.01, pytest.approx(interval.low), pytest.approx(interval.high))
    critical, shift = stats.t.ppf(0.995, 39), abs(row["d"]) * 40**0.5
    assert row["power"] == pytest.approx(float(stats.nct.sf(critical, 39, shift) + stats.nct.cdf(-critical, 39, shift)))
    assert 0.01 < result.pvalue < 0.05 and row["warning"]
    compare(["star", "warmup"], "dev", None, shown=0, as_json=False)
    assert " 99% interval " in capsys.readouterr().out
    params.write_text(params.read_text().replace("alpha: 0.01", "alpha: 0.2"))
    compare(["star", "warmup"], "dev", None, shown=0, as_json=True)
    assert not json.loads(capsys.readouterr().out)["systems"][0]["warning"], "significant at such a level"


def test_queries_that_share_a_document(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten documents with four queries each; the queries of one document gain equally."""
    old, new = random_scores(1), {query: value + 0.05 * (number // 4 % 3) for number, (query, value) in enumerate(random_scores(1).items())}
    project.commit({"star": (1.0, "c", old), "warmup": (1.0, "c", new)})
    rows = [QUERIES_OF, [f"d{number // 4}" for number in range(40)], [1] * 40]
    write_table(Path("data/corpus/qrels/dev.parquet"), QRELS, [pa.table(rows, schema=QRELS)])
    compare(["star", "warmup"], "dev", None, shown=0, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["systems"]
    steps = [0.05 * (number % 3) for number in range(10)]
    by_group = stats.ttest_1samp(steps, 0.0).pvalue
    assert (row["groups"], row["p"], row["p_holm"]) == (10, pytest.approx(by_group), pytest.approx(by_group))
    half_width = stats.t.ppf(0.975, 9) * statistics.stdev(steps) / 10**0.5
    assert (row["low"], row["high"]) == pytest.approx((statistics.mean(steps) - half_width, statistics.mean(steps) + half_width))
    effect = statistics.variance(steps) / 10 / (statistics.variance([new[query] - old[query] for query in QUERIES_OF]) / 40)
    assert row["design_effect"] == pytest.approx(effect) and effect > 3
    compare(["star", "warmup"], "dev", None, shown=0, as_json=False)
    line = (
        f"warmup: 40 queries are 10 groups that share relevant documents, which say as much as {40 / effect:.0f} independent ones "
        f"(design effect {effect:.1f})\n"
    )
    assert line in capsys.readouterr().out
    table = pa.table([rows[0], ["d0"] * 40, [1] * 40], schema=QRELS)
    write_table(Path("data/corpus/qrels/dev.parquet"), QRELS, [table])
    compare(["star", "warmup"], "dev", None, shown=0, as_json=False)
    assert "warmup: all 40 queries share relevant documents, so nothing can be tested unless report.draws is" in capsys.readouterr().out
    params = project.folder / "params.yaml"
    params.write_text(params.read_text().replace("metric: RR@10", "metric: RR@10\n  draws: queries"))
    compare(["star", "warmup"], "dev", None, shown=0, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["systems"]
    by_query = stats.ttest_rel([new[query] for query in QUERIES_OF], [old[query] for query in QUERIES_OF]).pvalue
    assert (row["groups"], row["p"]) == (40, pytest.approx(by_query))


def test_fewer_mistakes_are_better(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.commit({"star": (1.0, "c", random_scores(1))})
    lines = {"one": "q1 Q0 a 1 2 x\nq1 Q0 b 2 1 x\nq2 Q0 b 1 2 x\n", "two": "q1 Q0 b 1 2 x\nq1 Q0 a 2 1 x\nq2 Q0 b 1 2 x\n"}
    for name, run in lines.items():
        (project.folder / name).write_text(run)
    table = pa.table([["q1", "q2"], ["b", "b"], [1, 1]], schema=QRELS)
    write_table(Path("data/corpus/qrels/dev.parquet"), QRELS, [table])
    compare(["one", "two"], "dev", "PairwiseErrors@5", shown=1, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["systems"]
    assert (row["first_mean"], row["mean"], row["better"], row["worse"]) == (0.5, 0.0, 1, 0)
    compare(["one", "two"], "dev", "PairwiseErrors@5", shown=1, as_json=False)
    output = capsys.readouterr().out
    assert "two gains: 1.000 -> 0.000  q1" in output and "two losses" not in output
    with pytest.raises(UserError, match=r"--measure: found Coverage@5, which reads documents"):
        compare(["one", "two"], "dev", "Coverage@5", shown=1, as_json=True)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (
            ["star", "nothing"],
            r"compare nothing: found neither a file, a model of this working tree, nor a revision of git .*; expected one of star$",
        ),
        (["star", "HEAD:moon"], r"compare HEAD:moon: found no model 'moon' there, expected one of star"),
        (["star", "HAED:star"], r"compare HAED:star: found neither a file nor revision 'HAED' in git, expected one; try git fetch$"),
        (["star", "HEAD:stra"], r"compare HEAD:stra: found no model 'stra' there, did you mean star$"),
        (
            ["star", "empty"],
            r"compare empty: its commit has no dvc.lock; commit dvc.lock, params.yaml, and data/source.json after retemper run",
        ),
        (["star", "run.trec"], r"run.trec: its only query is not a judged query of dev \(1\); name another --split"),
    ],
)
def test_mistakes_are_one_line(project: Project, names: list[str], line: str) -> None:
    git("commit", "--quiet", "--allow-empty", "-m", "none", folder=project.folder)
    git("tag", "empty", folder=project.folder)
    project.commit({"star": (5e-5, "c1", random_scores(1))})
    Path("run.trec").write_text("elsewhere Q0 d0 1 1.0 x\n")
    write_table(Path("data/corpus/qrels/dev.parquet"), QRELS, [pa.table([["q00"], ["d0"], [1]], schema=QRELS)])
    with pytest.raises(UserError, match=line) as refusal:
        compare(names, "dev", None, shown=0, as_json=False)
    assert "\n" not in str(refusal.value)


def test_what_cannot_be_compared(project: Project) -> None:
    project.commit({"star": (5e-5, "c1", random_scores(1)), "warmup": (5e-5, "c1", {"other": 1.0})})
    with pytest.raises(UserError, match="star and warmup have no query in common"):
        compare(["star", "warmup"], "dev", None, shown=0, as_json=False)
    with pytest.raises(UserError, match=r"star was not measured on test; found dev\.parquet"):
        compare(["star", "star"], "test", None, shown=0, as_json=False)
    with pytest.raises(UserError, match=r"found the measures RR@10, expected AP; add it to evaluate.measures"):
        compare(["star", "star"], "dev", "AP", shown=0, as_json=False)
    for file in project.objects.rglob("*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(UserError, match="compare star: data/values/star is missing from this clone's cache, or corrupt"):
        compare(["star", "star"], "dev", None, shown=0, as_json=False)
    with pytest.raises(UserError, match="compare HEAD: this clone's cache has none of its metrics on dev"):
        compare(["HEAD", "star"], "dev", None, shown=0, as_json=False)


@pytest.mark.parametrize("damage", ["other figures", "half of it", ""])
def test_a_corrupt_object_of_the_cache_counts_as_missing(project: Project, damage: str) -> None:
    project.commit({"star": (5e-5, "c1", random_scores(1)), "warmup": (1e-5, "c1", random_scores(2))})
    (outs,) = (stage["outs"] for name, stage in read_lock().items() if name == "evaluate@star")
    values, metrics = (intact_path(project.objects, out["md5"]) for out in outs)
    other_values = intact_path(project.objects, project.add_values(random_scores(3)))
    assert values and metrics and other_values
    table = object_path(project.objects, listing(project.objects, object_id(values))["dev.parquet"])
    other_table = object_path(project.objects, listing(project.objects, object_id(other_values))["dev.parquet"]).read_bytes()
    figures = {"other figures": (other_table, b'{"dev": {"RR@10": 1.0}}'), "half of it": (table.read_bytes()[:99], b'{"dev": {"RR')}
    contents = figures.get(damage, (b"", b""))
    for path, content in zip((table, metrics), contents, strict=True):
        path.write_bytes(content)
    with pytest.raises(UserError, match="compare star: data/values/star is missing from this clone's cache, or corrupt"):
        compare(["star", "warmup"], "dev", None, shown=0, as_json=False)
    with pytest.raises(UserError, match="compare HEAD: metrics of star are missing from this clone's cache, or corrupt, so its best model"):
        compare(["HEAD", "warmup"], "dev", None, shown=0, as_json=False)
    git("update-ref", "refs/exps/ab/" + "c" * 38 + "/one", "HEAD", folder=project.folder)
    (experiment,) = store.list_experiments()
    assert list(experiment.metrics) == ["warmup"]
    values.write_bytes(values.read_bytes()[:9])
    assert listing(project.objects, object_id(values)) == {}
    with pytest.raises(UserError, match="compare star: data/values/star is missing from this clone's cache, or corrupt"):
        compare(["star", "warmup"], "dev", None, shown=0, as_json=False)
