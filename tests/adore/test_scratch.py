"""What identifies an entry's unfinished work."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks.adore.__main__ import scratch_of
from tasks.adore.params import Adore
from tasks.core.params.sections import validate
from tasks.core.tokens.same_texts import SAME


def test_other_near_duplicates_are_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("r/model", "embeddings/0", "tokens/queries/train/ids", "tokens/documents/ids", "corpus/qrels/train.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    folders = {name: Path(name) for name in ("embeddings", "tokens", "corpus")}
    arguments = Namespace(round=Path("r"), round_state=None, negatives=Path("g"), **folders)
    ranks: Any = SimpleNamespace(machine=SimpleNamespace(dtype="float32", hardware="cpu"), counted=[])
    params = validate(Adore, {"round": "r", "negatives": "none"}, "adore.a")
    scratch_folders = [scratch_of(arguments, params, "adore.a", ranks)]
    for groups in ([0, 1], [0, 0]):
        np.save(Path("tokens/documents") / SAME, np.array(groups))
        scratch_folders.append(scratch_of(arguments, params, "adore.a", ranks))
    assert len(set(scratch_folders)) == 3
