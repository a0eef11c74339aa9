"""What is exported of a run, from files as stages leave them."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from flows.exporting.record import Record, curves, flatten, gather
from flows.exporting.settings import Export, TensorBoard, read_export
from flows.repository.git import git
from tasks.core.errors import UserError


def write(path: str, content: object) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(content if isinstance(content, str) else json.dumps(content))


def lock_of(*, tokens: str = "1") -> str:
    """A dvc.lock whose report was made from data/metrics as it is, and star's curves from data/tokens with the digest 1."""
    files = [{"md5": hashlib.md5(path.read_bytes()).hexdigest(), "relpath": path.name} for path in sorted(Path("data/metrics").iterdir())]
    digest = hashlib.md5(json.dumps(files).encode()).hexdigest() + ".dir"  # DVC's, of a folder
    stages = {
        "tokenize": {"outs": [{"path": "data/tokens", "md5": tokens}]},
        "train@star": {"deps": [{"path": "data/tokens", "md5": "1"}], "outs": [{"path": "data/curves/star", "md5": "2"}]},
        "report": {"deps": [{"path": "data/metrics", "md5": digest}], "outs": [{"path": "data/report", "md5": "3"}]},
    }
    return json.dumps({"schema": "2.0", "stages": stages})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder as a run leaves it; its commit."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], check=True)
    git("commit", "--quiet", "--allow-empty", "-m", "one")
    write("dvc.yaml", {"stages": {"tokenize": {}, "train": {"foreach": ["star"]}, "report": {}}})
    write("params.yaml", "{}")
    write(
        "data/params.json",
        {"order": "0a", "seed": 7, "rounds": {"star": {"lr": 1e-05, "negatives": "bm25"}, "init": {}}, "extra": None, "sizes": [1, 2]},
    )
    write("data/metrics/star.json", {"dev": {"nDCG@10": 0.5, "note": "words"}, "test": {"nDCG@10": 0.25}})
    write("data/metrics/bm25.json", {"dev": {"nDCG@10": 0.4}})
    write("data/source.json", {"dataset": {"source": "irds:name", "digest": "abc"}})
    write("data/curves/star/plots/metrics/train/loss.tsv", "step\tloss\n0\t3.5\n10\t2.25\n")
    write("data/curves/star/plots/metrics/validation/nDCG@10.tsv", "timestamp\tstep\tnDCG@10\n9\t10\t0.3\n")
    pair = {"system": "star", "baseline": "bm25", "difference": 0.1, "significant": True}
    write("data/report/significance.json", {"splits": {"dev": [pair, pair | {"baseline": "init", "significant": False}]}})
    write("data/report/table.txt", "system  nDCG@10\nstar    .5000 a\n")
    write("dvc.lock", lock_of())
    return git("rev-parse", "HEAD")


def test_a_run_is_identified_and_whole(project: str) -> None:
    record = gather()
    assert record is not None
    assert record.params == {
        "seed": "7",
        "rounds.star.lr": "1e-05",
        "rounds.star.negatives": "bm25",
        "rounds.init": "{}",
        "extra": "null",
        "sizes": "[1, 2]",
    }
    assert record.metrics == {"dev/star/nDCG@10": 0.5, "test/star/nDCG@10": 0.25, "dev/bm25/nDCG@10": 0.4}
    assert record.curves == {"curves/star/loss": [(0, 3.5), (10, 2.25)], "curves/star/validation/nDCG@10": [(10, 0.3)]}
    assert {name.removeprefix("retemper."): text for name, text in record.tags.items() if name != "retemper.dvc_lock"} == {
        "commit": project,
        "branch": "main",
        "data": "irds:name",
        "data_digest": "abc",
        "marks.dev.star": "differs from bm25 +0.1000",
    }
    assert "star    .5000 a" in record.table


@pytest.mark.usefixtures("project")
def test_a_report_of_other_metrics_is_not_exported() -> None:
    """`retemper run evaluate@star` leaves the former report as it was."""
    write("data/metrics/star.json", {"dev": {"nDCG@10": 0.75}})
    record = gather()
    assert record is not None and record.metrics["dev/star/nDCG@10"] == 0.75
    assert (record.table, [name for name in record.tags if "marks" in name]) == ("", [])
    write("dvc.lock", lock_of())
    record = gather()
    assert record is not None and record.table and "retemper.marks.dev.star" in record.tags
    Path("dvc.lock").write_text('{"stages": {}}')
    record = gather()
    assert record is not None and (record.table, [name for name in record.tags if "marks" in name]) == ("", [])


@pytest.mark.usefixtures("project")
def test_curves_of_a_stale_training_are_not_exported() -> None:
    write("dvc.lock", lock_of(tokens="another"))
    record = gather()
    assert record is not None and record.curves == {}


def test_the_key_is_that_of_commit_and_lock(project: str) -> None:
    first = gather()
    assert first is not None
    Path("data/metrics/bm25.json").write_text("{}")
    second = gather()
    assert second is not None and second.key == first.key and second.digest != first.digest
    retraining = gather(project, {"result": "refused", "champion": None})
    assert retraining is not None and retraining.key == first.key
    assert retraining.tags["retemper.result"] == "refused" and "retemper.champion" not in retraining.tags
    write("dvc.lock", "schema: '2.0'\nstages: {other: {cmd: x}}\n")
    third = gather()
    assert third is not None and third.key != first.key
    git("commit", "--quiet", "--allow-empty", "-m", "two")
    fourth = gather()
    assert fourth is not None and fourth.key not in (first.key, third.key)
    assert Record(**json.loads(json.dumps(vars(third)))).digest == third.digest, "it goes to another process as JSON"
    Path("dvc.lock").unlink()
    assert gather() is None


def test_a_password_in_a_source_is_not_exported(project: str) -> None:
    write("data/source.json", {"dataset": {"source": "https://ann:secret@host/data", "digest": "abc"}})
    record = gather(project)
    assert record is not None and "secret" not in json.dumps(vars(record))


def test_parameters_and_curves_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dict(flatten({})) == {}
    assert curves() == {}


def test_settings(tmp_path: Path) -> None:
    assert read_export(tmp_path).targets == {}
    file = tmp_path / "export.yaml"
    file.write_text("tensorboard: {}\n")
    assert read_export(tmp_path) == Export(tensorboard=TensorBoard())
    assert list(read_export(tmp_path).targets) == ["tensorboard"]
    for text, line in (
        ("tensorbord: {}\n", "export.yaml: tensorbord: unknown key, expected one of seconds, mlflow, wandb, tensorboard"),
        ("mlflow: {}\n", "export.yaml: mlflow.uri: missing; add it"),
        ("seconds: 0\ntensorboard: {}\n", "export.yaml: seconds: found 0; input should be greater than 0"),
        ("mlflow: {uri: 'https://ann:secret@host'}\n", "export.yaml: mlflow.uri holds a password, which git would store; set MLFLOW"),
        (
            "mlflow: {uri: 'http://ann@[secret]'}\n",
            "export.yaml: mlflow.uri: found an invalid address, expected one such as",
        ),
    ):
        file.write_text(text)
        with pytest.raises(UserError) as refusal:
            read_export(tmp_path)
        assert str(refusal.value).startswith(line)
        assert "secret" not in str(refusal.value)
