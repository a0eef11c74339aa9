"""Equal texts: those that a dictionary finds, wherever the corpus is cut, and no more in memory than was asked for."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tasks.core.errors import Corrupt
from tasks.core.tokens import same_texts as module
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.tokens.same_texts import SAME, first_of_same, same_texts
from tests.core.tokens.test_folder import write_token_folder


def draw_tokens(seed: int, path: Path) -> tuple[Tokens, list[int]]:
    """60 texts of few words and one to three passages: many repeat, in another order of words or passages too. And the first of each."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(60), rng.integers(1, 4, size=60)).tolist()
    rows = [rng.integers(0, 2, size=rng.integers(0, 3)).tolist() for _ in owners]
    texts = [tuple(tuple(row) for row, owner in zip(rows, owners, strict=True) if owner == o) for o in range(60)]
    first = [texts.index(text) for text in texts]
    assert 10 < len(set(first)) < 50
    return open_tokens(write_token_folder(path / "t", rows, owners)), first


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_owners_of_the_same_tokens_are_those_of_a_dictionary(seed: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HASHED_ROWS", rows)
    tokens, first = draw_tokens(seed, tmp_path)
    assert first_of_same(tokens).tolist() == first
    for asked_owners in ([5], [59, 3, 3], list(range(0, 60, 7))):
        same = same_texts(tokens, np.array(asked_owners))
        members = [owner for owner in range(60) if first[owner] in {first[other] for other in asked_owners}]
        assert same.members.tolist() == members
        assert same.first.tolist() == [first[owner] for owner in members]
        assert same.firsts_of(np.array(asked_owners)).tolist() == [first[owner] for owner in asked_owners]


def test_the_place_of_a_token_and_of_a_passage_counts(tmp_path: Path) -> None:
    rows, owners = [[1, 2], [2, 1], [1], [2], [2], [1], [1, 2], []], [0, 1, 2, 2, 3, 3, 4, 5]
    assert first_of_same(open_tokens(write_token_folder(tmp_path / "t", rows, owners))).tolist() == [0, 1, 2, 3, 0, 5]


def test_nobody_asked_for_and_a_folder_without_texts(tmp_path: Path) -> None:
    no_owners = np.empty(0, dtype=np.int64)
    same = same_texts(draw_tokens(0, tmp_path)[0], no_owners)
    assert same.members.tolist() == [] and not same.repeated
    assert first_of_same(open_tokens(write_token_folder(tmp_path / "none", []))).tolist() == []


def test_groups_of_tokenize_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HASHED_ROWS", 2)
    tokens = open_tokens(write_token_folder(tmp_path / "t", [[1, 2], [3, 4], [1, 2], [5]]))
    assert same_texts(tokens, np.arange(4)).first.tolist() == [0, 1, 0, 3]
    np.save(tokens.folder / SAME, np.array([0, 0, 0, 3]))
    assert same_texts(tokens, np.arange(4)).first.tolist() == [0, 0, 0, 3]
    same = same_texts(tokens, np.array([1]))
    assert (same.members.tolist(), same.first.tolist()) == ([0, 1, 2], [0, 0, 0])
    np.save(tokens.folder / SAME, np.empty(0, np.int64))
    assert same_texts(tokens, np.arange(4)).first.tolist() == [0, 1, 0, 3], "tokenize did not look for near-duplicates"
    np.save(tokens.folder / SAME, np.array([0, 0]))
    with pytest.raises(Corrupt, match=r"same.npy: found shape \(2,\), expected \(4,\); run tokenize again"):
        same_texts(tokens, np.array([1]))
    (tokens.folder / SAME).write_bytes(b"x")
    with pytest.raises(Corrupt, match=r"same.npy: unreadable"):
        same_texts(tokens, np.array([1]))


@pytest.mark.parametrize("passages", [1, 40])
def test_memory_does_not_grow_with_the_corpus(passages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with the passages of the documents that are asked for."""
    monkeypatch.setattr(module, "HASHED_ROWS", 256)
    count = 40_000 // passages
    rows = [[row // passages % 250, row // passages // 250] for row in range(count * passages)]
    tokens = open_tokens(write_token_folder(tmp_path / "t", rows, np.repeat(np.arange(count), passages).tolist()))
    owners = np.arange(min(count, 500))
    tracemalloc.start()
    try:
        same = same_texts(tokens, owners)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert same.members.tolist() == owners.tolist()
    assert peak < 200_000  # bytes; a whole array of rows or of their tokens has 320,000
