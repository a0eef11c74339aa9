"""Train a round's query tower over its fixed document vectors (--name), or over several indexes to compare them (--study)."""

from argparse import Namespace
from functools import partial
from pathlib import Path

from tasks.adore.params import Adore, Study
from tasks.adore.study import run_study, study_markdown
from tasks.adore.work import FLAT, INDEX, Outs, adore, built_index, inherited_index, read_setting
from tasks.core.files import new_folder, write_json, write_text
from tasks.core.machine.devices import choose_device
from tasks.core.params.runtime import read_runtime
from tasks.core.params.sections import load
from tasks.core.retrieval.embeddings import open_embeddings
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.tokens.same_texts import near_duplicates
from tasks.core.training.ranks import Ranks, open_ranks, single_rank, single_worker


def arguments() -> Namespace:
    """Parse the command line: the inputs, then either --name with its outs, or --study with --out."""
    command_line = parser(
        __doc__ or "", round="the round's encoder folder", embeddings="its document vectors", tokens="token folder", corpus="corpus folder"
    )
    command_line.add_argument("--name", help="the entry of `adore`")
    command_line.add_argument("--study", help="the entry of `study`")
    for name, text in {
        "negatives": "folder of given negatives",
        "round-state": "folder of the round's state, perhaps with known queries and a trained index, which belong to its weights",
        "state": "state folder to write; a round that starts here begins at step 0",
        "encoder": "encoder folder to write: the new query tower beside the document tower",
        "index": "index folder to write: the index that is searched, unless that is the round's own vectors",
        "curves": "training curves to write",
        "out": "folder to write: the table of a study",
    }.items():
        command_line.add_argument(f"--{name}", type=Path, help=text)
    args = command_line.parse_args()
    required = (args.out,) if args.study else (args.name, args.negatives, args.state, args.encoder, args.index, args.curves)
    if bool(args.study) == bool(args.name) or not all(required):
        command_line.error("expected --name with --negatives, --state, --encoder, --index, and --curves, or --study with --out")
    return args


def scratch_of(args: Namespace, params: Adore | Study, key: str, ranks: Ranks) -> Path:
    """The scratch folder, keyed by everything that the trainings read and by the hardware that computes them."""
    reads_state = isinstance(params, Adore) and (params.replay < 1 or params.quantizer == "given") and args.round_state
    inputs = [
        args.round,
        args.embeddings,
        args.tokens / "queries" / "train",
        *near_duplicates(args.tokens / "documents"),
        args.corpus / "qrels" / "train.parquet",
        *([args.negatives / "train.parquet"] if isinstance(params, Adore) and params.lists == "given" else []),
        *([args.round_state] if reads_state else []),
    ]
    arithmetic = ranks.machine.dtype, ranks.machine.hardware
    return scratch_folder(key, work_digest(params.model_dump(), *arithmetic, code_digest("adore"), *inputs, *ranks.counted))


def train_entry(args: Namespace) -> None:
    key = f"adore.{args.name}"
    params = load(Adore, key)
    runtime = read_runtime()
    with open_ranks(runtime if params.steps != 0 else single_worker(runtime), params.precision) as ranks:
        scratch = scratch_of(args, params, key, ranks)
        if ranks.together and params.index != FLAT:  # before the ranks start: they would all wait for one of them
            embeddings = open_embeddings(args.embeddings)
            trained = inherited_index(args, params, embeddings, key)
            built_index(embeddings, params, scratch / INDEX, f"{key}.index", trained)
        with new_folder(args.curves) as curves, new_folder(args.index) as index, new_folder(args.encoder) as encoder:
            function = partial(adore, args, params, ranks.runtime, scratch, Outs(curves, index, encoder))
            ranks.run(function, scratch=scratch, outs=(curves, index, encoder), what=f"adore {args.name}")
            write_json(args.state / "state.json", {"steps": 0})
    mark_finished(scratch)


def study(args: Namespace) -> None:
    key, runtime = f"study.{args.study}", read_runtime()
    params, device = load(Study, key), choose_device(runtime)
    scratch = scratch_of(args, params, key, single_rank(runtime, params.precision))
    setting = read_setting(args, params, key, runtime, scratch, device)
    with new_folder(args.out) as out:
        table = run_study(setting, params, scratch, out, args.tokens / "queries", args.corpus / "qrels", args.study)
        write_json(out / "table.json", table)
        write_text(out / "table.md", study_markdown(table))
    print(study_markdown(table))
    mark_finished(scratch)


def main() -> None:
    args = arguments()
    (study if args.study else train_entry)(args)


if __name__ == "__main__":
    with stage():
        main()
