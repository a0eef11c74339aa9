"""What pre-training reads: articles, or the corpus in their place."""

from contextlib import chdir
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from dvc.repo import Repo

from flows.parameters.checks import check
from tasks.core.errors import UserError


def test_the_corpus_takes_the_place_of_the_articles(checkout: Path, tmp_path: Path) -> None:
    above = {}
    for texts in ("articles", "corpus"):
        folder = tmp_path / texts
        (folder / "data").mkdir(parents=True)
        (folder / "dvc.yaml").write_text((checkout / "dvc.yaml").read_text())
        (folder / "params.yaml").write_text((checkout / "params.yaml").read_text().replace("  texts: articles ", f"  texts: {texts} "))
        with chdir(folder), Repo.init(no_scm=True) as repo:
            stage = next(stage for stage in repo.index.stages if stage.addressing == "pretrain@costa")
            above[texts] = {other.addressing for other in nx.descendants(repo.index.graph, stage)}
    assert "articles" in above["articles"] and "prepare" not in above["articles"], "a changed corpus pre-trains nothing again"
    assert "prepare" in above["corpus"] and "articles" not in above["corpus"]


def test_what_dvc_yaml_reads_is_written(full_params: dict[str, Any]) -> None:
    del full_params["chunk"]["texts"]
    with pytest.raises(UserError, match=r"params.yaml: chunk.texts: missing, and dvc.yaml reads it; add texts: articles"):
        check(full_params)
