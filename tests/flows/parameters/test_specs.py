"""A data set that is named by its place alone."""

from contextlib import chdir
from pathlib import Path

import pytest

from flows.parameters.specs import spec_of
from tasks.core.errors import UserError


@pytest.mark.parametrize(
    ("file", "kind"),
    [("corpus.jsonl.gz", "beir"), ("corpus.tsv", "csv"), ("collection.tsv", "msmarco"), ("corpus.parquet", "parquet"), ("c.csv", "pairs")],
)
def test_a_place_alone_is_read_by_what_is_there(tmp_path: Path, file: str, kind: str) -> None:
    folder = tmp_path / "csv"  # a kind's name is no SPEC without a place
    folder.mkdir()
    (folder / file).write_text("x")
    with chdir(tmp_path):
        place = f"csv/{file}" if kind == "pairs" else "csv"
        assert spec_of(f" {place} ") == f"{kind}:{place}"
        assert spec_of(f"{kind}:{place}") == f"{kind}:{place}"


@pytest.mark.parametrize("spec", ["demo", "irds:beir/scifact", "beir:nowhere", "tsv:x", "csv"])
def test_what_has_a_kind_stays_as_it_is(tmp_path: Path, spec: str) -> None:
    (tmp_path / "demo").mkdir()
    with chdir(tmp_path):
        assert spec_of(spec) == spec


def test_a_place_that_says_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"found no corpus\.jsonl \(BEIR\), .* expected one; or name a single file of questions"):
        spec_of(str(tmp_path))
    (tmp_path / "b.md").write_text("# A")
    with pytest.raises(
        UserError, match=r"found text files \(b\.md\), which are not read, expected corpus\.jsonl; write one with a line \{"
    ):
        spec_of(str(tmp_path))
    (tmp_path / ".git").mkdir()
    with pytest.raises(UserError, match=r"found text files \(b\.md\)"):
        spec_of(str(tmp_path))
    with pytest.raises(UserError, match=r"kb: no such folder or file, expected one, or demo \| beir:PATH \| .*; relative paths start at "):
        spec_of("kb")


@pytest.mark.parametrize(("text", "data"), [("README.md", "documents.json"), ("LICENSE.txt", "scifact/corpus.jsonl")])
def test_a_text_beside_data_hides_no_form_of_data(tmp_path: Path, text: str, data: str) -> None:
    """An archive has them. The texts alone would make a data set of one README."""
    for name in (text, data):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with pytest.raises(UserError, match=rf"found no corpus\.jsonl \(BEIR\), .* see docs/data\.md, also for text files such as {text}$"):
        spec_of(str(tmp_path))
