"""Real retrainings of a toy project (conftest) without judged queries: stage pseudo makes them, with the start encoder as a judge."""

from typing import Any

STAGES = {
    "prepare": """
import json, shutil
from pathlib import Path
source = json.loads(Path("data/source.json").read_text())["dataset"]["source"]
shutil.copytree(source.partition(":")[2], "data/corpus")
""",
    "base": """
import json, shutil
from pathlib import Path
shutil.copytree(json.loads(Path("data/params.json").read_text())["encoder"]["source"], "data/encoders/base")
""",
    "pseudo": r"""
import os
from pathlib import Path
encoder = Path("data/encoders/base/config.json").read_text()
with (Path(os.environ["TOY_ACTS"]).parent / "made").open("a") as made:
    print(len(encoder), file=made)
Path("data/pseudo/qrels").mkdir(parents=True)
lines = Path("data/corpus/qrels/dev.tsv").read_text().splitlines()
Path("data/pseudo/documents.parquet").write_text("the documents")
Path("data/pseudo/qrels/dev.tsv").write_text("\n".join([lines[0], *(f"{len(encoder)}-{line}" for line in lines[1:])]) + "\n")
""",
}
GRAPH = """
  base:
    cmd: python -m tasks.base
    params: [{data/source.json: [encoder.digest]}]
    outs: [data/encoders/base]
  pseudo:
    cmd: python -m tasks.pseudo
    deps: [data/corpus, data/encoders/base]
    params: [{data/params.json: [pseudo, text, tokenize]}]
    outs: [data/pseudo]
"""


def test_dev_queries_that_are_made_are_made_once_for_both_models(retraining: Any) -> None:
    """Their judge is the start encoder. If the champion were the start encoder of its measurement, it would be measured on others."""
    folder = retraining.folder
    for name, text in STAGES.items():
        (folder / "tasks" / name).mkdir(exist_ok=True)
        (folder / "tasks" / name / "__init__.py").write_bytes((folder / "tasks/train/__init__.py").read_bytes())
        (folder / "tasks" / name / "__main__.py").write_text(text)
    graph = (folder / "dvc.yaml").read_text().replace("--qrels data/corpus", "--qrels data/${queries}")
    graph = graph.replace("data/corpus/qrels]", '"data/${queries}/qrels"]')
    (folder / "dvc.yaml").write_text(graph + GRAPH)
    text = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(text.replace("\nqueries: corpus", "\nqueries: pseudo"))
    retraining.commit()
    assert retraining.retrain() == "retraining promoted: a is the first champion"
    retraining.add(*[0.9] * 10)
    assert retraining.retrain().startswith("retraining promoted: a against champion/1: nDCG@10 +0.2000 on dev (20 queries)")
    made = (folder.parent / "made").read_text().split()
    assert len(made) == 2, "once for each retraining, which has other documents"
