"""The process behind `retemper exposure`: which steps of which trainings some records took part in. No stage imports this.

Reads a JSON object from standard input and prints one:

    {"records": [ID, ...], "corpora": [FOLDER, ...], "scratch": FOLDER,
     "trainings": [{"stage", "name", "params", "text", "paths": {ARGUMENT: PATH}, "behind", "taken"}, ...]}
    {"records": {ID: ["document", "query of train", ...]}, "parts": [[{"id", "role", "first", "last", "count"}, ...], ...], "totals": [...],
     "problems": [...]}

`parts`, `totals` (steps), and `problems` are in the order of `trainings`. A training with a problem cannot be replayed by this version.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.adore import exposure as adore
from tasks.adore.params import Adore
from tasks.core.errors import UserError
from tasks.core.params.sections import validate
from tasks.core.stage.entry import stage
from tasks.core.stage.progress import Progress
from tasks.core.tables.ids import Ints, ordinals
from tasks.core.tables.schemas import SPLITS
from tasks.core.text.document import Text
from tasks.core.training.exposure import OF_QUERIES, Replay, parts_of
from tasks.pretrain import exposure as pretrain
from tasks.pretrain.params import Pretrain
from tasks.reranker import exposure as reranker
from tasks.reranker.params import Reranker
from tasks.train import exposure as train
from tasks.train.params import Round


def replay(training: Mapping[str, Any], scratch: Path) -> Replay:
    """The `Replay` of one training: the records of its steps."""
    paths = {name: Path(path) for name, path in training["paths"].items()}
    kind, label = training["stage"], f"{training['stage']}@{training['name']}"
    if kind == "train":
        return train.replay(paths, validate(Round, training["params"], label), scratch, training["behind"], training["taken"])
    if kind == "adore":
        return adore.replay(paths, validate(Adore, training["params"], label), scratch)
    if kind == "reranker":
        return reranker.replay(paths, validate(Reranker, training["params"], label), validate(Text, training["text"], "text"), scratch)
    return pretrain.replay(paths, validate(Pretrain, training["params"], label), label)


def places(records: Sequence[str], path: Path | None) -> Ints:
    """The ordinal of each record among the ids of a Parquet file, -1 if it is missing or there is no file."""
    return ordinals(pa.chunked_array([records]), path) if path else np.full(len(records), -1)


def parts(training: Mapping[str, Any], records: Sequence[str], scratch: Path) -> tuple[list[dict[str, Any]], int]:
    """The parts that records took in one training, and its number of steps."""
    replayed = replay(training, scratch)
    queries, documents = places(records, replayed.queries), places(records, replayed.documents)
    progress = Progress(f"replay {training['stage']}@{training['name']}", replayed.total, "steps")

    def counted() -> Any:
        for step in replayed.steps:
            yield step
            progress.advance()

    record_parts = parts_of(
        Replay(replayed.documents, replayed.queries, replayed.total, counted(), replayed.beside),
        queries[queries >= 0],
        documents[documents >= 0],
    )
    if progress.terminal:
        progress.close()
    names = {True: dict(zip(queries.tolist(), records, strict=True)), False: dict(zip(documents.tolist(), records, strict=True))}
    rows = [{"id": names[part.role in OF_QUERIES][part.ordinal], **asdict(part)} for part in record_parts]
    return [{key: value for key, value in row.items() if key != "ordinal"} for row in rows], replayed.total


def parts_or_problem(training: Mapping[str, Any], records: Sequence[str], scratch: Path) -> tuple[list[dict[str, Any]], int, str]:
    """`parts`, and an empty string; or neither, and why this training cannot be replayed: its parameters or files have a former form."""
    try:
        return *parts(training, records, scratch), ""
    except UserError as error:
        return [], 0, str(error)
    except (KeyError, TypeError, ValueError) as error:
        return [], 0, f"cannot be replayed by this version ({type(error).__name__}: {error})"


def kinds(records: Sequence[str], corpora: Sequence[Path]) -> dict[str, list[str]]:
    """The kinds of each record in the corpora: a document, a query of a split, or several of these; none if its id is unknown."""
    kinds_of: dict[str, list[str]] = {record: [] for record in records}
    for corpus in corpora:
        tables = {"document": "documents.parquet"} | {f"query of {split}": f"queries/{split}.parquet" for split in SPLITS}
        for kind, name in tables.items():
            path = corpus / name
            for record, place in zip(records, places(records, path if path.exists() else None).tolist(), strict=True):
                if place >= 0 and kind not in kinds_of[record]:
                    kinds_of[record].append(kind)
    return kinds_of


def main() -> None:
    request = json.load(sys.stdin)
    records, scratch = request["records"], Path(request["scratch"])
    results = [parts_or_problem(training, records, scratch) for training in request["trainings"]]
    record_kinds = kinds(records, list(map(Path, request["corpora"])))
    found = {name: [result[place] for result in results] for place, name in enumerate(("parts", "totals", "problems"))}
    print(json.dumps({"records": record_kinds, **found}))


if __name__ == "__main__":
    with stage():
        main()
