"""faiss factory strings, checked before anything is computed for them."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

# The least and the largest number that may follow. faiss takes others, and then crashes (HNSW0, HNSW1, RR0) or runs out of memory.
LIMITS = {"IVF": (1, 2**24), "HNSW": (2, 2**10), "": (1, 2**16)}
WIDTH = 64  # of the vectors that a string is tried for


def parsed(factory: str) -> str:
    """`factory`; ValueError if faiss does not know it or scores by distances. Width and number of the vectors are not looked at."""
    for kind, number in re.findall(r"(IVF|HNSW|)(\d+)", factory):
        least, most = LIMITS[kind]
        if not least <= int(number) <= most:
            raise ValueError(f"{kind}{number}: expected a number from {least} to {most:,}")
    if factory != "Flat":
        import faiss  # a fifth of a second, which the default does not need

        try:
            index = faiss.index_factory(WIDTH, re.sub(r"IVF\d+", "IVF1", factory), faiss.METRIC_INNER_PRODUCT)  # a list takes memory
        except RuntimeError as error:
            if not re.search(r"\bd\w* % ", str(error)):  # the width must be a multiple of something, and may be
                raise ValueError(f"expected a faiss factory string such as Flat or IVF4096,PQ64; faiss says: {reason(error)}") from None
        else:
            if index.metric_type != faiss.METRIC_INNER_PRODUCT:  # faiss does not say so
                raise ValueError("faiss makes it for L2 distances alone; expected one for inner products, such as HNSW32 or HNSW32,SQ8")
    return factory


def reason(error: RuntimeError) -> str:
    """What faiss says, without the place in its code."""
    return re.sub(r"^Error in .* at \S+:\d+: ", "", str(error).strip().splitlines()[-1].strip())


Factory = Annotated[str, Field(min_length=1), AfterValidator(parsed)]
