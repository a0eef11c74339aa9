"""The distance between two versions of an artifact's file, since other hardware gives other bits. 0 means equal.

Vectors and weights: the norm of their difference over the norm of the first. Figures (JSON): their largest absolute difference. Figures by
query: their mean absolute difference, of the measure where it is largest. Runs and tables of ranked documents: the share of documents in
either one's first TOP that are not in both.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.core.errors import UserError
from tasks.core.trec.runs import read_run

TOP = 10
UNLIKE = math.inf  # the distance if shapes, keys, or queries differ


def distance(name: str, old: Path, new: Path) -> float | None:
    """The distance of two files of this name; None for files that are not measured (pages, texts, indexes)."""
    measure = {".npy": _arrays, ".safetensors": _weights, ".json": _figures, ".trec": _runs, ".parquet": _tables}.get(Path(name).suffix)
    try:
        return None if measure is None else measure(old, new)
    except (OSError, ValueError, KeyError, UserError):
        return UNLIKE


def _arrays(old: Path, new: Path) -> float:
    return _relative_difference(*(np.load(path.open("rb"), allow_pickle=False) for path in (old, new)))


def _weights(old: Path, new: Path) -> float:
    one, other = _tensors(old), _tensors(new)
    if one.keys() != other.keys():
        return UNLIKE
    return max((_relative_difference(one[name], other[name]) for name in one), default=0.0)


def _tensors(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file as numpy arrays; bfloat16, which numpy lacks, becomes float32."""
    import torch
    from safetensors.torch import load_file

    return {name: (one.float() if one.dtype == torch.bfloat16 else one).numpy() for name, one in load_file(path).items()}


def _relative_difference(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return UNLIKE
    norm, difference = (
        float(np.linalg.norm(one.astype(np.float64))),
        float(np.linalg.norm(one.astype(np.float64) - other.astype(np.float64))),
    )
    if not np.isfinite(difference):  # NaN is close to nothing, and max() would ignore it
        return UNLIKE
    return difference / norm if norm else (0.0 if not difference else UNLIKE)


def _figures(old: Path, new: Path) -> float:
    one, other = (dict(_numbers_by_path(json.loads(path.read_text(encoding="utf-8")))) for path in (old, new))
    if one.keys() != other.keys():
        return UNLIKE
    return max((_differ(one[key], other[key]) for key in one), default=0.0)


def _differ(one: float, other: float) -> float:
    """The difference of two figures; 0 for equal infinities and for two NaN, which max() would ignore."""
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other)
    return 0.0 if one == other or (math.isnan(one) and math.isnan(other)) else UNLIKE


def _numbers_by_path(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every number with its path of keys; strings (such as digests of weights) are left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers_by_path(inner, (*place, str(key)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _numbers_by_path(inner, (*place, str(number)))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place, float(value)


def _runs(old: Path, new: Path) -> float:
    lists = ([(query, doc, 1) for query, docs in read_run(path, TOP) for doc in docs] for path in (old, new))
    return _swapped(*lists)


def _tables(old: Path, new: Path) -> float | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pq.read_schema(old)
    if schema.names[:1] == ["query"] and len(schema) > 1 and all(map(pa.types.is_floating, schema.types[1:])):
        return _figures_by_query(pq.read_table(old), pq.read_table(new))
    if not {"query", "doc", "rank"} <= set(schema.names):
        return None
    tables = [pq.read_table(path, columns=["query", "doc", "rank"]) for path in (old, new)]
    return _swapped(*(zip(*(table[name].to_pylist() for name in ("query", "doc", "rank")), strict=True) for table in tables))


def _figures_by_query(old: Any, new: Any) -> float:
    """Of two tables with a query in each row and its measures: see above; UNLIKE if queries or measures differ."""
    queries, new_queries = (table["query"].to_pylist() for table in (old, new))
    if old.column_names != new.column_names or sorted(queries) != sorted(new_queries):
        return UNLIKE
    differences = [0.0]
    for name in old.column_names[1:]:
        values = dict(zip(new_queries, new[name].to_numpy().tolist(), strict=True))
        pairs = zip(queries, old[name].to_numpy().tolist(), strict=True)
        differences.append(sum(_differ(value, values[query]) for query, value in pairs) / max(1, len(queries)))
    return max(differences)


def _swapped(old: Any, new: Any) -> float:
    """The share of documents in either list's first TOP that are not in both, averaged over queries; UNLIKE if queries differ."""
    first, second = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for lists, rows in ((first, old), (second, new)):
        for query, doc, rank in rows:
            if rank <= TOP:
                lists[query].add(doc)
    if first.keys() != second.keys():
        return UNLIKE
    shares = [len(first[query] ^ second[query]) / max(1, len(first[query] | second[query])) for query in first]
    return sum(shares) / len(shares) if shares else 0.0
