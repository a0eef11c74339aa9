"""What a run shows on a terminal, and a run whose output nobody takes any more."""

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flows.process.display import Display, Outcome, fitted_table, terminal_width, text_table
from flows.process.processes import Processes

RUN = """
import sys
from pathlib import Path
from flows.process.display import Display, Outcome, fitted_table, terminal_width, text_table
from flows.process.processes import Processes
display, seen = Display(), []
with display.open(["train@a"]):
    display.began("train@a")
    def tell(line):
        seen.append(line)
        display.output("train@a", line)
    status = Processes().run([sys.executable, "-c", "print('x' * 99 + chr(10), end='') or [print('y' * 99) for _ in range(5000)]"], tell)
    display.ended("train@a", Outcome("Ran", 1.0))
display.warn("said")
print("more, of others")
Path("ended").write_text(f"{status} {len(seen)}")
"""


@pytest.mark.parametrize("streams", ["nobody", "both", "closed", "full"])
def test_the_run_goes_on_and_ends_as_it_would_have(tmp_path: Path, streams: str) -> None:
    """Its pipe's reader is gone (`| head`, `2>&1 | head`), stdout is closed (`>&-`), or the disk under its log is full."""
    read, write = os.pipe()
    os.close(read)
    if streams == "full" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    unwritable = os.open("/dev/full", os.O_WRONLY) if streams == "full" else write
    command = [sys.executable, "-c", RUN]
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    result = subprocess.run(
        shell if streams == "closed" else command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        stdout=subprocess.PIPE if streams == "closed" else unwritable,
        stderr=write if streams == "both" else subprocess.PIPE,
        timeout=300,
        check=False,
    )
    assert (tmp_path / "ended").read_text() == "0 5001", "every line was read"
    assert (result.returncode, result.stderr) == (0, None if streams == "both" else b"retemper: warning: said\n")


def test_a_command_ends_where_who_is_told_cannot_listen() -> None:
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        raise BrokenPipeError

    script = "for _ in range(5000): print('y' * 99)"
    assert Processes().run([sys.executable, "-c", script], tell) == 0
    assert len(lines) == 5000


def test_a_run_whose_reader_is_gone_has_its_true_state(served_toy: Any) -> None:
    process = served_toy.start("run", "prepare")
    assert process.stdout is not None
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(300) == 0, error
    assert "Traceback" not in error and "Broken" not in error
    assert "at work on data/corpus" in (served_toy.folder / ".retemper/logs/prepare.log").read_text()
    assert (served_toy.folder / "data/corpus").exists() and "prepare" in (served_toy.folder / "dvc.lock").read_text()


def test_what_is_said_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.line("a line")
    display.warn("a warning")
    output = capsys.readouterr()
    assert (output.out, output.err) == ("a line\n", "retemper: warning: a warning\n")


def test_a_terminal_sees_stages_at_work_below_what_is_printed(paper: Any) -> None:
    terminal = paper("stdout", "stderr")
    display = Display()
    with display.open(["a", "train@a"]):
        display.began("train@a")
        display.progress("train@a", "train: 1/2 \x1b[31m[b], 2.0/s")
        display.output("train@a", "a \x1b[31m[b] line " + 99 * "x")
        display.began("a")
        assert "".join(terminal.shown()[:2]) == "train@a | a \\x1b[31m[b] line " + 99 * "x"
        progress = [line.split(" s > ")[1] for line in terminal.shown()[2:]]
        assert progress == ["train: 1/2 \\x1b[31m[b], 2.0/s", "running"]
        display.warn("beware")
        display.ended("train@a", Outcome("Ran", 1.0))
        assert terminal.shown()[2:4] == ["retemper: warning: beware", "train@a Ran in 1.0 s"]
        assert terminal.shown()[4].startswith("a ") and len(terminal.shown()) == 5
        display.ended("a", Outcome("Failed", 2.0))
    display.line("the end")
    assert terminal.shown()[4:] == ["a       Failed in 2.0 s", "the end", ""]


def test_a_stopped_run_draws_no_more(paper: Any) -> None:
    """The farewell, printed from a signal handler, is below the lines of the running stages."""
    terminal = paper("stdout", "stderr")
    with pytest.raises(KeyboardInterrupt):
        display = Display()
        with display.open(["a", "b"]):
            display.began("a")
            display.began("b")
            screen = terminal.shown()
            farewell = display.farewell()
            terminal.write(farewell)
            raise KeyboardInterrupt
    assert "".join("".join(terminal.shown()).split()) == "".join("".join([*screen, farewell]).split())


@pytest.mark.parametrize("columns", [7, 30])
def test_a_narrow_terminal_cuts_what_stages_do(paper: Any, columns: int) -> None:
    terminal = paper("stdout")
    terminal.columns = columns
    display = Display()
    with display.open(["a", "b"]):
        display.began("a")
        display.progress("a", "doing this and that " * 9)
        display.began("b")
        assert len(terminal.shown()) == 2


@pytest.mark.parametrize("name, value", [("TERM", "dumb"), ("NO_COLOR", "1")])
def test_a_terminal_of_plain_text_is_told_as_a_log(paper: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    terminal = paper("stdout", "stderr")
    monkeypatch.setenv(name, value)
    display = Display()
    with display.open(["a"]):
        display.began("a")
        display.progress("a", "half way")
        display.ended("a", Outcome("Ran", 1.0))
    assert (terminal.getvalue(), display.environment) == ("a Ran in 1.0 s\n", {})


def test_lines_of_many_threads_come_whole_and_once(paper: Any) -> None:
    """While stages begin and end, and the lines below are redrawn."""
    terminal = paper("stdout", "stderr")
    display, stages = Display(), [f"stage{number}" for number in range(6)]

    def show_stage(stage: str) -> None:
        for turn in range(10):
            display.began(stage)
            display.output(stage, f"line {turn}")
            display.ended(stage, Outcome("Ran", turn))

    with display.open(stages):
        threads = [threading.Thread(target=show_stage, args=(stage,)) for stage in stages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = [line for stage in stages for turn in range(10) for line in (f"{stage} | line {turn}", f"{stage} Ran in {turn}.0 s")]
    assert sorted(filter(None, terminal.shown())) == sorted(expected)


@pytest.mark.usefixtures("paper")
def test_the_run_goes_on_where_its_terminal_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = pty.openpty()
    with os.fdopen(its, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        display = Display()
        with display.open(["a"]):
            display.began("a")
            os.close(ours)
            display.ended("a", Outcome("Ran", 1.0))
            display.output("a", "a line")
        display.line("the end")
        print("of others", flush=True)


HEADER = ["system", "queries", "nDCG@10", "95% interval", "p (Holm)"]
NAMED = ["a1b2c3d:star_adore_of_the_second_try (best on dev)", "210", "0.8345", "-0.0012 to +0.0345", "1.2e-05"]


@pytest.mark.parametrize("width", [1, 8, 20, 40, 79, 80, 99, 100, None])
def test_a_table_fits_its_terminal_and_keeps_every_figure(width: int | None) -> None:
    rows = [["bm25", "210", "0.7284", "", ""], NAMED]
    table = fitted_table(HEADER, rows, width)
    words = table.split()
    assert set(HEADER[-1].split()) < set(words) and all(words.count(figure) == 1 for figure in ("0.8345", "1.2e-05", "0.7284", "nDCG@10"))
    assert "-0.0012 to +0.0345" in table
    if width is None or width >= len(text_table(HEADER, rows).splitlines()[-1]):
        assert table == text_table(HEADER, rows)
    else:
        assert max(map(len, table.splitlines())) <= max(width, 8 + 2 + len(NAMED[3]))


@pytest.mark.parametrize(
    ("width", "blocks"), [(19, ["s aaaa bbbb cccc"]), (13, ["s aaaa bbbb", "s cccc"]), (12, ["s aaaa", "s bbbb", "s cccc"])]
)
def test_a_column_that_just_fits_stays_beside_the_others(width: int, blocks: list[str]) -> None:
    table = fitted_table(["s", "aaaa", "bbbb", "cccc"], [["x", "1", "2", "3"]], width)
    assert [" ".join(block.splitlines()[0].split()) for block in table.split("\n\n")] == blocks


@pytest.mark.parametrize(
    ("cells", "flush_right"),
    [
        (["1", "22,000.5", "-0.0012", "+0.5", "1.2e-05", ""], True),
        (["12.3 s", "4m05s", "2h03m", "0.5 ms"], True),
        (["95%", "1.5 GiB", "3 MB"], True),
        (["0.3350*+", "0.3350 -", "0.3350  ", "0.3350*"], True),
        (["0.3350 ± 0.0021*", "0.3350 (0.3301 to 0.3362) ", "-0.0012 to +0.0345", "3 (full)", "-"], True),
        (["3 documents", "1"], False),
        (["2026-11-28T19:10:29", "1"], False),
        (["0a1b2c3d", "12345678"], False),
        (["2026-11-batch", "1"], False),
        (["12.5.1"], False),
    ],
)
def test_a_column_is_flush_right_only_if_all_of_it_are_figures(cells: list[str], flush_right: bool) -> None:
    _, *lines = text_table(["row", "a heading that is longer than all of them"], [["x", cell] for cell in cells]).splitlines()
    assert {line[5] == " " for line in lines if line != "x"} == {flush_right}


@pytest.mark.parametrize("width", [100, 80, 60, 40])
def test_a_long_text_is_wrapped(width: int) -> None:
    message = "corpus.jsonl:1: found 2 columns, expected 3, as in its header; add the tab, and some more words that take room"
    rows = [["2026-11-batch", "quarantined", message], ["b", "accepted", "3 documents"]]
    lines = fitted_table(["batch", "state", "what"], rows, width).splitlines()
    assert max(map(len, lines)) <= width
    column = next(line.index("what") for line in lines if "what" in line)
    assert " ".join(
        part for line in lines if len(line) > column and (part := line[column:].strip()) not in ("what", "3 documents")
    ).endswith(message)


def test_a_wrapped_name_has_all_of_its_letters() -> None:
    lines = fitted_table(["system", "dev"], [[NAMED[0], "0.5"]], 40).splitlines()
    assert lines == ["system         dev", "a1b2c3d:star_  0.5", "adore_of_the_", "second_try", "(best on dev)"]


def test_a_file_has_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert terminal_width() is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert terminal_width() == 40


def test_a_stage_is_alone_until_another_begins() -> None:
    display = Display()
    with display.open(["a", "b"]):
        display.began("a")
        assert display.runs_alone("a")
        display.began("b")
        assert not display.runs_alone("a")
        display.ended("b", Outcome("Ran", 1.0))
        assert display.runs_alone("a")


def test_a_run_may_end_while_a_stage_speaks() -> None:
    """The thread that ends the run removes the listener."""
    lines: list[str] = []

    class Listening:
        def began(self, stage: str) -> None: ...
        def ended(self, stage: str, outcome: Outcome) -> None: ...
        def said(self, stage: str, text: str) -> None:
            lines.append(f"{stage}: {text}")

    class Ending(Display):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "_listener":
                self._listener = None
            return value

    display = Ending()
    with display.open(["train@a"], Listening()):
        display.progress("train@a", "half way")
    assert lines == ["train@a: half way"]
