"""Every stage over documents alone, by DVC's own commands: a tuned retriever, and a report that says what no human judged."""

import json
import shlex
import shutil
from contextlib import chdir
from typing import Any

from dvc.repo import Repo

from flows.parameters.checks import check_file
from flows.parameters.sources import write_source
from flows.repository.graph import read_graph
from tasks.core.stage.frozen import freeze
from tasks.core.tables.parquet import read_table
from tasks.core.tables.schemas import QRELS


def test_documents_alone_give_a_measured_retriever(small: Any) -> None:
    shutil.rmtree(small.folder / "beir" / "qrels")
    (small.folder / "beir" / "queries.jsonl").unlink()
    for key, value in {"queries": "pseudo", "pseudo": {"dev_share": 0.3}, "prepare.official_depth": 0}.items():
        small.set(key, value)
    targets = ["evaluate@init", "evaluate@warmup", "evaluate_bm25"]
    with chdir(small.folder):
        check_file()
        write_source()
        freeze()
        repo = Repo()
        commands = {stage.addressing: shlex.split(stage.cmd) for stage in repo.index.stages}
        graph = read_graph(repo)
        needed = list(graph.upstream_of(targets).stages)
        repo.close()
    assert needed.index("pseudo") < needed.index("tokenize")
    small.commands = commands
    for folder in ("runs", "metrics", "values", "curves", "index_metrics"):
        shutil.rmtree(small.folder / "data" / folder)
    for name in [*needed, "index@warmup", "failures", "report"]:
        result = small.stage(name)
        assert result.status == 0, (name, result)
    assert "no human judged the training queries" in result.out and "used no human judgment" in result.out
    judged_queries = read_table(small.folder / "data/pseudo/qrels/dev.parquet", QRELS)["query"].unique()
    for system in ("bm25", "init", "warmup"):
        metrics = json.loads(small.read(f"data/metrics/{system}.json"))
        assert set(metrics) == {"dev"} and 0 < metrics["dev"]["nDCG@10"] <= 1
        ranked = {line.split()[0] for line in small.read(f"data/runs/{system}/dev.trec").decode().splitlines()}
        assert ranked <= set(judged_queries.to_pylist())
