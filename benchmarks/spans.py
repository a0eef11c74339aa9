"""Does a text find a span of its own that was encoded alone? Asked of pre-trainings before any fine-tuning (COSTA's gate).

    python benchmarks/spans.py FOLDER... --articles jsonl:PATH [--texts 2000] [--length 128] [--seed 1]

FOLDER: an encoder (data/encoders/NAME); the first is what the others are compared with. Articles should be unseen by all of them.
A text of at most `length` tokens, and more than half of them, is a query. Its relevant document is one span of it, [CLS] span [SEP],
among the spans of all the texts, by the encoder's own pooling and similarity. In training, a span is pooled from its text's own outputs
(Eq. 7), so a signature of the text solves the task; here it does not. One span a text of each granularity: phrase [1, 4] tokens,
sentence [4, 16], paragraph [16, 32]. Reported are reciprocal ranks, how often the span is the first, and a paired permutation test
against the first encoder. No GPU is used.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tasks.articles.extract import extract
from tasks.articles.params import Articles
from tasks.chunk.params import Chunk
from tasks.chunk.store import Chunker, write_parts
from tasks.core.models.bi_encoder import Encoder, load_towers
from tasks.core.sources.wikipedia import article_files, parse_articles
from tasks.core.statistics.paired_tests import permutation_test
from tasks.core.tokens.chunks import Chunks, open_chunks
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.pretrain.params import Granularity, Pretrain
from tasks.pretrain.spans import draw_spans
from tasks.pretrain.words import read_vocabulary

Floats = npt.NDArray[np.float64]
GRANULARITIES: tuple[Granularity, ...] = ("phrase", "sentence", "paragraph")
PARAMS = Pretrain(init="base", spans=1, granularities=GRANULARITIES, phrase=(1, 4), sentence=(4, 16), paragraph=(16, 32))


def unseen(source: str, tokenizer: Path, length: int, folder: Path) -> Chunks:
    spec = parse_articles(source)
    articles = [article for cleaned in extract(spec, article_files(spec), Articles(source=source), 2) for article in cleaned.articles]
    columns = [article.id for article in articles], [article.text for article in articles]
    loaded, params = load_tokenizer(tokenizer), Chunk(length=length)
    write_parts(folder, [Chunker(loaded, params)(*columns)], loaded, digest="", params=params, total=len(articles))
    return open_chunks(folder)


def vectors(encoder: Encoder, rows: list[npt.NDArray[np.int64]]) -> Floats:
    """[N, D] of rows of tokens."""
    parts = []
    for start in range(0, len(rows), 256):
        batch = [torch.from_numpy(row) for row in rows[start : start + 256]]
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in batch], batch_first=True)
        with torch.inference_mode():
            parts.append(encoder(torch.nn.utils.rnn.pad_sequence(batch, batch_first=True), mask).numpy())
    return np.concatenate(parts).astype(np.float64)


def reciprocal_ranks(encoder: Encoder, texts: list[npt.NDArray[np.int64]], spans: list[npt.NDArray[np.int64]]) -> Floats:
    """[N]; a span that scores as high as others has the worst rank of them."""
    scores_NN = vectors(encoder, texts) @ vectors(encoder, spans).T
    found_N: Floats = 1 / (scores_NN >= np.diag(scores_NN)[:, None]).sum(1)
    return found_N


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--articles", required=True)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(args, unseen(args.articles, args.folders[0], args.length, Path(name)))


def measure(args: argparse.Namespace, chunks: Chunks) -> None:
    vocabulary, draw = read_vocabulary(load_tokenizer(args.folders[0]), "tokenizer"), np.random.default_rng(args.seed)
    long_rows = [row for row in range(len(chunks)) if len(chunks.row(row)) > args.length // 2]
    texts = [chunks.row(row) for row in draw.choice(long_rows, min(args.texts, len(long_rows)), replace=False)]
    span_sets = [draw_spans(row, vocabulary, PARAMS, draw) for row in texts]
    print(f"{len(texts):,} texts of {args.articles}; chance RR {np.mean(1 / np.arange(1, len(texts) + 1)):.4f}")
    print("| encoder | " + " | ".join(f"{name} RR | first | p" for name in GRANULARITIES) + " |\n|---|" + "---:|" * 9)
    first: list[Floats] = []
    for folder in args.folders:
        encoder, cells = load_towers(folder).document, []
        for place in range(len(GRANULARITIES)):
            spans = [
                np.concatenate([row[:1], row[slice(*row_spans[place])], row[-1:]]) for row, row_spans in zip(texts, span_sets, strict=True)
            ]
            ranks = reciprocal_ranks(encoder, texts, spans)
            p = permutation_test(ranks, first[place], permutations=10_000, seed=args.seed) if len(first) > place else None
            first += [ranks] if p is None else []
            cells.append(f"{ranks.mean():.4f} | {(ranks == 1).mean():.4f} | " + ("" if p is None else f"{p:.2g}"))
        print(f"| {folder.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
