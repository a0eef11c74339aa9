"""BERT's masking: 15% of the tokens, 80 / 10 / 10, special tokens never."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tasks.core.errors import UserError
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.pretrain.masking import mask_tokens
from tasks.pretrain.words import read_vocabulary


def test_first_own_and_masking_fractions(tiny_encoder: Path) -> None:
    tokenizer = load_tokenizer(tiny_encoder)
    vocabulary = read_vocabulary(tokenizer, "tiny")
    rng = np.random.default_rng(5)
    ids = rng.integers(2000, len(vocabulary), size=200_000)
    ids[0], ids[-1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids[1000:51000] = tokenizer.sep_token_id  # specials in the middle, too
    seen, hidden = mask_tokens(ids, vocabulary, 0.15, rng)
    special = np.isin(ids, tokenizer.all_special_ids)
    assert not hidden[special].any() and (seen[special] == ids[special]).all()
    assert (seen[~hidden] == ids[~hidden]).all()

    def is_near(count: int, total: int, share: float) -> bool:  # within four standard deviations of a binomial
        return abs(count - total * share) < 4 * (total * share * (1 - share)) ** 0.5

    total = int(hidden.sum())
    assert is_near(total, int((~special).sum()), 0.15)
    masked, kept = seen[hidden] == tokenizer.mask_token_id, seen[hidden] == ids[hidden]
    assert is_near(int(masked.sum()), total, 0.8)
    assert is_near(int(kept.sum()), total, 0.1)
    drawn = seen[hidden][~masked & ~kept]
    assert is_near(len(drawn), total, 0.1)
    assert len(set(drawn.tolist())) > 0.9 * len(drawn) * (1 - len(drawn) / (2 * len(vocabulary))), "random tokens are uniform"


def test_a_tokenizer_without_a_mask_token_is_refused() -> None:
    with pytest.raises(UserError, match=r"^pretrain.p: the tokenizer has no mask token, which pre-training requires; choose another"):
        read_vocabulary(SimpleNamespace(mask_token_id=None), "pretrain.p")


def test_ids_with_gaps_are_never_drawn(tiny_encoder: Path, tmp_path: Path) -> None:
    """A vocabulary may have ids beyond the number of its tokens; a token there begins a word like any other."""
    shutil.copytree(tiny_encoder, tmp_path / "m")
    state = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    vocab = state["model"]["vocab"]
    vocab["wizards"] = 61_000
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(state))
    plain, vocabulary = (read_vocabulary(load_tokenizer(folder), "tiny") for folder in (tiny_encoder, tmp_path / "m"))
    assert len(vocabulary) == len(load_tokenizer(tmp_path / "m")) <= len(plain) + 1
    assert vocabulary.begins[61_000] and not vocabulary.begins[40_000] and not vocabulary.continues[40_000]
    names = ("begins", "continues", "stops", "special")
    known = np.setdiff1d(plain.ids, np.setdiff1d(plain.ids, vocabulary.ids))
    assert all((getattr(vocabulary, name)[known] == getattr(plain, name)[known]).all() for name in names)
    ids = np.full(300_000, 2000)
    seen, hidden = mask_tokens(ids, vocabulary, 0.9, np.random.default_rng(5))
    drawn = np.setdiff1d(seen[hidden], [vocabulary.mask, 2000])
    assert len(drawn) > 10_000 and np.isin(drawn, vocabulary.ids).all()
    assert (mask_tokens(ids, plain, 0.9, np.random.default_rng(5))[1] == hidden).all()
