"""`retemper evaluate` with its real stages: a model is measured as it is, whatever the project says of its own models."""

import json
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from flows import zero_shot


def evaluated(small: Any, prefixes: Mapping[str, str | None]) -> Any:
    """What `retemper evaluate --model data/encoders/warmup --data beir:beir` measures, in this process."""
    beside = small.folder / "beside"
    for module, *arguments in zero_shot.commands("m", "data/encoders/warmup", "beir:beir", beside, prefixes):
        done = small.call(import_module(f"{module}.__main__").main, [module, *arguments])
        assert done.status == 0, (module, done)
    return json.loads((beside / "metrics.json").read_text())


def test_a_model_is_evaluated_in_its_own_shape_with_its_own_prompts(small: Any) -> None:
    own = json.loads((small.folder / "data/metrics/warmup.json").read_text())
    small.set("base", {"pooling": "cls", "head": "linear_norm", "similarity": "cosine", "seed": 1})
    small.set("tokenize.query_prefix", "another model's: ")
    assert evaluated(small, {"query": None, "document": None}) == own
    assert evaluated(small, {"query": "a chancellor of West Germany ", "document": None}) != own


def test_how_texts_were_put_is_told(small: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(small.folder)
    told = zero_shot._texts(Path("data"))
    assert re.fullmatch(r"queries of at most \d+ tokens, prefix ''; documents of at most 24 tokens, prefix ''; titles off", told)
