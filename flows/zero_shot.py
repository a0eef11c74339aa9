"""Evaluates any model on any dataset, beside the project: its stages, run in a temporary folder, with the project's parameters."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flows import metrics
from flows.checks import check_file
from flows.display import Display, text_table
from flows.processes import Processes, environment, stopping_on_signals
from tasks.core.errors import UserError
from tasks.core.files import read_json, write_json
from tasks.core.sources import parse_dataset, parse_encoder

SCRATCH = Path(".retemper")
SHORTEST = 3  # tokens of a text: [CLS], one, [SEP]


def remove_abandoned() -> None:
    """Remove what evaluations and reproductions that were killed left behind: their process is no more."""
    for folder in [*SCRATCH.glob("evaluate-*-*"), *SCRATCH.glob("reproduce-*-*")]:
        with suppress(PermissionError):  # somebody else's, and alive
            try:
                os.kill(int(folder.name.split("-")[1]), 0)
            except (ProcessLookupError, ValueError):
                shutil.rmtree(folder, ignore_errors=True)


def evaluate(
    model: str,
    data: str,
    out: Path | None,
    prefixes: Mapping[str, str | None],
    lengths: Mapping[str, int | None],
    titles: bool | None,
    drop: bool,
    ignore_identical_ids: bool | None,
) -> int:
    """Print the metrics of encoder `model` on dataset `data`, per split; also to `out`. Returns the exit status.

    Pooling, head, similarity and prompts are the model's own, but for `prefixes` ("query", "document"); `lengths` (of the same),
    `titles` and `ignore_identical_ids` (tasks.evaluate.params) are the project's where they are None, lengths cut to what the model
    takes; all else is the project's. With `drop`, empty texts and qrels of unknown ids are dropped.
    """
    parse_dataset(data)
    for kind, length in lengths.items():
        if length is not None and length < SHORTEST:
            raise UserError(f"--{kind}-length {length}: expected {SHORTEST} tokens at least, special ones included")
    titles = check_file().text.titles if titles is None else titles
    if ignore_identical_ids is None:
        ignore_identical_ids = check_file().evaluate.ignore_identical_ids
    name = _name(parse_encoder(model).name)
    SCRATCH.mkdir(exist_ok=True)
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"evaluate-{os.getpid()}-", dir=SCRATCH))
    processes, display = Processes(), Display()
    try:
        with stopping_on_signals(processes):

            def tell(stage: str, line: str) -> None:
                if not line.startswith("retemper: "):
                    display.output(stage, line)

            status, problem = run_stages(
                commands(name, model, data, folder, prefixes, lengths, titles, drop, ignore_identical_ids), processes, tell, environment()
            )
            if status:
                print(f"retemper: {problem}", file=sys.stderr)
                return status
        measured, read = read_json(folder / "metrics.json"), _texts(folder, titles, ignore_identical_ids)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    display.line(f"\n{text_table(*metrics.rows({name: measured}))}\n{read}")
    if out:
        write_json(out, measured)
    return 0


def run_stages(
    commands: Iterable[Sequence[str]], processes: Processes, tell: Callable[[str, str], None], env: Mapping[str, str]
) -> tuple[int, str]:
    """Run stages, each `[module, arguments...]`, one after another; exit status and line of the first that failed, else (0, "").

    `tell` is passed a stage's name and each line of its output. Status 2 is a user's mistake, in the stage's own words.
    """
    for command in commands:
        stage, said = command[0].removeprefix("tasks."), [""]

        def each(line: str, stage: str = stage, said: list[str] = said) -> None:
            if line.startswith("retemper: "):
                said[0] = line.removeprefix("retemper: ")
            tell(stage, line)

        if status := processes.run([sys.executable, "-m", *command], each, env):
            return (status if status == 2 and said[0] else 1), said[
                0
            ] or f"{command[0]} failed with status {status}; its output stands above"
    return 0, ""


def _texts(folder: Path, titles: bool, ignore_identical_ids: bool) -> str:
    """How texts were put to the model, and what was left out of its lists, in a line."""
    described = {
        name: read_json(file) for name in ("queries", "documents") for file in sorted((folder / "tokens" / name).rglob("meta.json"))
    }
    texts = [f"{name} of at most {meta['max_length']} tokens, prefix {meta['prefix']!r}" for name, meta in described.items()]
    return "; ".join([*texts, "titles on" if titles else "titles off", *["identical ids left out"] * ignore_identical_ids])


def commands(
    name: str,
    model: str,
    data: str,
    folder: Path,
    prefixes: Mapping[str, str | None],
    lengths: Mapping[str, int | None],
    titles: bool,
    drop: bool,
    ignore_identical_ids: bool,
) -> list[list[str]]:
    """The stages from a dataset and an encoder to metrics, each `[module, arguments...]`, with everything below `folder`."""

    def at(path: str) -> str:
        return str(folder / path)

    return [
        [
            *("tasks.prepare", "--source", data, "--out", at("corpus"), "--none", at("none"), "--official", at("official")),
            *(["--drop"] if drop else []),
        ],
        ["tasks.base", "--source", model, "--encoder", at("encoder"), "--tokenizer", at("tokenizer")],
        [
            *("tasks.tokenize", "--corpus", at("corpus"), "--tokenizer", at("tokenizer"), "--out", at("tokens")),
            *("--prompts", at("encoder/config_sentence_transformers.json")),
            *(f"--{kind}-prefix={prefix}" for kind, prefix in prefixes.items() if prefix is not None),
            *(f"--{kind}-length={length}" for kind, length in lengths.items() if length is not None),
            "--titles" if titles else "--no-titles",
        ],
        ["tasks.encode", "--tokens", at("tokens/documents"), "--encoder", at("encoder"), "--out", at("embeddings")],
        [
            "tasks.evaluate",
            *("--name", name, "--encoder", at("encoder"), "--embeddings", at("embeddings"), "--tokens", at("tokens")),
            *("--qrels", at("corpus/qrels"), "--runs", at("runs"), "--metrics", at("metrics.json")),
            "--ignore-identical-ids" if ignore_identical_ids else "--no-ignore-identical-ids",
        ],
    ]


def _name(source: str) -> str:
    """A short name of a model, fit for a run file."""
    return re.sub(r"[^a-z0-9_]+", "_", Path(source).name.lower()).strip("_") or "model"
