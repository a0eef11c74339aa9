"""Evaluates any model on any dataset, beside the project: its stages, run in a temporary folder, with the project's parameters."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flows.parameters.checks import check_file
from flows.process.display import Display, text_table
from flows.process.problems import Problems, tell
from flows.process.processes import Processes, environment, stopping_on_signals
from flows.results import metrics
from flows.results.fusions import BM25, fusions, made_from, record_of
from flows.results.generations import lock_here, refuse_unfit
from tasks.core.sources.datasets import FOLDER_KINDS, parse_dataset, parse_encoder
from tasks.core.stage.errors import USER_ERROR, Problem, UserError
from tasks.core.stage.files import read_json, write_json
from tasks.core.stage.params import PARAMETERS, read_yaml, validate

SCRATCH = Path(".retemper")
SHORTEST = 3  # tokens of a text: [CLS], one, [SEP]
SPLITS: tuple[Literal["dev", "test"], ...] = ("dev", "test")


@dataclass(frozen=True)
class Settings:
    """The settings of an evaluation, `prefixes` and `lengths` by "query" and "document". All others are the project's.

    None stands for a default: the model's own prefixes; the project's lengths (cut to the model's limit), titles, and treatment of
    identical ids; and for `relevance`, the lowest relevant grade (of both splits, or of dev and test), the project's on its own
    dataset, 1 on another. `drop` drops empty texts and qrels of unknown ids.
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


def remove_abandoned() -> None:
    """Remove what killed evaluations and reproductions left behind: folders whose process has ended."""
    for folder in [*SCRATCH.glob("evaluate-*-*"), *SCRATCH.glob("reproduce-*-*")]:
        with suppress(PermissionError):  # another user's, and alive
            try:
                os.kill(int(folder.name.split("-")[1]), 0)
            except (ProcessLookupError, ValueError):
                shutil.rmtree(folder, ignore_errors=True)


def evaluate(model: str, data: str, out: Path | None, settings: Settings) -> int:
    """Print the metrics of `model` on dataset `data`, per split; also to `out`. Returns the exit status.

    `model` is an encoder, whose pooling, head and similarity are its own, or an entry of `fuse`: BM25 is built over the data, and the
    weight (or k) is the one that was chosen on the project's own dev.
    """
    parse_dataset(data)
    for kind, length in settings.lengths.items():
        if length is not None and length < SHORTEST:
            raise UserError(f"--{kind}-length {length}: expected {SHORTEST} tokens at least, special ones included")
    shown, sections = decided(settings, data), read_yaml(Path("params.yaml"))
    is_fused = model in fusions(sections)
    name = model if is_fused else _name(parse_encoder(model).name)
    SCRATCH.mkdir(exist_ok=True)
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"evaluate-{os.getpid()}-", dir=SCRATCH))
    processes, display = Processes(), Display()
    try:
        with stopping_on_signals(processes):
            if is_fused:
                planned = fused_commands(fused_plan(model, sections), data, folder, settings=settings, shown=shown)
            else:
                planned = commands(name, model, data, folder, settings, shown)
            titles = {"text": {**sections["text"], "titles": shown.titles}}  # of BM25; the model's have an option
            write_json(folder / "params.json", sections | titles)  # a run in progress in this project has its own
            own = environment(**{PARAMETERS: str((folder / "params.json").absolute())})
            problem = run_stages(judged_first(planned, folder, data, shown.relevance), processes, display.output, own)
            if problem:
                tell([problem])
                return problem.status
        measured, read = read_json(folder / "metrics.json"), _texts(folder, shown)
        read = "\n".join([read, *(told_of(one, sections) for one in (made_from(model, sections)[1] if is_fused else []))])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    display.line(f"\n{text_table(*metrics.rows({name: measured}))}\n{read}")
    if out:
        write_json(out, measured)
    return 0


def decided(settings: Settings, data: str) -> Shown:
    """`settings` with the project's parameters as defaults; UserError where the two contradict each other."""
    project = check_file()
    given = settings.relevance
    if given is not None and (len(given) > len(SPLITS) or min(given) < 1):
        raise UserError(f"--relevance {' '.join(map(str, given))}: expected a grade of 1 at least, or one for dev and one for test")
    least: dict[str, int] = dict(zip(SPLITS, (given[0], given[-1]), strict=True)) if given else dict.fromkeys(SPLITS, 1)
    if given is None and _resolved(data) == _resolved(project.dataset.source):
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


def _resolved(data: str) -> tuple[str, str]:
    """What two SPECs of the same dataset share, however its folder is spelled."""
    spec = parse_dataset(data)
    return spec.kind, str(spec.folder.resolve()) if spec.kind in FOLDER_KINDS else spec.place


def judged_first(planned: Iterable[Sequence[str]], folder: Path, data: str, relevance: Mapping[str, int]) -> Iterator[Sequence[str]]:
    """`planned`, with a check of the qrels after the first stage, prepare: what cannot be measured is not encoded for hours first."""
    for number, command in enumerate(planned):
        if number == 1:
            refuse_unjudged(folder / "corpus/qrels", data, relevance)
        yield command


def refuse_unjudged(qrels: Path, data: str, relevance: Mapping[str, int]) -> None:
    """UserError if dev and test have no relevant document, or no grade of a split reaches its `relevance`."""
    from tasks.core.tables.parquet import read_table
    from tasks.core.tables.schemas import QRELS

    files = {split: file for split in SPLITS if (file := qrels / f"{split}.parquet").exists()}
    largest = {split: int(read_table(file, QRELS, ["grade"])["grade"].to_numpy().max(initial=0)) for split, file in files.items()}
    if not any(grade > 0 for grade in largest.values()):
        raise UserError(f"{data}: found no relevant document for dev or test queries, expected some to evaluate on; add qrels")
    for split, grade in largest.items():
        if 0 < grade < relevance[split]:
            raise UserError(
                f"{data}: found {grade} as the largest grade of {split}, expected {relevance[split]} at least, the least that is relevant; "
                f"set --relevance {grade}, or one for dev and one for test"
            )


def run_stages(
    commands: Iterable[Sequence[str]], processes: Processes, tell: Callable[[str, str], None], env: Mapping[str, str]
) -> Problem | None:
    """Run stages, each `[module, arguments...]`, one after another. Returns why the first failure happened; None if all succeeded.

    `tell` is passed a stage's name and each line of its output. Status 2 is a user's mistake, in the stage's own words.
    """
    for command in commands:
        stage = command[0].removeprefix("tasks.")
        reported = Problems(SCRATCH / f"{stage}-{os.getpid()}.problem.json")
        try:
            status = processes.run([sys.executable, "-m", *command], partial(tell, stage), {**env, **reported.environment})
        finally:
            problems = reported.take()
        if status:
            unknown = Problem("stage", f"{command[0]} failed with status {status}; its output is above", 1, where=command[0])
            return problems[-1] if problems and status == USER_ERROR else unknown
    return None


def _texts(folder: Path, shown: Shown) -> str:
    """How texts were given to the model, and how its lists were measured, in a line."""
    texts = []
    for tokens in sorted(folder.rglob("tokens")):
        described = {name: read_json(file) for name in ("queries", "documents") for file in sorted((tokens / name).rglob("meta.json"))}
        whose = f"{tokens.parent.name}: " if tokens.parent != folder else ""
        texts += [f"{whose}{name} of at most {meta['max_length']} tokens, prefix {meta['prefix']!r}" for name, meta in described.items()]
    texts.append("titles on" if shown.titles else "titles off")
    if shown.ignore_identical_ids:
        texts.append("identical ids excluded")
    texts += [f"{split}: relevant from grade {grade}" for split, grade in shown.relevance.items() if grade != 1]
    return "; ".join(texts)


def commands(name: str, model: str, data: str, folder: Path, settings: Settings, shown: Shown) -> list[list[str]]:
    """The stages from a dataset and an encoder to metrics, each `[module, arguments...]`, with everything below `folder`."""

    return [
        _prepare(data, folder, settings),
        *_dense(name, model, data, corpus=folder, folder=folder, runs=folder / "runs", settings=settings, shown=shown),
        _evaluate(name, folder / "runs", folder, shown=shown),
    ]


@dataclass(frozen=True)
class FusedPlan:
    """What a fusion is made from: systems to search (bm25, models of the project), and fusions, each after what it reads."""

    searched: Sequence[str]
    fused: Sequence[str]
    entries: Mapping[str, Any]  # of fuse in params.yaml
    records: Mapping[str, Path]  # fusion.json of each: the weight that is taken


def fused_plan(name: str, sections: Mapping[str, Any]) -> FusedPlan:
    """The plan for an entry of `fuse`; UserError where it has no weight yet, one of its models no encoder, or both differ in generation."""
    searched, fused = made_from(name, sections)
    refuse_unfit(lock_here(), name, "dvc.lock")
    for model in searched:
        if model != BM25 and not Path("data/encoders", model).exists():
            raise UserError(f"data/encoders/{model}: not found, and fuse.{name} is made from it; run retemper run")
    return FusedPlan(searched, fused, fusions(sections), {one: record_of(one, sections) for one in fused})


def fused_commands(plan: FusedPlan, data: str, folder: Path, *, settings: Settings, shown: Shown) -> list[list[str]]:
    """`commands` for a fusion: each of its systems has a folder of its own below `folder`, and its runs in runs/NAME."""
    made = [_prepare(data, folder, settings)]
    queries = str(folder / "corpus/queries")
    for name in plan.searched:
        runs = folder / "runs" / name
        if name == BM25:
            candidates = str(folder / "candidates")
            made += [
                ["tasks.bm25", "--corpus", str(folder / "corpus"), "--index", str(folder / "bm25"), "--candidates", candidates],
                ["tasks.retrieve", "--name", name, "--candidates", candidates, "--queries", queries, "--out", str(runs), _ignore(shown)],
            ]
        else:
            model = f"data/encoders/{name}"
            made += _dense(name, model, data, corpus=folder, folder=folder / name, runs=runs, settings=settings, shown=shown)
    for name in plan.fused:
        first, second = (str(folder / "runs" / str(plan.entries[name][part])) for part in ("first", "second"))
        made.append(
            [
                *("tasks.fuse", "--name", name, "--first", first, "--second", second, "--queries", queries),
                *("--qrels", str(folder / "corpus/qrels"), "--chosen", str(plan.records[name]), "--out", str(folder / "runs" / name)),
            ]
        )
    return [*made, _evaluate(plan.fused[-1], folder / "runs" / plan.fused[-1], folder, shown=shown)]


def told_of(name: str, sections: Mapping[str, Any]) -> str:
    """`hybrid: linear of bm25 and star, weight 0.2, as chosen on this project's dev`."""
    told = read_json(record_of(name, sections))
    what = "k" if "k" in told else "weight"
    chosen = "as chosen on this project's dev" if told["chosen_on"] else "not chosen: this project has no dev"
    return f"{name}: {told['method']} of {told['first']} and {told['second']}, {what} {told[what]:g}, {chosen}"


def _ignore(shown: Shown) -> str:
    return "--ignore-identical-ids" if shown.ignore_identical_ids else "--no-ignore-identical-ids"


def _prepare(data: str, folder: Path, settings: Settings) -> list[str]:
    drop = ["--drop"] if settings.drop else []
    return ["tasks.prepare", "--source", data, "--out", str(folder / "corpus"), "--none", str(folder / "none"), *drop]


def _dense(
    name: str, model: str, data: str, *, corpus: Path, folder: Path, runs: Path, settings: Settings, shown: Shown
) -> list[list[str]]:
    """The stages from an encoder to its runs, with everything but these and the corpus below `folder`."""

    def at(path: str) -> str:
        return str(folder / path)

    return [
        ["tasks.base", "--source", model, "--encoder", at("encoder"), "--tokenizer", at("tokenizer")],
        [
            *("tasks.tokenize", "--corpus", str(corpus / "corpus"), "--tokenizer", at("tokenizer"), "--out", at("tokens")),
            *("--prompts", at("encoder/config_sentence_transformers.json")),
            *(f"--{kind}-prefix={prefix}" for kind, prefix in settings.prefixes.items() if prefix is not None),
            *(f"--{kind}-length={length}" for kind, length in settings.lengths.items() if length is not None),
            "--titles" if shown.titles else "--no-titles",
        ],
        [
            *("tasks.encode", "--tokens", at("tokens/documents"), "--encoder", at("encoder"), "--out", at("embeddings")),
            *("--corpus-name", data),  # else the shards of the project's own corpus would be forgotten as those of deleted documents
        ],
        [
            *("tasks.retrieve", "--name", name, "--encoder", at("encoder"), "--embeddings", at("embeddings"), "--tokens", at("tokens")),
            *("--out", str(runs), _ignore(shown)),
        ],
    ]


def _evaluate(name: str, runs: Path, folder: Path, *, shown: Shown) -> list[str]:
    return [
        *("tasks.evaluate", "--name", name, "--runs", str(runs), "--qrels", str(folder / "corpus/qrels")),
        *("--values", str(folder / "values"), "--metrics", str(folder / "metrics.json")),
        *("--relevance", *(str(shown.relevance[split]) for split in SPLITS)),
    ]


def _name(source: str) -> str:
    """A short name of a model, fit for a run file."""
    return re.sub(r"[^a-z0-9_]+", "_", Path(source).name.lower()).strip("_") or "model"
