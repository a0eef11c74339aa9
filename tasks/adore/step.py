"""One step of a query-side training: encode queries with dropout, retrieve documents, complete the lists, compute the loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from tasks.adore.data import Data, batch_of, steps_of
from tasks.adore.documents import Documents, search_documents
from tasks.adore.lists import BestRows, Lists, best_documents, complete_lists, overlap, search_metrics, unranked_lists
from tasks.adore.losses import ideal_dcg, pairwise, rank_gains
from tasks.adore.params import Adore, QuerySide
from tasks.adore.refreshed import Refreshed
from tasks.core.encoding.encode import encode
from tasks.core.machine.devices import best_batch_tokens
from tasks.core.models.bi_encoder import Encoder
from tasks.core.retrieval.passages import best_passages, rows_needed
from tasks.core.retrieval.ranked import QUERY_BLOCK, Floats
from tasks.core.stage.draws import DROPOUT, SAMPLING, draw_seed
from tasks.core.stage.progress import Progress
from tasks.core.tables.ids import Ints, concat_ranges
from tasks.core.tokens.folder import Tokens
from tasks.core.training.compute import Compute
from tasks.core.training.figures import Figures, Metrics
from tasks.core.training.gradient_cache import Side, cached_backward
from tasks.core.training.loop import Steps
from tasks.core.training.unpadded import best_training_tokens, unpadded_towers

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

ROWS = 2**16  # vectors held at a time


@dataclass(frozen=True)
class Drawn:
    """A step's queries [B]; for each its positives, the `known` documents that are not negatives, and `labels`, the grades of those."""

    queries: Ints
    positives: list[Ints]
    known: list[Ints]
    labels: list[Floats]
    grades: Ints  # [B, K] of the positives, 0 where there are fewer


@dataclass(frozen=True)
class Corpus:
    """The document side: how it is searched and scored, and the document that owns each row (owners are sorted)."""

    documents: Documents
    owners: npt.NDArray[np.int32]  # [R]
    place: Ints  # [O] of each document in the order of ids
    depth: int  # documents in a list
    rows: int  # to retrieve, so that they always hold `depth` documents
    gang: "Gang | None" = None
    on_search: Callable[[Ints], object] = lambda _: None  # called after a search, with the number of documents found for each query

    def top_rows(self, queries_BD: torch.Tensor) -> Ints:
        """Rows of the best documents, [B, depth]."""
        scores, rows = best_passages(
            partial(search_documents, self.documents, gang=self.gang), queries_BD, self.owners, self.depth, self.rows
        )
        best = best_documents(scores, rows, self.owners, self.place, self.depth)
        self.on_search((best >= 0).sum(axis=1))
        return best

    def best_rows(self, queries_BD: torch.Tensor) -> BestRows:
        """Make the function that finds the best passage (MaxP) of documents that were not retrieved."""

        def best(documents: Sequence[Ints]) -> list[Ints]:
            sizes_B = np.array([*map(len, documents)])
            ordinals = np.concatenate(documents).astype(self.owners.dtype)  # otherwise numpy makes a wider copy of the whole array
            first = np.searchsorted(self.owners, ordinals, "left").astype(np.int64)
            count = np.searchsorted(self.owners, ordinals, "right") - first
            ends = np.cumsum(sizes_B)[:-1]
            if count.max(initial=1) == 1:
                return np.split(first, ends)
            starts = np.cumsum(count) - count  # of each document's passages, among all passages
            query_R = np.repeat(np.repeat(np.arange(len(sizes_B)), sizes_B), count)
            rows_R = np.repeat(first, count) + concat_ranges(0, count)
            scores_R = self._scores(queries_BD.detach(), query_R, rows_R)
            order_R = np.lexsort((-scores_R, np.repeat(np.arange(len(count)), count)))  # by document, then best first
            return np.split(rows_R[order_R[starts]], ends)

        return best

    def _scores(self, queries_BD: torch.Tensor, query_R: Ints, rows_R: Ints) -> Floats:
        """The score of each row for its query, [R]. Both are sorted by query."""
        lengths_B = np.bincount(query_R, minlength=len(queries_BD))
        rows_BL = np.full((len(queries_BD), int(lengths_B.max())), -1, dtype=np.int64)
        place_R = concat_ranges(0, lengths_B)
        rows_BL[query_R, place_R] = rows_R
        step = max(1, ROWS // rows_BL.shape[1])
        with torch.no_grad():
            parts = [self.documents.scores(queries_BD[q : q + step], rows_BL[q : q + step]) for q in range(0, len(rows_BL), step)]
        scores_R: Floats = torch.cat(parts).cpu().numpy()[query_R, place_R]
        return scores_R


def make_corpus(documents: Documents, owners: npt.NDArray[np.int32], place: Ints, depth: int, gang: "Gang | None" = None) -> Corpus:
    """A corpus whose lists have `depth` documents, or all if there are fewer. The lists are the same on all ranks of a `gang`."""
    depth = min(depth, len(place))
    return Corpus(documents, owners, place, depth, rows_needed(depth, owners), gang)


def list_loss(queries_BD: torch.Tensor, lists: Lists, corpus: Corpus, grades_BK: Ints, params: QuerySide) -> torch.Tensor:
    """The loss of one batch of lists. `grades_BK`: the grades of known positives (0: padding), for the ideal DCG."""
    scores_BL = corpus.documents.scores(queries_BD, lists.rows) / params.temperature
    grades_BL, valid_BL = torch.from_numpy(lists.grades), torch.from_numpy(lists.valid)
    if params.loss == "ranknet":
        return pairwise(scores_BL, grades_BL, valid_BL)
    cut = params.depth if params.cut is None else params.cut
    gains_L = rank_gains(scores_BL.shape[1], params.metric, cut)
    ideal_B = ideal_dcg(torch.from_numpy(grades_BK), cut) if params.metric == "ndcg" else None
    return pairwise(scores_BL, grades_BL, valid_BL, gains_L, ideal_B)


class Unretrieved:
    """Documents to train against if `lists` is not `retrieved`: from an earlier search, random, or given."""

    def __init__(
        self, tower: Encoder, queries: Tokens, data: Data, corpus: Corpus, params: QuerySide, scratch: Path, compute: Compute
    ) -> None:
        self.tower, self.queries, self.data, self.corpus, self.params, self.device = tower, queries, data, corpus, params, compute.device
        self.kind = params.lists if isinstance(params, Adore) else "retrieved"
        self.batch_tokens = params.batch_tokens or best_batch_tokens(compute.device, tower.transformer.dtype, gradients=True)
        refresh = params.refresh if isinstance(params, Adore) and params.refresh else 1
        self.refreshed = Refreshed(scratch, refresh, self._retrieve, compute.gang) if self.kind == "refreshed" else None

    def of(self, step: int, batch: Ints) -> list[Ints]:
        """Documents for each query of `batch` at step `step`. Empty if `lists` is `retrieved`."""
        if self.kind == "retrieved":
            return []
        if self.refreshed is not None:
            return [documents[documents >= 0] for documents in self.refreshed.of(step, len(batch))]
        if self.kind == "random":
            rng = np.random.default_rng(draw_seed(self.params.seed, SAMPLING, step))
            return list(rng.integers(self.data.documents, size=(len(batch), self.corpus.depth)))
        assert self.data.negatives is not None, "given negatives were not read"
        return [self.data.negatives.of(query) for query in batch.tolist()]

    def _retrieve(self, first: int, end: int) -> npt.NDArray[np.int32]:
        """Search for the queries of steps first..end-1, with the current tower and without dropout: documents [queries, depth]."""
        last = min(end, steps_of(self.data, self.params))
        rows = np.concatenate([batch_of(self.data, self.params, step) for step in range(first, last)])
        rows, places = np.unique(rows, return_inverse=True)  # a query may come in several epochs
        order = np.argsort(places, kind="stable")
        documents = np.empty((len(places), self.corpus.depth), dtype=np.int32)
        self.tower.eval()
        progress = Progress("retrieve lists", len(rows), "queries")
        for start in range(0, len(rows), QUERY_BLOCK):
            vectors = encode(self.tower, self.queries, rows[start : start + QUERY_BLOCK], self.batch_tokens, self.device)
            rows_BK = self.corpus.top_rows(torch.from_numpy(vectors))
            first_place, end_place = np.searchsorted(places, [start, start + QUERY_BLOCK], sorter=order)
            positions = order[first_place:end_place]
            documents[positions] = np.where(rows_BK < 0, -1, self.corpus.owners[np.maximum(rows_BK, 0)])[places[positions] - start]
            progress.advance(len(vectors))
        progress.close()
        self.tower.train()
        return documents


def draw(data: Data, params: QuerySide, step: int) -> Drawn:
    """The queries of step `step`, with their positives and grades."""
    batch = batch_of(data, params, step)
    positives, known = ([lists.of(query) for query in batch.tolist()] for lists in (data.positives, data.known))
    labels = [data.known.scores_of(query) for query in batch.tolist()]
    width = max(map(len, positives))
    grades_BK = np.stack([np.pad(data.positives.scores_of(query), (0, width))[:width] for query in batch.tolist()]).astype(np.int64)
    return Drawn(batch, positives, known, labels, grades_BK)


def make_step(
    tower: Encoder,
    queries: Tokens,
    data: Data,
    corpus: Corpus,
    params: QuerySide,
    plotted: Callable[[int], bool],
    scratch: Path,
    compute: Compute,
) -> Steps[Drawn]:
    """Make the steps of a training, which leave their gradients in the tower (and in the centroids, if they are trained).

    `plotted` says at which steps metrics are kept. There, a search is measured, and the lists are compared with it; if lists are not
    retrieved, this takes an extra full search.
    """
    unpadded = unpadded_towers([tower], compute.device, compute.dtype)
    batch_tokens = params.batch_tokens or best_training_tokens([tower], compute.device, compute.dtype, compute.gang)
    unretrieved = Unretrieved(tower, queries, data, corpus, params, scratch, compute)

    def backward(step: int, drawn: Drawn) -> Figures:
        candidates = unretrieved.of(step, drawn.queries)  # by the current tower

        def loss(queries_BD: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
            best_rows = corpus.best_rows(queries_BD)
            found_BN = corpus.top_rows(queries_BD) if unretrieved.kind == "retrieved" or plotted(step) else None
            if unretrieved.kind == "retrieved":
                assert found_BN is not None
                rng = np.random.default_rng(draw_seed(params.seed, SAMPLING, step))
                known, handling = drawn.known, params.handling
                lists = complete_lists(found_BN, corpus.owners, drawn.positives, known, best_rows, handling, rng, drawn.labels)
            else:
                lists = unranked_lists(drawn.positives, drawn.known, candidates, best_rows, drawn.labels)
            metrics: Metrics = {}
            if found_BN is not None and plotted(step):
                metrics = search_metrics(found_BN, corpus.owners, drawn.positives) | {
                    "overlap": overlap(lists, found_BN, corpus.owners, drawn.known)
                }
            return list_loss(queries_BD, lists, corpus, drawn.grades, params), metrics

        return cached_backward([Side(tower, queries, drawn.queries)], loss, batch_tokens, compute, (params.seed, DROPOUT, step), unpadded)

    return Steps(partial(draw, data, params), backward)
