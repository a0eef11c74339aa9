"""Losses and gradients beside the authors' own code, in float64 or float32, from the same weights and inputs. Nothing is timed.

    python benchmarks/authors.py --jpq FOLDER --retromae FOLDER

The folders are checkouts of jingtaozhan/JPQ (read at commit 5c2fd80) and staoxiao/RetroMAE (ee37587); one may be left out. DRhard's and
ANCE's code are checked and timed by papers.py and ance.py. What later versions of transformers lack is given to them.

JPQ: compute_loss of run_train.py over an OPQ index, with known positives in and outside the list. Positives that were not retrieved are
sorted by row, as ours are; its own order is that of a Python set. RetroMAE: RetroMAEForPretraining, encoder and decoder, on texts of
several lengths.
"""

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import faiss
import numpy as np
import torch
import transformers.modeling_utils
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM

from tasks.adore.documents import Centroids
from tasks.adore.lists import complete_lists
from tasks.adore.params import Adore
from tasks.adore.step import list_loss, make_corpus
from tasks.pretrain.decoder import Decoder, decoder_inputs

CPU = torch.device("cpu")
ROWS, WIDTH, QUERIES, DEPTH, TRIALS = 10_000, 32, 12, 50, 20
TEXTS, TOKENS, VOCABULARY = 5, 17, 300
LABELLED = -100  # torch's index of a token that is not predicted


def apart(first: torch.Tensor, second: torch.Tensor) -> float:
    """How far the second is from the first, of its norm."""
    return float((first - second).norm() / first.norm())


def theirs_of_jpq(folder: Path) -> Any:
    """compute_loss and what it calls: the rest of its module imports TensorBoard and a tokenizer of its own."""
    text = (folder / "jpq/run_train.py").read_text(encoding="utf-8")
    text = text[text.index("def get_doc_embeds") : text.index("def train(args")]
    with tempfile.TemporaryDirectory() as place:
        Path(place, "jpq_loss.py").write_text(f"import torch\n\n{text}", encoding="utf-8")
        sys.path.insert(0, place)
        module: Any = importlib.import_module("jpq_loss")
        sys.path.remove(place)
    module.list = sorted  # of a set of positives
    return module.compute_loss


def jpq(folder: Path) -> str:
    """AssertionError unless loss and gradients of queries and centroids are the same."""
    compute_loss, draw = theirs_of_jpq(folder), np.random.default_rng(0)
    vectors = draw.standard_normal((ROWS, WIDTH), dtype=np.float32)
    index = faiss.index_factory(WIDTH, "OPQ8,IVF1,PQ8x8", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    rotation = faiss.downcast_VectorTransform(index.chain.at(0))
    matrix = torch.from_numpy(faiss.vector_to_array(rotation.A).reshape(rotation.d_out, rotation.d_in).copy())
    ours = Centroids(index, CPU, "adore")
    codes, places = torch.from_numpy(ours.codes.astype(np.int64)), np.arange(ROWS)
    corpus = make_corpus(ours, places.astype(np.int32), places, DEPTH)
    worst = np.zeros(3)
    for trial in range(TRIALS):
        vectors_QD = torch.from_numpy(draw.standard_normal((QUERIES, WIDTH), dtype=np.float32))
        ranked = torch.from_numpy(index.search(vectors_QD.numpy(), DEPTH)[1])
        positive_rows = [draw.choice(ROWS, size=draw.integers(1, 4), replace=False) for _ in range(QUERIES)]
        for query in range(0, QUERIES, 3):
            positive_rows[query][0] = ranked[query, draw.integers(12)]
        positives = [np.unique(rows) for rows in positive_rows]
        cut = (10, DEPTH, 4 * DEPTH)[trial % 3]

        query_1, centroids = vectors_QD.clone().requires_grad_(), ours.weight.detach().clone().requires_grad_()
        loss_1, _ = compute_loss(query_1 @ matrix.T, codes, centroids, ranked, [rows.tolist() for rows in positives], cut)
        loss_1.backward()

        query_2, ones = vectors_QD.clone().requires_grad_(), [np.ones(len(rows), np.int64) for rows in positives]
        params = Adore(round="r", negatives="none", steps=1, depth=DEPTH, temperature=1.0, cut=cut, missing="jpq")
        rows = corpus.top_rows(vectors_QD)
        lists = complete_lists(
            rows, corpus.owners, positives, positives, corpus.best_rows(query_2), params.handling, np.random.default_rng(0), ones
        )
        ours.zero_grad()
        loss_2 = list_loss(query_2, lists, corpus, np.ones((QUERIES, 4), np.int64), params)
        loss_2.backward()  # type: ignore[no-untyped-call]
        pairs = (loss_1, loss_2), (query_1.grad, query_2.grad), (centroids.grad, ours.weight.grad)
        worst = np.maximum(worst, [apart(first.detach(), second.detach()) for first, second in pairs])  # type: ignore[union-attr]
    assert worst.max() < 1e-5, worst
    return f"JPQ: loss {loss_2.item():.6f}; of {TRIALS} batches loss, query and centroid gradients differ by {worst.max():.0e} at most"


def theirs_of_retromae(folder: Path, config: BertConfig) -> Any:
    """Its module over a new BERT, in float64."""
    for name in ("apply_chunking_to_forward", "find_pruneable_heads_and_indices", "prune_linear_layer"):
        if not hasattr(transformers.modeling_utils, name):
            setattr(transformers.modeling_utils, name, lambda forward, _size, _dim, *given: forward(*given))
    package, arguments = ModuleType("pretrain"), ModuleType("pretrain.arguments")
    package.__path__ = [str(folder / "src/pretrain")]
    arguments.ModelArguments = object  # type: ignore[attr-defined]
    sys.modules |= {"pretrain": package, "pretrain.arguments": arguments}
    torch.manual_seed(0)
    model = importlib.import_module("pretrain.modeling").RetroMAEForPretraining(BertForMaskedLM(config), None).double()
    model.lm.get_extended_attention_mask = lambda mask, *_: (1 - mask.double()).unsqueeze(1) * torch.finfo(torch.float64).min
    return model


def retromae(folder: Path) -> str:
    """AssertionError unless loss and gradients of encoder, MLM head, and decoder are the same."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": VOCABULARY}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(**sizes, **dropout, max_position_embeddings=64, attn_implementation="eager")
    theirs, draw = theirs_of_retromae(folder, config), torch.Generator().manual_seed(0)
    language, layer = theirs.lm, theirs.c_head
    lengths = torch.tensor([TOKENS, 12, 9, TOKENS, 5])
    place = torch.arange(TOKENS)
    real = place < lengths[:, None]
    inner = real & (place > 0) & (place < lengths[:, None] - 1)
    ids = torch.randint(10, VOCABULARY, (TEXTS, TOKENS), generator=draw) * real
    hidden = inner & (torch.rand(TEXTS, TOKENS, generator=draw) < 0.3)
    masked, hidden_ids, all_labels = ids.masked_fill(hidden, 4), ids.masked_fill(~hidden, LABELLED), ids.masked_fill(~inner, LABELLED)
    visible = (torch.rand(TEXTS, TOKENS, TOKENS, generator=draw) < 0.5) | (place == lengths[:, None] - 1).unsqueeze(1)
    visible &= real.unsqueeze(1) & ~torch.eye(TOKENS, dtype=torch.bool)
    visible[:, :, 0] = True
    loss_1 = theirs(masked, real.long(), hidden_ids, ids, visible.long(), all_labels)[0]
    loss_1.backward()
    expected = {name: weight.grad.clone() for name, weight in theirs.named_parameters() if weight.grad is not None}

    decoder, attention = Decoder(config).double(), layer.attention
    modules = {"query": attention.self.query, "key": attention.self.key, "value": attention.self.value, "out": attention.output.dense}
    modules |= {"up": layer.intermediate.dense, "down": layer.output.dense}
    modules |= {"attended": attention.output.LayerNorm, "finished": layer.output.LayerNorm}
    for name, module in modules.items():
        decoder.get_submodule(name).load_state_dict(module.state_dict())
    language.zero_grad()
    outputs = language.bert(masked, attention_mask=real.long()).last_hidden_state
    decoded = decoder(*decoder_inputs(language.bert, ids, outputs[:, 0]), visible)
    losses = [
        F.cross_entropy(language.cls(of).flatten(0, 1), labels.flatten()) for of, labels in ((outputs, hidden_ids), (decoded, all_labels))
    ]
    loss_2 = sum(losses[1:], losses[0])
    loss_2.backward()  # type: ignore[no-untyped-call]
    encoder = dict(language.named_parameters())
    pairs = [(gradient, encoder[name.removeprefix("lm.")].grad) for name, gradient in expected.items() if name.startswith("lm.")]
    pairs += [
        (expected[f"c_head.{parameter}"], decoder_gradient) for parameter, decoder_gradient in decoder_gradients(layer, modules, decoder)
    ]
    worst = max(float((first - second).abs().max()) for first, second in pairs)
    assert worst < 1e-12 and abs(loss_1.item() - loss_2.item()) < 1e-10, (worst, loss_1, loss_2)
    return f"RetroMAE: loss {loss_2.item():.9f}, its own {loss_1.item():.9f}; gradients differ by {worst:.0e} at most"


def decoder_gradients(layer: nn.Module, parts: dict[str, nn.Module], decoder: Decoder) -> list[tuple[str, torch.Tensor]]:
    """Our decoder's gradients by the names of theirs."""
    names = {id(module): name for name, module in layer.named_modules()}
    gradients = []
    for name, part in parts.items():
        for kind, weight in decoder.get_submodule(name).named_parameters():
            assert weight.grad is not None
            gradients.append((f"{names[id(part)]}.{kind}", weight.grad))
    return gradients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("jpq", "retromae"):
        parser.add_argument(f"--{name}", type=Path)
    args = parser.parse_args()
    for folder, check in ((args.jpq, jpq), (args.retromae, retromae)):
        if folder:
            print(check(folder.absolute()))


if __name__ == "__main__":
    main()
