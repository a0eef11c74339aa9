"""Encode document tokens as document vectors, one shard after another; finished shards are never recomputed."""

import hashlib
import json

import numpy as np
import torch
import transformers

from tasks.core.models.bi_encoder import document_folder, load_towers
from tasks.core.retrieval.embeddings import Block, Manifest, shard_name, write_manifest
from tasks.core.retrieval.encode import encode
from tasks.core.retrieval.packed import can_quantize
from tasks.core.stage.devices import RUNTIME_FILE, best_batch_tokens, choose_device, compute_dtype, hardware, place, read_runtime
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.errors import UserError
from tasks.core.stage.files import folder_digest, new_folder
from tasks.core.stage.params import load
from tasks.core.stage.progress import Progress
from tasks.core.stage.scratch import ROOT, code_digest
from tasks.core.tables.ids import Ints, StoredIds
from tasks.core.text.tokens import open_tokens
from tasks.encode.params import Encode
from tasks.encode.reuse import encode_touched, known_rows, row_digests
from tasks.encode.shards import ShardStore, boundaries, shard_digest


def main() -> None:
    paths = {"tokens": "token folder of the documents", "encoder": "encoder folder", "out": "embedding folder to write"}
    arguments = parser(__doc__ or "", **paths).parse_args()
    params, runtime = load(Encode, "encode"), read_runtime()
    device = choose_device(runtime)
    tower = load_towers(arguments.encoder).document
    int8 = params.precision == "int8" and can_quantize(tower, device)
    compute = compute_dtype(device, "fp32" if int8 or params.precision == "fp32" else "bf16")
    arithmetic = "int8" if int8 else str(compute).removeprefix("torch.")
    if params.precision == "int8" and not int8:
        print(f"encode.precision: int8: needs a CPU with VNNI or AMX, and an encoder built like BERT; encodes in {arithmetic}")
    batch_tokens = params.batch_tokens or best_batch_tokens(device, compute)
    tokens = open_tokens(arguments.tokens)
    weights = folder_digest(document_folder(arguments.encoder))
    made_by = json.dumps(
        [
            weights,
            tokens.tokenizer,
            tokens.pad,
            tokens.max_length,
            code_digest("encode"),
            "int8" if int8 else str(compute),
            hardware(device),
            params.dtype,
            batch_tokens,
            torch.__version__,
            transformers.__version__,
        ]
    )
    tower = place(tower, device, compute)
    store = ShardStore(ROOT / "shards", int(runtime.shard_store_gib * 2**30))
    size = len(tokens) * tower.width * np.dtype(params.dtype).itemsize
    if size > store.limit_bytes:
        held = f"shard_store_gib {runtime.shard_store_gib:g} holds {store.limit_bytes / size:.0%} of {size / 2**30:,.1f} GiB"
        print(f"{RUNTIME_FILE}: {held} of vectors; a killed encode loses the rest; raise shard_store_gib")
    family = hashlib.sha256(made_by.encode()).hexdigest()[:16]
    known = known_rows(store, family)
    by_row = device.type == "cpu" and compute == torch.float32 and not int8
    cuts = boundaries(StoredIds(arguments.tokens / "ids.parquet"), tokens.owners)
    progress = Progress(f"encode ({device.type}, {arithmetic})", len(tokens), "passages")
    with new_folder(arguments.out) as out:
        for number, (first, end) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
            digest = f"{family}-{shard_digest(tokens, first, end, made_by)}"
            path = out / shard_name(number)
            if store.fetch(digest, path):
                progress.skip(end - first)
                continue

            def vectors_of(rows: Ints, first: int = first) -> Block:
                vectors = encode(tower, tokens, first + rows, batch_tokens, device, progress.advance, int8=int8)
                with np.errstate(over="ignore"):  # values too large for float16 become infinite, and are refused below
                    return vectors.astype(params.dtype)

            digests = row_digests(tokens, first, end)
            stored, encoded = encode_touched(digests, known, store, vectors_of)
            progress.skip(end - first - encoded)
            if not np.isfinite(stored).all():
                row = first + int(np.argmin(np.isfinite(stored).all(axis=1)))
                raise UserError(
                    f"{arguments.encoder}: document {tokens.ids()[int(tokens.owners[row])]} (row {row} of shard {number}) gives NaN or "
                    f"infinity as {params.dtype}, expected finite numbers; retrain that model"
                )
            store.keep(digest, stored, digests.tobytes() if by_row else b"")
            np.save(path, stored)
        shards = np.diff(cuts).tolist()
        manifest = Manifest(len(tokens), tower.width, params.dtype, shards, weights, tokens.tokenizer, tokens.max_length, tokens.prefix)
        write_manifest(out, manifest, arguments.tokens)
    store.forget(family, runtime.shard_store_days * 86400)
    progress.close()


if __name__ == "__main__":
    with stage():
        main()
