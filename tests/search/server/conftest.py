"""Two exports of the small project, and a server over a link to one of them, on a free port of loopback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.serving.export import link
from flows.serving.follow import replace_link
from tasks.search.server.app import Settings, create_app
from tasks.search.server.log import Log
from tasks.search.server.measures import Measures
from tasks.search.server.served import Current
from tests.loopback import on_loopback


@pytest.fixture
def exports(small: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the exports `hybrid` and `warmup`, and the link `current` to the first. The project is the current folder."""
    monkeypatch.chdir(small.folder)
    folder = small.folder / "exports"
    for model in ("hybrid", "warmup"):
        (folder / model).mkdir(parents=True)
        link(model, folder / model)
    replace_link(folder / "current", "hybrid")
    return folder


@dataclass
class Server:
    """A running server."""

    url: str
    current: Current
    measures: Measures


Serving = Callable[..., Any]


@pytest.fixture
def serving(exports: Path) -> Serving:
    """`with serving(settings, log) as server`: a server over `current`."""

    @contextmanager
    def run(settings: Settings = Settings(), log: Log | None = None) -> Iterator[Server]:  # noqa: B008 - frozen
        measures = Measures()
        current = Current(exports / "current", measures.swapped, print, problem=exports / "problem")
        app = create_app(current, measures, log, settings)
        with on_loopback(app) as address:
            yield Server(address, current, measures)

    return run
