"""The command line without a run: help, refusals, what is undone, what search and evaluate start."""

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from typer.core import TyperGroup
from typer.main import get_command

from flows.cli import main as cli
from flows.cli.train.evaluate import repeated
from flows.evaluating import evaluate, several
from flows.process import locks
from flows.results import search
from tasks.core.errors import UserError
from tests.forks import retemper

ROOT = Path(__file__).resolve().parents[3]
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def call(prepared: dict[str, str]) -> Call:
    """`call(folder, *arguments)` runs the command."""
    environment = os.environ | prepared | {"PYTHONPATH": str(ROOT)}
    return lambda folder, *arguments: retemper(list(arguments), folder, environment)


def refusal_of(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr


@pytest.fixture
def project(tmp_path: Path, checkout: Path) -> Path:
    """The project's own parameters and graph, without its code."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(checkout / name, tmp_path)
    (tmp_path / "data").mkdir()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    Repo.init(str(tmp_path)).close()
    author = ["-c", "user.name=toy", "-c", "user.email=toy@example.com"]
    subprocess.run(["git", *author, "commit", "--quiet", "--allow-empty", "-m", "toy"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_help_on_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as device:
        command = [sys.executable, "-m", "flows.cli", "--help"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        result = subprocess.run(command, cwd=tmp_path, env=environment, stdout=device, stderr=subprocess.PIPE, text=True, check=False)
    assert "No space left on device" in refusal_of(result)


def test_help_has_examples(tmp_path: Path, call: Call) -> None:
    result = call(tmp_path, "--help")
    assert result.returncode == 0
    assert all(f"retemper {command}" in result.stdout for command in ("run", "search", "evaluate", "serve", "schedule"))
    assert not list(tmp_path.iterdir())


def test_every_option_has_its_whole_name_in_help(tmp_path: Path) -> None:
    """A pipe is 80 columns wide: rich would truncate a name that does not fit."""
    group = get_command(cli.build())
    assert isinstance(group, TyperGroup)
    leaves: list[tuple[list[str], Any]] = []
    pending: list[tuple[list[str], Any]] = [([name], command) for name, command in group.commands.items()]
    while pending:
        path, command = pending.pop()
        leaves.append((path, command))
        pending += [([*path, name], below) for name, below in getattr(command, "commands", {}).items()]
    assert len(leaves) == 44
    code = "import json, sys; from flows.cli.main import main; [main([*path, '--help']) for path in json.loads(sys.argv[1])]"
    command = [sys.executable, "-c", code, json.dumps([path for path, _ in leaves])]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    output = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=True).stdout
    pages = output.split("Usage: ")[1:]
    for (path, leaf), page in zip(leaves, pages, strict=True):
        assert page.startswith(f"retemper {' '.join(path)}")
        for name in (name for parameter in leaf.params for name in parameter.opts if name.startswith("-")):
            assert f"{name} " in page, (path, name)


def test_a_file_is_written_where_it_can_be(project: Path, call: Call) -> None:
    """Said before minutes of work; and no folder is made."""
    for path, message in (
        (".", "found a folder"),
        ("", "found a folder"),
        ("none/x", "none is not a folder"),
        ("params.yaml/x", "params.yaml is not a folder"),
    ):
        assert f"--html {path or '.'}: {message}" in refusal_of(call(project, "lineage", "star", "--html", path))
        for option in ("--out", "--mteb"):
            arguments = ("evaluate", "--model", "m", "--data", "demo", option, path)
            assert f"{option} {path or '.'}: {message}" in refusal_of(call(project, *arguments))
    assert not (project / "none").exists()


def test_json_of_a_run_is_that_of_its_dry_run(project: Path, call: Call) -> None:
    assert "run: found --json without --dry-run, expected both or neither" in refusal_of(call(project, "run", "--json"))


def test_options_that_exclude_each_other(project: Path, call: Call) -> None:
    assert "expected one of --cron EXPR and --interval SECONDS" in refusal_of(call(project, "schedule"))
    assert "expected one of --cron EXPR and" in refusal_of(call(project, "schedule", "--cron", "0 3 * * *", "--interval", "60"))
    assert "expected one of --all, --json and --html FILE" in refusal_of(call(project, "lineage", "star", "--json", "--html", "page.html"))
    arguments = ("evaluate", "--model", "m", "--data", "demo", "--titles", "--no-titles")
    assert "found --titles and --no-titles, expected one of them" in refusal_of(call(project, *arguments))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--relevance 1 2 --drop", "--relevance 1 --relevance 2 --drop"),
        ("--relevance -1", "--relevance -1"),
        ("--relevance=1 2", "--relevance=1 --relevance 2"),
        ("--query-length 3 --relevance 1 x 2", "--query-length 3 --relevance 1 x 2"),
        ("--relevance 1 --relevance 2 3", "--relevance 1 --relevance 2 --relevance 3"),
    ],
)
def test_relevance_takes_one_number_or_more(text: str, expected: str) -> None:
    assert list(repeated(text.split(), "--relevance")) == expected.split()


def test_a_shell_completes_commands_and_options(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "_RETEMPER_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "flows.cli"]
    for words, number, expected in (("retemper se", "1", {"search", "serve"}), ("retemper run --d", "2", {"--dry-run"})):
        completion_environment = environment | {"COMP_WORDS": words, "COMP_CWORD": number}
        result = subprocess.run(command, cwd=tmp_path, env=completion_environment, capture_output=True, text=True, timeout=300, check=True)
        assert set(result.stdout.split()) == expected


def test_arguments_of_evaluate(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *arguments, **files: calls.append((*arguments, files)) or 7)
    assert cli.main(["evaluate", "--model", "m", "--data", "demo"]) == 7
    defaults: dict[str, Any] = {"query": None, "document": None}
    assert calls.pop() == ("m", "demo", evaluate.Settings(defaults, defaults, None, False, None, None), {"out": None, "mteb": None})
    options = "--query-prefix q: --document-length 9 --no-titles --drop --ignore-identical-ids --relevance 1 2 --out a.json --mteb b.json"
    assert cli.main(["evaluate", "--model", "m", "--data", "demo", *options.split()]) == 7
    settings = evaluate.Settings({"query": "q:", "document": None}, {"query": None, "document": 9}, False, True, True, [1, 2])
    assert calls.pop() == ("m", "demo", settings, {"out": Path("a.json"), "mteb": Path("b.json")})
    monkeypatch.setattr(several, "evaluate_all", lambda *arguments, **files: calls.append((*arguments, files)) or 8)
    for models, data in ((["m", "n"], ["demo"]), (["m"], ["demo", "beir:x"])):
        words = [word for option, values in (("--model", models), ("--data", data)) for value in values for word in (option, value)]
        assert cli.main(["evaluate", *words, "--drop", "--mteb", "."]) == 8, "several give one table"
        assert calls.pop() == (models, data, evaluate.Settings(defaults, defaults, None, True), {"out": None, "mteb": Path()})


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"ruamel", "dvc", "prefect", "numpy", "torch"}
    for arguments, allowed in (((), {"pydantic"}), (("run",), set())):  # typer has pydantic read the root's options for a command
        names = "print(sorted(name.partition('.')[0] for name in sys.modules))"
        probe = f"import sys; from flows.cli import main; main.main([*{arguments}, '--help']); {names}"
        result = subprocess.run(
            [sys.executable, "-c", probe], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
        loaded = set(ast.literal_eval(result.stdout.splitlines()[-1]))
        assert not (heavy | allowed) & loaded, "help is immediate"


def test_outside_a_project(tmp_path: Path, project: Path, call: Call) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    assert "no dvc.yaml here; run retemper in the project's folder" in refusal_of(call(folder, "run"))
    shutil.rmtree(project / ".git")
    assert "not in a git repository" in refusal_of(call(project, "run"))


def test_without_git(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", "")
    for arguments in (("lineage", "star"), ("new", "project", "--data", "demo", "--defaults")):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        assert capsys.readouterr().err == "retemper: git: not found on PATH; install it\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_without_permission_to_write(project: Path, call: Call) -> None:
    project.chmod(0o555)
    try:
        assert "no permission to write here" in refusal_of(call(project, "run"))
    finally:
        project.chmod(0o755)


def test_a_refused_setting_changes_nothing(project: Path, call: Call) -> None:
    before = (project / "params.yaml").read_bytes()
    assert "params.yaml: rounds.star.lr: found 'fast'" in refusal_of(call(project, "run", "--set", "rounds.star.lr=fast"))
    assert "nowhere: not found" in refusal_of(call(project, "run", "--set", "dataset.source=beir:nowhere"))
    assert (project / "params.yaml").read_bytes() == before
    assert not (project / "data/source.json").exists()


def test_a_refused_target_takes_the_settings_beside_it_back(project: Path, call: Call) -> None:
    before = (project / "params.yaml").read_bytes()
    result = call(project, "run", "--set", "rounds.star.seed=7", "star")
    assert "no stage star; did you mean train@star" in refusal_of(result)
    assert (project / "params.yaml").read_bytes() == before
    assert json.loads((project / "data/params.json").read_text())["rounds"]["star"].get("seed") != 7, "what stages would read"


def test_a_dry_run_names_stages_and_changes_nothing(project: Path, call: Call) -> None:
    before = (project / "params.yaml").read_bytes().replace(b"\n", b"\r\n")
    (project / "params.yaml").write_bytes(before)
    result = call(project, "run", "--dry-run", "--set", "rounds.more.init=star", "--set", "rounds.more.negatives=bm25", "train@more")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].endswith(", mine@warmup, train@star, train@more"), result.stdout
    assert "evaluate@more" not in result.stdout
    assert (project / "params.yaml").read_bytes() == before
    assert not (project / "data/source.json").exists()


def test_a_dry_run_ended_by_sighup_leaves_no_setting(project: Path) -> None:
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
        result = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert result.returncode == status, result.stderr
        assert (project / "params.yaml").read_bytes() == before


def test_closed_streams_are_no_mistake(project: Path) -> None:
    command = f"exec {sys.executable} -m flows.cli run --dry-run prepare <&- >&-"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(["sh", "-c", command], cwd=project, env=environment, stderr=subprocess.PIPE, timeout=300, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize("setting", [[], ["--set", "rounds.star.lr=1e-5"]])
def test_edits_saved_during_a_dry_run_stay(project: Path, setting: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    edited = (project / "params.yaml").read_text() + "# saved meanwhile\n"

    def save() -> None:
        (project / "params.yaml").write_text(edited)

    assert cli.main(["run", "--dry-run", *setting, "prepare"], save) == 0
    assert (project / "params.yaml").read_text() == edited


def test_a_run_in_progress_never_sees_a_refused_setting(project: Path, call: Call) -> None:
    before = (project / "params.yaml").stat().st_mtime_ns
    with locks.hold_run_lock(project / locks.RUN_LOCK):
        for options in ([], ["--dry-run"]):
            assert "another run is in progress in this folder" in refusal_of(call(project, "run", "--set", "rounds.star.lr=1e-5", *options))
    assert (project / "params.yaml").stat().st_mtime_ns == before, "it was never written"


def test_dvcs_refusals_are_one_line(project: Path, call: Call) -> None:
    graph = (project / "dvc.yaml").read_text()
    (project / "dvc.yaml").write_text(graph.replace("outs: [data/tokens]", "outs: [data/corpus]"))
    assert "data/corpus" in refusal_of(call(project, "run"))
    (project / "dvc.yaml").write_text("stages: [")
    assert "dvc.yaml" in refusal_of(call(project, "run"))


def test_search_uses_the_best_model(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(project)
    for model, value in (("bm25", 0.9), ("star", 0.8), ("init", 0.5)):
        (project / "data/metrics").mkdir(exist_ok=True)
        (project / f"data/metrics/{model}.json").write_text(json.dumps({"dev": {"nDCG@10": value}}))
        if model != "bm25":
            (project / f"data/indexes/{model}").mkdir(parents=True)
    commands: list[list[str]] = []

    def record_command(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(search.subprocess, "run", record_command)
    assert cli.main(["search", "--", "-k of what?"]) == 0
    assert capsys.readouterr().err == "searching with star (the best on dev that can be searched)\n", "bm25 is better"
    assert commands[0][1:3] == ["-m", "tasks.search"]
    assert commands[0][3:7] == ["--model", "star", "data/encoders/star", "data/indexes/star"]
    assert dict(zip(commands[0][7:-1:2], commands[0][8:-1:2], strict=True)) == {
        "--documents": "data/corpus/documents.parquet",
        "--tokens": "data/tokens",
        "--k": "10",
    }
    assert commands[0][-1] == "--query=-k of what?"
    assert search.search("x", 3, "init") == 0
    assert "data/encoders/init" in commands[1]
    for model in ("star", "init"):
        (project / f"data/metrics/{model}.json").write_text(json.dumps({"test": {"nDCG@10": 0.7 if model == "init" else 0.6}}))
    (project / "data/metrics/bm25.json").write_text(json.dumps({"test": {"nDCG@10": 0.9}}))
    assert search.search("x", 3, None) == 0
    assert "data/encoders/init" in commands[2], "there is no dev to choose on"
    with pytest.raises(UserError, match=r"model bm25 is searched only as a part .*; expected one of init, star"):
        search.search("x", 3, "bm25")
    with pytest.raises(UserError, match="expected at least 1"):
        search.search("x", 0, None)


def test_an_invalid_schedule_is_refused(project: Path, call: Call) -> None:
    assert '--cron "every day": expected five cron fields' in refusal_of(call(project, "schedule", "--cron", "every day"))
    assert "--interval 0: expected 1 to 31,622,400 seconds" in refusal_of(call(project, "schedule", "--interval", "0"))


def test_rounds_are_written_and_removed(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(project)
    before = Path("params.yaml").read_text()
    assert (
        cli.main(
            ["rounds", "ance", "--n", "3", "--lag", "1", "--init", "warmup", "--steps", "9", "--optimizer", "moments", "--set", "lr=1e-6"]
        )
        == 0
    )
    assert "added ance1, ance2, ance3" in capsys.readouterr().out
    assert "ance3: {init: ance2, negatives: ance1" in Path("params.yaml").read_text()
    assert cli.main(["rounds", "remove", "ance"]) == 0
    assert Path("params.yaml").read_text() == before
    for arguments, message in (
        (["ance", "--n", "0", "--init", "warmup"], "--n 0 --lag 1: expected at least one round"),
        (["ance", "--n", "2", "--init", "nowhere"], "rounds.ance1.init: found 'nowhere'"),
        (["remove", "ance"], "no rounds ance1"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["rounds", *arguments])
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert Path("params.yaml").read_text() == before


def test_a_reader_that_leaves_early_gets_no_traceback(project: Path) -> None:
    code = "import sys; from flows.cli import main; from flows.experiments import store; "
    code += "store.show = lambda *_: print('line\\n' * 10**6); sys.exit(main.main(['experiments']))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stderr
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 128 + 13


def test_every_command_is_in_a_group_of_the_help_and_has_an_example_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("grid.yaml", "train.jsonl", "LOG", "data/failures/suspects/dev.csv"):  # commands look for them
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    commands = get_command(cli.build()).commands  # type: ignore[attr-defined]
    assert len(commands) == 31
    for name, command in commands.items():
        assert command.rich_help_panel in cli.PANELS, name
        assert command.epilog.startswith(f"Example: retemper {name}"), name
        line = shlex.split(command.epilog.removeprefix("Example: ").partition("  (")[0])[2:]
        command.make_context(name, line)
