"""A terminal or a file whose encoding lacks a character of a title: a question mark stands for it, and nothing fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("encoding", "printed"), [("latin-1", b"\xfcber ???"), ("ascii", b"?ber ???"), ("utf-8", "über ἄκρ".encode())])
def test_what_standard_output_cannot_show_is_a_question_mark(encoding: str, printed: bytes) -> None:
    code = "import sys; from flows.cli import main; main._open_streams(); print('\\xfcber \\u1f04\\u03ba\\u03c1', end='')"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
