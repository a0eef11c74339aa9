"""`retemper exposure`: the steps of trainings in which a record took part, replayed without any model (tasks.exposure).

The trainings are those in the dvc.lock of the working tree and of every champion, or of a revision, each once. Their inputs come from
the cache, by digest, so the working tree may be in another state.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flows.process.display import text_table
from flows.process.processes import ask
from flows.repository.lock import Lock, commit_of, current_lock, entry_digest, lock_of, out_digests, parameters, tracked
from flows.repository.tags import read_tags
from flows.storage.cache import cache_folder, digest_of, files_at, listing, object_path, out_with
from flows.team.lineage import ancestors, recorded_json
from tasks.core.errors import UserError
from tasks.core.stage.code import PACKAGE, Reader
from tasks.core.stage.frozen import CODE

HERE = "working tree"
SECTIONS = {"pretrain": "pretrain", "train": "rounds", "adore": "adore", "reranker": "rerankers"}  # of params.yaml, by stage
READ = ("tokens", "near", "corpus", "negatives", "chunks")  # arguments of those stages that name data with records
KNOWN = ("init-state", "round-state")  # arguments that name lists of known queries, read if only a share of these is replayed
CORPORA = ("data/corpus", "data/pseudo")
UNKNOWN = ": unknown: "  # in a note on a training that could not be replayed
STEPLESS = "-"  # shown for a role that belongs to no step


@dataclass(frozen=True)
class Training:
    """A training: an entry of a dvc.lock. `seen`: the working tree, revision, or champions whose dvc.lock has it."""

    stage: str
    name: str
    lock: Lock
    seen: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        return f"{self.stage}@{self.name}"

    @property
    def label(self) -> str:
        """The training and where it was seen, for notes: `train@star (working tree, champion/3)`."""
        return f"{self.node} ({', '.join(self.seen)})"

    @property
    def entry(self) -> Mapping[str, Any]:
        return self.lock[self.node]


@dataclass(frozen=True)
class Part:
    """The part that a record had in a training. Steps count from 0; a role that belongs to no step has none."""

    id: str
    training: str
    seen: tuple[str, ...]
    role: str
    first: int | None
    last: int | None
    count: int | None
    steps: int  # of the training


@dataclass(frozen=True)
class Model:
    """A model that saw records, and the trainings in which they took part, its own last."""

    name: str
    seen: str
    trainings: tuple[str, ...]


@dataclass(frozen=True)
class Exposure:
    """`records`: what each one is (a document, a query of a split); `notes`: what is unknown."""

    records: Mapping[str, Sequence[str]]
    parts: tuple[Part, ...]
    models: tuple[Model, ...]
    notes: tuple[str, ...]


def show(records: Sequence[str], revision: str | None, *, as_json: bool) -> None:
    """Print the exposure of records, given by their ids."""
    exposed = expose(records, known_locks(revision))
    print(json.dumps(asdict(exposed), indent=2, ensure_ascii=False) if as_json else as_text(exposed))


def known_locks(revision: str | None = None) -> dict[str, Lock]:
    """The dvc.lock of `revision`, or those of the working tree and of its champions (`read_tags`), by name. UserError if there is none."""
    if revision:
        lock = lock_of(commit_of(revision), revision)
        if not lock:
            raise UserError(f"revision {revision}: its commit has no dvc.lock; commit it after a run, or omit --rev")
        return {revision: lock}
    locks = {HERE: current_lock()}
    for tag in read_tags():
        if lock := lock_of(commit_of(f"refs/tags/{tag.name}"), tag.name):
            locks[tag.name] = lock
    if not any(locks.values()):
        raise UserError("dvc.lock: not found; run retemper run first, or name a revision with --rev")
    return locks


def expose(records: Sequence[str], locks: Mapping[str, Lock]) -> Exposure:
    """The exposure of `records` in the trainings of `locks`. Raises UserError if an id is in none of their corpora."""
    records, objects = list(dict.fromkeys(records)), cache_folder().absolute() / "files" / "md5"
    with TemporaryDirectory(dir=_scratch()) as folder:
        root = Path(folder)
        known, notes, requests = [], [], []
        for number, training in enumerate(trainings(locks)):
            if reason := place_inputs(training, objects, root / str(number)):
                notes.append(f"{training.label}{UNKNOWN}{reason}")
            else:
                known.append(training)
                requests.append(_question(training, objects, root / str(number)))
                notes += _other_code(training)
        corpora = list(place_corpora(locks.values(), objects, root))
        scratch = root / "scratch"
        scratch.mkdir()
        answer = ask(
            "tasks.exposure", {"records": records, "corpora": list(map(str, corpora)), "scratch": str(scratch), "trainings": requests}
        )
    if unknown_ids := [record for record, kinds in answer["records"].items() if not kinds] if corpora else []:
        raise UserError(f"{', '.join(unknown_ids)}: no document or query has this id, in {' or '.join(locks)}; use the ids of the source")
    problems = zip(known, answer["problems"], strict=True)
    notes += [f"{training.label}{UNKNOWN}{problem}" for training, problem in problems if problem]
    parts = [
        Part(part["id"], training.node, training.seen, part["role"], part["first"], part["last"], part["count"], total)
        for training, found, total in zip(known, answer["parts"], answer["totals"], strict=True)
        for part in found
    ]
    return Exposure(answer["records"], tuple(parts), tuple(models(locks, parts)), tuple(notes))


def trainings(locks: Mapping[str, Lock]) -> list[Training]:
    """Every training in these locks whose data may hold records, each once, in the order of locks and stages."""
    by_digest: dict[str, Training] = {}
    for where, lock in locks.items():
        for stage in SECTIONS:
            for node in [node for node in lock if node.startswith(f"{stage}@")]:
                if stage == "pretrain" and not any(dep["path"] in CORPORA for dep in lock.get("chunk", {}).get("deps", [])):
                    continue  # on articles
                digest = entry_digest(lock[node])
                known = by_digest.get(digest, Training(stage, node.partition("@")[2], lock))
                by_digest[digest] = replace(known, seen=(*known.seen, where))
    return list(by_digest.values())


def place_inputs(training: Training, objects: Path, folder: Path) -> str:
    """Link a training's inputs with records into `folder`, under the paths of its command; return a problem, or an empty string."""
    for path, digest in _input_deps(training).items():
        files = contents(path, digest, training.lock, objects=objects)
        if files is None:
            made_again = f"{path} has been made again since (check out an earlier dvc.lock)"
            return f"{made_again}, or is not in the cache; fetch it: {fetching(training, objects)}"
        if lost := _link(files, objects, folder / path):
            return f"{lost} is not in the cache; fetch it: {fetching(training, objects)}"
    return next((f"{path} is not in the cache; fetch it: {fetching(training, objects)}" for path in _missing_counts(training, objects)), "")


def fetching(training: Training, objects: Path) -> str:
    """The command that fetches a training's inputs, and no more: without options, DVC takes only those of the working tree's dvc.lock."""
    paths = shlex.join([*_input_deps(training), *_missing_counts(training, objects)])
    if HERE in training.seen:
        return f"dvc fetch {paths}, or retemper run"
    return f"dvc fetch {'--all-tags' if any(where.startswith('champion/') for where in training.seen) else '--all-commits'} {paths}"


def _input_deps(training: Training) -> dict[str, str]:
    """Digests of the dependencies that are a training's inputs with records, by path."""
    wanted = inputs(training).values()
    deps = {str(dep["path"]): str(dep.get("md5", "")) for dep in training.entry.get("deps") or []}
    return {path: digest for path, digest in deps.items() if any(f"{path}/".startswith(f"{one}/") for one in wanted)}


def counts(training: Training) -> dict[str, str]:
    """The JSON files with numbers of steps that the replay of a round needs: those taken before it, and those that its weights had."""
    if training.stage != "train":
        return {}
    params, start = own_parameters(training) or {}, arguments(training.entry).get("init-state")
    paths = {"behind": f"{start}/state.json"} if start and params.get("optimizer_from") == "continue" else {}
    return paths | ({"taken": f"data/curves/{training.name}/round.json"} if params.get("validate_every") else {})


def _missing_counts(training: Training, objects: Path) -> list[str]:
    return [path for path in counts(training).values() if _is_missing(training.lock, path, objects)]


def _is_missing(lock: Lock, path: str, objects: Path) -> bool:
    """Whether a lock's training has made a JSON file, or may have, that is unavailable. Earlier versions made fewer files."""
    digests = out_digests(lock)
    out = out_with(digests, path)
    files = listing(objects, digests.get(out, ""))
    return bool(out) and not (files and path.removeprefix(f"{out}/") not in files) and not recorded_json(lock, path, objects)


def place_corpora(locks: Iterable[Lock], objects: Path, root: Path) -> Iterator[Path]:
    """Link the corpora of these locks into `root`, each once, and yield their folders. Those that the cache lacks are skipped."""
    digests = {(path, digest) for lock in locks for path, digest in out_digests(lock).items() if path in CORPORA}
    for number, (path, digest) in enumerate(sorted(digests)):
        files = listing(objects, digest)
        folder = root / f"corpus-{number}" / path
        if files and not _link(files, objects, folder):
            yield folder


def contents(path: str, digest: str, lock: Lock, *, objects: Path) -> dict[str, str] | None:
    """Digests of the files of a dependency, by name below `path` (empty for a file), from the listings in the cache.

    None if no out of `lock` has that content (the dependency is stale), or the cache lacks its listing.
    """
    digests = out_digests(lock)
    return (files_at(digests, path, objects) or None) if digest_of(digests, path, objects) == digest else None


def inputs(training: Training) -> dict[str, str]:
    """The paths of a training's inputs with records, by argument of its stage."""
    read = (*READ, *KNOWN) if (own_parameters(training) or {}).get("replay", 1) < 1 else READ
    return {name: path for name, path in arguments(training.entry).items() if name in read}


def own_parameters(training: Training) -> Any:
    """The training's section of params.yaml, as dvc.lock has it."""
    return parameters(training.entry).get(f"{SECTIONS[training.stage]}.{training.name}")


def arguments(entry: Mapping[str, Any]) -> dict[str, str]:
    """The options of a stage's command that take a value, by name."""
    words = shlex.split(str(entry.get("cmd", "")))
    return {word.removeprefix("--"): value for word, value in pairwise(words) if word.startswith("--")}


def models(locks: Mapping[str, Lock], parts: Iterable[Part]) -> Iterator[Model]:
    """The models and champions to which some of `parts` contributed: through weights, negatives, or a teacher."""
    exposed = {(part.training, where) for part in parts for where in part.seen}
    crowned = champions() if any(where.startswith("champion/") for where in locks) else {}
    for where, lock in locks.items():
        trained = [name for node in lock if (name := node.partition("@")[2]) and node.partition("@")[0] in SECTIONS]
        named = [crowned[where]] if where in crowned else trained
        for name in dict.fromkeys(named):
            makers = [node for stage in (*SECTIONS, "fuse") if (node := f"{stage}@{name}") in lock]
            before = dict.fromkeys(node for maker in makers for node in ancestors(lock, maker))
            if seen := tuple(node for node in before if (node, where) in exposed):
                yield Model(name, where, seen)


def champions() -> dict[str, str]:
    """The model of every champion of this project, by tag (champion/N)."""
    return {tag.name: str(tag.record["model"]) for tag in read_tags() if "model" in tag.record}


def as_text(exposed: Exposure) -> str:
    """A table of parts, then the models."""
    replayed = " that could be replayed" if any(UNKNOWN in note for note in exposed.notes) else ""
    lines = [f"{record}: {', '.join(kinds) or 'in no corpus of the cache'}" for record, kinds in exposed.records.items()]
    rows = [
        [
            part.id,
            part.training + ("" if part.seen[0] == HERE else f" ({', '.join(part.seen)})"),
            part.role,
            *(STEPLESS if value is None else str(value) for value in (part.first, part.last, part.count)),
            str(part.steps),
        ]
        for part in exposed.parts
    ]
    header = ["record", "training", "role", "first", "last", "steps", "of"]
    lines += ["", text_table(header, rows)] if rows else [f"took part in no training{replayed}"]
    if exposed.models:
        lines += [
            "",
            text_table(["model", "trained on it by"], [[model_label(model), ", ".join(model.trainings)] for model in exposed.models]),
        ]
    return "\n".join([*lines, *(f"note: {note}" for note in exposed.notes)])


def model_label(model: Model) -> str:
    """`star`, or `star (champion/3)`."""
    return model.name if model.seen == HERE else f"{model.name} ({model.seen})"


def _question(training: Training, objects: Path, root: Path) -> dict[str, Any]:
    paths = {name: str(root / path) for name, path in inputs(training).items()}
    params, text = own_parameters(training), parameters(training.entry).get("text") or {}
    named = {"stage": training.stage, "name": training.name}
    request = {**named, "params": params, "text": text, "paths": paths, "behind": 0, "taken": None}
    steps = {name: recorded_json(training.lock, path, objects).get("steps") for name, path in counts(training).items()}
    return request | {"taken": steps.get("taken"), "behind": int(steps.get("behind") or 0)}


def _link(files: Mapping[str, str], objects: Path, place: Path) -> str:
    """Link files of the cache to `place`; return the first one that the cache lacks, in words, or an empty string."""
    for name, oid in files.items():
        path, file = place / name if name else place, object_path(objects, oid)
        if not file.is_file():
            return f"object {oid} of {path.name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(file)
    return ""


def _other_code(training: Training) -> list[str]:
    """A note if the stage's code differs from the working tree's, which replays the draws."""
    recorded = tracked(CODE, training.entry).get(training.stage)
    if recorded is None or not (Path(PACKAGE) / training.stage).is_dir() or recorded == Reader(Path()).stage_digest(training.stage):
        return []
    return [f"{training.label}: trained with another version of stage {training.stage}'s code; replayed with the current one"]


def _scratch() -> Path:
    folder = Path(".retemper").absolute()
    folder.mkdir(exist_ok=True)
    return folder
