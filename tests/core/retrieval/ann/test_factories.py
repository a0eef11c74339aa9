"""Factory strings that faiss does not know, or that end the process, are refused before anything is computed."""

import re
import subprocess
import sys
from contextlib import nullcontext

import faiss
import numpy as np
import pytest

from tasks.adore.params import Study
from tasks.core.errors import UserError
from tasks.core.params.sections import validate
from tasks.core.retrieval.ann.build import skip_polysemous, train_transforms
from tasks.core.retrieval.ann.factories import checked_factory, nearest_factory, scans_fast, width_mismatch
from tasks.core.retrieval.ann.search import refuse_other_scores
from tasks.index.params import Index


@pytest.mark.parametrize(
    "factory",
    [
        "Flat",
        "OPQ24,IVF1,PQ24x8",
        "PQ7x4fs",
        "PRQ7x2x8",
        "IVF16777216_HNSW32,PQ16",
        "PCA96,IVF4096,SQ8",
        "HNSW32,Flat,RFlat",
        "PCAR96,SQ8",
        "IVF128_NSG32,Flat",
        "IVF256(PQ16),Flat",
        "IVF16(RCQ2x2),Flat",
        "IVF32(PCA32,HNSW8),PQ8",
        "IVF32(PRQ2x2x4),Flat",
        "IVF16(PQ8x4,RFlat),Flat",
        "OPQ25_100,PQ50",
        "PCA48,PQ48",
        "PCA32,PQ16,Refine(PQ48)",
        "HNSW32,SQtqmse4",
        "SQ4,Refine(SQ8)",
        "RR32,Flat",
        "IVF64k_HNSW32,PQ16",
        "IVF16M,Flat",
        "RQ1x16_6x8",
        "PLSQ2x20x6",
        "OPQ48_192,IVF64(HNSW32),PQ48",
        "PQ12,Refine(PQ48)",
        "IVF64(PQ24x4fs),PQ48x4fs",
        "PRQ12x2x8",
        "PQ65536",
        "PQ211,Refine(PQ199)",
    ],
)
def test_what_faiss_knows_is_taken_whatever_the_width(factory: str) -> None:
    assert validate(Index, {"factory": factory}, "params.yaml", section="index").factory == factory


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("Flatt", "faiss says: could not parse index string Flatt$"),
        ("PQ", "faiss says: could not parse index string PQ$"),
        ("PQ16x99", "x99: expected a number from 1 to 16$"),
        ("PRQ2x4x17", "x17: expected a number from 1 to 16$"),
        ("IVF17M,Flat", "IVF17M: expected a number from 1 to 16,777,216$"),
        ("IVF64(IVF16385k,Flat),Flat", "IVF16385k: expected a number from 1 to 16,777,216$"),
        ("LSH", "faiss says: .*METRIC_L2"),
        ("HNSW0", "HNSW0: expected a number from 2 to 1,024$"),
        ("IVF4_HNSW1,Flat", "HNSW1: expected a number from 2 to 1,024$"),
        ("IVF0,Flat", "IVF0: expected a number from 1 to 16,777,216$"),
        ("IVF2000000000,Flat", "IVF2000000000: expected a number from 1 to"),
        ("PQ16x0", "x0: expected a number from 1 to 16$"),
        ("RR0,Flat", "RR0: expected a number from 1 to 16,384$"),
        ("HNSW32,PQ16", "only for L2 distances"),
        ("OPQ16,HNSW32_PQ16,RFlat", "only for L2 distances"),
        ("HNSW32,PQ48", "only for L2 distances"),
        ("OPQ48,HNSW32_PQ48", "only for L2 distances"),
        ("L2norm,PQ48", "L2norm: scores would be cosines"),
        ("IDMap,PQ7", "IDMap: rows are numbered already"),
        ("PQ12,Refine(PQ48x4fs)", "cannot refine with IndexPQFastScan"),
        ("IVF64(IVF4,Flat),PQ16", "an IVF cannot find its centroids with another IVF"),
        ("OPQ48,IVF64(IVF4_HNSW8,Flat),PQ48,RFlat", "an IVF cannot find its centroids with another IVF"),
        ("IVF64(RR8,IVF4,Flat),Flat", "an IVF cannot find its centroids with another IVF"),
        ("PCA32,L2norm,Flat", "L2norm: scores would be cosines"),
        ("ITQ96,SQ8", "ITQ96: scores would be cosines"),
        ("PCAW32,Flat", "PCAW32: scores of whitened vectors are not inner products"),
        ("PCAWR32,IVF4,SQ8", "PCAWR32: scores of whitened vectors"),
        ("IVF4,SQ8_direct", "SQ8_direct: it takes only integers from 0 to 255"),
        ("HNSW32_SQ8_direct_signed", "SQ8_direct_signed: it takes only integers"),
        ("Flat,Refine(L2norm,Flat)", "L2norm: scores"),
        ("IDMap,Flat", "IDMap: rows are numbered already"),
        ("Flat,IDMap2", "IDMap2: rows are numbered already"),
        ("PCA32,NSG32,SQ8", "NSG32: its graph cannot be filled a shard at a time"),
        ("MinMaxFP16,SQ8", "MinMaxFP16: faiss does not search it"),
        ("SQ8,Refine(PQ16x4fs)", "cannot refine with IndexPQFastScan"),
        ("RR16385,Flat", "RR16385: expected a number from 1 to 16,384$"),
        ("PCA32,HNSW8,SQtq4", "HNSW8,SQtq4: faiss crashes when it builds the graph"),
        ("RCQ2x4", "RCQ2x4: it stores no vectors"),
        ("IVF16(LSCQ2x2),Flat", "LSCQ2x2: it stores no vectors"),
        ("IVF8(ZnLattice2x4_8),Flat", "ZnLattice2x4_8: faiss cannot read back the file that it writes"),
        ("PCA32,PQ48", "should be a multiple"),
        ("RR,RR32,IVF4096,PQ48,Refine(PQ64)", "should be a multiple"),
        ("OPQ8_100,PQ4", "OPQ8_100: expected a width that 8 divides$"),
        (
            "IVF16(PQ8),Flat",
            "IVF16: its quantizer is trained on the 16 centroids of the lists and needs 256; expected more lists, or IVF16 or",
        ),
        ("IVF16_NSG16,Flat", "trained on the 16 centroids of the lists and needs 128;"),
        ("IVF1k(PQ8x12),Flat", "IVF1k: its quantizer is trained on the 1,024 centroids of the lists and needs 4,096;"),
        ("PCA48,IVF8(PCA32,Flat),PQ8", "trained on the 8 centroids of the lists and needs 32;"),
        ("IVF8(OPQ8,PQ8x4),Flat", "trained on the 8 centroids of the lists and needs 256;"),
        ("IVF8(PQ8x4,RFlat),Flat", "trained on the 8 centroids of the lists and needs 16;"),
        ("IVF8(Flat,Refine(PQ8)),Flat", "trained on the 8 centroids of the lists and needs 256;"),
        ("IVF16(RQ2x4),Flat", "trained on the 16 centroids of the lists and needs 64;"),
        ("IVF16(PRQ2x2x4),Flat", "trained on the 16 centroids of the lists and needs 32;"),
        ("SQ8,Refine(FlatIPPanorama4)", "faiss gives wrong scores after it; expected RFlat$"),
        ("SQ8,RefinePanorama(Flat)", "RefinePanorama: faiss can refine few indexes this way"),
        ("SQ8,Refine(PCA32,IVF4,Flat)", "cannot refine with IndexPreTransform"),
    ],
)
def test_others_are_refused(factory: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"^params.yaml: index.factory: found '{re.escape(factory)}'; .*{message}"):
        validate(Index, {"factory": factory}, "params.yaml", section="index")
    with pytest.raises(UserError, match=r"^params.yaml: study.s.factories.1: found"):
        validate(Study, {"round": "star", "factories": ["Flat", factory]}, "params.yaml", section="study.s")


FITS = [
    *("PQ8", "PQ48", "PQ12", "OPQ8_64,PQ8", "OPQ48,PQ48", "OPQ5_100,PQ5", "PCA64,SQ8", "PCA33,Flat", "PCAR16,PQ8", "PCAR64,PQ8"),
    *("RR64,PQ64", "RR64,PCA64,Flat", "IVF2,PQ48", "PQ48x4fs", "PRQ5x2x4", "PQ16,Refine(PQ48)", "PCA16,PQ8,Refine(PQ48)"),
    *("PQ16,Refine(PCA64,Flat)", "PQ16,Refine(PCA16,Flat)", "IVF2,FlatPanorama64", "PCA64,IVF2,PQ16", "IVF2_HNSW8,PQ5"),
]


@pytest.mark.parametrize("width", [20, 32, 100])
@pytest.mark.parametrize("factory", FITS)
def test_what_does_not_suit_a_width_is_what_faiss_does_not_build(factory: str, width: int) -> None:
    """Against indexes that are built, and what is named in their place builds."""

    def can_build(string: str) -> bool:
        vectors = np.random.default_rng(0).normal(size=(300, width)).astype(np.float32)
        try:
            index = faiss.index_factory(width, string, faiss.METRIC_INNER_PRODUCT)
            skip_polysemous(index)
            train_transforms(index, vectors, 1)
            index.train(vectors)
            index.add(vectors)
        except RuntimeError:
            return False
        return bool((index.search(vectors[:2], 3)[1] >= 0).all())

    assert can_build(checked_factory(factory)) == (not width_mismatch(factory, width))
    if not can_build(factory) and (suggestion := nearest_factory(factory, {width})):
        assert can_build(suggestion), suggestion


def test_what_is_named_in_its_place_suits_all_widths() -> None:
    assert nearest_factory("OPQ24,IVF64,PQ24x8", {128}) == "OPQ16,IVF64,PQ16x8"  # 32 is farther
    assert nearest_factory("IVF48,PQ48", {384, 64}) == "IVF48,PQ32", "lists stay, and 64 is as near: the smaller"
    assert nearest_factory("PCA512,SQ8", {384, 96}) == "PCA96,SQ8"
    assert nearest_factory("PQ16,Refine(PQ48)", {100}) == "", "both numbers would have to change"


def test_a_check_makes_no_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take memory: 512 MB for IVF16M."""
    factories: list[str] = []
    make = faiss.index_factory
    monkeypatch.setattr(faiss, "index_factory", lambda width, factory, metric: (factories.append(factory), make(width, factory, metric))[1])
    assert validate(Index, {"factory": "IVF4k_HNSW32,PQ16"}, "params.yaml", section="index").factory == "IVF4k_HNSW32,PQ16"
    assert factories == ["IVF1_HNSW32,PQ16"]


def test_the_default_needs_no_faiss() -> None:
    """The check of params.yaml comes with every command."""
    script = "import sys; from tasks.index.params import Index; Index(factory='Flat'); sys.exit('faiss' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_index_that_faiss_crashes_on_is_refused() -> None:
    index = faiss.index_factory(16, "IVF2,PQ4x4fs", faiss.METRIC_INNER_PRODUCT)
    vectors = np.random.default_rng(0).normal(size=(100, 16)).astype(np.float32)
    index.train(vectors)
    index.add(vectors)
    with pytest.raises(UserError, match=r"^here: this index does not score by its decoded vectors"):
        refuse_other_scores(index, "here")


FAST = ("PQ16x4fs", "OPQ16,PQ16x4fs", "IVF4,PQ16x4fs", "OPQ16,IVF4,PQ16x4fsr", "IVF4,PQ16x4fs,RFlat", "RQ8x4fs", "IVF4,RQ8x4fs")


@pytest.mark.parametrize("factory", [*FAST, "Flat", "IVF4,PQ16x4", "OPQ16,IVF4,PQ16x4", "HNSW32", "PQ16x4fs,RFlat", "PQ16x4,Refine(SQ8)"])
def test_fast_scan_is_known_before_an_index_is_made(factory: str) -> None:
    """As `refuse_other_scores` finds it in the index itself."""
    index = faiss.index_factory(64, factory, faiss.METRIC_INNER_PRODUCT)
    vectors = np.random.default_rng(1).normal(size=(1000, 64)).astype(np.float32)
    index.train(vectors)
    index.add(vectors)
    assert scans_fast(factory) == (factory in FAST)
    with pytest.raises(UserError, match="does not score by its decoded vectors") if factory in FAST else nullcontext():
        refuse_other_scores(index, "here")
