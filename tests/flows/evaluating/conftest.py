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
def carried_out(small: Any) -> Callable[[Plan], Path]:
    """`carried_out(plan)`: the second tree after the plan's stages have run there; `small` is that project from then on."""

    def carry_out(plan: Plan) -> Path:
        beside = Path(small.folder.with_name("beside"))
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for name in ("params.yaml", "dvc.yaml", "runtime.yaml"):
            shutil.copy(small.folder / name, beside)
        edit.apply(plan.edits, beside / "params.yaml", lambda _: None)
        with chdir(beside):
            check_file()
            repo = Repo.init(no_scm=True)
            known = {node.addressing: node.cmd.split()[2:] for node in repo.index.stages}
            names = list(read_graph(repo).upstream_of(plan.targets).stages)
            repo.close()
        small.folder = beside
        for module, *arguments in (known[name] for name in names):
            done = small.call(import_module(f"{module}.__main__").main, [module, *arguments])
            assert done.status == 0, (module, done)
        return beside

    return carry_out
