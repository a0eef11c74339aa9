"""The layout that DESIGN draws: imports run downward, names say what is in them, files stay small."""

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(file for folder in ("flows", "tasks") for file in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
ALL = [*SOURCES, *TESTS, *sorted((ROOT / "benchmarks").rglob("*.py"))]

LINES = 400  # of a file at most
ROOMS = 12  # modules of a folder at most, without __init__.py
LONG = {"tests/test_bad_input.py": 560}  # files that may be longer, with their own limit: one table of all cases, to be ticked off

POSITIONAL = 3  # parameters that a function may take by position; the rest are keyword-only
TAKE_MORE = {"flows/storage/patches.py": 1}  # functions that take more, by file: one that takes the place of DVC's

NOT_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
# Tests of the whole, which mirror no folder.
WHOLE = {
    "test_bad_input",
    "test_benchmarks",
    "test_docs",
    "test_checkout",
    "test_deploy",
    "test_fake_gpu",
    "test_faults",
    "test_full_disk",
    "test_gpu",
    "test_graph",
    "test_invalidations",
    "test_layout",
    "test_security",
    "test_smoke",
    "test_unfinished_work",
}


def path_in_project(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_imports_run_downward() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--config", ROOT / "pyproject.toml", "--no-cache"]
    process = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_no_circles_of_modules() -> None:
    """Within a folder, too, and with the imports inside functions."""
    modules = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in SOURCES}
    imports = {module: set[str]() for module in modules}
    for module, file in modules.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                imports[module] |= imported & modules.keys()
    TopologicalSorter(imports).prepare()  # raises CycleError, with the circle


def test_flows_know_no_stage_but_its_parameters() -> None:
    for file in SOURCES:
        if file.is_relative_to(ROOT / "flows"):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
            forbidden = [name for name in imported if name.startswith("tasks.") and not name.startswith(("tasks.core.", "tasks.params"))]
            assert not forbidden, f"{path_in_project(file)}: imports {', '.join(forbidden)}; go through tasks.core or tasks.params"


def test_the_import_contracts_name_every_stage() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    folders = {f"tasks.{path.name}" for path in (ROOT / "tasks").iterdir() if (path / "__init__.py").is_file()} - {"tasks.core"}
    siblings = next(layer for contract in settings for layer in contract["layers"] if "|" in layer and "tasks." in layer)
    assert set(siblings.split(" | ")) == folders


@pytest.mark.parametrize("file", ALL, ids=path_in_project)
def test_names_and_sizes(file: Path) -> None:
    assert not NOT_NAMES.intersection((*file.relative_to(ROOT).parts[:-1], file.stem)), (
        f"{path_in_project(file)}: name it after what is in it"
    )
    count = len(file.read_text(encoding="utf-8").splitlines())
    assert count <= LONG.get(path_in_project(file), LINES), f"{path_in_project(file)}: {count} lines; cut it in two"


def test_folders_stay_small() -> None:
    modules = Counter(file.parent for file in SOURCES if file.name != "__init__.py")
    crowded = [
        f"{path_in_project(folder)}: {count} modules; give some a folder of their own" for folder, count in modules.items() if count > ROOMS
    ]
    assert not crowded, crowded


def test_tests_mirror_the_tree() -> None:
    for file in TESTS:
        folder = file.relative_to(ROOT / "tests").parent.as_posix()
        if folder == ".":
            assert file.stem in WHOLE, f"{path_in_project(file)}: put it into the folder of what it tests"
        else:
            package = folder if folder.startswith("flows") else f"tasks/{folder}"
            assert (ROOT / package / "__init__.py").is_file(), f"{path_in_project(file)}: no package {package}"
    tested = {file.parent.name for file in TESTS}
    folders = {path.name for path in (ROOT / "tasks").iterdir() if (path / "__init__.py").is_file()} - {"core"}
    folders |= {path.name for path in (ROOT / "flows").iterdir() if (path / "__init__.py").is_file()}
    assert folders <= tested, f"without a test: {sorted(folders - tested)}"


def test_no_file_names_a_place_of_one_machine(tracked: list[Path]) -> None:
    forbidden = ["/" + "work/", "/" + "root/", "/" + "home/", "." + "library", "pypi" + ".org", "ghcr" + ".io"]
    for file in tracked:
        if file.suffix in ("", ".py", ".md", ".toml", ".yaml", ".txt", ".html", ".css", ".js", ".cfg"):
            text = file.read_text(encoding="utf-8")
            assert not [part for part in forbidden if part in text], f"{path_in_project(file)}: names a place that only one machine has"


def test_stages_parse_load_compute_and_save_only_when_run() -> None:
    for file in SOURCES:
        if file.name == "__main__.py":
            last = ast.parse(file.read_text(encoding="utf-8")).body[-1]
            guarded = isinstance(last, ast.If) and "__main__" in ast.dump(last.test)
            assert guarded, f"{path_in_project(file)}: end with if __name__ == '__main__' (workers import this file again)"


@pytest.mark.parametrize("file", [file for file in SOURCES if path_in_project(file).startswith("flows/")], ids=path_in_project)
def test_long_lists_of_arguments_are_named(file: Path) -> None:
    """From the fourth parameter on by keyword only: nobody can tell what a call's seventh argument is."""
    too_long = [name for name, count in count_positional(file.read_text(encoding="utf-8")) if count > POSITIONAL]
    allowed = TAKE_MORE.get(path_in_project(file), 0)
    assert len(too_long) <= allowed, f"{path_in_project(file)}: put `*` behind the third parameter: one of {', '.join(too_long)}"
    assert len(too_long) == allowed, f"{path_in_project(file)}: fewer take more than {POSITIONAL} now; set TAKE_MORE to {len(too_long)}"


def test_positional_parameters_are_counted() -> None:
    code = "class A:\n def f(self, a, b, c, *, d): ...\n def g(self, a, b, c, d): ...\ndef h(a, /, b, c, d, *e): ...\nasync def i(a): ..."
    assert sorted(count_positional(code)) == [("f", 3), ("g", 4), ("h", 4), ("i", 1)]
    assert all((ROOT / name).is_file() for name in TAKE_MORE)


def count_positional(code: str) -> list[tuple[str, int]]:
    """Every function in `code`, and how many parameters it takes by position; `self` does not count."""
    functions = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    counts = []
    for function in functions:
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        counts.append((function.name, len(names) - (names[:1] in (["self"], ["cls"]))))
    return counts
