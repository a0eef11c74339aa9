"""Everything that git has stashed counts as needed, in whichever parent of a stash git keeps it."""

from pathlib import Path

import pytest

from flows.repository.git import git
from flows.repository.lock import locks_of_references, out_digests


def write(path: str, digest: str) -> None:
    outs = f"outs: [{{path: x, md5: '{digest}'}}]\n"
    Path(path).write_text(outs if path.endswith(".dvc") else f"stages: {{one: {{{outs.strip()}}}}}\n")


def test_new_and_staged_files_of_every_stash_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    Path(".dvc").mkdir()
    Path(".dvc/config").touch()
    write("dvc.lock", "committed")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    for number in ("1", "2"):
        write("new.csv.dvc", f"new {number}")
        write("staged.csv.dvc", f"staged {number}")
        git("add", "staged.csv.dvc")
        write("staged.csv.dvc", f"edited {number}")
        git("stash", "--include-untracked", "--quiet")
    assert not Path("new.csv.dvc").exists()
    found = {digest for _, locks in locks_of_references() for lock in locks for digest in out_digests(lock).values()}
    assert found == {"committed", *(f"{kind} {number}" for kind in ("new", "staged", "edited") for number in "12")}
