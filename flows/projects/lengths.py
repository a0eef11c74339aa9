"""What `retemper new` tells about a prepared corpus: the length of its documents in an encoder's tokens, how many to read, whether the
encoder knows them, and other things that a newcomer may not expect."""

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from flows.measuring.sizes import TOKENS_A_WORD
from tasks.core.errors import UserError
from tasks.core.tables.parquet import open_parquet
from tasks.core.text.document import Text, document_text
from tasks.core.tokens.tokenizer import load_tokenizer

SAMPLED, GROUPS = 2048, 16  # documents of a sample, and the most row groups that they come from
READ = 256  # documents read at a time
BYTES_A_TOKEN = 4.5  # about that of English; needed because a text without blanks is one word
FOREIGN = 0.01  # from this share of unknown tokens on, the encoder is for another language; four English corpora have 0.0002 at most
SPECIAL = 2  # tokens that are added to a text
MARKED = 0.01  # from this share of documents on, HTML is not just an example in a text
_HTML = re.compile(
    r"</?(?:a|b|blockquote|br|code|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|span|strong|table|tbody|td|th|tr|u|ul)(?:\s[^<>]*=[^<>]*)?\s*/?>"
    r"|&(?:amp|apos|gt|lt|nbsp|quot|#\d{1,6}|#x[\da-f]{1,5});",
    re.IGNORECASE,
)


class Measured(NamedTuple):
    """`most`: the number of tokens, including special ones, that 95% of the documents do not exceed. `unknown`: the share of tokens
    unknown to the tokenizer. `titled` and `marked`: the shares of documents with a title and with HTML, of which `tag` is an example.
    """

    most: int
    unknown: float
    titled: float
    marked: float
    tag: str


def measure(documents: Path, encoder: Path | None, text: Text) -> Measured:
    """Measure a sample of the file `documents`.

    Without a tokenizer in the folder `encoder`, lengths are estimated from words and bytes.
    """
    sample = _sample(documents)
    texts = [document_text(title, body, text) for title, body in sample]
    try:
        tokenizer = load_tokenizer(encoder) if encoder else None
    except UserError:
        tokenizer = None
    unknown = 0
    if tokenizer is None:
        counts = [max(TOKENS_A_WORD * len(document.split()), len(document.encode()) / BYTES_A_TOKEN) + SPECIAL for document in texts]
    else:
        rows = tokenizer(texts, verbose=False)["input_ids"]
        counts = [len(ids) for ids in rows]
        unknown = sum(ids.count(tokenizer.unk_token_id) for ids in rows)
    length_95 = math.ceil(np.percentile(counts, 95, method="inverted_cdf"))
    tags = [match.group() for _, body in sample if (match := _HTML.search(body))]
    titled = sum(bool(title) for title, _ in sample)
    return Measured(length_95, unknown / sum(counts), titled / len(sample), len(tags) / len(sample), next(iter(tags), ""))


def suggest_length(tokens: int, limit: int) -> int:
    """The number of tokens to read if 95% of the documents have at most `tokens`: in steps of 32, from 64 to 256, at most `limit`."""
    return min(256, limit, max(64, -(-tokens // 32) * 32))


def token_limit(encoder: Path | None) -> int:
    """The most tokens of a text that the encoder in the folder `encoder` reads; any number if it is not downloaded yet."""
    from tasks.core.models.limits import most_tokens

    try:
        return most_tokens(encoder) if encoder else sys.maxsize
    except UserError:
        return sys.maxsize


def _sample(documents: Path) -> list[tuple[str, str]]:
    """Titles and texts of documents at equal distances in each of some row groups: sources are often sorted."""
    with open_parquet(documents) as file:
        groups = sorted({round(place) for place in np.linspace(0, file.num_row_groups - 1, GROUPS)})
        rows = {group: file.metadata.row_group(group).num_rows for group in groups}
        share = min(1, SAMPLED / sum(rows.values()))
        return [pair for group, count in rows.items() for pair in _rows(file, group, np.linspace(0, count - 1, round(share * count)))]


def _rows(file: pq.ParquetFile, group: int, places: npt.NDArray[np.float64]) -> Iterator[tuple[str, str]]:
    """Titles and texts of the documents at `places`, which are rounded, of a row group."""
    wanted, start = places.round().astype(np.int64), 0
    for batch in file.iter_batches(READ, row_groups=[group], columns=["title", "text"]):
        part = batch.take(pa.array(wanted[(wanted >= start) & (wanted < start + len(batch))] - start))
        yield from zip(part["title"].to_pylist(), part["text"].to_pylist(), strict=True)
        start += len(batch)
