"""What a change re-runs: for every parameter of params.yaml and every source file of tasks/, no stage more and no stage less.

DVC's answer (a parameter edited in a copy of params.yaml, then DVC's own status of every stage against a dvc.lock of outs that
are stood in for) is compared with dvc.yaml and params.yaml read as plain YAML; digests of code with the imports that Python's
modulefinder finds. For one change, `retemper run --dry-run --set KEY=VALUE` says the same.
"""

import ast
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from flows.repository.graph import read_graph, read_status
from tasks.core.stage.code import MEMORY, NEUTRAL, Reader
from tasks.core.stage.frozen import freeze

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "data/source.json"
FROZEN = ("source.json", "params.json", "code.json")  # what the flow writes
FIXED = {name: f"{name}.digest" for name in ("dataset", "encoder", "articles")}  # sections whose content it carries


def read(path: Path) -> dict[str, Any]:
    value = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def parameter_paths(value: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of keys to every parameter, that is, to every value that is not a section."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from parameter_paths(child, (*prefix, key))
    elif prefix and value != {}:
        yield prefix


@cache
def default_params() -> str:
    """params.yaml as committed: runs edit the file."""
    command = ["git", "show", "HEAD:./params.yaml"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True).stdout


def parameters() -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load(default_params())


# What DVC says


class Copy:
    """A copy of the project in which every stage is up to date, with outs that are stood in for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "dvc.yaml", folder)
        (folder / "params.yaml").write_text(default_params(), encoding="utf-8")
        shutil.copytree(ROOT / "tasks", folder / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "data").mkdir()
        (folder / SOURCE).write_text(str({k: {"digest": "a"} for k in ("dataset", "encoder", "articles", "generator")}).replace("'", '"'))
        (folder / ".dvcignore").write_text("__pycache__\n")
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
        freeze(folder)
        with chdir(folder):
            Repo.init().close()
            with Repo() as repo:
                self.graph = read_graph(repo)
                paths = {Path(part.fs_path) for node in repo.index.stages for part in (*node.outs, *node.deps) if part.protocol == "local"}
                for path in sorted(path for path in paths if path.is_relative_to(folder / "data") and path.name not in FROZEN):
                    file = path if path.suffix else path / "file"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(f"stands in for {path.name}")
                repo.commit(force=True)

    def rerun(self) -> set[str]:
        """The stages that a run would look at now: those that changed, and all that read from them."""
        freeze(self.folder)
        with chdir(self.folder), Repo() as repo:
            graph = read_graph(repo)
            return set(graph.downstream_of(read_status(repo, graph.stages)))


def other_value(value: Any) -> Any:
    """A value that differs and still resolves in dvc.yaml."""
    if isinstance(value, bool | int | float):
        return not value if isinstance(value, bool) else value + 1
    return [*value, 7] if isinstance(value, list) else f"{value}x"


def write(path: Path, value: object) -> None:
    """Write YAML, as JSON: ruamel.yaml sorts keys."""
    path.write_text(json.dumps(value), encoding="utf-8")


def dvc_stages(copy: Copy, keys: tuple[str, ...]) -> set[str]:
    """Edit one parameter, ask, and set it back. One that names an encoder or negatives gets another name that exists."""
    before = (copy.folder / "params.yaml").read_text(encoding="utf-8")
    sections = read(copy.folder / "params.yaml")
    node: Any = sections
    for key in keys[:-1]:
        node = node[key]
    alternatives = {"init": ["base"], "negatives": ["none", "official"], "search": ["embeddings", "indexes"]}
    if keys[0] in ("rounds", "mine") and keys[-1] in alternatives:
        node[keys[-1]] = next(name for name in [*alternatives[keys[-1]], *sections["rounds"]] if name not in (node[keys[-1]], keys[1]))
    else:
        node[keys[-1]] = {"queries": "pseudo", "chunk.texts": "corpus"}.get(".".join(keys)) or other_value(node[keys[-1]])
    try:
        write(copy.folder / "params.yaml", sections)
        return copy.rerun()
    finally:
        (copy.folder / "params.yaml").write_text(before, encoding="utf-8")


# What must run, without DVC


@cache
def entries() -> Mapping[str, Mapping[str, Any]]:
    """Every stage of dvc.yaml with its templates filled in, by plain replacement of text."""
    params = parameters()
    filled: dict[str, Mapping[str, Any]] = {}
    for name, stage in read(ROOT / "dvc.yaml")["stages"].items():
        if "foreach" not in stage and not stage.get("always_changed"):
            filled[name] = fill(stage, "", {})
        for key, item in params[stage["foreach"][2:-1]].items() if "foreach" in stage else ():
            filled[f"{name}@{key}"] = {part: fill(value, key, item) for part, value in stage["do"].items()}
    return filled


def fill(value: Any, key: str, item: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        value = value.replace("${key}", key).replace("${queries}", "corpus").replace("${chunk.texts}", "articles")
        return re.sub(r"\$\{item\.(\w+)\}", lambda match: str(item[match[1]]), value)
    if isinstance(value, list):
        return [fill(child, key, item) for child in value]
    return {name: fill(child, key, item) for name, child in value.items()} if isinstance(value, dict) else value


def outs_of(stage: Mapping[str, Any]) -> set[str]:
    return {*stage.get("outs", []), *stage.get("metrics", [])}


def with_readers(names: set[str]) -> set[str]:
    """`names` and all that read what they make, by the paths alone."""
    closure = set(names)
    while True:
        outs = {out for name in closure for out in outs_of(entries()[name])}
        readers = {
            name
            for name, stage in entries().items()
            if name not in closure and any(overlap(dep, out) for dep in stage.get("deps", []) for out in outs)
        }
        if not readers:
            return closure
        closure |= readers


def overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def graph_stages(keys: tuple[str, ...]) -> set[str]:
    """Stages that track the parameter (or a section of it), or whose command or deps are filled in with it."""
    dotted = ".".join(keys)
    changed = {
        name
        for name, stage in entries().items()
        if any(f"{dotted}.".startswith(f"{key}.") for entry in stage["params"] for key in entry.get("data/params.json", []))
    }
    for name, stage in read(ROOT / "dvc.yaml")["stages"].items():
        if f"${{{dotted}}}" in str(stage):
            changed |= {addressing for addressing in entries() if addressing.split("@")[0] == name}
        if stage.get("foreach") == f"${{{keys[0]}}}" and len(keys) == 3 and f"${{item.{keys[2]}}}" in str(stage["do"]):
            changed.add(f"{name}@{keys[1]}")
    return with_readers(changed)


@cache
def imported_files(folder: str) -> frozenset[Path]:
    """Files of tasks/ that `python -m tasks.FOLDER` can import, wherever the import stands; not by way of neutral modules."""
    finder = ModuleFinder(path=[str(ROOT)], excludes=list(NEUTRAL))
    finder.run_script(str(ROOT / "tasks" / folder / "__main__.py"))
    return frozenset(Path(module.__file__) for module in finder.modules.values() if module.__file__)


def folders() -> list[str]:
    return sorted({stage["cmd"].split()[2].removeprefix("tasks.") for stage in entries().values()})


def importing_stages(file: Path) -> set[str]:
    """Folders of stages whose entry imports the file."""
    return {folder for folder in folders() if file in imported_files(folder)}


# The comparison

PARAMETERS = list(parameter_paths(parameters()))
FILES = [file for file in sorted((ROOT / "tasks").rglob("*.py")) if file.name != "__init__.py"]
EDITS = 100


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("invalidations"))


def test_where_nothing_changed_nothing_runs(copy: Copy) -> None:
    assert copy.rerun() == set()


def test_a_changed_source_re_runs_what_reads_it(copy: Copy) -> None:
    for section, stage in (("dataset", "prepare"), ("encoder", "base"), ("articles", "articles")):
        before = (copy.folder / SOURCE).read_text()
        (copy.folder / SOURCE).write_text(before.replace(f'"{section}": {{"digest": "', f'"{section}": {{"digest": "new'))
        assert copy.rerun() == with_readers({stage})
        (copy.folder / SOURCE).write_text(before)


@pytest.mark.parametrize(("edit", "others"), [("evaluate.measures", "(evaluate|fuse|analyses)(_|@)"), ("report.baselines", "$^")])
def test_what_is_measured_encodes_and_searches_nothing(copy: Copy, edit: str, others: str) -> None:
    before, (section, key) = (copy.folder / "params.yaml").read_text(encoding="utf-8"), edit.split(".")
    write(copy.folder / "params.yaml", parameters() | {section: parameters()[section] | {key: ["nDCG@10"]}})
    try:
        rerun = copy.rerun()
    finally:
        (copy.folder / "params.yaml").write_text(before, encoding="utf-8")
    assert rerun == {"report", "failures", *(name for name in entries() if re.match(others, name))}


@pytest.mark.heavy
def test_every_parameter_re_runs_what_the_graph_says(copy: Copy) -> None:
    differences = {keys: rerun ^ graph_stages(keys) for keys in PARAMETERS if (rerun := dvc_stages(copy, keys)) != graph_stages(keys)}
    assert differences == {}


MEMORY_OF_ALL = Path(tempfile.mkdtemp()) / MEMORY


def digests(folder: Path) -> dict[str, str]:
    """Digests of the code of every folder that dvc.yaml runs."""
    return {stage: digest for stage, digest in Reader(folder, MEMORY_OF_ALL).stage_digests().items() if stage in folders()}


@cache
def current_digests() -> dict[str, str]:
    return digests(ROOT)


def affected_stages(folder: Path, file: Path, text: str) -> set[str]:
    """The stages whose digest differs with `text` in place of a file of the code."""
    copied_file = folder / file.relative_to(ROOT)
    genuine = copied_file.read_text(encoding="utf-8")
    try:
        copied_file.write_text(text, encoding="utf-8")
        return {stage for stage, digest in digests(folder).items() if digest != current_digests()[stage]}
    finally:
        copied_file.write_text(genuine, encoding="utf-8")


class Cosmetic(ast.NodeTransformer):
    """Other docstrings, other words in what is shown or raised, other annotations of functions; `ast.unparse` formats them again."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = ast.Constant("Another")
        for argument in node.args.args:
            argument.annotation = None
        if ast.get_docstring(node):
            node.body[0] = ast.Expr(ast.Constant("Other words."))
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return Words().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("Progress", "parser"):
            node.args = [other_words(part) for part in node.args]
            node.keywords = [ast.keyword(part.arg, other_words(part.value)) for part in node.keywords]
        return node


def other_words(node: ast.expr) -> ast.expr:
    return Words().visit(node) if isinstance(node, ast.Constant | ast.JoinedStr) else node  # a call's text is no message


class Words(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("other words") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.JoinedStr([ast.Constant("other words"), *(part for part in node.values if isinstance(part, ast.FormattedValue))])


def mutant(text: str, number: int) -> str:
    """One of the program's mutants, by number (modulo how many there are); empty if there is none."""
    count = sum(1 for _ in mutants(text))
    return ast.unparse(next(itertools.islice(mutants(text), number % count, None))) if count else ""


def mutants(text: str) -> Iterator[ast.AST]:
    """Programs that compute something else: another operator, number or call, but in errors. They are one tree, changed each time."""
    tree = ast.parse(text)
    hidden = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    annotated = [node for node in ast.walk(tree) if isinstance(node, ast.arg | ast.FunctionDef)]
    annotations = filter(None, (node.annotation if isinstance(node, ast.arg) else node.returns for node in annotated))
    hidden |= {id(part) for annotation in annotations for part in ast.walk(annotation)}
    for node in (node for node in ast.walk(tree) if id(node) not in hidden):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            before, node.op = node.op, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            yield tree
            node.op = before
        elif isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
            node.value += 1
            yield tree
            node.value -= 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node.func.attr += "_"
            yield tree
            node.func.attr = node.func.attr[:-1]
        elif isinstance(node, ast.Compare):
            before, node.ops = node.ops, [ast.Lt() if isinstance(op, ast.Gt | ast.GtE) else ast.Gt() for op in node.ops]
            yield tree
            node.ops = before


def test_a_hundred_cosmetic_edits_change_no_digest(copy: Copy) -> None:
    for file in itertools.islice(itertools.cycle(FILES), 0, max(EDITS, len(FILES))):
        text = file.read_text(encoding="utf-8")
        rewritten = ast.unparse(ast.fix_missing_locations(Cosmetic().visit(ast.parse(text))))
        assert rewritten != text
        assert affected_stages(copy.folder, file, f"# A comment.\n{rewritten}\n# Another.\n") == set(), file.relative_to(ROOT)


def test_a_hundred_mutants_change_the_digests_of_the_stages_that_import_them(copy: Copy) -> None:
    neutral = {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in NEUTRAL}
    count = 0
    for number, file in enumerate(FILES):
        if mutated := mutant(file.read_text(encoding="utf-8"), number):
            expected = set() if file in neutral else importing_stages(file)
            assert affected_stages(copy.folder, file, mutated) == expected, file.relative_to(ROOT)
            count += 1
    assert count >= EDITS


def test_dvc_re_runs_what_reads_a_stage_whose_code_changed(copy: Copy) -> None:
    file = copy.folder / "tasks/train/losses.py"
    before = file.read_text(encoding="utf-8")
    file.write_text(f"{before}\nmore = 1\n", encoding="utf-8")
    assert copy.rerun() == with_readers({name for name in entries() if name.startswith("train@")})
    file.write_text(f"{before}\n# more\n", encoding="utf-8")
    assert copy.rerun() == set()
    file.write_text(before, encoding="utf-8")


# What is appended to each neutral module: other words, nothing shown, nothing collected.
ALTERED = {
    "tasks.core.stage.code": "KEPT = 3\n",
    "tasks.core.stage.entry": "def input_stamps(words):\n    return {}\n",
    "tasks.core.errors": "FULL = 'other words'\nescaped = printable = redacted = lambda text: FULL\n",
    "tasks.core.stage.progress": "Progress.advance = Progress.close = lambda *_, **__: None\n",
} | {f"tasks.core.workers.{name}": "AHEAD = GIVEN = GRACE = 1\n" for name in ("attempts", "cluster", "pool", "together")}


def test_neutral_modules_change_no_artifact(small: Any, tmp_path: Path) -> None:
    assert ALTERED.keys() == NEUTRAL.keys()
    code = tmp_path / "code"
    shutil.copytree(small.folder / "tasks", code / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in ALTERED.items():
        with code.joinpath(*name.split(".")).with_suffix(".py").open("a") as module:
            module.write(f"\n\n{text}")
    assert Reader(code).stage_digests() == Reader(small.folder).stage_digests()
    environment = os.environ | {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
    for name in ("prepare", "tokenize", "bm25", "encode@warmup", "report"):
        command = [sys.executable, *small.commands[name][1:], *small.elsewhere(name, str(tmp_path / "made"))]
        subprocess.run(command, cwd=small.folder, env=environment, check=True, capture_output=True)
        for out in small.outs[name]:
            assert contents(tmp_path / "made" / out) == contents(small.folder / out), out


def contents(path: Path) -> dict[str, bytes]:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
