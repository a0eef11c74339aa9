"""Suggest which key an unknown one was meant to be: one with a similar spelling, or ours for a name that other trainers use."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from tasks.core.errors import Invalid

UNKNOWN = ": unknown key, expected one of "  # the words of tasks.core.params.sections
ELSEWHERE = {  # keys of transformers, sentence-transformers, and Tevatron; ours
    "learning_rate": "lr",
    "batch_size": "batch_queries",
    "per_device_train_batch_size": "batch_queries",
    "train_batch_size": "batch_queries",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "warmup_ratio": "warmup",
    "warmup_steps": "warmup",
    "max_grad_norm": "clip",
    "query_max_len": "query_length",
    "q_max_len": "query_length",
    "passage_max_len": "document_length",
    "p_max_len": "document_length",
    "max_seq_length": "document_length",
    "passage_prefix": "document_prefix",
}


@contextmanager
def suggesting() -> Iterator[None]:
    """Name the similar key in the error of an unknown one, in place of all keys, if one is similar."""
    try:
        yield
    except Invalid as error:
        if UNKNOWN in str(error) and (
            suggestion := closest_key(error.where.rpartition(".")[2].rpartition(" ")[2], error.expected.split(", "))
        ):
            raise Invalid(
                f"{error.where}: unknown key; did you mean {suggestion}",
                where=error.where,
                expected=error.expected,
                remedy=f"use {suggestion}",
            ) from None
        raise


def expected_names(name: str, known: Sequence[str]) -> str:
    """What an error says of an unknown `name`: the one of `known` that it was probably meant to be, else all of them."""
    suggestion = _closest(name, known)
    return f"did you mean {suggestion}" if suggestion else f"expected one of {', '.join(known)}"


def closest_key(key: str, known: list[str]) -> str:
    """The one of `known` that `key` was probably meant to be; empty if none is similar."""
    alias = ELSEWHERE.get(key.lower().replace("-", "_"), "")
    return alias if alias in known else _closest(key, known)


def _closest(name: str, known: Sequence[str]) -> str:
    return next(iter(get_close_matches(name, known, 1, cutoff=0.7)), "")
