"""The batch of a pre-training step: texts as the model sees them, masked tokens, and spans or removed sentences.

N chunks per step make K texts: K = N, or 2 N for the inverse cloze task (N sentences, then N passages without them).
Every draw is a function of (seed, epoch, chunk) or (seed, epoch): no step depends on the one before it.
"""

from dataclasses import dataclass

import numpy as np

from tasks.core.errors import UserError
from tasks.core.plurals import counted
from tasks.core.stage.draws import CLOZE, DECODED, MASKS, SPANS, draw_seed, epoch_order
from tasks.core.tables.ids import Ints
from tasks.core.tokens.chunks import Chunks
from tasks.pretrain.decoder import decoder_mask
from tasks.pretrain.masking import mask_tokens
from tasks.pretrain.params import Pretrain
from tasks.pretrain.spans import draw_spans
from tasks.pretrain.words import Bools, Vocabulary


@dataclass(frozen=True)
class Batch:
    """One step: K texts, each a row of tokens of its own length."""

    clean: list[Ints]
    seen: list[Ints]  # the texts after masking
    hidden: list[Bools]  # the positions to predict
    spans: Ints | None  # [K, S, 2], COSTA only
    visible: list[Bools]  # [L, L] of each text: the decoder's attention mask, RetroMAE only
    decoded: list[Bools]  # the positions that the decoder predicts, RetroMAE only

    @property
    def lengths(self) -> Ints:
        return np.fromiter(map(len, self.clean), dtype=np.int64, count=len(self.clean))


def usable_rows(chunks: Chunks, params: Pretrain, where: str) -> Ints:
    """The rows of the chunks that a pre-training can use. UserError if there are too few, or if spans do not fit into any of them."""
    rows = np.arange(len(chunks))
    if params.objective == "ict":
        rows = np.flatnonzero(chunks.sentence_counts >= 2)
        if not len(rows):
            raise UserError(f"{where}.objective: ict removes a sentence from a chunk, but no chunk has two; increase chunk.length")
    if len(rows) < 2:
        found = counted(len(rows), "chunks")
        raise UserError(f"{where}: found {found} to train on, expected at least two; choose a larger articles.source")
    if params.objective == "costa":
        longest = int(chunks.tokens.lengths.max()) - 2
        for name in params.granularities:
            if name != "word" and getattr(params, name)[0] > longest:
                raise UserError(
                    f"{where}.{name}: found {list(getattr(params, name))}, but the longest text has {longest} tokens; "
                    f"decrease it, increase chunk.length, or remove {name} from granularities"
                )
        if params.spans > longest:
            raise UserError(f"{where}.spans: found {params.spans}, but the longest text has {longest} tokens; decrease it")
    return rows


def steps_of(rows: Ints, params: Pretrain) -> int:
    """The number of optimizer steps of a pre-training."""
    return params.steps if params.steps is not None else max(1, round(params.epochs * steps_per_epoch(rows, params)))


def steps_per_epoch(rows: Ints, params: Pretrain) -> int:
    """Full batches per epoch. Chunks that are left over may come in the next epoch, which has a different order."""
    return max(1, len(rows) // params.batch_texts)


def draw_batch(chunks: Chunks, rows: Ints, vocabulary: Vocabulary, params: Pretrain, step: int) -> Batch:
    """Draw the batch of step `step`. Chunks follow one permutation per epoch; no chunk is twice in a batch."""
    epoch, place = divmod(step, steps_per_epoch(rows, params))
    order = epoch_order(len(rows), params.seed, epoch)
    chosen = rows[order[place * params.batch_texts : (place + 1) * params.batch_texts]].tolist()
    clean = [chunks.row(row) for row in chosen]
    spans = None
    if params.objective == "costa":
        span_epoch = epoch if params.redraw else 0
        rngs = [np.random.default_rng(draw_seed(params.seed, SPANS, span_epoch, row)) for row in chosen]
        spans = np.stack([draw_spans(ids, vocabulary, params, rng) for ids, rng in zip(clean, rngs, strict=True)])
    if params.objective == "ict":
        pairs = []
        for row, ids in zip(chosen, clean, strict=True):
            rng = np.random.default_rng(draw_seed(params.seed, CLOZE, epoch, row))
            bounds = chunks.sentences(row)
            pairs.append(take_out_sentence(ids, bounds, int(rng.integers(len(bounds) - 1))))
        clean = [sentence for sentence, _ in pairs] + [passage for _, passage in pairs]
    masked = [
        mask_tokens(ids, vocabulary, params.mask_share, np.random.default_rng(draw_seed(params.seed, MASKS, epoch, place, number)))
        for number, ids in enumerate(clean if params.masked else [])
    ]
    visible, decoded = list[Bools](), list[Bools]()
    if params.objective == "retromae":
        rngs = [np.random.default_rng(draw_seed(params.seed, DECODED, epoch, row)) for row in chosen]
        visible = [decoder_mask(ids, vocabulary, params.decoder_mask_share, rng) for ids, rng in zip(clean, rngs, strict=True)]
        decoded = [~vocabulary.special[ids] for ids in clean]
    return Batch(clean, [seen for seen, _ in masked], [hidden for _, hidden in masked], spans, visible, decoded)


def take_out_sentence(ids: Ints, bounds: Ints, number: int) -> tuple[Ints, Ints]:
    """Split a chunk into sentence `number` and the rest, each between the chunk's special tokens (inverse cloze task)."""
    start, end = bounds[number], bounds[number + 1]
    return np.concatenate([ids[:1], ids[start:end], ids[-1:]]), np.concatenate([ids[:start], ids[end:]])
