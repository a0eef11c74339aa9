"""Searching queries in parts gives the tables that searching them at once gives, bit for bit where parts are whole blocks."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.retrieval import queries, ranked
from tasks.core.retrieval.embeddings import Embeddings, Manifest
from tasks.core.retrieval.exact import exact_search
from tasks.core.retrieval.pairs import embedded_scores
from tasks.core.retrieval.queries import ranked_queries, search_embeddings
from tasks.core.retrieval.ranked import MARGIN, ranked_tables
from tasks.core.stage.errors import UserError


@pytest.mark.parametrize("held", [1, 3 * (5 + MARGIN), 4 * (5 + MARGIN), 9 * (5 + MARGIN), 10**9])
def test_searching_in_parts_gives_the_same_results(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    asked, vectors = draw.normal(size=(19, 24)).astype(np.float32), draw.normal(size=(60, 24)).astype(np.float32)
    query_ids, ids = pa.array([f"q{n}" for n in range(19)]), pa.array([f"d{n}" for n in range(60)])
    owners = np.arange(60, dtype=np.int32)
    excluded = np.array([q * 60 + doc for q in range(19) for doc in draw.integers(0, 60, 20)])
    for module in (ranked, queries):
        monkeypatch.setattr(module, "QUERY_BLOCK", 4)
    monkeypatch.setattr(queries, "HELD", held)
    monkeypatch.setattr(queries, "FEWEST", 2)
    parts = []

    def found(part: np.ndarray, rows: int = 5) -> tuple[np.ndarray, np.ndarray]:
        parts.append(len(part))
        return exact_search(part, [(0, vectors[:31]), (31, vectors[31:])], rows, torch.device("cpu"))

    tables = list(ranked_queries(asked, found, query_ids, ids, owners, 5, 3, 1, excluded))
    size = {1: 2, 3 * (5 + MARGIN): 3, 4 * (5 + MARGIN): 4, 9 * (5 + MARGIN): 8, 10**9: 19}[held]
    assert parts == [min(size, 19 - start) for start in range(0, 19, size)]
    table = pa.concat_tables(tables).combine_chunks()
    whole = pa.concat_tables(ranked_tables(*found(asked), query_ids, ids, owners, 3, 1, excluded)).combine_chunks()
    if size >= ranked.QUERY_BLOCK:  # whole blocks
        assert table.equals(whole)
    assert table.drop(["score"]).equals(whole.drop(["score"]))
    np.testing.assert_allclose(table["score"], whole["score"], rtol=1e-6)
    assert sum(map(len, tables)) > 19


def test_a_gpu_reads_the_corpus_less_often_and_parts_are_whole_blocks() -> None:
    """MS MARCO: 503k queries, 200 deep and 7 positives at most, one passage a document or four; 12 bytes a result, on a CPU 24."""
    for rows, cpu, gpu in ((207, 28, 4), (4 * 207, 123, 13)):
        for device, parts in ((None, cpu), (torch.device("cpu"), cpu), (torch.device("cuda"), gpu)):
            size = queries.part_size(rows, device)
            assert size % ranked.QUERY_BLOCK == 0
            assert -(-502_939 // size) == parts
            assert size * (rows + MARGIN) * (12 if parts == gpu else 24) <= (0.41e9 if parts == gpu else 0.11e9)
    assert queries.part_size(10**7) == queries.FEWEST


def test_vectors_of_another_width_are_one_line(tmp_path: Path) -> None:
    embeddings = Embeddings(tmp_path, Manifest(3, 8, "float32", [3], "", "", 8, ""))
    asked = np.zeros((2, 6), dtype=np.float32)
    words = "width 8, but the encoder has 6; choose one of that width, or encode again$"
    with pytest.raises(UserError, match=words):
        search_embeddings(asked, embeddings, 2, torch.device("cpu"))
    with pytest.raises(UserError, match=words):
        embedded_scores(asked, embeddings, np.arange(2), np.arange(2))
