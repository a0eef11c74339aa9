"""BM25's index, and the best documents of many queries: this product against bm25s with numba, same words, in one run.

    pip install --no-deps --target FOLDER numba llvmlite   # no dependencies of this product, so not where it finds them
    python benchmarks/bm25.py --numba FOLDER [--passages 200000] [--queries 20000] [--depth 100] [--repeat 3]

Without --numba, bm25s uses its numpy backend.

Passages are runs of 15 to 79 words of the demo's 10,033 leads (stemmed, without stopwords: the same lists of words for both), queries runs
of 2 to 8; k1 0.9, b 0.4, Lucene's BM25. An index is timed from the words to its files. A search is timed from the words of the queries:

- `one core`: to rows and scores, in one process and one thread;
- `all cores`: to ids, ranks, and scores. Ours is what stage bm25 does (a process per core, with its start, and sealed files of results);
  theirs has a thread per core, and takes the ids from an array.

Each run has a process of its own; systems alternate, and the best of --repeat counts. numba's compiling is left out, and printed. Memory is
the most that a run adds, in all its processes, to the words that it is given, without mapped files. The results are compared: the same
scores to 1e-4, and the same documents but for ties at the last rank.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

K1, B = 0.9, 0.4  # of both
TOLERANCE = 1e-4
PERIOD = 0.02  # seconds between two looks at memory
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numba", default="", help="the folder of numba and llvmlite")
    for name, value in {"passages": 200_000, "queries": 20_000, "depth": 100, "repeat": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    all_cores = len(os.sched_getaffinity(0))
    peer = f"bm25s {version('bm25s')} ({'numba' if args.numba else 'numpy'})"
    print(f"{args.passages:,} passages, {args.queries:,} queries, top {args.depth}, {all_cores} cores, {peer}")
    print(f"{'':<24}{'s':>9}{'bm25s':>9}{'ratio':>8}{'CPU s':>10}{'bm25s':>9}{'ratio':>8}{'MiB':>8}{'bm25s':>8}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "words.json").write_text(json.dumps(demo_words()), encoding="utf-8")
        compare("index", args.repeat, partial(our_index, folder, args.passages), partial(their_index, args.numba, folder, args.passages))
        for name, cores in (("one core", 1), ("all cores", all_cores)):
            options = (folder, args.queries, args.depth, cores)
            compare(f"search, {name}", args.repeat, partial(our_search, *options), partial(their_search, args.numba, *options))
            agree(folder, args.depth)


def compare(name: str, repeat: int, ours: Callable[[], Figures], theirs: Callable[[], Figures]) -> None:
    """Print the best of each figure of two systems."""
    best: list[Figures] = [{}, {}]
    for _ in range(repeat):
        for system, run in enumerate((ours, theirs)):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                figures = process.submit(run).result()
            best[system] = {figure: min(value, best[system].get(figure, value)) for figure, value in figures.items()}
    print(f"{name:<24}", end="")
    for figure in ("seconds", "cpu"):
        a, b = (system_best[figure] for system_best in best)
        print(f"{a:>{9 if figure == 'seconds' else 10}.2f}{b:>9.2f}{a / b:>7.2f}x", end="")
    print(
        "".join(f"{system_best['memory']:>8.0f}" for system_best in best),
        f"  (compiling {best[1]['compiling']:.1f} s)" if "compiling" in best[1] else "",
    )


def demo_words() -> list[str]:
    """All words of the demo's leads, in order."""
    from tasks.core.sources.datasets import demo_file
    from tasks.core.text.analysis import analyzer

    terms = analyzer("english", "english")
    leads = json.loads(demo_file().read_text(encoding="utf-8")).values()
    return [word for lead in leads for word in terms(lead["extract"])]


def runs(folder: Path, count: int, lengths: range, seed: int) -> list[list[str]]:
    """Runs of the demo's words, drawn by `seed`."""
    words, draw = json.loads((folder / "words.json").read_text(encoding="utf-8")), random.Random(seed)
    firsts = (draw.randrange(len(words) - lengths.stop) for _ in range(count))
    return [words[first : first + draw.choice(lengths)] for first in firsts]


passages = partial(runs, lengths=range(15, 80), seed=1)
queries = partial(runs, lengths=range(2, 9), seed=2)


@contextmanager
def measured() -> Iterator[Figures]:
    """Seconds, seconds of processor and MiB of what is done within, its processes included."""
    figures, finished = Figures(memory=0), threading.Event()

    def look() -> None:
        while not finished.wait(PERIOD):
            figures["memory"] = max(figures["memory"], sum(own(pid) for pid in ("self", *children())) - start_size)

    thread, start_size = threading.Thread(target=look), own("self")
    thread.start()
    clock, cpu = time.perf_counter(), sum(os.times()[:4])
    try:
        yield figures
        figures["seconds"] = time.perf_counter() - clock
        for process in multiprocessing.active_children():  # whose time counts when they have ended
            process.join()
        figures["cpu"] = sum(os.times()[:4]) - cpu
    finally:
        finished.set()
        thread.join()


def children() -> set[str]:
    files = Path("/proc/self/task").glob("*/children")
    return {pid for file in files if file.exists() for pid in file.read_text().split()}


def own(pid: str) -> float:
    """MiB of a process's own memory, without the files that it has mapped. 0 for a process that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return sum(int(size) / 1024 for size in re.findall(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE))


def our_index(folder: Path, count: int) -> Figures:
    import pyarrow as pa

    from tasks.core.lexical.build import build, save
    from tasks.core.lexical.params import BM25

    params = BM25(k1=K1, b=B)
    words = passages(folder, count)
    ids = [pa.array(names(count))]
    with measured() as figures, tempfile.TemporaryDirectory(dir=folder) as scratch:
        save(folder / "ours", build(words, list, params, Path(scratch)), ids, params)
    return figures


def their_index(numba: str, folder: Path, count: int) -> Figures:
    backend = choose_backend(numba)
    import bm25s

    words = passages(folder, count)

    def index(words: list[list[str]]) -> bm25s.BM25:
        retriever = bm25s.BM25(k1=K1, b=B, method="lucene", backend=backend)
        retriever.index(words, show_progress=False)
        return retriever

    compiling = time.perf_counter()
    index(words[:100])
    compiling = time.perf_counter() - compiling
    with measured() as figures:
        index(words).save(folder / "theirs", show_progress=False)
    return figures | {"compiling": compiling}


def our_search(folder: Path, count: int, depth: int, cores: int) -> Figures:
    from tasks.bm25.pieces import search_all
    from tasks.core.lexical.search import Searcher, load, term_ids
    from tasks.core.machine.processes import map_in_order
    from tasks.core.stage.progress import Progress
    from tasks.core.tables.parquet import read_table, write_table
    from tasks.core.tables.schemas import RANKED

    query_words = queries(folder, count)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        with measured() as figures:
            index = load(folder / "ours")[0]
            numbers = [term_ids(words, index.vocab_dict) for words in query_words]
            if cores == 1:
                searcher = Searcher(index)
                results = [best_first(*searcher.best(terms, depth), depth) for terms in numbers]
            else:
                named_terms = ((f"q{number}", terms) for number, terms in enumerate(numbers))
                map_pieces, progress = partial(map_in_order, processes=cores), Progress("queries searched", count, "queries")
                tables = search_all(named_terms, folder / "ours", depth, Path(scratch) / "pieces", progress, map_pieces)
                write_table(Path(scratch) / "ranked.parquet", RANKED, tables)
        if cores > 1:
            table = read_table(Path(scratch) / "ranked.parquet", RANKED)
            number = np.array([int(name[1:]) for name in table["query"].to_pylist()])
            ends = np.searchsorted(number, np.arange(1, count))
            results = list(zip(*(np.split(table[name].to_numpy(), ends) for name in ("doc", "score")), strict=True))
    keep(folder / "ours.npz", results)
    return figures


def keep(path: Path, results: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Write the documents and scores of each query."""
    docs, scores = (np.concatenate(parts) for parts in zip(*results, strict=True))
    docs = docs.astype(str) if docs.dtype == object else docs
    np.savez(path, ends=np.cumsum([len(row_docs) for row_docs, _ in results])[:-1], docs=docs, scores=scores)


def kept(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    with np.load(path, allow_pickle=False) as file:
        return list(zip(*(np.split(file[name], file["ends"]) for name in ("docs", "scores")), strict=True))


def best_first(rows: np.ndarray, scores: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-scores)[:depth]
    return rows[order], scores[order]


def their_search(numba: str, folder: Path, count: int, depth: int, cores: int) -> Figures:
    backend = choose_backend(numba)
    import bm25s

    query_words = queries(folder, count)

    def search(index: bm25s.BM25, query_words: list[list[str]]) -> Any:
        ids = np.array(names(index.scores["num_docs"])) if cores > 1 else None
        return index.retrieve(query_words, corpus=ids, k=depth, n_threads=cores, show_progress=False)

    index = bm25s.BM25.load(folder / "theirs")
    index.backend = backend
    compiling = time.perf_counter()
    search(index, query_words[:cores])
    compiling = time.perf_counter() - compiling
    del index
    with measured() as figures:
        index = bm25s.BM25.load(folder / "theirs")
        index.backend = backend
        docs, scores = search(index, query_words)
    keep(folder / "theirs.npz", [(row[score > 0], score[score > 0]) for row, score in zip(docs, scores, strict=True)])
    return figures | {"compiling": compiling}


def choose_backend(numba: str) -> str:
    """bm25s's backend: numba where there is a folder of it. bm25s looks for it when it is imported."""
    sys.path += [numba] if numba else []
    return "numba" if numba else "numpy"


def names(count: int) -> list[str]:
    return [f"d{number}" for number in range(count)]


def agree(folder: Path, depth: int) -> None:
    """AssertionError unless both found the same."""
    ours, theirs = (kept(folder / f"{name}.npz") for name in ("ours", "theirs"))
    for (docs, scores), (their_docs, their_scores) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(scores, their_scores, atol=TOLERANCE)
        lowest = scores[-1] + TOLERANCE if len(scores) == depth else 0
        assert set(docs[scores > lowest]) <= set(their_docs) and set(their_docs[their_scores > lowest]) <= set(docs)


if __name__ == "__main__":
    main()
