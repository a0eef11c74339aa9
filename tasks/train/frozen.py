"""Scores by a frozen copy of the towers, without gradients, for validation and for a guide."""

import copy
from dataclasses import dataclass

import torch

from tasks.core.encoding.encode import Vectors, encode
from tasks.core.machine.devices import best_batch_tokens, move_module
from tasks.core.models.bi_encoder import Encoder, Towers
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens
from tasks.train.batches import Floats
from tasks.train.lora import merge
from tasks.train.step import best_passage


@dataclass(frozen=True)
class Frozen:
    """A copy of both towers in eval mode, in the dtype they compute in, with the tokens that they encode."""

    towers: Towers
    queries: Tokens
    documents: Tokens
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, towers: Towers, queries: Tokens, documents: Tokens, device: torch.device, dtype: torch.dtype) -> "Frozen":
        """Copy `towers` as they are now. Adapters are merged, as in the encoder that the round saves."""
        copied = copy.deepcopy(towers)  # shared towers stay shared
        merge(copied)
        for tower in (copied.query, copied.document):
            move_module(tower, device, dtype).eval()
        return cls(copied, queries, documents, device, dtype)

    def scores(self, queries: Ints, documents: Ints) -> Floats:
        """Inner products, float32 [Q, U], of queries [Q] and documents [U]. A document scores as its best passage."""
        rows_UP = self.documents.rows_of(documents)
        present_UP = rows_UP >= 0
        scores_QR = (
            self._vectors(self.towers.query, self.queries, queries)
            @ self._vectors(self.towers.document, self.documents, rows_UP[present_UP]).T
        )
        scores: Floats = best_passage(torch.from_numpy(scores_QR), torch.from_numpy(present_UP)).numpy()
        return scores

    def _vectors(self, tower: Encoder, tokens: Tokens, rows: Ints) -> Vectors:
        return encode(tower, tokens, rows, best_batch_tokens(self.device, self.dtype), self.device)
