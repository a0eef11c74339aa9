"""dvc.yaml against the code: what a stage imports and which parameters it reads stand in its deps, and the graph holds together.

`python tests/test_graph.py` prints the code deps that every stage should have, ready to paste.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
NOT_STAGES = {"core", "search"}  # folders of tasks/ that no stage of dvc.yaml runs
BY_DIGEST = {"dataset", "encoder"}  # sections whose meaning data/source.json carries
MODULE = re.compile(r"python -m tasks\.(\w+)")


def read(name: str) -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load((ROOT / name).read_text(encoding="utf-8"))


def stages() -> dict[str, dict[str, Any]]:
    """Every entry of dvc.yaml, the body of a foreach for its stages."""
    return {name: stage.get("do", stage) for name, stage in read("dvc.yaml")["stages"].items()}


def folder(stage: dict[str, Any]) -> str:
    """The folder of tasks/ that a stage runs."""
    found = MODULE.match(stage["cmd"])
    assert found, f"{stage['cmd']}: expected python -m tasks.STAGE"
    return found[1]


def module_file(root: Path, module: str) -> Path | None:
    """The source file of a dotted module below `root`, None where there is none."""
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported(root: Path, file: Path) -> set[str]:
    """Every module of tasks/ that `file` names in an import, wherever it stands; the packages above it as well."""
    package = file.relative_to(root).with_suffix("").parts[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    whole = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
    return {name for name in whole if name.split(".")[0] == "tasks"}


def only_docstring(file: Path) -> bool:
    """Whether a file can change no result."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)


@cache
def closure(root: Path, stage: str) -> frozenset[str]:
    """Files below `root` that `python -m tasks.STAGE` can import, as deps name them: its own folder and single files elsewhere."""
    own = root / "tasks" / stage
    waiting = [*own.rglob("*.py"), root / "tasks" / "__init__.py"]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += [found for name in imported(root, file) if (found := module_file(root, name))]
    outside = {file for file in seen if own not in file.parents and not only_docstring(file)}
    return frozenset({f"tasks/{stage}", *(file.relative_to(root).as_posix() for file in outside)})


def code_deps(stage: dict[str, Any]) -> list[str]:
    return [dep for dep in stage["deps"] if dep.startswith("tasks/")]


def section(entry: str) -> str:
    return entry.split(".")[0]


def tracked(stage: dict[str, Any]) -> set[str]:
    """The sections of params.yaml in a stage's params."""
    return {section(entry) for entry in stage.get("params", []) if isinstance(entry, str)}


def loaded(stage: str) -> set[str]:
    """The sections that a stage's own code passes to tasks.core.stage.params.load, by their literal text."""
    found: set[str] = set()
    for file in (ROOT / "tasks" / stage).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load" and len(node.args) > 1:
                value = node.args[1].values[0] if isinstance(node.args[1], ast.JoinedStr) else node.args[1]
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found.add(section(value.value))
    return found


@pytest.fixture(scope="module")
def repo() -> Any:
    with Repo(str(ROOT)) as opened:
        yield opened


@pytest.mark.parametrize("name", stages())
def test_a_stage_depends_on_exactly_the_code_it_imports(name: str) -> None:
    stage = stages()[name]
    wanted, present = closure(ROOT, folder(stage)), code_deps(stage)
    missing, superfluous = sorted(wanted - set(present)), sorted(set(present) - wanted)
    assert not missing, f"dvc.yaml: {name}: add to deps:\n" + "\n".join(f"        - {file}" for file in missing)
    assert not superfluous, f"dvc.yaml: {name}: imports none of {', '.join(superfluous)}; take them out of deps"
    assert len(present) == len(set(present)), f"dvc.yaml: {name}: a file stands twice in deps"


def test_the_walk_finds_lazy_relative_and_indirect_imports(tmp_path: Path) -> None:
    files = {
        "tasks/__init__.py": '"""Only words."""',
        "tasks/core/__init__.py": '"""Only words."""',
        "tasks/core/a.py": "from tasks.core import b\n",
        "tasks/core/b.py": "",
        "tasks/core/c.py": "def f():\n    import tasks.core.d as d\n    return d\n",
        "tasks/core/d.py": "x = 1\n",
        "tasks/core/deep/__init__.py": "y = 2\n",
        "tasks/core/deep/e.py": "z = 3\n",
        "tasks/core/unused.py": "x = 1\n",
        "tasks/one/__init__.py": "",
        "tasks/one/__main__.py": "from . import own\nfrom tasks.core.a import f\n",
        "tasks/one/own.py": "if True:\n    from ..core.c import g\nfrom tasks.core.deep.e import z\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    core = {"a.py", "c.py", "d.py", "deep/__init__.py", "deep/e.py"}  # b.py is empty and can change nothing
    assert closure(tmp_path, "one") == {"tasks/one", *(f"tasks/core/{name}" for name in core)}


def test_the_graph_resolves_and_has_no_cycle(repo: Any) -> None:
    repo.index.check_graph()
    assert nx.is_directed_acyclic_graph(repo.index.graph)
    params = read("params.yaml")
    found = {stage.addressing for stage in repo.index.stages}
    for name, stage in read("dvc.yaml")["stages"].items():
        if "foreach" in stage:
            keys = params[stage["foreach"].removeprefix("${").removesuffix("}")]
            assert {f"{name}@{key}" for key in keys} == {one for one in found if one.startswith(f"{name}@")}
        else:
            assert name in found


def test_the_report_comes_after_everything_it_shows(repo: Any) -> None:
    graph = repo.index.graph
    report = next(stage for stage in graph if stage.addressing == "report")
    before = {stage.addressing for stage in nx.descendants(graph, report)}  # DVC draws edges from a stage to what it reads
    params = read("params.yaml")
    wanted = {"prepare", "base", "tokenize", "bm25", "evaluate_bm25"}
    wanted |= {f"{name}@{key}" for name in ("train", "encode", "index", "evaluate") for key in params["rounds"]}
    wanted |= {f"mine@{entry['negatives']}" for entry in params["rounds"].values() if entry["negatives"] in params["mine"]}
    wanted |= {f"{name}@{key}" for name in ("adore", "evaluate_adore") for key in params["adore"]}
    assert wanted <= before, f"not before report: {sorted(wanted - before)}"


def test_every_section_is_tracked_and_every_tracked_key_is_there(repo: Any) -> None:
    params = read("params.yaml")
    everywhere = set.union(*map(tracked, stages().values()))
    untracked, unknown = set(params) - everywhere - BY_DIGEST, everywhere - set(params)
    assert not untracked | unknown, f"params.yaml and dvc.yaml differ in {untracked | unknown}"
    for stage in repo.index.stages:
        for dependency in stage.params:
            if dependency.def_path == "params.yaml":
                for entry in dependency.params:
                    value: Any = params
                    for key in entry.split("."):
                        assert key in value, f"dvc.yaml: {stage.addressing}: params: {entry} is not in params.yaml"
                        value = value[key]


@pytest.mark.parametrize("name", stages())
def test_a_stage_tracks_the_sections_that_it_loads(name: str) -> None:
    stage = stages()[name]
    untracked = loaded(folder(stage)) - tracked(stage) - BY_DIGEST
    assert not untracked, f"dvc.yaml: {name}: its code loads {', '.join(sorted(untracked))}; add to params, or a change re-runs nothing"


def test_commands_hold_no_shell_syntax(repo: Any) -> None:
    for stage in repo.index.stages:
        assert re.fullmatch(r"python -m tasks\.\w+( [A-Za-z0-9_./-]+)*", stage.cmd), f"{stage.addressing}: {stage.cmd}"


def test_every_stage_folder_has_its_entry_its_params_and_a_stage() -> None:
    folders = {path.name for path in (ROOT / "tasks").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    run = {folder(stage) for stage in stages().values()}
    assert folders - NOT_STAGES == run, f"tasks/ and dvc.yaml differ in {(folders - NOT_STAGES) ^ run}"
    for name in folders - {"core"}:
        assert (ROOT / "tasks" / name / "__main__.py").is_file(), f"tasks/{name}: no __main__.py"
    for name in run:
        assert (ROOT / "tasks" / name / "params.py").is_file(), f"tasks/{name}: no params.py"


def main() -> None:
    """Print the code deps of every stage."""
    for name, stage in stages().items():
        print(f"  {name}:", *(f"        - {dep}" for dep in sorted(closure(ROOT, folder(stage)))), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
