"""What an index has learned, kept without its documents: filled with the same ones again, it is the same file, byte for byte."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tasks.core.errors import UserError
from tasks.core.retrieval.ann.build import build_file, trained_empty
from tasks.core.retrieval.ann.trained import Trained, read_trained, write_trained
from tasks.index.params import Index
from tests.index.test_build import WIDTH, draw_vectors, write_embeddings

pytestmark = pytest.mark.usefixtures("one_thread")

FACTORIES = (
    *("PQ4x4", "IVF8,Flat", "IVF8,PQ4x4", "OPQ4,IVF4,PQ4x4", "OPQ4,PQ4x4fs", "IVF8,PQ4x4fs", "IVF8_HNSW4,Flat", "HNSW8", "HNSW8,SQ8"),
    *("SQ8", "SQfp16", "IVF8,SQ8", "PCA8,Flat", "PCAR8,SQ8", "RR16,PQ4x4", "PQ4x4,RFlat", "PQ4x4fs,RFlat", "IVF8,PQ4x4,Refine(SQ8)"),
    *("RQ2x4", "IVF4,RQ2x4", "LSQ2x4"),
)


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_filled_again_is_the_same_file(factory: str, tmp_path: Path) -> None:
    vectors, others = draw_vectors(600), draw_vectors(90, 1)
    params = Index(factory=factory, nprobe=2, ef_search=16, k_factor=3)
    embeddings = write_embeddings(tmp_path / "e", vectors, [100, 1, 499])
    build_file(embeddings, params, tmp_path / "first")
    write_trained(tmp_path / "t", Trained(factory, trained_empty(embeddings, params)))
    trained = read_trained(tmp_path / "t", factory, WIDTH, key="adore.a")
    assert (trained.index.ntotal, trained.index.d, trained.centroids) == (0, WIDTH, None)
    build_file(embeddings, params, tmp_path / "second", trained=trained.index)
    assert (tmp_path / "second").read_bytes() == (tmp_path / "first").read_bytes()
    trained = read_trained(tmp_path / "t", factory, WIDTH, key="adore.a")
    write_trained(tmp_path / "again", trained)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "t").read_bytes(), "it is passed on as it is"
    build_file(write_embeddings(tmp_path / "o", others, [90]), params, tmp_path / "third", trained=trained.index)
    ours, plain = faiss.read_index(str(tmp_path / "third")), faiss.read_index(str(tmp_path / "first"))
    plain.reset()
    plain.add(others)
    for actual, expected in zip(ours.search(vectors[:20], 10), plain.search(vectors[:20], 10), strict=True):
        np.testing.assert_array_equal(actual, expected, "other documents, by what the first ones taught")


def test_a_trained_index_that_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    index = trained_empty(write_embeddings(tmp_path / "e", draw_vectors(300), [300]), Index(factory="PQ4x4"))
    path = tmp_path / "t"
    with pytest.raises(
        UserError, match=r"^params.yaml: adore.a.quantizer: found given, but \S+/t does not exist; expected an encoder with"
    ):
        read_trained(path, "PQ4x4", WIDTH, key="adore.a")
    write_trained(path, Trained("PQ4x4", index, np.ones((4, 16, 4), np.float32)))
    assert read_trained(path, "PQ4x4", WIDTH, key="adore.a").centroids.shape == (4, 16, 4)  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"but \S+/t is of PQ4x4, expected PQ8 as in adore.a.index; change one of them$"):
        read_trained(path, "PQ8", WIDTH, key="adore.a")
    with pytest.raises(UserError, match=rf"but \S+/t has width {WIDTH}, expected the encoder's 8; take that of the same encoder$"):
        read_trained(path, "PQ4x4", 8, key="adore.a")
    tensors = load_file(path)
    save_file(tensors | {"index": tensors["index"][:50]}, path, {"factory": "PQ4x4"})
    with pytest.raises(UserError, match=r"^\S+/t: unreadable \(.+\); copy it again from where it was made$"):
        read_trained(path, "PQ4x4", WIDTH, key="adore.a")
    path.write_bytes(b"{}")
    with pytest.raises(UserError, match=r"^\S+/t: unreadable \(.+\); copy it again from where it was made$"):
        read_trained(path, "PQ4x4", WIDTH, key="adore.a")
