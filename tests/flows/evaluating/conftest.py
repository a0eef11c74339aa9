"""The run of an evaluation, in this process."""

import shutil
from collections.abc import Callable
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo

from flows.evaluating.evaluate import Plan
from flows.parameters import edit
from flows.parameters.checks import check_file
from flows.repository.graph import read_graph


@pytest.fixture
def run_plan(small: Any) -> Callable[[Plan], Path]:
    """`run_plan(plan)`: the second tree, after the plan's stages have run there; from then on `small` is that project."""

    def carry_out(plan: Plan) -> Path:
        tree = Path(small.folder.with_name("beside"))
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        for name in ("params.yaml", "dvc.yaml", "runtime.yaml"):
            shutil.copy(small.folder / name, tree)
        edit.apply(plan.edits, tree / "params.yaml", lambda _: None)
        with chdir(tree):
            check_file()
            repo = Repo.init(no_scm=True)
            commands = {node.addressing: node.cmd.split()[2:] for node in repo.index.stages}
            names = list(read_graph(repo).upstream_of(plan.targets).stages)
            repo.close()
        small.folder = tree
        for module, *arguments in (commands[name] for name in names):
            result = small.call(import_module(f"{module}.__main__").main, [module, *arguments])
            assert result.status == 0, (module, result)
        return tree

    return carry_out
