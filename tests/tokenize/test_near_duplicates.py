"""Near-duplicates by MinHash, against sets compared in a plain loop."""

import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.files import write_json
from tasks.core.tables.parquet import write_table
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.tokens.same_texts import SAME, same_texts
from tasks.tokenize.near_duplicates import FOUND, VALUES, bands_of, first_of_near


def tokens_of(folder: Path, documents: list[list[list[int]]], prompt: int = 0) -> Tokens:
    """A token folder of documents, each a list of passages that begin with `prompt` tokens of a prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [passage for passages in documents for passage in passages]
    np.array([token for row in rows for token in row], dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))
    np.save(folder / "owners.npy", np.repeat(np.arange(len(documents)), [len(passages) for passages in documents]).astype(np.int32))
    schema = pa.schema([("id", pa.string())])
    write_table(folder / "ids.parquet", schema, [pa.table({"id": [f"d{n}" for n in range(len(documents))]}, schema)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": 64, "prefix": "", "tokenizer": "", "prompt": prompt})
    return open_tokens(folder)


def shingles(document: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(row[place : place + 3]) for row in document for place in range(max(1, len(row) - 2))}


def jaccard(document: list[list[int]], other: list[list[int]]) -> float:
    first, second = shingles(document), shingles(other)
    return len(first & second) / len(first | second)


def corpus() -> list[list[list[int]]]:
    """60 documents of one or two passages, each with a copy that has 0 to 5 tokens changed."""
    rng = np.random.default_rng(5)
    documents = []
    for number in range(60):
        passages = [rng.integers(1, 500, size=rng.integers(30, 60)).tolist() for _ in range(1 + number % 2)]
        copy = [list(row) for row in passages]
        for place in rng.integers(0, 30, size=number % 6):
            copy[0][place] = 999
        documents += [passages, copy]
    return documents


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_groups_are_those_of_a_plain_loop(threshold: float, tmp_path: Path) -> None:
    documents = corpus()
    firsts = first_of_near(tokens_of(tmp_path, documents), threshold)
    alike = {
        (first, second)
        for first, second in combinations(range(len(documents)), 2)
        if jaccard(documents[first], documents[second]) >= threshold
    }
    linked = {(first, second) for first, second in combinations(range(len(documents)), 2) if firsts[first] == firsts[second]}
    assert linked <= alike, "exact: every pair is compared"
    assert len(linked) >= FOUND * len(alike)
    assert 10 <= len(alike) <= 60
    assert all(firsts[owner] <= owner and firsts[firsts[owner]] == firsts[owner] for owner in range(len(documents)))


def test_short_documents_and_chains(tmp_path: Path) -> None:
    long = list(range(100, 160))
    chain = [[long], [[*long[:-1], 1]], [[*long[:-2], 2, 1]]]  # neighbours differ in one token
    ends = [[[1, 2, 3], [9]], [[1, 2, 3], [8]]]  # a passage shorter than a shingle counts as one
    firsts = first_of_near(tokens_of(tmp_path, [[[7]], [[7]], [[8]], [[7, 8]], *chain, [[]], *ends]), 0.9)
    assert firsts.tolist() == [0, 0, 2, 3, 4, 4, 4, 7, 8, 9]


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9])
def test_a_prefix_does_not_count(threshold: float, tmp_path: Path) -> None:
    """Short documents under a long prefix are as alike as without it; of a passage that it fills, the last token counts."""
    chain = [[list(range(100, 160))], [[*range(100, 159), 1]]]
    documents = [[[1, 2, 3]], [[4, 5], [6, 7, 8]], [[9]], [[9, 10]], [[6, 7, 8]], *chain, *corpus()]
    prompt = list(range(600, 640))
    prefixed = [[prompt + row for row in passages] for passages in documents]
    plain = first_of_near(tokens_of(tmp_path / "plain", documents), threshold).tolist()
    assert first_of_near(tokens_of(tmp_path / "prefixed", prefixed, 40), threshold).tolist() == plain
    assert plain[:4] == [0, 1, 2, 3] and plain[5:7] == [5, 5]
    full = [[prompt[:30]], [[*prompt[:29], 7]], [[]], [[*prompt[:20], 7]]]
    assert first_of_near(tokens_of(tmp_path / "full", full, 40), threshold).tolist() == [0, 1, 2, 1]


def test_the_bands_find_a_pair_at_the_threshold() -> None:
    for threshold in (0.3, 0.5, 0.8, 0.95, 1.0):
        bands, values = bands_of(threshold)
        assert bands * values <= VALUES
        assert 1 - (1 - threshold**values) ** bands >= FOUND
    assert bands_of(0.8) == (10, 6)


def test_the_stage_groups_documents_if_asked(tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, run_stage: Callable[..., str]) -> None:
    shutil.copytree(tiny_corpus.records, tmp_path / "corpus")
    table = pq.read_table(tmp_path / "corpus/documents.parquet")
    copy = table.slice(3, 1).set_column(0, table.schema.field(0), pa.array(["copy"]))
    write_table(tmp_path / "corpus/documents.parquet", table.schema, [pa.concat_tables([table, copy])])
    arguments = ["--corpus", "corpus", "--tokenizer", str(tiny_encoder)]
    for value, out in (("null", "plain"), ("0.9", "near")):
        (tmp_path / "params.yaml").write_text(f"text: {{}}\ntokenize: {{near_duplicates: {value}}}\n")
        output = run_stage(tmp_path, "tokenize", *arguments, "--out", out)
        assert ("1 of 61 documents is a near-duplicate of an earlier one" in output) == (value != "null")
    assert np.load(tmp_path / "plain/documents" / SAME).shape == (0,)
    assert same_texts(open_tokens(tmp_path / "near/documents"), np.arange(61)).first[60] == 3
