"""Wikipedia in, plain articles out."""

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version

import pyarrow as pa

from tasks.articles.extract import WITH_MARKUP, extract
from tasks.articles.params import Articles
from tasks.core.errors import UserError
from tasks.core.files import file_stamp, new_folder, write_json
from tasks.core.machine.processes import cores
from tasks.core.params.sections import load
from tasks.core.plurals import counted
from tasks.core.sources.wikipedia import article_files, parse_articles
from tasks.core.stage.entry import parser, stage
from tasks.core.stage.progress import Progress
from tasks.core.stage.scratch import code_digest, mark_finished, scratch_folder, work_digest
from tasks.core.tables.batching import join_batches
from tasks.core.tables.parquet import BATCH_ROWS, write_table
from tasks.core.tables.schemas import DOCUMENTS

LARGE = 1 << 26  # bytes of files, a minute of work; with more, finished pieces are kept


def main() -> None:
    arguments = parser(__doc__ or "", out="folder of articles to write").parse_args()
    params = load(Articles, "articles")
    spec = parse_articles(params.source)
    files, scratch = article_files(spec), None
    if sum(file.stat().st_size for file in files) > LARGE:
        stamps = [[str(file), *file_stamp(file)] for file in files]  # to digest their bytes would take minutes
        scratch = scratch_folder("articles", work_digest(params.model_dump(), code_digest("articles"), version("mwparserfromhell"), stamps))
    dropped: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    progress = Progress("articles", None, "articles")

    def tables() -> Iterator[pa.Table]:
        for cleaned in extract(spec, files, params, cores(), scratch):
            dropped.update(cleaned.dropped)
            lines.update(cleaned.lines)
            progress.advance(len(cleaned.articles))
            if cleaned.articles:
                yield pa.table([list(column) for column in zip(*cleaned.articles, strict=True)], schema=DOCUMENTS)

    with new_folder(arguments.out) as out:
        # one row group per table, not per piece
        articles = write_table(out / "articles.parquet", DOCUMENTS, join_batches(tables(), BATCH_ROWS))
        progress.close()
        excluded = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items())) or "nothing"
        if not articles:
            raise UserError(f"articles {params.source!r}: no articles found (excluded: {excluded}); choose another source")
        stats = {"articles": articles, "dropped": dict(sorted(dropped.items())), "lines": dict(lines)}
        write_json(out / "stats.json", stats)
    if scratch:
        mark_finished(scratch)
    print(
        f"{counted(articles, 'articles')} from {params.source}; excluded: {excluded}; "
        f"{lines[WITH_MARKUP]:,} of {lines.total():,} lines excluded for leftover markup"
    )


if __name__ == "__main__":
    with stage():
        main()
