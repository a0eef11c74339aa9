"""Which files of a store of shards may hold a forgotten document."""

from pathlib import Path

from flows.forgetting.holdings import other_shards
from tasks.core.files import partial_path


def test_all_that_is_not_known_to_be_of_other_documents_goes_with_what_kills_left(tmp_path: Path) -> None:
    for name, total in (("clean", "c"), ("held", "h"), ("bare", None)):
        (tmp_path / f"{name}.npy").touch()
        if total:
            (tmp_path / f"{name}.sha256").write_text(total)
            (tmp_path / f"{name}.rows").touch()
    for suffix in ("sha256", "rows"):
        (tmp_path / f"half.{suffix}").write_text("c")
    (tmp_path / "note.txt").touch()
    partial_path(tmp_path / "clean.npy").write_text("vectors of anything")
    assert [path.name for path in other_shards(tmp_path, {"c"})] == [
        ".clean.npy.partial", "bare.npy", "half.rows", "half.sha256", "held.npy", "held.rows", "held.sha256",
    ]  # fmt: skip
    assert list(other_shards(tmp_path / "nowhere", set())) == []
