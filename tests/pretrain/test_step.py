"""A step against the same sums written plainly: one text at a time, no padding, no cached gradients."""

import json
import math
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig

from tasks.chunk.params import Chunk
from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import load_towers
from tasks.core.models.folder import Shape
from tasks.core.models.mlm_head import MLMHead
from tasks.core.tokens.chunks import Chunks, open_chunks
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.figures import read_figures
from tasks.pretrain import step as step_module
from tasks.pretrain.batches import Batch, draw_batch, steps_of, usable_rows
from tasks.pretrain.model import Pretrainer, make_pretrainer, random_towers
from tasks.pretrain.params import Pretrain, Scratch
from tasks.pretrain.step import Step, Vectors, Work, geometry_metrics, make_step
from tasks.pretrain.words import Vocabulary, read_vocabulary
from tests.chunks import write_chunks

SIZE = Scratch(layers=1, width=16, heads=2)


def pretrain_params(**values: Any) -> Pretrain:
    return Pretrain.model_validate({"init": "base", "batch_texts": 4, "spans": 2, "paragraph": [20, 40], "batch_tokens": 512} | values)


@pytest.fixture(scope="module")
def tokenizer(tiny_encoder: Path) -> Any:
    return load_tokenizer(tiny_encoder)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Any) -> Vocabulary:
    return read_vocabulary(tokenizer, "tiny")


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Any, tokenizer: Any) -> Chunks:
    folder = tmp_path_factory.mktemp("chunks")
    texts = {d: text for d, (_, text) in list(tiny_corpus.documents.items())[:30]}
    write_chunks(folder, [(list(texts), list(texts.values()))], tokenizer, "digest", Chunk(length=64), len(texts))
    return open_chunks(folder)


def module_of(params: Pretrain, tiny_encoder: Path) -> Pretrainer:
    towers = random_towers(json.loads((tiny_encoder / "config.json").read_text()), Shape(pooling="cls"), SIZE, 3)
    head = MLMHead(towers.document.transformer.config)
    head.draw(torch.Generator().manual_seed(4))
    module = make_pretrainer(towers, head, params)
    return module.eval()  # without dropout a text's vectors do not depend on the rest of the batch


def reference_loss(module: Pretrainer, params: Pretrain, chunks: Chunks, vocabulary: Vocabulary) -> torch.Tensor:
    batch = draw_batch(chunks, usable_rows(chunks, params, ""), vocabulary, params, 3)

    def hidden(ids: Any) -> torch.Tensor:
        ids = torch.from_numpy(ids)[None]
        return module.hidden(ids, torch.ones_like(ids))[0]

    count = len(batch.clean)
    seen = [hidden(ids) for ids in (batch.seen or batch.clean)]
    vectors = seen if params.contrastive_input == "masked" else [hidden(ids) for ids in batch.clean]
    texts = [v[0] if module.pooling == "cls" else v.mean(0) for v in vectors]
    contrast = torch.zeros(())
    if params.objective == "costa":
        assert batch.spans is not None
        assert (module.projector is None) == (params.projector == "none")
        if module.projector is not None:
            linear = module.projector.linear
            texts = [F.linear(text, linear.weight, linear.bias) for text in texts]
            texts = [text.tanh() for text in texts] if params.projector == "nonlinear" else texts
        spans = [[torch.stack([vectors[k][i] for i in range(a, b)]).mean(0) for a, b in batch.spans[k]] for k in range(count)]
        if params.similarity == "cosine":
            texts, spans = [t / t.norm() for t in texts], [[s / s.norm() for s in own] for own in spans]
        for k in range(count):
            others = [texts[j] for j in range(count) if j != k] + [span for own in spans for span in own]
            denominator = torch.logsumexp(torch.stack([texts[k] @ other / params.tau for other in others]), 0)
            contrast = contrast + torch.stack([denominator - texts[k] @ span / params.tau for span in spans[k]]).mean()
    elif params.objective == "ict":
        count //= 2
        for k in range(count):
            scores = torch.stack([texts[k] @ texts[count + j] / params.tau for j in range(count)])
            contrast = contrast - torch.log_softmax(scores, 0)[k]
    if params.contrastive_reduction == "mean":
        contrast = contrast / count
    mlm, number = torch.zeros(()), 0
    for ids, row, places in zip(batch.clean, seen, batch.hidden, strict=False):
        for place in np.flatnonzero(places):
            assert module.head is not None
            logits = module.head(row[place][None], module.embeddings())[0]
            mlm, number = mlm - torch.log_softmax(logits, 0)[ids[place]], number + 1
    if params.mlm_reduction == "mean":
        mlm = mlm / max(1, number)
    decoded = reference_decoder_loss(module, params, batch, texts) if params.objective == "retromae" else torch.zeros(())
    return params.contrastive_weight * contrast * (params.objective in ("costa", "ict")) + params.mlm_weight * mlm + decoded


def reference_decoder_loss(module: Pretrainer, params: Pretrain, batch: Batch, texts: list[torch.Tensor]) -> torch.Tensor:
    """RetroMAE, Eq. 5 to 9, a text, a position, and a head at a time."""
    decoder, embeddings = module.decoder, module.encoder.transformer.embeddings
    assert decoder is not None and module.head is not None
    losses = []
    for ids, text, visible, decoded in zip(batch.clean, texts, batch.visible, batch.decoded, strict=True):
        embedded = embeddings(input_ids=torch.from_numpy(ids)[None])[0]
        context = [text, *embedded[1:]]
        for place in np.flatnonzero(decoded):
            asking = text + embeddings.position_embeddings.weight[place]
            query = decoder.query(asking).chunk(decoder.heads)
            heads = []
            for head in range(decoder.heads):
                seen = [context[j] for j in range(len(ids)) if visible[place, j]]
                keys, values = ([part(vector).chunk(decoder.heads)[head] for vector in seen] for part in (decoder.key, decoder.value))
                weights = torch.softmax(torch.stack([query[head] @ key / math.sqrt(len(key)) for key in keys]), 0)
                heads.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
            state = F.layer_norm(
                asking + decoder.out(torch.cat(heads)), (len(text),), decoder.attended.weight, decoder.attended.bias, 1e-12
            )
            state = F.layer_norm(
                state + decoder.down(F.gelu(decoder.up(state))), (len(text),), decoder.finished.weight, decoder.finished.bias, 1e-12
            )
            losses.append(-torch.log_softmax(module.head(state[None], module.embeddings())[0], 0)[ids[place]])
    return torch.stack(losses).sum() / (len(losses) if params.mlm_reduction == "mean" else 1)


CASES: list[dict[str, Any]] = [
    {},
    {"contrastive_input": "clean", "pooling": "mean", "projector": "linear", "contrastive_reduction": "sum"},
    {"mlm_weight": 0, "similarity": "cosine", "projector": "none", "granularities": ["word", "phrase"]},
    {"mlm_reduction": "sum", "temperature": 1.0},
    {"objective": "mlm"},
    {"objective": "retromae"},
    {"objective": "retromae", "mlm_reduction": "sum", "pooling": "mean", "decoder_mask_share": 0.7},
    {"objective": "ict", "temperature": 1.0},
    {"objective": "ict", "temperature": 1.0, "contrastive_input": "clean", "pooling": "mean"},
]


@pytest.mark.parametrize("values", CASES, ids=str)
def test_a_step_leaves_the_gradients_of_the_plain_sums(
    values: dict[str, Any], chunks: Chunks, vocabulary: Vocabulary, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = pretrain_params(**{"batch_texts": 12, **values})
    module = module_of(params, tiny_encoder)
    loss = reference_loss(module, params, chunks, vocabulary)
    loss.backward()
    plain = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    rows = usable_rows(chunks, params, "")
    # every cut encoded twice, some, none; and few logits at a time
    for graph_tokens, logits in ((0, 2**28), (300, 2**28), (10**6, 2**28), (10**6, 100_000)):
        monkeypatch.setattr(step_module, "LOGITS", logits)
        module.zero_grad()
        work = Work(torch.device("cpu"), torch.float32, graph_tokens, chunks.tokens.pad)
        step = Step(module, draw_batch(chunks, rows, vocabulary, params, 3), params, work, (1,), params.batch_tokens, None)
        metrics = read_figures(step.backward())
        assert len(step.cuts) >= 2
        assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
        for name, parameter in module.named_parameters():
            if name in plain:
                assert parameter.grad is not None, name
                torch.testing.assert_close(parameter.grad, plain[name], rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


METRICS: list[dict[str, Any]] = [
    {"contrastive_weight": 0.5, "mlm_weight": 3.0, "projector": "nonlinear"},
    {"contrastive_input": "clean", "similarity": "cosine", "contrastive_weight": 2.0, "contrastive_reduction": "sum"},
    {"objective": "mlm", "mlm_weight": 2.0},
    {"objective": "retromae", "mlm_weight": 0.25},
    {"objective": "ict", "contrastive_input": "clean", "pooling": "mean"},
]


@pytest.mark.parametrize("values", METRICS, ids=str)
def test_the_metrics_of_a_step_are_those_of_plain_loops(
    values: dict[str, Any], chunks: Chunks, vocabulary: Vocabulary, tiny_encoder: Path
) -> None:
    """Losses are plotted without their weights, and the geometry is of vectors before the projector."""
    params = pretrain_params(**{"batch_texts": 12, **values})
    module, rows = module_of(params, tiny_encoder), usable_rows(chunks, params, "")
    loss = reference_loss(module, params, chunks, vocabulary)
    batch = draw_batch(chunks, rows, vocabulary, params, 3)
    count, share = len(batch.clean), float(loss.detach())

    def hidden(ids: Any) -> torch.Tensor:
        ids = torch.from_numpy(ids)[None]
        return module.hidden(ids, torch.ones_like(ids))[0]

    with torch.no_grad():
        seen, clean = [hidden(ids) for ids in (batch.seen or batch.clean)], [hidden(ids) for ids in batch.clean]
        vectors = seen if params.objective in ("mlm", "retromae") or params.contrastive_input == "masked" else clean
        texts = [v[0] if module.pooling == "cls" else v.mean(0) for v in vectors]
        units = [text / text.norm() for text in texts]
        expected, near, owners, anchors = {"loss": share}, list[torch.Tensor](), list[int](), list[torch.Tensor]()
        if params.objective == "costa":
            assert batch.spans is not None
            spans = [[vectors[k][a:b].mean(0) for a, b in batch.spans[k]] for k in range(count)]
            near, owners = [span for own in spans for span in own], [k for k, own in enumerate(spans) for _ in own]
            anchors = [module.projected(text[None])[0] for text in texts]
            pairs = [(units[k], span / span.norm()) for k, own in enumerate(spans) for span in own]
        elif params.objective == "ict":
            near, owners, anchors = texts[count // 2 :], list(range(count // 2)), texts[: count // 2]
            pairs, units = list(zip(units[: count // 2], units[count // 2 :], strict=True)), units[count // 2 :]
        if anchors:
            scale = (lambda v: v / v.norm()) if params.similarity == "cosine" else (lambda v: v)
            scores = [[float(scale(text) @ scale(other)) for other in near] for text in anchors]
            expected["accuracy"] = sum(owners[int(np.argmax(row))] == k for k, row in enumerate(scores)) / len(anchors)
            expected["alignment"] = sum(float((text - span).square().sum()) for text, span in pairs) / len(pairs)
        spread = [math.exp(-2 * float((unit - other).square().sum())) for unit, other in combinations(units, 2)]
        expected["uniformity"] = math.log(sum(spread) / len(spread))
        if params.masked:
            assert module.head is not None
            logits = [
                module.head(row[p][None], module.embeddings())[0]
                for row, own in zip(seen, batch.hidden, strict=True)
                for p in np.flatnonzero(own)
            ]
            truth = [int(ids[p]) for ids, own in zip(batch.clean, batch.hidden, strict=True) for p in np.flatnonzero(own)]
            expected["mlm_loss"] = -sum(float(torch.log_softmax(row, 0)[t]) for row, t in zip(logits, truth, strict=True)) / len(truth)
            expected["token_accuracy"] = sum(int(row.argmax()) == t for row, t in zip(logits, truth, strict=True)) / len(truth)
            share -= params.mlm_weight * expected["mlm_loss"]
        if params.objective == "retromae":
            expected["decoder_loss"] = share
        elif anchors:
            expected["contrastive_loss"] = share / params.contrastive_weight
    work = Work(torch.device("cpu"), torch.float32, 300, chunks.tokens.pad)
    figures = read_figures(Step(module, batch, params, work, (1,), params.batch_tokens, None).backward())
    assert figures == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in expected.items()}


@pytest.mark.parametrize("rows", [10, 9, 3])
def test_tokens_that_are_predicted_correctly_are_counted(
    rows: int, chunks: Chunks, vocabulary: Vocabulary, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and in parts of few logits: four of ten are the head's own answers."""
    module = module_of(pretrain_params(), tiny_encoder)
    assert module.head is not None
    hidden = torch.randn(10, SIZE.width, generator=torch.Generator().manual_seed(1))
    logits = module.head(hidden, module.embeddings()).detach()
    truth = (logits.argmax(1) + (torch.arange(10) >= 4)) % len(module.embeddings())
    monkeypatch.setattr(step_module, "LOGITS", rows * len(module.embeddings()))
    batch = draw_batch(chunks, usable_rows(chunks, pretrain_params(), ""), vocabulary, pretrain_params(), 0)
    work = Work(torch.device("cpu"), torch.float32, 0, chunks.tokens.pad)
    losses, right = Step(module, batch, pretrain_params(), work, (1,), 512, None).predicted(hidden, truth)
    assert int(right) == 4
    torch.testing.assert_close(losses.detach(), logits.logsumexp(1) - logits[torch.arange(10), truth])


@pytest.mark.parametrize("values", [{"contrastive_input": "masked"}, {"contrastive_input": "clean"}, {"objective": "ict"}], ids=str)
def test_kept_graphs_change_nothing_with_dropout(
    values: dict[str, Any], chunks: Chunks, vocabulary: Vocabulary, tiny_encoder: Path
) -> None:
    """A cut that is encoded again draws the first pass's dropout. A step's dropout depends on its seed and its number."""
    params = pretrain_params(**{"batch_texts": 12, "seed": 6, **values})
    module, rows = module_of(params, tiny_encoder).train(), usable_rows(chunks, params, "")
    outcomes = []
    for graph_tokens in (0, 300, 10**6):
        module.zero_grad()
        work = Work(torch.device("cpu"), torch.float32, graph_tokens, chunks.tokens.pad)
        loss = float(make_step(module, chunks, rows, vocabulary, params, work)(3)["loss"])
        outcomes.append((loss, {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}))
    for loss, gradients in outcomes[1:]:
        assert loss == outcomes[0][0]
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, outcomes[0][1][name], rtol=1e-5, atol=1e-7, msg=name)
    batch = draw_batch(chunks, rows, vocabulary, params, 3)
    losses = [float(Step(module, batch, params, work, key, params.batch_tokens, None).backward()["loss"]) for key in ((6, 5, 3), (6, 5, 4))]
    assert losses[0] == outcomes[0][0] != losses[1]
    module.eval()
    assert float(Step(module, batch, params, work, (6, 5, 3), params.batch_tokens, None).backward()["loss"]) != losses[0], "dropout is on"


def test_the_geometry_of_the_inverse_cloze_task_is_of_pairs_and_of_passages() -> None:
    vectors = torch.randn(10, 6, generator=torch.Generator().manual_seed(5))
    metrics = read_figures(geometry_metrics(Vectors(vectors, None), pretrain_params(objective="ict")))
    units = [vector / vector.norm() for vector in vectors]
    queries, passages = units[:5], units[5:]
    distances = [float((query - passage).square().sum()) for query, passage in zip(queries, passages, strict=True)]
    spread = [math.exp(-2 * float((first - second).square().sum())) for first, second in combinations(passages, 2)]
    assert metrics["alignment"] == pytest.approx(sum(distances) / 5, rel=1e-5)
    assert metrics["uniformity"] == pytest.approx(math.log(sum(spread) / 10), rel=1e-5)
    assert set(geometry_metrics(Vectors(vectors, None), pretrain_params(objective="mlm"))) == {"uniformity"}


def test_ict_removes_one_whole_sentence(chunks: Chunks, vocabulary: Vocabulary) -> None:
    params = pretrain_params(objective="ict", batch_texts=8)
    rows = usable_rows(chunks, params, "")
    assert (chunks.sentence_counts[rows] >= 2).all() and len(rows) < len(chunks)
    chunk_sentences = {tuple(chunks.row(row).tolist()): chunks.sentences(row) for row in rows.tolist()}
    for step in range(3):
        batch = draw_batch(chunks, rows, vocabulary, params, step)
        for sentence, passage in zip(batch.clean[:8], batch.clean[8:], strict=True):
            matches = 0
            for ids, bounds in chunk_sentences.items():
                for start, end in pairwise(bounds):
                    removed, remainder = [ids[0], *ids[start:end], ids[-1]], [*ids[:start], *ids[end:]]
                    matches += removed == sentence.tolist() and remainder == passage.tolist()
            assert matches, "a sentence and its chunk without it"


def test_epoch_sees_every_chunk_once_and_redraws_spans_unless_fixed(chunks: Chunks, vocabulary: Vocabulary) -> None:
    params = pretrain_params(batch_texts=3)
    rows = usable_rows(chunks, params, "")
    per_epoch = len(rows) // 3
    texts = [tuple(ids.tolist()) for step in range(per_epoch) for ids in draw_batch(chunks, rows, vocabulary, params, step).clean]
    assert len(texts) == len(set(texts)) == per_epoch * 3
    assert steps_of(rows, pretrain_params(batch_texts=3, epochs=2)) == 2 * per_epoch

    def spans_of(params: Pretrain, epoch: int) -> dict[tuple[int, ...], Any]:
        batches = [draw_batch(chunks, rows, vocabulary, params, epoch * per_epoch + step) for step in range(per_epoch)]
        return {tuple(ids.tolist()): spans.tolist() for b in batches for ids, spans in zip(b.clean, b.spans, strict=True)}

    for redraw in (True, False):
        first, second = (spans_of(pretrain_params(batch_texts=3, redraw=redraw), epoch) for epoch in (0, 1))
        same = [first[text] == second[text] for text in first.keys() & second.keys()]
        assert same and (not any(same) if redraw else all(same))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"paragraph": [64, 128]}, r"p.paragraph: found \[64, 128\], but the longest text has \d+ tokens; decrease it"),
        ({"spans": 70}, r"p.spans: found 70, but the longest text has \d+ tokens; decrease it"),
    ],
)
def test_settings_that_no_text_can_satisfy_are_refused(values: dict[str, Any], line: str, chunks: Chunks) -> None:
    with pytest.raises(UserError, match=line):
        usable_rows(chunks, pretrain_params(**values), "p")


@pytest.mark.parametrize(
    ("sentences", "objective", "line"),
    [
        ([1, 1, 1], "ict", r"^p.objective: ict removes a sentence from a chunk, but no chunk has two; increase chunk.length$"),
        ([1, 2, 1], "ict", "^p: found 1 chunk to train on, expected at least two; choose a larger articles.source$"),
        ([2], "mlm", "^p: found 1 chunk to train on"),
        ([], "mlm", "^p: found 0 chunks to train on"),
    ],
)
def test_too_few_chunks_are_refused(sentences: list[int], objective: str, line: str) -> None:
    class Few:
        sentence_counts = np.array(sentences)

        def __len__(self) -> int:
            return len(self.sentence_counts)

    store: Any = Few()
    with pytest.raises(UserError, match=line):
        usable_rows(store, pretrain_params(objective=objective), "p")
    store.sentence_counts = np.array([*sentences, 2, 2])
    expected = [row for row, count in enumerate(store.sentence_counts) if count >= 2 or objective != "ict"]
    assert usable_rows(store, pretrain_params(objective=objective), "p").tolist() == expected


def test_an_encoder_of_several_poolings_is_refused_unless_one_is_chosen(tiny_encoder: Path) -> None:
    towers = load_towers(tiny_encoder, Shape(pooling="cls+mean"))
    with pytest.raises(UserError, match=r"found an encoder of several poolings \(cls\+mean\), expected one; set pooling"):
        make_pretrainer(towers, None, pretrain_params(objective="ict"))
    assert make_pretrainer(towers, None, pretrain_params(objective="ict", pooling="mean")).pooling == "mean"


def test_the_first_token_of_a_decoder_is_refused(start: Callable[[str], Path]) -> None:
    towers = load_towers(start("qwen3"))
    with pytest.raises(
        UserError, match=r"^pretrain: found pooling cls over a causal transformer \(qwen3\), whose first token sees no other"
    ):
        make_pretrainer(towers, None, pretrain_params(objective="ict", pooling="cls"))
    assert make_pretrainer(towers, None, pretrain_params(objective="ict")).pooling == "last"


@pytest.mark.parametrize("kind", ["modernbert", "qwen3"])
def test_a_new_size_does_not_keep_what_layers_or_heads_had(kind: str) -> None:
    """Their config.json has a type for each layer, and numbers of key heads that another number of heads may not be a multiple of."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 64}
    config = json.loads(AutoConfig.for_model(kind, **sizes, pad_token_id=0).to_json_string(use_diff=False))
    config |= {"num_key_value_heads": 2} if kind == "qwen3" else {}
    assert len(config["layer_types"]) == 2
    transformer = random_towers(config, Shape(), Scratch(layers=3, width=24, heads=3), 1).document.transformer
    assert (transformer.config.num_hidden_layers, len(transformer.config.layer_types), transformer.config.hidden_size) == (3, 3, 24)
    assert transformer(input_ids=torch.arange(4)[None]).last_hidden_state.shape == (1, 4, 24)
    if kind == "modernbert":
        with pytest.raises(UserError, match=r"^scratch: a modernbert model cannot have this size \(.*\); choose another$"):
            random_towers(config | {"hidden_activation": "none such"}, Shape(), SIZE, 1)


@pytest.mark.parametrize("values", [{"temperature": 0}, {"phrase": [5, 4]}, {"beta": [0, 1]}, {"objective": "mlm", "mlm_weight": 0}])
def test_parameters_that_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values)) if len(values) == 1 else "no loss"):
        pretrain_params(**values)
