"""Code digests: what counts and what does not; frozen copies are complete, reused, and bounded in number."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.stage.code import Module, Reader, freeze_code, frozen_environment, read_module

FILES = {
    "__init__": '"""Only words."""',
    "core/__init__": '"""Only words."""',
    "core/a": "from tasks.core import b\n",
    "core/b": "",
    "core/c": "def f():\n    import tasks.core.d as d\n    return d\n",
    "core/d": "x = 1\n",
    "core/deep/__init__": "y = 2\n",
    "core/deep/e": "z = 3\n",
    "core/unused": "x = 1\n",
    "one/__init__": "",
    "one/__main__": "from . import own\nfrom tasks.core.a import f\n",
    "one/own": "if True:\n    from ..core.c import g\nfrom tasks.core.deep.e import z\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / f"tasks/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tasks/one/page.html").write_text("<p>")
    return tmp_path


def test_the_closure_has_lazy_relative_and_indirect_imports_and_adjacent_files(project: Path) -> None:
    paths = {path.relative_to(project / "tasks").as_posix() for path in Reader(project).closure("one")}
    assert paths == {
        "one/__main__.py",
        "one/own.py",
        "one/page.html",
        "core/a.py",
        "core/c.py",
        "core/d.py",
        "core/deep/__init__.py",
        "core/deep/e.py",
    }  # fmt: skip - core/b.py is empty and can change nothing
    for leftover in ("own.py.orig", "own.py~", "own.py.rej", ".own.py.swp"):
        (project / "tasks/one" / leftover).write_text("of an editor or a merge")
    assert Reader(project).closure("one").keys() == {project / "tasks" / path for path in paths}


SAME = [
    ("x = 1", "# why\nx   =  (1)\n"),
    ("def f(a):\n    return a", 'def f(a: "int") -> "int":\n    """Words."""\n    return a'),
    ("raise ValueError('one')", "raise ValueError(f'{two}')"),
    ("print('one', x)", "print('two', x)"),
    ("p = Progress(f'a {n}', n, 'rows')", "p = Progress(f'b: {n}', n, 'lines')"),
    ("print('one', end='')", "print(f'two', end='!')"),
    ("print(Progress('one', f('x')))", "print(Progress('two', f('x')))"),
    ("a.add_argument('--x', help='one')", "a.add_argument('--x', help='two')"),
    ("x: int = Field(1, description='one')", "x: int = Field(1)"),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a", "from typing import TYPE_CHECKING"),
]
OTHER = [
    ("x = 1", "x = 2"),
    ("x = a + b", "x = a - b"),
    ("x = 'one'", "x = 'two'"),
    ("f(1)", "g(1)"),
    ("print(f'one: {f(1)}')", "print(f'one: {f(2)}')"),  # it may change what it is given
    ("print(f'pruned {prune(m, \"random\")}')", "print(f'pruned {prune(m, \"magnitude\")}')"),
    ("print('pruned', prune(m, 'random'))", "print('pruned', prune(m, 'magnitude'))"),
    ("print('pruned', m['full'].merge())", "print('pruned', m['lora'].merge())"),
    ("print(f'{apply(m, f\"{x}a\")}')", "print(f'{apply(m, f\"{x}b\")}')"),
    ("print('a' if prune(m, 'random') else '')", "print('a' if prune(m, 'magnitude') else '')"),
    ("print('one', file=handle)", "print('two', file=handle)"),
    ("class P:\n    x: int = 1", "class P:\n    x: float = 1"),  # pydantic reads it
    ("def f(a=1): pass", "def f(a=2): pass"),
    ("a.add_argument('--x')", "a.add_argument('--y')"),
    ("@cache\ndef f(): pass", "def f(): pass"),
    ("raise ValueError('one')", "raise KeyError('one')"),
    ("if TYPE_CHECKING:\n    import a\nelse:\n    x = 1", "if TYPE_CHECKING:\n    import a\nelse:\n    x = 2"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_edits_that_cannot_change_an_artifact_keep_the_digest(one: str, other: str) -> None:
    assert one != other
    assert read_module(one.encode(), "tasks").digest == read_module(other.encode(), "tasks").digest


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_all_other_edits_change_the_digest(one: str, other: str) -> None:
    assert read_module(one.encode(), "tasks").digest != read_module(other.encode(), "tasks").digest


def test_a_digest_is_the_same_under_every_version_of_python() -> None:
    """`ast.dump` differs between versions, so a team with several of them could not share a cache."""
    text = "@a\nclass B(C):\n    x: int = 1\n    def f(self, y=(2, 'z'), *a, k=None):\n        return f'{y!r:>3}' if y else [*a]\n"
    assert read_module(text.encode(), "tasks").digest == "8470fd8eec8d4b58f95461cc54f0099fc6b3061c3d09ad4a8912bf022b9a3049"


def test_digests_of_an_earlier_form_are_others(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Reader(project).stage_digests()
    monkeypatch.setattr("tasks.core.stage.code.FORM", "1")
    assert not {*first.values()} & {*Reader(project).stage_digests().values()}


def test_cached_results_depend_on_a_modules_bytes(project: Path) -> None:
    memory = project / "memory.json"
    first = Reader(project, memory).stage_digests()
    assert memory.exists() and Reader(project, memory).stage_digests() == first == Reader(project).stage_digests()
    (project / "tasks/core/d.py").write_text("x = 2\n")
    assert Reader(project, memory).stage_digests() == Reader(project).stage_digests() != first
    memory.write_text("{")
    assert Reader(project, memory).stage_digests() == Reader(project).stage_digests()


def test_unchanged_modules_are_not_read_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, texts = project / "memory.json", list[bytes]()

    def record_text(text: bytes, package: str) -> Module:
        texts.append(text)
        return read_module(text, package)

    first = Reader(project, memory).stage_digests()
    monkeypatch.setattr("tasks.core.stage.code.read_module", record_text)
    assert Reader(project, memory).stage_digests() == first and texts == []
    (project / "tasks/core/d.py").write_text("x = 2\n")
    assert Reader(project, memory).stage_digests() != first and texts == [b"x = 2\n"]


def test_cached_results_of_another_version_of_the_rules_are_not_used(project: Path) -> None:
    memory = project / "memory.json"
    digests = Reader(project, memory).stage_digests()
    stored = json.loads(memory.read_text())
    stored["modules"] = {key: ["0" * 64, imports] for key, (_, imports) in stored["modules"].items()}
    memory.write_text(json.dumps(stored))
    assert Reader(project, memory).stage_digests() != digests, "what is stored would show"
    memory.write_text(json.dumps(stored | {"by": "old"}))
    assert Reader(project, memory).stage_digests() == digests


def test_equal_modules_of_two_packages_import_from_their_own(project: Path) -> None:
    shutil.copytree(project / "tasks/one", project / "tasks/two")
    memory = project / "memory.json"
    Reader(project, memory).stage_digests()
    for stage, other in (("one", "two"), ("two", "one")):
        paths = Reader(project, memory).closure(stage)
        assert project / f"tasks/{stage}/own.py" in paths and project / f"tasks/{other}/own.py" not in paths


@pytest.mark.parametrize(("text", "line"), [(b"x = 1\nif:\n", 2), (b"x = '\0'\n", 1), (b"x = '\xff'\n", 1)])
def test_invalid_python_is_refused_in_one_line(project: Path, text: bytes, line: int) -> None:
    (project / "tasks/core/d.py").write_bytes(text)
    with pytest.raises(UserError, match=rf"^tasks/core/d.py:{line}: not valid Python \(.+\); fix it and run again$"):
        Reader(project).stage_digests()


def test_a_frozen_copy_is_complete_and_reused_and_old_ones_are_removed(project: Path) -> None:
    first = freeze_code(project, kept=2)
    (first / "tasks/one/own.py").write_text("tampered = True\n")
    assert freeze_code(project, kept=2) == first
    assert (first / "tasks/one/own.py").read_text() == FILES["one/own"]
    for number in (5, 6, 7):
        (project / "tasks/core/d.py").write_text(f"x = {number}\n")
        last = freeze_code(project, kept=2)
    assert len([*(project / ".retemper/code").iterdir()]) == 2 and last.is_dir() and not first.exists()


def test_the_copy_just_made_survives_others_that_a_clock_has_put_in_the_future(project: Path) -> None:
    for number in range(8):
        (project / "tasks/core/d.py").write_text(f"x = {number}\n")
        os.utime(freeze_code(project), (2**31 - 20 + number,) * 2)
    oldest = min((project / ".retemper/code").iterdir(), key=lambda path: path.stat().st_mtime)
    (project / "tasks/core/d.py").write_text("x = 8\n")
    last = freeze_code(project)
    assert (last / "tasks/core/d.py").read_text() == "x = 8\n"
    assert len([*last.parent.iterdir()]) == 8 and not oldest.exists()


@pytest.mark.parametrize("complete", [True, False])
def test_a_copy_that_another_process_makes_meanwhile_is_used_if_it_is_complete(
    complete: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def rename_second(own: Path, folder: Path) -> Path:
        shutil.copytree(own, folder)
        if not complete:
            next(path for path in folder.rglob("*.py")).unlink()
        return rename(own, folder)

    monkeypatch.setattr(Path, "rename", rename_second)
    if complete:
        assert [freeze_code(project)] == list((project / ".retemper/code").iterdir())
    else:
        with pytest.raises(OSError, match="not empty"):
            freeze_code(project)


def test_a_stage_and_its_child_processes_import_the_frozen_copy(project: Path) -> None:
    (project / "tasks/core/b.py").write_text("value = 1\n")
    code = freeze_code(project)
    (project / "tasks/core/b.py").write_text("value = 2\n")
    script = (
        "import subprocess, sys\n"
        "inner = 'from tasks.core.b import value; print(value)'\n"
        "print(subprocess.run([sys.executable, '-c', inner], capture_output=True, text=True).stdout)\n"
        "import os\nfrom tasks.core.b import value\nprint(value, os.environ['ARROW_DEFAULT_MEMORY_POOL'])\n"
    )
    (project / "tasks/one/__main__.py").write_text(script)
    (code / "tasks/one/__main__.py").write_text(script)
    process = subprocess.run(
        [sys.executable, "-m", "tasks.one"],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", **frozen_environment(code, {})},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.split() == ["1", "1", "system"]
