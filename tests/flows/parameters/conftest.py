"""A project's folder with sources, for tests of what is known of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.parameters.sources import write_source
from tasks.core.stage.frozen import freeze_parameters


class Place:
    """A project's folder with a small BEIR dataset and an encoder's folder."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "data" / "source.json"
        self.warnings: list[str] = []
        (folder / "beir" / "qrels").mkdir(parents=True)
        (folder / "beir" / "corpus.jsonl").write_text('{"_id": "d", "text": "t"}\n')
        (folder / "beir" / "queries.jsonl").write_text('{"_id": "q", "text": "t"}\n')
        (folder / "beir" / "qrels" / "test.tsv").write_text("q\td\t1\n")
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text("{}")

    def write(self, dataset: str = "beir:beir", encoder: str = "model") -> dict[str, Any]:
        Path("params.yaml").write_text(json.dumps({"dataset": {"source": dataset}, "encoder": {"source": encoder}}))
        write_source(warn=self.warnings.append)
        freeze_parameters()
        return json.loads(self.source.read_text())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)
