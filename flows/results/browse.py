"""Serve the page on which two systems are compared query by query. Searching runs in a separate process."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.parameters.checks import PARAMS, check_file
from flows.process.processes import environment
from flows.repository.lock import corpus_of, current_lock
from flows.results.fusions import BM25
from flows.results.generations import refuse_truncated, refuse_unfit
from flows.results.metrics import best_model, deciding_split, read_metrics
from flows.results.search import options, search_parts
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml


def browse(first: str | None, second: str | None, *, split: str, port: int, batch: Path) -> int:
    """Serve the page until it is stopped; return the exit status. Default systems: the best on dev, and BM25."""
    parameters, sections = check_file(), read_yaml(PARAMS)
    metrics = read_metrics()

    def best(names: Mapping[str, Any]) -> str:
        return best_model(names, parameters.report.metric, sections, split=deciding_split(metrics), fused=True)

    first = first or best(metrics)
    second = second or (BM25 if first != BM25 else best({name: splits for name, splits in metrics.items() if name != BM25}))
    if not Path("data/bm25").exists():
        raise UserError("data/bm25: no BM25 index, whose analysis marks what matches; run retemper run")
    lock = current_lock()
    if BM25 in (first, second):
        refuse_unfit(lock, BM25, "dvc.lock")
    searched = [search_parts(name, sections) for name in (first, second) if name != BM25]
    depth, lexical_depth = max(
        ((each.depth, each.lexical_depth) for each in searched if each.fusions),
        default=(parameters.retrieve.depth, parameters.bm25.run_depth),
    )
    refuse_truncated(lock, [Path("data/bm25")])
    corpus = corpus_of(lock)
    arguments = [
        *options(*searched), "--lexical", "data/bm25", "--depth", str(depth), "--lexical-depth", str(lexical_depth),
        "--documents", f"{corpus}/documents.parquet", "--tokens", "data/tokens", "--corpus", corpus, "--values", "data/values",
        "--batch", str(batch), "--split", split, "--metric", parameters.report.metric, "--port", str(port), "--chosen", first, second,
    ]  # fmt: skip
    try:
        return subprocess.run([sys.executable, "-m", "tasks.search.browse", *arguments], env=environment(), check=False).returncode
    except KeyboardInterrupt:  # the usual way to stop it
        print("\nretemper: stopped", file=sys.stderr)
        return 0
