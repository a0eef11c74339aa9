"""dvc.yaml against the code: every stage tracks its code and the parameters that it reads, and the graph holds together."""

import ast
import re
from contextlib import chdir
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from tasks.core.stage.frozen import SHOWN

ROOT = Path(__file__).resolve().parents[1]
NOT_STAGES = {"core", "search", "freeze"}  # folders of tasks/ that are no stage of the data
MEASURING = {"retrieve", "rerank", "rescore", "fuse", "evaluate"}
OF_THE_FLOW = {"extra"}  # sections that no stage reads
OF_FREEZE = {"order"}  # keys of data/params.json that params.yaml lacks
BY_DIGEST = {"dataset", "encoder"}  # sections whose meaning data/source.json carries
MODULE = re.compile(r"python -m tasks\.(\w+)")


def read(name: str, root: Path = ROOT) -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load((root / name).read_text(encoding="utf-8"))


def stages() -> dict[str, dict[str, Any]]:
    """Every entry of dvc.yaml, the body of a foreach for its stages."""
    return {name: stage.get("do", stage) for name, stage in read("dvc.yaml")["stages"].items() if name != "freeze"}


def folder_of(stage: dict[str, Any]) -> str:
    """The folder of tasks/ that a stage runs."""
    match = MODULE.match(stage["cmd"])
    assert match, f"{stage['cmd']}: expected python -m tasks.STAGE"
    return match[1]


def section_of(entry: str) -> str:
    return entry.split(".")[0]


def tracked_sections(stage: dict[str, Any], file: str = "data/params.json") -> set[str]:
    """The sections of a file of parameters in a stage's params."""
    return {section_of(key) for entry in stage.get("params", []) for name, keys in entry.items() if name == file for key in keys}


def loaded_sections(stage: str) -> set[str]:
    """The sections that a stage's own code passes to tasks.core.params.sections.load or gets from all sections, by their literal text."""
    sections: set[str] = set()
    for file in (ROOT / "tasks" / stage).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            call = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and ((call == "load" and len(node.args) > 1) or call == "sections.get"):
                name = node.args[1 if call == "load" else 0]
                value = name.values[0] if isinstance(name, ast.JoinedStr) else name
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    sections.add(section_of(value.value))
    return sections


@pytest.fixture(scope="module")
def repo(checkout: Path) -> Any:
    with chdir(checkout), Repo() as opened:
        yield opened


@pytest.fixture(scope="module")
def params(checkout: Path) -> dict[str, Any]:
    return read("params.yaml", checkout)


@pytest.mark.parametrize("name", stages())
def test_a_stage_tracks_the_digest_of_its_own_code_and_names_no_file_of_it(name: str) -> None:
    stage = stages()[name]
    assert tracked_sections(stage, "data/code.json") == {folder_of(stage)}
    assert not [dep for dep in stage.get("deps", []) if not dep.startswith("data/")], f"dvc.yaml: {name}: code is tracked by its digest"


def test_the_graph_resolves_and_has_no_cycle(repo: Any, params: dict[str, Any]) -> None:
    repo.index.check_graph()
    assert nx.is_directed_acyclic_graph(repo.index.graph)
    names = {stage.addressing for stage in repo.index.stages}
    for name, stage in read("dvc.yaml")["stages"].items():
        if "foreach" in stage:
            keys = params[stage["foreach"].removeprefix("${").removesuffix("}")]
            assert {f"{name}@{key}" for key in keys} == {stage_name for stage_name in names if stage_name.startswith(f"{name}@")}
        else:
            assert name in names


def test_the_report_comes_after_everything_it_shows(repo: Any, params: dict[str, Any]) -> None:
    graph = repo.index.graph
    report = next(stage for stage in graph if stage.addressing == "report")
    upstream = {stage.addressing for stage in nx.descendants(graph, report)}  # DVC draws edges from a stage to what it reads
    expected = {"prepare", "base", "tokenize", "bm25", "retrieve_bm25", "evaluate_bm25"}
    expected |= {f"{name}@{key}" for name in ("train", "encode", "index", "retrieve", "evaluate") for key in params["rounds"]}
    expected |= {f"mine@{entry['negatives']}" for entry in params["rounds"].values() if entry["negatives"] in params["mine"]}
    expected |= {f"{name}@{key}" for name in ("adore", "retrieve_adore", "evaluate_adore") for key in params["adore"]}
    assert expected <= upstream, f"not before report: {sorted(expected - upstream)}"


def test_later_stages_read_the_queries_that_are_asked_for(checkout: Path, params: dict[str, Any], tmp_path: Path) -> None:
    graphs = {}
    for queries in ("corpus", "pseudo"):
        folder = tmp_path / queries
        (folder / "data").mkdir(parents=True)
        (folder / "dvc.yaml").write_text((checkout / "dvc.yaml").read_text())
        text = (checkout / "params.yaml").read_text().replace(f"\nqueries: {params['queries']} ", f"\nqueries: {queries} ")
        (folder / "params.yaml").write_text(text)
        with chdir(folder), Repo.init(no_scm=True) as opened:
            stages_of = {stage.addressing: stage for stage in opened.index.stages}
            upstream = {stage.addressing for stage in nx.descendants(opened.index.graph, stages_of["report"])}
            graphs[queries] = (
                upstream,
                {name: (stage.cmd, sorted(dep.def_path for dep in stage.deps)) for name, stage in stages_of.items()},
            )
    assert "pseudo" not in graphs["corpus"][0] and "pseudo" in graphs["pseudo"][0]
    maker = {"prepare", "base", "pseudo", "freeze", "articles", "encoders", "chunk"}
    for name, (cmd, deps) in graphs["corpus"][1].items():
        pseudo_stage = graphs["pseudo"][1][name]
        if name in maker:
            assert pseudo_stage == (cmd, deps)
        else:
            assert pseudo_stage == (
                cmd.replace("data/corpus", "data/pseudo"),
                sorted(dep.replace("data/corpus", "data/pseudo") for dep in deps),
            ), name
            assert "data/pseudo" not in cmd


@pytest.mark.parametrize("name", [name for name, stage in stages().items() if folder_of(stage) in MEASURING])
def test_new_training_queries_change_no_run_and_no_measure(name: str) -> None:
    of_train = ["data/tokens/queries/train"]  # BM25's candidates are of all splits; its runs, made again in a second, stay the same
    of_train += [f"data/${{queries}}/{kind}/train.parquet" for kind in ("queries", "qrels")]
    for dep in stages()[name]["deps"]:
        assert not [path for path in of_train if path == dep or path.startswith(f"{dep}/")], dep


def test_what_shows_systems_in_the_order_of_params_yaml_depends_on_it() -> None:
    assert {name for name, stage in stages().items() if "order" in tracked_sections(stage)} == {"report", "failures"}
    assert set(SHOWN) <= tracked_sections(stages()["report"])


@pytest.mark.parametrize("name", ["train", "mine", "mix", "adore", "reranker", "teacher"])
def test_new_judgments_of_dev_train_nothing_again(name: str) -> None:
    of_dev = ["data/tokens/queries/dev", *(f"data/${{queries}}/{kind}/dev.parquet" for kind in ("queries", "qrels"))]
    for dep in stages()[name]["deps"]:
        assert not [path for path in of_dev if path == dep or path.startswith(f"{dep}/")], dep


def test_every_section_is_tracked_and_every_tracked_key_is_there(repo: Any, params: dict[str, Any]) -> None:
    tracked_keys = set.union(*map(tracked_sections, stages().values()))
    untracked, unknown = set(params) - tracked_keys - BY_DIGEST - OF_THE_FLOW, tracked_keys - set(params) - OF_FREEZE
    named_sections = {section for section in OF_THE_FLOW if f"${{{section}" in (ROOT / "dvc.yaml").read_text(encoding="utf-8")}
    assert not named_sections | (tracked_keys & OF_THE_FLOW), "a further data set would make stages of the main one run again"
    assert not untracked | unknown, f"params.yaml and dvc.yaml differ in {untracked | unknown}"
    for stage in repo.index.stages:
        for dependency in stage.params:
            if dependency.def_path == "data/params.json":
                for entry in set(dependency.params) - OF_FREEZE:
                    value: Any = params
                    for key in entry.split("."):
                        assert key in value, f"dvc.yaml: {stage.addressing}: params: {entry} is not in params.yaml"
                        value = value[key]


@pytest.mark.parametrize("name", stages())
def test_a_stage_tracks_the_sections_that_it_loads(name: str) -> None:
    stage = stages()[name]
    untracked = loaded_sections(folder_of(stage)) - tracked_sections(stage) - BY_DIGEST
    assert not untracked, f"dvc.yaml: {name}: its code loads {', '.join(sorted(untracked))}; add to params, or a change re-runs nothing"


@pytest.mark.parametrize("name", stages())
def test_a_stage_says_how_its_code_uses_several_workers(name: str) -> None:
    """meta.workers: the flow takes GPUs by it. A study trains on one; retrievals of BM25 and others without a slot keep no GPU busy."""
    stage = stages()[name]
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tasks" / folder_of(stage)).rglob("*.py"))
    expected = "pieces" if "open_workers(" in code else "together" if "open_ranks(" in code else None
    meta = stage.get("meta", {})
    assert meta.get("workers") == (expected if "slot" in meta and name != "study" else None)


def test_commands_hold_no_shell_syntax(repo: Any) -> None:
    for stage in repo.index.stages:
        assert re.fullmatch(r"python -m tasks\.\w+( [A-Za-z0-9_./-]+)*", stage.cmd), f"{stage.addressing}: {stage.cmd}"


def test_every_stage_folder_has_its_entry_its_params_and_a_stage() -> None:
    folders = {path.name for path in (ROOT / "tasks").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    run = {folder_of(stage) for stage in stages().values()}
    assert folders - NOT_STAGES == run, f"tasks/ and dvc.yaml differ in {(folders - NOT_STAGES) ^ run}"
    for name in folders - {"core"}:
        assert (ROOT / "tasks" / name / "__main__.py").is_file(), f"tasks/{name}: no __main__.py"
    for name in run:
        assert (ROOT / "tasks" / name / "params.py").is_file(), f"tasks/{name}: no params.py"
