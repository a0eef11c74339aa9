"""How many queries are searched at a time, and vectors of another width."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.core.errors import UserError
from tasks.core.retrieval import queries, ranked
from tasks.core.retrieval.embeddings import Embeddings, Manifest
from tasks.core.retrieval.pairs import embedded_scores
from tasks.core.retrieval.queries import search_embeddings
from tasks.core.retrieval.ranked import MARGIN


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
    query_vectors = np.zeros((2, 6), dtype=np.float32)
    words = "width 8, but the encoder has 6; choose one of that width, or encode again$"
    with pytest.raises(UserError, match=words):
        search_embeddings(query_vectors, embeddings, 2, torch.device("cpu"))
    with pytest.raises(UserError, match=words):
        embedded_scores(query_vectors, embeddings, np.arange(2), np.arange(2))
