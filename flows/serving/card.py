"""README.md of an export: what the model is, how to use it, and from which data, parameters, and versions it was made.

It is written from dvc.lock, data/source.json, and the records of makings, as of the champion's commit. It names no person and no path.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flows.champions import champion
from flows.champions.champion import Champion
from flows.repository.lock import Lock, parameters, read_blob
from flows.storage import makings
from flows.storage.cache import cache_of
from flows.team.lineage import ancestors, sources_of
from tasks.core.errors import UserError, escaped
from tasks.core.files import write_text
from tasks.core.models.export import Export, read_record
from tasks.core.params.effective import effective
from tasks.core.plurals import counted

CARD = "README.md"
MARK = "\n<!-- written by Retemper; SHA-256 of all above: "
ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # a model's or data set's id on the hub
LIBRARIES = ["sentence-transformers", "retemper", "dense-retrieval"]


def write_card(project: Path, now: Champion, folder: Path) -> None:
    """Write README.md into the folder of an export."""
    lock = champion.lock_at(project, now.commit)
    source = json.loads(read_blob(now.commit, "data/source.json", project) or "{}")
    stats, measured = dict[str, Any](), now.metrics
    with suppress(UserError):  # not in the cache, and not on the remote, or that is unavailable: the card says less
        stats = champion.read_out(project, now.commit, "data/corpus/stats.json")
    with suppress(UserError):
        measured = measured or champion.metrics_of(project, now.commit, now.model)  # older records of a champion set by hand have none
    export = read_record(folder)
    steps = steps_of(lock, export)
    records = makings.of_stages(cache_of(project), {name: lock[name] for name in steps})
    made = {name: records.get(name, {}) for name in steps}
    parts = (header(now, source, measured), text(now, export, source=source, stats=stats, measured=measured, lock=lock, made=made))
    write_text(folder / CARD, with_digest("".join(parts)))


def with_digest(card: str) -> str:
    """A card with a comment at its end, which shows whether the card has been edited since."""
    return f"{card}{MARK}{hashlib.sha256(card.encode()).hexdigest()} -->\n"


def is_edited(card: str) -> bool:
    """Whether a card is not as `write_card` wrote it."""
    return card != with_digest(card.rpartition(MARK)[0])


def steps_of(lock: Lock, export: Export) -> list[str]:
    """The stages that made the parts of a model, parents first."""
    wanted = [f"{stage}@{name}" for name in (*export.encoders, *export.fusions) for stage in ("train", "adore", "fuse")]
    stages: dict[str, None] = {}
    for name in wanted:
        if name in lock:
            stages |= dict.fromkeys(ancestors(lock, name))
    return list(stages)


def header(now: Champion, source: Mapping[str, Any], measured: Mapping[str, Mapping[str, Any]]) -> str:
    """The metadata that Hugging Face reads at the head of a card."""
    from huggingface_hub import EvalResult, ModelCardData

    data = without_folder(str(source.get("dataset", {}).get("source", "unknown")))
    results = [
        EvalResult("information-retrieval", "retemper", f"{data} ({split})", name, round(value, 4), metric_name=name, dataset_split=split)
        for split, values in measured.items()
        for name, value in values.items()
        if isinstance(value, float)
    ]
    card = ModelCardData(
        model_name=now.model,
        eval_results=results or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=LIBRARIES,
    )
    return f"---\n{card.to_yaml()}\n---\n"


def without_folder(source: str) -> str:
    """A source without the folder it was in: `beir:scifact`; ids and packages (`irds:beir/scifact`, `somebody/model`) as they are."""
    form, colon, place = source.partition(":")
    if form in ("irds", "package") or ID.fullmatch(source):
        return source
    return f"{form}{colon}{Path(place).name or place}" if colon else Path(source).name


def text(
    now: Champion,
    export: Export,
    *,
    source: Mapping[str, Any],
    stats: Mapping[str, Any],
    measured: Mapping[str, Mapping[str, Any]],
    lock: Lock,
    made: Mapping[str, Mapping[str, Any]],
) -> str:
    """The card below its header."""
    lines = [f"# {now.model}", "", escaped(champion.describe(now)) + ".", *_use(export), "## Data", ""]
    for kind, entry in sources_of(source, lock, list(made)).items():
        lines.append(f"- {kind}: `{without_folder(entry['source'])}`, SHA-256 `{entry.get('digest')}`")
    if documents := stats.get("documents"):
        queries = ", ".join(f"{split} {value['queries']:,}" for split, value in stats.get("splits", {}).items())
        lines.append(f"- {counted(documents['count'], 'documents')}; queries: {queries}")
    lines += ["", "## Measures", "", *_measures(measured)]
    if now.comparison:
        lines += ["", escaped(str(now.comparison.get("reason", "")))]
    lines += ["", "## Making", "", f"Commit `{now.commit}`, exported with Retemper {version('retemper')}.", ""]
    lines += ["| stage | parameters | made |", "|---|---|---|"]
    lines += [f"| {name} | {_parameters(lock[name])} | {_making(made[name])} |" for name in made]
    lines += [
        *_versions(made),
        "",
        "## License",
        "",
        "Not recorded. It follows from the licenses of the data and of the encoder that training began with.",
        "",
    ]
    return "\n".join(lines)


def _use(export: Export) -> Iterator[str]:
    query, document = export.query, export.document
    encoder, index = next(iter(export.encoders.values()))
    titles = f"title, {document['separator']!r}, text" if document.get("titles") else "text, without the title"
    yield from ("", "## Use", "")
    yield f"- Query: prefix `{query['prefix']!r}`, at most {query['max_length']} tokens."
    passages = f"; up to {document['passages']} passages of that length, the best one counts" if document.get("passages", 1) > 1 else ""
    yield f"- Document: {titles}; prefix `{document['prefix']!r}`, at most {document['max_length']} tokens{passages}."
    for name, record in export.fusions.items():
        yield f"- `{name}`: " + ", ".join(f"{key} {value}" for key, value in record.items()) + "."
    yield from ("", "```python", "from sentence_transformers import SentenceTransformer", "")
    yield f'model = SentenceTransformer("{encoder}")  # of this folder; on the hub: "OWNER/NAME"'
    yield f"model.max_seq_length = {query['max_length']}"
    yield f'vector = model.encode_query("your query", prompt={query["prefix"]!r})'
    parts = ["encoder", "index", *(["BM25's index"] if export.bm25 else []), *(["the fusion's weight"] if export.fusions else [])]
    whole = f"{', '.join(parts[:-1])} and {parts[-1]}"
    yield from ("```", "", f"`retemper serve --export FOLDER` answers queries with the whole model: {whole}.")
    yield from (f"`{index}/index.faiss` is a faiss index; `serving.json` lists every file but this card with its SHA-256.", "")


def _measures(measured: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for values in measured.values() for name, value in values.items() if isinstance(value, float)))
    if not names:
        yield "None is recorded."
        return
    yield f"| split | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for split, values in measured.items():
        yield f"| {split} | " + " | ".join(f"{values[name]:.4f}" if name in values else "" for name in names) + " |"


def _parameters(entry: Mapping[str, Any]) -> str:
    settings = [
        f"{key} {json.dumps(value, ensure_ascii=False)}"
        for section in parameters(entry).values()
        if isinstance(section, Mapping)
        for key, value in effective(section).items()
        if key not in ("source", "generator")  # may name a folder of one machine; the section Data has them without it
    ]
    return ", ".join(settings).replace("|", "\\|").replace("\n", " ")


def _versions(made: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The environment of all stages, or where they differ, each one with its stages; nothing if none is recorded."""
    stages: dict[str, list[str]] = {}
    for name, record in made.items():
        if environment := makings.ran_with(record):
            stages.setdefault(environment, []).append(name)
    if len(stages) == 1:
        yield from ("", f"Versions: {next(iter(stages))}.")
    elif stages:
        yield from ("", "Versions:", "", *(f"- {environment} ({', '.join(names)})" for environment, names in stages.items()))


def _making(record: Mapping[str, Any]) -> str:
    return makings.describe({key: value for key, value in record.items() if key != "by"})
