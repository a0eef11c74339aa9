"""bm25s never sees JAX, which would take a GPU's memory in every process that searches by words."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import tasks.core.lexical.search
import sys
assert "bm25s" in sys.modules and "jax" not in sys.modules
import jax
import tasks.core.lexical.build
assert jax.THERE
"""


def test_bm25s_does_not_import_jax_and_others_can(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("THERE = True\n")
    (tmp_path / "jax" / "lax.py").write_text("raise AssertionError('JAX was started')\n")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    for script in (SCRIPT, "import jax\n" + SCRIPT.replace(' and "jax" not in sys.modules', "")):
        process = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
    plain_import = subprocess.run([sys.executable, "-c", "import bm25s"], env=environment, capture_output=True, text=True, check=False)
    assert "JAX was started" in plain_import.stderr, "otherwise this test shows nothing"


def test_nothing_else_imports_bm25s() -> None:
    sources = {file.name: file.read_text("utf-8") for file in (ROOT / "tasks").rglob("*.py")}
    assert [name for name, text in sources.items() if re.search(r"^\s*(import|from) bm25s", text, re.MULTILINE)] == ["without_jax.py"]
