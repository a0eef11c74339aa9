"""Good and bad batches side by side: what is merged, what is quarantined and why, what a person may overrule."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.intake import inbox, inspection
from flows.intake.gate import LEAKS, ONE, UNKNOWN
from flows.intake.inbox import accept, check_folder, list_batches, take_in
from flows.intake.settings import Gate, Intake
from flows.intake.verdict import ACCEPTED, Batch
from flows.pages.origins import INTAKE
from tasks.core.errors import UserError

RULE = Intake(inbox="inbox")
SOURCE = "beir:base"
Qrels = dict[tuple[str, str], int]


def write_beir(folder: Path, documents: dict[str, str] | None = None, queries: dict[str, str] | None = None, **qrels: Qrels) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, records in (("corpus", documents), ("queries", queries)):
        if records:
            (folder / f"{name}.jsonl").write_text("".join(json.dumps({"_id": i, "text": text}) + "\n" for i, text in records.items()))
    for split, grades in qrels.items():
        (folder / "qrels").mkdir(exist_ok=True)
        lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{doc}\t{grade}" for (query, doc), grade in grades.items())]
        (folder / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of two documents, a train and a dev query."""
    monkeypatch.chdir(tmp_path)
    train: Qrels = {("q1", "d1"): 1}
    dev: Qrels = {("q2", "d2"): 1}
    write_beir(tmp_path / "base", {"d1": "one", "d2": "two"}, {"q1": "What is one?", "q2": "what is  TWO"}, train=train, dev=dev)
    (tmp_path / "inbox").mkdir()
    return tmp_path


@pytest.fixture
def take(project: Path) -> Callable[..., dict[str, Batch]]:
    def take_batches(rule: Intake = RULE, source: str = SOURCE) -> dict[str, Batch]:
        return {batch.name: batch for batch in take_in(rule, source, project, say=lambda _: None).batches}

    return take_batches


def merged_ids(project: Path) -> list[str]:
    return [json.loads(line)["_id"] for line in (project / ".retemper/dataset/corpus.jsonl").read_text().splitlines()]


def test_bad_batches_stay_out_and_the_others_go_on(project: Path, take: Any) -> None:
    folder = project / "inbox"
    write_beir(folder / "01-good", {"d3": "three"}, {"q3": "what is three"}, train={("q3", "d3"): 1})
    write_beir(folder / "02-malformed", {"d4": "four"})
    with (folder / "02-malformed/corpus.jsonl").open("a") as handle:
        handle.write('{"_id": "d5"\n[]\n{"_id": "d6"}\n{"_id": "d4", "text": "again"}\n{"_id": "d7", "text": " "}\n')
    write_beir(folder / "03-leak", None, {"q9": "What IS two"}, train={("q9", "d1"): 1})
    write_beir(folder / "04-leak-by-id", None, None, train={("q2", "d1"): 1})
    write_beir(folder / "05-unknown", None, None, dev={("q2", "d99"): 1, ("q77", "d1"): 1})
    write_beir(folder / "06-judgments", None, None, dev={("q2", "d1"): 0})
    (folder / "07-csv/qrels").mkdir(parents=True)
    (folder / "07-csv/corpus.csv").write_text('id,title,text\nd8,"Eight, a title","eight\nlines"\n')
    (folder / "07-csv/queries.csv").write_text("query_id,query\nq8,what is eight\n")
    (folder / "07-csv/qrels/train.csv").write_text("query,doc,grade\nq8,d8,2\n")
    write_beir(folder / ".08-half", {"d10": "ten"})
    (folder / "09-empty").mkdir()
    (folder / "10-strange").mkdir()
    (folder / "10-strange/data.json").write_text("{}")
    batches = take()
    assert {name for name, batch in batches.items() if batch.state == "accepted"} == {"01-good", "06-judgments", "07-csv"}
    assert {name for name, batch in batches.items() if batch.state == "quarantined"} == {
        "02-malformed", "03-leak", "04-leak-by-id", "05-unknown", "10-strange",
    }  # fmt: skip
    assert merged_ids(project) == ["d1", "d2", "d3", "d8"]
    assert json.loads((project / ".retemper/dataset/corpus.jsonl").read_text().splitlines()[-1])["title"] == "Eight, a title"
    assert (project / ".retemper/dataset/qrels/train.tsv").read_text().splitlines()[1:] == ["q1\td1\t1", "q3\td3\t1", "q8\td8\t2"]
    assert (project / ".retemper/dataset/qrels/dev.tsv").read_text().splitlines()[1:] == ["q2\td2\t1", "q2\td1\t0"]

    malformed = batches["02-malformed"]
    file = folder / "02-malformed/corpus.jsonl"
    assert [line.removeprefix(f"{file}:").partition(": ")[0] for line in malformed.lines] == ["2", "3", "4", "5", "6"], "by number"
    assert malformed.reason.startswith(f"3 malformed lines: {file}:2: not JSON")
    assert f"{file}:5: id 'd4' is used twice" in malformed.reason
    assert f"{file}:6: document 'd7' has an empty title and text" in malformed.reason
    assert f"1 {ONE[LEAKS]}: query 'q9' has the text of a query of dev or test" == batches["03-leak"].reason
    assert f"1 {ONE[LEAKS]}: query 'q2' is judged in train and in dev or test" == batches["04-leak-by-id"].reason
    assert batches["05-unknown"].reason.startswith(f"2 {UNKNOWN}: {folder / '05-unknown/qrels/dev.tsv'}:2: document 'd99' is neither")
    assert "found no corpus, queries or qrels" in batches["10-strange"].reason
    assert (batches["07-csv"].documents, batches["07-csv"].new, batches["07-csv"].queries) == (1, 1, 1)
    assert batches["07-csv"].judgments == {"train": 1}

    states = {batch.name: batch.state for batch in list_batches(RULE, SOURCE, project)}
    assert (states[".08-half"], states["09-empty"]) == ("left out", "being written"), "the first may be, or was set aside"
    assert {name for name, state in states.items() if state == "quarantined"} == {n for n, b in batches.items() if b.state == "quarantined"}
    assert {path.stem for path in (project / ".retemper/quarantine").iterdir()} == {n for n, s in states.items() if s == "quarantined"}
    with pytest.raises(UserError, match="batch 03-leak: cannot be merged: 1 training query that is also in dev or test"):
        accept(RULE, SOURCE, project, name="03-leak")
    with pytest.raises(UserError, match="nowhere: no such batch"):
        accept(RULE, SOURCE, project, name="nowhere")

    (folder / "03-leak/queries.jsonl").write_text('{"_id": "q9", "text": "what is nine"}\n')
    write_beir(folder / "99-late", {"d99": "ninety-nine"}, {"q77": "77"})
    batches = take()
    assert batches["03-leak"].state == "accepted", "another file is another batch"
    assert batches["05-unknown"].state == "accepted", "what it needs came with a later batch"
    assert not (project / ".retemper/quarantine/05-unknown.json").exists()


def test_a_known_query_whose_text_becomes_that_of_another_split_is_a_leak(project: Path, take: Any) -> None:
    write_beir(project / "inbox/1", queries={"q2": "what is ONE?"})
    write_beir(project / "inbox/2", queries={"q1": "What is  two"})
    write_beir(project / "inbox/3", queries={"q1": "the same", "q2": "The same"})
    write_beir(project / "inbox/4", queries={"q1": "What is one", "q2": "what is two"})
    write_beir(project / "inbox/6", queries={"q1": "What is two", "q2": "what is 2"})
    write_beir(
        project / "base", queries={"q1": "What is one?", "q2": "what is  TWO", "q7": "both"}, train={("q1", "d1"): 1, ("q7", "d1"): 1}
    )
    write_beir(project / "base", dev={("q2", "d2"): 1, ("q7", "d1"): 1})
    write_beir(project / "inbox/5", queries={"q7": "both"})
    batches = take()
    assert {name: batch.reason for name, batch in batches.items()} == {
        "1": f"1 {ONE[LEAKS]}: query 'q2' has the text of a query of train",
        "2": f"1 {ONE[LEAKS]}: query 'q1' has the text of a query of dev or test",
        "3": f"1 {ONE[LEAKS]}: query 'q1' has the text of a query of dev or test",
        "4": "",
        "5": "",  # what the data set itself leaks is no batch's doing
        "6": "",  # the dev query had that text before
    }


def test_only_what_is_new_is_news(project: Path) -> None:
    write_beir(project / "inbox/1", None, None, dev={("q2", "d99"): 1})
    assert [batch.name for batch in take_in(RULE, SOURCE, project).bad] == ["1"]
    assert not take_in(RULE, SOURCE, project).bad, "the same again"
    write_beir(project / "inbox/1", None, None, dev={("q2", "d98"): 1})
    assert [batch.name for batch in take_in(RULE, SOURCE, project).bad] == ["1"]


def test_what_prepare_drops_is_no_reason(project: Path, take: Any) -> None:
    write_beir(project / "inbox/1", {"d 5": ""}, {"q9": "what is two"}, train={("q9", "d1"): 1, ("q9", "d99"): 1})
    (project / "params.yaml").write_text("prepare: {leaks: drop, unknown_documents: drop, empty_texts: drop, ids: escape}\n")
    assert take()["1"].state == "accepted"
    for allowed in ("leaks", "unknown_documents", "empty_texts", "ids"):
        values = dict.fromkeys(("leaks", "unknown_documents", "empty_texts"), "drop") | {"ids": "escape", allowed: "refuse"}
        (project / "params.yaml").write_text(f"prepare: {json.dumps(values)}\n")
        write_beir(project / "inbox/1", {"d 5": "", f"d{allowed}": "x"})
        assert take()["1"].state == "quarantined", allowed


def test_a_pair_of_two_weights_is_named(project: Path, take: Any) -> None:
    file = write_beir(project / "inbox/1", None, None, train={("q1", "d1"): 1}) / "qrels/train.tsv"
    file.write_text("query-id\tcorpus-id\tscore\tweight\nq1\td1\t1\t0.5\nq1\td1\t1\t0.5\nq1\td1\t1\t2\n")
    batch = take()["1"]
    assert batch.state == "quarantined"
    assert batch.reason.endswith(f"{project}/inbox/1/qrels/train.tsv:4: weight 2.0 of q1 and d1, 0.5 before; keep one"), batch.reason


def test_white_space_is_what_prepare_takes_for_it(project: Path, take: Any) -> None:
    write_beir(project / "inbox/1", {"d\u00a05": "a no-break space", "d\u30006": "an ideographic one"}, None, dev={("q2", "d\u00a05"): 1})
    write_beir(project / "inbox/2", {"d 7": "a blank"})
    assert {name: batch.state for name, batch in take().items()} == {"1": "accepted", "2": "quarantined"}


def test_a_batch_of_copies_is_a_matter_of_judgment(project: Path, take: Any) -> None:
    write_beir(project / "inbox/1", {f"n{n}": "one" if n < 4 else f"text {n}" for n in range(10)})
    strict = Intake(inbox="inbox", gate=Gate(duplicates=0.3, least=10))
    assert take(strict)["1"].reason == "4 of 10 new documents have the text of another one, expected at most 30%"
    assert take(Intake(inbox="inbox", gate=Gate(duplicates=0.4, least=10)))["1"].state == "accepted"
    write_beir(project / "inbox/1", {f"n{n}": "same" if n < 5 else f"text {n}" for n in range(10)})
    assert take(strict)["1"].duplicates == 4, "all but the first of those in the batch"
    assert accept(strict, SOURCE, project, name="1").by == "hand"
    assert [(batch.state, batch.by) for batch in list_batches(strict, SOURCE, project)] == [("accepted", "hand")]
    assert take(strict)["1"].state == "accepted", "a person's word stands"
    assert len(merged_ids(project)) == 12
    assert take(RULE, "beir:./base/../base")["1"].state == "accepted"


def test_a_batch_that_changes_meanwhile_is_left_for_next_time(project: Path, take: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_beir(project / "inbox/1", {"d3": "three"})
    write_beir(project / "inbox/2", {"d4": "four"})
    real, calls = inbox.merge_folders, []

    def merge_and_change(folders: list[Path], **form: Any) -> None:
        real(folders, **form)
        if not calls:
            write_beir(project / "inbox/2", {"d4": "four", "d5": "five"})
        calls.append(folders)

    monkeypatch.setattr(inbox, "merge_folders", merge_and_change)
    assert list(take()) == ["1"]
    assert merged_ids(project) == ["d1", "d2", "d3"]
    assert set(take()) == {"1", "2"}


@pytest.mark.parametrize(("hours", "taken"), [(-48, True), (-2, False), (0, False), (2, True)])
def test_what_changed_lately_on_its_disk_is_being_written(project: Path, take: Any, monkeypatch: Any, *, hours: int, taken: bool) -> None:
    """Whatever time an archive has set. A file server's clock may be hours ahead of ours, but not days."""
    for name, ahead in (("1", 0), ("2", 7200), ("3", -7200)):
        os.utime(write_beir(project / "inbox" / name, {f"d{name}0": name}) / "corpus.jsonl", (time.time() + ahead,) * 2)
    monkeypatch.setattr(inspection, "time", SimpleNamespace(time=lambda: time.time() + 3600 * hours))
    assert list(take(Intake(inbox="inbox", settle_seconds=3600))) == ["1", "2", "3"] * taken
    assert list(take()) == ["1", "2", "3"], "by default, nothing waits"


def test_news_end_with_the_inbox(project: Path, take: Any) -> None:
    """Otherwise reports would name batches that are long gone."""
    for rule in (RULE, Intake()):
        batch = write_beir(project / "inbox/1", {"d3": "three"})
        take()
        assert json.loads(INTAKE.read_text())
        if rule is RULE:
            batch.rename(project / "inbox/.1")
        take(rule)
        assert json.loads(INTAKE.read_text()) == []


def test_batches_that_are_gone_are_told_of_and_an_inbox_without_any_is_refused(project: Path) -> None:
    """A share that is not mounted is an empty folder."""
    folder = project / "inbox"
    for number in (1, 2, 3):
        write_beir(folder / str(number), {f"d{number}0": "text"})
    write_beir(folder / "bad", {"d9": ""})
    assert take_in(RULE, SOURCE, project).missing == ()
    (folder / "2").rename(folder / ".2")
    assert take_in(RULE, SOURCE, project).missing == (), "set aside"
    (folder / "1").rename(project / "1")
    (folder / "bad").rename(project / "bad")
    assert take_in(RULE, SOURCE, project).missing == ("1",)
    assert take_in(RULE, SOURCE, project).missing == (), "said once"
    folder.rename(project / "share")
    write_beir(folder / "4", {"d40": "text"})
    with pytest.raises(UserError, match=r"inbox: found no batch of the last retraining, expected 3; mount .* echo '\[]' > /.*intake.json$"):
        take_in(RULE, SOURCE, project)
    INTAKE.write_text("[]")
    assert [batch.name for batch in take_in(RULE, SOURCE, project).batches] == ["4"]


def test_what_a_newer_version_has_recorded_of_a_batch_is_read(project: Path, take: Any) -> None:
    write_beir(project / "inbox/1", {"d3": "three"})
    take()
    file = project / ACCEPTED / "1.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"by": "hand", "of_a_newer_version": 1}))
    assert take()["1"].by == "hand"


def test_check_keeps_nothing(project: Path) -> None:
    write_beir(project / "inbox/1", {"d3": "three"})
    take_in(RULE, SOURCE, project)
    folder = write_beir(project / "elsewhere", None, {"q5": "five"}, train={("q5", "d3"): 1})
    before = sorted((project / ".retemper").rglob("*"))
    assert check_folder(RULE, SOURCE, project, folder=folder).state == "accepted", "a document of an accepted batch is known"
    assert check_folder(Intake(), SOURCE, project, folder=folder).state == "quarantined", "there is no inbox"
    assert sorted((project / ".retemper").rglob("*")) == before
    with pytest.raises(UserError, match=rf"intake\.inbox: {re.escape(str(project.parent))}/gone: no such folder"):
        list_batches(Intake(inbox="../gone"), SOURCE, project)
    with pytest.raises(UserError, match="no such folder"):
        check_folder(RULE, SOURCE, project, folder=project / "nowhere")


def test_a_batch_that_cannot_be_merged_is_not_checked_against_nothing(project: Path) -> None:
    """Before, every judgment of it was said to name a document that is not in the data set, which was not read."""
    folder = write_beir(project / "inbox/1", {"d3": "three"}, train={("q1", "d1"): 1})
    for ask in (
        lambda: check_folder(RULE, "msmarco:base", project, folder=folder),
        lambda: accept(RULE, "msmarco:base", project, name="1"),
    ):
        with pytest.raises(
            UserError,
            match=r"or of pairs, found dataset\.source msmarco:.*convert FOLDER --data msmarco:",
        ):
            ask()


def test_batches_alone_are_not_the_data_set(project: Path, take: Any) -> None:
    """If a share is not mounted, they would be trained on as if they were the whole data set."""
    write_beir(project / "inbox/a", {"d3": "three"})
    assert take()["a"].state == "accepted"
    (project / "base").rename(project / "elsewhere")
    for action in (take, lambda: check_folder(RULE, SOURCE, project, folder=project / "inbox/a")):
        with pytest.raises(UserError, match=r"base: not found, expected a BEIR folder with corpus\.jsonl"):
            action()
    (project / "elsewhere/corpus.jsonl").rename(project / "corpus.jsonl")
    (project / "elsewhere").rename(project / "base")
    with pytest.raises(UserError, match=r"corpus\.jsonl.*: not found"):
        take()
    assert merged_ids(project) == ["d1", "d2", "d3"], "the last merge is as it was"


def test_the_last_good_batch_replaces_the_data_set(project: Path) -> None:
    rule = Intake(inbox="inbox", mode="replace")
    write_beir(project / "inbox/1", {"d3": "three"}, {"q3": "3"}, dev={("q3", "d3"): 1})
    write_beir(project / "inbox/2", None, None, dev={("q3", "d3"): 1})
    outcome = take_in(rule, "demo", project)
    assert outcome.spec == f"beir:{project / 'inbox/1'}"
    assert [batch.state for batch in outcome.batches] == ["accepted", "quarantined"], "a batch is a whole data set"
    write_beir(project / "inbox/2", {"d3": "three"}, {"q3": "3"})
    assert take_in(rule, "demo", project).spec == f"beir:{project / 'inbox/2'}"


def test_a_batch_that_needs_another_is_checked_again_when_that_one_changes(project: Path, take: Any) -> None:
    folder = project / "inbox"
    write_beir(folder / "1", {"d3": "three"})
    write_beir(folder / "2", queries={"q3": "what is three"}, train={("q3", "d3"): 1})
    copies = write_beir(folder / "3", {f"d{n}": "the same" for n in range(10, 70)})
    assert [batch.state for batch in take().values()] == ["accepted", "accepted", "quarantined"]
    assert accept(RULE, SOURCE, project, name=copies.name).state == "accepted"
    assert [batch.state for batch in take().values()] == ["accepted"] * 3
    with (folder / "1/corpus.jsonl").open("a") as handle:
        handle.write("{\n")
    batches = take()
    assert [batch.state for batch in batches.values()] == ["quarantined", "quarantined", "accepted"]
    assert ONE[UNKNOWN] in batches["2"].reason, "prepare would refuse the merged data set for it"
    assert batches["3"].by == "hand", "what a person let in stays in"
    (folder / "1/corpus.jsonl").write_text(json.dumps({"_id": "d3", "text": "three"}) + "\n")
    assert [batch.state for batch in take().values()] == ["accepted"] * 3
    (folder / "1").rename(folder / ".1")
    assert [batch.state for batch in take().values()] == ["quarantined", "accepted"]
    with pytest.raises(UserError, match="; accept the batch that has it first, fix the batch, or see prepare"):
        accept(RULE, SOURCE, project, name="2")
    (folder / ".1").rename(folder / "1")
    assert accept(RULE, SOURCE, project, name="2").state == "accepted", "what it lacked is there again"


def test_accepted_batches_are_checked_again_when_the_source_changes(project: Path, take: Any) -> None:
    folder = project / "inbox"
    write_beir(folder / "judged", None, {"q3": "what is three"}, train={("q3", "d2"): 1})
    write_beir(folder / "odd", {f"c{number}": "one and the same" for number in range(300)})
    assert take()["judged"].state == "accepted"
    accept(RULE, SOURCE, project, name="odd")
    assert {batch.state for batch in take().values()} == {"accepted"}
    write_beir(project / "base", {"d1": "one", "d3": "three"}, {"q1": "What is one?", "q2": "what is  TWO"}, dev={("q2", "d3"): 1})
    batches = take()
    assert batches["judged"].state == "quarantined" and ONE[UNKNOWN] in batches["judged"].reason
    assert (batches["odd"].state, batches["odd"].by) == ("accepted", "hand"), "a person's word outlives the source's change"


def test_a_batch_that_was_accepted_by_other_rules_is_checked_again_for_its_form_alone(
    project: Path, take: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an older version, say: what it let in would make every retraining fail. Shift and duplicates were judged once."""
    folder, file = project / "inbox", project / ACCEPTED / "1.json"
    write_beir(folder / "1", {f"c{number}": "one and the same" for number in range(60)})
    write_beir(folder / "2", None, {"q3": "3"}, train={("q3", "c1"): 1})
    (folder / "2/negatives.tsv").write_text("query-id\tcorpus-id\nq3\tc2\n")
    loose = Intake(inbox="inbox", gate=Gate(duplicates=1.0))
    assert {batch.state for batch in take(loose).values()} == {"accepted"}
    lines: list[str] = []

    def take_again() -> dict[str, Batch]:
        lines.clear()
        return {batch.name: batch for batch in take_in(RULE, SOURCE, project, say=lines.append).batches}

    take_again()
    assert not lines, "accepted by these rules"
    record = json.loads(file.read_text())
    del record["rules"]
    file.write_text(
        json.dumps(
            record | {"shift": {"documents": {"auc": 0.6, "p": 0.5, "mean": None, "batch": 60, "reference": 60, "by": "champion/1"}}}
        )
    )
    batches = take_again()
    line = "accepted manually, by another version, or under other rules of prepare; checking again under the current rules"
    assert lines == [f"{line}: 1"]
    assert batches["1"].state == "accepted", "too many copies, by these rules of the gate, but that was judged"
    assert batches["1"].shift["documents"]["by"] == "champion/1"
    take_again()
    assert not lines, "checked once"

    (project / "params.yaml").write_text("prepare: {leaks: allow}\n")
    write_beir(folder / "3", None, {"q4": "what is TWO"}, train={("q4", "d1"): 1})
    assert {batch.state for batch in take_again().values()} == {"accepted"}
    assert lines == [f"{line}: 1, 2"]
    monkeypatch.setattr(inspection, "VERSION", inspection.VERSION + 1)
    assert {batch.state for batch in take_again().values()} == {"accepted"}
    assert lines == [f"{line}: 1, 2, 3"]
    (project / "params.yaml").unlink()
    batches = take_again()
    assert batches["3"].reason == f"1 {ONE[LEAKS]}: query 'q4' has the text of a query of dev or test"
    assert (batches["1"].state, batches["2"].state) == ("accepted", "accepted")
    assert take_in(RULE, SOURCE, project).bad == (), "that is no news any more"


def test_what_a_person_lets_in_is_checked_against_the_batches_of_the_meantime(project: Path, take: Any) -> None:
    write_beir(project / "inbox/1", {f"c{number}": "one and the same" for number in range(60)}, {"q3": "three"}, train={("q3", "d1"): 1})
    write_beir(project / "inbox/2", None, {"q4": "Three"}, dev={("q4", "d1"): 1})
    assert {name: batch.state for name, batch in take().items()} == {"1": "quarantined", "2": "accepted"}
    assert accept(RULE, SOURCE, project, name="1").state == "accepted"
    assert take()["1"].reason.startswith(f"1 {ONE[LEAKS]}: query 'q3' has the text")
