"""Folders of two towers that are not as Retemper saves them; what of a folder the vectors of documents depend on."""

from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.files import folder_digest, read_json, write_json
from tasks.core.models.bi_encoder import Towers, document_digest, load_towers, save_towers
from tasks.core.models.folder import GENERAL, read_shape
from tasks.core.tokens.tokenizer import load_tokenizer


def test_towers_saved_by_the_module_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """sentence-transformers' own Router has `query_0_Transformer`, `query_1_Pooling` ...."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import BoW, Router

    router = Router.for_query_document([BoW(["river"])], [BoW(["river"])])
    SentenceTransformer(modules=[router]).save(str(tmp_path))
    for loader in (read_shape, load_towers):
        with pytest.raises(UserError, match=r"router_config.json: found no query/config.json beside it, .* in query and document"):
            loader(tmp_path)


@pytest.mark.parametrize("shared", [True, False])
def test_prompts_alone_do_not_change_the_digest_of_the_document_tower(shared: bool, tiny_encoder: Path, tmp_path: Path) -> None:
    towers = load_towers(tiny_encoder)
    save_towers(towers if shared else Towers(load_towers(tiny_encoder).query, towers.document), load_tokenizer(tiny_encoder), tmp_path)
    folder = tmp_path if shared else tmp_path / "document"
    before, settings = document_digest(tmp_path), read_json(folder / GENERAL)
    write_json(folder / GENERAL, settings | {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": "query"})
    assert document_digest(tmp_path) == before
    for changed in (settings | {"similarity_fn_name": "cosine"}, settings | {"truncate_dim": 64}):
        write_json(folder / GENERAL, changed)
        assert document_digest(tmp_path) != before, "these change the vectors"
    (folder / GENERAL).unlink()
    assert document_digest(tmp_path) == folder_digest(folder)
    for name in ("config.json", "modules.json", "1_Pooling/config.json", "model.safetensors"):
        digest = document_digest(tmp_path)
        with (folder / name).open("ab") as handle:
            handle.write(b"\n")
        assert document_digest(tmp_path) != digest
