"""A folder that its owner has closed to others stays closed when it becomes the team's remote or cache."""

import stat
from pathlib import Path

import pytest

from flows.team import remotes


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.mark.parametrize(("before", "after"), [(0o2770, 0o2770), (0o700, 0o2770), (0o750, 0o2770), (0o755, 0o2775), (0o2777, 0o2777)])
@pytest.mark.parametrize("command", ["remote", "cache"])
@pytest.mark.usefixtures("root")
def test_the_group_gets_in_and_others_stay_where_they_are(tmp_path: Path, command: str, before: int, after: int) -> None:
    folder = tmp_path / "of the team"
    folder.mkdir()
    folder.chmod(before)
    if command == "remote":
        remotes.add("team", str(folder), [])
    else:
        remotes.share(folder)
    assert mode(folder) == after
