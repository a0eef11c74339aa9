"""Files that come with weights go on with them, and nothing else does."""

from pathlib import Path

from tasks.core.training.companions import KNOWN, LEARNED, copy_companions


def test_what_comes_with_weights_is_passed_on(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "a/second"
    first.mkdir()
    copy_companions(first, second)
    copy_companions(None, second)
    assert not second.exists(), "nothing to pass on"
    for name in (KNOWN, "config.json"):
        (first / name).write_text(name)
    copy_companions(first, second)
    (first / LEARNED).write_text("index")
    copy_companions(first, second)
    assert {file.name: file.read_text() for file in second.iterdir()} == {KNOWN: KNOWN, LEARNED: "index"}
