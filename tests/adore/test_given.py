"""An index that comes with the round's encoder: the same documents make the same index, and others are added as JPQ's authors add them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from safetensors.numpy import load_file

from tasks.core.errors import UserError
from tasks.core.files import folder_digest
from tasks.core.models.bi_encoder import load_towers
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.stage.scratch import remove_finished
from tasks.core.training.companions import KNOWN, LEARNED
from tests.adore.conftest import INDEXES, OUTS
from tests.index.test_build import write_embeddings

Run = Callable[..., Path]


@pytest.fixture
def jpq(run: Run, project: Path) -> dict[str, str]:
    """What a retraining gives: the encoder of a trained JPQ as round, and in its state what the index has learned."""
    out, state = run("jpq", "given/jpq"), project / "given/state"
    state.mkdir(exist_ok=True)
    shutil.copy(out / "index" / LEARNED, state / LEARNED)
    shutil.copy(project / "state" / KNOWN, state / KNOWN)
    remove_finished()
    return {"round": "given/jpq/encoder", "round_state": "given/state"}


def test_the_same_documents_make_the_same_index(run: Run, project: Path, jpq: dict[str, str]) -> None:
    first, second = project / "given/jpq", run("again", "given/again", **jpq)
    assert folder_digest(second / "index") == folder_digest(first / "index"), "codes, trained centroids, and what was learned"
    assert folder_digest(second / "encoder") == folder_digest(first / "encoder")
    assert {file.name for file in (second / "state").iterdir()} == {"state.json", KNOWN, LEARNED}
    assert json.loads((second / "curves/round.json").read_text()) == {"steps": 0}
    assert json.loads((second / "index/index.json").read_text())["trained"]


def test_other_documents_get_the_codes_of_untrained_centroids_and_the_scores_of_trained_ones(
    run: Run, project: Path, jpq: dict[str, str]
) -> None:
    known = np.concatenate([block for _, block in open_embeddings(project / "embeddings").blocks()])
    drawn = np.random.default_rng(1).normal(size=(60, known.shape[1])).astype(np.float32)
    vectors = np.concatenate([known, drawn / np.linalg.norm(drawn, axis=1, keepdims=True)])
    write_embeddings(project / "given/larger", vectors, [len(vectors)])
    out = run("again", "given/other", embeddings="given/larger", **jpq)
    index, before = (faiss.read_index(str(folder / "index/index.faiss")) for folder in (out, project / "given/jpq"))
    plain = faiss.deserialize_index(faiss.serialize_index(INDEXES["IVF1,PQ2x8"]))
    untrained = faiss.vector_to_array(plain.pq.centroids).reshape(2, 256, -1) + plain.quantizer.reconstruct(0).reshape(2, 1, -1)
    trained = load_file(out / "index" / LEARNED)["centroids"]
    assert np.abs(trained - untrained).max() > 0.01
    for each in (index, before):
        each.make_direct_map()
    decoded = np.stack([index.reconstruct(row) for row in range(len(vectors))]).reshape(len(vectors), 2, -1)
    for m in range(2):
        far_RC, off_RC = (
            ((part[:, m, None].astype(np.float64) - centroids[m]) ** 2).sum(2)
            for part, centroids in ((vectors.reshape(decoded.shape), untrained), (decoded, trained))
        )
        codes = off_RC.argmin(1)
        assert off_RC.min(1).max() < 1e-10, "scored with trained centroids"
        assert (far_RC[np.arange(len(codes)), codes] <= far_RC.min(1) + 1e-5).all(), "those of the nearest untrained ones"
        assert (far_RC.argmin(1) == codes).mean() > 0.99
    assert index.ntotal == len(vectors)
    for row in range(before.ntotal):
        assert (before.reconstruct(row) == decoded[row].ravel()).all(), "known documents as they were"


def test_a_further_training_starts_from_the_trained_centroids(run: Run, project: Path, jpq: dict[str, str]) -> None:
    out = run("further", "given/further", **jpq)
    before, after = (load_file(folder / "index" / LEARNED) for folder in (project / "given/jpq", out))
    largest_change = np.abs(after["centroids"] - before["centroids"]).max()
    assert 0 < largest_change < 1.1e-5, "two steps of at most 5e-6"
    assert (after["index"] == before["index"]).all(), "the codes' own centroids stay"


def test_a_round_as_it_is_over_a_compressed_index(run: Run, project: Path, jpq: dict[str, str]) -> None:
    out = run("untrained", "given/untrained", round_state=jpq["round_state"])
    assert (out / "state" / LEARNED).read_bytes() == (out / "index" / LEARNED).read_bytes(), "its own, not that of the round's weights"
    plain = faiss.deserialize_index(faiss.serialize_index(INDEXES["PQ2"]))
    plain.add(np.concatenate([block for _, block in open_embeddings(project / "embeddings").blocks()]))
    assert (out / "index/index.faiss").read_bytes() == faiss.serialize_index(plain).tobytes()
    before, after = load_towers(project / "r"), load_towers(out / "encoder")
    assert after.shared and all((weight == after.query.state_dict()[name]).all() for name, weight in before.query.state_dict().items())


def test_an_index_of_another_factory_is_refused(run: Run, project: Path, jpq: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"^params.yaml: adore.mismatch.quantizer: found given, but \S+ is of IVF1,PQ2x8, expected PQ2 as"):
        run("mismatch", "given/mismatch", **jpq)
    with pytest.raises(UserError, match=r"^params.yaml: adore.again.quantizer: found given, but state/\S+ does not exist; expected"):
        run("again", "given/mismatch")
    assert not any((project / "given/mismatch" / out).exists() for out in OUTS)


def test_trained_centroids_are_not_dropped(run: Run, jpq: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"^params.yaml: adore.frozen.centroids: found false, but the given index has trained centroids"):
        run("frozen", "given/frozen", **jpq)
