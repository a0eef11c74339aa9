"""Negatives are searched where known positives can be scored alike."""

from typing import Any

import pytest

from flows.parameters.checks import check
from tasks.core.errors import UserError


def test_an_index_with_fast_scan_is_refused_for_negatives(full_params: dict[str, Any]) -> None:
    full_params["index"] = {"factory": "IVF64,PQ16x4fs"}
    check(full_params)  # mine.warmup searches embeddings
    full_params["mine"]["warmup"] = {"search": "indexes", "depth": 200}
    with pytest.raises(UserError, match=r"mine\.warmup\.search: found indexes, and index\.factory IVF64,PQ16x4fs, .* such as IVF4096,PQ64"):
        check(full_params)
    for factory in ("IVF64,PQ16x4", "Flat"):
        check(full_params | {"index": {"factory": factory}})
