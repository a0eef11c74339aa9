"""What the last search removes, and what it only names."""

from pathlib import Path

from flows.forgetting.final_check import check
from flows.forgetting.holdings import Store


def test_what_nobody_can_make_again_is_named_and_stays(tmp_path: Path) -> None:
    text = "a text that is long enough to be looked for"
    own = (".retemper/queries.jsonl", ".retemper/judged/queries.jsonl", "notes/mine.txt")
    derived = (".retemper/logs/run.log", "data/report/report.html")
    for name in (*own, *derived):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    lines: list[str] = []
    remaining = check([text], Store(tmp_path / "none"), tmp_path / "none", trees=[tmp_path], folders=[], tell=lines.append)
    assert {path.relative_to(tmp_path).as_posix() for path in remaining} == set(own)
    assert all((tmp_path / name).exists() for name in own) and not any((tmp_path / name).exists() for name in derived)
    assert sum("still has the text" in line for line in lines) == 3
