"""Whether the data set has the judgments that the run needs, checked once `prepare` has counted them and before anything else runs."""

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.core.errors import UserError
from tasks.core.metrics.selection import least_grade

STATS = Path("data/corpus/stats.json")
STAGE = "prepare"  # which writes it
LEARNING = {"train": "rounds", "reranker": "rerankers", "adore": "adore", "study": "study"}  # stage, section of params.yaml
NAMED = 3  # queries of dev and test that are named, at most
NO_STEPS = {"train": None, "reranker": 0}  # default of `steps`, for stages that train nothing with 0 steps


class Unfit(UserError):
    """The data set lacks a split that the run needs."""


def training_stages(stages: Collection[str], sections: Mapping[str, Any]) -> list[str]:
    """Those of `stages` that train on the train judgments."""
    training = []
    for name in stages:
        stage, _, key = name.partition("@")
        entry = (sections.get(LEARNING.get(stage, "")) or {}).get(key)
        if isinstance(entry, Mapping) and not (stage in NO_STEPS and entry.get("steps", NO_STEPS[stage]) == 0):
            training.append(name)
    return training


def _add_split(source: str) -> str:
    """How to get dev or test queries. A file of pairs has them by a hash of each query, which leaves none in a short file."""
    return (
        "add rows, as a hash of the query gives a tenth of them to each, or a column split"
        if source.startswith("pairs:")
        else "add one of them"
    )


def check(
    stages: Collection[str], sections: Mapping[str, Any], *, edits: Sequence[str] = (), with_dev: bool = False, stats: Path = STATS
) -> str:
    """Return a warning if dev is missing or shares queries with test, else an empty string. Raises Unfit if the run is impossible.

    `edits`: the run's `--set` arguments, repeated in the command that is suggested; `with_dev`: the run compares its models on dev.
    """
    source, trained = str((sections.get("dataset") or {}).get("source", "the data set")), training_stages(stages, sections)
    pseudo = sections.get("queries") == "pseudo"
    settings = "".join(f" --set {shlex.quote(edit)}" for edit in edits)
    hint = f"to run what needs no training (BM25, the encoder as is, the report): retemper run --recipe zero_shot{settings}"
    if trained and _documents(stats) == 1:
        raise Unfit(
            f"{source}: found 1 document, expected more: a single document has no negatives, so {', '.join(trained)} would learn nothing; "
            f"nothing was changed; add documents{'' if pseudo else f'; {hint}'}"
        )
    measured = any(name.startswith("evaluate") for name in stages)
    if pseudo:  # stage pseudo makes what the source lacks
        source_dev = (sections.get("pseudo") or {}).get("dev") != "pseudo"
        return _shared_queries(source, stats) if measured and source_dev else ""
    counts = _counted(stats)
    if counts is None:
        return ""
    split_counts = ", ".join(f"{split} {count:,}" for split, count in counts.items() if count)
    found = f"{source}: found {f'judged queries of {split_counts}' if split_counts else 'no judged queries'}"
    if trained and not counts.get("train"):
        raise Unfit(f"{found}, expected train, which {', '.join(trained)} need; nothing was changed; {hint}")
    if with_dev and not counts.get("dev"):
        raise Unfit(f"{found}, expected dev, on which a new model is compared with the champion; add a dev split")
    if measured and not (counts.get("dev") or counts.get("test")):
        raise Unfit(f"{found}, expected dev or test, on which systems are measured; nothing was changed; {_add_split(str(source))}")
    if measured:
        _refuse_high_grades(source, sections, stats.parent / "qrels")
    if "report" in stages and measured and not counts.get("dev"):
        return f"{found}, but no dev: the best system is chosen on test, the same queries it is measured on; retemper retrain needs dev"
    return _shared_queries(source, stats) if measured else ""


def _shared_queries(source: str, stats: Path) -> str:
    """A warning if queries of dev are also in test, else an empty string."""
    try:
        shared = _read(stats).get("dev_in_test")
    except (OSError, ValueError):  # prepare has not written it
        return ""
    if not shared:
        return ""
    return (
        f"{source}: {shared:,} {'query of dev is' if shared == 1 else 'queries of dev are'} in test too, by id or text"
        f"{_first_shared(stats.parent / 'queries')}, "
        "so figures on test flatter what is chosen on dev; remove them from one of the two"
    )


def _first_shared(queries: Path) -> str:
    """The first queries of dev that are also in test, in words; empty if these tables are unavailable."""
    if not all((queries / f"{split}.parquet").exists() for split in ("dev", "test")):
        return ""
    from tasks.core.tables.parquet import read_table
    from tasks.core.tables.schemas import QUERIES
    from tasks.core.text.plain import plain

    dev, test = (read_table(queries / f"{split}.parquet", QUERIES, ["id", "text"]).to_pylist() for split in ("dev", "test"))
    ids = {row["id"] for row in test}
    texts = {plain(row["text"]): row["id"] for row in test}
    pairs = ((row["id"], row["id"] if row["id"] in ids else texts.get(plain(row["text"]))) for row in dev)
    named = [f"dev {name!r}, test {other!r}" for name, other in pairs if other is not None][:NAMED]
    return f" ({'; '.join(named)})" if named else ""


def _refuse_high_grades(source: str, sections: Mapping[str, Any], qrels: Path) -> None:
    """Raise Unfit if no grade of a split reaches evaluate.relevance, before hours are spent on encoding what cannot be measured."""
    for split in ("dev", "test"):
        least, file = least_grade(split, sections), qrels / f"{split}.parquet"
        if least > 1 and file.exists():
            from tasks.core.tables.parquet import read_table
            from tasks.core.tables.schemas import QRELS

            largest = int(read_table(file, QRELS, ["grade"])["grade"].to_numpy().max(initial=0))
            if 0 < largest < least:
                raise Unfit(
                    f"{source}: found {largest} as the largest grade of {split}, expected at least {least}, or no document is relevant; "
                    f"set evaluate.relevance (retemper evaluate: --relevance) to {largest}, or to a grade for each of dev and test"
                )


def _counted(stats: Path) -> dict[str, int] | None:
    """Judged queries by split (0 if none has a relevant document); None if `prepare` has not counted them."""
    try:
        splits = _read(stats)["splits"]
        return {str(split): int(row["queries"]) if row.get("positives", 1) else 0 for split, row in splits.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _documents(stats: Path) -> int | None:
    """The number of documents; None if `prepare` has not counted them."""
    try:
        return int(_read(stats)["documents"]["count"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(stats: Path) -> dict[str, Any]:
    return dict(json.loads(stats.read_text(encoding="utf-8")))
