"""What a compressed index has learned, without its documents: a retraining fills it with others.

JPQ trains centroids, but not codes: a document's are those of the centroids before the training, and it is scored with those after it.
So both are kept, and other documents get their codes and scores in the same way, as in its authors' code (JPQDualEncoder.encode_corpus).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tasks.core.retrieval.factories import layers
from tasks.core.retrieval.faiss_search import open_index
from tasks.core.retrieval.ranked import Floats
from tasks.core.stage.errors import UserError


@dataclass(frozen=True)
class Trained:
    """An index without documents, by its factory string, and the trained centroids [M, 256, S] of JPQ, which `index` does not have."""

    factory: str
    index: Any
    centroids: Floats | None = None


def write_trained(path: Path, indexed: Path, factory: str, centroids: Floats | None = None) -> None:
    """Write to `path` what the index in the file `indexed` has learned. Its documents are in memory for as long as this lasts."""
    index = open_index(indexed)
    index.reset()
    for layer in layers(index):
        if hasattr(layer, "ntotal2"):  # a fast scan
            layer.ntotal2 = 0  # rows that it has room for, which its reset leaves
    tensors = {"index": torch.from_numpy(faiss.serialize_index(index))}
    if centroids is not None:
        tensors["centroids"] = torch.from_numpy(np.ascontiguousarray(centroids))
    save_file(tensors, path, {"factory": factory})


def read_trained(path: Path, factory: str, width: int, key: str) -> Trained:
    """What `write_trained` wrote. UserError, naming `key` of params.yaml, where it is missing, corrupt, or of another factory or width."""
    where = f"params.yaml: {key}.quantizer: found given"
    if not path.exists():
        raise UserError(f"{where}, but {path} does not exist; expected an encoder with it, as retemper retrain makes it, or trained")
    try:
        with safe_open(path, "pt") as file:
            found = (file.metadata() or {}).get("factory", "")
            index = faiss.deserialize_index(file.get_tensor("index").numpy())
            centroids = file.get_tensor("centroids").numpy() if "centroids" in file.keys() else None  # noqa: SIM118
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{path}: unreadable ({str(error).splitlines()[0]}); copy it again from where it was made") from None
    if found != factory:
        raise UserError(f"{where}, but {path} is of {found or 'no factory'}, expected {factory} as in {key}.index; change one of them")
    if index.d != width:
        raise UserError(f"{where}, but {path} has width {index.d}, expected the encoder's {width}; take that of the same encoder")
    return Trained(factory, index, centroids)
