"""Champions' tags, `champion/N`. They are the repository's, champions a project's: the record in a tag's message names its folder."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.repository.git import git
from tasks.core.errors import UserError

TAGS = "refs/tags/champion/"


@dataclass(frozen=True)
class Tag:
    """A champion's tag. `record` is that of its message; empty if it holds none."""

    number: int
    commit: str
    record: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"champion/{self.number}"

    @property
    def prefix(self) -> str | None:
        """The project's folder in its repository, as `prefix_of` has it; None in older records."""
        prefix = self.record.get("prefix")
        return prefix if isinstance(prefix, str) else None


def read_tags(project: Path | None = None) -> list[Tag]:
    """The champions' tags of `project`, by number. Those of another project in its repository are left out."""
    tags = _all_tags(project)
    others = _other_projects(project, tags)
    return [tag for tag in tags if tag.prefix not in others]


def refuse_other_projects(project: Path, received: Iterable[str] = ()) -> None:
    """Raise UserError if a champion is of another project in the repository. `received`: digests of tags that are not referenced here."""
    tags = [*_all_tags(project), *(_received(project, digest) for digest in received)]
    others = _other_projects(project, tags)
    for tag in tags:
        if tag.prefix in others:
            raise UserError(
                f"{tag.name} is of {tag.prefix or 'the top folder'}, another project of this repository, and only one of a repository can "
                "be retrained; move this one to a repository of its own"
            )


def prefix_of(project: Path | None) -> str:
    """The project's folder in its repository, such as `law/`; empty at its top. It is the same in a worktree."""
    return git("rev-parse", "--show-prefix", folder=project)


def _all_tags(project: Path | None) -> list[Tag]:
    form = "%(refname:strip=3)%00%(*objectname)%00%(contents:body)%01"
    tags = []
    for entry in git("for-each-ref", f"--format={form}", TAGS.rstrip("/"), folder=project).split("\x01"):
        number, _, rest = entry.strip("\n").partition("\0")
        if number.isdigit():
            commit, _, body = rest.partition("\0")
            tags.append(Tag(int(number), commit, _record(body)))
    return sorted(tags, key=lambda tag: tag.number)


def _received(project: Path, digest: str) -> Tag:
    """The tag of a tag object; one without a record if there is no such object."""
    header, _, message = git("cat-file", "tag", digest, folder=project, check=False).partition("\n\n")
    fields = dict(line.split(" ", 1) for line in header.splitlines() if " " in line)
    number = fields.get("tag", "").removeprefix("champion/")
    return Tag(int(number) if number.isdigit() else 0, fields.get("object", ""), _record(message.partition("\n\n")[2]))


def _record(body: str) -> dict[str, Any]:
    try:
        record = json.loads(body)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _other_projects(project: Path | None, tags: Iterable[Tag]) -> set[str]:
    """The folders of these champions that are other projects: their params.yaml is in the working tree or at HEAD.

    A folder without one has been renamed or moved, so its champions count as those of `project`.
    """
    prefixes = {tag.prefix for tag in tags if tag.prefix is not None} - {prefix_of(project)}
    top = Path(git("rev-parse", "--show-toplevel", folder=project)) if prefixes else Path()
    return {prefix for prefix in prefixes if (top / prefix / "params.yaml").exists() or _is_at_head(project, f"{prefix}params.yaml")}


def _is_at_head(project: Path | None, path: str) -> bool:
    return bool(git("rev-parse", "--verify", "--quiet", f"HEAD:{path}", folder=project, check=False))
