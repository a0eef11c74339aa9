"""`--set`: what is edited, what stays as it was, what is refused."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.parameters.edit import apply, literal, setting
from tasks.core.errors import UserError
from tasks.core.params.safe_yaml import parse_yaml

TEXT = """\
# The head.

text:
  titles: false # whether titles count
  separator: " "

rounds:
  warmup:
    lr: 5e-5 # peak
    window: [1, 200]
  star:
    init: warmup # where from
    lr: 5e-5

# What follows.
mine: {}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(TEXT)
    return path


def accept(_: dict[str, Any]) -> None:
    pass


def load(path: Path) -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load(io.StringIO(path.read_text()))


@pytest.mark.parametrize(
    ("assignments", "old", "new"),
    [
        (["rounds.star.lr=1e-05"], "    lr: 5e-5\n\n#", "    lr: 1e-05\n\n#"),
        (["rounds.warmup.lr=3"], "    lr: 5e-5 # peak", "    lr: 3    # peak"),
        (["text.titles=true"], "titles: false #", "titles: true  #"),  # comments keep their column
        (["rounds.warmup.window=[1, 50]"], "[1, 200]", "[1, 50]"),
        (["text.separator=': '"], 'separator: " "', "separator: ': '"),
        (["rounds.star.steps=7"], "    lr: 5e-5\n\n#", "    lr: 5e-5\n    steps: 7\n\n#"),
        (
            ["rounds.x.init=star", "rounds.x.negatives=bm25"],
            "    lr: 5e-5\n\n#",
            "    lr: 5e-5\n  x:\n    init: star\n    negatives: bm25\n\n#",
        ),
        (["rounds.star="], "  star:\n    init: warmup # where from\n    lr: 5e-5\n", ""),
        (["rounds.star.lr="], "    lr: 5e-5\n\n#", "\n#"),
    ],
)
def test_only_the_named_lines_change(file: Path, assignments: list[str], old: str, new: str) -> None:
    assert apply(assignments, file, accept) == TEXT
    assert file.read_text() == TEXT.replace(old, new)


COMMENTED = """\
# The head.
rounds: # of all
  # about warmup
  warmup: # first
    lr: 1 # peak
    window: [1, 2]

  # star: the thing
  star:
    lr: 2

  # apart

  # ance
  ance: {a: 1}
  # next
  next:
    lr: 3
# end
only:
  x: 1

# What follows.
mine: {} # none
last: 1
"""


@pytest.mark.parametrize(
    ("key", "removed", "replacement"),
    [
        ("rounds.warmup", "  warmup: # first\n    lr: 1 # peak\n    window: [1, 2]\n", ""),
        ("rounds.warmup.lr", "    lr: 1 # peak\n", ""),
        ("rounds.warmup.window", "    window: [1, 2]\n", ""),
        ("rounds.star", "  star:\n    lr: 2\n", ""),
        ("rounds.star.lr", "  star:\n    lr: 2\n", "  star: {}\n"),
        ("rounds.ance", "  ance: {a: 1}\n", ""),
        ("rounds.next", "  next:\n    lr: 3\n", ""),
        ("rounds", COMMENTED[COMMENTED.index("rounds") : COMMENTED.index("# end")], ""),
        ("only", "only:\n  x: 1\n", ""),
        ("only.x", "only:\n  x: 1\n", "only: {}\n"),
        ("mine", "mine: {} # none\n", ""),
        ("last", "last: 1\n", ""),
    ],
)
def test_removing_a_key_keeps_the_comments_of_others(file: Path, key: str, removed: str, replacement: str) -> None:
    file.write_text(COMMENTED)
    apply([f"{key}="], file, accept)
    assert COMMENTED.count(removed) == 1
    assert file.read_text() == COMMENTED.replace(removed, replacement)


def test_a_section_emptied_and_refilled_keeps_its_place(file: Path) -> None:
    file.write_text(COMMENTED)
    apply(["only.x=", "only.y=5"], file, accept)
    assert file.read_text() == COMMENTED.replace("  x: 1\n", "  y: 5\n")


def test_newlines_stay_as_they_are(file: Path) -> None:
    crlf = TEXT.replace("\n", "\r\n").encode()
    file.write_bytes(crlf)
    before = apply(["rounds.star.steps=7"], file, accept)
    assert before is not None and before.encode() == crlf
    assert file.read_bytes() == crlf.replace(b"    lr: 5e-5\r\n\r\n#", b"    lr: 5e-5\r\n    steps: 7\r\n\r\n#")
    apply(["rounds.star.steps="], file, accept)
    assert file.read_bytes() == crlf


@pytest.mark.parametrize(
    ("assignment", "places"),
    [
        ("rounds.b.lr=1", "rounds.a and rounds.b"),
        ("rounds.a.lr=1", "rounds.a and rounds.b"),
        ("rounds.b.lr=", "rounds.a and rounds.b"),
        ("rounds.b.x.y=1", "rounds.a and rounds.b"),
        ("rounds.b.deep.c=2", "rounds.a.deep and rounds.b.deep"),
    ],
)
def test_a_section_shared_by_an_alias_is_not_edited(file: Path, assignment: str, places: str) -> None:
    text = "rounds:\n  a: &x {lr: 5, deep: {c: 1}}\n  b: *x\n  c: {lr: 5}\n"
    file.write_text(text)
    with pytest.raises(UserError, match=f"{re.escape(assignment)}: {places} are the same section"):
        apply([assignment], file, accept)
    assert file.read_text() == text
    apply(["rounds.b.lr=5", "rounds.c.lr=6", "rounds.b={lr: 7}"], file, accept)
    assert load(file)["rounds"] == {"a": {"lr": 5, "deep": {"c": 1}}, "b": {"lr": 7}, "c": {"lr": 6}}
    file.write_text(text)
    apply(["rounds.a="], file, accept)
    assert load(file)["rounds"]["b"] == {"lr": 5, "deep": {"c": 1}}


def test_values_are_yaml_1_2(file: Path) -> None:
    apply(["a.float=1e-05", "a.word=no", "a.list=[1, x]", "a.null=null", "a.spec=beir:../x", "a.text='1'"], file, accept)
    assert load(file)["a"] == {"float": 1e-05, "word": "no", "list": [1, "x"], "null": None, "spec": "beir:../x", "text": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "🔎",
        "\\🔎",
        "\\\\🔎\\",
        "\\ud83d🔎",
        r"\ud83d\udd0e",
        "one\u2028two\x85",
        "é: #",
        {"🔎": ["\\🔎", {"b": None, "c": 1e-05}]},
        "1",
        True,
    ],
    ids=ascii,
)
def test_any_value_is_written_in_ascii_and_read_back(file: Path, text: Any) -> None:
    assert literal(text).isascii() and parse_yaml(literal(text)) == text
    apply([setting("text.separator", text)], file, accept)
    assert parse_yaml(file.read_text(encoding="utf-8"))["text"]["separator"] == text


def test_set_and_set_back_is_byte_for_byte(file: Path) -> None:
    apply(["rounds.star.lr=1e-05"], file, accept)
    apply(["rounds.star.lr=5e-5"], file, accept)
    assert file.read_text() == TEXT
    apply(["rounds.x.init=star"], file, accept)
    apply(["rounds.x="], file, accept)
    assert file.read_text() == TEXT


@pytest.mark.parametrize(
    "assignment", ["rounds.star.lr=0.00005", "text.titles=false", "rounds.nope=", "rounds.star.init=warmup", "mine={}"]
)
def test_what_changes_nothing_writes_nothing(file: Path, assignment: str) -> None:
    before = file.stat().st_mtime_ns, file.stat().st_ino
    assert apply([assignment], file, accept) is None
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before
    assert file.read_text() == TEXT


def test_true_is_not_one(file: Path) -> None:
    apply(["text.titles=0"], file, accept)
    assert load(file)["text"]["titles"] == 0
    assert load(file)["text"]["titles"] is not False


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("rounds", "--set rounds: expected section.key=value"),
        (".=1", "--set .=1: expected section.key=value"),
        ("rounds.star.lr.x=1", "--set rounds.star.lr.x=1: rounds.star.lr is not a section"),
        ("rounds.star.lr=[1", "--set rounds.star.lr=[1: the value is not YAML"),
        ("rounds.star.lr=2024-13-45", "--set rounds.star.lr=2024-13-45: the value is not YAML"),
        ("text.separator=!x y", "--set text.separator=!x y: the value is not YAML; quote it"),
        ("text.separator={a: !x y}", "--set text.separator={a: !x y}: the value is not YAML; quote it"),
        ("rounds.star.lr=!!int x", "--set rounds.star.lr=!!int x: the value is not YAML"),
        ("text.separator=two ", "--set text.separator=two : YAML reads the value as 'two'; quote it"),
        ("text.separator= ", "--set text.separator= : YAML reads the value as None; quote it"),
        ("text.separator=#5", "--set text.separator=#5: YAML reads the value as None; quote it"),
        ("dataset.source=beir:run #2", "--set dataset.source=beir:run #2: YAML reads the value as 'beir:run'; quote it"),
        ('text.separator="\\ud83d\\udd0e"', r'--set text.separator="\ud83d\udd0e": found \ud83d, half of a character as JSON escapes it'),
        ("text.separator=query: ", "--set text.separator=query: : YAML reads the value as a section, {'query': None}; quote it"),
    ],
)
def test_refusals(file: Path, assignment: str, line: str) -> None:
    with pytest.raises(UserError) as refusal:
        apply(["text.titles=true", assignment], file, accept)
    assert str(refusal.value).startswith(line)
    assert file.read_text() == TEXT


def test_the_whole_is_checked_before_anything_is_written(file: Path) -> None:
    seen: list[dict[str, Any]] = []

    def refuse(sections: dict[str, Any]) -> None:
        seen.append(sections)
        raise UserError("no")

    with pytest.raises(UserError, match=r"^no$"):
        apply(["rounds.x.init=star", "rounds.x.lr=1"], file, refuse)
    assert seen[0]["rounds"]["x"] == {"init": "star", "lr": 1}
    assert file.read_text() == TEXT
    assert [path.name for path in file.parent.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize(
    ("assignment", "line"),
    [
        ("extra={scifact: beir:../scifact}", 'extra: {scifact: "beir:../scifact"}'),
        ("pairs.x=beir:../x", 'pairs: {a: 1, x: "beir:../x"}'),
        ("pairs.x.y=beir:../x", 'pairs: {a: 1, x: {y: "beir:../x"}}'),
        ("mine=[why?, 1]", 'mine: ["why?", 1]'),
        ("mine={x: 'beir:../x'}", "mine: {x: 'beir:../x'}"),
        ("rounds.star.source=beir:../x", "    source: beir:../x"),
    ],
)
def test_what_dvc_needs_in_quotes_is_quoted(file: Path, assignment: str, line: str) -> None:
    file.write_text(f"pairs: {{a: 1}}\n{TEXT}")
    apply([assignment], file, accept)
    assert line in file.read_text().splitlines()
    assert YAML(typ="safe").load(file.read_text()) == load(file)  # libyaml, which DVC reads with


def test_epochs_of_a_user_are_refused_where_steps_decide(file: Path) -> None:
    """Otherwise the training is repeated, to no effect. Steps may be set beside epochs, since they decide."""
    apply(["rounds.star.epochs=1"], file, accept, by_user=True)
    apply(["rounds.star.steps=4"], file, accept, by_user=True)
    for assignments in (["rounds.star.epochs=2"], ["rounds.star.steps=8", "rounds.star.epochs=2"]):
        before = file.read_text()
        with pytest.raises(UserError) as refusal:
            apply(assignments, file, accept, by_user=True)
        assert file.read_text() == before
    assert str(refusal.value) == (
        "--set rounds.star.epochs=2: has no effect, because rounds.star.steps is 8; remove that: --set rounds.star.steps="
    )
    apply(["rounds.star.epochs=1"], file, accept, by_user=True)  # as it is
    apply(["rounds.star.epochs=2", "rounds.star.steps="], file, accept, by_user=True)
    assert load(file)["rounds"]["star"] == {"init": "warmup", "lr": 5e-5, "epochs": 2}
    apply(["rounds.star.epochs=3", "rounds.star.steps=8"], file, accept)
    assert load(file)["rounds"]["star"]["epochs"] == 3, "a command's own edits are its own affair"


@pytest.mark.parametrize("removal", ["rounds.star=", "rounds.star=null", "rounds={warmup: {lr: 1}}", "rounds=null"])
def test_epochs_of_an_entry_that_a_later_assignment_removes(file: Path, removal: str) -> None:
    apply(["rounds.star.epochs=2", removal], file, accept, by_user=True)
    assert not ((load(file)["rounds"] or {}).get("star"))
