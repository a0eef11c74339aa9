"""The data of a past run, found again in an inbox."""

from pathlib import Path
from typing import Any

import pytest

from flows.explaining.bisect import range_of
from flows.explaining.data import Inbox
from flows.intake.inbox import take_in
from flows.intake.settings import Gate, Intake
from flows.parameters.sources import Memory, describe, list_dataset
from tasks.core.errors import UserError


def test_files_of_pairs_are_batches_of_a_past_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("dataset: {source: 'pairs:faq.csv#query=Frage,passage=Antwort'}\n")
    Path("retraining.yaml").write_text("intake: {inbox: inbox}\n")
    Path("faq.csv").write_text("Frage,Antwort\none,eins\n")
    Path("inbox").mkdir()
    for name in ("a", "b"):
        Path(f"inbox/{name}.csv").write_text(f"Frage,Antwort\n{name},x {name}\n")
    inbox = Inbox()
    first = inbox.merge(["a.csv"])
    texts = Path(first.spec.removeprefix("beir:"), "corpus.jsonl").read_text()
    assert [text in texts for text in ("eins", "x a", "x b")] == [True, True, False]
    assert Inbox().find(first.entry).batches == ("a.csv",)


def test_data_from_before_a_correction_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule = Intake(inbox="inbox", gate=Gate(shift=None, duplicates=None))
    Path("params.yaml").write_text("dataset: {source: 'pairs:base.csv'}\n")
    Path("retraining.yaml").write_text("intake: {inbox: inbox, gate: {shift: null, duplicates: null}}\n")
    Path("inbox").mkdir()

    head = "id,query_id,query,passage,split\n"
    Path("base.csv").write_text(f"{head}7,q7,when open?,at nine,train\n1,q1,dev,the dev answer,dev\n2,q2,test,the test answer,test\n")

    def retrain_with(file: str, row: str) -> tuple[str, dict[str, Any]]:
        Path(file).write_text(f"{head}{row}\n")
        spec = take_in(rule, "pairs:base.csv", tmp_path, say=lambda _: None).spec
        return Path(spec.removeprefix("beir:"), "corpus.jsonl").read_text(), describe(spec, list_dataset(spec), Memory())

    earlier, entry = retrain_with("inbox/b1.csv", "7,q9,branch hours?,at nine,train")
    later, _ = retrain_with("inbox/b3.csv", "7,q7,when open?,at ten,train")
    assert "at nine" in earlier and "at nine" not in later
    data = Inbox().find(entry)
    assert data.batches == ("b1.csv",) and data.available
    assert Path(data.spec.removeprefix("beir:"), "corpus.jsonl").read_text() == earlier
    assert Path(Inbox().merge(["b1.csv", "b3.csv"]).spec.removeprefix("beir:"), "corpus.jsonl").read_text() == later


def test_bisect_names_the_batches_that_are_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no other, everything that it expects is given. A batch that is still being written is not one of them."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("dataset: {source: 'beir:base'}\n")
    Path("retraining.yaml").write_text("intake: {inbox: inbox}\n")
    for folder, text in (("base", '{"_id": "a", "text": "a"}\n'), ("inbox/1", '{"_id": \n'), ("inbox/2", '{"_id": \n')):
        Path(folder).mkdir(parents=True)
        Path(folder, "corpus.jsonl").write_text(text)
    take_in(Intake(inbox="inbox"), "beir:base", tmp_path, say=lambda _: None)
    Path("inbox/3").mkdir()
    with pytest.raises(UserError, match=r"no batches to search; kept out: 1, 2; retemper intake says why$"):
        range_of(Inbox(), None, None, bad=None)


def test_data_from_before_a_malformed_batch_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No retraining here has checked that batch, as in a colleague's clone, and it may still be being written."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("queries: pseudo\ndataset: {source: 'beir:base'}\n")
    Path("retraining.yaml").write_text("intake: {inbox: inbox}\n")
    for folder in ("base", "inbox/1", "inbox/2", "inbox/3"):
        Path(folder).mkdir(parents=True)
        Path(folder, "corpus.jsonl").write_text(f'{{"_id": "{folder}", "text": "{folder}"}}\n')
    entries = {count: Inbox().merge([f"{number}" for number in range(1, count + 1)]).entry for count in range(3)}
    Path("inbox/2/corpus.jsonl").write_text('{"_id": "inbox/2", "te')
    for count, names in ((0, ()), (1, ("1",))):
        data = Inbox().find(entries[count])
        assert (data.batches, data.available) == (names, True)
    assert not Inbox().find(entries[2]).available, "its batch is not what it was"
    assert not any(Path(".retemper/why/data").iterdir()), "what could not be merged, and what was not wanted, is removed"


def test_data_that_were_found_stay_while_others_are_sought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of `retemper why` may have to prepare the older side's data after the newer side's were not found."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("queries: pseudo\ndataset: {source: 'beir:base'}\n")
    Path("retraining.yaml").write_text("intake: {inbox: inbox}\n")
    for folder in ("base", "inbox/1", "inbox/2"):
        Path(folder).mkdir(parents=True)
        Path(folder, "corpus.jsonl").write_text(f'{{"_id": "{folder}", "text": "{folder}"}}\n')
    old_entry, new_entry = (Inbox().merge(names).entry for names in (["1"], ["1", "2"]))
    Path("inbox/2/corpus.jsonl").write_text('{"_id": "inbox/2", "text": "corrected since"}\n')
    inbox = Inbox()
    old, new = inbox.find(old_entry), inbox.find(new_entry)
    assert (old.batches, old.available, new.available) == (("1",), True, False)
    assert "inbox/1" in Path(old.spec.removeprefix("beir:"), "corpus.jsonl").read_text()
