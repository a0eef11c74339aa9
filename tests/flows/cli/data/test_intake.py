"""What `retemper intake check` says of a batch."""

import json

import pytest

from flows.cli.data.intake import _show
from flows.intake.verdict import Batch


def test_ten_lines_of_a_batch_are_printed_and_the_others_counted(capsys: pytest.CaptureFixture[str]) -> None:
    batch = Batch("b", "quarantined", wrong=("12 malformed lines: x:1",), lines=tuple(f"x:{line}" for line in range(1, 13)))
    _show(batch, False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:12] == [*(f"  x:{line}" for line in range(1, 11)), "  and 2 more lines: --json"]
    _show(batch, True)
    assert len(json.loads(capsys.readouterr().out)["lines"]) == 12


def test_a_line_that_is_the_reason_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    _show(Batch("b.csv", "quarantined", wrong=("b.csv:3: not UTF-8",), lines=("b.csv:3: not UTF-8",)), False)
    assert capsys.readouterr().out.count("not UTF-8") == 1
