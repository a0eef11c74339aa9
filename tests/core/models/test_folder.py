"""Folders of two towers that are not as Retemper saves them."""

from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import load_towers
from tasks.core.models.folder import read_shape


def test_towers_saved_by_the_module_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """sentence-transformers' own Router has `query_0_Transformer`, `query_1_Pooling` ...."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import BoW, Router

    router = Router.for_query_document([BoW(["river"])], [BoW(["river"])])
    SentenceTransformer(modules=[router]).save(str(tmp_path))
    for loader in (read_shape, load_towers):
        with pytest.raises(UserError, match=r"router_config.json: found no query/config.json beside it, .* in query and document"):
            loader(tmp_path)
