"""`retemper evaluate` with its real stages: a model is measured as it is, whatever the project says of its own models."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.evaluating import evaluate
from flows.evaluating.evaluate import Settings, Shown
from flows.parameters.checks import check
from flows.parameters.needs import EMPTIED
from flows.process import locks
from flows.process.processes import Processes
from tasks.core.errors import Problem, UserError
from tasks.core.files import folder_digest
from tasks.core.params.sections import read_yaml
from tasks.core.tables.parquet import count_rows
from tests.forks import retemper

PLAIN: dict[str, None] = {"query": None, "document": None}
ONE = {"dev": 1, "test": 1}
AS_IS = Settings(PLAIN, PLAIN)


@pytest.fixture
def make_plan(small: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., evaluate.Plan]:
    """The plan of `retemper evaluate --model data/encoders/warmup --data beir:beir`, or of another one."""
    monkeypatch.chdir(small.folder)

    def plan(settings: Settings = AS_IS, model: str = "data/encoders/warmup", data: str = "beir:beir") -> evaluate.Plan:
        shown = evaluate.resolve_settings(settings, data)
        return evaluate.make_plan(model, data, read_yaml(Path("params.yaml")), settings=settings, shown=shown)

    return plan


@pytest.fixture
def evaluate_model(make_plan: Callable[..., evaluate.Plan], run_plan: Callable[[evaluate.Plan], Path]) -> Callable[..., Any]:
    """What that command measures, in a second tree beside the project."""

    def evaluate_plan(*args: Any, **kwargs: Any) -> Any:
        plan = make_plan(*args, **kwargs)
        return json.loads((run_plan(plan) / f"data/metrics/{plan.name}.json").read_text())

    return evaluate_plan


def test_a_model_is_evaluated_in_its_own_shape_with_its_own_prompts(small: Any, evaluate_model: Any) -> None:
    project = small.folder
    metrics, encoder = json.loads(small.read("data/metrics/warmup.json")), folder_digest(project / "data/encoders/warmup")
    small.set("base", {"pooling": "cls", "head": "linear_norm", "similarity": "cosine", "seed": 1})
    small.set("tokenize.query_prefix", "another model's: ")
    assert evaluate_model() == metrics
    assert folder_digest(project.with_name("beside") / "data/encoders/warmup") == encoder, "so kept shards of its vectors are found"
    small.folder = project
    assert evaluate_model(Settings({"query": "a chancellor of West Germany ", "document": None}, PLAIN)) != metrics


def test_a_model_of_two_towers_is_evaluated_as_it_is(small: Any, evaluate_model: Any) -> None:
    metrics, encoder = json.loads(small.read("data/metrics/tower.json")), folder_digest(small.folder / "data/encoders/tower")
    assert evaluate_model(model="data/encoders/tower") == metrics
    assert folder_digest(small.folder / "data/encoders/tower") == encoder


def test_how_texts_were_put_is_told(small: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(small.folder)
    line = evaluate.describe_texts(Path("data"), Shown(False, False, ONE))
    assert re.fullmatch(r"queries of at most \d+ tokens, prefix ''; documents of at most 24 tokens, prefix ''; titles off", line)
    longer_line = f"{line}; identical ids excluded; test: relevant from grade 2"
    assert evaluate.describe_texts(Path("data"), Shown(False, True, {"dev": 1, "test": 2})) == longer_line


def test_lengths_titles_and_tolerance_are_the_evaluations_own(small: Any, evaluate_model: Any) -> None:
    project, params, metrics = small.folder, small.read("params.yaml"), evaluate_model()
    small.folder = project
    corpus, qrels = small.read("beir/corpus.jsonl"), small.read("beir/qrels/test.tsv")
    small.write("beir/corpus.jsonl", corpus + b'{"_id": "void", "title": "", "text": ""}\n')
    small.write("beir/qrels/test.tsv", qrels + b"nobody\tnowhere\t1\n")
    assert evaluate_model(Settings(PLAIN, PLAIN, drop=True)) == metrics, "what is dropped changes nothing"
    small.folder = project
    assert evaluate_model(Settings(PLAIN, {"query": 5, "document": 30}, titles=True, drop=True)) != metrics
    meta = {kind: json.loads(next(small.folder.glob(f"data/tokens/{kind}/**/meta.json")).read_text()) for kind in ("queries", "documents")}
    assert (meta["queries"]["max_length"], meta["documents"]["max_length"]) == (5, 30)
    assert (project / "params.yaml").read_bytes() == params


def test_lengths_that_the_model_does_not_take(small: Any, make_plan: Any) -> None:
    small.set("tokenize.document_length", 2000)
    plan = make_plan()
    assert plan.notes == ["params.yaml: tokenize.document_length is 2000, above the model's limit; using 512"]
    assert {"tokenize.query_length=32", "tokenize.document_length=512"} <= set(plan.edits)
    with pytest.raises(UserError, match=r"^--document-length: found 600, expected at most 512, the model's limit; decrease it$"):
        make_plan(Settings(PLAIN, {"query": None, "document": 600}))
    result = small.retemper("evaluate", "--model", "data/encoders/warmup", "--data", "demo", "--query-length", "2")
    assert (result.status, result.err) == (2, "retemper: --query-length 2: expected at least 3 tokens, including special ones\n")


def test_the_command_line_hands_them_over(small: Any, make_plan: Any, monkeypatch: Any) -> None:
    settings: list[Any] = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *arguments, **_: settings.append(arguments[2]) or 0)
    flags = ["--document-length", "128", "--no-titles", "--drop", "--ignore-identical-ids", "--relevance", "2", "3"]
    result = small.retemper("evaluate", "--model", "m", "--data", "demo", *flags)
    assert result.status == 0, result
    assert settings == [Settings(PLAIN, {"query": None, "document": 128}, False, True, True, [2, 3])]
    edits = make_plan(settings[0]).edits
    dropped = {'prepare.unknown_documents="drop"', 'prepare.empty_texts="drop"'}
    assert dropped | {"text.titles=false", "tokenize.document_length=128", "retrieve.ignore_identical_ids=true"} <= set(edits)
    assert 'evaluate.relevance={"dev": 2, "test": 3}' in edits
    small.set("prepare.unknown_documents", "refuse")
    assert not dropped & set(make_plan().edits), "the project's own tolerance"
    assert {"prepare.official_depth=0", "bm25.depth=0"} <= set(make_plan().edits), "what only trainings read is not made"


def test_the_projects_least_grades_are_those_of_its_own_data(small: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(small.folder)
    small.set("evaluate.relevance", {"dev": 1, "test": 2})
    small.set("dataset.source", "beir:beir")
    for source in ("beir:beir", "beir:./beir", f"beir:{small.folder / 'beir'}"):
        assert evaluate.resolve_settings(AS_IS, source) == Shown(False, False, {"dev": 1, "test": 2})
    assert evaluate.resolve_settings(AS_IS, "beir:elsewhere") == evaluate.resolve_settings(AS_IS, "irds:beir") == Shown(False, False, ONE)
    for relevance, grades in (([3], {"dev": 3, "test": 3}), ([1, 3], {"dev": 1, "test": 3})):
        settings = Settings(PLAIN, PLAIN, titles=True, ignore_identical_ids=True, relevance=relevance)
        assert evaluate.resolve_settings(settings, "beir:beir") == Shown(True, True, grades)
    small.set("evaluate.relevance", 2)
    small.set("evaluate.measures", ["nDCG@10", "RR@10", "AP", "AP(rel=1)"])
    assert evaluate.resolve_settings(Settings(PLAIN, PLAIN, relevance=[2]), "demo").relevance == {"dev": 2, "test": 2}
    with pytest.raises(UserError, match=r"^--relevance \(a grade that suits evaluate.measures\): .*'AP\(rel=1\)' is listed twice"):
        evaluate.resolve_settings(AS_IS, "demo")
    for option in ("0", "1 0", "1 2 3"):
        result = small.retemper("evaluate", "--model", "data/encoders/warmup", "--data", "demo", "--relevance", *option.split())
        line = f"retemper: --relevance {option}: expected a grade of at least 1, or one for dev and one for test\n"
        assert (result.status, result.err) == (2, line)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("data/encoders/warmup", "beir:nowhere", "nowhere: not found, expected a BEIR folder with corpus.jsonl"),
        ("data/encoders/warmup", "tsv:beir", "dataset 'tsv:beir': unknown kind 'tsv', expected"),
        ("data/encoders/warmup", "some/beir", "some/beir: no such folder or file, expected one, or demo | beir:PATH"),
        (
            "warmup",
            "beir:beir",
            "--model warmup: found the name of a model of this project, expected its folder; give data/encoders/warmup",
        ),
        ("./nothing", "beir:beir", "encoder './nothing': no such folder and not a Hugging Face id"),
        ("beir", "beir:beir", "encoder 'beir': no config.json in beir, expected a Hugging Face model folder"),
        ("nobody/no-such-model", "beir:beir", "encoder nobody/no-such-model: not on this machine, and the download failed"),
    ],
)
def test_a_mistake_is_one_line_before_a_second_tree_is_made(small: Any, model: str, data: str, message: str) -> None:
    result = small.retemper("evaluate", "--model", model, "--data", data)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"retemper: {message}")
    assert not list(small.folder.glob(".retemper/evaluate*"))


def test_names_of_models_are_fit_for_a_round(make_plan: Any, small: Any) -> None:
    for folder, name in {"base": "model_base", "2026-03 Best!": "model_2026_03_best", "warmup": "warmup"}.items():
        path = small.folder / "saved" / folder
        shutil.copytree(small.folder / "data/encoders/warmup", path)
        plan = make_plan(model=str(path))
        assert (plan.name, plan.targets) == (name, [f"evaluate@{name}"])
        empty: dict[str, Any] = {section: {} for section in EMPTIED}
        check(read_yaml(small.folder / "params.yaml") | empty | {"rounds": {name: evaluate.AS_IT_IS}})


def test_a_fusion_is_evaluated_with_bm25_built_there_and_the_weight_as_chosen(small: Any, evaluate_model: Any) -> None:
    project, bm25 = small.folder, json.loads(small.read("data/metrics/bm25.json"))
    metrics, runs = json.loads(small.read("data/metrics/hybrid.json")), small.read("data/runs/hybrid/test.trec")
    assert evaluate_model(model="hybrid") == metrics, "on the project's own data the project's own figures"
    assert small.read("data/runs/hybrid/test.trec") == runs
    assert count_rows(small.folder / "data/candidates/train.parquet") == 0, "no training queries are searched"
    small.folder = project
    record = json.loads(small.read("data/runs/hybrid/fusion.json")) | {"weight": 1.0}
    small.write("data/runs/hybrid/fusion.json", json.dumps(record))  # BM25 alone
    for split, figures in evaluate_model(model="hybrid").items():
        assert figures["RR@10"] == pytest.approx(bm25[split]["RR@10"])


def test_a_fusion_of_two_encoders_is_evaluated(small: Any, evaluate_model: Any) -> None:
    project = small.folder
    small.set("fuse", {"two": {"first": "tower", "second": "warmup", "method": "rrf"}})
    record = {"first": "tower", "second": "warmup", "method": "rrf", "k": 7, "measure": "nDCG@10", "chosen_on": "dev", "grid": []}
    small.write("data/runs/two/fusion.json", json.dumps(record))
    evaluate_model(model="two")
    runs = {name: small.read(f"data/runs/{name}/test.trec") for name in ("tower", "warmup", "two")}
    assert runs["tower"] == (project / "data/runs/tower/test.trec").read_bytes()
    assert runs["warmup"] == (project / "data/runs/warmup/test.trec").read_bytes()
    assert b" two" in runs["two"] and json.loads(small.read("data/runs/two/fusion.json"))["k"] == 7


def test_how_a_fusion_got_its_weight_is_told(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.folder)
    sections, record = read_yaml(Path("params.yaml")), json.loads(small.read("data/runs/hybrid/fusion.json"))
    for chosen_on, origin in {"dev": "as chosen on this project's dev", None: "not chosen: this project has no dev"}.items():
        small.write("data/runs/hybrid/fusion.json", json.dumps(record | {"weight": 0.25, "chosen_on": chosen_on}))
        assert evaluate.describe_system("hybrid", sections) == f"hybrid: linear of bm25 and tower, weight 0.25, {origin}"
    small.write("data/runs/hybrid/fusion.json", json.dumps(record | {"weight": 0.25, "chosen_on": None, "why": "none of 6"}))
    assert evaluate.describe_system("hybrid", sections).endswith("not chosen: none of 6")
    small.write("data/runs/hybrid/fusion.json", json.dumps(record | {"weight": 0.25, "chosen_on": "params.yaml"}))
    assert evaluate.describe_system("hybrid", sections).endswith("weight 0.25, as in params.yaml")
    sections["fuse"]["hybrid"]["weight"] = 0.5
    with pytest.raises(UserError, match=r"found weight 0.25, expected 0.5 as in fuse.hybrid of params.yaml; run retemper run"):
        evaluate.describe_system("hybrid", sections)


def test_a_fusion_that_cannot_be_evaluated(small: Any) -> None:
    def refusal_of(name: str) -> str:
        result = small.retemper("evaluate", "--model", name, "--data", "beir:beir")
        assert (result.status, result.err.count("\n")) == (2, 1)
        return str(result.err)

    assert "fuse.three: is made from crossed, which reorders a run and cannot be searched for a new query" in refusal_of("three")
    small.set("fuse.hybrid.method", "rrf")
    assert (
        "data/runs/hybrid/fusion.json: found method linear, expected rrf as in fuse.hybrid of params.yaml; run retemper run"
        in refusal_of("hybrid")
    )
    shutil.rmtree(small.folder / "data/runs/hybrid")
    assert "data/runs/hybrid/fusion.json: not found: fuse.hybrid has not run yet; run retemper run" in refusal_of("hybrid")
    shutil.rmtree(small.folder / "data/encoders/tower")
    assert "data/encoders/tower: not found, and fuse.hybrid is made from it; run retemper run" in refusal_of("hybrid")


def commit(project: Path) -> None:
    author = ["-c", "user.name=small", "-c", "user.email=small@example.com"]
    for words in (["add", "--all"], [*author, "commit", "--quiet", "-m", "all"]):
        subprocess.run(["git", *words], cwd=project, check=True)


def test_why_a_run_failed_is_one_line_and_its_tree_is_gone(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(small.folder)
    outcomes: list[tuple[int, list[Problem]]] = [
        (2, [Problem("invalid", "a: b", 2)]),
        (1, [Problem("stage", "encode@warmup: failed with status 1; its log: .retemper/logs/encode@warmup.log", 1)]),
        (2, []),
        (137, []),
    ]

    def run_in(tree: Path, run: Any, *_: Any, show: Callable[[str], None], **__: Any) -> tuple[int, list[Problem]]:
        assert (
            run[-1] == "evaluate@warmup"
            and (tree / "tasks").is_dir()
            and read_yaml(tree / "params.yaml")["rounds"] == {"warmup": evaluate.AS_IT_IS}
        )
        for line in ("encode@warmup | at work", "encode@warmup Failed in 1 s", "retemper: warning: hot", "retemper: c: d"):
            show(line)
        return outcomes.pop(0)

    monkeypatch.setattr(evaluate, "run_in", run_in)
    expected = [(2, "a: b"), (1, "encode@warmup: failed with status 1; its output is above"), (1, "c: d"), (1, "c: d")]
    for status, line in expected:
        result = small.retemper("evaluate", "--model", "data/encoders/warmup", "--data", "beir", "--out", "found.json")
        assert (result.status, result.out) == (status, "encode@warmup | at work\n")
        assert result.err == f"retemper: warning: hot\nretemper: {line}\n"
        assert not list(small.folder.glob(".retemper/evaluate-*")) and not (small.folder / "found.json").exists()


def test_what_evaluations_keep_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = []
    for number in range(evaluate.DATASETS + 2):
        (tmp_path / f"tree{number}").mkdir()
        folders.append(evaluate.make_store(f"beir:{number}"))
        evaluate.link_store(folders[-1], tmp_path / f"tree{number}")
        (tmp_path / f"tree{number}/.retemper/shards/x.npy").touch()
        os.utime(folders[-1], (number, number))
    assert [folder.exists() for folder in folders] == [False, False] + [True] * evaluate.DATASETS
    (tmp_path / "again").mkdir()
    evaluate.link_store(evaluate.make_store("beir:./3"), tmp_path / "again")
    assert (tmp_path / "again/.retemper/shards/x.npy").exists(), "the same data, however its folder is spelled"


def test_what_an_evaluation_is_using_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removed the lock that a longer evaluation held, with its finished shards."""
    monkeypatch.chdir(tmp_path)
    used, *others = (evaluate.STORES / str(number) for number in range(evaluate.DATASETS + 2))
    for number, folder in enumerate((used, *others)):
        folder.mkdir(parents=True)
        os.utime(folder, (number, number))
    with locks.wait_and_hold(used / "lock"):
        os.utime(used, (0, 0))
        folder = evaluate.make_store("beir:x")
    assert set(evaluate.STORES.iterdir()) == {used, *others[2:], folder}


def test_what_is_kept_of_this_data_outlives_folders_of_the_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were used before the clock was set back."""
    monkeypatch.chdir(tmp_path)
    for number in range(evaluate.DATASETS + 1):
        (evaluate.STORES / str(number)).mkdir(parents=True)
        os.utime(evaluate.STORES / str(number), (2**33 + number, 2**33 + number))
    folder = evaluate.make_store("beir:x")
    assert set(evaluate.STORES.iterdir()) == {folder, *(evaluate.STORES / str(number) for number in range(2, evaluate.DATASETS + 1))}


def test_evaluations_of_one_data_set_run_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share scratch files."""
    first, lines = locks.wait_and_hold(tmp_path / "lock"), list[str]()
    first.__enter__()

    def note_and_release(text: str) -> None:
        lines.append(text)
        first.__exit__(None, None, None)

    monkeypatch.setattr(evaluate, "_second_run", lambda *_, **__: iter([tmp_path]))
    plan: Any = None
    display: Any = SimpleNamespace(line=note_and_release)
    with evaluate.second_run(plan, tmp_path, processes=Processes(), display=display) as tree:
        assert tree == tmp_path
    assert lines == ["another evaluation on this data is in progress; waiting for it to end"]


def test_an_evaluation_is_an_ordinary_run_beside_the_project(
    small: Any, toy_environment: dict[str, str], prepared: dict[str, str], server_url: str
) -> None:
    commit(small.folder)
    small.set("tokenize.query_prefix", "uncommitted: ")
    metrics, before = json.loads(small.read("data/metrics/warmup.json")), small.state()

    def call(*options: str) -> tuple[int, str, str]:
        command = ["evaluate", "--model", "data/encoders/warmup", "--data", "beir:beir", *options]
        with locks.hold_run_lock(small.folder / locks.RUN_LOCK):  # a run is in progress here
            result = retemper(command, small.folder, toy_environment | prepared | {"PREFECT_API_URL": server_url})
        assert small.state() == before, "data/, dvc.lock, params.yaml and all else stay as they are"
        assert not list(small.folder.glob(".retemper/evaluate-*"))
        return result.returncode, result.stdout, result.stderr

    status, _, err = call("--relevance", "1", "2")
    assert (status, err.count("\n")) == (2, 1)
    assert "beir: found 1 as the largest grade of test, expected at least 2, or no document is relevant; set evaluate.relevance" in err
    assert not list(small.folder.glob(".retemper/evaluate/*/shards/*")), "it was refused before anything was encoded"
    status, out, err = call("--out", str(small.folder.parent / "found.json"), "--mteb", str(small.folder.parent / "mteb.json"))
    assert (status, err) == (0, ""), out + err
    assert json.loads((small.folder.parent / "found.json").read_text()) == metrics
    task = json.loads((small.folder.parent / "mteb.json").read_text())
    assert task["task_name"] == "beir"
    assert task["dataset_revision"] == json.loads(small.read("data/source.json"))["dataset"]["digest"]
    assert {split: scores[0]["main_score"] for split, scores in task["scores"].items()} == {
        name: metrics[name]["nDCG@10"] for name in metrics
    }
    assert "evaluate@warmup | warmup: dev, 10 queries" in out and "summary" not in out
    assert out.splitlines()[-1].endswith("titles off") and f"{metrics['test']['nDCG@10']:.4f}" in out
    assert list(small.folder.glob(".retemper/evaluate/*/shards/*.npy")), "finished shards survive the tree"
    second_call = call()
    assert second_call[0] == 0 and " | " not in second_call[1], "nothing runs again"
    assert second_call[1].splitlines()[-4:] == out.splitlines()[-4:]


@pytest.mark.parametrize(
    ("source", "data", "left_out"), [("beir:beir", "beir:beir", True), ("beir:./beir", "beir:beir", True), ("demo", "beir:beir", False)]
)
def test_what_is_forgotten_stays_out_of_the_projects_own_data(
    small: Any, make_plan: Any, monkeypatch: pytest.MonkeyPatch, source: str, data: str, left_out: bool
) -> None:
    """In the second tree its path is absolute: another name for the same folder."""
    small.set("dataset.source", source)
    plan, tree = make_plan(data=data), small.folder.with_name("second")
    (tree / ".retemper").mkdir(parents=True)
    for name in ("make_worktree", "temp_tree"):
        monkeypatch.setattr(evaluate, name, lambda *_: tree)
    for name in ("carry_changes", "read_changes", "remove_worktree", "commit_of", "write_source"):
        monkeypatch.setattr(evaluate, name, lambda *_: None)
    monkeypatch.setattr(evaluate, "equip", lambda folder: (folder / "forgotten.txt").touch())
    shutil.copy(small.folder / "params.yaml", tree)
    monkeypatch.setattr(evaluate, "_run", lambda *_, **__: (tree / "dvc.lock").write_text("x") and None)
    display: Any = None
    with evaluate.second_run(plan, small.folder.with_name("kept"), processes=Processes(), display=display):
        assert (tree / "forgotten.txt").exists() is left_out
        assert read_yaml(tree / "params.yaml")["dataset"]["source"] == f"beir:{small.folder / 'beir'}"
