"""A terminal or a file whose encoding lacks a character of a title: a question mark stands for it, and nothing fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("encoding", "printed"), [("latin-1", b"\xfcber ???"), ("ascii", b"?ber ???"), ("utf-8", "über ἄκρ".encode())])
def test_what_standard_output_cannot_show_is_a_question_mark(encoding: str, printed: bytes) -> None:
    code = "import sys; from flows.cli import main; main._open_streams([]); print('\\xfcber \\u1f04\\u03ba\\u03c1', end='')"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert (result.returncode, result.stdout) == (0, printed), result.stderr


@pytest.mark.parametrize("settings", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "utf-8"}])
def test_json_loses_nothing_in_any_encoding(settings: dict[str, str]) -> None:
    """Before, a letter that the encoding lacks was a question mark; in the C locale, a traceback."""
    value = {"ü": ["ἄκρ", "\U0001f600", 'a "b"\n', "\udc80"]}
    code = "import json, sys; from flows.cli import main; main._open_streams(['search', '--json', 'x']); "
    code += f"print(json.dumps({value!a}, indent=2, ensure_ascii=False))"
    environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL")}
    environment |= settings | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.decode(settings.get("PYTHONIOENCODING", "ascii"))) == value
    if "LC_ALL" in settings:
        plain = code.replace("'--json', ", "")
        result = subprocess.run([sys.executable, "-c", plain], env=environment, capture_output=True, check=False)
        assert (result.returncode, result.stdout.splitlines()[1]) == (0, b'  "?": [')


@pytest.mark.parametrize("settings", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "utf-8"}])
def test_what_search_prints_as_json_loses_nothing(settings: dict[str, str]) -> None:
    """It has a process of its own, which ended in a traceback."""
    value = {"ü": "ἄκρ \U0001f600"}
    environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL")}
    environment |= settings | {"PYTHONPATH": str(ROOT)}
    code = f"from tasks.search.__main__ import as_json; print(as_json({value!a}))"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    output = result.stdout.decode(settings.get("PYTHONIOENCODING", "ascii"))
    assert json.loads(output) == value
    assert ("ἄ" in output) == (settings.get("PYTHONIOENCODING") == "utf-8"), "letters as they are, where they can be"
