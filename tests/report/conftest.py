"""What tests of the report share."""

from pathlib import Path

import pytest

from tests.report.project import PARAMS, make_corpus


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS)
    make_corpus(tmp_path)
    return tmp_path
