"""`retemper serve`: what is refused, what it starts, what it follows; and the real thing under load beside a promotion and a rollback."""

import errno
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.cli.main import main
from flows.scheduling import schedule
from flows.serving import follow, serve
from flows.serving.follow import Follower
from flows.serving.serve import Settings
from tasks.core.errors import UserError
from tasks.core.models.export import read_record
from tasks.search.__main__ import arguments, open_systems
from tests.flows.serving.test_export import QUERIES, SYSTEMS


def refusal_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as error:
        main(["serve", *arguments])
    output = capsys.readouterr()
    assert error.value.code == 2 and output.out == "" and output.err.count("\n") == 1, output
    return output.err


@pytest.mark.usefixtures("project")
def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert refusal_of(["--port", port], capsys) == f"retemper: --port {port}: is taken, expected a free one; choose another, or 0\n"
    for arguments_, line in (
        ([], "there is no champion yet; run retemper retrain, or retemper champion set MODEL"),
        (["--export", str(tmp_path)], f"{tmp_path}/serving.json: not found, expected an exported folder; make one with retemper champion"),
        (["--model", "star"], "data/indexes/star: no index of model star, expected one of "),
        (["--model", "warmup", "--export", "x"], "serve: found --model and --export, expected one of them"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid: found no address"),
        (["--allow-host", "search.example:8080"], "--allow-host search.example:8080: expected a name without a port, such as"),
        (["--log", "x"], "serve: found --log without --log-queries, expected both"),
        (["--model", "warmup", "--fetch", "60"], "serve: found --fetch, expected it only where the champion is served"),
        (["--name", "x"], "serve: found --name, expected only with retemper schedule; remove it"),
    ):
        assert refusal_of(["--port", "0", *arguments_], capsys).startswith(f"retemper: {line}")
    assert not Path(".retemper/serving").exists() or not any(Path(".retemper/serving").rglob("serving.json"))


@pytest.mark.parametrize("name", ["search.example:8080", "*", "https://search.example", "[::1]:80"])
def test_a_host_is_allowed_by_name_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """With a port or a bare star, it would never be the host of a request."""
    monkeypatch.setattr(serve, "bind_socket", pytest.fail)  # the first that is done
    with pytest.raises(UserError, match=rf"^--allow-host {re.escape(name)}: expected a name without a port, such as search.example.org"):
        serve.serve(Settings(hosts=("*.search.example", "[::1]", "127.0.0.1", name)))


@pytest.mark.usefixtures("project")
def test_serve_with_times_schedules_and_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(schedule, "serve", lambda *positional, **options: calls.append((*positional, options)) or 0)
    assert main(["serve", "--cron", "0 3 * * 1", "--name", "weekly"]) == 0
    assert main(["schedule", "--cron", "0 3 * * 1", "--name", "weekly"]) == 0
    assert calls == [("0 3 * * 1", None, "weekly", {"timezone": None, "follow": None, "pool": None})] * 2
    assert capsys.readouterr().err == (
        "retemper: serve --cron and --interval are deprecated and will be removed in the next version; use retemper schedule\n"
    )


def test_the_follower_keeps_the_champion_and_the_one_before(
    crown: Callable[[str], Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    follower = Follower(project, Path(".retemper/serving/0"), lines.append)
    follower.begin(crown("hybrid"))
    for number, model in ((2, "warmup"), (3, "hybrid"), (4, "warmup")):
        crown(model)
        follower.look()
        follower.look()
        assert read_record(follower.link).label == f"champion/{number} {model}"
        folders = sorted(path.name for path in follower.link.parent.iterdir())
        assert folders == [f"champion-{number - 1}", f"champion-{number}", "current"]
    assert lines == []

    def report_lost(*_: Any, **__: Any) -> None:
        raise UserError("data/encoders/tower of b93f712: neither in the cache nor on the remote")

    monkeypatch.setattr(follow, "copy_champion", report_lost)
    crown("hybrid")
    for _ in range(3):
        follower.look()
    assert lines == ["warning: champion/5 cannot be served yet: data/encoders/tower of b93f712: neither in the cache nor on the remote"]
    assert follower.problem.read_text() == lines[0].removeprefix("warning: "), "which /health tells"
    assert read_record(follower.link).label == "champion/4 warmup", "the old one stays"

    def fail_on_older_version(*_: Any, **__: Any) -> None:
        raise KeyError("prefix")

    monkeypatch.setattr(follow, "copy_champion", fail_on_older_version)
    follower._again = 0.0
    follower.look()
    assert lines[1:] == ["warning: champion/5 cannot be served yet: KeyError: 'prefix'"], "nor does any other fault end the server"
    monkeypatch.undo()
    monkeypatch.chdir(project)
    follower._again = 0.0
    follower.look()
    assert read_record(follower.link).label == "champion/5 hybrid"
    assert not follower.problem.exists()


def test_a_remote_that_is_unavailable_is_a_problem_of_its_own(
    crown: Callable[[str], Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not hide another one, nor end with it; a rollback to what is served ends that one."""
    answers, lines = [None, "git remote origin: not asked", "git remote origin: not asked", None], list[str]()
    monkeypatch.setattr(follow.machines, "peek", lambda _: answers.pop(0))
    follower = Follower(project, Path(".retemper/serving/0"), lines.append, fetch_seconds=1e-9)
    follower.begin(crown("warmup"))
    follower.look()
    assert not follower.problem.exists()
    monkeypatch.setattr(follow, "champion_now", lambda _: (_ for _ in ()).throw(UserError("tag champion/2: no record")))
    follower.look()
    assert follower.problem.read_text() == "git remote origin: not asked; tag champion/2: no record"
    monkeypatch.undo()
    monkeypatch.chdir(project)
    monkeypatch.setattr(follow.machines, "peek", lambda _: answers.pop(0))
    follower.look()
    assert follower.problem.read_text() == "git remote origin: not asked"
    follower.look()
    assert not follower.problem.exists()
    assert lines == ["warning: git remote origin: not asked", "warning: tag champion/2: no record"]


def test_git_that_cannot_be_started_ends_nothing(crown: Callable[[str], Any], project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is short of memory or of file descriptors for a moment."""
    lines = list[str]()
    follower = Follower(project, Path(".retemper/serving/0"), lines.append, fetch_seconds=1e-9)
    follower.begin(crown("warmup"))

    def fork(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", fork)
        follower.look()
    assert lines == ["warning: [Errno 12] Cannot allocate memory"] * 2, "for the remote, and for the champion"
    assert follower.problem.read_text() == "; ".join(["[Errno 12] Cannot allocate memory"] * 2)
    crown("hybrid")
    follower.look()
    assert read_record(follower.link).label == "champion/2 hybrid"
    assert not follower.problem.exists() and len(lines) == 2


def start(project: Path, *words: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
    """`retemper serve`, and its address once it serves."""
    code = "import sys; from flows.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "serve", "--port", "0", *words]
    root = str(Path(__file__).resolve().parents[3])
    environment = os.environ | {"PYTHONPATH": root} | environment
    process = subprocess.Popen(command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    line = process.stdout.readline()
    match = re.search(r"http://[\d.]+:\d+", line)
    assert match, line + process.communicate()[1]
    return process, match[0]


def test_an_export_is_served_without_a_project_until_a_signal(crown: Callable[[str], Any], project: Path, tmp_path: Path) -> None:
    """Only the folder is there. What was asked before the signal is answered, and the last line reports."""
    from flows.serving.export import export

    crown("hybrid")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    export(project, folder / "served")
    process, url = start(folder, "--export", "served", "--log-queries", "hashed", "--log", "q.jsonl", RETEMPER_API_KEY="open sesame")
    try:
        key = {"x-api-key": "open sesame"}
        assert httpx.get(f"{url}/search", params={"q": "river"}).status_code == 401
        with httpx.Client(timeout=300) as client:
            answers: list[httpx.Response] = []
            body = {"queries": list(QUERIES) * 12, "k": 5}
            thread = threading.Thread(target=lambda: answers.append(client.post(f"{url}/search", json=body, headers=key)))
            thread.start()
            while "retemper_requests_total" not in httpx.get(f"{url}/metrics", headers=key).text:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            thread.join()
        assert answers[0].status_code == 200 and "text" not in answers[0].json()["results"][0]["hits"][0]
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert re.search(r"retemper: stopped; \d+ requests, 0 errors, 0 swaps, p50 [\d.]+ ms, p99 [\d.]+ ms\n$", out)
    assert "sesame" not in out + err + (folder / "q.jsonl").read_text()
    assert len((folder / "q.jsonl").read_text().splitlines()) == 60
    assert sorted(path.name for path in folder.iterdir()) == ["q.jsonl", "q.jsonl.key", "served"]


def test_a_server_that_dies_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "POLL_SECONDS", 0.05)
    with serve.bind_socket("127.0.0.1", 0) as listener:
        with pytest.raises(UserError, match=r"the search server was killed \(SIGKILL\); start it again"):
            serve._run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], listener, None)
        assert serve._run([sys.executable, "-c", "raise SystemExit(2)"], listener, None) == 2


@pytest.mark.usefixtures("project")
def test_other_machines_without_a_key_are_warned_of(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(serve, "_run", lambda command, *_: commands.append(command) or 0)
    monkeypatch.delenv("RETEMPER_API_KEY", raising=False)
    assert serve.serve(Settings(host="localhost", port=0, model="warmup", hosts=("search.example",))) == 0
    assert capsys.readouterr().err == ""
    assert "search.example" in commands[0] and "localhost" in commands[0]
    all_addresses = ".".join(["0"] * 4)
    assert serve.serve(Settings(host=all_addresses, port=0, model="warmup")) == 0
    assert "may be reached from other machines, and RETEMPER_API_KEY is not set" in capsys.readouterr().err
    assert "--host" not in commands[1]
    assert serve.serve(Settings(host=all_addresses, port=0, model="warmup", hosts=("search",))) == 0
    assert {"search", "127.0.0.1"} <= set(commands.pop()), "a health check on the machine itself is answered too"
    served = [Path(command[command.index("--served") + 1]) for command in commands]
    assert [path.name.rpartition("-")[0] for path in served] == ["127.0.0.1", all_addresses], "two addresses with one port are two servers"
    assert not any(path.exists() for path in served), "what was served is a copy"


def test_a_server_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of another machine that shares the project; what a killed server left is removed, but nothing of a live one."""
    monkeypatch.chdir(tmp_path)
    killed = serve.FOLDER / platform.node() / "127.0.0.1-4001"
    killed.mkdir(parents=True)
    Path(f"{killed}.lock").touch()
    of_another_user = killed.with_name("127.0.0.1-80.lock")
    of_another_user.mkdir()  # cannot be opened for writing, even by root
    with serve.own_folder("127.0.0.1-8080") as first, monkeypatch.context() as patch:
        first.mkdir()
        assert not killed.exists() and not Path(f"{killed}.lock").exists()
        with serve.own_folder("127.0.0.1-8081") as second:
            assert first.is_dir() and second != first
        patch.setattr(platform, "node", lambda: "elsewhere")
        with serve.own_folder("127.0.0.1-8080") as other:
            assert first.is_dir() and other != first
    of_another_user.rmdir()
    assert [path for path in serve.FOLDER.rglob("*") if path.parent != serve.FOLDER] == []


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_promotion_and_a_rollback_under_load_lose_no_request(crown: Callable[[str], Any], project: Path) -> None:
    """Six clients without a pause. Every answer is what `retemper search` finds with the model that it names."""
    crown("hybrid")
    systems = open_systems(arguments().parse_args(SYSTEMS))
    expected = {}
    for model in ("hybrid", "warmup"):
        for query in QUERIES:
            local = systems.search(query, model, 5)
            expected[model, query] = list(zip(local.documents, map(float, local.scores), strict=True))
    process, url = start(project)
    failed, seen, finished = list[str](), list[str](), threading.Event()

    def ask(number: int) -> None:
        try:
            with httpx.Client(timeout=300) as client:
                while not finished.is_set():
                    query = QUERIES[number % len(QUERIES)]
                    number += 1
                    answer = client.get(f"{url}/search", params={"q": query, "k": 5})
                    body = answer.json()
                    hits = [(hit["id"], hit["score"]) for hit in body.get("hits", [])]
                    if answer.status_code != 200 or hits != expected[body["model"].split()[1], query]:
                        failed.append(answer.text)
                    seen.append(body["model"])
        except Exception as error:
            failed.append(repr(error))

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    try:
        for client in clients:
            client.start()
        cli = [sys.executable, "-c", "import sys; from flows.cli.main import main; sys.exit(main())", "champion"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        for words, label in ((["set", "warmup"], "champion/2 warmup"), (["rollback"], "champion/3 hybrid")):
            subprocess.run([*cli, *words], cwd=project, env=environment, check=True, stdout=subprocess.PIPE)
            deadline = time.monotonic() + 900
            while seen.count(label) < 100 and not failed:
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.1)
        text = httpx.get(f"{url}/metrics", timeout=300).text
        finished.set()
        for client in clients:
            client.join()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        finished.set()
        process.kill()
    assert failed == []
    assert set(seen) == {"champion/1 hybrid", "champion/2 warmup", "champion/3 hybrid"}
    assert 'retemper_swaps_total{result="done"} 2.0' in text and 'status="500"' not in text
    p99 = float(re.findall(r'retemper_latency_seconds{quantile="0.99"} (\S+)', text)[0])
    assert process.returncode == 0, err
    print(f"{len(seen):,} requests, {len(failed)} failed, p99 {1000 * p99:.1f} ms; {out.splitlines()[-1]}")
