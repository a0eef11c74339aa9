"""A file of pairs beside the data set: how often that is read."""

from pathlib import Path
from typing import Any

import pytest

from tasks.core.sources.datasets import parse_dataset
from tasks.core.text.plain import digest
from tasks.prepare.commands import pairs_batch
from tasks.prepare.commands.pairs_batch import beside_pairs, splits_of
from tasks.prepare.readers import kinds, pairs

ROWS = [
    *((f"q {n}", f"a {n}", "train") for n in range(60)),
    ("Q  7", "b", "dev"),
    ("q 8", "b", "test"),
    ("q 9", "b", "dev"),
    ("q 9", "c", "test"),
]


@pytest.mark.parametrize("splits", [{"train"}, {"train", "dev"}, {"train", "test"}, {"train", "dev", "test"}], ids=len)
def test_splits_are_those_of_the_data_set(tmp_path: Path, splits: set[str]) -> None:
    """As reading it as a data set gives them: without rows of dev or test, a hash does."""
    lines = [",".join(row) for row in ROWS if row[2] in splits]
    (tmp_path / "faq.csv").write_text("\n".join(["question,answer,split", *lines, ""]))
    base = parse_dataset(f"pairs:{tmp_path}/faq.csv")
    ids = {digest(query) for query, _, _ in ROWS[::2]} | {digest("Q 7"), digest("q 9"), digest("new")}
    batch = beside_pairs(base, ids)
    assert batch.known_splits == splits_of(kinds.read(base), ids) and digest("new") not in batch.known_splits
    assert batch.splits == splits and batch.known_splits


def test_the_data_set_is_read_once_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to be six times, so an inbox of 50 files read it 300 times after each change."""
    for name in ("faq", "new"):
        (tmp_path / f"{name}.csv").write_text("question,answer\n" + "".join(f"{name} {n},a {n}\n" for n in range(60)))
    opened: list[str] = []
    rows = pairs.rows

    def record_opened(file: Path, columns: str) -> Any:
        opened.append(file.name)
        return rows(file, columns)

    for module in (pairs, pairs_batch):
        monkeypatch.setattr(module, "rows", record_opened)
    source = pairs_batch.read(parse_dataset(f"pairs:{tmp_path}/new.csv"), parse_dataset(f"pairs:{tmp_path}/faq.csv"))
    (tmp_path / "out").mkdir()
    pairs_batch.write(source, tmp_path / "out")
    assert opened.count("faq.csv") == 1
