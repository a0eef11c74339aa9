"""Pages of sources that are plain text."""

from pathlib import Path

from tasks.articles.readers import read_jsonl


def test_the_id_of_a_line(tmp_path: Path) -> None:
    """A null is a missing id, and the line number stands for that."""
    heads = ['"id": "a", "_id": "b"', '"id": null, "_id": "b"', '"id": null', '"title": "t"', '"id": 0']
    (tmp_path / "x.jsonl").write_text("".join(f'{{{head}, "text": "words"}}\n' for head in heads))
    assert [page.id for page in read_jsonl(tmp_path / "x.jsonl")] == ["a", "b", "3", "4", "0"]
