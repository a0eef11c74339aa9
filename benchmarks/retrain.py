"""What retraining from the champion gains and costs beside a full retraining: a share of the training queries first, then the others.

    python benchmarks/retrain.py --data BEIR_FOLDER --encoder package:MODULE/FOLDER --folder NEW_FOLDER [--mode query_tower]
        [--first 0.5] [--adore '{"lr": 2e-5}'] [--round '{"lr": 2e-5}'] [--set rounds.warmup.epochs=0.5 ...]

Prints, on dev: nDCG@10 of the champion of the first half, of the model that starts from it, and of a full retraining on both halves, with
paired t-tests against the champion; the seconds that stages recorded of their own work; the documents encoded for it.
"""

import argparse
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from flows.champions.tree import FOLDER
from flows.measuring.timing import read
from flows.parameters import edit
from flows.retraining.starting import TRAINED
from tasks.core.statistics.paired_tests import paired_t_test

ROOT = Path(__file__).resolve().parents[1]
NAMED = "warmup"  # the recipe's last round, and the champion
RECIPE = {
    **{section: {} for section in ("pretrain", "mine", "adore", "fuse")},
    "rounds": {NAMED: {"init": "base", "negatives": "bm25", "lr": 1e-4}},
    "report.baselines": ["bm25"],
    "prepare.leaks": "drop",
}
AUTHOR = {f"GIT_{role}_{what}": "bench@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def lines(path: Path) -> list[str]:
    """The lines of a file, plain or .gz."""
    if path.exists():
        return path.read_text(encoding="utf-8").splitlines(keepends=True)
    with gzip.open(path.with_name(f"{path.name}.gz"), "rt", encoding="utf-8") as handle:
        return list(handle)


def split(data: Path, out: Path, first: float) -> None:
    """`out`/source: `data` with the share `first` of its training queries, at random; `out`/batch: the others."""
    header, *judged = lines(data / "qrels/train.tsv")
    query_ids = sorted({line.split("\t")[0] for line in judged})
    source_ids = set(random.Random(0).sample(query_ids, round(first * len(query_ids))))
    for name, ids in (("source", source_ids), ("batch", set(query_ids) - source_ids)):
        (out / name / "qrels").mkdir(parents=True)
        others = set(query_ids) - ids
        (out / name / "queries.jsonl").write_text("".join(q for q in lines(data / "queries.jsonl") if json.loads(q)["_id"] not in others))
        train_judgments = [line for line in judged if line.split("\t")[0] in ids]
        (out / name / "qrels/train.tsv").write_text("".join([header, *train_judgments]))
    (out / "source/corpus.jsonl").write_text("".join(lines(data / "corpus.jsonl")))
    for measured in ("dev", "test"):
        if (data / f"qrels/{measured}.tsv").exists():
            shutil.copy(data / f"qrels/{measured}.tsv", out / "source/qrels")


def retrain(project: Path, **settings: Any) -> tuple[str, dict[str, float], int]:
    """The last line of a retraining, the seconds of the stages that ran, and how many documents were encoded."""
    rules = {"intake": {"inbox": "../inbox"}, "promotion": {"margin": 1.0}, "retrain": settings}
    (project / "retraining.yaml").write_text(json.dumps(rules))
    for words in (("add", "--all"), ("commit", "--quiet", "--allow-empty", "-m", "settings")):
        subprocess.run(["git", *words], cwd=project, env=os.environ | AUTHOR, check=True)
    tree = project / FOLDER
    store, log = tree / ".retemper/shards", tree / ".retemper/times.jsonl"
    line_count, known_shards = len(read(log)), {path.name for path in store.glob("*.npy")}
    command = [sys.executable, "-m", "flows.cli", "retrain"]
    process = subprocess.run(command, cwd=project, env=os.environ | AUTHOR | {"PYTHONPATH": str(project)}, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"status {process.returncode}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}")
    ended = [line for line in read(log)[line_count:] if line.get("state") == "Ran" and isinstance(line.get("cost"), dict)]
    encoded = sum(len(np.load(path, mmap_mode="r", allow_pickle=False)) for path in store.glob("*.npy") if path.name not in known_shards)
    return process.stdout.splitlines()[-1], {str(line["ended"]): line["cost"].get("seconds", 0.0) for line in ended}, encoded


def values(tree: Path, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """nDCG@10 of every dev query."""
    ndcg: np.ndarray[Any, np.dtype[np.float64]] = pq.read_table(tree / f"data/values/{name}/dev.parquet")["nDCG@10"].to_numpy()
    return ndcg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--mode", choices=sorted(TRAINED), default="query_tower")
    parser.add_argument(
        "--first", type=float, default=0.5, help="share of the training queries that the champion learns from (default: %(default)s)"
    )
    parser.add_argument("--adore", type=json.loads, default={})
    parser.add_argument("--round", type=json.loads, default={})
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    folder = args.folder.resolve()
    split(args.data, folder, args.first)
    project = folder / "project"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(project)], check=True)
    subprocess.run(["git", "-C", str(project), "remote", "remove", "origin"], check=True)  # retrainings push to it
    settings = RECIPE | {"dataset.source": "beir:../source", "encoder.source": args.encoder}
    edit.apply([*(f"{key}={json.dumps(value)}" for key, value in settings.items()), *args.set], project / "params.yaml", lambda _: None)
    (folder / "inbox").mkdir()
    tree = project / FOLDER
    print(retrain(project)[0])
    shutil.move(folder / "batch", folder / "inbox/001")
    message, cheap, encoded = retrain(project, mode=args.mode, adore=args.adore, round=args.round)
    trained = f"{NAMED}_{TRAINED[args.mode]}"
    scores = {"champion": values(tree, NAMED), args.mode: values(tree, trained)}
    print(message)
    message, full, all_encoded = retrain(project, mode="full")
    scores["full"] = values(tree, NAMED)
    print(message)
    for name, seconds, documents in (("champion", {}, 0), (args.mode, cheap, encoded), ("full", full, all_encoded)):
        p, low, high = paired_t_test(scores[name], scores["champion"], 0.05)
        gain = "" if low is None or high is None else f" ({scores[name].mean() - scores['champion'].mean():+.4f} [{low:+.4f}, {high:+.4f}]"
        shown = f"{gain}, p {p:.2g})" if gain and seconds else ""
        print(f"{name:12} dev nDCG@10 {scores[name].mean():.4f}{shown}; {sum(seconds.values()):,.0f} s; {documents:,} documents encoded")
        print(f"{'':12} {', '.join(f'{stage} {stage_seconds:.1f}' for stage, stage_seconds in seconds.items() if stage_seconds >= 1)}")
    print(f"{args.mode} took {sum(cheap.values()) / sum(full.values()):.1%} of the full retraining")


if __name__ == "__main__":
    main()
