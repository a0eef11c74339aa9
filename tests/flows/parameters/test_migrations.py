"""Parameter files of older versions: what is added and moved, and that everything else stays as it was."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flows.parameters import edit
from flows.parameters.checks import check
from flows.parameters.migrations import MIGRATIONS, migrated, missing_sections
from tasks.core.errors import UserError
from tasks.core.params.safe_yaml import parse_yaml

OLD = """\
# The head.

dataset:
  source: demo # where from

base:
  pooling: cls # mine
  seed: 42

text:
  titles: false

chunk:
  length: 128 # tokens

rounds:
  a: {init: base, negatives: none, optimizer_from: anew} # in flow style
  b:
    optimizer_from: anew # carried
    lr: 1e-4

adore: {}

study: {} # none

evaluate:
  depth: 500 # ranks
  relevance: 2
  precision: fp32

# What is last.
report:
  metric: nDCG@10
"""
NEW = """\
# The head.

dataset:
  source: demo # where from

queries: corpus # corpus | pseudo: made from the documents

base:
  pooling: cls # mine
  seed: 42

pseudo: {} # for queries: pseudo

encoders: {} # e5: {source: PATH}, more that rounds may start from

text:
  titles: false

chunk:
  length: 128 # tokens

  texts: articles
rounds:
  a: {init: base, negatives: none, optimizer_from: fresh} # in flow style
  b:
    optimizer_from: fresh # carried
    lr: 1e-4

adore: {}

fuse: {} # hybrid: {first: bm25, second: star}, two systems as one

study: {} # none

retrieve: # runs of the models, which evaluate measures
  depth: 500 # ranks
  precision: fp32

evaluate:
  relevance: 2

extra: {} # {scifact: "beir:../scifact"}, further data sets

analyses: {} # star: {round: star, negatives: warmup}

failures: {} # which systems are compared by groups of queries

# What is last.
report:
  metric: nDCG@10
"""
RETRAINING = "promotion:\n  margin: 0.02 # ours\n"
BEFORE, AFTER = datetime.fromisoformat("2026-11-23T12:00:00+00:00"), datetime.fromisoformat("2026-11-25T00:00:00+00:00")


def test_an_old_file_is_brought_up_to_date_with_its_comments() -> None:
    text, notes = migrated(OLD, "params.yaml")
    assert parse_yaml(text) == parse_yaml(NEW)
    comments = [line.partition("#")[2] for line in OLD.splitlines() if "#" in line and "ranks" not in line]
    assert all(f"#{comment}" in text for comment in comments)
    assert [line for line in text.splitlines() if line and "texts" not in line and "depth" not in line] == [
        line for line in NEW.splitlines() if line and "texts" not in line and "depth" not in line
    ]
    assert len(notes) == 10
    assert notes[0] == "evaluate.depth, evaluate.precision moved to retrieve"
    assert notes[1] == "optimizer_from: anew renamed to fresh in rounds.a, rounds.b"


def test_a_second_time_nothing_is_done() -> None:
    text, _ = migrated(OLD, "params.yaml")
    assert migrated(text, "params.yaml") == (text, [])
    assert migrated(text.replace("\n", "\r\n"), "params.yaml")[1] == []
    crlf, _ = migrated(OLD.replace("\n", "\r\n"), "params.yaml")
    assert crlf == text.replace("\n", "\r\n")


def test_what_a_user_has_set_stays() -> None:
    edited = OLD.replace("adore: {}", "adore: {}\nqueries: pseudo\nfuse: {x: {first: bm25, second: b}} # ours")
    text, notes = migrated(edited, "params.yaml")
    assert parse_yaml(text)["queries"] == "pseudo"
    assert "fuse: {x: {first: bm25, second: b}} # ours" in text
    assert not [line for line in notes if line.startswith(("fuse", "queries"))]


def test_a_moved_key_joins_the_section_that_is_there() -> None:
    text, _ = migrated(OLD + "retrieve:\n  ignore_identical_ids: true # arguana\n", "params.yaml")
    assert parse_yaml(text)["retrieve"] == {"ignore_identical_ids": True, "depth": 500, "precision": "fp32"}
    assert "ignore_identical_ids: true # arguana" in text


@pytest.mark.parametrize("section", ["{}", "{alpha: 0.01} # ours", "{metric: AP}"])
def test_the_measure_that_chooses_fusions_is_written(section: str) -> None:
    text, notes = migrated(f"report: {section}\n", "params.yaml")
    metric = "AP" if "AP" in section else "nDCG@10"
    assert parse_yaml(text)["report"] == {**parse_yaml(section), "metric": metric}
    assert ("report.metric: nDCG@10 added, the default" in notes) == (metric == "nDCG@10")
    assert ("# ours" in text) == ("# ours" in section)


@pytest.mark.parametrize(
    ("created", "text", "rule"),
    [
        (BEFORE, RETRAINING, "not_worse"),
        (AFTER, RETRAINING, None),
        (None, RETRAINING, None),
        (BEFORE, "promotion: {rule: better}\n", "better"),
    ],
)
def test_a_former_default_is_kept_only_for_files_of_that_time(created: datetime | None, text: str, rule: str | None) -> None:
    promotion = parse_yaml(migrated(text, "retraining.yaml", created)[0])["promotion"]
    assert promotion.get("rule") == rule
    assert migrated("intake: {}\n", "retraining.yaml", BEFORE)[1], "a file without the section gets it"


def test_a_file_of_today_without_its_new_sections_is_refused_then_migrated(checkout: Path) -> None:
    document = edit.load((checkout / "params.yaml").read_text())
    assert missing_sections(document) == [], "the product's own file lacks nothing"
    for name in missing_sections({}):
        del document[name]
    del document["extra"], document["chunk"]["texts"]
    document["evaluate"] = {"depth": 1000}
    text = edit.dump(document)
    with pytest.raises(UserError, match=r"evaluate.depth: moved to section retrieve; .*, or run retemper upgrade"):
        check(parse_yaml(text))
    document["evaluate"] = {}
    with pytest.raises(UserError) as refusal:
        check(parse_yaml(edit.dump(document)))
    assert str(refusal.value).startswith("params.yaml: retrieve: missing (fuse, encoders, queries, pseudo, failures, analyses too)")
    assert "run retemper upgrade" in str(refusal.value)
    check(parse_yaml(migrated(text, "params.yaml")[0]))
    optional = edit.load((checkout / "params.yaml").read_text())
    del optional["extra"]
    check(parse_yaml(edit.dump(optional)))


def test_migrations_are_in_order_and_name_their_time() -> None:
    assert all(datetime.fromisoformat(migration.since).tzinfo for migration in MIGRATIONS)


def test_the_command_edits_files_and_says_what_it_did(tmp_path: Path) -> None:
    def run() -> tuple[int, str, Any]:
        command = [sys.executable, "-m", "flows.parameters.migrations", "--made", BEFORE.isoformat(), "--told", "told.json"]
        root = str(Path(__file__).resolve().parents[3])
        result = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True, check=False)
        file = tmp_path / "told.json"
        return result.returncode, result.stderr, json.loads(file.read_text()) if file.exists() else None

    (tmp_path / "params.yaml").write_text(OLD)
    (tmp_path / "retraining.yaml").write_text(RETRAINING)
    status, _, notes = run()
    assert status == 0
    assert (len(notes["params.yaml"]), len(notes["retraining.yaml"]), "runtime.yaml" in notes) == (10, 1, False)
    assert parse_yaml((tmp_path / "params.yaml").read_text()) == parse_yaml(NEW)
    (tmp_path / "params.yaml").write_text("rounds: [\n")
    status, errors, _ = run()
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith("retemper: params.yaml:")


def test_inserted_sections_keep_blank_lines_and_comments() -> None:
    cases: list[tuple[str, str, Callable[[Any], None]]] = [
        ("", "x: 1\n", lambda document: edit.insert(document, "x", 1, after="a", comment="c")),
        ("a: 1\n", "a: 1\n\nx: 2 # c\n", lambda document: edit.insert(document, "x", 2, after="a", comment="c")),
        (
            "a: 1 # own\n\n# of b\nb: 2\n",
            "a: 1 # own\n\nx: 2 # c\n\n# of b\nb: 2\n",
            lambda d: edit.insert(d, "x", 2, after="a", comment="c"),
        ),
        ("a: 1\n", "a: 1\n\nx: 2 # c\n", lambda document: edit.insert(document, "x", 2, after="nowhere", comment="c")),
    ]
    for before, after, change in cases:
        document = edit.load(before)
        change(document)
        assert edit.dump(document) == after, before
