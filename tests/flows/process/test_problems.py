"""A command's problems, from the file that its environment names."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from flows.process.problems import ROOM, Problems, print_problems
from tasks.core.errors import PROBLEM, Corrupt, DiskError, Invalid, Missing, Problem, UserError, one_line_errors, report

SCRIPT = """
from tasks.core.errors import Invalid, one_line_errors
with one_line_errors():
    raise {raised}
"""


def run(file: Path, exception: str) -> tuple[subprocess.CompletedProcess[str], list[Problem]]:
    record = Problems(file)
    command = [sys.executable, "-c", SCRIPT.format(raised=exception)]
    result = subprocess.run(command, env=os.environ | record.environment, capture_output=True, text=True, check=False)
    return result, record.take()


def test_a_process_that_fails_says_why_twice(tmp_path: Path) -> None:
    """In a line for people and in a record for its caller, neither with a password."""
    exception = "Invalid(where='s3://me:secret@host/a.tsv:7', found='2 columns', expected='3', remedy='add the tab')"
    result, problems = run(tmp_path / "new" / "problem.json", exception)
    line = "s3://***@host/a.tsv:7: found 2 columns, expected 3; add the tab"
    assert (result.returncode, result.stderr) == (2, f"retemper: {line}\n")
    assert problems == [Problem("invalid", line, 2, "s3://***@host/a.tsv:7", "2 columns", "3", "add the tab")]
    assert not list((tmp_path / "new").iterdir()), "the record is taken once"


def test_only_a_users_mistake_is_recorded(tmp_path: Path) -> None:
    result, problems = run(tmp_path / "problem.json", "RuntimeError('boom')")
    assert result.returncode == 1
    assert "RuntimeError: boom" in result.stderr
    assert problems == []


def test_a_full_disk_is_a_problem_of_its_own_kind(tmp_path: Path) -> None:
    exception = "OSError(28, 'No space left on device', 'data/x')"
    result, problems = run(tmp_path / "problem.json", exception)
    assert result.returncode == 2
    assert [problem.kind for problem in problems] == [DiskError.kind]
    assert problems[0].message.startswith("data/x: No space left on device; no partial output was kept")


def test_a_record_needs_no_space_on_a_full_disk(tmp_path: Path) -> None:
    record = Problems(tmp_path / "problem.json")
    blocks = (tmp_path / "problem.json").stat().st_blocks
    assert (tmp_path / "problem.json").stat().st_size == ROOM
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PROBLEM, record.environment[PROBLEM])
        report([Problem("missing", "x" * (ROOM // 2))])
    assert 0 < (tmp_path / "problem.json").stat().st_blocks <= blocks
    assert [problem.kind for problem in record.take()] == [Missing.kind]


@pytest.mark.parametrize("text", ["", "[{", "[{}]", "{}", "7", '[{"kind": 1, "message": "x", "more": 2}]'])
def test_a_truncated_record_is_ignored(tmp_path: Path, text: str) -> None:
    record = Problems(tmp_path / "problem.json")
    (tmp_path / "problem.json").write_text(text)
    assert record.take() == []
    assert record.take() == [], "a missing one too"


def test_problems_are_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    record = Problems(tmp_path / "problem.json")
    monkeypatch.setenv(PROBLEM, record.environment[PROBLEM])
    problems = [Problem("invalid", "a: b", where="a"), Problem("stage", "train@a: failed", 1)]
    print_problems(problems)
    assert capsys.readouterr().err == "retemper: a: b\nretemper: train@a: failed\n"
    assert record.take() == problems


def test_a_message_is_given_or_made_from_its_parts() -> None:
    assert str(UserError("as it is")) == "as it is"
    assert str(Missing(where="params.yaml: rounds", remedy="add it")) == "params.yaml: rounds; add it"
    assert str(Invalid(where="a", found="1", expected="2")) == "a: found 1, expected 2"
    assert str(Invalid("a: 1 is too few", where="a", found="1")) == "a: 1 is too few"
    unpickled = pickle.loads(pickle.dumps(Corrupt("x", where="y")))  # noqa: S301 - from a worker's process
    assert (type(unpickled), str(unpickled), unpickled.where) == (Corrupt, "x", "y")


def test_no_environment_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROBLEM, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"), one_line_errors():
        raise UserError("x")
    assert json.dumps([path.name for path in tmp_path.iterdir()]) == "[]"
