"""The command line without a run: help, refusals, what is undone, what search and evaluate start."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main as cli
from flows.experiments import evaluate
from flows.process import locks
from flows.results import search
from tasks.core.stage.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


@pytest.fixture
def project(tmp_path: Path, checkout: Path) -> Path:
    """The project's own parameters and graph, without its code."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(checkout / name, tmp_path)
    (tmp_path / "data").mkdir()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], cwd=tmp_path, check=True)
    author = ["-c", "user.name=toy", "-c", "user.email=toy@example.com"]
    subprocess.run(["git", *author, "commit", "--quiet", "--allow-empty", "-m", "toy"], cwd=tmp_path, check=True)
    return tmp_path


def test_help_has_examples(tmp_path: Path) -> None:
    done = call(tmp_path, "--help")
    assert done.returncode == 0
    assert all(f"retemper {command}" in done.stdout for command in ("run", "search", "evaluate", "serve"))


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    names = "print(sorted(name.partition('.')[0] for name in sys.modules))"
    probe = f"import sys; from flows.cli import main; main.build_parser().format_help(); {names}"
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert not {"pydantic", "ruamel", "dvc", "prefect", "numpy", "torch"} & set(ast.literal_eval(done.stdout)), "help is there at once"


def test_outside_a_project(tmp_path: Path, project: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "no dvc.yaml here; run retemper in the project's folder" in refused(call(elsewhere, "run"))
    shutil.rmtree(project / ".git")
    assert "not in a git repository" in refused(call(project, "run"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_without_permission_to_write(project: Path) -> None:
    project.chmod(0o555)
    try:
        assert "no permission to write here" in refused(call(project, "run"))
    finally:
        project.chmod(0o755)


def test_a_refused_setting_changes_nothing(project: Path) -> None:
    before = (project / "params.yaml").read_bytes()
    assert "params.yaml: rounds.star.lr: found 'fast'" in refused(call(project, "run", "--set", "rounds.star.lr=fast"))
    assert "nowhere: found nothing there" in refused(call(project, "run", "--set", "dataset.source=beir:nowhere"))
    assert (project / "params.yaml").read_bytes() == before
    assert not (project / "data/source.json").exists()


def test_a_dry_run_names_stages_and_changes_nothing(project: Path) -> None:
    before = (project / "params.yaml").read_bytes().replace(b"\n", b"\r\n")
    (project / "params.yaml").write_bytes(before)
    done = call(project, "run", "--dry-run", "--set", "rounds.more.init=star", "--set", "rounds.more.negatives=bm25", "train@more")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2] == "train@more"
    assert "evaluate@more" not in done.stdout
    assert (project / "params.yaml").read_bytes() == before
    assert not (project / "data/source.json").exists()


def test_a_dry_run_that_is_hung_up_leaves_no_setting(project: Path) -> None:
    code = """
import os, signal, sys
from flows.cli.main import main
def hang_up():
    assert "0.123" in open("params.yaml").read()
    os.kill(os.getpid(), signal.SIGHUP)
sys.exit(main(["run", "--dry-run", "--set", "rounds.star.lr=0.123"], hang_up))
"""
    before = (project / "params.yaml").read_bytes()
    for handler, status in (("SIG_DFL", 128 + 1), ("SIG_IGN", 0)):  # the latter by nohup
        command = [sys.executable, "-c", f"import signal; signal.signal(signal.SIGHUP, signal.{handler}){code}"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == status, done.stderr
        assert (project / "params.yaml").read_bytes() == before


def test_streams_that_are_closed_are_no_mistake(project: Path) -> None:
    command = f"exec {sys.executable} -m flows.cli run --dry-run prepare <&- >&-"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], cwd=project, env=environment, stderr=subprocess.PIPE, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("setting", [[], ["--set", "rounds.star.lr=1e-5"]])
def test_what_a_person_saves_during_a_dry_run_stays(project: Path, setting: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    saved = (project / "params.yaml").read_text() + "# saved meanwhile\n"

    def save() -> None:
        (project / "params.yaml").write_text(saved)

    assert cli.main(["run", "--dry-run", *setting, "prepare"], save) == 0
    assert (project / "params.yaml").read_text() == saved


def test_a_run_at_work_sees_nothing_of_a_setting_that_is_refused(project: Path) -> None:
    before = (project / "params.yaml").stat().st_mtime_ns
    with locks.only_run(project / locks.RUN_LOCK):
        for more in ([], ["--dry-run"]):
            assert "a run is at work in this folder" in refused(call(project, "run", "--set", "rounds.star.lr=1e-5", *more))
    assert (project / "params.yaml").stat().st_mtime_ns == before, "it was never written"


def test_dvcs_refusals_are_one_line(project: Path) -> None:
    graph = (project / "dvc.yaml").read_text()
    (project / "dvc.yaml").write_text(graph.replace("outs: [data/tokens]", "outs: [data/corpus]"))
    assert "data/corpus" in refused(call(project, "run"))
    (project / "dvc.yaml").write_text("stages: [")
    assert "dvc.yaml" in refused(call(project, "run"))


def test_search_asks_the_best_model(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    for model, value in (("bm25", 0.9), ("star", 0.8), ("init", 0.5)):
        (project / "data/metrics").mkdir(exist_ok=True)
        (project / f"data/metrics/{model}.json").write_text(json.dumps({"dev": {"nDCG@10": value}}))
        if model != "bm25":
            (project / f"data/indexes/{model}").mkdir(parents=True)
    asked: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(search.subprocess, "run", answer)
    assert cli.main(["search", "--", "-k of what?"]) == 0
    assert asked[0][1:3] == ["-m", "tasks.search"]
    assert dict(zip(asked[0][3:-1:2], asked[0][4:-1:2], strict=True)) == {
        "--encoder": "data/encoders/star",
        "--index": "data/indexes/star",
        "--documents": "data/corpus/documents.parquet",
        "--tokens": "data/tokens",
        "--k": "10",
    }
    assert asked[0][-1] == "--query=-k of what?"
    assert search.search("x", 3, "init") == 0
    assert "data/encoders/init" in asked[1]
    for model in ("star", "init"):
        (project / f"data/metrics/{model}.json").write_text(json.dumps({"test": {"nDCG@10": 0.7 if model == "init" else 0.6}}))
    (project / "data/metrics/bm25.json").write_text(json.dumps({"test": {"nDCG@10": 0.9}}))
    assert search.search("x", 3, None) == 0
    assert "data/encoders/init" in asked[2], "there is no dev to choose on"
    with pytest.raises(UserError, match="no index of model bm25, expected one of init, star"):
        search.search("x", 3, "bm25")
    with pytest.raises(UserError, match="expected at least 1"):
        search.search("x", 0, None)


def test_evaluate_runs_the_stages_beside_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each stage is stood in for by one that makes its outs; the last also writes metrics."""
    monkeypatch.chdir(project)
    stand_in = "import sys, pathlib; a = sys.argv; o = a[a.index({last!r}) + 1]; pathlib.Path(o).write_text({text!r}); print('did', o)"
    seen: list[list[str]] = []

    def commands(*arguments: Any) -> list[list[str]]:
        found = zero_shot_commands(*arguments)
        seen.extend(found)
        return found

    zero_shot_commands = evaluate.commands
    monkeypatch.setattr(evaluate, "commands", commands)
    there: list[set[str]] = []  # when the qrels are looked at
    monkeypatch.setattr(evaluate, "refuse_unjudged", lambda qrels, *_: there.append({path.name for path in qrels.parents[1].iterdir()}))
    last = {"prepare": "--out", "base": "--encoder", "tokenize": "--out", "encode": "--out", "retrieve": "--out", "evaluate": "--metrics"}
    for stage, option in last.items():
        (project / "tasks" / stage).mkdir(parents=True)
        text = json.dumps({"test": {"nDCG@10": 0.25}})
        (project / "tasks" / stage / "__main__.py").write_text(stand_in.format(last=option, text=text))
    (project / "model").mkdir()
    assert cli.main(["evaluate", "--model", "model", "--data", "beir:somewhere", "--out", "found.json"]) == 0
    assert json.loads(Path("found.json").read_text()) == {"test": {"nDCG@10": 0.25}}
    assert "0.2500" in capsys.readouterr().out
    assert there == [{"corpus"}], "behind prepare, and before all else"
    assert not list(Path(".retemper").glob("evaluate-*")), "the temporary folder is gone"
    assert list(Path("data").iterdir()) == []
    assert seen[0][:3] == ["tasks.prepare", "--source", "beir:somewhere"]
    assert seen[1][:3] == ["tasks.base", "--source", "model"]

    (project / "tasks/encode/__main__.py").write_text("import sys; sys.exit('retemper: model: no such tokenizer')")
    assert cli.main(["evaluate", "--model", "model", "--data", "demo"]) == 1
    (project / "tasks/encode/__main__.py").write_text("import sys; print('retemper: a: b', file=sys.stderr); sys.exit(2)")
    capsys.readouterr()
    assert cli.main(["evaluate", "--model", "model", "--data", "demo"]) == 2
    assert capsys.readouterr().err == "retemper: a: b\n"
    assert not list(Path(".retemper").glob("evaluate-*"))


def test_a_schedule_that_is_none_is_refused(project: Path) -> None:
    assert '--cron "every day": expected a cron expression' in refused(call(project, "serve", "--cron", "every day"))
    assert "--interval 0: expected at least 1 second" in refused(call(project, "serve", "--interval", "0"))


def test_rounds_are_written_and_taken_away(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(project)
    before = Path("params.yaml").read_text()
    assert cli.main(["rounds", "ance", "--n", "3", "--lag", "1", "--init", "warmup", "--steps", "9", "--carry-on", "--set", "lr=1e-6"]) == 0
    assert "added ance1, ance2, ance3" in capsys.readouterr().out
    assert "ance3: {init: ance2, negatives: ance1" in Path("params.yaml").read_text()
    assert cli.main(["rounds", "remove", "ance"]) == 0
    assert Path("params.yaml").read_text() == before
    for arguments, words in (
        (["ance", "--n", "0", "--init", "warmup"], "--n 0 --lag 1: expected at least one round"),
        (["ance", "--n", "2", "--init", "nowhere"], "rounds.ance1.init: found 'nowhere'"),
        (["remove", "ance"], "no rounds ance1"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["rounds", *arguments])
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert Path("params.yaml").read_text() == before


def test_a_reader_that_leaves_early_gets_no_traceback(project: Path) -> None:
    code = "import sys; from flows.cli import main as cli; cli._run = lambda *_: print('line\\n' * 10**6); sys.exit(cli.main(['run']))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stderr
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 128 + 13
