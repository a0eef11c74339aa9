"""The learned part of a compressed index, without its documents: a retraining fills it with others.

JPQ trains centroids, but not codes: a document's codes are of the centroids before the training, and it is scored with those after it. So
both are kept, and other documents get their codes and scores in the same way, as in its authors' code (JPQDualEncoder.encode_corpus).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tasks.core.errors import UserError
from tasks.core.files import new_file
from tasks.core.retrieval.ranked import Floats


@dataclass(frozen=True)
class Trained:
    """An index without documents, its factory string, and the trained centroids [M, 256, S] of JPQ, which `index` does not have."""

    factory: str
    index: Any
    centroids: Floats | None = None


def write_trained(path: Path, trained: Trained) -> None:
    """Write it to `path`."""
    tensors = {"index": torch.from_numpy(faiss.serialize_index(trained.index))}
    if trained.centroids is not None:
        tensors["centroids"] = torch.from_numpy(np.ascontiguousarray(trained.centroids))
    with new_file(path) as temporary:
        save_file(tensors, temporary, {"factory": trained.factory})


def read_trained(path: Path, factory: str, width: int | None = None, *, key: str) -> Trained:
    """Read a file of `write_trained`. UserError, naming `key` of params.yaml, if it is missing, corrupt, or of another factory or width."""
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
    if width is not None and index.d != width:
        raise UserError(f"{where}, but {path} has width {index.d}, expected the encoder's {width}; take that of the same encoder")
    return Trained(factory, index, centroids)
