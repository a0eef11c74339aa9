"""No line shown may contain a URL's secrets or terminal control codes."""

import errno
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.champions import history, machines
from flows.cli import main
from flows.cli.operate import champion
from flows.experiments import store
from flows.parameters import sources
from flows.pipeline.stage import Transcript, _reader
from flows.process.display import Display
from flows.process.problems import print_problems
from tasks.core.errors import Problem, UserError, disk_fault, escaped, one_line_errors, printable, redacted
from tasks.core.plurals import counted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://me:p@ss@host/x", "http://***@host/x"),
        ("fetch http://user:p/w@host now", "fetch http://***@host now"),
        ("http://user:p/@/w@host", "http://***@host"),
        ("http://user:p?q#r@host/x", "http://***@host/x"),
        ("ssh://git@host:22/x", "ssh://***@host:22/x"),
        ("http://a:b@h/x,http://c:d@h/y", "http://***@h/x,http://***@h/y"),
        ("https://h/x?pwd=abc&n=1", "https://h/x?pwd=***&n=1"),
        ("https://h/x?auth=abc", "https://h/x?auth=***"),
        ("https://h/x?a=1&passwd=abc", "https://h/x?a=1&passwd=***"),
        ("https://h/x?X-Amz-Credential=AKIA%2Fus&X-Amz-Security-Token=t", "https://h/x?X-Amz-Credential=***&X-Amz-Security-Token=***"),
        ("https://h/x?jwt=abc&n=1&session_id=def", "https://h/x?jwt=***&n=1&session_id=***"),
        ("https://h/x?api_key=abc&client_secret=def&sig=g", "https://h/x?api_key=***&client_secret=***&sig=***"),
        ("https://h/x#access_token=abc&state=1", "https://h/x#access_token=***&state=1"),
        ("https://h/x?author=me&passage=3", "https://h/x?author=me&passage=3"),
        ("https://h/@scope/name and https://h/x", "https://h/@scope/name and https://h/x"),
        ("mail a@b.org at 12:30", "mail a@b.org at 12:30"),
    ],
)
def test_secrets_of_urls_are_redacted(text: str, expected: str) -> None:
    assert redacted(text) == expected
    assert redacted(expected) == expected


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error", "data/x"),
        RuntimeError("I/O error (os error 5)"),
        OSError("disk I/O error"),
    ],
)
def test_a_failing_disk_is_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """Found by benchmarks/faults.py: it was a traceback."""
    with pytest.raises(SystemExit) as exit_info, one_line_errors():
        raise ValueError("a library's own") from error
    assert exit_info.value.code == 2
    name = "data/x" if error.args[0] == errno.EIO else "disk"
    line = f"retemper: {name}: Input/output error; no partial output was kept, check the disk (dmesg, smartctl) and run again\n"
    assert capsys.readouterr().err == line
    assert disk_fault(OSError("os error 50")) == ""
    assert disk_fault(OSError(errno.ENOSPC, "No space left on device", "from", None, "to")).startswith("to: No space left on device; ")
    assert disk_fault(OSError(errno.EIO, "Input/output error", "from", None, "to")).startswith("from: Input/output error; "), "it was read"


def test_a_name_that_the_disk_does_not_take_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / f"{'a' * 300}.json"
    with pytest.raises(OSError, match="too long") as error:
        path.write_text("")
    assert disk_fault(error.value) == f"{path}: File name too long; no partial output was kept, shorten the name and run again"


def test_control_characters_are_escaped() -> None:
    assert escaped("a\x1b[2J\x07\rb\x9b1m\x7f\u202e\udc80") == r"a\x1b[2J\x07\rb\x9b1m\x7f\u202e\udc80"
    plain = "tab\tline\nÄ 語 🙂 \u200f שלום"
    assert escaped(plain) == plain
    assert escaped(escaped("\x1b")) == r"\x1b"


def test_every_way_to_the_terminal_escapes(capsys: pytest.CaptureFixture[str], paper: Any) -> None:
    display = Display()
    display.line("one\x1b[2J")
    display.warn("two\x1b[2J")
    display.output("train@a", "three\x1b[2J")
    with pytest.raises(SystemExit), one_line_errors():
        raise UserError("four\x1b[2J of http://a:b@h")
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert (
        captured.err.splitlines()[-1]
        == f"retemper: {printable('four' + chr(27) + '[2J of http://a:b@h')}"
        == r"retemper: four\x1b[2J of http://***@h"
    )
    terminal = paper("stdout")
    display = Display()
    with display.open(["train@a"]):
        display.began("train@a")
        display.progress("train@a", "five\x1b[2J")
        display.began("train@b")
        assert r"five\x1b[2J" in terminal.shown()[0]


def test_what_is_printed_without_the_display_is_escaped_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Reasons, names, and subjects of commits come from data and from colleagues."""
    monkeypatch.setattr(store, "list_experiments", lambda: [SimpleNamespace(baseline="b")])
    monkeypatch.setattr(store, "git", lambda *_: "abc subject\x1b[2J")
    monkeypatch.setattr(store, "table", lambda *_: "name\x1b[2J")
    store.show(test=False, as_json=False)
    monkeypatch.setattr(history, "read_events", lambda _: [history.Ended("1", "failed", "reason\x1b[2J", "now")])
    champion._show_history(as_json=False)
    champion._meet(machines.Met("warning\x1b[2J", "told\x1b[2J"))
    sources._warn("source\x1b[2J")
    print_problems([Problem("user", "problem\x1b[2J of http://a:b@h")])
    with pytest.raises(SystemExit):
        main.main(["gc", "http://a:b@argument\x1b[2J"])
    output = "".join(capsys.readouterr())
    for word in ("subject", "name", "reason", "warning", "told", "source", "problem", "argument"):
        assert rf"{word}\x1b[2J" in output
    assert "\x1b" not in output
    assert "a:b" not in output


def test_lines_of_a_stage_are_escaped_where_they_are_read() -> None:
    log, lines = io.StringIO(), list[str]()
    read_line = _reader(Transcript(), log, lines.append)
    for line in ("Running stage 'a':", "> python step.py", "own\x1b[2J", "\rprogress\x1b[2J"):
        read_line(line)
    assert lines == [r"own\x1b[2J", "\rprogress\\x1b[2J"]
    assert r"own\x1b[2J" in log.getvalue()
    assert "\x1b" not in log.getvalue()


@pytest.mark.parametrize(
    ("count", "noun", "message"),
    [
        (1, "stages", "1 stage"),
        (0, "queries", "0 queries"),
        (1, "queries of train", "1 query of train"),
        (1, "batches", "1 batch"),
        (1, "searches", "1 search"),
        (1200, "entries", "1,200 entries"),
    ],
)
def test_one_is_told_in_the_singular(count: int, noun: str, message: str) -> None:
    assert counted(count, noun) == message
