"""Where the articles of a pre-training come from, resolved to files and versions; tasks.core.sources.datasets does this for datasets.

    SPEC   demo | dump:PATH | parquet:PATH | jsonl:PATH

demo: the Wikipedia leads in the embedded default. dump: MediaWiki XML, .xml or .xml.bz2, multistream or not, whole or in
parts (.xml-p1p41242.bz2). parquet: tables with id, title, text, like Hugging Face's wikipedia. jsonl: one {"id", "title",
"text"} per line, as wikiextractor writes it. A PATH is a file, or a folder with such files anywhere below it; no two may
contain the same articles, as far as their names tell.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, cast

from tasks.core.errors import Unavailable, UserError
from tasks.core.files import file_stamp
from tasks.core.sources.datasets import DEMO_DISTRIBUTION, demo_file, local_path

Kind = Literal["demo", "dump", "parquet", "jsonl"]
DUMP = re.compile(r"\.xml(-p\d+p\d+)?(\.bz2)?$")  # a split dump's parts are named by their first and last page: .xml-p1p41242.bz2
DATE = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d|latest)(?=-)")  # enwiki-20260301-pages-articles.xml, enwiki-2026-03-01-p10p52.xml
CONTENT = re.compile(  # a dump's name: which pages, and which part of them (pages-articles-multistream3.xml-p1p2.bz2)
    r"(.*?)(?:-multistream)?((?:(?<=articles)|(?<=current)|(?<=multistream))\d+)?(-p\d+p\d+)?\.xml(-p\d+p\d+)?(?:\.bz2)?"
)
HISTORY = "-meta-history"
FORMS = "demo | dump:PATH | parquet:PATH | jsonl:PATH"


@dataclass(frozen=True)
class ArticleSpec:
    """A parsed SPEC. `place` is a path, or empty (demo)."""

    kind: Kind
    place: str

    @property
    def path(self) -> Path:
        return local_path(self.place)


def parse_articles(spec: str) -> ArticleSpec:
    """A SPEC's kind and place; nothing is looked up."""
    kind, colon, place = spec.strip().partition(":")
    if kind not in ("demo", "dump", "parquet", "jsonl"):
        raise UserError(f"articles {spec!r}: unknown kind {kind!r}, expected {FORMS}")
    if (kind == "demo") == bool(colon) or (colon and not place.strip()):
        raise UserError(f"articles {spec!r}: expected {'demo alone' if kind == 'demo' else f'{kind}:PATH'}")
    return ArticleSpec(cast(Kind, kind), place.strip())


def _is_dump(name: str) -> bool:
    return DUMP.search(name) is not None and "-index" not in name


def _is_jsonl(name: str) -> bool:
    return name.removesuffix(".gz").endswith((".jsonl", ".json")) or name.startswith("wiki_")


KNOWN: dict[Kind, tuple[Callable[[str], bool], str]] = {
    "dump": (_is_dump, "*.xml.bz2 or *.xml-pNpN.bz2"),
    "parquet": (lambda name: name.endswith(".parquet"), "*.parquet"),
    "jsonl": (_is_jsonl, "*.jsonl, *.jsonl.gz or wiki_NN"),
}


def article_files(spec: ArticleSpec) -> tuple[Path, ...]:
    """Every file that the articles are read from, in reading order."""
    if spec.kind == "demo":
        return (demo_file(),)
    if spec.path.is_file():
        refuse_history(spec.path)
        return (spec.path,)
    is_of_kind, names = KNOWN[spec.kind]
    if not spec.path.is_dir():
        raise Unavailable(f"{spec.path}: not found, expected a file or a folder with {names}; fix the path of articles.source")
    visible = (f for f in spec.path.rglob("*") if not any(part.startswith(".") for part in f.relative_to(spec.path).parts))
    found = sorted((f for f in visible if f.is_file() and is_of_kind(f.name)), reverse=True)
    first_names = {tuple(file_stamp(f)): f for f in found}  # links, symbolic and hard, have the stamp of their file
    files = tuple(sorted(first_names.values()))
    if not files:
        kind = UserError if any(spec.path.iterdir()) else Unavailable  # an empty folder may be the mount point of an unavailable disk
        raise kind(f"{spec.path}: found no {names}; fix the path of articles.source")
    refuse_duplicates(files, spec.kind)
    return files


def refuse_history(file: Path) -> None:
    """UserError if a file's name says that it contains every revision of its pages."""
    if HISTORY in file.name:
        raise UserError(f"{file}: contains every revision of its pages, expected only pages-articles; move it away or name another file")


def refuse_duplicates(files: Iterable[Path], kind: Kind) -> None:
    """UserError if two names mean the same articles: packed and plain, multistream and not, a whole dump and a part of it, or two
    dates of one wiki (whose parts begin and end at different pages).
    """
    seen: dict[str, dict[str, Path]] = {}
    dates: dict[str, tuple[str, Path]] = {}
    for file in files:
        refuse_history(file)
        pages, date, part = content(file, kind)
        parts, (first, earlier) = seen.setdefault(pages, {}), dates.setdefault(pages, (date, file))
        duplicate = parts.get(part) or parts.get("") or (None if part else next(iter(parts.values()), None))
        if other := duplicate if first == date else earlier:
            raise UserError(f"{file}: repeats articles of {other}; move one of them away, or name a single file in articles.source")
        parts[part] = file


def content(file: Path, kind: Kind) -> tuple[str, str, str]:
    """Which articles a file contains, of which date, and which part of them ("": all), by its name. A dump's folder does not count;
    its name includes the wiki.
    """
    if kind == "dump" and (match := CONTENT.fullmatch(DATE.sub("", file.name, count=1))):
        date = DATE.search(file.name)
        return match[1].replace("pages-meta-current", "pages-articles"), date[1] if date else "", match[4] or match[3] or match[2] or ""
    return str(file).removesuffix(".gz"), "", ""


def article_versions(spec: ArticleSpec) -> dict[str, str]:
    """Versions of the packages that the articles come with."""
    return {DEMO_DISTRIBUTION: metadata.version(DEMO_DISTRIBUTION)} if spec.kind == "demo" else {}
