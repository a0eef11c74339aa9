"""Choose the queries of a later training: all that are new to its initial weights, and a random share of those that they know.

A file that comes with the weights lists the known ones (tasks.core.training.companions). A share of them is trained on again, because
training on new data alone forgets the old (experience replay: Rolnick et al., arXiv:1811.11682).
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.stage.draws import REPLAYED, draw_seed
from tasks.core.tables.ids import Ints, ordinals
from tasks.core.training.companions import KNOWN


def replayed(queries: Ints, known: Ints, *, share: float, seed: int) -> Ints:
    """All of `queries` [N] that are not in `known` [K], and a `share` of those that are, in the order of `queries`, [M].

    The share is rounded to whole queries. Its queries come first in one permutation by `seed`, so a smaller share is a subset of a larger.
    """
    old = np.intersect1d(queries, known)
    drawn = np.random.default_rng(draw_seed(seed, REPLAYED)).permutation(old)[: round(share * len(old))]
    return queries[~np.isin(queries, old) | np.isin(queries, drawn)]


def known_queries(state: Path | None, ids: Path) -> Ints | None:
    """The ordinals of the known queries that the folder `state` lists (-1: no longer asked); None if nothing says which are known."""
    if state is None or not (state / KNOWN).exists():
        return None
    return ordinals(pa.chunked_array([pa.array(read_json(state / KNOWN), pa.string())]), ids)


def replayed_from(state: Path | None, queries: Ints, ids: Path, *, share: float, seed: int, key: str) -> tuple[Ints, str]:
    """`replayed`, with the known queries that the folder `state` lists, and a line that says how many were taken (empty if `share` is 1).

    `ids`: Parquet file with the id of each query. UserError, naming `key` (a round, or an entry of adore), if nothing says which queries
    are known, or if no query is left.
    """
    if share == 1:
        return queries, ""
    listed = known_queries(state, ids)
    if listed is None:
        raise UserError(
            f"params.yaml: {key}.replay: found {share:g}, but its first weights do not say which queries they know; expected an encoder "
            f"with {KNOWN}, as retemper retrain makes it, or replay: 1"
        )
    known = np.intersect1d(queries, listed)
    selected = replayed(queries, known, share=share, seed=seed)
    if not len(selected):
        raise UserError(f"params.yaml: {key}.replay: found {share:g}, and no training query is new, so none is left; raise it")
    new = len(queries) - len(known)
    return selected, f"{new:,} new queries, and {len(selected) - new:,} of {len(known):,} known ones (replay {share:g})"
