"""Real runs of a toy project: which stages run, alongside which others, and what is left when something ends early."""

import errno
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.measuring import timing
from flows.pipeline import flow
from flows.pipeline.plan import Plan
from flows.process.display import Display, Outcome
from flows.process.processes import Processes
from flows.repository.graph import Graph, Stage
from tasks.core.errors import UserError

ALL = {"prepare", "train@a", "train@b", "evaluate@a", "evaluate@b", "report"}
PROBE = (
    "import sys; from flows.cli.main import main; status = main(check=lambda: None); "
    "print('MODULES', status, sorted({name.partition('.')[0] for name in sys.modules} & {'prefect', 'torch', 'transformers', 'dvc'}))"
)


REFUSED = """
import sys
from flows.cli.main import main
from flows.pipeline import splits
def refuse(*_, **__):
    raise splits.Unfit("beir:raw: found no judged queries")
splits.check = refuse
sys.exit(main(check=lambda: None))
"""


def without_server(toy: Any) -> Any:
    return type(toy)(toy.folder, {name: value for name, value in toy.environment.items() if name != "PREFECT_API_URL"})


def is_alive(process: int) -> bool:
    """Whether a process is still doing anything: a zombie is not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


def test_only_what_changed_runs(served_toy: Any, executed: Any, states_of: Any) -> None:
    toy = without_server(served_toy)
    # Neither evaluation ends before the other has begun; the two trainings would overlap if they could.
    served_toy.set_acts(metrics__a="meet metrics/b", metrics__b="meet metrics/a", encoders__a="linger", encoders__b="linger")
    first = served_toy.run()
    assert executed(first) == ALL, "and nothing that the report does not need"
    times = served_toy.times()
    assert times["metrics/b"][0] < times["metrics/a"][1], "independent branches overlap"
    assert times["metrics/a"][0] < times["metrics/b"][1]
    (start_a, end_a), (start_b, end_b) = times["encoders/a"], times["encoders/b"]
    assert end_a <= start_b or end_b <= start_a, "one stage at a time has the device"
    served_toy.set_acts()
    report = (served_toy.folder / "data/report").read_text()

    second = toy.call("run", script=PROBE)
    assert states_of(second.stdout) == dict.fromkeys(ALL, "Cached")
    assert "MODULES 0 ['dvc']" in second.stdout, "where nothing has changed, Prefect is not imported"

    served_toy.set_rounds(a="1", b="2")
    assert executed(served_toy.run()) == {"train@b", "evaluate@b", "report"}
    served_toy.set_rounds(a="1", b="1")
    assert executed(served_toy.run()) == set(), "set back: from the run cache"

    served_toy.set_rounds(a="1", b="1", c="1")
    assert executed(served_toy.run()) == {"train@c", "evaluate@c", "report"}, "finished rounds stay finished"
    served_toy.set_rounds(a="1", b="1", first="two")
    assert executed(served_toy.run()) == ALL, "another data set"
    assert not (served_toy.folder / "data/metrics/c.json").exists(), "a removed round's metrics"
    assert not (served_toy.folder / "data/encoders/c").exists()
    served_toy.set_rounds(a="1", b="1")
    assert executed(served_toy.run()) == set(), "and back"
    assert (served_toy.folder / "data/report").read_text() == report

    result = served_toy.call("run", "--dry-run", "train")
    assert result.stdout.splitlines() == ["0 stages may run: everything is up to date"]
    result = served_toy.call("run", "trian@a")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "trian@a" in result.stderr
    assert "train@a" in result.stderr


def test_two_devices_at_once_are_on_the_timeline(served_toy: Any) -> None:
    """Lag 1's two branches look like these: neither ends before the other has begun. The flow's times are the stages' own."""
    served_toy.set_acts(encoders__a="meet encoders/b", encoders__b="meet encoders/a")
    toy = type(served_toy)(served_toy.folder, served_toy.environment | {"CUDA_VISIBLE_DEVICES": "0,1"})
    toy.run()
    page = (toy.folder / ".retemper/logs/timeline.html").read_text()
    spans = {span["stage"]: span for span in json.loads(re.findall(r'id="spans">(.*?)</script>', page)[0])}
    assert set(spans) == ALL
    assert {spans["train@a"]["device"], spans["train@b"]["device"]} == {"0", "1"}
    assert spans["evaluate@a"]["device"] == ""
    assert spans["train@a"]["start"] < spans["train@b"]["end"]
    assert spans["train@b"]["start"] < spans["train@a"]["end"]
    for name, stage in {"encoders/a": "train@a", "metrics/b": "evaluate@b"}.items():
        began, ended = toy.times()[name]
        assert spans[stage]["start"] - 0.1 <= began < ended <= spans[stage]["end"] + 0.1, "two clocks that agree to some milliseconds"
    toy.set_rounds(a="1", b="2")
    toy.run()
    log = [json.loads(line) for line in (toy.folder / ".retemper/times.jsonl").read_text().splitlines()]
    assert [line["ended"] for line in log if "digest" in line].count("train@a") == 1
    assert [line["ended"] for line in log if "digest" in line].count("train@b") == 2
    page = (toy.folder / ".retemper/logs/timeline.html").read_text()
    assert "train@b" in page
    assert "train@a" not in page, "cached: it did not work"


def test_the_error_of_a_stage_that_runs_alone_is_said_once(served_toy: Any) -> None:
    """The run ends at once and says it."""
    error = "retemper: corpus.tsv:7: found 2 columns, expected 3; add the tab"
    served_toy.set_acts(encoders__a="fail")
    result = served_toy.call("run", "train@a")
    assert (result.returncode, result.stderr.splitlines()[-1]) == (2, error)
    assert "train@a Failed in" in result.stdout and "add the tab" not in result.stdout
    assert error in (served_toy.folder / ".retemper/logs/train@a.log").read_text()


def test_a_failed_stage_fails_only_what_depends_on_it(served_toy: Any, states_of: Any, executed: Any) -> None:
    served_toy.set_acts(encoders__a="fail")
    result = served_toy.call("run")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "retemper: corpus.tsv:7: found 2 columns, expected 3; add the tab"
    expected = {"prepare": "Ran", "train@a": "Failed", "train@b": "Ran", "evaluate@a": "Skipped", "evaluate@b": "Ran", "report": "Skipped"}
    assert states_of(result.stdout) == expected
    assert "executed 3, cached 0, failed 1, skipped 2" in result.stdout

    served_toy.set_acts(encoders__a="crash")
    result = served_toy.call("run")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "retemper: train@a: failed with status 1; its log: .retemper/logs/train@a.log"
    assert "RuntimeError: boom" in (served_toy.folder / ".retemper/logs/train@a.log").read_text()
    assert "Traceback" not in result.stderr

    served_toy.set_acts()
    assert executed(served_toy.run()) == {"train@a", "evaluate@a", "report"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_run_leaves_nothing_alive_and_the_next_one_finishes(served_toy: Any, executed: Any, number: signal.Signals) -> None:
    toy = without_server(served_toy) if number == signal.SIGKILL else served_toy  # with its own server it takes longer
    toy.set_acts(encoders__a="hang", encoders__b="hang")
    run = toy.start("run", "train")
    deadline = time.monotonic() + 300
    marks: list[Path] = []
    while not marks and time.monotonic() < deadline:
        marks = list((toy.folder / ".at_work").glob("encoders_*"))
        time.sleep(0.05)
    assert marks
    stage = int(marks[0].read_text())
    if number == signal.SIGINT:  # someone signals all processes in the folder, and the stage gets it first
        os.kill(stage, number)
    run.send_signal(number)
    output, errors = run.communicate(timeout=300)
    assert toy.wait_for_end(), toy.processes()
    assert run.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        stopped, resumed = errors.strip().splitlines()[-2:]
        assert stopped.startswith("retemper: stopped in train@"), stopped
        assert "finished stages are kept, and the same command resumes" in stopped
        assert "last checkpoint" in resumed
        assert "Traceback" not in output + errors
        logs = [log.read_text() for log in toy.folder.glob(".retemper/logs/*.log")]
        assert "KeyboardInterrupt" not in "".join([output, errors, *logs])
    assert not (toy.folder / "data/encoders").exists() or not list((toy.folder / "data/encoders").iterdir())

    (toy.folder / ".dvc/tmp/rwlock").write_text('{"write": {"/')  # as a kill at the wrong moment leaves it
    toy.set_acts()
    assert executed(served_toy.run("train")) == {"train@a", "train@b"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_killed_dvc_process_takes_its_stage_with_it(served_toy: Any, states_of: Any) -> None:
    served_toy.set_acts(encoders__a="hang")
    run = served_toy.start("run", "train@a")
    stage = served_toy.wait_for_start("encoders/a")
    parents = [stage]
    while "flows.storage.dvc" not in Path(f"/proc/{parents[-1]}/cmdline").read_text():
        parents.append(int(Path(f"/proc/{parents[-1]}/stat").read_text().rpartition(")")[2].split()[1]))
    os.kill(parents[-1], signal.SIGKILL)
    output, errors = run.communicate(timeout=300)
    assert run.returncode == 1
    assert states_of(output)["train@a"] == "Failed"
    assert "train@a" in errors
    assert not is_alive(stage)
    assert served_toy.wait_for_end(), served_toy.processes()


def test_a_lock_file_truncated_by_a_kill_is_restored(served_toy: Any, executed: Any) -> None:
    lock, memory = served_toy.folder / "dvc.lock", served_toy.folder / ".retemper/dvc.lock"
    served_toy.run("train")
    before = lock.read_text()
    served_toy.run()
    assert not memory.exists(), "nothing to fix after a run that ended well"
    content = lock.read_bytes()
    for size in (len(content) // 2 + 3, len(content) - 20):
        lock.write_bytes(content[:size])
        memory.write_text(before)  # as it is during a run
        assert executed(served_toy.run()) == set(), f"{size} bytes: what was finished is in the cache"
        assert lock.read_bytes() == content or set(lock.read_text().split()) == set(content.decode().split())
    lock.write_text("<<<<<<< mine\n" + before)
    memory.write_text(before)
    assert served_toy.call("run").returncode == 2, "a conflict is the user's to settle"


def test_without_any_server_set_up(toy: Any, executed: Any) -> None:
    assert executed(toy.run("prepare")) == {"prepare"}
    assert toy.wait_for_end(), "the embedded server does not outlive the run"


def test_two_clones_share_one_remote(served_toy: Any, tmp_path: Path, executed: Any) -> None:
    remote = tmp_path / "remote"
    assert served_toy.call("remote", "add", "team", str(remote)).returncode == 0
    served_toy.command("git", "commit", "--quiet", "-am", "a remote")
    assert executed(served_toy.run()) == ALL

    def clone(name: str) -> Any:
        folder = tmp_path / name
        served_toy.command("git", "clone", "--quiet", str(served_toy.folder), str(folder))
        shutil.copy(served_toy.folder / "acts.json", folder)
        return type(served_toy)(folder, served_toy.environment)

    other = remote / "runs/ab" / f"ab{'c' * 62}" / ("d" * 64)  # of a stage that no clone here has
    other.parent.mkdir(parents=True)
    other.write_text("cmd: other")

    def records(root: Path, kind: str) -> set[str]:
        return {path.name for path in (root / kind).rglob("*") if path.is_file()}

    uncommitted = clone("uncommitted")  # no dvc.lock: nothing but the run cache says what was computed
    assert not (uncommitted.folder / "dvc.lock").exists()
    assert set(uncommitted.run().values()) == {"Cached"}
    assert (uncommitted.folder / "data/report").read_text() == (served_toy.folder / "data/report").read_text()
    cache = uncommitted.folder / ".dvc/cache"
    assert records(cache, "runs") == records(remote, "runs") - {other.name}, "those of its own stages, and no others"
    assert len(records(cache, "made")) == len(ALL) and records(cache, "made") == records(remote, "made"), "who made them, too"

    served_toy.command("git", "add", "dvc.lock")
    served_toy.command("git", "commit", "--quiet", "-m", "computed")
    committed = clone("committed")
    first = without_server(committed).call("run")
    assert first.returncode == 0, first.stderr
    assert "executed 0, cached 6" in first.stdout
    assert (committed.folder / "data/report").read_text() == (served_toy.folder / "data/report").read_text()
    assert records(committed.folder / ".dvc/cache", "made") == records(remote, "made")

    shutil.rmtree(remote)
    remote.write_text("a file where the remote should be")  # it is unavailable
    served_toy.set_rounds(a="1", b="3")
    result = served_toy.call("run")
    assert result.returncode == 0, result.stderr
    assert "executed 3" in result.stdout
    assert result.stderr.count("retemper: warning: remote team") >= 1
    assert "Traceback" not in result.stderr


def test_a_clone_whose_former_outs_were_collected_takes_the_new_ones(served_toy: Any, tmp_path: Path) -> None:
    """git has replaced dvc.lock, and gc has removed what data/ still has: DVC takes that for unsaved work."""
    assert served_toy.call("remote", "add", "team", str(tmp_path / "remote")).returncode == 0
    served_toy.run()
    served_toy.command("git", "add", ".")
    served_toy.command("git", "commit", "--quiet", "-m", "computed")
    served_toy.command("git", "clone", "--quiet", str(served_toy.folder), str(tmp_path / "clone"))
    clone = type(served_toy)(tmp_path / "clone", served_toy.environment)
    (clone.folder / "acts.json").write_text("{}")
    assert set(clone.run().values()) == {"Cached"}
    served_toy.set_rounds(a="2", b="3")
    served_toy.run()
    served_toy.command("git", "commit", "--quiet", "-am", "computed again")
    clone.command("git", "pull", "--quiet")
    assert clone.call("gc").returncode == 0
    result = clone.call("run")
    assert result.returncode == 0, result.stderr
    assert "executed 0, cached 6" in result.stdout
    assert result.stderr == "", "the remote lacks nothing"
    assert (clone.folder / "data/report").read_text() == (served_toy.folder / "data/report").read_text()


def test_an_unavailable_configured_server_is_reported_in_one_line(finished_toy: Any) -> None:
    toy = type(finished_toy)(finished_toy.folder, finished_toy.environment | {"PREFECT_API_URL": "http://127.0.0.1:9/api"})
    result = toy.call("run")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "retemper: PREFECT_API_URL: no Prefect server answers there (ConnectError); start it, or unset it\n"


def test_a_limit_that_does_not_exist_is_named(served_toy: Any, states_of: Any) -> None:
    """Prefect's error fails the stage that waits for a slot, by name; it was said that Prefect ended the run before the stage."""
    toy = type(served_toy)(served_toy.folder, served_toy.environment | {"RETEMPER_DEVICE_LIMIT": "nowhere"})
    result = toy.call("run", "train@a")
    assert (result.returncode, states_of(result.stdout)) == (1, {"prepare": "Ran", "train@a": "Failed"})
    line = result.stderr.splitlines()[-1]
    assert line.startswith("retemper: train@a: ConcurrencySlotAcquisitionError: ") and "nowhere" in line, line
    assert line.endswith("; its log: .retemper/logs/train@a.log") and "Traceback" not in result.stderr
    assert "Traceback" in (served_toy.folder / ".retemper/logs/train@a.log").read_text()


MISTAKE = UserError("runtime.yaml: workers: found none, expected a number")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MISTAKE, 2, str(MISTAKE)),
        (KeyError("seconds"), 1, "prepare: KeyError: 'seconds'; its log: .retemper/logs/prepare.log"),
        (
            ValueError("https://me:key@host\nends"),
            1,
            "prepare: ValueError: https://***@host ends; its log: .retemper/logs/prepare.log",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 1, "prepare: [Errno 12] Cannot allocate memory"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "prepare: disk: No space left on device; no partial output was kept"),
    ],
)
@pytest.mark.parametrize("by_gate", [False, True])
def test_an_error_outside_a_stages_process_fails_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, message: str, by_gate: bool
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flow.Crew, "_run", (lambda *_: Outcome("Ran", 3.0)) if by_gate else fail)
    graph = Graph({"prepare": Stage("prepare", (), ())})
    crew = flow.Crew(
        Plan(graph, frozenset({"prepare"}), None, False, None),
        Processes(),
        Display(),
        timing.Clock(),
        flow.Devices(graph.stages),
        {},
        fail if by_gate else None,
    )
    outcome = crew.bring_up_to_date("prepare", lambda _: None)
    assert outcome and outcome.problem
    assert (outcome.state, outcome.seconds, outcome.status) == ("Failed", 3.0 if by_gate else 0.0, status)
    assert outcome.problem.message.startswith(message)
    log = tmp_path / ".retemper/logs/prepare.log"
    assert log.exists() == message.endswith(".log") and (not log.exists() or "Traceback" in log.read_text())


def test_a_stage_of_the_users_own_before_prepare(served_toy: Any, executed: Any) -> None:
    """It runs before the gate, as `prepare` does, which reads from it; whatever else reads from it waits for the gate."""
    graph = served_toy.folder / "dvc.yaml"
    download = "  download: {cmd: 'python step.py data/raw ${first}', deps: [step.py], outs: [data/raw]}\n"
    other = "  other: {cmd: 'python step.py data/other x data/raw', deps: [data/raw], outs: [data/other]}\n"
    text = graph.read_text().replace("deps: [step.py]", "deps: [step.py, data/raw]").replace("stages:\n", f"stages:\n{download}{other}")
    graph.write_text(text)
    result = served_toy.call("run", "report", "other", script=REFUSED)
    assert (result.returncode, result.stderr) == (2, "retemper: beir:raw: found no judged queries\n")
    assert set(served_toy.times()) == {"data/raw", "data/corpus"}
    assert executed(served_toy.run("report", "other")) == (ALL | {"other"}) - {"prepare"}
