"""faiss factory strings, checked before anything is computed for them."""

import math
import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, Field

# The least and the largest number that may follow. faiss takes others, and then crashes (HNSW0, HNSW1, RR0, RR65536) or runs out of
# memory. x: bits of a code, so 2**16 centroids.
LIMITS = {"IVF": (1, 2**24), "HNSW": (2, 2**10), "RR": (1, 2**14), "x": (1, 16), "": (1, 2**16)}
TIMES = {"": 1, "k": 2**10, "M": 2**20}  # IVF64k: 65,536 lists
UNFIT = {  # parts of strings that faiss takes for inner products, and why they are of no use here
    r"L2norm\b": "scores would be cosines, not inner products; remove it",
    r"ITQ\d*\b": "scores would be cosines of centered vectors, not inner products; expected OPQ, PCA or RR",
    r"PCAWR?\d+": "scores of whitened vectors are not inner products; expected PCA or PCAR",
    r"SQ8_direct\w*": "it takes only integers from 0 to 255; expected SQ8",
    r"SQ\w*,MinMax|MinMax(?:FP16)?\b": "faiss does not search it; expected SQ8",
    r"IDMap2?\b": "rows are numbered already; remove it",
    r"(?<![_(])NSG\d*\b": "its graph cannot be filled a shard at a time; expected HNSW",
    r"HNSW\d*[,_]SQtq\d": "faiss crashes when it builds the graph; expected HNSW32,SQ8",
    r"(?:LSCQ|(?<!\()RCQ)\d\w*": "it stores no vectors; expected RQ or LSQ",
    r"ZnLattice\w*": "faiss cannot read back the file that it writes; expected Flat or HNSW32",
    r"RefinePanorama\b": "faiss can refine few indexes this way; expected RFlat, or Refine(...)",
    r"Refine\(FlatIPPanorama\w*\)?": "faiss gives wrong scores after it; expected RFlat",
}
GRAPH = 128  # points that an NSG needs: faiss refuses up to 100, and ends the process for some numbers above (seen up to 115)
WIDTH = 64  # the least width of vectors with which a string is tried
WIDEST = 2**14  # if no lower width suits all product quantizers of a string, it is tried with WIDTH, which faiss may refuse


def checked_factory(factory: str) -> str:
    """Return `factory`; ValueError if faiss does not know it, or cannot score inner products with it. No vectors are read."""
    for kind, number, suffix in re.findall(r"(IVF|HNSW|RR|x(?=\d+(?![\dx]))|)(\d+)([kM]?)", factory):
        least, most = LIMITS[kind]
        if not least <= int(number) * TIMES[suffix] <= most:
            raise ValueError(f"{kind}{number}{suffix}: expected a number from {least} to {most:,}")
    for parts, width in re.findall(r"OPQ(\d+)_(\d+)", factory):
        if int(width) % int(parts):
            raise ValueError(f"OPQ{parts}_{width}: expected a width that {parts} divides")
    if factory != "Flat":
        import faiss  # a fifth of a second, which the default does not need

        try:
            index = _small_index(_width(factory), factory)
        except RuntimeError as error:
            if not re.search(r"\bd\w* % ", str(error)) or _is_fixed(factory):  # else another width suits it
                raise ValueError(f"expected a faiss factory string such as Flat or IVF4096,PQ64; faiss says: {reason(error)}") from None
        else:
            if index.metric_type != faiss.METRIC_INNER_PRODUCT:  # faiss does not say so
                raise ValueError("faiss makes it only for L2 distances; expected one for inner products, such as HNSW32 or HNSW32,SQ8")
            if why := unsupported_reason(factory):
                raise ValueError(why)
            _refuse_centroids(index, factory)
            if isinstance(index, faiss.IndexRefine):
                _refuse_unscored(index.refine_index)
    return factory


def unsupported_reason(factory: str) -> str:
    """Why a factory string that faiss knows is of no use for inner products of vectors that are added a shard at a time; empty if it is."""
    for pattern, why in UNFIT.items():
        if match := re.search(rf"(?:^|[,(_]){pattern}", factory):
            return f"{match[0].lstrip(',(_')}: {why}"
    return ""


def width_mismatch(factory: str, width: int) -> str:
    """Why no index can be made of vectors of `width` by a string that `checked_factory` accepts; empty if one can."""
    import faiss

    try:
        index = _small_index(width, factory)
    except RuntimeError as error:
        return f"faiss says: {reason(error)}"
    for step in _transforms(index):
        if isinstance(step, faiss.PCAMatrix) and step.d_out > step.d_in:  # faiss says so when it trains it
            return f"a PCA keeps {step.d_in} numbers at most"
    return ""


def nearest_factory(factory: str, widths: Collection[int]) -> str:
    """`factory` with one of its numbers replaced by the nearest one that suits all `widths`; empty if there is none."""
    common = math.gcd(*widths)
    for name, number in dict.fromkeys(re.findall(r"(PQ|PRQ|PLSQ|PCAR?|Panorama)(\d+)", factory)):
        divisors = [other for other in range(1, common + 1) if common % other == 0]
        for other in sorted(divisors, key=lambda other: (abs(other - int(number)), other)):
            candidate = re.sub(rf"{name}{number}(?!\d)", f"{name}{other}", factory)
            try:
                if not any(width_mismatch(checked_factory(candidate), width) for width in widths):
                    return candidate
            except ValueError:
                continue
    return ""


def trains_centroids(factory: str) -> bool:
    """Whether a string that faiss knows makes an index `is_plain_pq`; True if no index can be made to see it."""
    import faiss

    try:
        return is_plain_pq(faiss.index_factory(_width(factory), factory, faiss.METRIC_INNER_PRODUCT))
    except RuntimeError:
        return True


def scans_fast(factory: str) -> bool:
    """Whether an index of a string that faiss knows scores by fast scan: then its scores are rounded, not those of its decoded vectors."""
    import faiss

    try:
        outer = _small_index(_width(factory), factory)
    except RuntimeError:
        return False
    inner: Any = faiss.downcast_index(outer)  # `outer` owns what it leads to
    if isinstance(inner, faiss.IndexPreTransform):
        inner = faiss.downcast_index(inner.index)
    inverted = faiss.try_extract_index_ivf(outer)
    return isinstance(inner, faiss.IndexFastScan) or (
        inverted is not None and isinstance(faiss.downcast_index(inverted), faiss.IndexIVFFastScan)
    )


def is_plain_pq(index: Any) -> bool:
    """Whether an index is a PQ with codes of 8 bits, alone or in one inverted list, after one rotation at most."""
    import faiss

    inner: Any = faiss.downcast_index(index)  # `index` owns what it leads to
    if isinstance(inner, faiss.IndexPreTransform):
        steps = transforms_of(inner)
        if len(steps) != 1 or not isinstance(steps[0], faiss.LinearTransform) or steps[0].have_bias:
            return False
        inner = faiss.downcast_index(inner.index)
    is_pq = type(inner) is faiss.IndexPQ or (type(inner) is faiss.IndexIVFPQ and inner.nlist == 1)
    return is_pq and inner.pq.nbits == 8


def _small_index(width: int, factory: str) -> Any:
    """The empty index of a factory string, with one inverted list in place of many: each takes memory. RuntimeError if faiss refuses it."""
    import faiss

    return faiss.index_factory(width, re.sub(r"IVF\d+[kM]?", "IVF1", factory), faiss.METRIC_INNER_PRODUCT)


def _width(factory: str) -> int:
    """A width of vectors that all product quantizers of a string can split."""
    width = math.lcm(*map(int, re.findall(r"(?:P(?:R|LS)?Q|Lattice)(\d+)", factory)))
    return -(-WIDTH // width) * width if width <= WIDEST else WIDTH


def _is_fixed(factory: str) -> bool:
    """Whether faiss cannot split the output of a transform in the string (PCA32,PQ48), whatever the width of the encoder's vectors."""
    base_factory = re.sub(r",Refine\(.*", "", factory)  # the refining index has the encoder's vectors
    if not (match := re.match(r"(?:[^,()]+,)*?(?:PCAR?|RR|OPQ\d+_)(\d+),(.+)", base_factory)):
        return False
    try:
        _small_index(int(match[1]), match[2])
    except RuntimeError:
        return True
    return False


def layers(index: Any) -> Iterator[Any]:
    """Yield `index` and the indexes in it: a refinement's first index, the index behind transforms. The last one is the index proper."""
    import faiss

    while True:
        index = faiss.downcast_index(index)
        yield index
        if isinstance(index, faiss.IndexRefine):
            index = index.base_index
        elif isinstance(index, faiss.IndexPreTransform):
            index = index.index
        else:
            return


def transforms_of(layer: Any) -> list[Any]:
    """The transforms of one of `layers`: PCA and the like, in their order; empty for an index of another kind."""
    import faiss

    chain: Any = layer.chain if isinstance(layer, faiss.IndexPreTransform) else None  # a std::vector; faiss' own types say list
    return [faiss.downcast_VectorTransform(chain.at(place)) for place in range(chain.size() if chain else 0)]


def _refuse_centroids(index: Any, factory: str) -> None:
    """ValueError if the centroids of inverted lists are in an index that faiss cannot fill or search with so many.

    If that index has inverted lists too, faiss looks into one of these, whatever nprobe is, and can make no codes of residuals.
    """
    import faiss

    inverted: Any = faiss.try_extract_index_ivf(index)
    if inverted is None:
        return
    if faiss.try_extract_index_ivf(inverted.quantizer) is not None:
        raise ValueError("an IVF cannot find its centroids with another IVF; expected IVF4096 or, for very many lists, IVF65536_HNSW32")
    if ord(inverted.quantizer_trains_alone) == 1:  # it is trained on all vectors, not on centroids; a char
        return
    lists, suffix = re.findall(r"IVF(\d+)([kM]?)", factory)[0]
    centroids, least = int(lists) * TIMES[suffix], _least(inverted.quantizer)
    if centroids < least:
        raise ValueError(
            f"IVF{lists}{suffix}: its quantizer is trained on the {centroids:,} centroids of the lists and needs {least:,}; "
            f"expected more lists, or IVF{lists}{suffix} or IVF{lists}{suffix}_HNSW32"
        )


def _transforms(index: Any) -> Iterator[Any]:
    """The transforms before the index proper, or before one that refines: PCA and the like."""
    import faiss

    for layer in layers(index):
        if isinstance(layer, faiss.IndexRefine):
            yield from _transforms(layer.refine_index)
        yield from transforms_of(layer)


def _least(index: Any) -> int:
    """How many vectors faiss needs, at least, to train an index."""
    import faiss

    least = 1
    for layer in layers(index):
        for step in transforms_of(layer):
            if isinstance(step, faiss.PCAMatrix):
                least = max(least, step.d_out)
            elif isinstance(step, faiss.OPQMatrix):
                least = max(least, faiss.ProductQuantizer(step.d_out, step.M, 8).ksub)
        if isinstance(layer, faiss.IndexRefine):
            least = max(least, _least(layer.refine_index))
        elif isinstance(layer, faiss.IndexHNSW):
            least = max(least, _least(layer.storage))
        elif isinstance(layer, faiss.IndexNSG):
            least = max(least, GRAPH)
        elif hasattr(layer, "pq"):
            least = max(least, layer.pq.ksub)
        elif hasattr(layer, "prq"):
            least = max(least, layer.d // layer.prq.nsplits, *(1 << int(bits) for bits in faiss.vector_to_array(layer.prq.nbits)))
        elif hasattr(layer, "rq"):
            least = max(least, layer.d, *(1 << int(bits) for bits in faiss.vector_to_array(layer.rq.nbits)))
    return least


def _refuse_unscored(index: Any) -> None:
    """ValueError for an index that cannot score single vectors: as the second index of a refinement, it ends the process at a search."""
    import faiss

    try:
        faiss.downcast_index(index).get_distance_computer()
    except RuntimeError:
        kind = type(faiss.downcast_index(index)).__name__
        raise ValueError(f"faiss cannot refine with {kind}; expected RFlat, or Refine(...) of SQ8, SQfp16 or PQ16") from None


def reason(error: RuntimeError) -> str:
    """The message of a faiss error, without the place in its code."""
    return re.sub(r"^Error in .* at \S+:\d+: ", "", str(error).strip().splitlines()[-1].strip())


Factory = Annotated[str, Field(min_length=1), AfterValidator(checked_factory)]
