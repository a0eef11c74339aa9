"""The run of an encoder equals a ranking by plain Python, from the token and embedding folders that other code reads."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.models.bi_encoder import load_towers
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.tables.schemas import RANKED
from tasks.core.tokens.folder import open_tokens
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.retrieve.dense import dense_run
from tasks.retrieve.params import Retrieve


@pytest.fixture(scope="module", params=[1, 4], ids=["FirstP", "MaxP"])
def project(request: pytest.FixtureRequest, tiny_corpus: Any, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny corpus, tokenized and encoded as the stages do, with documents as one passage or as up to four."""
    folder, tokenizer = tmp_path_factory.mktemp("dense"), load_tokenizer(tiny_encoder)
    texts = {d: text for d, (_, text) in tiny_corpus.documents.items()}
    for name, rows in {"documents": texts, "queries/dev": tiny_corpus.queries["dev"], "queries/test": {}}.items():
        batches = [(list(rows), list(rows.values()))] if rows else []
        write_tokens(
            folder / "tokens" / name,
            batches,
            tokenizer,
            Cut(32 // request.param, "", 1 if name != "documents" else request.param),
            digest="",
            total=len(rows),
        )
    (folder / "params.yaml").write_text("encode: {precision: fp32, dtype: float32, batch_tokens: 512}\n")
    freeze_parameters(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["encode", "--tokens=tokens/documents", f"--encoder={tiny_encoder}", "--out=embeddings"])
        import_module("tasks.encode.__main__").main()
    return folder


@pytest.mark.parametrize("depth", [1, 10, 1000])
def test_dense_run_equals_brute_force(
    depth: int, project: Path, tiny_corpus: Any, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    run = dense_run(tiny_encoder, Path("embeddings"), Path("tokens"), "dev", Retrieve(depth=depth, precision="fp32"))
    table = pa.Table.from_batches(run, RANKED)
    tower = load_towers(tiny_encoder).query
    tokens, corpus = open_tokens(project / "tokens" / "queries" / "dev"), open_embeddings(project / "embeddings")
    vectors = np.concatenate([block for _, block in corpus.blocks()]).astype(np.float64)
    expected = []
    for number, query in enumerate(tiny_corpus.queries["dev"]):
        with torch.no_grad():
            query_vector = tower(*tokens.padded(np.array([number])))[0].numpy().astype(np.float64)
        scores: dict[str, float] = {}
        for owner, vector in zip(corpus.owners().tolist(), vectors, strict=True):
            document = list(tiny_corpus.documents)[owner]
            scores[document] = max(scores.get(document, -np.inf), float(sum(query_vector * vector)))
        assert len(scores) == len(tiny_corpus.documents)
        best = sorted(scores, key=lambda document: -scores[document])[:depth]
        expected += [(query, document, rank, pytest.approx(scores[document], abs=1e-3)) for rank, document in enumerate(best, 1)]
    assert [tuple(row.values()) for row in table.to_pylist()] == expected


def test_an_index_folder_is_searched_if_it_contains_an_index(project: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    params = Retrieve(depth=5, precision="fp32")

    def search_with(index: Path | None) -> pa.Table:
        return pa.Table.from_batches(dense_run(tiny_encoder, Path("embeddings"), Path("tokens"), "dev", params, index), RANKED)

    exact = search_with(None)
    (project / "none").mkdir()
    assert search_with(Path("none")).equals(exact)
    vectors = np.concatenate([block for _, block in open_embeddings(Path("embeddings")).blocks()])
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors * np.arange(1, len(vectors) + 1, dtype=np.float32)[:, None])  # other vectors: other ranks
    (project / "own").mkdir()
    faiss.write_index(index, "own/index.faiss")
    rows = search_with(Path("own"))
    assert rows["doc"].to_pylist() != exact["doc"].to_pylist() and rows.num_rows == exact.num_rows


def test_short_lists_of_an_index_are_told(
    project: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    opened = open_embeddings(Path("embeddings"))
    vectors, documents = np.concatenate([block for _, block in opened.blocks()]), len(opened.ids())
    index = faiss.index_factory(vectors.shape[1], "IVF4,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    for folder, section in {"few": "index", "tower": "adore.tower"}.items():
        Path(folder).mkdir()
        faiss.write_index(index, f"{folder}/index.faiss")
        if section != "index":
            Path(folder, "index.json").write_text("{}")
        params = Retrieve(depth=1000, precision="fp32")
        table = pa.Table.from_batches(dense_run(tiny_encoder, Path("embeddings"), Path("tokens"), "dev", params, Path(folder)), RANKED)
        lists = len(open_tokens(Path("tokens/queries/dev")))
        lengths = [table["query"].to_pylist().count(query) for query in open_tokens(Path("tokens/queries/dev")).ids().to_pylist()]
        short = [length for length in lengths if length < documents]
        assert capsys.readouterr().out.splitlines() == [
            f"search dev: the index found too few results for {len(short)} of {lists} queries, {min(short)} of {documents} at worst; "
            f"raise {section}.nprobe (1 of 4 inverted lists probed)"
        ]
    index.nprobe = 4
    faiss.write_index(index, "few/index.faiss")
    assert len(list(dense_run(tiny_encoder, Path("embeddings"), Path("tokens"), "dev", params, Path("few"))))
    assert not capsys.readouterr().out


def test_a_split_without_queries_gives_an_empty_run(project: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    table = pa.Table.from_batches(dense_run(tiny_encoder, Path("embeddings"), Path("tokens"), "test", Retrieve()), RANKED)
    assert table.num_rows == 0 and table.schema.equals(RANKED)
