"""The user's own tables: forgotten records are removed from them, or a note asks the user to do it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.process.processes import ask
from flows.repository.git import git
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml
from tasks.core.plurals import counted
from tasks.core.sources.datasets import local_path
from tasks.core.sources.pairs import file_and_columns, is_pairs_file

SETTINGS = Path("retraining.yaml")
ACCEPTED = Path(".retemper/accepted")  # verdicts on batches of the inbox
FOLDERS = ("beir", "csv")  # kinds of source whose files are the user's own tables


def own_sources() -> Iterator[tuple[str, tuple[Path, ...]]]:
    """The user's own tables, by kind with folders: the data set, if BEIR or CSV, batches of the inbox, and judgments of browse."""
    kind, _, place = _source().partition(":")
    if kind in FOLDERS and local_path(place).is_dir():
        yield kind, (local_path(place).absolute(),)
    batches = [path for path in inbox_entries() if path.is_dir()]
    judged = Path(".retemper/judged").absolute()
    if batches:
        yield "batch", tuple(batches)
    if judged.is_dir():
        yield "beir", (judged,)


def inbox_entries() -> list[Path]:
    """The entries of the inbox, by name; none without an inbox."""
    inbox = _inbox()
    return sorted(path.absolute() for path in inbox.glob("*")) if inbox else []


def unavailable_places() -> Iterator[str]:
    """A line for the data set's folder, and one for the inbox, if it cannot be read now: a share may not be mounted.

    Also for a data set's file of pairs, if the inbox has such files, whose rows are compared with its texts.
    """
    kind, _, place = _source().partition(":")
    remedy, again = "may still have the records; mount it, or if", "; then run retemper forget again"
    deleted = f"it was deleted, change dataset.source in params.yaml{again}"
    if kind in FOLDERS and _is_empty(local_path(place)):
        yield f"dataset.source {kind}:{place}: unavailable, so it {remedy} {deleted}"
    if any(map(is_pairs_file, inbox_entries())) and (base := _base()) and not Path(base).exists():
        unknown = "rows of the inbox with the text of a record cannot be found"
        yield f"dataset.source {kind}:{place}: unavailable, so {unknown}; mount it, or if {deleted}"
    inbox = _inbox()
    if inbox and not inbox.is_dir():
        yield f"intake.inbox {inbox}: unavailable, so its batches {remedy} it was deleted, create an empty one{again}"
    elif inbox and _is_empty(inbox) and not _is_empty(ACCEPTED):
        yield f"intake.inbox {inbox}: found no batch, so those accepted before {remedy} there are none: rm -r {ACCEPTED}{again}"


def _inbox() -> Path | None:
    inbox = _section(SETTINGS, "intake").get("inbox")
    return local_path(str(inbox)) if inbox else None


def _is_empty(folder: Path) -> bool:
    """Whether a folder is missing, or has nothing in it, like the mount point of an unavailable disk."""
    return not folder.is_dir() or not any(folder.iterdir())


def source_places(tree: Path) -> list[Path]:
    """Where the texts of a working tree come from: data sets, articles, and the inbox. None that has all of data/ in it, too.

    UserError if its params.yaml or retraining.yaml is invalid.
    """
    params = tree / "params.yaml"
    extra = _section(params, "extra")
    sources = [_section(params, "dataset").get("source"), _section(params, "articles").get("source")]
    sources += [
        entry if isinstance(entry, str) else _mapping(entry, f"{params}: extra.{name}").get("source") for name, entry in extra.items()
    ]
    specs = [str(source or "") for source in sources]
    names = [file_and_columns(place)[0] if kind == "pairs" else place for kind, _, place in (spec.partition(":") for spec in specs)]
    names.append(str(_section(tree / SETTINGS, "intake").get("inbox") or ""))
    places = [(tree / local_path(name.strip())).resolve() for name in names if name.strip()]
    return [place for place in places if not (tree / "data").resolve().is_relative_to(place)]


def withdraw_records(kind: str, folders: Sequence[Path], marks: Collection[str], *, dry: bool) -> Any:
    """Run tasks.prepare.commands.withdraw; return its answer: records by file, their texts, and unread files. `dry`: change nothing."""
    request = {"kind": kind, "folders": list(map(str, folders)), "marks": sorted(marks), "dry": dry}
    request |= {"columns": _pairs_source()[1], "base": _base() if kind == "pairs" else ""}
    return ask("tasks.prepare.commands.withdraw", request)


def records_in_inbox(marks: Collection[str]) -> Any:
    """The records in the inbox's files of pairs, in the form of `withdraw_records`'s answer; the files are not changed.

    If the data set is such a file too, a row with the text of one of its records is that record, whatever its id.
    """
    files = [path for path in inbox_entries() if is_pairs_file(path)]
    return withdraw_records("pairs", files, marks, dry=True) if files else {"files": {}, "texts": [], "unread": []}


def source_notes(lines: Mapping[str, int], pairs: Mapping[str, int], unread: Sequence[str]) -> Iterator[str]:
    """What the user must do about the source, about files of pairs in the inbox that have records, and about `unread` files."""
    source = _source()
    if source.partition(":")[0] not in FOLDERS:
        yield f"dataset.source {source}: its files are not changed, but prepare leaves the records out; have its owner delete them"
    if found := [f"{Path(path).name} ({counted(count, 'records')})" for path, count in pairs.items()]:
        yield f"files of the inbox are not changed, but retrainings leave the records out; delete their rows there: {', '.join(found)}"
    if unread:
        names = ", ".join(str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path for path in unread)
        yield f"files that cannot be read, at least in part, so whether they have the records is unknown: {names}"
    for path in lines:
        target = Path(path).resolve()  # a data set may be a repository of its own
        if git("ls-files", "--error-unmatch", str(target), folder=target.parent, check=False):
            yield f"{path}: git has earlier versions of it; rewrite the history (git filter-repo), here and where it was pushed"


def _base() -> str:
    """The file of pairs that files of the inbox add to, or empty."""
    file, _ = _pairs_source()
    return str(local_path(file)) if file and _section(SETTINGS, "intake").get("mode") != "replace" else ""


def _pairs_source() -> tuple[str, str]:
    """The data set's file of pairs, and the columns that its SPEC names; both empty if it is none."""
    kind, _, place = _source().partition(":")
    return file_and_columns(place) if kind == "pairs" else ("", "")


def _source() -> str:
    return str(_section(Path("params.yaml"), "dataset").get("source", ""))


def _section(file: Path, name: str) -> Mapping[str, Any]:
    """A section of a YAML file; empty without the file or the section. UserError if it is invalid."""
    return _mapping((read_yaml(file) if file.exists() else {}).get(name), f"{file}: {name}")


def _mapping(value: Any, place: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{place}: found {value!r}, expected a mapping; fix it")
    return value or {}
