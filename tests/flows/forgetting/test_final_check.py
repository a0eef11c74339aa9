"""What the last search removes, and what it only names."""

from pathlib import Path

import pytest

from flows.forgetting.final_check import check
from flows.forgetting.holdings import FOUND, Store


def test_what_nobody_can_make_again_is_named_and_stays(tmp_path: Path) -> None:
    text = "a text that is long enough to be looked for"
    own = (".retemper/queries.jsonl", ".retemper/judged/queries.jsonl", "notes/mine.txt")
    derived = (".retemper/logs/run.log", "data/report/report.html")
    for name in (*own, *derived):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "dvc.yaml").write_text("stages: {report: {outs: [data/report]}}")
    lines: list[str] = []
    remaining = check([text], Store(tmp_path / "none"), tmp_path / "none", trees=[tmp_path], folders=[], tell=lines.append)
    assert {path.relative_to(tmp_path).as_posix() for path in remaining} == set(own)
    assert all((tmp_path / name).exists() for name in own) and not any((tmp_path / name).exists() for name in derived)
    assert sum("still has the text" in line for line in lines) == 3


def test_an_unreadable_file_that_can_be_made_again_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed stage left one: the status was 1, and the texts stayed in FOUND until a second `forget`."""
    derived, locked, own = "data/.corpus.partial/documents.parquet", "data/report/table.parquet", "notes/documents.parquet"
    for name in (derived, locked, own):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"PAR1 without a footer")
    (tmp_path / "dvc.yaml").write_text("stages: {report: {outs: [data/report]}}")
    unlink = Path.unlink

    def refuse_one(path: Path, missing_ok: bool = False) -> None:
        if path == tmp_path / locked:
            raise PermissionError(13, "Permission denied")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse_one)
    lines: list[str] = []
    text = "a text that is long enough to be looked for"
    remaining = check([text], Store(tmp_path / "none"), tmp_path / "none", trees=[tmp_path], folders=[], tell=lines.append)
    assert set(remaining) == {tmp_path / locked, tmp_path / own}
    assert not (tmp_path / derived).exists() and (tmp_path / own).exists()
    assert f"{tmp_path / derived}: unreadable or corrupt; removed, since it can be made again" in lines
    assert f"{tmp_path / own}: unreadable or corrupt, so whether it has the text" in "\n".join(lines)


@pytest.mark.parametrize("source", ["pairs:data/mine/pairs.jsonl#query=q", "beir:data/mine", "parquet:data/runs/mine", "csv:data"])
def test_files_of_sources_below_data_stay(tmp_path: Path, source: str) -> None:
    """Also one in the folder of an out; and what no stage makes, whether a source or not."""
    text = "a text that is long enough to be looked for"
    (tmp_path / "params.yaml").write_text(
        f"dataset: {{source: '{source}'}}\narticles: {{source: jsonl:data/runs/wiki.jsonl}}\n"
        "extra: {one: 'csv:data/runs/one', two: {source: beir:data/runs/two}}\n"
    )
    (tmp_path / "retraining.yaml").write_text("intake: {inbox: data/runs/inbox}\n")
    (tmp_path / "dvc.yaml").write_text(
        "stages: {a: {outs: [data/corpus, data/one.json: {cache: false}]}, b: {foreach: [x], do: {outs: ['data/runs/${item}']}}}"
    )
    own = {
        "mine/pairs.jsonl",
        "corpus.csv",
        "corpus.jsonl",
        "runs/wiki.jsonl",
        "runs/one/corpus.csv",
        "runs/two/a.jsonl",
        "runs/inbox/b.csv",
    }
    own |= {"runs/mine/a.jsonl"} if "runs/mine" in source else set()
    derived = {"corpus/documents.jsonl", "one.json", "runs/x/run.txt", "extra/one/table.txt", ".corpus.partial/documents.jsonl"}
    for name in own | derived:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(text)
    remaining = check([text], Store(tmp_path / "none"), tmp_path / "none", trees=[tmp_path], folders=[], tell=lambda _: None)
    assert {path.relative_to(tmp_path / "data").as_posix() for path in remaining} == own
    assert {path.relative_to(tmp_path / "data").as_posix() for path in (tmp_path / "data").rglob("*") if path.is_file()} == own


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("params.yaml", "dataset: [\n"),
        ("params.yaml", "- a\n"),
        ("params.yaml", "dataset: [beir]\n"),
        ("params.yaml", "extra: [a]\n"),
        ("params.yaml", "extra: {one: [a]}\n"),
        ("retraining.yaml", "intake: inbox\n"),
        ("dvc.yaml", "stages: {report: {outs: }}\n"),
        ("dvc.yaml", "stages: {report: {outs: [{}]}}\n"),
    ],
)
def test_invalid_settings_of_another_project_stop_nothing(tmp_path: Path, file: str, text: str) -> None:
    """Nor is a file of its data/ removed, since it may be a source's. What an unfinished `forget` there looks for is its own."""
    secret = "a text that is long enough to be looked for"
    names = {"broken": {"data/mine/corpus.csv"}, "fine": {"data/report/report.html", "notes.txt"}}
    for tree, files in names.items():
        for name in (*files, ".retemper/run.log", FOUND):
            (tmp_path / tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / tree / name).write_text(secret)
        (tmp_path / tree / "dvc.yaml").write_text("stages: {report: {outs: [data/report, data/mine]}}")
    (tmp_path / "broken" / file).write_text(text)
    trees = [tmp_path / tree for tree in names]
    remaining = check([secret], Store(tmp_path / "none"), tmp_path / "none", trees=trees, folders=[], tell=lambda _: None)
    assert remaining == [tmp_path / "broken/data/mine/corpus.csv", tmp_path / "fine/notes.txt"]
    assert all(path.exists() for path in (*remaining, *(tree / FOUND for tree in trees)))
    assert not any(
        (tmp_path / name).exists() for name in ("broken/.retemper/run.log", "fine/.retemper/run.log", "fine/data/report/report.html")
    )
