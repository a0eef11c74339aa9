"""Rounds that start from decoders, other poolings, and layers of other widths: gradients by hand, and the stages one after another."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.nn import functional as F

from tasks.core.models.bi_encoder import Encoder, Towers, load_towers, save_towers, truncate
from tasks.core.models.folder import read_shape
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.tables.judgments import lists_of
from tasks.core.tokens.folder import Tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.compute import Compute
from tasks.core.trec.runs import read_scored_run
from tasks.train.batches import TrainingSet
from tasks.train.lora import adapt, merge
from tasks.train.params import Lora, Round
from tasks.train.step import make_step
from tests.starts import WIDTH

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
PAIRS = 6  # queries; document n is the only positive of query n
SCALE = {"qwen3": 0.1, "llama": 5.0, "gpt2": 0.1, "gemma": 0.1, "t5": 0.1}  # temperatures that leave gradients of a size
Start = Callable[[str], Path]


def tokens_of(lengths: list[int], seed: int) -> Tokens:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.random.default_rng(seed).integers(0, 256, size=offsets[-1]).astype(np.int32)
    return Tokens(flat, offsets, np.arange(len(lengths), dtype=np.int32), Path(), 257, 64, "", "")


QUERIES, DOCUMENTS = tokens_of([4, 9, 3, 5, 6, 2], 1), tokens_of([12, 30, 7, 22, 5, 17], 2)


def gradients(
    towers: Towers, name: str, step: int = 0, dtype: torch.dtype = torch.float32, graph_tokens: int = 0
) -> dict[str, torch.Tensor]:
    """Of a training step, its texts padded and in several chunks."""
    own = lists_of(np.arange(PAIRS), np.arange(PAIRS), PAIRS)
    data = TrainingSet(np.arange(PAIRS), own, lists_of(np.arange(0), np.arange(0), PAIRS), PAIRS, own)
    values = {"init": "base", "negatives": "none", "batch_queries": PAIRS, "temperature": SCALE[name]}
    params = Round.model_validate(values).model_copy(update={"batch_tokens": 64})
    towers.document.zero_grad()
    make_step(towers, QUERIES, DOCUMENTS, data, params, Compute(CPU, dtype, graph_tokens))(step)
    return {key: weight.grad.clone() for key, weight in towers.document.named_parameters() if weight.grad is not None}


def reference_vectors(name: str, tower: Encoder, tokens: Tokens) -> torch.Tensor:
    """Vectors of texts one at a time, without padding, by the transformer alone and what is written in tests/starts.py."""
    vectors = []
    for n in range(PAIRS):
        ids = torch.from_numpy(tokens.flat[tokens.offsets[n] : tokens.offsets[n + 1]].astype(np.int64))[None]
        hidden = tower.transformer(input_ids=ids).last_hidden_state[0]
        vector = hidden[-1] if name in ("qwen3", "gpt2") else hidden.mean(0)
        weights = dict(tower.head.named_parameters()) if tower.head else {}
        if name in ("llama", "gpt2"):
            vector = weights["linear.weight"] @ vector + weights["linear.bias"]
            vector = vector.tanh() if name == "llama" else vector.clamp(min=0)
        if name == "t5":
            vector = weights["linear.weight"] @ vector
        if name == "gemma":
            vector = F.gelu(weights["linear_2.weight"] @ (weights["linear.weight"] @ vector))
        vectors.append(vector)
    return torch.stack(vectors)


@pytest.mark.parametrize("width", [None, 8])
@pytest.mark.parametrize("name", SCALE)
def test_gradients_are_those_of_a_plain_loop(name: str, width: int | None, start: Start) -> None:
    towers = load_towers(start(name))
    if width:
        truncate(towers, width, "width")
    plain = load_towers(start(name)).document
    vectors = [reference_vectors(name, plain, tokens)[:, :width] for tokens in (QUERIES, DOCUMENTS)]
    if name != "llama":
        vectors = [F.normalize(each, dim=-1) for each in vectors]
    F.cross_entropy(vectors[0] @ vectors[1].T / SCALE[name], torch.arange(PAIRS)).backward()
    expected = {key: weight.grad for key, weight in plain.named_parameters() if weight.grad is not None}
    assert len(expected) > 10 and all(gradient.abs().max() > 1e-6 for gradient in expected.values())
    for graph_tokens in (0, 10**6):
        actual = gradients(towers, name, graph_tokens=graph_tokens)
        assert actual.keys() == expected.keys()
        for key, gradient in actual.items():
            torch.testing.assert_close(gradient, expected[key], rtol=2e-3, atol=2e-4 * float(expected[key].abs().max()), msg=key)


@pytest.mark.parametrize("name", SCALE)
def test_bf16_autocast_is_close(name: str, start: Start) -> None:
    exact, rounded = (gradients(load_towers(start(name)), name, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert exact.keys() == rounded.keys()
    exact_flat, rounded_flat = (torch.cat([gradient.flatten() for gradient in grads.values()]) for grads in (exact, rounded))
    assert rounded_flat.dtype == torch.float32 and F.cosine_similarity(exact_flat, rounded_flat, dim=0) > 0.95


def test_dropout_of_a_decoder_is_a_function_of_the_step(start: Start) -> None:
    """GPT-2 has some, in its attention too; the second pass of gradient caching draws what the first one did."""
    runs = []
    for number, settings in enumerate(({}, {}, {"graph_tokens": 10**6}, {"step": 1})):
        torch.manual_seed(number)
        towers = load_towers(start("gpt2"))
        towers.document.train()
        runs.append(gradients(towers, "gpt2", **settings))
    for key, gradient in runs[0].items():
        assert torch.equal(gradient, runs[1][key]), key
        torch.testing.assert_close(gradient, runs[2][key], rtol=1e-3, atol=1e-5)
    assert any(not torch.allclose(gradient, runs[3][key], rtol=1e-2) for key, gradient in runs[0].items())


@pytest.mark.parametrize(("name", "targets"), [("qwen3", ("q_proj", "v_proj")), ("gpt2", ("c_attn", "c_fc"))])
def test_adapters_of_a_decoder_are_merged(start: Start, tmp_path: Path, name: str, targets: tuple[str, ...]) -> None:
    folder = start(name)
    towers = load_towers(folder)
    assert adapt(towers, Lora(rank=2, targets=targets), 5, "lora").startswith("LoRA of rank 2 on 4 linear layers")
    grads = gradients(towers, name)
    assert len(grads) == 8 and all("lora_" in key for key in grads)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, weight in towers.document.named_parameters():
            if "lora_" in key:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
        wrapped = towers.document(*DOCUMENTS.padded(np.arange(PAIRS)))
        merge(towers)
        torch.testing.assert_close(towers.document(*DOCUMENTS.padded(np.arange(PAIRS))), wrapped, rtol=1e-3, atol=1e-5)
    (tmp_path / "m").mkdir()
    save_towers(towers, load_tokenizer(folder), tmp_path / "m")
    reloaded = load_towers(tmp_path / "m").document
    with torch.no_grad():
        torch.testing.assert_close(reloaded(*DOCUMENTS.padded(np.arange(PAIRS))), wrapped, rtol=1e-3, atol=1e-5)
        assert (load_towers(folder).document(*DOCUMENTS.padded(np.arange(PAIRS))) - wrapped).abs().max() > 0.01


PARAMS = """
text: {titles: false}
tokenize: {query_length: 20, document_length: 24, document_prefix: "text: "}
bm25: {depth: 20}
rounds:
  plain: {init: base, negatives: bm25, steps: 6, batch_queries: 8, lr: 1e-3, precision: fp32}
  narrow: {init: base, negatives: bm25, steps: 6, batch_queries: 8, lr: 1e-3, precision: fp32, width: 12}
  adapted: {init: base, negatives: bm25, steps: 6, batch_queries: 8, lr: 1e-2, lora: {rank: 2}, precision: bf16}
  wide: {init: base, negatives: bm25, steps: 6, width: 64}
encode: {precision: fp32}
retrieve: {depth: 20, precision: fp32}
adore: {tuned: {round: narrow, negatives: none, steps: 4, batch_queries: 8, depth: 10, lr: 1e-3, precision: fp32}}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Any, start: Start, run_stage: Any) -> Path:
    """A project whose encoder is a decoder that pads on the left and pools the last token, an end that its tokenizer adds."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "params.yaml").write_text(f"base: {{}}\nencoder: {{source: '{start('qwen3')}'}}\n{PARAMS}")
    (folder / "runtime.yaml").write_text("device: cpu\nthreads: 1\n")
    shutil.copytree(tiny_corpus.records, folder / "corpus")
    output = run_stage(folder, "base", "--encoder", "base", "--state", "base_state", "--tokenizer", "tokenizer")
    assert "base: the source's own prompts are {'query': 'Instruct: find it\\nQuery: ', 'document': 'text: '}" in output
    run_stage(folder, "tokenize", "--corpus", "corpus", "--tokenizer", "tokenizer", "--out", "tokens")
    run_stage(folder, "bm25", "--corpus", "corpus", "--index", "bm25", "--candidates", "candidates", "--negatives", "negatives")
    return folder


def train_arguments(name: str) -> list[str]:
    outs = [part for kind in ("encoder", "state", "curves") for part in (f"--{kind}", f"{name}/{kind}")]
    return ["--name", name, "--init", "base", "--negatives", "negatives", "--tokens", "tokens", "--corpus", "corpus", *outs]


def train_and_encode(project: Path, name: str, run_stage: Any) -> np.ndarray:
    run_stage(project, "train", *train_arguments(name))
    run_stage(project, "encode", "--tokens", "tokens/documents", "--encoder", f"{name}/encoder", "--out", f"{name}/vectors")
    return np.concatenate([np.asarray(block) for _, block in open_embeddings(project / f"{name}/vectors").blocks()])


@pytest.mark.parametrize(("name", "width"), [("plain", WIDTH), ("adapted", WIDTH), ("narrow", 12)])
def test_what_a_round_saves_and_encodes_is_what_they_load(name: str, width: int, project: Path, tiny_corpus: Any, run_stage: Any) -> None:
    vectors = train_and_encode(project, name, run_stage)
    model = SentenceTransformer(str(project / name / "encoder"), device="cpu")
    assert (model.max_seq_length, model.prompts["document"]) == (24, "text: ")
    ids = open_embeddings(project / name / "vectors").ids().to_pylist()
    expected = model.encode_document([tiny_corpus.documents[doc][1] for doc in ids], show_progress_bar=False)
    assert vectors.shape == expected.shape == (len(ids), width)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    start = load_towers(project / "base").document.state_dict()
    moved = [
        key for key, weight in load_towers(project / name / "encoder").document.state_dict().items() if not torch.equal(weight, start[key])
    ]
    assert moved and (name != "adapted" or all(key.endswith("_proj.weight") for key in moved))


def test_adore_trains_and_retrieves_with_the_width_of_its_round(project: Path, tiny_corpus: Any, run_stage: Any) -> None:
    if not (project / "narrow/vectors").exists():
        train_and_encode(project, "narrow", run_stage)
    outs = [part for kind in ("encoder", "index", "curves", "state") for part in (f"--{kind}", f"tuned/{kind}")]
    data = ["--round", "narrow/encoder", "--embeddings", "narrow/vectors", "--tokens", "tokens", "--corpus", "corpus"]
    run_stage(project, "adore", "--name", "tuned", *data, "--negatives", "negatives", *outs)
    towers = load_towers(project / "tuned/encoder")
    assert (towers.query.width, towers.document.width, towers.shared) == (12, 12, False)
    assert read_shape(project / "tuned/encoder").width == 12
    inputs = ["--encoder", "tuned/encoder", "--embeddings", "narrow/vectors", "--index", "tuned/index", "--tokens", "tokens"]
    run_stage(project, "retrieve", "--name", "tuned", *inputs, "--out", "tuned/runs")
    model = SentenceTransformer(str(project / "tuned/encoder"), device="cpu")
    queries = list(tiny_corpus.queries["dev"].items())
    documents = open_embeddings(project / "narrow/vectors")
    vectors = np.concatenate([np.asarray(block) for _, block in documents.blocks()])
    scores = model.encode_query([text for _, text in queries], show_progress_bar=False) @ vectors.T
    ids = documents.ids().to_pylist()
    runs = {query: (best, run_scores) for query, best, run_scores in read_scored_run(project / "tuned/runs/dev.trec", 20)}
    for (query, _), row in zip(queries, scores, strict=True):
        best, run_scores = runs[query]
        np.testing.assert_allclose(run_scores, sorted(row, reverse=True)[:20], atol=1e-5)
        np.testing.assert_allclose(run_scores, [row[ids.index(doc)] for doc in best], atol=1e-5)


def test_a_width_that_a_vector_has_not_is_one_line(project: Path, try_stage: Any) -> None:
    result = try_stage(project, "train", *train_arguments("wide"))
    assert (result.status, result.err.splitlines()[-1]) == (
        2,
        "retemper: params.yaml: rounds.wide.width: found 64, expected at most 32, the vector's width; decrease it",
    )
    assert not (project / "wide/encoder").exists()
