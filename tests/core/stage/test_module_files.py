"""Which files a stage's code consists of: what Python imports, and nothing else."""

from pathlib import Path

from tasks.core.stage.code import Reader, freeze_code


def test_a_package_counts_and_not_a_module_of_the_same_name(tmp_path: Path) -> None:
    package = tmp_path / "tasks/own/loss"
    package.mkdir(parents=True)
    (tmp_path / "tasks/own/__main__.py").write_text("from tasks.own.loss import f\n")
    (tmp_path / "tasks/own/loss.py").write_text("def f(): return 'the module'\n")
    (package / "__init__.py").write_text("def f(): return 'the package'\n")
    former = Reader(tmp_path).stage_digest("own")
    (tmp_path / "tasks/own/loss.py").write_text("def f(): return 'the module, edited'\n")
    assert Reader(tmp_path).stage_digest("own") == former, "Python does not import it"
    (package / "__init__.py").write_text("def f(): return 'the package, edited'\n")
    assert Reader(tmp_path).stage_digest("own") != former


def test_linked_folders_are_in_the_frozen_copy(tmp_path: Path) -> None:
    """The closure of the working tree has their files, so the copy that stages execute needs them, too."""
    train, shared, project = tmp_path / "project/tasks/train", tmp_path / "shared", tmp_path / "project"
    for folder in (train, shared, tmp_path / "words"):
        folder.mkdir(parents=True)
    (train / "__main__.py").write_text("from tasks.own.loss import f\n")
    (shared / "loss.py").write_text("def f(): return 1\n")
    (tmp_path / "words/a.txt").write_text("a")
    (project / "tasks/own").symlink_to(shared)
    (train / "words").symlink_to(tmp_path / "words")
    (shared / "above").symlink_to(project / "tasks")  # must not be followed without end
    copy = freeze_code(project)
    expected = {Path("tasks/own/loss.py"), Path("tasks/train/__main__.py"), Path("tasks/train/words/a.txt")}
    for root in (project, copy):
        assert {path.relative_to(root) for path in Reader(root).closure("train")} == expected
    assert freeze_code(project) == copy, "an existing copy is reused"
