"""bm25s without JAX.

Where JAX is installed, bm25s starts it on import. On a GPU, JAX then takes three quarters of the memory in each process that searches by
words.
"""

import sys
from typing import Any

_loaded: dict[str, Any] = {"jax": sys.modules["jax"]} if "jax" in sys.modules else {}
sys.modules["jax"] = None  # type: ignore[assignment] # importing it now fails as if it were not installed
try:
    import bm25s
    from bm25s import stopwords
finally:
    del sys.modules["jax"]
    sys.modules.update(_loaded)

__all__ = ["bm25s", "stopwords"]
