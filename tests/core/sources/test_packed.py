"""Plain and gzip files, whatever their names."""

import gzip
from pathlib import Path

import pytest

from tasks.core.sources.packed import is_gzip, open_unpacked


@pytest.mark.parametrize("name", ["lines.jsonl", "lines.jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"\x1f", b"one\ntwo\n"])
@pytest.mark.parametrize("packed", [True, False])
def test_the_first_bytes_decide(packed: bool, content: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if packed else content)
    assert is_gzip(path) == packed
    with open_unpacked(path) as handle:
        assert handle.read() == content
