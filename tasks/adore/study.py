"""Train-index x serve-index: how well a query tower trained over one index works when another is served.

LTRe (arXiv:2010.10469), Tables 3 and 4; ADORE (arXiv:2104.08051), Tables 3 and 5. The first row is the round's own query
tower, without training.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tasks.adore.documents import Documents, Exact
from tasks.adore.params import Study
from tasks.adore.work import FLAT, Setting, built_index, compressed_documents, train_tower
from tasks.core.encoding.encode import Vectors, encode
from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.machine.devices import best_batch_tokens
from tasks.core.metrics.measures import Qrels, means, parse, per_query
from tasks.core.metrics.qrels import load_qrels
from tasks.core.metrics.selection import least_grade
from tasks.core.models.bi_encoder import Encoder
from tasks.core.params.sections import read_parameters
from tasks.core.retrieval.ann.build import recall
from tasks.core.retrieval.ann.search import ShortLists, open_index, search_index
from tasks.core.retrieval.passages import best_passages
from tasks.core.retrieval.ranked import ranked_tables
from tasks.core.statistics.judged import parts
from tasks.core.tokens.folder import Tokens, open_tokens

UNTRAINED = "none"


class Recipe:
    """One factory of a study, in the form that tasks.core.retrieval.ann.build expects."""

    def __init__(self, factory: str, params: Study) -> None:
        self.factory, self.seed = factory, params.seed
        self.nprobe, self.ef_search, self.k_factor, self.train_size = params.nprobe, params.ef_search, params.k_factor, params.train_size


def run_study(setting: Setting, params: Study, scratch: Path, out: Path, queries: Path, qrels: Path, name: str) -> dict[str, Any]:
    """Run the study and return the content of table.json. Training curves go to `out`, indexes and checkpoints to `scratch`."""
    splits = {split: open_tokens(queries / split) for split in params.splits}
    sections = read_parameters()
    min_grades = {split: least_grade(split, sections) for split in splits}
    measures = {split: parse(params.measures, grade) for split, grade in min_grades.items()}
    judged: dict[str, Qrels] = {}
    for split, grade in min_grades.items():
        judgments = load_qrels(qrels / f"{split}.parquet", split, grade)
        judged[split] = {query: judgments[query] for query in parts(split, judgments)[split]}
        if not judged[split]:
            raise UserError(f"params.yaml: study.{name}.splits: {qrels / split}.parquet has no relevant document; name another split")
    paths = {factory: scratch / f"{number}.faiss" for number, factory in enumerate(params.factories)}
    key = f"study.{name}.factories"
    for factory, path in paths.items():  # all at first, so that a mistake in any is reported before the first training
        built_index(setting.embeddings, Recipe(factory, params), path, key)
    towers = {UNTRAINED: setting.towers.query.to(setting.device).eval()}
    exact = Exact(setting.embeddings, setting.device, scratch)
    for number, (factory, path) in enumerate(paths.items()):
        documents: Documents = (
            exact
            if factory == FLAT
            else compressed_documents(open_index(path, threads=torch.get_num_threads()), lambda: exact, params, key, setting.device)
        )
        folder, curves = scratch / str(number), out / f"curves_{number}"
        folder.mkdir(exist_ok=True)
        curves.mkdir()
        towers[factory], _ = train_tower(setting, params, documents, folder, curves, f"study {name}, over {factory}")
        write_json(curves / "factory.json", {"factory": factory})
    vectors = {
        split: {trained: _encode(tower, tokens, params, setting.device) for trained, tower in towers.items()}
        for split, tokens in splits.items()
    }
    cells = []
    indexes = []
    for factory, path in paths.items():
        index = open_index(path, threads=torch.get_num_threads())
        index_figures = {"factory": factory, "bytes": path.stat().st_size, "bytes_per_vector": round(path.stat().st_size / index.ntotal, 1)}
        short = ShortLists(min(params.serve_depth, len(setting.embeddings.ids())))
        for split, tokens in splits.items():
            untrained_vectors = vectors[split][UNTRAINED]
            k = min(params.serve_depth, index.ntotal)
            index_figures[f"recall@{k} {split}"] = round(_recall(index, exact, untrained_vectors, k), 6)
            for trained, encoded in vectors[split].items():
                run = _run(index, encoded, tokens, setting, params.serve_depth)
                short.count(np.array([len(run.get(query, [])) for query in tokens.ids().to_pylist()]))
                values = per_query(measures[split], judged[split], run)
                figures = {measure: round(value, 6) for measure, value in means(params.measures, values).items()}
                cells.append({"split": split, "trained": trained, "served": factory} | figures)
        indexes.append(index_figures)
        short.warn(f"study {name}, served by {factory}", index, f"study.{name}.")
    return {"round": params.round, "measures": list(params.measures), "indexes": indexes, "cells": cells}


def study_markdown(table: Mapping[str, Any]) -> str:
    """Markdown: the indexes, then one table per split and measure, trained (rows) x served (columns), with each column's best in bold."""
    indexes, cells = table["indexes"], table["cells"]
    blocks = [_grid(list(indexes[0]), [[str(value) for value in index.values()] for index in indexes])]
    served = [index["factory"] for index in indexes]
    for split in dict.fromkeys(cell["split"] for cell in cells):
        split_cells = {(cell["trained"], cell["served"]): cell for cell in cells if cell["split"] == split}
        for measure in table["measures"]:
            best = {column: max(cell[measure] for (_, s), cell in split_cells.items() if s == column) for column in served}
            rows = [
                [trained, *(_marked(split_cells[trained, column][measure], best[column]) for column in served)]
                for trained in dict.fromkeys(trained for trained, _ in split_cells)
            ]
            blocks.append(f"{measure} on {split}, trained over (rows) x served (columns)\n\n" + _grid(["", *served], rows))
    return "\n\n".join(blocks) + "\n"


def _marked(value: float, best: float) -> str:
    return f"**{value:.4f}**" if value == best else f"{value:.4f}"


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def _encode(tower: Encoder, tokens: Tokens, params: Study, device: torch.device) -> Vectors:
    return encode(tower, tokens, np.arange(len(tokens)), params.batch_tokens or best_batch_tokens(device, tower.transformer.dtype), device)


def _recall(index: Any, exact: Exact, queries_QD: Vectors, k: int) -> float:
    """Recall@k of the index against exact search over the vectors, for the same queries."""
    exact_rows = exact.search(queries_QD, k)[1]
    return recall(queries_QD, search_index(index, queries_QD, k)[1], exact_rows, k, exact.embeddings.take)


def _run(index: Any, queries_QD: Vectors, tokens: Tokens, setting: Setting, depth: int) -> dict[str, list[str]]:
    """The documents of every query, best first."""
    owners: npt.NDArray[np.int32] = setting.embeddings.owners()
    scores, rows = best_passages(partial(search_index, index), queries_QD, owners, depth)
    run: dict[str, list[str]] = {}
    for table in ranked_tables(scores, rows, tokens.ids(), setting.embeddings.ids(), owners, depth):
        for query, doc in zip(table["query"].to_pylist(), table["doc"].to_pylist(), strict=True):
            run.setdefault(query, []).append(doc)
    return run
