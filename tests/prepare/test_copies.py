"""Documents with one title and text under several ids are counted, whatever their case and blanks, and whoever reads them."""

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.text.plain import plain
from tasks.prepare import copies, documents
from tasks.prepare.copies import count_copies, sketch_documents
from tasks.prepare.documents import rebatch, write_documents
from tasks.prepare.params import Prepare
from tasks.prepare.readers import beir
from tasks.prepare.readers.lines import blocks
from tasks.prepare.records import Tally
from tasks.prepare.source import At, Document, Source
from tasks.prepare.stats import stats_table

QRELS: dict[str, str | bytes] = {"queries.csv": "id,text\nq1,first\n", "qrels/train.csv": "query,doc,grade\nq1,1,1\n"}


def alter_text(draw: random.Random, text: str) -> str:
    """The same but for case and blanks."""
    words = [draw.choice([str, str.upper, str.title, str.casefold])(word) for word in text.split()]
    return draw.choice(["", " ", "\n"]) + "".join(word + draw.choice([" ", "  ", "\t", "\u00a0", "\u2028"]) for word in words)


def texts(count: int = 900) -> list[tuple[str, str]]:
    """Titles and texts, of which some are others' copies, and some nearly so."""
    draw = random.Random(count)
    words = ["straße", "ΣΊΣΥΦΟΣ", "word", "\u212a", "İstanbul", "東京", "a", "b"]
    pairs: list[tuple[str, str]] = [("", "x"), ("x", ""), ("x", "x"), ("", "x x"), ("x x", "")]
    while len(pairs) < count:
        title, text = " ".join(draw.choices(words, k=draw.randrange(3))), " ".join(draw.choices(words, k=draw.randrange(1, 30)))
        pairs.append((title, text))
        if draw.random() < 0.3:
            earlier = draw.choice(pairs)
            pairs.append((alter_text(draw, earlier[0]), alter_text(draw, earlier[1])))
        if draw.random() < 0.2:  # equal in what a sketch has
            pairs.append((title, text.replace("a", "b", 1)))
    return pairs[:count]


def found_copies(source: Source, out: Path, processes: int) -> int:
    tally = Tally()
    write_documents(source, Prepare(), out, tally=tally, processes=processes)
    return tally.copies


@pytest.mark.parametrize("samples", [copies.SAMPLED, 0])
def test_as_many_as_a_comparison_of_all_texts_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    pairs = texts()
    expected = len(pairs) - len({(plain(title), plain(text)) for title, text in pairs})
    assert expected > 100
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": f"d{n}", "title": t, "text": x}) + "\n" for n, (t, x) in enumerate(pairs)))
    monkeypatch.setattr(beir, "blocks", partial(blocks, size=900))
    monkeypatch.setattr(documents, "rebatch", partial(rebatch, rows=64))
    if not samples:  # all sketches are one: the digests alone tell documents apart
        monkeypatch.setattr(copies, "crc32", lambda _: 0)
    source = Source(partial(beir.documents, path), {}, {}, parts=partial(beir.parts, path))
    assert found_copies(Source(source.documents, {}, {}), tmp_path / "whole.parquet", 1) == expected
    for processes in (1, 2):
        assert found_copies(source, tmp_path / f"{processes}.parquet", processes) == expected


def test_nothing_is_read_again_where_no_sketch_is_shared(tmp_path: Path) -> None:
    rows = [Document(At("x", n), f"d{n}", "", f"text {n}") for n in range(50)]
    counts, sketches = sketch_documents(rows)
    assert counts == [2] * 50 and sketches.nbytes == 8 * 50
    assert count_copies(tmp_path / "missing.parquet", [sketches, np.zeros(0, dtype=np.uint64)]) == 0


def test_copies_are_told_and_in_the_statistics(prepare: Any, write_files: Any) -> None:
    rows = 'id,title,text\n1,Sea,"Blue fish"\n2,sea,blue  FISH\n3,,Blue fish\n'
    prepared = prepare(f"csv:{write_files(QRELS | {'corpus.csv': rows})}")
    assert prepared.stats["equal_texts"] == 1 and len(prepared.documents) == 3
    assert "equal texts: 1 document is a copy of another" in stats_table(prepared.stats).splitlines()
    prepared = prepare(f"csv:{write_files({'corpus.csv': rows + chr(10) + '4,SEA,Blue fish'})}")
    assert "equal texts: 2 documents are copies of others" in stats_table(prepared.stats).splitlines()
    write_files({"corpus.csv": "id,text\n1,a\n2,b\n"})
    prepared = prepare(f"csv:{write_files({})}")
    assert "equal_texts" not in prepared.stats and "equal texts" not in stats_table(prepared.stats)
