"""Search the corpus with a served model, or with a fusion of several. The models run in a separate process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from flows.parameters.alike import expected_names
from flows.parameters.checks import PARAMS, check_file
from flows.process.processes import environment
from flows.repository.lock import current_lock
from flows.results.fusions import BM25, depths, fusion_parts, fusions, is_served, record_of
from flows.results.generations import refuse_truncated, refuse_unfit
from flows.results.metrics import INDEXES, best_model, deciding_split, read_metrics
from tasks.core.errors import UserError
from tasks.core.files import read_json
from tasks.core.params.sections import read_yaml

REORDERING = ("rerank", "rescore", "rerankers")  # sections of params.yaml whose entries reorder runs


@dataclass(frozen=True)
class Searched:
    """What a model is searched with: encoder and index by name, files of fusions, whether BM25 (`lexical`), and depths of fused runs."""

    model: str
    dense: Mapping[str, tuple[Path, Path]]
    fusions: Mapping[str, Path]
    lexical: bool
    depth: int
    lexical_depth: int


def search_parts(model: str, sections: Mapping[str, Any], *, measured: bool = False) -> Searched:
    """What `model` is searched with. Raises UserError if a part (with `measured`, also its metrics) is missing or of another generation."""
    parts, fused = fusion_parts(model, sections) if model in fusions(sections) else ([model], [])
    for name in parts:
        if name != BM25 or not fused:
            refuse_unindexed(name, sections)
    records = {name: record_of(name, sections) for name in fused}
    lock = current_lock()
    if fused:
        check_file()
    dense = {name: (Path("data/encoders") / name, served_index(name)) for name in parts if name != BM25}
    refuse_unfit(lock, model, "dvc.lock", measured=measured)
    refuse_truncated(
        lock, {Path("data/tokens"), *(Path("data/bm25") for name in parts if name == BM25), *chain.from_iterable(dense.values())}
    )
    return Searched(model, dense, records, BM25 in parts, *(depths(parts, lock, sections) if fused else (0, 0)))


def options(*searched: Searched) -> list[str]:
    """The fusions and the models of all these, each once, as options of the process that searches."""
    fused = {name: record for each in searched for name, record in each.fusions.items()}
    dense = {name: places for each in searched for name, places in each.dense.items()}
    words = [word for name, record in fused.items() for word in ("--fusion", name, str(record))]
    return words + [word for name, (encoder, index) in dense.items() for word in ("--model", name, str(encoder), str(index))]


def search(text: str, k: int, model: str | None, *, as_json: bool = False) -> int:
    """Print the `k` best documents for `text`; return the exit status."""
    if k < 1:
        raise UserError(f"-k {k}: expected at least 1")
    if not text.strip():
        raise UserError("the query is empty; expected some text")
    note, chosen, sections = "", model is None, read_yaml(PARAMS) if PARAMS.exists() else {}
    if model is None:
        metrics = read_metrics()
        split = deciding_split(metrics)
        note = f" (the best on {split} that can be searched{'' if split == 'dev' else ': there are no dev queries'})"
        model = best_model(metrics, check_file().report.metric, sections, split=split, fused=True)
    parts = search_parts(model, sections, measured=chosen)  # chosen by its metrics, so these must be current
    ranks = ["--depth", str(parts.depth), "--lexical-depth", str(parts.lexical_depth)] if parts.fusions else []
    systems = [*options(parts), *ranks, *(["--lexical", "data/bm25"] if parts.lexical else [])]
    print(f"searching with {model}{note}", file=sys.stderr)
    corpus = ["--documents", "data/corpus/documents.parquet", "--tokens", "data/tokens"]
    command = [sys.executable, "-m", "tasks.search", *systems, *corpus, "--k", str(k), f"--query={text}", *["--json"] * as_json]
    encoding = os.environ.get("PYTHONIOENCODING", "").partition(":")[0]
    return subprocess.run(command, env=environment() | {"PYTHONIOENCODING": f"{encoding}:replace"}, check=False).returncode


def refuse_unindexed(model: str, sections: Mapping[str, Any]) -> None:
    """Raise UserError if a model has no index; it names what can be searched: models with one, and fusions of these."""
    indexed = sorted(path.name for path in INDEXES.glob("*") if path.is_dir() and not path.name.startswith("."))
    if model not in indexed:
        served = [name for name in fusions(sections) if is_served(name, sections)]
        known = [*indexed, *(name for name in served if {BM25, *indexed}.issuperset(fusion_parts(name, sections)[0]))]
        expected = f"expected one of {', '.join(known)}" if known else "nor of any other"
        if any(model in (sections.get(section) or {}) for section in REORDERING):
            raise UserError(f"model {model} only reorders what others find, and cannot be searched with; {expected}")
        if model == BM25:
            raise UserError(f"model {model} is searched only as a part of a fusion, and shown by retemper browse; {expected}")
        remedy = f"{expected}; run retemper run" if is_served(model, sections) or not known else expected_names(model, known)
        raise UserError(f"{INDEXES / model}: no index of model {model}, {remedy}")


def served_index(model: str, indexes: Path = INDEXES) -> Path:
    """The index folder of a model: its own, or its round's for a query tower trained over the round's uncompressed vectors."""
    own_index = indexes / model
    if (own_index / "index.faiss").exists():
        return own_index
    record = own_index / "index.json"
    return indexes / str(read_json(record)["round"]) if record.exists() else own_index
