"""What `retemper cache share` moves into a folder that already has objects."""

from pathlib import Path

import pytest

from flows.storage.cache import file_md5, object_path
from flows.team import remotes


@pytest.mark.parametrize("theirs", [b"weights", b"weig", b""], ids=["intact", "truncated", "empty"])
def test_a_corrupt_object_of_a_shared_cache_is_replaced(root: Path, tmp_path: Path, theirs: bytes) -> None:
    """Its name alone decided, and then the only intact copy was deleted."""
    (tmp_path / "weights").write_bytes(b"weights")
    oid = file_md5(tmp_path / "weights")
    own, shared = (object_path(cache / "files/md5", oid) for cache in (root / ".dvc/cache", tmp_path / "shared"))
    for path, content in ((own, b"weights"), (shared, theirs)):
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        path.chmod(0o444)
    inode = shared.stat().st_ino
    assert "(1 file moved there" in remotes.share(tmp_path / "shared")
    assert (shared.read_bytes(), own.exists()) == (b"weights", False)
    assert (shared.stat().st_ino == inode) == (theirs == b"weights"), "an intact one stays as it is"
