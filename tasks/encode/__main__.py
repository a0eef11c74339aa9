"""Encode document tokens as document vectors, one shard after another; finished shards are never recomputed.

A thread writes a shard while the next one is encoded; one at most waits for it.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import transformers

from tasks.core.files import new_folder
from tasks.core.models.bi_encoder import document_digest
from tasks.core.params.runtime import RUNTIME_FILE, Runtime, read_runtime
from tasks.core.params.sections import load
from tasks.core.retrieval.embeddings import Block, Manifest, shard_name, write_manifest
from tasks.core.stage.entry import parser, record_arithmetic, stage
from tasks.core.stage.progress import Progress
from tasks.core.stage.scratch import ROOT, code_digest
from tasks.core.tables.ids import StoredIds
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.workers.each import open_workers, worker_files
from tasks.encode.params import Encode
from tasks.encode.shards import ShardStore, boundaries, shard_digest
from tasks.encode.vectors import Arithmetic, DocumentTower, Piece, ShardEncoder

INT8_NEEDS = "requires an x86 CPU with AVX2, a BERT, RoBERTa, or XLM-R, and pooling cls, or mean over all tokens, prefixes included"


def main() -> None:
    paths = {"tokens": "token folder of the documents", "encoder": "encoder folder", "out": "embedding folder to write"}
    arguments = parser(__doc__ or "", **paths).parse_args()
    params, runtime = load(Encode, "encode"), read_runtime()
    with open_workers(runtime) as workers:
        tower = DocumentTower(arguments.encoder, params, workers.runtime)
        arithmetic = workers.agreed(tower.arithmetic)
        if params.precision == "int8" and not arithmetic.int8:
            print(f"encode.precision: int8: {INT8_NEEDS}; encoding in {arithmetic.name} instead")
        if arithmetic.int8:
            record_arithmetic(arithmetic.name)
        tokens = open_tokens(arguments.tokens)
        weights = document_digest(arguments.encoder)
        made_by = _provenance(weights, tokens, params, arithmetic)
        store = ShardStore(ROOT / "shards", int(runtime.shard_store_gib * 2**30))
        _warn_of_small_store(store, len(tokens) * arithmetic.width * np.dtype(params.dtype).itemsize, runtime)
        family = hashlib.sha256(made_by.encode()).hexdigest()[:16]
        cuts = boundaries(StoredIds(arguments.tokens / "ids.parquet"), tokens.owners)
        progress = Progress(f"encode ({arithmetic.device}, {arithmetic.name})", len(tokens), "passages")
        files = nullcontext(None) if workers.alone else worker_files(f"encode-{arguments.out.name}")
        with new_folder(arguments.out) as out, files as folder, ThreadPoolExecutor(1, thread_name_prefix="save") as writer:
            if folder is None:
                encoder = ShardEncoder(tower, arguments.tokens, store, family, done=progress.advance)
            else:
                encoder = ShardEncoder(tower, arguments.tokens, store, family, folder)

            def missing() -> Iterator[Piece]:
                for number, (first, end) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
                    digest = f"{family}-{shard_digest(tokens, first, end, made_by)}"
                    if store.fetch(digest, out / shard_name(number)):
                        progress.skip(end - first)
                    else:
                        yield Piece(number, first, end, digest)

            saving = writer.submit(lambda: None)
            for piece, vectors, rows, encoded in workers.each(encoder, missing()):
                progress.skip(piece.end - piece.first - encoded)
                if not workers.alone:
                    progress.advance(encoded)
                saving.result()
                saving = writer.submit(_save, vectors, out / shard_name(piece.number), piece, rows, store)
            saving.result()
            shards = np.diff(cuts).tolist()
            manifest = Manifest(
                len(tokens), arithmetic.width, params.dtype, shards, weights, tokens.tokenizer, tokens.max_length, tokens.prefix
            )
            write_manifest(out, manifest, arguments.tokens)
    store.forget(family, runtime.shard_store_days * 86400)
    progress.close()


def _provenance(weights: str, tokens: Tokens, params: Encode, arithmetic: Arithmetic) -> str:
    """All that a shard's vectors depend on besides its texts, as JSON; `weights`: the digest of the tower."""
    return json.dumps(
        [
            weights,
            tokens.tokenizer,
            tokens.pad,
            tokens.max_length,
            tokens.prompt,
            code_digest("encode"),
            arithmetic.name if arithmetic.int8 else arithmetic.dtype,
            arithmetic.hardware,
            params.dtype,
            arithmetic.batch_tokens,
            torch.__version__,
            transformers.__version__,
        ]
    )


def _warn_of_small_store(store: ShardStore, size: int, runtime: Runtime) -> None:
    """Say what share of `size` bytes of vectors the store of finished shards can keep, if not all."""
    if size > store.limit_bytes:
        held = f"shard_store_gib {runtime.shard_store_gib:g} holds {store.limit_bytes / size:.0%} of {size / 2**30:,.1f} GiB"
        print(f"{RUNTIME_FILE}: {held} of vectors; a killed encode loses the rest; raise shard_store_gib")


def _save(vectors: Block | Path, to: Path, piece: Piece, rows: bytes, store: ShardStore) -> None:
    """Save a shard's vectors to `store` and to the file `to`. `vectors`: the array, or the file that a worker wrote."""
    if isinstance(vectors, Path):
        store.keep(piece.digest, np.load(vectors, allow_pickle=False), rows)
        shutil.move(vectors, to)
    else:
        store.keep(piece.digest, vectors, rows)
        np.save(to, vectors)


if __name__ == "__main__":
    with stage():
        main()
