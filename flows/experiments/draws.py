"""The groups of queries that a comparison draws as one, by the judgments that its systems were measured with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.repository.lock import Lock, corpus_of, current_lock
from flows.storage.cache import cache_folder, file_md5, intact_path


@dataclass(frozen=True)
class Draws:
    """`groups`: by query, its group of queries that share a relevant document. `note`: a line on what is assumed; empty if nothing is."""

    groups: Mapping[str, str]
    note: str = ""


def draws_of(split: str, made: Sequence[Lock]) -> Draws:
    """The groups of a split's queries. `made`: for each system, the stages that made it, its evaluation last; none for a run file.

    The judgments are those of the first system whose own are in the cache or in this working tree; otherwise, this tree's.
    """
    from tasks.core.statistics.clusters import read_groups

    here, objects = Path(corpus_of(current_lock()), "qrels", f"{split}.parquet"), cache_folder() / "files" / "md5"
    digests = [digest for stages in made if (digest := _judgments(stages, split))]
    own = file_md5(here) if here.is_file() else ""
    for digest in digests:
        if path := here if digest == own else intact_path(objects, digest):
            return Draws(read_groups(path))
    if not digests and own:
        return Draws(read_groups(here))
    assumed = f"the groups of queries are those of {here}" if own else "queries are tested as independent"
    return Draws(
        read_groups(here),
        f"the judgments of {split} that the systems were measured with are not in this clone, so {assumed}; to test with theirs: "
        "dvc fetch --all-commits",
    )


def _judgments(stages: Lock, split: str) -> str:
    """The digest of the judgments of a split that an evaluation has read; empty if it has recorded none."""
    deps = {str(dep["path"]): str(dep.get("md5") or "") for entry in stages.values() for dep in entry.get("deps") or []}
    read = [digest for path, digest in deps.items() if path.endswith(f"/qrels/{split}.parquet")]
    return read[-1] if read else ""
