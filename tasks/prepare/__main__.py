"""Convert a source of documents, queries, and qrels to the one corpus format, and its ready-made negatives to a table."""

from contextlib import ExitStack

from tasks.core.files import new_folder
from tasks.core.params.sections import load, read_parameters
from tasks.core.plurals import counted
from tasks.core.sources.datasets import parse_dataset
from tasks.core.sources.forgotten import FILE, read_marks
from tasks.core.stage.entry import parser, stage
from tasks.prepare.corpus import write_corpus, write_weights
from tasks.prepare.forgotten import without_forgotten
from tasks.prepare.negatives import write_empty, write_official
from tasks.prepare.params import Dataset, Prepare
from tasks.prepare.readers.kinds import read
from tasks.prepare.stats import stats_table


def main() -> None:
    paths = parser(
        __doc__,
        out="folder of the corpus",
        none="folder of the empty negatives",
        random="folder of the negatives that each step draws from the corpus: also an empty table",
        official="folder of the source's own negatives",
        weights="folder of the training pairs' weights: of those that are not 1",
    ).parse_args()
    spec, settings = parse_dataset(load(Dataset, "dataset").source), load(Prepare, "prepare")
    needs_qrels = read_parameters().get("queries") != "pseudo"
    with ExitStack() as outs:
        corpus, none, random, official, weights = (
            outs.enter_context(new_folder(path)) for path in (paths.out, paths.none, paths.random, paths.official, paths.weights)
        )
        marks = read_marks()
        source = without_forgotten(read(spec, needs_qrels=needs_qrels), marks)
        prepared = write_corpus(source, settings, corpus, needs_qrels=needs_qrels)
        weighted = write_weights(source, weights)
        write_empty(none)
        write_empty(random)
        counts = write_official(source, prepared, corpus / "queries" / "train.parquet", settings, official)
    print(f"{spec}\n{stats_table(prepared.stats)}")
    if marks:
        print(f"{FILE}: {counted(len(marks), 'records')} excluded from the source")
    if weighted:
        print(f"training pairs with a weight other than 1: {weighted:,}")
    for reason, count in counts.items():
        if count:
            print(f"official negatives {reason}: {count:,}")


if __name__ == "__main__":
    with stage():
        main()
