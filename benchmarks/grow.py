"""What a corpus that grew costs to encode: documents appended, spread in, changed, deleted; against a full encode.

    python benchmarks/grow.py [--documents 200000] [--share 0.01] [--check append spread change delete] [--work FOLDER]

Token rows are the demo's leads, cut at 32 tokens, repeated; two tokens of each are replaced by its number, so that no two
rows are alike. The encoder is a random BERT of one layer and width 32 (size.py's): with a real one encoding weighs some
hundred times more beside what every encode does whatever it finds (start-up: loading, hashing tokens, copying shards), so
that is measured apart, by an encode that finds everything. For the scenarios of --check a full encode with an empty store
follows, whose digest must be the same.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
from size import LENGTH, ROOT, write_encoder

sys.path.insert(0, str(ROOT))
from tasks.core.files import folder_digest, write_json
from tasks.core.sources.datasets import demo_file
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import write_table
from tasks.core.tokens.tokenizer import load_tokenizer

SCENARIOS = ("append", "spread", "change", "delete")
Corpus = dict[str, np.ndarray]


def token_rows(encoder: Path, count: int) -> list[np.ndarray]:
    """`count` different rows."""
    texts = [entry["extract"] for entry in json.loads(demo_file().read_text(encoding="utf-8")).values()][:4000]
    leads = load_tokenizer(encoder)(texts, truncation=True, max_length=LENGTH)["input_ids"]
    rows = []
    for number in range(count):
        row = np.array(leads[number % len(leads)], dtype=np.uint16)
        row[1:3] = 1000 + number // 25000, 1000 + number % 25000
        rows.append(row)
    return rows


def write_tokens(folder: Path, documents: Corpus) -> None:
    """A token folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    np.concatenate(list(documents.values())).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, documents.values())]))
    np.save(folder / "owners.npy", np.arange(len(documents), dtype=np.int32))
    write_table(folder / "ids.parquet", IDS, [pa.table([list(documents)], schema=IDS)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": LENGTH, "prefix": "", "tokenizer": "demo"})


def grown(before: Corpus, extra: list[np.ndarray], scenario: str) -> Corpus:
    """The corpus after the scenario; `extra` rows are new."""
    names = list(before)
    places = set(np.random.default_rng(0).permutation(len(names))[: len(extra)].tolist())
    added = {f"new-{number}": row for number, row in enumerate(extra)}
    if scenario == "append":
        return {**before, **added}
    if scenario == "change":
        rows = iter(extra)
        return {name: next(rows) if place in places else before[name] for place, name in enumerate(names)}
    if scenario == "delete":
        return {name: before[name] for place, name in enumerate(names) if place not in places}
    pairs, new_rows = [], iter(added.items())
    for place, name in enumerate(names):
        if place in places:
            pairs.append(next(new_rows))
        pairs.append((name, before[name]))
    return dict(pairs)


def encode(folder: Path) -> tuple[float, int, str]:
    """Seconds of processor time, rows encoded and digest of one encode in `folder`, its imports left out."""
    stage, vectors = import_module("tasks.encode.__main__"), import_module("tasks.encode.vectors")
    counts: list[int] = []
    original_encode = vectors.encode

    def counted(tower: object, tokens: object, rows: np.ndarray, *others: object) -> object:
        counts.append(len(rows))
        return original_encode(tower, tokens, rows, *others)

    os.chdir(folder)
    sys.argv = ["encode", "--tokens", "tokens", "--encoder", "encoder", "--out", "out"]
    shutil.rmtree("out", ignore_errors=True)
    vectors.encode = counted
    start = time.process_time()
    stage.main()
    seconds = time.process_time() - start
    vectors.encode = original_encode
    return seconds, sum(counts), folder_digest(Path("out"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--check", nargs="*", choices=SCENARIOS, default=list(SCENARIOS), help="followed by a full encode")
    parser.add_argument("--work", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.work or Path(scratch)).absolute()
        write_encoder(folder / "encoder")
        (folder / "data").mkdir(exist_ok=True)
        write_json(folder / "data/params.json", {"encode": {"precision": "fp32"}})
        count = int(args.documents * args.share)
        rows = token_rows(folder / "encoder", args.documents + count)
        draw = np.random.default_rng(1)
        before = {f"{draw.integers(2**32):08x}-{number}": row for number, row in enumerate(rows[: args.documents])}
        store, saved_store = folder / ".retemper", folder / "kept"
        write_tokens(folder / "tokens", before)
        full, encoded, _ = encode(folder)
        shutil.rmtree(saved_store, ignore_errors=True)
        shutil.copytree(store, saved_store)
        idle, unchanged_rows, _ = encode(folder)
        lines = [("full", full, encoded, ""), ("unchanged (start-up)", idle, unchanged_rows, "")]
        for scenario in SCENARIOS:
            shutil.rmtree(store)
            shutil.copytree(saved_store, store)
            write_tokens(folder / "tokens", grown(before, rows[args.documents :], scenario))
            seconds, encoded, digest = encode(folder)
            verdict = ""
            if scenario in args.check:
                shutil.rmtree(store)
                verdict = "equals a full encode" if encode(folder)[2] == digest else "DIFFERS from a full encode"
            lines.append((f"{scenario} {args.share:.1%}", seconds, encoded, verdict))
            print(lines[-1], file=sys.stderr, flush=True)
    print(f"{args.documents:,} documents, {platform.machine()}, {os.cpu_count()} cores")
    print(f"{'':<22}{'CPU s':>9}{'less start-up':>15}{'of full':>9}{'rows encoded':>14}{'of full':>9}")
    for name, seconds, encoded, verdict in lines:
        shares = f"{(seconds - idle) / (full - idle):>9.1%}", f"{encoded / args.documents:>9.1%}"
        print(f"{name:<22}{seconds:>9.1f}{seconds - idle:>15.1f}{shares[0]}{encoded:>14,}{shares[1]}  {verdict}")
    if any(verdict.startswith("DIFFERS") for *_, verdict in lines):
        sys.exit(1)


if __name__ == "__main__":
    main()
