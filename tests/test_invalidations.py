"""What a change re-runs: for every parameter of params.yaml and every source file of tasks/, no stage more and no stage less.

DVC's answer (a parameter edited in a copy of params.yaml, a file edited in a copy of the code, then DVC's own status of every
stage against a dvc.lock of outs that are stood in for) is compared with two readings that know nothing of DVC: dvc.yaml and
params.yaml as plain YAML, and the imports that Python's modulefinder finds. `python tests/test_invalidations.py` prints the
table; for one change, `retemper run --dry-run --set KEY=VALUE` says the same.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir
from functools import cache
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from flows.repository.graph import Graph, read_graph, read_status

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "data/source.json"
FIXED = {name: f"{name}.digest" for name in ("dataset", "encoder", "articles")}  # sections whose content it carries


def read(path: Path) -> dict[str, Any]:
    value = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def leaves(value: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every parameter: what is no section."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from leaves(below, (*prefix, key))
    elif prefix and value != {}:
        yield prefix


# What DVC says


class Copy:
    """A copy of the project in which every stage is up to date, with outs that are stood in for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("dvc.yaml", "params.yaml"):
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "tasks", folder / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "data").mkdir()
        (folder / SOURCE).write_text('{"dataset": {"digest": "a"}, "encoder": {"digest": "b"}, "articles": {"digest": "c"}}')
        (folder / ".dvcignore").write_text("__pycache__\n")
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
        with chdir(folder):
            Repo.init().close()
            with Repo() as repo:
                self.graph = read_graph(repo)
                paths = {Path(part.fs_path) for node in repo.index.stages for part in (*node.outs, *node.deps) if part.protocol == "local"}
                for path in sorted(path for path in paths if path.is_relative_to(folder / "data") and path != folder / SOURCE):
                    file = path if path.suffix else path / "file"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(f"stands in for {path.name}")
                repo.commit(force=True)

    def rerun(self) -> set[str]:
        """The stages that a run would look at now: those that changed, and all that read from them."""
        with chdir(self.folder), Repo() as repo:
            graph = read_graph(repo)
            return set(graph.downstream_of(read_status(repo, graph.stages)))


def another(value: Any) -> Any:
    """A value that differs and still resolves in dvc.yaml."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [*value, 7] if isinstance(value, list) else f"{value}x"


def write(path: Path, value: object) -> None:
    with path.open("w", encoding="utf-8") as handle:
        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = False
        yaml.dump(value, handle)


def by_dvc_parameter(copy: Copy, way: tuple[str, ...]) -> set[str]:
    """Edit one parameter, ask, and set it back. One that names an encoder or negatives gets another name that exists."""
    before = (copy.folder / "params.yaml").read_text(encoding="utf-8")
    sections = read(copy.folder / "params.yaml")
    node: Any = sections
    for key in way[:-1]:
        node = node[key]
    others = {"init": ["base"], "negatives": ["none", "official"], "search": ["embeddings", "indexes"]}
    if way[0] in ("rounds", "mine") and way[-1] in others:
        node[way[-1]] = next(name for name in [*others[way[-1]], *sections["rounds"]] if name not in (node[way[-1]], way[1]))
    else:
        node[way[-1]] = another(node[way[-1]])
    try:
        write(copy.folder / "params.yaml", sections)
        return copy.rerun()
    finally:
        (copy.folder / "params.yaml").write_text(before, encoding="utf-8")


def by_dvc_file(repo: Any, graph: Graph, file: Path) -> set[str]:
    """Edit one source file, ask every stage for its code, and set it back. What stages share is asked once for each recorded digest."""
    before = file.read_bytes()
    answers: dict[tuple[str, str], bool] = {}

    def changed(dep: Any) -> bool:
        known = (dep.fs_path, str(dep.hash_info.value))  # of parameters it is what they are
        if known not in answers:
            answers[known] = bool(dep.status())
        return answers[known]

    try:
        file.write_bytes(before + b"\n# changed\n")
        deps = {
            node.addressing: [dep for dep in node.deps if Path(dep.fs_path).is_relative_to(file.parents[1])] for node in repo.index.stages
        }
        return set(graph.downstream_of(name for name, own in deps.items() if any(map(changed, own))))
    finally:
        file.write_bytes(before)


# What must run, without DVC


@cache
def entries() -> Mapping[str, Mapping[str, Any]]:
    """Every stage of dvc.yaml with its templates filled in, by plain replacement of text."""
    params = read(ROOT / "params.yaml")
    found: dict[str, Mapping[str, Any]] = {}
    for name, stage in read(ROOT / "dvc.yaml")["stages"].items():
        if "foreach" not in stage:
            found[name] = stage
        for key, item in params[stage["foreach"][2:-1]].items() if "foreach" in stage else ():
            found[f"{name}@{key}"] = {part: fill(value, key, item) for part, value in stage["do"].items()}
    return found


def fill(value: Any, key: str, item: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return re.sub(r"\$\{item\.(\w+)\}", lambda found: str(item[found[1]]), value.replace("${key}", key))
    if isinstance(value, list):
        return [fill(one, key, item) for one in value]
    return {name: fill(one, key, item) for name, one in value.items()} if isinstance(value, dict) else value


def made(stage: Mapping[str, Any]) -> set[str]:
    return {*stage.get("outs", []), *stage.get("metrics", [])}


def after(names: set[str]) -> set[str]:
    """`names` and all that read what they make, by the paths alone."""
    found = set(names)
    while True:
        outs = {out for name in found for out in made(entries()[name])}
        more = {
            name
            for name, stage in entries().items()
            if name not in found and any(overlap(dep, out) for dep in stage["deps"] for out in outs)
        }
        if not more:
            return found
        found |= more


def overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def by_graph(way: tuple[str, ...]) -> set[str]:
    """Stages that track the parameter (or a section of it), or whose command or deps are filled in with it."""
    dotted = ".".join(way)
    tracking = {
        name
        for name, stage in entries().items()
        if any(isinstance(entry, str) and (dotted == entry or dotted.startswith(f"{entry}.")) for entry in stage.get("params", []))
    }
    filled = set()
    for name, stage in read(ROOT / "dvc.yaml")["stages"].items():
        if stage.get("foreach") == f"${{{way[0]}}}" and len(way) == 3 and f"${{item.{way[2]}}}" in str(stage["do"]):
            filled.add(f"{name}@{way[1]}")
    return after(tracking | filled)


@cache
def imported(folder: str) -> frozenset[Path]:
    """Files of tasks/ that `python -m tasks.FOLDER` can import, wherever the import stands."""
    finder = ModuleFinder(path=[str(ROOT)])
    finder.run_script(str(ROOT / "tasks" / folder / "__main__.py"))
    return frozenset(Path(module.__file__) for module in finder.modules.values() if module.__file__)


def by_imports(file: Path) -> set[str]:
    """Stages whose entry imports the file, or in whose folder it lies; a package file that holds only words changes nothing."""
    found = set()
    for name, stage in entries().items():
        folder = stage["cmd"].split()[2].removeprefix("tasks.")
        own = file.is_relative_to(ROOT / "tasks" / folder)
        if own or (
            file in imported(folder)
            and not (file.name == "__init__.py" and file.read_text().count('"""') == 2 and file.read_text().endswith('"""\n'))
        ):
            found.add(name)
    return after(found)


# The comparison

PARAMETERS = list(leaves(read(ROOT / "params.yaml")))
FILES = sorted((ROOT / "tasks").rglob("*.py"))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("invalidations"))


@pytest.fixture(scope="module")
def opened(copied: Copy) -> Iterator[Any]:
    with chdir(copied.folder), Repo() as repo:
        yield repo


def test_where_nothing_changed_nothing_runs(copied: Copy) -> None:
    assert copied.rerun() == set()


def test_a_changed_source_re_runs_what_reads_it(copied: Copy) -> None:
    for section, stage in (("dataset", "prepare"), ("encoder", "base"), ("articles", "articles")):
        before = (copied.folder / SOURCE).read_text()
        (copied.folder / SOURCE).write_text(before.replace(f'"{section}": {{"digest": "', f'"{section}": {{"digest": "new'))
        assert copied.rerun() == after({stage})
        (copied.folder / SOURCE).write_text(before)


@pytest.mark.heavy
def test_every_parameter_re_runs_what_the_graph_says(copied: Copy) -> None:
    wrong = {way: found ^ by_graph(way) for way in PARAMETERS if (found := by_dvc_parameter(copied, way)) != by_graph(way)}
    assert wrong == {}


def test_every_source_file_re_runs_what_imports_it(copied: Copy, opened: Any) -> None:
    for file in FILES:
        twin = copied.folder / file.relative_to(ROOT)
        assert by_dvc_file(opened, copied.graph, twin) == by_imports(file), file.relative_to(ROOT)


def main() -> None:
    """Print the table as Markdown."""
    everything = len(entries())
    print("| change | stages that run again |\n|---|---|")
    for name, found in [(".".join(way), by_graph(way)) for way in PARAMETERS] + [(str(f.relative_to(ROOT)), by_imports(f)) for f in FILES]:
        told = "none" if not found else f"all {everything}" if len(found) == everything else ", ".join(n for n in entries() if n in found)
        print(f"| {name} | {told} |")


if __name__ == "__main__":
    sys.exit(main())
