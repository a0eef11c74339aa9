"""The list of forgotten records: hashes alone, in any order."""

import hashlib
from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.sources.forgotten import HEAD, mark, marks_digest, read_marks


def test_a_list_is_read_with_its_kinds(tmp_path: Path) -> None:
    path = tmp_path / "forgotten.txt"
    assert read_marks(path) == {}
    assert mark("document", "d1") == hashlib.sha256(b"document\0d1").hexdigest() != mark("query", "d1")
    path.write_text(f"{HEAD}document {mark('document', 'd1')} 2026-11-24\n\nquery {mark('query', 'q1')}\n")
    assert read_marks(path) == {mark("document", "d1"): "document", mark("query", "q1"): "query"}
    path.write_text("document d1\n")
    with pytest.raises(UserError, match=r"forgotten\.txt:1: found 'document d1', expected .*; fix or remove that line"):
        read_marks(path)


def test_two_records_in_one_line_are_refused(tmp_path: Path) -> None:
    """Else the second, after a lost line break, would pass for a remark, and come back."""
    path = tmp_path / "forgotten.txt"
    line = f"document {mark('document', 'd1')} 2026-11-24"
    path.write_text(f"{line} on request\n")
    assert read_marks(path) == {mark("document", "d1"): "document"}
    path.write_text(f"{line}document {mark('document', 'd2')} 2026-11-30\n")
    with pytest.raises(UserError, match=r"forgotten\.txt:1: found 'document "):
        read_marks(path)


def test_a_list_that_an_editor_saved_with_another_encoding(tmp_path: Path) -> None:
    """Its marks are not in git yet, so the line must not propose to restore the file."""
    path = tmp_path / "forgotten.txt"
    lines = f"{HEAD}document {mark('document', 'd1')} 2026-11-24\n"
    path.write_text(lines, encoding="utf-8-sig")
    assert read_marks(path) == {mark("document", "d1"): "document"}
    path.write_text(lines, encoding="utf-16")
    with pytest.raises(UserError, match=r"forgotten\.txt: not UTF-8 at byte 0; save it as UTF-8$"):
        read_marks(path)


def test_the_digest_depends_on_no_order_and_is_empty_without_marks() -> None:
    assert marks_digest(["a", "b"]) == marks_digest(["b", "a"]) != marks_digest(["a"])
    assert marks_digest([]) == ""


def test_an_id_of_bytes_that_are_no_text() -> None:
    assert mark("document", "\udcff") != mark("document", "\udcfe"), "as a command line has them"
