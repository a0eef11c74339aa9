"""Which files a stage's code consists of: what Python imports, and nothing else."""

from pathlib import Path

from tasks.core.stage.code import Reader


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
