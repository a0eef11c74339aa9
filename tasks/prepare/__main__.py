"""Convert a source of documents, queries, and qrels to the one corpus format, and its ready-made negatives to a table."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tasks.core.sources.datasets import parse_dataset
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.files import new_folder
from tasks.core.stage.params import load
from tasks.prepare.corpus import write_corpus
from tasks.prepare.negatives import write_none, write_official
from tasks.prepare.params import Dataset, Prepare
from tasks.prepare.readers import read
from tasks.prepare.stats import table


def main() -> None:
    arguments = parser(__doc__, out="folder of the corpus", none="folder of the empty negatives")
    arguments.add_argument("--official", type=Path, help="folder of the source's own negatives; without it they are not read")
    arguments.add_argument("--source", metavar="SPEC", help="use this instead of dataset.source of params.yaml")
    arguments.add_argument("--random", type=Path, help="folder of the negatives that each step draws from the corpus: also an empty table")
    arguments.add_argument("--drop", action="store_true", help="drop empty texts and qrels of unknown ids, whatever params.yaml says")
    paths = arguments.parse_args()
    spec = parse_dataset(paths.source or load(Dataset, "dataset").source)
    settings = load(Prepare, "prepare")
    if paths.drop:
        settings = settings.model_copy(update={"unknown_documents": "drop", "empty_texts": "drop"})
    if paths.source:
        settings = settings.model_copy(update={"leaks": "allow"})  # data that a model is evaluated on: nothing is trained there
    with ExitStack() as outs:
        corpus, none = (outs.enter_context(new_folder(path)) for path in (paths.out, paths.none))
        source = read(spec)
        prepared = write_corpus(source, settings, corpus)
        write_none(none)
        if paths.random:
            write_none(outs.enter_context(new_folder(paths.random)))
        counts = Counter[str]()
        if paths.official:
            official = outs.enter_context(new_folder(paths.official))
            counts = write_official(source, prepared, corpus / "queries" / "train.parquet", settings, official)
    print(f"{spec}\n{table(prepared.stats)}")
    for reason, count in counts.items():
        if count:
            print(f"official negatives {reason}: {count:,}")


if __name__ == "__main__":
    with stage():
        main()
