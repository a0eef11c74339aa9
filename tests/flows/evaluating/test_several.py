"""`retemper evaluate` of several models and data sets: which share a run, what is refused before the first one, and what is left of one
that fails."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from flows.evaluating import evaluate, several
from flows.evaluating.evaluate import Plan, Settings
from flows.parameters import edit
from flows.parameters.sources import source_keys
from flows.process.problems import RunFailed
from flows.process.processes import Processes
from tasks.core.errors import Problem, UserError
from tasks.core.params.sections import read_yaml

PLAIN: dict[str, None] = {"query": None, "document": None}
AS_IS = Settings(PLAIN, PLAIN)
MODELS = {"init": "data/encoders/init", "warmup": "data/encoders/warmup", "bm25": "bm25"}


def options(name: str, *values: str) -> list[str]:
    return [word for value in values for word in (name, value)]


@pytest.fixture
def project(small: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A finished project, its data set, and two copies of it, one of which has no test."""
    monkeypatch.chdir(small.folder)
    shutil.copytree(small.folder / "beir", small.folder / "copied")
    shutil.copytree(small.folder / "beir", small.folder / "old/beir")
    (small.folder / "old/beir/qrels/test.tsv").unlink()
    return small


@pytest.fixture
def runs(project: Any, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Fake second trees, each with what the project measured; returns the plans that are run. A file `failN` fails the Nth."""
    plans: list[Plan] = []

    @contextmanager
    def second_run(plan: Plan, *_: Any, **__: Any) -> Iterator[Path]:
        plans.append(plan)
        tree = project.folder / f"tree{len(plans)}"
        source = next(edit for edit in plan.edits if edit.startswith("dataset.source"))
        for name in ("metrics", "values", "corpus", "tokens"):
            shutil.copytree(project.folder / "data" / name, tree / "data" / name)
        (tree / "data/source.json").write_text(json.dumps({"dataset": {"digest": f"digest of {Path(source).name[:-1]}"}}))
        failed = project.folder / f"fail{len(plans)}"
        for system in failed.read_text().split() if failed.exists() else ():
            (tree / f"data/metrics/{system}.json").unlink()
        if "old" in source:
            for file in (tree / "data/metrics").glob("*.json"):
                file.write_text(json.dumps({"dev": json.loads(file.read_text())["dev"]}))
        yield tree
        if failed.exists():
            raise RunFailed(Problem("stage", "encode: failed", 1))

    monkeypatch.setattr(several, "second_run", second_run)
    return plans


def groups_of(models: dict[str, str], settings: Settings = AS_IS) -> list[several.Group]:
    return list(several.group_runs(models, read_yaml(Path("params.yaml")), settings))


def test_models_of_one_tokenizer_share_a_run_and_have_their_own_figures(project: Any, run_plan: Callable[[Plan], Path]) -> None:
    metrics = {name: json.loads(project.read(f"data/metrics/{name}.json")) for name in ("init", "warmup", "tower", "bm25")}
    (group,) = groups_of({"w": "data/encoders/warmup", "bm25": "bm25", "i": "data/encoders/init", "t": "data/encoders/tower"})
    assert dict(group.systems) == {"w": "w", "i": "i", "t": "t", "bm25": "bm25"}
    shown = evaluate.resolve_settings(AS_IS, "beir:copied")
    tree = run_plan(group.plan("beir:copied", read_yaml(Path("params.yaml")), settings=AS_IS, shown=shown))
    measured = {file.stem: json.loads(file.read_text()) for file in (tree / "data/metrics").glob("*.json")}
    assert measured == {"i": metrics["init"], "w": metrics["warmup"], "t": metrics["tower"], "bm25": metrics["bm25"]}


def test_bm25_alone_is_measured(project: Any, run_plan: Callable[[Plan], Path]) -> None:
    metrics = json.loads(project.read("data/metrics/bm25.json"))
    plan = evaluate.make_plan(
        "bm25", "beir:copied", read_yaml(Path("params.yaml")), settings=AS_IS, shown=evaluate.resolve_settings(AS_IS, "beir:copied")
    )
    tree = run_plan(plan)
    assert json.loads((tree / "data/metrics/bm25.json").read_text()) == metrics
    assert not (tree / "data/encoders").exists() and not (tree / "data/tokens").exists(), "no encoder is read"
    assert evaluate.describe_texts(tree / "data", evaluate.resolve_settings(AS_IS, "beir:copied")) == "titles off"
    assert evaluate.describe_model("bm25", read_yaml(Path("params.yaml"))) == ["bm25: k1 0.9, b 0.4"]


def test_a_model_that_reads_other_tokens_has_a_run_of_its_own(project: Any) -> None:
    for name in ("prompted", "shorter", "other", "lower", "cased"):
        shutil.copytree(project.folder / "data/encoders/warmup", project.folder / "saved" / name)
    config_file = project.folder / "saved/prompted/config_sentence_transformers.json"
    config = json.loads(config_file.read_text()) if config_file.exists() else {}
    project.write(str(config_file.relative_to(project.folder)), json.dumps(config | {"prompts": {"query": "q: ", "document": ""}}))
    for name, change in (("shorter", {"model_max_length": 40}), ("other", {"note": "another"})):
        file = f"saved/{name}/tokenizer_config.json"
        project.write(file, json.dumps(json.loads(project.read(file)) | change))
    for name in ("lower", "cased"):
        project.write(f"saved/{name}/sentence_bert_config.json", json.dumps({"do_lower_case": name == "lower"}))
    models = MODELS | {name: f"saved/{name}" for name in ("prompted", "shorter", "other")} | {"hybrid": "hybrid"}
    assert [list(group.systems) for group in groups_of(models)] == [
        ["init", "warmup", "bm25"],
        ["prompted"],
        ["shorter"],
        ["other"],
        ["hybrid"],
    ]
    assert [list(group.systems) for group in groups_of({name: f"saved/{name}" for name in ("lower", "cased")})] == [["lower"], ["cased"]]
    settings = Settings({"query": "x", "document": None}, PLAIN)
    assert list(groups_of(models, settings)[0].systems) == ["init", "warmup", "prompted", "bm25"]
    assert [group.lock for group in groups_of(models)] == ["several-0", "prompted", "shorter", "other", "hybrid"]
    assert [list(group.systems) for group in groups_of({"hybrid": "hybrid", "bm25": "bm25"})] == [["hybrid"], ["bm25"]]


@pytest.mark.usefixtures("project")
def test_systems_of_a_run_have_names_of_their_own() -> None:
    (group,) = groups_of({"a/B": "data/encoders/init", "a-b": "data/encoders/warmup"})
    assert dict(group.systems) == {"a/B": "b", "a-b": "a_b"}
    (group,) = groups_of({"x/B": "data/encoders/init", "y/b": "data/encoders/warmup"})
    assert dict(group.systems) == {"x/B": "b", "y/b": "b_2"} and dict(group.sources) == {
        "b": "data/encoders/init",
        "b_2": "data/encoders/warmup",
    }


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["/a/nfcorpus", "/a/scifact"], ["nfcorpus", "scifact"]),
        (["/old/x/scifact", "/new/x/scifact", "/new/fiqa"], ["old/x/scifact", "new/x/scifact", "fiqa"]),
        (["package:one/model", "package:two/model"], ["one/model", "two/model"]),
        (["bm25", "/a/bm25"], ["bm25", "a/bm25"]),
        (["/a/x", "/a/x"], ["given 0", "given 1"]),
        (["demo", "/x/demo/"], ["demo", "x/demo"]),
    ],
)
def test_short_names_tell_apart(sources: list[str], expected: list[str]) -> None:
    assert several.labels(sources, [f"given {number}" for number in range(len(sources))]) == expected


def test_a_table_of_all(project: Any, runs: list[Plan]) -> None:
    flags = options("--model", *MODELS.values()) + options("--data", "beir:beir", "beir:copied", "beir:old/beir")
    before = project.state()
    result = project.retemper("evaluate", *flags, "--out", "../found.json", "--mteb", "../mteb")
    assert (result.status, result.err, len(runs)) == (0, "", 3)
    metrics = {name: json.loads(project.read(f"data/metrics/{name}.json")) for name in MODELS}
    rows = [line.split() for line in result.out.splitlines()]
    labels = ["project/beir", "copied", "old/beir"]
    heads = [(label, split) for label in labels for split in ("dev", "test") if (label, split) != ("old/beir", "test")]
    table = {(row[0], row[1]): row for row in rows if tuple(row[:2]) in heads}
    assert list(table) == heads
    for (_, split), row in table.items():
        figures = [float(cell.rstrip("*+-")) for cell in row[2:] if "." in cell]
        assert figures == [round(metrics[name][split]["nDCG@10"], 4) for name in MODELS]
        assert row[2] == str(pq.read_table(project.folder / f"data/values/init/{split}.parquet").num_rows)
    means = {name: (2 * metrics[name]["test"]["nDCG@10"] + metrics[name]["dev"]["nDCG@10"]) / 3 for name in MODELS}
    mean_row = next(row for row in rows if row[:1] == ["mean"])
    assert [float(cell.rstrip("*+-")) for cell in mean_row if "." in cell] == [round(mean, 4) for mean in means.values()]
    assert "mean: unweighted, over 3 data sets: test, but dev of old/beir, which has no test" in result.out

    report = json.loads((project.folder.parent / "found.json").read_text())
    assert report["metrics"]["copied"] == metrics and list(report["models"].items()) == list(MODELS.items())
    assert report["data"]["copied"] == {"source": "beir:copied", "revision": "digest of copied"}
    assert report["mean"]["models"]["bm25"]["nDCG@10"] == pytest.approx(means["bm25"]) and report["failed"] == {}
    files = {str(file.relative_to(project.folder.parent / "mteb")) for file in (project.folder.parent / "mteb").rglob("*.json")}
    assert files == {f"{model}/{label.replace('/', '__')}.json" for model in MODELS for label in labels}
    task = json.loads((project.folder.parent / "mteb/init/copied.json").read_text())
    assert task["scores"]["test"][0]["main_score"] == metrics["init"]["test"]["nDCG@10"] and task["dataset_revision"] == "digest of copied"
    added = {name: digest for name, digest in project.state().items() if name not in before and not name.startswith("tree")}
    assert not added, "the project stays as it is"


def test_one_that_fails_leaves_the_others_and_the_status_says_so(project: Any, runs: list[Plan]) -> None:
    project.write("fail1", "init warmup bm25")
    project.write("fail2", "warmup")
    flags = options("--model", *MODELS.values()) + options("--data", "beir:beir", "beir:copied", "beir:old/beir")
    result = project.retemper("evaluate", *flags, "--out", "found.json")
    lines = [f"retemper: init, warmup, bm25 on beir:{name}: encode: failed" for name in ("beir", "copied")]
    assert (result.status, result.err.splitlines(), len(runs)) == (1, lines, 3)
    report = json.loads(project.read("found.json"))
    assert {label: list(models) for label, models in report["metrics"].items()} == {"copied": ["init", "bm25"], "old/beir": list(MODELS)}
    assert list(report["failed"]) == [f"init, warmup, bm25 on beir:{name}" for name in ("beir", "copied")]
    assert report["data"]["project/beir"]["revision"] is None and report["mean"]["models"] == {}, "one set alone has every model"
    assert "mean" not in result.out.split()
    for number in (4, 5, 6):
        project.write(f"fail{number}", "init warmup bm25")
    result = project.retemper("evaluate", *flags)
    assert (result.status, result.err.count("\n")) == (1, 3) and "nDCG@10" not in result.out


@pytest.mark.parametrize(
    ("models", "data", "message"),
    [
        ((), ("beir:nowhere",), "nowhere: not found, expected a BEIR folder with corpus.jsonl"),
        ((), ("tsv:beir",), "dataset 'tsv:beir': unknown kind 'tsv', expected"),
        ((), ("beir:./copied",), "--data beir:./copied: found the same as --data beir:copied, expected each once; remove one of them"),
        ((), ("beir:unjudged",), "--data beir:unjudged: found qrels of train, expected dev or test, on which models are measured; add one"),
        (("data/encoders/init/",), (), "--model data/encoders/init/: found the same as --model data/encoders/init, expected each once"),
        (("bm25", "bm25"), (), "--model bm25: found the same as --model bm25, expected each once; remove one of them"),
        (("warmup",), (), "--model warmup: found the name of a model of this project, expected its folder; give data/encoders/warmup"),
        (("beir",), (), "encoder 'beir': no config.json in beir, expected a Hugging Face model folder"),
        (("./nothing",), (), "encoder './nothing': no such folder and not a Hugging Face id"),
        (("three",), (), "fuse.three: is made from crossed, which reorders a run and cannot be searched for a new query"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    project: Any, runs: list[Plan], models: tuple[str, ...], data: tuple[str, ...], message: str
) -> None:
    shutil.copytree(project.folder / "beir", project.folder / "unjudged")
    for split in ("dev", "test"):
        (project.folder / f"unjudged/qrels/{split}.tsv").unlink()
    arguments = (*options("--model", "data/encoders/init", *models), *options("--data", "beir:beir", "beir:copied", *data))
    result = project.retemper("evaluate", *arguments)
    assert (result.status, result.out, result.err.count("\n"), runs) == (2, "", 1, [])
    assert result.err.startswith(f"retemper: {message}")


def test_a_place_for_several_results(project: Any, runs: list[Plan]) -> None:
    arguments = ("evaluate", "--model", "data/encoders/init", "--data", "beir:beir", "--data", "beir:copied")
    result = project.retemper(*arguments, "--mteb", "params.yaml")
    line = "retemper: --mteb params.yaml: found a file, expected a folder: several models or data sets have a file each\n"
    assert (result.status, result.err, runs) == (2, line, [])
    project.set("evaluate.measures", ["nDCG@10", "RR@10"])
    assert project.retemper(*arguments, "--mteb", ".").status == 0, "a folder that is there"
    assert json.loads(project.read("init/copied.json"))["task_name"] == "copied"


def test_what_was_cut_is_said_once(project: Any, runs: list[Plan]) -> None:
    project.set("tokenize.document_length", 2000)
    flags = options("--model", "data/encoders/init", "data/encoders/warmup") + options("--data", "beir:beir", "beir:copied")
    assert project.retemper("evaluate", *flags).status == 0
    note = "init, warmup: params.yaml: tokenize.document_length is 2000, above the model's limit; using 512"
    assert [list(plan.notes) for plan in runs] == [[note], []]
    assert all(plan.partial for plan in runs)


def test_as_many_data_sets_are_kept_as_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed evaluation of 18 data sets can resume even at the 18th."""
    monkeypatch.chdir(tmp_path)
    sources = [f"beir:{number}" for number in range(evaluate.DATASETS + 3)]
    folders = [evaluate.make_store(source, len(sources)) for source in sources]
    assert all(folder.exists() for folder in folders)
    evaluate.make_store("beir:0", 1)
    assert sum(folder.exists() for folder in folders) == evaluate.DATASETS, "an evaluation of fewer keeps as many as ever"


def test_a_partial_run_keeps_what_it_finished(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        evaluate, "_run", lambda tree, *_, **__: (tree / "dvc.lock").write_text("schema: '2.0'\n") and Problem("x", "no", 1)
    )
    for name in ("make_worktree", "temp_tree"):
        monkeypatch.setattr(evaluate, name, lambda *_: project.folder.with_name("tree"))
    for name in ("carry_changes", "read_changes", "equip", "remove_worktree", "commit_of", "write_source"):
        monkeypatch.setattr(evaluate, name, lambda *_: None)
    display: Any = None
    for partial in (True, False):
        (project.folder.with_name("tree") / ".retemper").mkdir(parents=True, exist_ok=True)
        shutil.rmtree(project.folder.with_name("tree") / ".retemper")
        shutil.copy(project.folder / "params.yaml", project.folder.with_name("tree"))
        trees: list[Path] = []
        folder = project.folder.with_name(f"kept{partial}")
        plan = Plan("several-0", ["evaluate@x"], ["evaluate.relevance=1"], [], partial)
        with pytest.raises(RunFailed, match="no"), evaluate.second_run(plan, folder, processes=Processes(), display=display) as tree:
            trees.append(tree)
        assert (bool(trees), (folder / "several-0.lock").exists()) == (partial, partial)


def test_a_truncated_lock_of_an_earlier_run_counts_as_none(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written in place. Each later evaluation copied it in and ended with an invalid dvc.lock of a tree that is removed."""
    tree, folder, display = project.folder.with_name("tree"), project.folder.with_name("kept"), cast("Any", None)
    (tree / ".retemper").mkdir(parents=True)
    folder.mkdir()
    (folder / "x.lock").write_text("schema: '2.0'\nstages:\n  a:\n    cm")
    os.link(folder / "x.lock", folder / "former.lock")
    shutil.copy(project.folder / "params.yaml", tree)
    for name in ("make_worktree", "temp_tree"):
        monkeypatch.setattr(evaluate, name, lambda *_: tree)
    for name in ("carry_changes", "read_changes", "equip", "remove_worktree", "commit_of", "write_source"):
        monkeypatch.setattr(evaluate, name, lambda *_: None)
    text, before = "schema: '2.0'\nstages: {}\n", list[str]()

    def run_stages(tree: Path, *_: Any, **__: Any) -> None:
        before.append((tree / "dvc.lock").read_text() if (tree / "dvc.lock").exists() else "")
        (tree / "dvc.lock").write_text(text)

    monkeypatch.setattr(evaluate, "_run", run_stages)
    for _ in range(2):
        with evaluate.second_run(Plan("x", ["evaluate@x"], ["evaluate.relevance=1"], []), folder, processes=Processes(), display=display):
            assert (folder / "x.lock").read_text() == text != (folder / "former.lock").read_text(), "a new file, not written in place"
        shutil.rmtree(tree / ".retemper")
    assert before == ["", text]


def test_a_run_that_could_not_begin_is_a_problem_of_its_own(project: Any, runs: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise UserError("data/source.json: unreadable")

    monkeypatch.setattr(several, "second_run", refuse)
    result = project.retemper("evaluate", "--model", "data/encoders/init", *options("--data", "beir:beir", "beir:copied"))
    lines = [f"retemper: init on beir:{name}: data/source.json: unreadable" for name in ("beir", "copied")]
    assert (result.status, result.err.splitlines(), runs) == (2, lines, [])


def test_the_generator_of_pseudo_queries_is_not_looked_for(project: Any) -> None:
    """A relative one would be missing from the second tree, and a warning would say so each time."""
    params = Path("params.yaml")
    plan = evaluate.make_plan(
        "bm25", "beir:copied", read_yaml(params), settings=AS_IS, shown=evaluate.resolve_settings(AS_IS, "beir:copied")
    )
    project.set("pseudo.generator", "../t5")
    assert dict(source_keys(read_yaml(params)))["pseudo.generator"] == "../t5"
    edit.apply(plan.edits, params, lambda _: None)
    assert "pseudo.generator" not in dict(source_keys(read_yaml(params)))
