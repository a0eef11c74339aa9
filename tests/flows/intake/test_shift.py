"""The test of shift: its parts against plain loops, false alarms on random splits of real texts, alarms on foreign ones."""

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from flows.batches.known import Known
from flows.intake import inbox, inspection, reference
from flows.intake.inbox import take_in
from flows.intake.reference import Reference
from flows.intake.settings import Gate, Intake
from flows.intake.shift import Shift, nearest, permutation_auc, rarity, vector_shift, word_shift
from flows.intake.verdict import Batch
from flows.process.processes import Processes
from tasks.core.errors import UserError
from tasks.core.sources.datasets import demo_file
from tasks.core.text.analysis import analyzer

terms = analyzer("none", "none")


@pytest.fixture(scope="module")
def leads() -> list[str]:
    """Texts of the demo's articles, in random order."""
    articles = json.loads(demo_file().read_text()).values()
    texts = [article["extract"] for article in articles if len(article.get("extract") or "") > 100]
    assert len(texts) > 5000
    random.Random(0).shuffle(texts)
    return [text[:400] for text in texts]


def test_the_parts_equal_plain_loops() -> None:
    rng = np.random.default_rng(0)
    batch, reference_vectors = rng.normal(size=(7, 4)), rng.normal(size=(9, 4))
    batch, reference_vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (batch, reference_vectors))
    for row, distance in zip(batch, nearest(batch, reference_vectors), strict=True):
        assert distance == pytest.approx(1 - sum(sorted((float(row @ other) for other in reference_vectors), reverse=True)[:5]) / 5)
    texts = ["red red shoes", "unknown", ""]
    counts = Counter({"red": 3, "shoes": 1})
    assert rarity(texts, counts, 9, terms=terms).tolist() == pytest.approx(
        [(math.log(10 / 4) + math.log(10 / 2)) / 2, math.log(10), math.log(10)]
    )
    first, second = rng.integers(0, 9, size=30).astype(float), rng.integers(2, 11, size=40).astype(float)
    auc, p = permutation_auc(second, first)
    assert auc == pytest.approx(sum((a > b) + (a == b) / 2 for a in second for b in first) / 1200)
    assert p == pytest.approx(mannwhitneyu(second, first, alternative="greater").pvalue, abs=0.01)
    assert permutation_auc(first, second)[1] > 0.9, "one-sided"


def test_false_alarms_on_random_splits_are_rare(leads: list[str]) -> None:
    rule, alarms, low = Gate(), 0, 0
    assert rule.shift is not None
    for seed in range(40):
        texts = random.Random(seed).sample(leads, 700)
        shift = word_shift(texts[:100], texts[100:400], texts[400:], terms=terms)
        assert 0.4 < shift.auc < 0.6
        low += shift.p <= 0.05
        alarms += shift.auc > rule.shift and shift.p <= rule.p
    assert alarms == 0
    assert low <= 6, "p is not below 5% in many more than 5% of the splits"  # P(more than 6 of 40) = 0.3%


def test_foreign_texts_are_an_alarm(leads: list[str]) -> None:
    draw = random.Random(1)
    noise = ["".join(draw.choice("abcdefghij ") for _ in range(200)) for _ in range(60)]
    shift = word_shift(noise, leads[:300], leads[300:600], terms=terms)
    assert shift.auc > 0.99 and shift.p <= 0.001
    rng = np.random.default_rng(0)
    known, foreign = rng.normal(size=(600, 16)) + 3, rng.normal(size=(60, 16)) - 3
    alarm = vector_shift(foreign, known[:300], known[300:], by="x")
    assert alarm.auc == 1 and alarm.p == 0.001 and alarm.mean == pytest.approx(2, abs=0.1), "the means point the other way"
    topic = known[:300][np.argsort(known[:300, 0])[:60]]
    assert vector_shift(topic, known[60:300], known[300:], by="x").auc < 0.9, "one topic that is covered"


def test_a_foreign_batch_is_quarantined_and_let_in_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)

    def write_corpus(folder: Path, texts: list[str]) -> None:
        folder.mkdir(parents=True)
        lines = (json.dumps({"_id": f"{folder.name}-{number}", "text": text}) + "\n" for number, text in enumerate(texts))
        (folder / "corpus.jsonl").write_text("".join(lines))

    write_corpus(tmp_path / "base", leads[:400])
    write_corpus(tmp_path / "inbox/good", leads[400:500])
    write_corpus(tmp_path / "inbox/noise", ["".join(draw.choice("abcdefghij ") for _ in range(200)) for _ in range(60)])
    rule = Intake(inbox="inbox")
    messages: list[str] = []
    monkeypatch.setattr(reference.champion, "current", lambda _: None)
    batches = {batch.name: batch for batch in take_in(rule, "beir:base", tmp_path, say=messages.append).batches}
    assert batches["good"].state == "accepted"
    assert batches["good"].shift["documents"]["by"] == "words"
    assert batches["noise"].reason.startswith(
        "shift of documents: AUC 1.000, p 0.001 (60 against 200 by words), expected an AUC of at most 0.95"
    )
    assert inbox.accept(rule, "beir:base", tmp_path, name="noise").state == "accepted"
    assert not messages
    assert [batch.state for batch in take_in(rule, "beir:base", tmp_path).batches] == ["accepted", "accepted"]
    gates = {"third": Gate(shift=None), "thin": Gate(least=61, sample=50), "tried": Gate(least=60, sample=50)}
    for name, gate in gates.items():
        write_corpus(tmp_path / "inbox" / name, leads[500:560])
        shift = take_in(Intake(inbox="inbox", gate=gate), "beir:base", tmp_path).batches[-1].shift
        assert bool(shift) == (name == "tried"), "the size of the batch decides, not that of the sample"


def test_a_shift_stays_found_whatever_a_later_champion_makes_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by benchmarks/year.py: near the limit, the next champion's vectors let a batch of another domain in."""
    monkeypatch.chdir(tmp_path)
    for name in ("base", "inbox/near"):
        (tmp_path / name).mkdir(parents=True)
        lines = (json.dumps({"_id": f"{name[-4:]}-{number}", "text": f"text {number} of {name}"}) + "\n" for number in range(60))
        (tmp_path / name / "corpus.jsonl").write_text("".join(lines))

    def take(auc: float, by: str, limit: float = 0.75) -> Batch:
        shift = Shift(auc, 0.001, None, 60, 60, by)
        monkeypatch.setattr(inspection, "reference_of", lambda *_, **__: SimpleNamespace(shift=lambda *_: shift))
        return take_in(Intake(inbox="inbox", gate=Gate(shift=limit)), "beir:base", tmp_path, say=lambda _: None).batches[0]

    assert take(0.8, "words").state == "quarantined"
    assert take(0.7, "champion/1").state == "accepted", "vectors tell more than words"
    (tmp_path / "inbox/near/corpus.jsonl").touch()  # another batch
    assert take(0.76, "champion/2").state == "quarantined"
    batch = take(0.74, "champion/3")
    assert batch.state == "quarantined" and "AUC 0.760" in batch.reason and "champion/2" in batch.reason
    assert take(0.74, "champion/3", limit=0.77).state == "accepted"


def test_without_the_champions_data_words_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def report_lost(_: Path) -> None:
        raise UserError("data/corpus of 1234: neither in the cache nor on the remote")

    monkeypatch.setattr(reference.champion, "current", report_lost)
    warnings: list[str] = []
    comparison = reference.reference_of(tmp_path, Known(10), 10, warn=warnings.append, processes=Processes())
    assert comparison.by == "words"
    assert warnings == [
        "the test of shift uses words, not the champion's vectors: data/corpus of 1234: neither in the cache nor on the remote"
    ]
    assert Reference({"documents": ["a"] * 100, "queries": []}, "words").shift("queries", ["a"] * 100) is None
    assert Shift(0.5, 0.4, None, 10, 20, "words").words == "AUC 0.500, p 0.4 (10 against 20 by words)"


def test_two_processes_do_not_read_each_others_texts(tmp_path: Path) -> None:
    """`retemper intake check` beside a retraining; each encodes other texts with the one encoder of .retemper/reference."""

    class Encoder(Processes):
        """Writes the length of each text as its vector, after `beside`."""

        def __init__(self, beside: Callable[[], Any]) -> None:
            self.beside = beside

        def run(self, command: Any, *_: Any, **__: Any) -> int:
            self.beside()
            texts = json.loads(Path(command[-2]).read_text())
            np.savez(command[-1], **{kind: np.array([[len(text)] for text in strings]) for kind, strings in texts.items()})
            return 0

    others = Encoder(lambda: None)
    ours = Encoder(lambda: reference._encode(tmp_path, {"documents": ["four"]}, others))
    assert reference._encode(tmp_path, {"documents": ["seventy"]}, ours)["documents"].tolist() == [[7]]
