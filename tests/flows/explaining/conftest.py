"""The second toy project, whose model depends on data, a learning rate, its code, and a seed, in ways that interact."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

TRAIN = """
import json, shutil, sys
from pathlib import Path
from tasks.core.stage.entry import stage
BONUS = 0.0
with stage():
    out = Path(sys.argv[1])
    Path("data/indexes").mkdir(exist_ok=True)
    (Path("data/indexes") / out.name).write_text("index of " + out.name)
    params = json.loads(Path("data/params.json").read_text())
    entry = params["rounds"][out.name]
    if entry.get("steps") == 0:  # the encoder as it is
        shutil.copytree(params["encoder"]["source"], out)
        sys.exit()
    texts = [float(json.loads(line)["text"]) for line in Path("data/corpus/corpus.jsonl").read_text().splitlines()]
    mean = sum(texts) / len(texts)
    model = mean * (1 + BONUS) + 1000 * entry.get("lr", 0) * mean + entry.get("seed", 0) % 7000 / 1e6
    out.mkdir(parents=True)
    (out / "model").write_text(json.dumps(model))
    (out / "config.json").write_text(json.dumps(model))  # by which a source is known
"""


@pytest.fixture
def project(retraining: Any, server_url: str) -> Any:
    """Its first commit: ten documents of 0.5, rounds.a.lr 1e-5, BONUS 0; nothing run yet."""
    retraining.environment["PREFECT_API_URL"] = server_url
    folder: Path = retraining.folder
    (folder / "tasks/train/__main__.py").write_text(TRAIN)
    graph = YAML(typ="safe").load((folder / "dvc.yaml").read_text())
    graph["stages"]["train"]["do"]["params"].append({"data/code.json": ["train"]})
    (folder / "dvc.yaml").write_text(json.dumps(graph))
    edit_round(folder, lr=1e-5)
    retraining.commit()
    return retraining


def edit_round(folder: Path, **entry: Any) -> None:
    yaml = YAML()
    params = yaml.load((folder / "params.yaml").read_text())
    params["rounds"]["a"].update(entry)
    with (folder / "params.yaml").open("w") as handle:
        yaml.dump(params, handle)


@pytest.fixture
def set_round(project: Any) -> Callable[..., None]:
    """Parameters of round a."""
    return lambda **entry: edit_round(project.folder, **entry)


@pytest.fixture
def set_bonus(project: Any) -> Callable[[float], None]:
    """The code of the training."""
    code = project.folder / "tasks/train/__main__.py"
    return lambda value: code.write_text(TRAIN.replace("BONUS = 0.0", f"BONUS = {value}"))
