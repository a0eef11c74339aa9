"""Which files of a folder articles are read from."""

from pathlib import Path

import pytest

from tasks.core.sources.wikipedia import article_files, parse_articles


@pytest.mark.parametrize(("kind", "name"), [("dump", "w-p1p9.xml"), ("parquet", "0.parquet"), ("jsonl", "wiki_00")])
def test_copies_in_hidden_folders_are_not_read(tmp_path: Path, kind: str, name: str) -> None:
    """rsync keeps complete new files in `.~tmp~` until it renames them; editors and file managers have such folders, too."""
    root = tmp_path / ".store/articles"  # a hidden folder above them does not count
    for folder in ("AA", ".~tmp~/AA", "AA/.ipynb_checkpoints"):
        (root / folder).mkdir(parents=True)
        (root / folder / name).touch()
    assert article_files(parse_articles(f"{kind}:{root}")) == (root / "AA" / name,)


def test_links_to_one_file_are_read_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"store-{name}").touch()
    folder = tmp_path / "wiki"
    folder.mkdir()
    for name, target in (("1.jsonl", "store-a"), ("2.jsonl", "store-b"), ("latest.jsonl", "store-b")):
        (folder / name).symlink_to(tmp_path / target)
    assert article_files(parse_articles(f"jsonl:{folder}")) == (folder / "1.jsonl", folder / "2.jsonl")


def test_hard_links_to_one_file_are_read_once(tmp_path: Path) -> None:
    """As of cp -l, or rsync --link-dest. Files with the same bytes are different ones."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
    (tmp_path / "latest.jsonl").hardlink_to(tmp_path / "b.jsonl")
    assert article_files(parse_articles(f"jsonl:{tmp_path}")) == (tmp_path / "a.jsonl", tmp_path / "b.jsonl")
