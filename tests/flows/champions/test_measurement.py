"""The champion's measurement on new data: by which stages, in which tree, with which settings."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flows.champions import champion, measurement
from flows.champions.outs import Lost
from flows.champions.parts import SETTING, Parts
from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository import lock
from tasks.core.errors import Problem, UserError
from tasks.core.files import folder_digest
from tasks.core.params.sections import read_yaml


@pytest.mark.heavy
def test_the_champion_is_measured_by_the_real_stages(small: Any, toy_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's stages take any argument; these are the project's own, on the tiny corpus."""
    monkeypatch.chdir(small.folder)
    for name, value in toy_environment.items():
        monkeypatch.setenv(name, value)
    Path("dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    for words in (["add", "--all"], ["commit", "--quiet", "-m", "all"]):
        subprocess.run(["git", *words], check=True)
    monkeypatch.setattr(champion, "get_out", lambda _project, _commit, path, out: shutil.copytree(path, out))
    recipe = small.read("params.yaml").decode()
    monkeypatch.setattr(lock, "read_blob", lambda *_: recipe)
    of_warmup = Parts({"encoder": "data/encoders/warmup"}, {}, {"warmup": "encoder"})
    monkeypatch.setattr(champion, "parts_at", lambda *_: of_warmup)
    small.set("tokenize.document_length", 12)
    current, shards = champion.Champion(7, "warmup", "set", "", commit="0" * 40), set(Path(".retemper/shards").iterdir())

    def measure(record: champion.Champion = current) -> Any:
        return measurement.evaluate_champion(Path.cwd(), record, processes=Processes(), display=Display())

    assert measure() == json.loads(small.read("data/metrics/warmup.json"))
    values = measurement.values(measurement.SCRATCH / "values", "nDCG@10")
    assert values == measurement.values(Path("data/values/warmup"), "nDCG@10")
    tree = measurement.SCRATCH / "tree"
    assert folder_digest(tree / "data/encoders/warmup") == folder_digest(Path("data/encoders/warmup")), "so its kept shards are found"
    assert set(Path(".retemper/shards").iterdir()) == shards > set(), "and nothing was encoded"
    setting = {key: value for key, value in json.loads(small.read("data/runs/hybrid/fusion.json")).items() if key in SETTING}
    of_hybrid = Parts({"encoder": "data/encoders/tower"}, {}, {"tower": "encoder"})
    with monkeypatch.context() as patch:
        patch.setattr(champion, "parts_at", lambda *_: of_hybrid)
        fused = champion.Champion(8, "hybrid", "set", "", commit="0" * 40, fusion={"hybrid": setting})
        assert measure(fused) == json.loads(small.read("data/metrics/hybrid.json")), "with the weight that was chosen"
    recipe = recipe.replace("document_length: 24", "document_length: 16")
    measure()
    tokens = json.loads((tree / "data/tokens/documents/meta.json").read_text())
    assert tokens["max_length"] == 16, "with its own token settings"
    assert set(Path(".retemper/shards").iterdir()) > shards, "in the one store"


FUSION = {"bm25": {"k1": 1.5}, "mixed": {"first": "bm25", "second": "a", "method": "linear", "weight": 0.2}}


def test_a_champion_is_searched_as_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path(".retemper").mkdir()
    Path("params.yaml").write_text("retrieve: {depth: 7}\nevaluate: {}\ntext: {titles: true}\nrounds: {star: {init: base}}\n")
    for name in ("dvc.lock", "data/source.json"):
        Path(name).write_text("{}")
    recipe, calls = "adore: {a: {round: star, index: PQ8, nprobe: 3, lr: 1e-5}}\nevaluate: {}\ntext: {titles: false}\n", list[Any]()
    trained_index, outs = {"trained": True}, list[str]()

    def get_out(_project: Path, _commit: str, path: str, out: Path) -> None:
        outs.append(path)
        (out if "encoders" in path else out.parent).mkdir(parents=True, exist_ok=True)

    def make_worktree(tree: Path, commit: str) -> Path:
        calls.append(commit)
        (tree / "data").mkdir(parents=True)
        return tree

    def run_in(tree: Path, run: Any, *_: Any, env: Any, **__: Any) -> tuple[int, list[Problem]]:
        name = run[-1].partition("@")[2]
        calls.extend([run[-1], env["RETEMPER_SOURCE_STANDS"]])
        (tree / "data/values" / name).mkdir(parents=True)
        (tree / "data/metrics").mkdir()
        (tree / f"data/metrics/{name}.json").write_text('{"dev": {}}')
        return results.pop(0)

    for name, stand_in in {"make_worktree": make_worktree, "run_in": run_in}.items():
        monkeypatch.setattr(measurement, name, stand_in)
    monkeypatch.setattr(measurement, "equip", lambda _: None)
    monkeypatch.setattr(measurement, "remove_worktree", lambda tree: shutil.rmtree(tree, ignore_errors=True))
    monkeypatch.setattr(measurement, "commit_of", lambda _: "here")
    monkeypatch.setattr(champion, "get_out", get_out)
    monkeypatch.setattr(champion, "read_out", lambda *_: trained_index)
    monkeypatch.setattr(lock, "read_blob", lambda *_: recipe)
    parts = Parts({"encoder": "data/encoders/a"}, {}, {"a": "encoder"})
    monkeypatch.setattr(champion, "parts_at", lambda *_: parts)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    current, results = champion.Champion(1, "a", "first", "", commit="then"), [(0, list[Problem]())] * 3

    def measured_params() -> Any:
        calls.clear()
        outs.clear()
        assert measurement.evaluate_champion(tmp_path, current, processes=Processes(), display=Display()) == {"dev": {}}
        return read_yaml(measurement.SCRATCH / "tree/params.yaml")

    untrained = {"init": "base", "negatives": "none", "steps": 0}
    sections = measured_params()
    assert calls == ["here", "evaluate_adore@a", "1"]
    assert outs == ["data/encoders/a", "data/indexes/a/trained_index.safetensors"]
    assert sections["retrieve"] == {"depth": 7}, "as deep as the model that it is held against"
    filled = {"round": "a_documents", "negatives": "none", "steps": 0, "quantizer": "given", "index": "PQ8", "nprobe": 3}
    assert (sections["adore"], sections["text"]) == ({"a": filled}, {"titles": False})
    assert sections["rounds"] == {"a_documents": untrained}
    trained_index.clear()
    with pytest.raises(
        measurement.NotComparable, match=r"^champion/1: its compressed index was made before Retemper kept what .* learned$"
    ):
        measured_params()
    recipe = "adore: {}\nevaluate: {}\ntext: {titles: false}\n"
    sections = measured_params()
    assert calls == ["here", "evaluate@a", "1"]
    assert (sections["retrieve"], sections["text"], sections["base"]) == ({"depth": 7}, {"titles": False}, {})
    assert (sections["rounds"], sections["adore"]) == ({"a": untrained}, {})
    assert sections["encoder"]["source"] == str(tmp_path / measurement.SCRATCH / "encoder")
    current, results[:] = champion.Champion(1, "mixed", "first", "", commit="then", fusion=FUSION), [(0, [])]
    recipe = "bm25: {k1: 1.5}\nfuse: {mixed: {first: bm25, second: a, depth: 50, weight: null}}\nevaluate: {}\n"
    sections = measured_params()
    assert calls == ["here", "evaluate_fuse@mixed", "1"]
    assert sections["fuse"] == {"mixed": {"first": "bm25", "second": "a", "depth": 50, "method": "linear", "weight": 0.2}}
    assert sections["rounds"] == {"a": untrained}
    assert (sections["bm25"], sections["encoder"]["source"]) == ({"k1": 1.5}, str(tmp_path / measurement.SCRATCH / "encoder"))
    Path("params.yaml").write_text("queries: pseudo\ndataset: {source: demo}\nencoder: {source: /start}\nevaluate: {}\n")
    results[:] = [(0, [])]
    sections = measured_params()
    assert (sections["queries"], sections["dataset"]) == ("corpus", {"source": f"parquet:{tmp_path / 'data/pseudo'}"}), "as they were made"
    assert (sections["prepare"], sections["bm25"]) == ({"leaks": "allow"}, {"k1": 1.5, "depth": 0}), "nothing is trained"
    assert sections["encoder"]["source"] == str(tmp_path / measurement.SCRATCH / "encoder")
    results[:] = [(2, [Problem("invalid", "x: no room", 2)])]
    with pytest.raises(UserError, match=r"^champion/1 could not be measured on the new data: x: no room$") as failed:
        measured_params()
    assert not isinstance(failed.value, measurement.NotComparable), "the next retraining tries again"

    error: UserError = Lost("data/encoders/a of then: neither in the cache nor on the remote")

    def report_lost(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(champion, "get_out", report_lost)
    with pytest.raises(measurement.NotComparable, match=r"^champion/1: data/encoders/a of then: neither in the cache nor on the remote$"):
        measured_params()
    error = UserError("data/encoders/a: not in the cache, and no remote can be asked for it (down)")
    with pytest.raises(UserError, match=r"^data/encoders/a: not in the cache, and no remote can be asked for it \(down\)$") as failed:
        measured_params()
    assert not isinstance(failed.value, measurement.NotComparable), "the next retraining tries again"


def test_a_champion_is_measured_without_a_server_that_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []

    def run_in(*_: Any, env: Any, **__: Any) -> tuple[int, list[Problem]]:
        urls.append(env.get("PREFECT_API_URL", "theirs"))
        return int(urls[-1] == "theirs"), []

    monkeypatch.setattr(measurement, "run_in", run_in)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert measurement._run_second(tmp_path, "evaluate@champion", Processes(), show=print) == (0, [])
    assert urls == ["theirs", ""]
    monkeypatch.setattr(measurement.server, "answers", lambda: True)
    assert measurement._run_second(tmp_path, "evaluate@champion", Processes(), show=print)[0] == 1, "its own failure is not tried again"


@pytest.mark.parametrize(
    ("recipe", "index_record", "expected"),
    [
        ("adore: {a: {round: star, index: PQ8}}", {}, True),
        ("adore: {a: {round: star, index: PQ8}}", {"trained": True}, False),
        ("adore: {a: {round: star, index: Flat}}", {}, False),
        ("adore: {a: {round: star}, b: {round: star, index: PQ8}}", {}, False),
        ("adore: {}", {}, False),
    ],
)
def test_a_champion_that_cannot_be_compared_is_told_before_a_training(
    recipe: str, index_record: dict[str, bool], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its index has learned was not kept, and a full retraining ends refused, whatever it makes."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("queries: corpus\n")
    monkeypatch.setattr(lock, "read_blob", lambda *_: recipe)
    monkeypatch.setattr(champion, "parts_at", lambda *_: Parts({}, {}, {"a": "encoder"}))
    monkeypatch.setattr(champion, "read_out", lambda *_: index_record)
    monkeypatch.setattr(measurement, "lost_part", lambda *_: None)
    warnings: list[str] = []
    measurement.warn_if_not_comparable(Path(), champion.Champion(3, "a", "set", ""), "do this", warn=warnings.append)
    assert len(warnings) == expected
    assert all(line.startswith("champion/3: its compressed index was made before Retemper kept what") for line in warnings)
    assert all(line.endswith("cannot be compared with it and will be refused; do this") for line in warnings)
    assert measurement.is_measurable(Path(), champion.Champion(3, "a", "set", "")) != expected

    def report_lost(*_: Any) -> Any:
        raise Lost("neither in the cache nor on the remote")

    monkeypatch.setattr(champion, "read_out", report_lost)
    measurement.warn_if_not_comparable(Path(), champion.Champion(3, "a", "set", ""), "do this", warn=warnings.append)
    assert len(warnings) == expected, "the run may make it again"
