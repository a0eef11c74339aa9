"""One optimizer step of a pre-training: batch, vectors, both losses, gradients.

The contrastive loss needs the vectors of all texts of a step, but memory holds the activations of only a few. So a step is cut into groups
of texts, as in tasks.core.training.gradient_cache: first all vectors, then the loss and its gradient with respect to them, then the
backward pass of each cut, which is encoded again if its graph was not kept. The MLM loss needs only the cut itself.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from tasks.core.machine.devices import to_device, to_tensor
from tasks.core.stage.draws import CHUNK_DROPOUT, draw_seed
from tasks.core.tables.ids import Ints
from tasks.core.tokens.chunks import Chunks
from tasks.core.tokens.folder import cut_by_budget, pad_rows
from tasks.core.training.figures import Figures
from tasks.core.training.gradient_cache import backward_to, gather_vectors, last_ones
from tasks.core.training.loop import Steps
from tasks.core.training.unpadded import Unpadded, best_training_tokens
from tasks.pretrain.batches import Batch, draw_batch
from tasks.pretrain.decoder import decoder_inputs
from tasks.pretrain.losses import alignment, group_contrastive, inverse_cloze, masked_tokens, nearest_span_accuracy, uniformity
from tasks.pretrain.model import Pretrainer, scale_vectors, span_means
from tasks.pretrain.params import Pretrain
from tasks.pretrain.words import Vocabulary

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

LOGITS = 2**28  # 1 GiB; more logits are computed in parts, and again in the backward pass
Encoded = tuple[torch.Tensor, torch.Tensor]  # hidden states [B, L, H], attention mask [B, L]


@dataclass(frozen=True)
class Vectors:
    """Vectors of texts, [B, H], and of their spans, [B, S, H] (COSTA only)."""

    text: torch.Tensor
    spans: torch.Tensor | None

    def tensors(self) -> list[torch.Tensor]:
        return [self.text] if self.spans is None else [self.text, self.spans]

    def detached(self) -> "Vectors":
        return Vectors(self.text.detach(), None if self.spans is None else self.spans.detach())


@dataclass(frozen=True)
class Work:
    """How a step is computed. It affects only the last bits of a result."""

    device: torch.device
    dtype: torch.dtype
    graph_tokens: int
    pad: int
    gang: "Gang | None" = None


def reduce_losses(losses: torch.Tensor, reduction: str) -> torch.Tensor:
    """The mean or the sum of losses; 0 if there are none."""
    return losses.sum() if reduction == "sum" else losses.sum() / max(1, losses.numel())


def contrastive(module: Pretrainer, vectors: Vectors, params: Pretrain) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The contrastive loss of a step, reduced but not weighted, and its metrics."""
    if vectors.spans is not None:
        text_NH, own_NSH = scale_vectors(module.projected(vectors.text), params.similarity), scale_vectors(vectors.spans, params.similarity)
        losses_N = group_contrastive(text_NH, own_NSH, params.tau)
    else:
        queries_NH, passages_NH = scale_vectors(vectors.text, params.similarity).chunk(2)
        text_NH, own_NSH = queries_NH, passages_NH.unsqueeze(1)
        losses_N = inverse_cloze(queries_NH, passages_NH, params.tau)
    with torch.no_grad():
        accuracy = nearest_span_accuracy(text_NH, own_NSH)
    loss = reduce_losses(losses_N, params.contrastive_reduction)
    return loss, {"contrastive_loss": loss.detach(), "accuracy": accuracy}


def geometry_metrics(vectors: Vectors, params: Pretrain) -> dict[str, torch.Tensor]:
    """Alignment and uniformity of the transformer's own vectors, before the projector and encoder.head.

    COSTA aligns texts with their spans. The inverse cloze task aligns queries with their passages, and measures uniformity of passages
    only, so that its curves compare with COSTA's. MLM alone and RetroMAE have no pairs to align.
    """
    if params.objective == "ict":
        queries, passages = vectors.text.chunk(2)
        return {"alignment": alignment(queries, passages.unsqueeze(1)), "uniformity": uniformity(passages)}
    paired = {} if vectors.spans is None else {"alignment": alignment(vectors.text, vectors.spans)}
    return {**paired, "uniformity": uniformity(vectors.text)}


class Step:
    """One step, computed cut by cut. Methods come in the order in which they are used."""

    def __init__(
        self, module: Pretrainer, batch: Batch, params: Pretrain, work: Work, key: tuple[int, ...], budget: int, unpadded: Unpadded | None
    ) -> None:
        self.module, self.batch, self.params, self.work, self.key, self.unpadded = module, batch, params, work, key, unpadded
        least = 1 if work.gang is None or work.device.type == "cpu" else work.gang.size
        self.cuts = cut_by_budget(batch.lengths, budget, least)
        self.one_pass = params.masked and (not params.contrastive or params.contrastive_input == "masked")
        self.sizes = [len(cut) * int(batch.lengths[cut].max()) for cut in self.cuts]
        self.shares = [list(range(len(self.cuts)))] if work.gang is None else work.gang.deal(self.sizes)
        self.own = self.shares[0 if work.gang is None else work.gang.rank]  # the cuts that this rank computes
        self.masked_count = sum(int(hidden.sum()) for hidden in batch.hidden)

    def autocast(self) -> torch.autocast:
        """A new context that computes in bfloat16, if the work does."""
        return torch.autocast(self.work.device.type, torch.bfloat16, enabled=self.work.dtype == torch.bfloat16)

    def encode(self, number: int, masked: bool) -> Encoded:
        """Hidden states and attention mask of cut `number`. Dropout is the same at every call."""
        torch.manual_seed(draw_seed(*self.key, number, masked))
        texts = self.batch.seen if masked else self.batch.clean
        rows, device = [texts[k] for k in self.cuts[number]], self.work.device
        ids_BL, mask_BL = pad_rows(rows, self.work.pad)
        mask_BL = to_device(mask_BL, device)
        if self.unpadded is not None:
            return self.unpadded.padded(rows), mask_BL
        with self.autocast():
            return self.module.hidden(to_device(ids_BL, device), mask_BL), mask_BL

    def leave(self, term: torch.Tensor) -> None:
        """Run the backward pass of `term`, which adds its gradients to the module's."""
        torch.autograd.backward(term)
        if self.unpadded is not None:
            self.unpadded.give_back()

    def vectors(self, number: int, hidden_BLH: torch.Tensor, mask_BL: torch.Tensor) -> Vectors:
        """The vectors of cut `number`."""
        spans = None
        if self.batch.spans is not None:
            spans = span_means(hidden_BLH, to_tensor(self.batch.spans[self.cuts[number]], self.work.device))
        return Vectors(self.module.pool(hidden_BLH, mask_BL), spans)

    def predict(self, number: int, hidden_BLH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cut `number`'s share of the step's MLM loss, not weighted, and how many masked tokens were predicted correctly."""
        assert self.module.head is not None
        picked = list(enumerate(self.cuts[number].tolist()))
        rows = np.concatenate([np.full(int(self.batch.hidden[k].sum()), b) for b, k in picked])
        places = np.concatenate([np.flatnonzero(self.batch.hidden[k]) for _, k in picked])
        truth = np.concatenate([self.batch.clean[k][self.batch.hidden[k]] for _, k in picked])
        truth_M = to_tensor(truth, self.work.device)
        hidden_MH = hidden_BLH[to_tensor(rows, self.work.device), to_tensor(places, self.work.device)]
        losses_M, right = self.predicted(hidden_MH, truth_M)
        share = losses_M.sum() if self.params.mlm_reduction == "sum" else losses_M.sum() / max(1, self.masked_count)
        return share, right

    def predicted(self, hidden_MH: torch.Tensor, truth_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each token to predict, [M], and how many were correct. At most LOGITS logits are in memory at a time."""

        def part(hidden_MH: torch.Tensor, truth_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            assert self.module.head is not None
            with self.autocast():
                logits_MV = self.module.head(hidden_MH, self.module.embeddings()).float()
            return masked_tokens(logits_MV, truth_M), (logits_MV.detach().argmax(1) == truth_M).sum()

        rows = max(1, LOGITS // len(self.module.embeddings()))
        if len(truth_M) <= rows:
            return part(hidden_MH, truth_M)
        pairs = zip(torch.split(hidden_MH, rows), torch.split(truth_M, rows), strict=True)
        losses, right = zip(*(checkpoint(part, *pair, use_reentrant=False) for pair in pairs), strict=True)
        return torch.cat(losses), torch.stack(right).sum()

    def decode(self, number: int, hidden_BLH: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Cut `number`'s share of the decoder's loss: predict each token from the text's vector and visible tokens (RetroMAE, Eq. 9)."""
        module = self.module
        assert module.decoder is not None and module.head is not None
        cut = self.cuts[number].tolist()
        length = hidden_BLH.shape[1]
        visible_BLL = np.zeros((len(cut), length, length), dtype=np.bool_)
        visible_BLL[:, :, 0] = True  # padding positions are queries too, and must see something
        decoded_BL = np.zeros((len(cut), length), dtype=np.bool_)
        for place, text in enumerate(cut):
            size = len(self.batch.clean[text])
            visible_BLL[place, :size, :size], decoded_BL[place, :size] = self.batch.visible[text], self.batch.decoded[text]
        ids_BL = to_device(pad_rows([self.batch.clean[text] for text in cut], self.work.pad)[0], self.work.device)
        decoded = tuple(to_tensor(places, self.work.device) for places in decoded_BL.nonzero())
        with self.autocast():
            asking_BLH, context_BLH = decoder_inputs(module.encoder.transformer, ids_BL, module.pool(hidden_BLH, mask_BL))
            decoded_BLH = module.decoder(asking_BLH, context_BLH, to_tensor(visible_BLL, self.work.device))
        losses_M, _ = self.predicted(decoded_BLH[decoded], ids_BL[decoded])
        count = sum(int(mask.sum()) for mask in self.batch.decoded)
        return losses_M.sum() if self.params.mlm_reduction == "sum" else losses_M.sum() / max(1, count)

    def gathered(self, parts: dict[int, Vectors]) -> Vectors:
        """The vectors of all texts, in batch order, from `parts`, those of our own cuts. In a gang, the other ranks send theirs."""
        total, width = len(self.batch.lengths), self.module.encoder.hidden
        text_NH = self._joined({number: part.text for number, part in parts.items()}, (total, width))
        if self.batch.spans is None:
            return Vectors(text_NH, None)
        spans = {number: part.spans for number, part in parts.items() if part.spans is not None}
        return Vectors(text_NH, self._joined(spans, (total, self.batch.spans.shape[1], width)))

    def _joined(self, parts: dict[int, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        own_MD = torch.cat(
            [torch.empty(0, math.prod(shape[1:]), device=self.work.device), *(parts[number].flatten(1) for number in self.own)]
        )
        places = [[self.cuts[number] for number in share] for share in self.shares]
        return gather_vectors(own_MD, places, self.work.gang).view(shape)

    def contrast(self, graph_cuts: set[int]) -> tuple[Vectors, dict[int, Encoded], dict[str, torch.Tensor]]:
        """Compute the contrastive loss.

        Return all vectors of the step as leaves that hold its gradient, the encoded cuts in `graph_cuts`, with their graphs, and metrics.
        """
        graphs: dict[int, Encoded] = {}
        parts: dict[int, Vectors] = {}
        for number in self.own:
            with torch.set_grad_enabled(number in graph_cuts):
                encoded = self.encode(number, self.one_pass)
            if number in graph_cuts:
                graphs[number] = encoded
            with torch.no_grad():
                parts[number] = self.vectors(number, *encoded).detached()  # a view would keep its graph even here
        leaves = self.gathered(parts)
        for leaf in leaves.tensors():
            leaf.requires_grad_()
        loss, metrics = contrastive(self.module, leaves, self.params)
        backward_to(leaves.tensors(), self.params.contrastive_weight * loss, self.work.gang)
        return leaves, graphs, metrics

    def through(self, number: int, encoded: Encoded, leaves: Vectors) -> torch.Tensor:
        """A scalar whose gradient is that of the contrastive loss through cut `number`."""
        cut = to_tensor(self.cuts[number], self.work.device)
        pairs = zip(self.vectors(number, *encoded).tensors(), leaves.tensors(), strict=True)
        return torch.stack([(vectors * leaf.grad[cut]).sum() for vectors, leaf in pairs if leaf.grad is not None]).sum()

    def backward(self) -> Figures:
        """Leave the step's gradients in the module (in a gang, this rank's share of them), and return the metrics to plot."""
        params, own = self.params, self.own
        graph_cuts = last_ones(own, self.sizes, self.work.graph_tokens) if params.contrastive else set()
        leaves, graphs, metrics = self.contrast(graph_cuts) if params.contrastive else (None, {}, dict[str, torch.Tensor]())
        parts: dict[int, Vectors] = {}
        mlm, decoder_loss, correct = torch.zeros(3, dtype=torch.float64, device=self.work.device).unbind()
        for number in reversed(own):  # kept graphs come first, so that they are freed
            terms: list[torch.Tensor] = []
            encoded: Encoded | None = None
            if leaves is not None:
                encoded = graphs.pop(number) if number in graph_cuts else self.encode(number, self.one_pass)
                terms.append(self.through(number, encoded, leaves))
                if params.masked and not self.one_pass:  # finish the clean pass, and free its memory for the masked one
                    self.leave(terms.pop())
                    encoded = None
            if params.masked:
                encoded = encoded or self.encode(number, True)
                share, cut_correct = self.predict(number, encoded[0])
                terms.append(params.mlm_weight * share)
                mlm, correct = mlm + share.detach(), correct + cut_correct
                if params.objective == "retromae":
                    terms.append(self.decode(number, *encoded))
                    decoder_loss = decoder_loss + terms[-1].detach()
            if leaves is None and encoded is not None:
                parts[number] = self.vectors(number, *encoded).detached()
            self.leave(torch.stack(terms).sum())
        if self.work.gang is not None:
            mlm, decoder_loss, correct = self.work.gang.sum_figures({"mlm": mlm, "decoder": decoder_loss, "correct": correct}).values()
        if params.masked:
            metrics |= {"mlm_loss": mlm, "token_accuracy": correct / max(1, self.masked_count)}
        if params.objective == "retromae":
            metrics |= {"decoder_loss": decoder_loss}
        contrasted = metrics["contrastive_loss"].double() if params.contrastive else 0.0
        loss = params.contrastive_weight * contrasted + params.mlm_weight * mlm + decoder_loss
        with torch.no_grad():
            vectors = self.gathered(parts) if leaves is None else leaves.detached()
            return {"loss": loss, **metrics, **geometry_metrics(vectors, params)}


def make_step(module: Pretrainer, chunks: Chunks, rows: Ints, vocabulary: Vocabulary, params: Pretrain, work: Work) -> Steps[Batch]:
    """Make the steps of a pre-training, which leave their gradients in the module."""
    budget = params.batch_tokens or best_training_tokens([module.encoder], work.device, work.dtype, work.gang)
    unpadded = Unpadded.of(module.encoder, work.device, work.dtype)

    def backward(step: int, batch: Batch) -> Figures:
        if unpadded is not None:
            unpadded.refresh()
        return Step(module, batch, params, work, (params.seed, CHUNK_DROPOUT, step), budget, unpadded).backward()

    return Steps(partial(draw_batch, chunks, rows, vocabulary, params), backward)
