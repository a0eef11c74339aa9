"""Cut MediaWiki's XML dump into pieces of whole pages, with only a few of them in memory.

A multistream dump is a sequence of bz2 streams of about a hundred pages each. Signatures mark where they begin, so each
can be decompressed by a separate process. Any other dump is decompressed in order and split between pages.
"""

import bz2
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from tasks.articles.pages import Page
from tasks.core.errors import UserError

BLOCK = 1 << 20  # bytes read at once
PIECE = 1 << 21  # bytes of pages that are parsed at once
MOST = 1 << 28  # maximum bytes of a page: Wikipedia allows 2 MiB of text
SIGNATURE = b"1AY&SY"  # of a bz2 block, after BZh and the level
OPENING, CLOSING, START, END = b"<mediawiki", b"</mediawiki>", b"<page>", b"</page>"
NUMBER = re.compile("-?[0-9]{1,9}")
SHOWN = 60


@dataclass(frozen=True)
class Stream:
    """The range of bytes of one bz2 stream in a file, to be decompressed by a worker."""

    path: Path
    start: int
    end: int


@dataclass(frozen=True)
class Piece:
    """XML of whole pages."""

    path: Path
    xml: bytes


def split_dump(path: Path) -> Iterator[Stream | Piece]:
    """The pieces of a dump, in order. UserError if it is not a dump or is truncated."""
    with path.open("rb") as handle:
        head = handle.read(3)
    starts = stream_starts(path) if head == b"BZh" else []
    bounds = [*starts, path.stat().st_size]
    streams = [Stream(path, start, end) for start, end in pairwise(bounds)]
    if len(starts) > 2 and decompressed(streams[1]).lstrip().startswith(START):  # header, pages, ..., footer; pbzip2 splits anywhere
        check_opening(path, decompressed(streams[0])[:4096])
        check_closing(path, decompressed(streams[-1]))  # now, not after hours of work
        yield from streams
    else:
        yield from cut_blocks(path, decompressed_blocks(path) if head == b"BZh" else raw_blocks(path))


def stream_starts(path: Path) -> list[int]:
    """The offsets where bz2 streams begin: BZh, a level from 1 to 9, the signature of a block. Ten bytes do not match by chance."""
    starts = []
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as view:
        place = view.find(SIGNATURE)
        while place >= 0:
            if place >= 4 and view[place - 4 : place - 1] == b"BZh" and view[place - 1 : place] in b"123456789":
                starts.append(place - 4)
            place = view.find(SIGNATURE, place + 1)
    return starts


def decompressed(stream: Stream) -> bytes:
    """The decompressed bytes of one stream. UserError if it is truncated or corrupt.

    If bytes follow before the next known stream, they must be a stream too: an empty one, which has no signature. Otherwise the header of
    a stream is corrupt.
    """
    with stream.path.open("rb") as handle:
        handle.seek(stream.start)
        raw = handle.read(stream.end - stream.start)
    content = b""
    while raw:
        decompressor, start = bz2.BZ2Decompressor(), stream.end - len(raw)
        try:
            content += decompressor.decompress(raw)
        except OSError as error:
            raise UserError(f"{stream.path}: the bz2 stream at byte {start} is corrupt ({error}); download the file again") from None
        if not decompressor.eof:
            raise UserError(corrupt_stream(stream.path, stream.end, start))
        raw = decompressor.unused_data
    return content


def corrupt_stream(path: Path, end: int, start: int) -> str:
    return f"{path}: truncated at byte {end}: the bz2 stream that begins at byte {start} has no end; download the file again"


def decompressed_blocks(path: Path) -> Iterator[bytes]:
    """Decompress a bz2 file of one or more streams, BLOCK compressed bytes at a time. UserError if it is truncated or corrupt."""
    decompressor, start, bytes_read = bz2.BZ2Decompressor(), 0, 0
    with path.open("rb") as handle:
        while raw := handle.read(BLOCK):
            bytes_read += len(raw)
            while raw:
                if decompressor.eof:
                    decompressor, start = bz2.BZ2Decompressor(), bytes_read - len(raw)
                try:
                    block = decompressor.decompress(raw)
                except OSError as error:
                    raise UserError(
                        f"{path}: corrupt within {BLOCK} bytes before byte {bytes_read} ({error}); download the file again"
                    ) from None
                raw = decompressor.unused_data
                if block:
                    yield block
    if not decompressor.eof:
        raise UserError(corrupt_stream(path, bytes_read, start))


def raw_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of an uncompressed file, BLOCK at a time."""
    with path.open("rb") as handle:
        while block := handle.read(BLOCK):
            yield block


def cut_blocks(path: Path, blocks: Iterator[bytes]) -> Iterator[Piece]:
    """Join decompressed blocks to pieces of whole pages, of PIECE bytes or a little more."""
    waiting, is_first = bytearray(), True
    for block in blocks:
        waiting += block
        if is_first:
            check_opening(path, bytes(waiting[:4096]))
            is_first = False
        if len(waiting) >= PIECE and (end := waiting.rfind(END)) >= 0:
            end += len(END)
            yield Piece(path, bytes(waiting[:end]))
            del waiting[:end]
        if len(waiting) > MOST:
            raise UserError(f"{path}: no {END.decode()} within {MOST} bytes; expected a MediaWiki XML dump (pages-articles.xml.bz2)")
    if is_first:
        check_opening(path, b"")
    check_closing(path, bytes(waiting))
    yield Piece(path, bytes(waiting))


def check_opening(path: Path, head: bytes) -> None:
    if OPENING not in head:
        shown = head[:SHOWN].decode("utf-8", "replace")
        raise UserError(f"{path}: begins with {shown!r}, expected {OPENING.decode()}: a MediaWiki XML dump (pages-articles.xml.bz2)")


def check_closing(path: Path, tail: bytes) -> None:
    if CLOSING not in tail:
        raise UserError(f"{path}: truncated at byte {path.stat().st_size}: no {CLOSING.decode()} at the end; download the file again")


def read_pages(piece: Stream | Piece) -> Iterator[Page]:
    """The pages of one piece. Anything between pages (site information, the end tag) is ignored."""
    xml = decompressed(piece) if isinstance(piece, Stream) else piece.xml
    place, previous_end = xml.find(START), 0
    while place >= 0:
        refuse_end(piece.path, xml[previous_end:place])
        end = xml.find(END, place)
        if end < 0:
            raise UserError(
                f"{piece.path}: found a page without {END.decode()} ({xml[place : place + SHOWN]!r}...); download the file again"
            )
        previous_end = end + len(END)
        yield read_page(piece.path, xml[place:previous_end])
        place = xml.find(START, previous_end)
    refuse_end(piece.path, xml[previous_end:])


def refuse_end(path: Path, text: bytes) -> None:
    """UserError if the text between two pages has the end of a page: its beginning is corrupt, and the page would be lost."""
    if END in text:
        shown = text.strip()[:SHOWN]
        raise UserError(
            f"{path}: found the end of a page without {START.decode()} at its beginning ({shown!r}...); download the file again"
        )


def read_page(path: Path, xml: bytes) -> Page:
    """Parse one page element."""
    try:
        page = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise UserError(f"{path}: a page is not XML ({error}): {xml[:SHOWN]!r}...; download the file again") from None
    if (count := len(page.findall("revision"))) > 1:
        raise UserError(f"{path}: page {page.findtext('title')!r} has {count} revisions, expected one; use pages-articles")
    namespace = page.findtext("ns") or "0"
    return Page(
        id=page.findtext("id") or "",
        title=page.findtext("title") or "",
        text=page.findtext("revision/text") or "",
        namespace=int(namespace) if NUMBER.fullmatch(namespace) else 0,
        redirect=page.find("redirect") is not None,
        markup=True,
    )
