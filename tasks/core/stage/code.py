"""The digest of a stage's code, and the frozen copy of the code that the stage executes.

A digest covers the syntax trees of everything that `python -m tasks.STAGE` can import: its entry point and all direct and
indirect imports. Comments, docstrings, formatting, function annotations, and the words of messages are excluded, so editing them
re-runs nothing; the modules of NEUTRAL are excluded too. Other files of a package (a page's template) count by their bytes. The
same code has the same digest under every version of Python.
"""

import ast
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tasks.core.errors import UserError
from tasks.core.files import read_mapping, write_text

PACKAGE = "tasks"
SNAPSHOT = "RETEMPER_CODE"  # environment: the folder of the frozen copy that a stage executes
ASKED_BY = "RETEMPER_ASKED_BY"  # the process that asks a command a question, and gets its answer (flows/process/processes.py)
MALLOC = {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # environment of stages: Arrow's own allocator keeps freed memory
KEPT = 8  # frozen copies kept per project; the oldest are removed first
# Modules that cannot change an artifact, and why. tests/test_invalidations.py alters them and compares the bytes.
NEUTRAL = {
    "tasks.core.stage.code": "identifies a stage's code, and computes nothing for it",
    "tasks.core.stage.entry": "starts and ends a stage",
    "tasks.core.errors": "text of errors: a stage that fails has no artifact",
    "tasks.core.stage.progress": "what is shown while a stage runs",
    "tasks.core.workers.attempts": "the order in which pieces of work are given out; each is computed by its stage's code",
    "tasks.core.workers.cluster": "passes pieces and results between a stage and a Ray cluster",
    "tasks.core.workers.pool": "passes pieces and results between a stage and its processes",
    "tasks.core.workers.together": "starts the ranks of a training, and starts them again; what they compute is their stage's code",
}
# Of text, what counts: "all"; of an argument of a message, the "values" that an f-string shows, but not its words; or "none".
Text = Literal["all", "values", "none"]
# Calls whose arguments are shown but never stored: their "values" count, of raised exceptions "none". Keywords that contain nothing else.
MESSAGES = {"print", "Progress", "UserError", "warn", "parser", "ArgumentParser"}
HELP = {"help", "description", "metavar"}
FORM = "2"  # of digests: with form 1, a sweep with --jobs left outs of other parameters in run caches, which must not be found
# Counted as modules, or left behind by editors, patches, and merges.
NOT_READ = (".py", ".pyc", "~", "#", ".save", ",cover", "nohup.out", ".orig", ".rej", ".bak")
MEMORY = Path(".retemper/modules.json")  # results of reading modules, keyed by their bytes: parsing all of them takes a second


class Module(NamedTuple):
    """A module's digest (empty if nothing in it can change an artifact), and the names of our modules that it imports."""

    digest: str
    imports: tuple[str, ...]


class Reader:
    """Reads the code below `root`. Results are cached by a module's bytes, and stored in `memory` if given."""

    def __init__(self, root: Path, memory: Path | None = None) -> None:
        self.root, self._memory = root, memory
        self._version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()  # results by another version of this file are not used
        stored = read_mapping(memory) if memory else {}
        self._cached = stored.get("modules", {}) if stored.get("by") == self._version else {}
        self._modules: dict[str, Module] = {}
        self._files: dict[Path, Module] = {}
        self._names: dict[str, Path | None] = {}

    def stage_digests(self) -> dict[str, str]:
        """SHA-256 of the code of every stage (a package of tasks with an entry), by the package's name."""
        entries = sorted((self.root / PACKAGE).glob("*/__main__.py"))
        digests = {entry.parent.name: self.stage_digest(entry.parent.name) for entry in entries}
        if self._memory and self._modules.keys() - self._cached.keys():
            write_text(self._memory, json.dumps({"by": self._version, "modules": self._modules}))
        return digests

    def stage_digest(self, stage: str) -> str:
        """SHA-256 of the code of `python -m tasks.STAGE`, in hexadecimal."""
        return self._digest(self.closure(stage))

    def module_digest(self, name: str) -> str:
        """SHA-256 of the code of a module, of the packages that it is in, and of all that it imports, in hexadecimal."""
        return self._digest(self._reached(self._files_of(name)))

    def closure(self, stage: str) -> dict[Path, str]:
        """Digests of the files that can change a stage's output: modules that it imports, and other files next to them."""
        return self._reached([self.root / PACKAGE / stage / "__main__.py"])

    def _digest(self, files: Mapping[Path, str]) -> str:
        total = hashlib.sha256(FORM.encode())
        for name, digest in sorted((path.relative_to(self.root).as_posix(), digest) for path, digest in files.items()):
            total.update(f"{name} {digest}\n".encode())
        return total.hexdigest()

    def _reached(self, waiting: list[Path]) -> dict[Path, str]:
        digests: dict[Path, str] = {}
        seen: set[Path] = set()
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            module = self._module(path)
            if module.digest:
                digests[path] = module.digest
            for name in module.imports:
                waiting += self._files_of(name)
        for package in {path.parent for path in seen}:
            for other in _data_files(package):
                digests[other] = hashlib.sha256(other.read_bytes()).hexdigest()
        return digests

    def _files_of(self, name: str) -> list[Path]:
        """The files that an import of `name` executes: those of its packages, and its own."""
        names = [".".join(name.split(".")[:depth]) for depth in range(1, name.count(".") + 2)]
        return [file for module in names if module not in NEUTRAL and (file := self._file_of(module))]

    def _file_of(self, name: str) -> Path | None:
        if name not in self._names:
            self._names[name] = module_file(self.root, name)
        return self._names[name]

    def _module(self, path: Path) -> Module:
        if path not in self._files:
            package = ".".join(path.relative_to(self.root).parent.parts)
            text = path.read_bytes()
            key = f"{package} {hashlib.sha256(text).hexdigest()}"
            cached = self._cached.get(key)
            try:
                self._modules[key] = Module(cached[0], tuple(cached[1])) if cached else read_module(text, package)
            except (SyntaxError, ValueError) as error:  # a ValueError: null bytes
                line = getattr(error, "lineno", None) or 1
                raise UserError(f"{path.relative_to(self.root)}:{line}: not valid Python ({error.args[0]}); fix it and run again") from None
            self._files[path] = self._modules[key]
        return self._files[path]


@cache
def read_module(text: bytes, package: str) -> Module:
    """The `Module` for the source of a module in `package`."""
    tree = ast.parse(text)
    canonical = [part for part in map(_canonical, _body(tree.body)) if part]
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest() if canonical else ""
    return Module(digest, tuple(sorted(set(our_imports(tree, package)))))


def _data_files(folder: Path) -> Iterator[Path]:
    """The files in a package that are no modules, and those in its folders that have no modules."""
    for path in folder.iterdir():
        if path.is_dir() and path.name != "__pycache__" and not path.name.startswith(".") and not any(path.rglob("*.py")):
            yield from _data_files(path)
        elif path.is_file() and not path.name.startswith(".") and not path.name.endswith(NOT_READ):
            yield path


def module_file(root: Path, name: str) -> Path | None:
    """The source file of a dotted module below `root`, or None. Of a package and a module of one name, Python imports the package."""
    path = root.joinpath(*name.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def our_imports(tree: ast.AST, package: str) -> Iterator[str]:
    """The names of our modules in all imports of a syntax tree; of `from MODULE import`, the module's name first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base.split(".")[0] == PACKAGE:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _body(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements, without docstrings and other lone strings and without code for type checkers only."""
    return [node for node in body if not (_is_text(node) or _is_for_types(node))]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not node.orelse


def _canonical(value: object, text: Text = "all") -> str:
    """A syntax tree as text, the same under every version of Python: empty fields and those only for type checkers are omitted."""
    if isinstance(value, list):
        return "[" + ",".join(_canonical(part, text) for part in value) + "]"
    if not isinstance(value, ast.AST):
        return repr(value)
    if text != "all" and isinstance(value, ast.JoinedStr):
        shown = [part.value for part in value.values if isinstance(part, ast.FormattedValue)] if text == "values" else []
        return f"words{_canonical(shown) if shown else ''}"
    if text != "all" and isinstance(value, ast.Constant) and isinstance(value.value, str):
        return "words"
    if isinstance(value, ast.Raise):
        text = "none"
    elif text == "values" and not isinstance(value, ast.keyword):
        text = "all"  # an argument that is computed: its text may decide what is done
    is_message = isinstance(value, ast.Call) and text == "all" and _name(value.func) in MESSAGES and not _goes_to_a_file(value)
    parts = []
    for name in value._fields:
        part: Any = getattr(value, name, None)
        if name == "body" and isinstance(part, list):
            part = _body(part)
        elif name == "keywords" and isinstance(value, ast.Call):
            part = [keyword for keyword in part if keyword.arg not in HELP]
        if name in ("ctx", "type_comment", "kind", "type_params", "type_ignores") or part is None or part == []:
            continue
        if name == "returns" or (name == "annotation" and isinstance(value, ast.arg)):
            continue
        parts.append(f"{name}={_canonical(part, 'values' if is_message and name in ('args', 'keywords') else text)}")
    return f"{type(value).__name__}({','.join(parts)})"


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""


def _goes_to_a_file(call: ast.Call) -> bool:
    """Whether a `print` writes to anything but the terminal."""
    return any(keyword.arg == "file" and ast.unparse(keyword.value) not in ("sys.stderr", "sys.stdout") for keyword in call.keywords)


def freeze_code(project: Path, kept: int = KEPT) -> Path:
    """Copy `project`/tasks to `project`/.retemper/code, under a name made of its content; return the folder to import `tasks` from.

    An existing copy is reused. It and the latest others are kept, `kept` in all; the rest are removed.
    """
    sources = {path.relative_to(project).as_posix(): path.read_bytes() for path in _sources(project / PACKAGE)}
    total = hashlib.sha256()
    for name, content in sources.items():
        total.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    store = project / ".retemper" / "code"
    folder = store / total.hexdigest()[:32]
    if not _holds(folder, sources):
        store.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(dir=store, prefix="."))
        try:
            for name, content in sources.items():
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                (temporary / name).write_bytes(content)
            temporary.rename(folder)
        except OSError:  # a folder that is not empty: another process may have made it meanwhile
            if not _holds(folder, sources):
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    os.utime(folder)
    others = [path for path in store.iterdir() if path.is_dir() and path != folder]  # even with a later time: clocks are set back
    for old in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[kept - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _sources(package: Path) -> list[Path]:
    return sorted(path for path in _files(package) if path.suffix != ".pyc" and not path.name.startswith("."))


def _files(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """All files below a folder, including those in linked folders, except in a link to a folder above it."""
    within = (*above, folder.resolve())
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_file():
            yield path
        elif path.is_dir() and path.resolve() not in within:
            yield from _files(path, within)


def _holds(folder: Path, sources: Mapping[str, bytes]) -> bool:
    """Whether a frozen copy exists and is complete."""
    files = {path.relative_to(folder).as_posix() for path in _sources(folder / PACKAGE)} if folder.is_dir() else set()
    return files == set(sources) and all((folder / name).read_bytes() == content for name, content in sources.items())


def frozen_environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment in which `python -m tasks.STAGE`, and every process it starts, import only the copy in `folder`; with MALLOC."""
    path = os.pathsep.join(filter(None, [str(folder.absolute()), inherited.get("PYTHONPATH", "")]))
    return {SNAPSHOT: str(folder.absolute()), "PYTHONPATH": path, "PYTHONSAFEPATH": "1", **MALLOC}


def own_stage() -> str:
    """The stage that this process runs, as `python -m tasks.STAGE`; empty if it runs another program."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = spec.name if spec else ""
    return name.split(".")[1] if name.startswith(f"{PACKAGE}.") and name.endswith(".__main__") else ""
