"""Searches the corpus with a served model, or with a fusion of several. The models themselves run in a process of their own."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from flows.parameters.checks import PARAMS, check_file
from flows.process.processes import environment
from flows.results.fusions import BM25, fusions, made_from, record_of
from flows.results.generations import lock_here, refuse_unfit
from flows.results.metrics import INDEXES, best_model, read_metrics
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import read_json
from tasks.core.stage.params import read_yaml


def search(text: str, k: int, model: str | None) -> int:
    """Print the `k` best documents for `text`; returns the exit status."""
    if k < 1:
        raise UserError(f"-k {k}: expected at least 1")
    if not text.strip():
        raise UserError("the query is empty; expected some text")
    note, chosen, sections = "", model is None, read_yaml(PARAMS) if PARAMS.exists() else {}
    if model is None:
        metrics = read_metrics()
        split = "dev" if not metrics or any("dev" in splits for splits in metrics.values()) else "test"
        note = "" if split == "dev" else " (the best on test: there are no dev queries)"
        model = best_model(metrics, check_file().report.metric, sections, split=split, fused=True)
    searched, fused = made_from(model, sections) if model in fusions(sections) else ([model], [])
    for name in searched:
        if name != BM25 or not fused:
            refuse_unindexed(name, fusions(sections))
    systems = [word for name in fused for word in ("--fusion", name, str(record_of(name, sections)))]
    if fused:
        depths = check_file()
        systems += ["--depth", str(depths.retrieve.depth), "--lexical-depth", str(depths.bm25.run_depth)]
    for name in searched:
        lexical = ["--lexical", "data/bm25"]
        systems += lexical if name == BM25 else ["--model", name, f"data/encoders/{name}", str(served_index(name))]
    refuse_unfit(lock_here(), model, "dvc.lock", measured=chosen)  # chosen by its metrics, so these must be current
    print(f"searching with {model}{note}", file=sys.stderr)
    corpus = ["--documents", "data/corpus/documents.parquet", "--tokens", "data/tokens"]
    command = [sys.executable, "-m", "tasks.search", *systems, *corpus, "--k", str(k), f"--query={text}"]
    return subprocess.run(command, env=environment(), check=False).returncode


def refuse_unindexed(model: str, fused: Iterable[str]) -> None:
    """UserError where a model has no index; it names what can be searched with: models, and fusions of params.yaml."""
    if not (INDEXES / model).exists():
        indexed = sorted(path.name for path in INDEXES.glob("*") if path.is_dir() and not path.name.startswith("."))
        known = ", ".join([*indexed, *fused]) or "none yet"
        raise UserError(f"{INDEXES / model}: no index of model {model}, expected one of {known}; run retemper run")


def served_index(model: str, indexes: Path = INDEXES) -> Path:
    """The index folder of a model: its own, or its round's for a query tower that was trained over the round's vectors as they are."""
    own = indexes / model
    if (own / "index.faiss").exists():
        return own
    described = own / "index.json"
    return indexes / str(read_json(described)["round"]) if described.exists() else own
