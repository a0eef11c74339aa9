"""Writing token folders (tasks.core.tokens.folder): texts stream in, flat ids stream out."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.plurals import counted
from tasks.core.stage.progress import Progress
from tasks.core.tables.batching import join_batches
from tasks.core.tables.ids import IDS, Ints, concat_ranges
from tasks.core.tables.parquet import BATCH_ROWS, write_table
from tasks.core.tokens.params import Cut
from tasks.core.tokens.tokenizer import largest_id, prompt_tokens
from tasks.core.tokens.words import Words, word_by_word

Texts = Iterable[tuple[list[str], list[str]]]  # (ids, texts), a batch at a time


class Rows(NamedTuple):
    """The rows of some texts: their ids [T], token ids of all rows, flat, the length of each row [R], and rows per text [T]."""

    ids: list[str]
    flat: npt.NDArray[np.generic]
    lengths: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]


class Passages:
    """Splits texts into passages. The first is that of FirstP; the others have the special tokens and the prefix too.

    Each begins with the last `overlap` tokens of the one before.
    """

    def __init__(self, tokenizer: Any, cut: Cut) -> None:
        framed = tokenizer("a", return_special_tokens_mask=True)
        body = [n for n, special in enumerate(framed["special_tokens_mask"]) if not special]
        lead, self.trail = framed["input_ids"][: body[0]], framed["input_ids"][body[-1] + 1 :]
        self.first, self.tokenizer, self.overlap = lead, tokenizer, cut.overlap
        prompt = cut.prefix.rstrip(" ")  # except in WordPiece, a space is a part of the token that follows
        self.next = [*lead, *(tokenizer(prompt, add_special_tokens=False)["input_ids"] if cut.passages > 1 else [])]
        self.room, self.room_next = (cut.max_length - len(head) - len(self.trail) for head in (self.first, self.next))
        if cut.passages > 1 and self.room_next < 1:
            raise UserError(
                f"params.yaml: tokenize.document_prefix {cut.prefix!r} fills all {cut.max_length} tokens of a passage; "
                "increase document_length"
            )
        if cut.passages > 1 and cut.overlap >= self.room_next:
            raise UserError(
                f"params.yaml: tokenize.passage_overlap: found {cut.overlap}, expected less than {self.room_next}, "
                "the tokens of a passage without its special tokens and prefix; decrease it, or increase document_length"
            )
        self.most = self.room + (cut.passages - 1) * (self.room_next - cut.overlap)  # tokens of a text that are kept

    def bodies(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], Ints]:
        """The kept tokens of each text, without special ones: flat, and where those of each text begin."""
        encoded = self.tokenizer(texts, add_special_tokens=False, truncation=True, max_length=self.most, return_attention_mask=False)
        sizes = np.fromiter(map(len, encoded["input_ids"]), np.int64, len(texts))
        flat = np.fromiter((token for ids in encoded["input_ids"] for token in ids), np.int32, int(sizes.sum()))
        return flat, np.concatenate([[0], sizes.cumsum()])

    def rows(self, flat: npt.NDArray[np.int32], offsets: Ints, dtype: np.dtype[Any]) -> tuple[npt.NDArray[np.generic], Ints, Ints]:
        """Cut bodies into rows, at least one for each text: token ids, flat, in `dtype`; lengths of rows; rows per text."""
        sizes, step = np.diff(offsets), self.room_next - self.overlap
        counts = 1 + np.maximum(0, -(-(sizes - self.room) // step)) if step > 0 else np.ones(len(sizes), np.int64)
        place = concat_ranges(0, counts)  # of a row in its text
        starts = np.where(place, self.room - self.overlap + (place - 1) * step, 0)
        bodies = np.minimum(np.repeat(sizes, counts) - starts, np.where(place, self.room_next, self.room))
        leads = np.where(place, len(self.next), len(self.first))
        lengths = leads + bodies + len(self.trail)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        out = np.empty(int(lengths.sum()), dtype=dtype)
        out[concat_ranges(begins + leads, bodies)] = flat[concat_ranges(np.repeat(offsets[:-1], counts) + starts, bodies)]
        for head, rows in ((self.first, begins[place == 0]), (self.next, begins[place > 0])):
            for number, token in enumerate(head):
                out[rows + number] = token
        for number, token in enumerate(self.trail):
            out[ends - len(self.trail) + number] = token
        return out, lengths, counts


def token_type(tokenizer: Any) -> np.dtype[Any]:
    """The type in which token ids are stored: uint16, or int32 if the largest id is too large (a large vocabulary, or one with gaps)."""
    return np.dtype(np.uint16 if largest_id(tokenizer) < 2**16 else np.int32)


def rows_by(tokenizer: Any, cut: Cut) -> Callable[[list[str], list[str]], Rows]:
    """A function that turns ids and texts into their rows. The tokenizer's threads share the texts.

    A tokenizer that splits at white space gets each different word only once (tasks.core.tokens.words): the same tokens, much sooner.
    """
    dtype, pad = token_type(tokenizer), tokenizer.pad_token_id
    words = Words(tokenizer) if word_by_word(tokenizer) else None
    passages = Passages(tokenizer, cut) if words or cut.passages > 1 else None

    def rows(ids: list[str], texts: list[str]) -> Rows:
        prefixed = [cut.prefix + text for text in texts] if cut.prefix else texts
        if passages and passages.room > 0:
            bodies = words(prefixed, passages.most) if words else passages.bodies(prefixed)
            flat, lengths, counts = passages.rows(*bodies, dtype)
            if not lengths.all():  # no special tokens at all
                return _padded(ids, np.split(flat, np.cumsum(lengths)[:-1]), counts)
            return Rows(ids, flat, lengths.astype(np.int32), counts.astype(np.int32))
        token_rows = tokenizer(prefixed, truncation=True, max_length=cut.max_length, return_attention_mask=False)["input_ids"]
        return _padded(ids, [np.asarray(row, dtype=dtype) for row in token_rows], np.ones(len(ids), np.int64))

    def _padded(ids: list[str], token_rows: list[npt.NDArray[np.generic]], counts: Ints) -> Rows:
        padded_rows = [row if len(row) else np.asarray([pad], dtype=dtype) for row in token_rows]
        lengths = np.fromiter(map(len, padded_rows), np.int32, len(padded_rows))
        return Rows(ids, np.concatenate([np.empty(0, dtype), *padded_rows]), lengths, counts.astype(np.int32))

    return rows


def write_tokens(folder: Path, batches: Texts, tokenizer: Any, cut: Cut, *, digest: str, total: int) -> None:
    """Tokenize `total` (id, text), a batch at a time, into `folder` (new). `digest`: of the tokenizer.

    A text without tokens becomes a single padding token, so that every text has a vector.
    """
    rows = rows_by(tokenizer, cut)
    write_rows(folder, (rows(ids, texts) for ids, texts in batches), tokenizer, digest=digest, cut=cut, total=total)


def write_rows(folder: Path, batches: Iterable[Rows], tokenizer: Any, *, digest: str, cut: Cut, total: int) -> None:
    """Write rows as they come into `folder` (new). In memory: a batch, and 4 bytes per row (8 if texts have several)."""
    folder.mkdir(parents=True)
    dtype = token_type(tokenizer)
    lengths, counts, full = list[npt.NDArray[np.int32]](), list[npt.NDArray[np.int32]](), 0
    progress = Progress(f"tokenize {folder.name}", total, "texts")

    def flat() -> Iterator[pa.Table]:
        nonlocal full
        with (folder / "tokens.bin").open("wb") as out:
            for rows in batches:
                rows.flat.tofile(out)
                lengths.append(rows.lengths)
                full += int((rows.lengths == cut.max_length).sum())
                if cut.passages > 1:
                    counts.append(rows.counts)
                progress.advance(len(rows.ids))
                yield pa.table([rows.ids], schema=IDS)

    texts = write_table(folder / "ids.parquet", IDS, join_batches(flat(), BATCH_ROWS))
    write_offsets(folder / "offsets.npy", lengths)
    owners = np.arange(texts, dtype=np.int32)
    np.save(folder / "owners.npy", np.repeat(owners, np.concatenate(counts)) if counts else owners)
    meta = {"dtype": dtype.name, "pad": tokenizer.pad_token_id, "max_length": cut.max_length, "prefix": cut.prefix, "tokenizer": digest}
    if cut.prefix:
        meta["prompt"] = prompt_tokens(tokenizer, cut.prefix)
    write_json(folder / "meta.json", meta)
    progress.close()
    if full and cut.passages == 1:
        print(
            f"{folder.name}: {full:,} of {counted(texts, 'texts')} reach{'es' * (full == 1)} {cut.max_length} tokens; "
            "anything beyond is truncated"
        )


def write_offsets(path: Path, lengths: list[npt.NDArray[np.int32]]) -> int:
    """Write where each row begins, and where the last ends (int64, rows + 1), as np.save would; return the end."""
    rows, end = sum(map(len, lengths)), 0
    with path.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "<i8", "fortran_order": False, "shape": (rows + 1,)})
        np.zeros(1, dtype="<i8").tofile(out)
        for part in lengths:
            ends = np.cumsum(part, dtype="<i8") + end
            ends.tofile(out)
            end = int(ends[-1]) if len(ends) else end
    return end
