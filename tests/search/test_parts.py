"""What a search is made from, with one part harmed: one line that says which."""

from typing import Any

import pytest

from tasks.search.__main__ import main
from tests.test_bad_input import Arrange, assert_refused, edit, remove

SEARCHED = ["--model", "tower", "data/encoders/tower", "data/indexes/warmup", "--lexical", "data/bm25", "--fusion", "hybrid"]
SEARCHED += ["data/runs/hybrid/fusion.json", "--depth", "20", "--lexical-depth", "20", "--tokens", "data/tokens", "--query=a palace"]
PARTS: dict[str, tuple[Arrange, str]] = {
    "documents cut short": (edit("data/corpus/documents.parquet", lambda data: data[:99]), "documents.parquet: cannot be read"),
    "ids cut short": (
        edit("data/tokens/documents/ids.parquet", lambda data: data[:99]),
        "data/tokens/documents/ids.parquet: cannot be read as Parquet",
    ),
    "tokenizer of null": (lambda p: p.write("data/encoders/tower/tokenizer.json", "null"), "data/encoders/tower: no tokenizer"),
    "analysis of null": (lambda p: p.write("data/bm25/analysis.json", "null"), "data/bm25/analysis.json: found no stemmer and stopwords"),
    "BM25 cut short": (edit("data/bm25/data.csc.index.npy", lambda data: data[:99]), "data/bm25: no BM25 index"),
    "BM25 in part": (remove("data/bm25/data.csc.index.npy"), "data/bm25: no BM25 index"),
}


@pytest.mark.parametrize("case", PARTS)
def test_parts_of_a_search(small: Any, case: str) -> None:
    arrange, words = PARTS[case]
    arrange(small)
    assert_refused(small, lambda: small.call(main, ["search", *SEARCHED, "--documents", "data/corpus/documents.parquet"]), words)
