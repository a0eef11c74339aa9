"""`retemper evaluate`: any model on any dataset, by an ordinary run in a second tree of the project, over the shared cache."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flows.evaluating.finished import discard_earlier_metrics
from flows.parameters import edit
from flows.parameters.checks import NAME, RESERVED, check_file
from flows.parameters.needs import EMPTIED
from flows.parameters.sources import list_dataset, list_encoder, write_source
from flows.pipeline import server
from flows.process import locks
from flows.process.display import Display, text_table
from flows.process.problems import RunFailed, print_problems
from flows.process.processes import Processes, stopping_on_signals
from flows.repository.lock import LOCK, commit_of, current_lock
from flows.repository.project import lock_is_readable
from flows.repository.worktree import RUN, SOURCE, carry_changes, equip, make_worktree, read_changes, remove_worktree, run_in, temp_tree
from flows.results import metrics
from flows.results.fusions import BM25, fusion_parts, fusions, record_of
from flows.results.generations import refuse_unfit
from flows.storage.remote import WARNING
from tasks.core.errors import Problem, UserError
from tasks.core.files import new_file, read_json, write_json
from tasks.core.lexical import params as lexical
from tasks.core.metrics.mteb import MAIN, task_result
from tasks.core.params.sections import read_yaml, validate
from tasks.core.sources import forgotten
from tasks.core.sources.datasets import PATH_KINDS, parse_dataset, parse_encoder
from tasks.core.sources.downloads import encoder_folder
from tasks.params import Parameters

STORES = Path(".retemper/evaluate")  # a folder per data set: what the next evaluation on it can reuse
DATASETS = 4  # kept; the oldest are removed first
LENT = ("shards", "scratch")  # finished pieces of an encode, and unfinished work (tasks.core.stage.scratch)
SHORTEST = 3  # tokens of a text: [CLS], one, [SEP]
SPLITS: tuple[Literal["dev", "test"], ...] = ("dev", "test")
AS_IT_IS = {"init": "base", "negatives": "none", "steps": 0}  # a round that trains nothing


@dataclass(frozen=True)
class Settings:
    """The settings of an evaluation, `prefixes` and `lengths` by "query" and "document". All others are the project's.

    None means a default: the model's own prefixes; the project's lengths (limited to what the model allows), titles, and treatment of
    identical ids. `relevance`: the lowest relevant grade, one for both splits or one each for dev and test; by default the project's on
    its own data set, and 1 on any other. `drop`: drop empty texts and qrels of unknown ids.
    """

    prefixes: Mapping[str, str | None]
    lengths: Mapping[str, int | None]
    titles: bool | None = None
    drop: bool = False
    ignore_identical_ids: bool | None = None
    relevance: Sequence[int] | None = None


@dataclass(frozen=True)
class Shown:
    """How texts are given to the model and how its lists are measured, with every default filled in."""

    titles: bool
    ignore_identical_ids: bool
    relevance: Mapping[str, int]  # by split


@dataclass(frozen=True)
class Plan:
    """The run of an evaluation: its name, its stages, and the edits (`--set`) of params.yaml in the second tree. `partial`: its finished
    results are read even if it fails."""

    name: str
    targets: Sequence[str]
    edits: Sequence[str]
    notes: Sequence[str]  # what its user should know
    partial: bool = False


def evaluate(model: str, data: str, settings: Settings, *, out: Path | None = None, mteb: Path | None = None) -> int:
    """Print the metrics of `model` on data set `data`, per split; also write them to `out`, and to `mteb` in MTEB's form. Return the exit
    status.

    `model` is an encoder, with its own pooling, head, and similarity, or an entry of `fuse`: then BM25 is built over the data, and the
    weight (or k) is the one chosen on the project's own dev.
    """
    parse_dataset(data)
    shown, sections = resolve_settings(settings, data), read_yaml(Path("params.yaml"))
    refuse_before([model], sections, settings, mteb=mteb)
    list_dataset(data)  # a UserError names the path as it was given
    plan = make_plan(model, data, sections, settings=settings, shown=shown)
    processes, display = Processes(), Display()
    try:
        with stopping_on_signals(processes), second_run(plan, make_store(data), processes=processes, display=display) as project:
            measured, texts = read_json(project / metrics.METRICS / f"{plan.name}.json"), describe_texts(project / "data", shown)
            revision = str(read_json(project / SOURCE)["dataset"]["digest"])
    except RunFailed as failed:
        print_problems([failed.problem])
        return failed.problem.status
    description = "\n".join([texts, *describe_model(model, sections)])
    display.line(f"\n{text_table(*metrics.rows({plan.name: measured}))}\n{description}")
    if out:
        write_json(out, measured)
    if mteb:
        write_json(mteb, task_result(data, revision, measured, shown.relevance))
    return 0


def refuse_before(models: Sequence[str], sections: Mapping[str, Any], settings: Settings, *, mteb: Path | None) -> None:
    """Raise UserError for mistakes in an evaluation that do not depend on its data. `sections`: the project's parameters."""
    for kind, length in settings.lengths.items():
        if length is not None and length < SHORTEST:
            raise UserError(f"--{kind}-length {length}: expected at least {SHORTEST} tokens, including special ones")
    for model in models:
        folder = Path("data/encoders", model)
        if model not in fusions(sections) and len(Path(model).parts) == 1 and folder.is_dir() and not Path(model).exists():
            raise UserError(f"--model {model}: found the name of a model of this project, expected its folder; give {folder}")
    if mteb and MAIN not in (measures := check_file().evaluate.measures):
        raise UserError(f"--mteb {mteb}: found {', '.join(measures)} in evaluate.measures, expected {MAIN}, MTEB's score; add it there")


@contextmanager
def second_run(plan: Plan, kept: Path, *, processes: Processes, display: Display) -> Iterator[Path]:
    """Yield the project's folder in a second tree, after an ordinary run there has brought the stages of `plan` up to date.

    Folder `kept` has what earlier runs finished, and gets dvc.lock for the next; one run at a time uses it. The tree is removed after the
    block. Raises RunFailed.
    """
    with locks.wait_and_hold(kept / "lock", lambda: display.line("another evaluation on this data is in progress; waiting for it to end")):
        yield from _second_run(plan, kept, processes=processes, display=display)


def _second_run(plan: Plan, kept: Path, *, processes: Processes, display: Display) -> Iterator[Path]:
    commit = commit_of("HEAD")
    tree = temp_tree("evaluate")
    try:
        project = make_worktree(tree, commit)
        carry_changes(read_changes(commit), project)
        own_source = read_yaml(project / "params.yaml")["dataset"]["source"]
        edit.apply(plan.edits, project / "params.yaml", lambda _: None)
        write_source(project / "params.yaml", project / SOURCE)  # from here, so that digests are remembered here
        equip(project)
        if canonical_spec(read_yaml(project / "params.yaml")["dataset"]["source"]) != canonical_spec(own_source):
            (project / forgotten.FILE).unlink(missing_ok=True)  # of the project's own data: others use the same ids
        link_store(kept, project)
        lock = kept / f"{plan.name}.lock"
        (project / LOCK).unlink(missing_ok=True)
        if lock.exists() and lock_is_readable(lock):  # earlier versions wrote it in place
            shutil.copy(lock, project / LOCK)
        for note in plan.notes:
            display.line(note)
        problem = _run(project, plan.targets, processes=processes, display=display)
        if problem is None or (plan.partial and (project / LOCK).exists()):
            if problem:
                discard_earlier_metrics(project)
            with new_file(lock) as new:
                shutil.copy(project / LOCK, new)
            yield project
        if problem:
            raise RunFailed(problem)
    finally:
        remove_worktree(tree)


def _run(tree: Path, targets: Sequence[str], *, processes: Processes, display: Display) -> Problem | None:
    """Do an ordinary run in `tree`, showing the lines of its stages. Return why it failed, if it did."""
    last = ""

    def show(line: str) -> None:
        nonlocal last
        if line.startswith(WARNING):
            display.warn(line.removeprefix(WARNING))
        elif " | " in line:
            display.line(line)
        elif line.startswith("retemper: "):
            last = line.removeprefix("retemper: ")

    status, problems = run_in(tree, (*RUN, *targets), processes, show=show, env={"PREFECT_HOME": str(server.HOME.absolute())})
    if not status:
        return None
    problem = problems[-1] if problems else Problem("pipeline", last or f"{targets[0]}: its run ended with status {status}", 1)
    message, log, _ = problem.message.partition("; its log: ")  # which is removed with the tree
    return Problem(problem.kind, f"{message}; its output is above" if log else message, problem.status)


def make_store(data: str, most: int = DATASETS) -> Path:
    """Make the folder for what evaluations on `data` keep. Those of the least recently used data sets beyond `most` are removed.

    The project's own shards are stored separately, because encoding other data would treat them as those of deleted documents.
    """
    folder = STORES / hashlib.sha256(" ".join(canonical_spec(data)).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    others = [place for place in STORES.iterdir() if place != folder]  # which may be newer, if a clock was set back
    for old in sorted(others, key=lambda place: place.stat().st_mtime, reverse=True)[max(most, DATASETS) - 1 :]:
        with suppress(UserError, OSError), locks.hold_run_lock(old / "lock"):  # one in use stays
            shutil.rmtree(old, ignore_errors=True)
    return folder


def link_store(kept: Path, tree: Path) -> None:
    """Link into `tree` what earlier runs left in folder `kept`, so that its stages use it."""
    for name in LENT:
        (kept / name).mkdir(parents=True, exist_ok=True)
        (tree / ".retemper").mkdir(exist_ok=True)
        (tree / ".retemper" / name).symlink_to((kept / name).resolve())


def resolve_settings(settings: Settings, data: str) -> Shown:
    """`settings` with the project's parameters as defaults. Raises UserError if the two contradict each other."""
    project = check_file()
    grades = settings.relevance
    if grades is not None and (len(grades) > len(SPLITS) or min(grades) < 1):
        raise UserError(f"--relevance {' '.join(map(str, grades))}: expected a grade of at least 1, or one for dev and one for test")
    least: dict[str, int] = dict(zip(SPLITS, (grades[0], grades[-1]), strict=True)) if grades else dict.fromkeys(SPLITS, 1)
    if grades is None and canonical_spec(data) == canonical_spec(project.dataset.source):
        least = {split: project.evaluate.relevance[split] for split in SPLITS}
    validate(
        type(project.evaluate),
        project.evaluate.model_dump() | {"relevance": least},
        "--relevance (a grade that suits evaluate.measures)",
        section="evaluate",
    )
    return Shown(
        project.text.titles if settings.titles is None else settings.titles,
        project.retrieve.ignore_identical_ids if settings.ignore_identical_ids is None else settings.ignore_identical_ids,
        least,
    )


def canonical_spec(data: str) -> tuple[str, str]:
    """A form of a SPEC that is the same for the same data set, however its folder is spelled."""
    spec = parse_dataset(data)
    return spec.kind, f"{spec.folder.resolve()}{spec.columns}" if spec.kind in PATH_KINDS else spec.place


def describe_texts(data: Path, shown: Shown) -> str:
    """One line on how texts were given to the model, and how its lists were measured. BM25 alone has no tokens."""
    tokens = {name: min((data / "tokens" / name).rglob("meta.json"), default=None) for name in ("queries", "documents")}
    described = {name: read_json(place) for name, place in tokens.items() if place}
    texts = [f"{name} of at most {meta['max_length']} tokens, prefix {meta['prefix']!r}" for name, meta in described.items()]
    texts.append("titles on" if shown.titles else "titles off")
    if shown.ignore_identical_ids:
        texts.append("identical ids excluded")
    texts += [f"{split}: relevant from grade {grade}" for split, grade in shown.relevance.items() if grade != 1]
    return "; ".join(texts)


def make_plan(model: str, data: str, sections: Mapping[str, Any], *, settings: Settings, shown: Shown) -> Plan:
    """The run that measures `model` on `data`. Raises UserError if it cannot be measured. `sections`: the project's parameters."""
    if model in fusions(sections):
        searched, fused = fusion_parts(model, sections)
        refuse_unfit(current_lock(), model, "dvc.lock")
        encoders = {name: f"data/encoders/{name}" for name in searched if name != BM25}
        for place in encoders.values():
            if not Path(place).exists():
                raise UserError(f"{place}: not found, and fuse.{model} is made from it; run retemper run")
        name, target = model, f"evaluate_fuse@{model}"
        fuse = {one: chosen_entry(one, sections) for one in fused}
    elif model == BM25:
        own = str(sections["encoder"]["source"])  # no stage of this run reads it
        name, target, encoders, fuse = BM25, "evaluate_bm25", {short_name(parse_encoder(own).name): own}, {}
    else:
        name, fuse = short_name(parse_encoder(model).name), {}
        encoders, target = {name: model}, f"evaluate@{name}"
    edits, notes = edits_of(encoders, data, sections, settings=settings, shown=shown, fuse=fuse)
    return Plan(name, [target], edits, notes)


def edits_of(
    encoders: Mapping[str, str],
    data: str,
    sections: Mapping[str, Any],
    *,
    settings: Settings,
    shown: Shown,
    fuse: Mapping[str, Any],
) -> tuple[list[str], list[str]]:
    """The edits of params.yaml that measure `encoders` (sources by name) and fusions on `data`, and lines on lengths that were reduced."""
    values = untrained_rounds({one: absolute_encoder(place) for one, place in encoders.items()}) | {
        "dataset.source": _canonical(data),
        "queries": "corpus",
        "pseudo": {},  # no generator, which would be looked for from the second tree
        "articles.source": "demo",
        "fuse": fuse,
        "prepare.leaks": "allow",  # nothing is trained
        "prepare.official_depth": 0,
        "bm25.depth": 0,
        "text.titles": shown.titles,
        "retrieve.ignore_identical_ids": shown.ignore_identical_ids,
        "evaluate.relevance": shown.relevance,
    }
    if settings.drop:
        values |= {"prepare.unknown_documents": "drop", "prepare.empty_texts": "drop"}
    tokens, notes = texts_of(encoders, sections, settings)
    return [edit.setting(key, value) for key, value in (values | tokens).items()], notes


def untrained_rounds(encoders: Mapping[str, str]) -> dict[str, Any]:
    """The settings of params.yaml with which each encoder (a source, by name) is a round of no steps, and nothing else remains.

    The first becomes the start encoder, which gives the tokenizer; the others are entries of `encoders`.
    """
    start, *others = encoders
    return dict[str, Any]({section: {} for section in EMPTIED}) | {
        "base": {},
        "encoder.source": encoders[start],
        "encoders": {f"encoder_of_{name}": {"source": encoders[name]} for name in others},
        "rounds": {name: AS_IT_IS | ({"init": f"encoder_of_{name}"} if name in others else {}) for name in encoders},
    }


def texts_of(encoders: Mapping[str, str], sections: Mapping[str, Any], settings: Settings) -> tuple[dict[str, Any], list[str]]:
    """Prefixes and lengths of texts for `encoders` (sources by name), by key of params.yaml, and lines on lengths that were reduced."""
    from tasks.core.models.folder import read_shape
    from tasks.core.models.limits import most_tokens

    folders = {name: encoder_folder(source) for name, source in encoders.items()}
    for source in encoders.values():
        list_encoder(source)  # a UserError if it is not a model
    shapes = {name: read_shape(folder) for name, folder in folders.items()}
    limit = min(most_tokens(folder) for folder in folders.values())
    project = validate(Parameters, sections, "params.yaml").tokenize
    values, notes = dict[str, Any](), []
    for kind in ("query", "document"):
        prefixes = {name: getattr(shape, f"{kind}_prefix") for name, shape in shapes.items()}
        if len(set(prefixes.values())) > 1 and settings.prefixes[kind] is None:
            raise UserError(f"{', '.join(prefixes)}: found different {kind} prefixes, expected the same in a fusion; set --{kind}-prefix")
        asked, length = settings.lengths[kind], getattr(project, f"{kind}_length")
        if asked is not None and asked > limit:
            raise UserError(f"--{kind}-length: found {asked}, expected at most {limit}, the model's limit; decrease it")
        if asked is None and length > limit:
            notes.append(f"params.yaml: tokenize.{kind}_length is {length}, above the model's limit; using {limit}")
        prefix = settings.prefixes[kind]
        values[f"tokenize.{kind}_prefix"] = next(iter(prefixes.values())) if prefix is None else prefix
        values[f"tokenize.{kind}_length"] = min(asked or length, limit)
    return values, notes


def describe_model(model: str, sections: Mapping[str, Any]) -> list[str]:
    """Lines on how a fusion or BM25 is made; none for an encoder."""
    if model in fusions(sections):
        return [describe_system(one, sections) for one in fusion_parts(model, sections)[1]]
    bm25 = validate(lexical.BM25, sections.get("bm25") or {}, "params.yaml", section="bm25")
    return [f"{BM25}: k1 {bm25.k1:g}, b {bm25.b:g}"] if model == BM25 else []


def describe_system(name: str, sections: Mapping[str, Any]) -> str:
    """`hybrid: linear of bm25 and star, weight 0.2, as chosen on this project's dev`."""
    fusion = read_json(record_of(name, sections))
    ((key, value),) = _setting(fusion).items()
    chosen = {"params.yaml": "as in params.yaml", None: f"not chosen: {fusion.get('why', 'this project has no dev')}"}
    how = chosen.get(fusion["chosen_on"], f"as chosen on this project's {fusion['chosen_on']}")
    return f"{name}: {fusion['method']} of {fusion['first']} and {fusion['second']}, {key} {value:g}, {how}"


def chosen_entry(name: str, sections: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a fusion with the weight (or k) that was chosen. Raises UserError if the fusion has not run."""
    return {**fusions(sections)[name], **_setting(read_json(record_of(name, sections)))}


def _setting(record: Mapping[str, Any]) -> dict[str, float]:
    """The weight or k in a fusion.json, by its key."""
    return {key: record[key] for key in ("weight", "k") if key in record}


def _canonical(data: str) -> str:
    kind, place = canonical_spec(data)
    return f"{kind}:{place}" if place else kind


def absolute_encoder(source: str) -> str:
    """`source`, a value of encoder.source, with its path made absolute, if it has one."""
    place = parse_encoder(source)
    return str(place.folder.resolve()) if place.kind == "folder" and place.folder else source


def short_name(source: str) -> str:
    """A short name for a model that is valid for a round."""
    name = re.sub(r"[^a-z0-9_]+", "_", Path(source).name.lower()).strip("_")[:40] or "model"
    return name if NAME.fullmatch(name) and name not in RESERVED else f"model_{name}"
