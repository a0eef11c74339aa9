"""One optimizer step of a round: batch, vectors, scores, masks, loss."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from tasks.core.errors import UserError
from tasks.core.machine.devices import to_tensor
from tasks.core.models.bi_encoder import Towers
from tasks.core.stage.draws import DROPOUT, PASSAGES, draw_seed
from tasks.core.stage.references import named_code, without_digests
from tasks.core.tokens.folder import Tokens
from tasks.core.training.compute import Compute
from tasks.core.training.figures import Figures
from tasks.core.training.gradient_cache import Side, cached_backward
from tasks.core.training.loop import Steps
from tasks.core.training.unpadded import best_training_tokens, unpadded_towers
from tasks.train.batches import Batch, TrainingSet, draw_batch
from tasks.train.losses import Weights, hardest_negatives, hinge, kl, margin_mse, nll, ranknet, star
from tasks.train.params import Round

Rows = npt.NDArray[np.int64]  # [U, P]: the rows of each document of a batch, -1 where it has fewer


def best_passage(scores_BR: torch.Tensor, present_UP: torch.Tensor) -> torch.Tensor:
    """Document scores [B, U] from passage scores [B, R], each by its best passage: MaxP, ANCE (arXiv:2007.00808), section 5.

    `present_UP` says which passages a document has. Its true entries, in order, are the R passages.
    """
    if present_UP.shape[1] == 1:
        return scores_BR
    row_UP = (present_UP.flatten().cumsum(0) - 1).clamp(min=0).view_as(present_UP)
    return scores_BR[:, row_UP].masked_fill(~present_UP, -torch.inf).amax(2)


def every_nth(rows_UP: npt.NDArray[np.int64], step: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Every `step`-th row of each document, from a random first one: [U, ceil(P / step)], -1 where a document has fewer.

    Each document keeps at least one row.
    """
    counts_U1 = (rows_UP >= 0).sum(1, keepdims=True)
    places_UN = rng.integers(np.minimum(step, counts_U1)) + np.arange(0, rows_UP.shape[1], step)
    chosen_UN = np.take_along_axis(rows_UP, np.minimum(places_UN, rows_UP.shape[1] - 1), axis=1)
    return np.where(places_UN < counts_U1, chosen_UN, -1)


def batch_loss(scores_BU: torch.Tensor, batch: Batch, params: Round) -> tuple[torch.Tensor, Figures]:
    """The round's loss for one batch, and its accuracy: the fraction of queries whose positive scores above all negatives.

    UserError if a loss named in params.yaml returns a constant, or no tensor of no dimensions.
    """
    device = scores_BU.device
    scores_BS = scores_BU[:, to_tensor(batch.slots, device)] / params.temperature
    own_BS = to_tensor(batch.own, device)
    negative_BS = ~to_tensor(batch.positive, device)
    if not params.in_batch:
        negative_BS = negative_BS & own_BS
    if params.hardest:
        negative_BS = hardest_negatives(scores_BS, negative_BS)
    weight_B = None if batch.weights is None else to_tensor(batch.weights, device)
    if params.distilled:
        own_BH = to_tensor(own_slots(batch.own), device)
        loss = distillation(scores_BS, negative_BS, own_BH, to_tensor(batch.scores, device), params, weight_B)
    elif custom_loss := named_code(params.loss):
        loss = checked_loss(custom_loss(scores_BS, negative_BS, own_BS, weight_B), without_digests(params.loss))
    elif params.loss == "nll":
        loss = nll(scores_BS, negative_BS, weight_B)
    elif params.loss == "hinge":
        loss = hinge(scores_BS, negative_BS, params.margin, weight_B)
    elif params.alpha is None:
        loss = ranknet(scores_BS, negative_BS, weight_B)
    else:
        loss = star(scores_BS, negative_BS, own_BS, params.alpha, weight_B)
    if scores_BS.requires_grad and loss.grad_fn is None:
        raise UserError(
            f"{without_digests(params.loss)}: returned a constant, expected a loss that depends on the scores; where no pair counts, "
            "return 0 times their sum, as mean_over does"
        )
    with torch.no_grad():
        best_B = scores_BS.masked_fill(~negative_BS, -torch.inf).max(1).values
        accuracy = (scores_BS.diagonal() > best_B).float().mean()
    return loss, {"accuracy": accuracy}


def checked_loss(loss: object, name: str) -> torch.Tensor:
    """Check the value that a loss named in params.yaml returned: UserError if it is not a tensor of no dimensions."""
    if not isinstance(loss, torch.Tensor) or loss.dim():
        found = f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise UserError(f"{name}: returned {found}, expected a tensor of no dimensions; take the mean over queries")
    return loss


def own_slots(own_BS: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The slots of each query's own hard negatives, in order, [B, H]. Every query has the same number."""
    slots: npt.NDArray[np.int64] = own_BS.nonzero()[1].reshape(len(own_BS), -1)
    return slots


def distillation(
    scores_BS: torch.Tensor,
    negative_BS: torch.Tensor,
    own_BH: torch.Tensor,
    teacher_BG: torch.Tensor,
    params: Round,
    weight_B: Weights = None,
) -> torch.Tensor:
    """Distillation loss over each query's own group, plus nll_weight times the nll. Documents without a teacher's score are excluded.

    `own_BH`: the slots of each query's own hard negatives, in order.
    """
    rows_B1 = torch.arange(len(own_BH), device=own_BH.device).unsqueeze(1)
    group_BG = torch.cat([scores_BS.diagonal().unsqueeze(1), scores_BS[rows_B1, own_BH]], dim=1)
    allowed_BG = F.pad(negative_BS[rows_B1, own_BH], (1, 0), value=True)
    valid_BG = allowed_BG & torch.isfinite(teacher_BG)
    teacher_BG = teacher_BG.nan_to_num() / params.teacher_temperature
    if custom_loss := named_code(params.loss):
        loss = checked_loss(custom_loss(group_BG, teacher_BG, valid_BG, weight_B), without_digests(params.loss))
    else:
        loss = (margin_mse if params.loss == "margin_mse" else kl)(group_BG, teacher_BG, valid_BG, weight_B)
    return loss + params.nll_weight * nll(scores_BS, negative_BS, weight_B) if params.nll_weight else loss


def make_step(
    towers: Towers,
    queries: Tokens,
    documents: Tokens,
    data: TrainingSet,
    params: Round,
    compute: Compute,
    behind: int = 0,
    guide: Callable[[Batch], Batch] | None = None,
) -> Steps[tuple[Batch, Rows]]:
    """Make the steps of a round, which leave their gradients in the towers. `behind`: steps of earlier rounds that come before.

    `guide` removes likely positives from a batch's negatives (tasks.train.guide).
    """
    encoders = [towers.query, towers.document]
    unpadded = unpadded_towers(encoders, compute.device, compute.dtype)
    batch_tokens = params.batch_tokens or best_training_tokens(encoders, compute.device, compute.dtype, compute.gang)

    def draw(step: int) -> tuple[Batch, Rows]:
        batch = draw_batch(data, params, behind + step)
        rows_UP = documents.rows_of(batch.documents)
        if params.passage_step > 1:
            rows_UP = every_nth(rows_UP, params.passage_step, np.random.default_rng(draw_seed(params.seed, PASSAGES, behind + step)))
        return batch, rows_UP

    def backward(step: int, drawn: tuple[Batch, Rows]) -> Figures:
        batch, rows_UP = drawn
        masked = guide(batch) if guide else batch
        present_UP = rows_UP >= 0
        sides = [Side(towers.query, queries, batch.queries), Side(towers.document, documents, rows_UP[present_UP])]

        def loss(queries_BD: torch.Tensor, documents_RD: torch.Tensor) -> tuple[torch.Tensor, Figures]:
            return batch_loss(best_passage(queries_BD @ documents_RD.T, to_tensor(present_UP, compute.device)), masked, params)

        return cached_backward(sides, loss, batch_tokens, compute, (params.seed, DROPOUT, behind + step), unpadded)

    return Steps(draw, backward)
