"""Train a round's query tower over its fixed document vectors (--name), or over several indexes to compare them (--study)."""

import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from tasks.adore.data import read_data
from tasks.adore.documents import Centroids
from tasks.adore.params import Adore, Study
from tasks.adore.study import run_study, text
from tasks.adore.work import INDEX, Setting, open_documents, train_tower
from tasks.core.models.bi_encoder import Towers, load_towers, odd_temperature, save_towers
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.retrieval.faiss_search import save_index
from tasks.core.stage.devices import choose_device, compute_dtype, hardware, read_runtime
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder, write_json, write_text
from tasks.core.stage.params import load
from tasks.core.stage.scratch import code_digest, finish, scratch_folder, work_digest
from tasks.core.text.tokenizer import load_tokenizer
from tasks.core.text.tokens import open_tokens
from tasks.core.training.replay import replayed_from


def arguments() -> Namespace:
    """The command line: what is read, then either --name with an adore's outs or --study with its one."""
    known = parser(
        __doc__ or "", round="the round's encoder folder", embeddings="its document vectors", tokens="token folder", corpus="corpus folder"
    )
    known.add_argument("--name", help="the entry of `adore`")
    known.add_argument("--study", help="the entry of `study`")
    for name, words in {
        "negatives": "folder of given negatives",
        "round-state": "the round's state, which may list the queries that its weights know",
        "state": "state to write: a round that starts here has no steps behind it",
        "encoder": "encoder folder to write: the new query tower beside the document tower",
        "index": "index folder to write: what is searched, where that is not the round's own vectors",
        "curves": "training curves to write",
        "out": "folder to write: the table of a study",
    }.items():
        known.add_argument(f"--{name}", type=Path, help=words)
    given = known.parse_args()
    wanted = (given.out,) if given.study else (given.name, given.negatives, given.state, given.encoder, given.index, given.curves)
    if bool(given.study) == bool(given.name) or not all(wanted):
        known.error("expected --name with --negatives, --state, --encoder, --index and --curves, or --study with --out")
    return given


def setting_of(given: Namespace, params: Adore | Study, key: str) -> tuple[Setting, Path]:
    """What the trainings read, and the scratch folder keyed by it."""
    runtime = read_runtime()
    device = choose_device(runtime)
    dtype = compute_dtype(device, params.precision)
    documents, queries = open_tokens(given.tokens / "documents"), open_tokens(given.tokens / "queries" / "train")
    qrels = given.corpus / "qrels" / "train.parquet"
    negatives = given.negatives / "train.parquet" if isinstance(params, Adore) and params.lists == "given" else None
    replay = params.replay if isinstance(params, Adore) else 1
    state = [given.round_state] if given.round_state and replay < 1 else []
    read = [given.round, given.embeddings, queries.folder, qrels, *([negatives] if negatives else []), *state]
    scratch = scratch_folder(key, work_digest(params.model_dump(), str(dtype), hardware(device), code_digest("adore"), *read))
    data = read_data(queries, documents, qrels, negatives, params.depth, scratch)
    ids = queries.folder / "ids.parquet"
    queries_N, line = replayed_from(given.round_state, data.queries, ids, share=replay, seed=params.seed, key=key)
    if line:
        print(f"{key}: {line}")
    data = replace(data, queries=queries_N)
    return Setting(load_towers(given.round), open_embeddings(given.embeddings), queries, data, runtime, device, dtype), scratch


def adore(given: Namespace) -> None:
    key = f"adore.{given.name}"
    params = load(Adore, key)
    setting, scratch = setting_of(given, params, key)
    with new_folder(given.curves) as curves, new_folder(given.index) as index, new_folder(given.encoder) as encoder:
        documents = open_documents(setting, params, scratch, f"{key}.index")
        what = f"adore {given.name} ({setting.device.type}, {str(setting.dtype).removeprefix('torch.')})"
        if line := odd_temperature(setting.towers.document.shape, params.temperature):
            print(f"adore {given.name}: {line}")
        tower, steps = train_tower(setting, params, documents, scratch, curves, what)
        write_json(curves / "round.json", {"steps": steps})
        write_json(given.state / "state.json", {"steps": 0})
        served = scratch / INDEX
        if isinstance(documents, Centroids):
            save_index(documents.index, index / INDEX)
        elif served.exists():
            shutil.copyfile(served, index / INDEX)
        write_json(index / "index.json", {"round": params.round, "factory": params.index, "centroids": params.centroids})
        save_towers(Towers(tower, setting.towers.document), load_tokenizer(given.round), encoder, setting.queries.max_length)
    finish(scratch)


def study(given: Namespace) -> None:
    key = f"study.{given.study}"
    params = load(Study, key)
    setting, scratch = setting_of(given, params, key)
    with new_folder(given.out) as out:
        table = run_study(setting, params, scratch, out, given.tokens / "queries", given.corpus / "qrels", given.study)
        write_json(out / "table.json", table)
        write_text(out / "table.md", text(table))
    print(text(table))
    finish(scratch)


def main() -> None:
    given = arguments()
    (study if given.study else adore)(given)


if __name__ == "__main__":
    with stage():
        main()
