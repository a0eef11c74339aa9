"""Real exports without a server, read back by the targets' own readers; and servers that do not answer."""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.exporting import export as exporting
from flows.exporting import record as records
from flows.exporting import to_tensorboard
from flows.exporting.export import export, export_run
from flows.exporting.record import Record
from flows.exporting.settings import Export, Mlflow, TensorBoard, Wandb

BLOCK = 32768  # of LevelDB's log
RECORD = Record(
    key="0123456789abcdef",
    name="run 1a2b3c4d5e",
    at=1_700_000_000.0,
    params={"rounds.star.lr": "1e-05", "seed": "7", **{f"many.{n}": "x" for n in range(120)}},
    metrics={"dev/star/nDCG@10": 0.5, "test/star/nDCG@10": 0.25},
    tags={"retemper.commit": "1a2b3c4d5e", "retemper.result": "promoted", "retemper.marks.dev.star": "differs from bm25 +0.1000"},
    curves={"curves/star/loss": [(step, 3.0 - step / 100) for step in range(0, 50, 10)], "curves/star/lr": [(0, 1e-05)]},
    table="star .5000 a",
)
UPDATED = replace(RECORD, metrics=RECORD.metrics | {"dev/bm25/nDCG@10": 0.4}, tags=RECORD.tags | {"retemper.result": "refused"})


@pytest.fixture
def send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Export, Record], list[str]]:
    """Exports from an empty folder; no warning is expected."""
    monkeypatch.chdir(tmp_path)

    def export_record(settings: Export, record: Record) -> list[str]:
        warnings: list[str] = []
        targets = export(tmp_path, settings, record, warn=warnings.append)
        assert warnings == []
        return targets

    return export_record


@pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "mlruns"])
def test_a_run_of_mlflow_is_updated_not_doubled(send: Any, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # of folders, which MLflow 3 wants to be rid of
    settings = Export(seconds=300, mlflow=Mlflow(uri=uri, experiment="search"))
    assert send(settings, RECORD) == ["mlflow"]
    assert send(settings, RECORD) == [], "it is there"
    (tmp_path / exporting.DONE).unlink()  # another clone would not know
    assert send(settings, UPDATED) == ["mlflow"]
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("search")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == RECORD.params
    assert {name: value for name, value in run.data.metrics.items() if "curves" not in name} == {
        "dev/star/nDCG_10": 0.5,
        "test/star/nDCG_10": 0.25,
        "dev/bm25/nDCG_10": 0.4,
    }
    history = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "curves/star/loss")]
    assert sorted(history) == RECORD.curves["curves/star/loss"]
    assert run.data.tags.items() >= UPDATED.tags.items()
    assert run.data.tags["mlflow.source.git.commit"] == "1a2b3c4d5e"
    assert "star .5000 a" in run.data.tags["mlflow.note.content"]


def test_a_run_of_tensorboard_is_replaced(send: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = Export(seconds=300, tensorboard=TensorBoard(folder="events"))
    for record in (replace(RECORD, at=1_600_000_000.0), UPDATED):
        assert send(settings, record) == ["tensorboard"]
    assert send(settings, replace(UPDATED, at=1_800_000_000.0)) == [], "git checkout rewrote dvc.lock"
    (folder,) = (tmp_path / "events").iterdir()
    assert folder.name == "2023-11-14_22-13-0123456789abcdef"
    events = EventAccumulator(str(folder)).Reload()
    loss = [(event.step, event.value) for event in events.Scalars("curves/star/loss")]
    assert [step for step, _ in loss] == [0, 10, 20, 30, 40]
    assert [value for _, value in loss] == pytest.approx([3.0, 2.9, 2.8, 2.7, 2.6])
    assert [event.value for event in events.Scalars("dev/bm25/nDCG@10")] == pytest.approx([0.4])
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert "| rounds.star.lr | 1e-05 |" in texts["parameters/text_summary"]
    assert "| retemper.result | refused |" in texts["tags/text_summary"]


def test_the_folder_of_tensorboard_may_be_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = Path(to_tensorboard.send(TensorBoard(folder="~/events"), RECORD))
    assert folder.parent == tmp_path / "home/events" and folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_an_offline_run_of_wandb_is_replaced(send: Any, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    settings = Export(seconds=300, wandb=Wandb(project="search", mode="offline"))
    for record in (RECORD, UPDATED):
        assert send(settings, record) == ["wandb"]
    (folder,) = (tmp_path / ".retemper/wandb").glob("offline-run-*")
    assert folder.name.endswith("-0123456789abcdef")
    entries = list(wandb_records(folder / "run-0123456789abcdef.wandb"))
    (run,) = [logged.run for logged in entries if logged.WhichOneof("record_type") == "run"]
    assert (run.project, run.run_id, run.display_name, list(run.tags)) == ("search", RECORD.key, RECORD.name, ["refused"])
    config = {entry.key: json.loads(entry.value_json) for entry in run.config.update}
    assert config["rounds.star.lr"] == "1e-05" and config["retemper.marks.dev.star"] == "differs from bm25 +0.1000"
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in logged.history.item}
        for logged in entries
        if logged.WhichOneof("record_type") == "history"
    ]
    loss = [(row["curves/star/step"], row["curves/star/loss"]) for row in rows if "curves/star/loss" in row]
    assert loss == RECORD.curves["curves/star/loss"]
    summary: dict[str, Any] = {}
    for logged in entries:
        if logged.WhichOneof("record_type") == "summary":
            summary |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in logged.summary.update}
    assert {name: summary[name] for name in UPDATED.metrics} == UPDATED.metrics


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: protocol buffers in LevelDB's log format, after 7 bytes that say so."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place < len(data):
        if BLOCK - place % BLOCK < 7:  # too little for another header
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def test_exports_are_made_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run and a retraining that ended at once shared a file of the record, and one lost the other's export from the list."""
    seen: list[str] = []

    def run_exports(_: Path, names: list[str], file: Path, *, seconds: float) -> dict[str, str]:
        time.sleep(seconds)  # a process reads the file only after its imports
        seen.append(json.loads(file.read_text())["record"]["key"])
        return dict.fromkeys(names, "")

    monkeypatch.setattr(exporting, "_run", run_exports)
    first, second = Export(seconds=0.5, wandb=Wandb()), Export(seconds=0.5, tensorboard=TensorBoard())
    with ThreadPoolExecutor() as pool:
        exports = [
            pool.submit(export, tmp_path, settings, replace(RECORD, key=key), warn=print) for settings, key in ((first, "a"), (second, "b"))
        ]
        assert [future.result() for future in exports] == [["wandb"], ["tensorboard"]]
    assert sorted(seen) == ["a", "b"]
    assert json.loads((tmp_path / exporting.DONE).read_text()).keys() == {"wandb", "tensorboard"}


def test_files_that_were_removed_are_exported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_run", lambda _, names, *__, **___: dict.fromkeys(names, ""))
    settings = Export(mlflow=Mlflow(uri="sqlite:///mlflow.db?timeout=30"), tensorboard=TensorBoard(folder="events"))
    assert export(tmp_path, settings, RECORD, warn=print) == ["mlflow", "tensorboard"]
    (tmp_path / f"events/2023-{RECORD.key}").mkdir(parents=True)
    assert export(tmp_path, settings, RECORD, warn=print) == ["mlflow"]
    (tmp_path / "mlflow.db").touch()
    assert export(tmp_path, settings, RECORD, warn=print) == []
    (tmp_path / f"events/2023-{RECORD.key}").rmdir()
    assert export(tmp_path, settings, RECORD, warn=print) == ["tensorboard"]
    server = Export(mlflow=Mlflow(uri="http://127.0.0.1:5000"))
    assert (export(tmp_path, server, RECORD, warn=print), export(tmp_path, server, RECORD, warn=print)) == (["mlflow"], [])


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def test_an_unreachable_server_is_one_warning_and_asked_again(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    warnings: list[str] = []
    settings = Export(seconds=300, mlflow=Mlflow(uri=f"http://127.0.0.1:{free_port()}"))
    assert export(tmp_path, settings, RECORD, warn=warnings.append) == []
    (line,) = warnings
    assert line.startswith("not exported to mlflow: MlflowException: ") and line.endswith("; the next run tries again"), line
    assert "\n" not in line
    assert export(tmp_path, settings, RECORD, warn=warnings.append) == []
    assert len(warnings) == 2


def test_a_server_that_is_silent_costs_a_bounded_time(tmp_path: Path) -> None:
    """It takes the connection and never answers. Nothing is left of the export."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        warnings: list[str] = []
        settings = Export(seconds=1, mlflow=Mlflow(uri=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        start = time.monotonic()
        assert export(tmp_path, settings, RECORD, warn=warnings.append) == []
        assert time.monotonic() - start < 60, "MLflow itself would wait for minutes"
    assert warnings == ["not exported to mlflow: no answer within 1 s; the next run tries again"]


def test_no_key_of_wandb_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    warnings: list[str] = []
    assert export(tmp_path, Export(seconds=120, wandb=Wandb()), RECORD, warn=warnings.append) == []
    (line,) = warnings
    assert line.startswith("not exported to wandb: ") and "no answer" not in line, line


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "path/mlflow").mkdir(parents=True)
    (tmp_path / "path/mlflow/__init__.py").write_text("raise ModuleNotFoundError('no mlflow', name='mlflow')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'path'}:{Path(__file__).resolve().parents[3]}")
    warnings: list[str] = []
    assert export(tmp_path, Export(mlflow=Mlflow(uri="mlruns")), RECORD, warn=warnings.append) == []
    assert warnings == [
        "not exported to mlflow: mlflow is not installed; pip install -c constraints.txt 'retemper[mlflow]'; the next run tries again"
    ]


def test_whatever_goes_wrong_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    warnings: list[str] = []

    def fail() -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr(exporting, "gather", lambda *_: fail())
    assert export_run(tmp_path, Export(tensorboard=TensorBoard()), warnings.append) == []
    assert warnings == ["this run was not exported: ValueError: two lines"]
    assert export_run(tmp_path, Export(), warnings.append) == [], "no target: nothing is even looked at"
    assert len(warnings) == 1
    assert records.gather() is None
