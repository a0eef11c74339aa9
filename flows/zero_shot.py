"""Evaluates any model on any dataset, beside the project: its stages, run in a temporary folder, with the project's parameters."""

import os
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from flows import metrics
from flows.display import Display, text_table
from flows.processes import Processes, environment, stopping_on_signals
from tasks.core.files import read_json, write_json
from tasks.core.sources import parse_dataset, parse_encoder

SCRATCH = Path(".retemper")


def remove_abandoned() -> None:
    """Remove what evaluations and reproductions that were killed left behind: their process is no more."""
    for folder in [*SCRATCH.glob("evaluate-*-*"), *SCRATCH.glob("reproduce-*-*")]:
        with suppress(PermissionError):  # somebody else's, and alive
            try:
                os.kill(int(folder.name.split("-")[1]), 0)
            except (ProcessLookupError, ValueError):
                shutil.rmtree(folder, ignore_errors=True)


def evaluate(model: str, data: str, out: Path | None) -> int:
    """Print the metrics of encoder `model` on dataset `data`, per split; also to `out`. Returns the exit status."""
    parse_dataset(data)
    name = _name(parse_encoder(model).name)
    SCRATCH.mkdir(exist_ok=True)
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"evaluate-{os.getpid()}-", dir=SCRATCH))
    processes, display = Processes(), Display()
    try:
        with stopping_on_signals(processes):
            for command in commands(name, model, data, folder):
                lines: list[str] = []
                stage = command[0].removeprefix("tasks.")

                def tell(line: str, stage: str = stage, lines: list[str] = lines) -> None:
                    lines.append(line)
                    if not line.startswith("retemper: "):
                        display.output(stage, line)

                status = processes.run([sys.executable, "-m", *command], tell, environment())
                if status:
                    mistake = next((line for line in reversed(lines) if line.startswith("retemper: ")), None)
                    print(mistake or f"retemper: {command[0]} failed with status {status}; its output stands above", file=sys.stderr)
                    return status if status == 2 and mistake else 1
        measured = read_json(folder / "metrics.json")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    display.line(f"\n{text_table(*metrics.rows({name: measured}))}")
    if out:
        write_json(out, measured)
    return 0


def commands(name: str, model: str, data: str, folder: Path) -> list[list[str]]:
    """The stages from a dataset and an encoder to metrics, each `[module, arguments...]`, with everything below `folder`."""

    def at(path: str) -> str:
        return str(folder / path)

    return [
        ["tasks.prepare", "--source", data, "--out", at("corpus"), "--none", at("none"), "--official", at("official")],
        ["tasks.base", "--source", model, "--encoder", at("encoder"), "--tokenizer", at("tokenizer")],
        ["tasks.tokenize", "--corpus", at("corpus"), "--tokenizer", at("tokenizer"), "--out", at("tokens")],
        ["tasks.encode", "--tokens", at("tokens/documents"), "--encoder", at("encoder"), "--out", at("embeddings")],
        [
            "tasks.evaluate",
            *("--name", name, "--encoder", at("encoder"), "--embeddings", at("embeddings"), "--tokens", at("tokens")),
            *("--qrels", at("corpus/qrels"), "--runs", at("runs"), "--metrics", at("metrics.json")),
        ],
    ]


def _name(source: str) -> str:
    """A short name of a model, fit for a run file."""
    return re.sub(r"[^a-z0-9_]+", "_", Path(source).name.lower()).strip("_") or "model"
