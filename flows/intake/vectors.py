"""Encode a few texts in a process of its own: `python -m flows.intake.vectors ENCODER TEXTS OUT`.

TEXTS is a JSON file {"documents": [...], "queries": [...]}; OUT becomes an .npz with one array per list. It runs on the CPU, so that it
need not wait for a device.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.core.errors import one_line_errors

BATCH = 64
LENGTH = 128  # tokens of a text at most: enough to tell its topic


def encode(encoder: Path, texts: dict[str, list[str]]) -> dict[str, npt.NDArray[np.float32]]:
    """float32 [N, D] of each list: of documents by the document tower, of queries by the query tower, with the encoder's prefixes."""
    import torch

    from tasks.core.encoding.encode import encode_texts
    from tasks.core.models.bi_encoder import load_towers
    from tasks.core.tokens.tokenizer import load_tokenizer

    towers, tokenizer = load_towers(encoder), load_tokenizer(encoder)
    shape = towers.document.shape
    sides: dict[str, tuple[Any, str]] = {
        "documents": (towers.document, shape.document_prefix),
        "queries": (towers.query, shape.query_prefix),
    }
    arrays = {}
    for kind, side_texts in texts.items():
        tower, prefix = sides[kind]
        tower.eval()
        order = sorted(range(len(side_texts)), key=lambda row: len(side_texts[row]))
        vectors = np.empty((len(side_texts), tower.width), dtype=np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            length = min(LENGTH, shape.max_length or LENGTH)
            vectors[rows] = encode_texts(tower, tokenizer, [side_texts[row] for row in rows], length, torch.device("cpu"), prefix)
        arrays[kind] = vectors
    return arrays


def main(encoder: str, texts: str, out: str) -> None:
    with one_line_errors():
        np.savez(out, **encode(Path(encoder), json.loads(Path(texts).read_text(encoding="utf-8"))))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
