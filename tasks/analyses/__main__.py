"""Analyse a trained round: overlaps, pairwise errors, alignment and uniformity, curves of scores, gradients, and t-SNE maps."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from tasks.analyses.geometry import alignment, best_rows, flat_map, mean_vector, rows_at, uniformity
from tasks.analyses.gradients import draw_batches, gradient_norms
from tasks.analyses.overlap import overlap
from tasks.analyses.pairwise import errors_of, summary
from tasks.analyses.params import Analysis
from tasks.core.encoding.encode import encode
from tasks.core.errors import UserError
from tasks.core.files import new_folder, write_json
from tasks.core.machine.devices import best_batch_tokens, choose_device, move_module
from tasks.core.metrics.selection import least_grade
from tasks.core.models.bi_encoder import Encoder, Towers, load_towers
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load, read_parameters
from tasks.core.plurals import counted
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.retrieval.passages import best_passages
from tasks.core.retrieval.queries import search_embeddings
from tasks.core.retrieval.ranked import Floats
from tasks.core.stage.draws import draw_seed
from tasks.core.stage.entry import parser, stage
from tasks.core.statistics.judged import parts
from tasks.core.tables.ids import Ints, StoredIds, ordinals
from tasks.core.tables.judgments import DocumentLists, graded_pairs, lists_of, ranked_lists
from tasks.core.tables.parquet import count_rows, read_table
from tasks.core.tables.schemas import MEASURED, QRELS
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.trec.runs import read_run, read_scored_run

MAPPED = 50  # documents in a map from BM25, and as many from the round
BM25, RANDOM, IN_BATCH = "bm25", "random", "in_batch"  # sources of negatives in addition to the named one
QUERIES, CURVES, GRADIENTS, MAPS, DOCUMENTS = range(1, 6)  # streams of draws


class Round:
    """The data that all analyses read: the round's towers and vectors, tokens, and relevant documents."""

    def __init__(self, args: Namespace) -> None:
        self.corpus, self.tokens = args.corpus, args.tokens
        self.documents = open_tokens(args.tokens / "documents")
        self.ids = self.documents.folder / "ids.parquet"
        self.embeddings = open_embeddings(args.embeddings)
        self.device = choose_device(read_runtime())
        towers = load_towers(args.encoder)
        query: Encoder = move_module(towers.query, self.device, torch.float32)
        self.towers = Towers(query, query if towers.shared else move_module(towers.document, self.device, torch.float32))

    def queries(self, split: str) -> Tokens:
        """The tokens of a split's queries."""
        return open_tokens(self.tokens / "queries" / split)

    def relevant(self, split: str) -> DocumentLists:
        """The relevant documents of each query of a split, as ordinals. Relevant is as in training, or in dev and test as in evaluation."""
        ids, least = self.queries(split).folder / "ids.parquet", least_grade(split, read_parameters()) if split in MEASURED else 1
        queries, documents, grades = graded_pairs(self.corpus / "qrels" / f"{split}.parquet", ids, self.ids)
        return lists_of(queries[grades >= least], documents[grades >= least], count_rows(ids))

    def analyzed(self, split: str) -> Ints:
        """The queries of a split with a relevant document; as in evaluation, those of a click log only if nobody judged others."""
        relevant = np.flatnonzero(self.relevant(split).counts)
        judged = read_table(self.corpus / "qrels" / f"{split}.parquet", QRELS)["query"].unique().to_pylist()
        measured = {*parts(split, judged)[split]}
        names = StoredIds(self.queries(split).folder / "ids.parquet").take(pa.array(relevant)).to_pylist()
        chosen: Ints = relevant[[name in measured for name in names]]
        return chosen

    def vectors(self, split: str, rows: Ints) -> Floats:
        """The vectors of the queries `rows` of a split, [Q, D]."""
        tower = self.towers.query
        return encode(tower, self.queries(split), rows, best_batch_tokens(self.device, tower.transformer.dtype), self.device)


def common_depth(sources: Mapping[str, DocumentLists], depth: int) -> int:
    """The depth at which all sources are compared: `depth`, or that of the shallowest source. An empty one does not count."""
    return min([depth, *(int(lists.counts.max()) for lists in sources.values() if lists.counts.any())])


def negatives_overlap(data: Round, sources: Mapping[str, DocumentLists], depth: int, *, params: Analysis) -> dict[str, float | None]:
    """The overlap of each source of negatives with those that the round itself finds, over a sample of the training queries.

    Of each, the top `depth` are compared. Queries for which the source has no negatives are left out.
    """
    relevant = data.relevant("train")
    sample = np.random.default_rng(draw_seed(params.seed, QUERIES)).permutation(np.flatnonzero(relevant.counts))[: params.train_queries]
    if not len(sample):
        return {}
    searched = min(depth + int(relevant.counts[sample].max(initial=0)), count_rows(data.ids))
    owners = data.embeddings.owners()

    def search(vectors: Floats, rows: int) -> tuple[Floats, Ints]:
        return search_embeddings(vectors, data.embeddings, rows, data.device)

    _, rows = best_passages(search, data.vectors("train", sample), owners, searched)
    own_negatives = {}
    for query, query_rows in zip(sample.tolist(), rows, strict=True):
        docs = dict.fromkeys(owners[query_rows[query_rows >= 0]].tolist())
        own_negatives[query] = [doc for doc in docs if doc not in relevant.of(query)][:depth]
    return {
        name: overlap(own_negatives, {query: docs for query in own_negatives if (docs := lists.of(query).tolist())}, depth)
        for name, lists in sources.items()
    }


def sources_of_gradients(data: Round, sources: Mapping[str, DocumentLists], params: Analysis) -> dict[str, dict[str, float]]:
    """Loss and gradient norms for each source of negatives: in-batch, random, and `sources`."""
    relevant, queries = data.relevant("train"), data.queries("train")
    positives = {int(query): relevant.of(int(query)) for query in np.flatnonzero(relevant.counts)}
    count = count_rows(data.ids)
    norms = {}
    for name in (IN_BATCH, RANDOM, *sources) if positives else ():
        lists = {query: sources[name].of(query) for query in positives} if name in sources else None
        drawn = draw_batches(
            positives,
            lists,
            count,
            batches=params.batches,
            size=params.batch_queries,
            in_batch=name == IN_BATCH,
            seed=draw_seed(params.seed, GRADIENTS),
        )
        if batches := list(drawn):
            norms[name] = gradient_norms(data.towers, queries, data.documents, batches, params.temperature)
    return norms


def curves(data: Round, run: Path, names: Sequence[str], vectors: Floats, params: Analysis) -> list[dict[str, Any]]:
    """For a sample of queries, the scores of the top documents minus the query's mean score over the corpus (ANCE, Fig. 3)."""
    means = vectors @ mean_vector(data.embeddings)
    mean_of = {
        names[place]: float(means[place])
        for place in np.random.default_rng(draw_seed(params.seed, CURVES)).permutation(len(names))[: params.curves]
    }
    lists = ((query, scores) for query, _, scores in read_scored_run(run, params.depth) if query in mean_of)
    return [{"query": query, "scores": [round(float(score) - mean_of[query], 5) for score in scores]} for query, scores in lists]


def maps(
    data: Round,
    lists: Mapping[str, Mapping[str, Sequence[str]]],
    names: Sequence[str],
    vectors: Floats,
    relevant: Sequence[Ints],
    params: Analysis,
) -> list[dict[str, Any]]:
    """For a sample of queries, a t-SNE map with the relevant documents and the top ones of BM25 and the round (ANCE and LTRe, Fig. 1)."""
    numbers = sorted(np.random.default_rng(draw_seed(params.seed, MAPS)).permutation(len(names))[: params.maps].tolist())
    docs_of = [doc for number in numbers for ranked in lists.values() for doc in ranked.get(names[number], ())[:MAPPED]]
    ids = dict(zip(docs_of, ordinals(pa.chunked_array([docs_of], pa.string()), data.ids).tolist(), strict=True))
    records = []
    for number in numbers:
        kinds: dict[int, str] = dict.fromkeys(relevant[number].tolist(), "relevant")
        for kind, ranked in lists.items():
            for doc in ranked.get(names[number], ())[:MAPPED]:
                kinds[ids[doc]] = {None: kind, "relevant": "relevant"}.get(kinds.get(ids[doc]), "both")
        docs = np.array(list(kinds), dtype=np.int64)
        query_vector = vectors[number : number + 1]
        document_vectors = best_rows(data.embeddings, np.repeat(query_vector, len(docs), axis=0), docs)
        points = flat_map(np.concatenate([query_vector, document_vectors]), params.seed)
        labels = [("query", names[number]), *zip(kinds.values(), StoredIds(data.ids).take(pa.array(docs)).to_pylist(), strict=True)]
        records.append(
            {
                "query": names[number],
                "points": [{"kind": kind, "id": name, "x": x, "y": y} for (kind, name), (x, y) in zip(labels, points, strict=True)],
            }
        )
    return records


def lines(name: str, figures: Mapping[str, Any], params: Analysis) -> Iterator[str]:
    """The figures, as lines for the terminal."""
    errors = figures["pairwise_errors"]
    yield f"{name}: {counted(figures['queries'], 'queries')} of {figures['split']}"
    yield f"overlap of the top {params.depth} with BM25's: {_share(figures['bm25_overlap'])}"
    for source, share in figures["negatives_overlap"].items():
        yield f"overlap of {source}'s top {figures['negatives_depth']} negatives with the round's own: {_share(share)}"
    yield f"pairwise errors per query: {errors['total']:.1f}, of which in the top {errors['depth']}: {errors['top']:.2f}"
    uniform = ", ".join(f"of {name} {value:.3f}" for name, value in figures["uniformity"].items())
    yield f"alignment {figures['alignment']:.4f} (0 is best), uniformity {uniform} (lower is more uniform)"
    for source, values in figures["gradients"].items():
        yield f"negatives from {source:<10} " + ", ".join(f"{part} {value:.4f}" for part, value in values.items())


def _share(value: float | None) -> str:
    return "no query in common" if value is None else f"{value:.3f}"


def main() -> None:
    command_line = parser(
        __doc__ or "",
        encoder="encoder folder of the round",
        embeddings="its document vectors",
        run="its run folder",
        bm25_run="BM25's run folder",
        bm25_negatives="BM25's negatives",
        negatives="folder of the negatives that are compared",
        tokens="token folder",
        corpus="corpus folder",
        out="folder to write: analysis.json",
    )
    command_line.add_argument("--name", required=True, help="the entry of params.yaml")
    args = command_line.parse_args()
    params, data = load(Analysis, f"analyses.{args.name}"), Round(args)
    queries = {split: data.analyzed(split) for split in MEASURED}
    split = max(MEASURED, key=lambda name: min(len(queries[name]), 2))  # the first with two, as uniformity needs a pair
    relevant, judged = data.relevant(split), queries[split]
    names = data.queries(split).ids().take(judged).to_pylist()
    measured = {*names}
    if min(len(judged), len(data.embeddings)) < 2:
        raise UserError(
            f"{args.corpus}: found {counted(len(judged), 'queries')} of {split} with a relevant document and "
            f"{counted(len(data.embeddings), 'documents')} in all, expected at least two of each, in dev or test, to analyze"
        )
    vectors = data.vectors(split, judged)
    documents = [relevant.of(int(query)) for query in judged]
    owner, document = np.repeat(np.arange(len(judged)), relevant.counts[judged]), np.concatenate(documents)
    lists = {BM25: args.bm25_run, params.round: args.run}
    ranked = {
        name: {query: docs for query, docs in read_run(run / f"{split}.trec", max(params.depth, MAPPED)) if query in measured}
        for name, run in lists.items()
    }
    sample = np.sort(np.random.default_rng(draw_seed(params.seed, DOCUMENTS)).permutation(len(data.embeddings))[: params.sample])
    best_vectors = best_rows(data.embeddings, vectors[owner], document)
    with new_folder(args.out) as out, TemporaryDirectory(dir=out) as scratch:
        tables = {BM25: args.bm25_negatives, params.negatives: args.negatives}
        ids = data.queries("train").folder / "ids.parquet"
        sources = {
            name: ranked_lists(path / "train.parquet", ids, data.ids, (1, params.depth), Path(scratch)) for name, path in tables.items()
        }
        negatives_depth = common_depth(sources, params.depth)
        figures = {
            "round": params.round,
            "split": split,
            "queries": len(judged),
            "depth": params.depth,
            "bm25_overlap": overlap(ranked[params.round], ranked[BM25], params.depth),
            "negatives_depth": negatives_depth,
            "negatives_overlap": negatives_overlap(data, sources, negatives_depth, params=params),
            "pairwise_errors": summary(errors_of(vectors, data.embeddings, owner, document), owner, params.depth),
            "alignment": alignment(vectors[owner], best_vectors),
            "uniformity": {"queries": uniformity(vectors[: params.sample]), "documents": uniformity(rows_at(data.embeddings, sample))},
            "curves": curves(data, args.run / f"{split}.trec", names, vectors, params),
            "gradients": sources_of_gradients(data, sources, params),
            "maps": maps(data, ranked, names, vectors, documents, params),
        }
        write_json(out / "analysis.json", figures)
    print("\n".join(lines(args.name, figures, params)))


if __name__ == "__main__":
    with stage():
        main()
