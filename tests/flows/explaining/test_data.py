"""The data of a past run, found again in an inbox."""

from pathlib import Path

import pytest

from flows.explaining.data import Inbox


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
