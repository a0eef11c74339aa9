"""Vectors made to break a search whose products are not in float32."""

import numpy as np


def near_ties(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    """Vectors that differ from one in the last bits of float32 alone."""
    vector = rng.normal(size=width).astype(np.float32)
    return vector * (1 + rng.integers(-8, 9, size=(rows, width)).astype(np.float32) * np.float32(2**-23))


def corpus(kind: str, rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    vectors = rng.normal(size=(rows, width)).astype(np.float32)
    if kind == "near ties":
        vectors = near_ties(rng, rows, width)
    elif kind == "duplicates":
        vectors[rows // 3 :] = vectors[rows // 3]
    elif kind == "one is huge":
        vectors[rows // 2] *= 1e20
    elif kind == "all are tiny":
        vectors *= np.float32(1e-25)
    elif kind == "float16":
        vectors = vectors.astype(np.float16)
    elif kind == "norms differ":
        vectors *= np.float32(10.0) ** rng.integers(-4, 5, size=(rows, 1)).astype(np.float32)
    elif kind == "zeros":
        vectors[::2] = 0
    return vectors


KINDS = ["random", "near ties", "duplicates", "one is huge", "all are tiny", "float16", "norms differ", "zeros"]
