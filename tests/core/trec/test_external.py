"""Runs and qrels of other programs: a file that cannot be read is one line."""

import gzip
from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.trec.external import read_trec_qrels, read_trec_run

PACKED = gzip.compress(b"\n", mtime=0)


HARMED = {
    "cut": PACKED[:-9],
    "no deflate": PACKED[:10] + b"\xff" + PACKED[11:],
    "one byte": PACKED[:-6] + bytes([PACKED[-6] ^ 1]) + PACKED[-5:],
    "plain": b"q 0 d 1\n",
    "no UTF-8": gzip.compress(b"\xff"),
}


@pytest.mark.parametrize("harm", HARMED)
def test_a_file_that_cannot_be_unpacked_is_named(tmp_path: Path, harm: str) -> None:
    (tmp_path / "x.gz").write_bytes(HARMED[harm])
    for read in (read_trec_run, read_trec_qrels):
        with pytest.raises(UserError, match=r"x\.gz: cannot be read \(.*\); expected UTF-8 text, gzip if the name ends in \.gz"):
            read(tmp_path / "x.gz")
