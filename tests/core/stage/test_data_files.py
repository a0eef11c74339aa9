"""Files that a stage's code reads count for its digest; what editors leave behind does not."""

from pathlib import Path

from tasks.core.stage.code import Reader


def test_data_below_a_package_counts_and_editors_files_do_not(tmp_path: Path) -> None:
    package = tmp_path / "tasks/own"
    (package / "lists/inner").mkdir(parents=True)
    (package / "__main__.py").write_text("print(1)\n")
    digests = [Reader(tmp_path).stage_digest("own")]
    for name in ("#own.py#", "own.py.save", "own.py,cover", "nohup.out", "own.py~", ".own.swp"):
        (package / name).write_text("x")
        assert Reader(tmp_path).stage_digest("own") == digests[0], name
    for name in ("weights.json", "lists/weights.json", "lists/inner/weights.json"):
        (package / name).write_text("{}")
        digests.append(Reader(tmp_path).stage_digest("own"))
    assert len(set(digests)) == 4
