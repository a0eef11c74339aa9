"""Train a round's query tower over its fixed document vectors (--name), or over several indexes to compare them (--study)."""

from argparse import Namespace
from functools import partial
from pathlib import Path

from tasks.adore.params import Adore, Study
from tasks.adore.study import run_study, study_markdown
from tasks.adore.work import FLAT, INDEX, Outs, adore, built_index, given_index, read_setting
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.stage.devices import choose_device
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder, write_json, write_text
from tasks.core.stage.params import load
from tasks.core.stage.runtime import read_runtime
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.text.same_texts import near_duplicates
from tasks.core.training.ranks import Ranks, open_ranks, single_rank, single_worker


def arguments() -> Namespace:
    """Parse the command line: the inputs, then either --name with its outs, or --study with --out."""
    known = parser(
        __doc__ or "", round="the round's encoder folder", embeddings="its document vectors", tokens="token folder", corpus="corpus folder"
    )
    known.add_argument("--name", help="the entry of `adore`")
    known.add_argument("--study", help="the entry of `study`")
    for name, words in {
        "negatives": "folder of given negatives",
        "round-state": "the round's state, which may have what comes with its weights: known queries, a trained index",
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


def scratch_of(given: Namespace, params: Adore | Study, key: str, ranks: Ranks) -> Path:
    """The scratch folder, keyed by everything that the trainings read and by the hardware that computes them."""
    by_state = isinstance(params, Adore) and (params.replay < 1 or params.quantizer == "given") and given.round_state
    read = [
        given.round,
        given.embeddings,
        given.tokens / "queries" / "train",
        *near_duplicates(given.tokens / "documents"),
        given.corpus / "qrels" / "train.parquet",
        *([given.negatives / "train.parquet"] if isinstance(params, Adore) and params.lists == "given" else []),
        *([given.round_state] if by_state else []),
    ]
    arithmetic = ranks.machine.dtype, ranks.machine.hardware
    return scratch_folder(key, work_digest(params.model_dump(), *arithmetic, code_digest("adore"), *read, *ranks.counted))


def train_entry(given: Namespace) -> None:
    key = f"adore.{given.name}"
    params = load(Adore, key)
    runtime = read_runtime()
    with open_ranks(runtime if params.steps != 0 else single_worker(runtime), params.precision) as ranks:
        scratch = scratch_of(given, params, key, ranks)
        if ranks.together and params.index != FLAT:  # before the ranks start: they would all wait for one of them
            embeddings = open_embeddings(given.embeddings)
            trained = given_index(given, params, embeddings, key)
            built_index(embeddings, params, scratch / INDEX, f"{key}.index", trained)
        with new_folder(given.curves) as curves, new_folder(given.index) as index, new_folder(given.encoder) as encoder:
            function = partial(adore, given, params, ranks.runtime, scratch, Outs(curves, index, encoder))
            ranks.run(function, scratch=scratch, outs=(curves, index, encoder), what=f"adore {given.name}")
            write_json(given.state / "state.json", {"steps": 0})
    mark_finished(scratch)


def study(given: Namespace) -> None:
    key, runtime = f"study.{given.study}", read_runtime()
    params, device = load(Study, key), choose_device(runtime)
    scratch = scratch_of(given, params, key, single_rank(runtime, params.precision))
    setting = read_setting(given, params, key, runtime, scratch, device)
    with new_folder(given.out) as out:
        table = run_study(setting, params, scratch, out, given.tokens / "queries", given.corpus / "qrels", given.study)
        write_json(out / "table.json", table)
        write_text(out / "table.md", study_markdown(table))
    print(study_markdown(table))
    mark_finished(scratch)


def main() -> None:
    given = arguments()
    (study if given.study else train_entry)(given)


if __name__ == "__main__":
    with stage():
        main()
