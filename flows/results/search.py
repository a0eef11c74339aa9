"""Searches the corpus with a served model. The model itself runs in a process of its own."""

import subprocess
import sys
from pathlib import Path

from flows.parameters.checks import PARAMS, check_file
from flows.process.processes import environment
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
    note, chosen = "", model is None
    if model is None:
        metrics = read_metrics()
        split = "dev" if not metrics or any("dev" in splits for splits in metrics.values()) else "test"
        note = "" if split == "dev" else " (the best on test: there are no dev queries)"
        model = best_model(metrics, check_file().report.metric, read_yaml(PARAMS), split=split)
    if not (INDEXES / model).exists():
        known = sorted(path.name for path in INDEXES.glob("*") if path.is_dir() and not path.name.startswith("."))
        raise UserError(f"{INDEXES / model}: no index of model {model}, expected one of {', '.join(known) or 'none yet'}; run retemper run")
    refuse_unfit(lock_here(), model, "dvc.lock", measured=chosen)  # chosen by its figures, which are then to be its own
    print(f"searching with {model}{note}", file=sys.stderr)
    paths = ["--encoder", f"data/encoders/{model}", "--index", str(served_index(model))]
    corpus = ["--documents", "data/corpus/documents.parquet", "--tokens", "data/tokens"]
    command = [sys.executable, "-m", "tasks.search", *paths, *corpus, "--k", str(k), f"--query={text}"]
    return subprocess.run(command, env=environment(), check=False).returncode


def served_index(model: str, indexes: Path = INDEXES) -> Path:
    """The index folder of a model: its own, or its round's for a query tower that was trained over the round's vectors as they are."""
    own = indexes / model
    if (own / "index.faiss").exists():
        return own
    described = own / "index.json"
    return indexes / str(read_json(described)["round"]) if described.exists() else own
