"""The graph that a run started with: DVC reads it while the run lasts, so an edit or a `git checkout` counts for the next run."""

import shutil
from pathlib import Path
from typing import Any

COPIES = Path(".retemper/graph")  # of the files below, as the run found them
FILES = ("dvc.yaml", "params.yaml")
GRAPH = "RETEMPER_GRAPH"  # environment: the folder of the copies, for DVC's process of a stage


def keep_graph() -> None:
    """Copy the graph of the current folder and the parameters in its templates to COPIES."""
    COPIES.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(name, COPIES / name)


def read_kept_graph(copies: Path) -> None:
    """From now on, this process reads the graph, and the parameters in its templates, from the folder `copies`.

    The parameters that a stage depends on are those of data/params.json already. Without this, the command of a stage that begins after an
    edit, made from its template, is not the one that its parameters say; or DVC finds no such stage.
    """
    from dvc.dvcfile import ProjectFile
    from dvc.parsing.context import Context
    from dvc.utils import strictyaml

    kept = {Path(name).resolve(): str(copies.absolute() / name) for name in FILES}
    load_yaml, load_from = ProjectFile._load_yaml, vars(Context)["load_from"].__func__

    def load_kept_yaml(self: Any, **kwargs: Any) -> Any:
        copy = kept.get(Path(self.path).resolve())
        return strictyaml.load(copy, self.SCHEMA, self.repo.fs, **kwargs) if copy else load_yaml(self, **kwargs)

    def load_kept_parameters(cls: Any, fs: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        source = kept.get(Path(path).resolve(), path)
        context = load_from(cls, fs, source, *args, **kwargs)
        context.imports[path] = context.imports.pop(source)  # DVC looks it up by the name in dvc.yaml
        return context

    setattr(ProjectFile, "_load_yaml", load_kept_yaml)  # noqa: B010 - mypy forbids the plain form
    setattr(Context, "load_from", classmethod(load_kept_parameters))  # noqa: B010
