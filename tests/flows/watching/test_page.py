"""What the page shows of a run, as HTML."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from flows.watching import page
from flows.watching.page import LAST_LINES, last_lines, parts, shell, summary
from flows.watching.record import RunNow, StageNow
from flows.watching.runs import Seen
from tasks.core.charts.curves import load_curves, read_tsv
from tasks.core.files import write_json

STAGES = (
    StageNow("prepare", "cached"),
    StageNow("train@a", "ran", None, 10.0, 40.0),
    StageNow("evaluate@a", "ran", None, 40.0, 50.0),
    StageNow("train@b", "running", 120.0, 50.0, said="train b: 30/40 steps, <3/s>"),
    StageNow("evaluate@b"),
)
RUN = RunNow("retemper run", 7, 1.0, "host", 10.0, STAGES)


def seen_run(folder: Path, run: RunNow = RUN, alive: bool = True) -> Seen:
    return Seen("this folder", folder, run, alive, recorded_at=60.0)


def test_a_summary_for_each_state(tmp_path: Path) -> None:
    assert summary(seen_run(tmp_path), 80.0) == "running, 3 of 5 stages, 1m10s, about 1m40s left", "evaluate@b as long as evaluate@a"
    without_estimate = replace(RUN, stages=(*STAGES[:-1], StageNow("report")))
    assert (
        summary(seen_run(tmp_path, without_estimate), 80.0) == "running, 3 of 5 stages, 1m10s, about 1m30s and 1 stage of unknown time left"
    )
    with_estimates = replace(RUN, stages=STAGES[:-1])
    assert summary(seen_run(tmp_path, with_estimates), 80.0) == "running, 3 of 4 stages, 1m10s, about 1m30s left"
    expected = "running, 3 of 5 stages, 1m10s, about 1m40s left of these stages; the command continues after that"
    assert summary(seen_run(tmp_path, replace(RUN, part=True)), 80.0) == expected
    expected = "running, 0 of 1 stage (train@b), 1m10s, about 1m30s left of this stage; the command continues after that"
    assert summary(seen_run(tmp_path, replace(RUN, stages=STAGES[3:4], part=True)), 80.0) == expected
    two_trainings = replace(RUN, stages=(*STAGES[:-1], replace(STAGES[3], name="train@c")))
    assert summary(seen_run(tmp_path, two_trainings), 80.0) == "running, 3 of 5 stages, 1m10s, at most 3m00s left", "one after another"
    assert (
        summary(seen_run(tmp_path, replace(RUN, stages=STAGES[-1:])), 80.0)
        == "running, 0 of 1 stage (evaluate@b), 1m10s, time left unknown"
    )
    late = replace(RUN, stages=(StageNow("train@b", "running", 20.0, 50.0),))
    assert summary(seen_run(tmp_path, late), 80.0) == "running, 0 of 1 stage (train@b), 1m10s", "later than estimated, so nothing is known"
    killed = seen_run(tmp_path, alive=False)
    expected = "killed (its process is gone), 3 of 5 stages, 50.0 s; the same command resumes"
    assert summary(killed, 999.0) == expected, "until the last that was written of it"
    assert '<h2>train@b <span class="note">10.0 s of about 2m00s</span></h2>' in parts([], killed, 999.0)["now"]
    assert 'class="took">10.0 s, running<' in parts([], killed, 999.0)["stages"]
    expected = "running, 3 of 5 stages, 2m40s, about 1m00s and 1 stage of unknown time left, nothing heard for 1m50s"
    assert (
        summary(replace(killed, alive=True, run=replace(RUN, stages=(*STAGES[:3], StageNow("x", estimate=60.0), StageNow("y")))), 170.0)
        == expected
    )
    local_run = replace(RUN, host=socket.gethostname())
    assert "nothing heard" not in summary(seen_run(tmp_path, local_run), 999.0), "its process was asked"
    ended_run = replace(RUN, ended=70.0, stages=STAGES[:3])
    assert summary(seen_run(tmp_path, ended_run, alive=False), 999.0) == "done, 3 of 3 stages, 1m00s"
    comparing = replace(seen_run(tmp_path, ended_run, alive=False), continues=True)
    assert summary(comparing, 999.0) == "done, 3 of 3 stages, 1m00s; the command continues"


def test_a_tree_that_is_gone_leaves_what_is_shown(tmp_path: Path) -> None:
    sections = parts([seen_run(tmp_path)], None, 80.0, place=".retemper/<gone>")
    assert sections.keys() == {"runs", "state"}
    assert "No run in .retemper/&lt;gone&gt;" in sections["state"] and '<a href="?place=this%20folder">' in sections["runs"]


def test_what_is_spoken_changes_with_stages_alone(tmp_path: Path) -> None:
    assert parts([], seen_run(tmp_path), 80.0)["spoken"] == parts([], seen_run(tmp_path), 90.0)["spoken"] == "running, 3 of 5 stages"
    assert parts([], seen_run(tmp_path), 80.0)["state"] != parts([], seen_run(tmp_path), 90.0)["state"]
    assert shell("x").count('role="status"') == 1


def test_what_runs_has_its_progress_and_its_log(tmp_path: Path) -> None:
    logs = tmp_path / ".retemper/logs"
    logs.mkdir(parents=True)
    (logs / "train@b.log").write_text("of the run before\n")
    (logs / ".train@b.log.partial").write_text("".join(f"line {n}\n" for n in range(99)) + "an <odd> one\n")
    section = parts([seen_run(tmp_path)], seen_run(tmp_path), 80.0)["now"]
    assert '<progress max="1" value="0.7500" aria-label="train@b">' in section and "30.0 s of about 2m00s" in section
    assert "train b: 30/40 steps, &lt;3/s&gt;" in section and "an &lt;odd&gt; one" in section, "escaped"
    assert "line 98" in section and "of the run before" not in section and f"line {98 - LAST_LINES}" not in section
    assert section.count("<article") == 1
    (logs / ".train@b.log.partial").unlink()
    assert last_lines(tmp_path, "train@b") == ["of the run before"] and last_lines(tmp_path, "prepare") == []


def test_a_failed_stage_says_why(tmp_path: Path) -> None:
    failed = replace(RUN, ended=70.0, stages=(*STAGES[:3], StageNow("train@b", "failed", None, 50.0, 60.0, problem="no <file>")))
    sections = parts([], seen_run(tmp_path, failed, alive=False), 80.0)
    assert "no &lt;file&gt;" in sections["now"] and 'class="failed"' in sections["now"] and "<progress" not in sections["now"]
    assert '<b class="failed">failed, 3 of 4 stages' in sections["state"]


def test_bars_curves_and_results(tmp_path: Path) -> None:
    loss = tmp_path / "data/curves/a/plots/metrics/train/loss.tsv"
    loss.parent.mkdir(parents=True)
    loss.write_text("step\tloss\n0\t1.5\n1\t0.75\n")
    for name, value in (("a", 0.75), ("old", 0.99)):
        write_json(tmp_path / f"data/metrics/{name}.json", {"dev": {"nDCG@10": value}, "test": {"nDCG@10": 0.125}})
    sections = parts([], seen_run(tmp_path), 80.0)
    assert '<i class="ran" style="left:0.00%;width:42.86%">' in sections["stages"], "30 of 70 seconds"
    assert '<i class="running" style="left:57.14%;width:42.86%">' in sections["stages"]
    assert "<b>From the cache (1)</b> prepare" in sections["stages"] and "<b>Waiting (1)</b> evaluate@b" in sections["stages"]
    assert '"y":0.75' in sections["charts"] and "loss over steps" in sections["charts"]
    assert "0.7500" in sections["results"] and "0.9900" not in sections["results"], "of this run's systems alone"
    assert "0.1250" not in sections["results"], "on dev: models are chosen by it"
    (tmp_path / "data/curves/.b.partial").mkdir()
    loss.parents[2].rename(tmp_path / "data/curves/.b.partial/plots")
    assert '"name":"b"' in parts([], seen_run(tmp_path), 80.0)["charts"], "of a training at work"
    (tmp_path / "data/metrics/a.json").write_text("{")
    assert parts([], seen_run(tmp_path), 80.0)["results"] == ""


def test_curves_that_are_not_shown_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks every two seconds, and a long training's curves have megabytes."""
    plots = tmp_path / "data/curves/a/plots/metrics"
    for name in ("train/loss", "train/lr", "train/validation", "validation/nDCG@10", "validation_loss/x"):
        (plots / name).parent.mkdir(parents=True, exist_ok=True)
        (plots / f"{name}.tsv").write_text("step\tvalue\n0\t1.5\n")
    names = []

    def read(path: Path) -> list[tuple[float, float]]:
        names.append(path.relative_to(plots).as_posix())
        return read_tsv(path)

    monkeypatch.setattr("tasks.core.charts.curves.read_tsv", read)
    assert list(page.live_curves(tmp_path / "data/curves", ["a"])) == ["loss", "validation nDCG@10"]
    assert names == ["train/loss.tsv", "validation/nDCG@10.tsv"]


def test_results_of_every_kind_of_system(tmp_path: Path) -> None:
    stages = ("evaluate_bm25", "evaluate@a", "evaluate_adore@b", "evaluate_fuse@c", "evaluate_rerank@d", "evaluate_rescore@e")
    names = ("bm25", *"abcdef")
    for number, name in enumerate(names, 1):
        write_json(tmp_path / f"data/metrics/{name}.json", {"dev": {"nDCG@10": number / 16}})
    run = replace(RUN, stages=tuple(StageNow(name, "ran", None, 10.0, 20.0) for name in stages))
    section = parts([], seen_run(tmp_path, run), 80.0)["results"]
    assert [f"{number / 16:.4f}" in section for number in range(1, 8)] == [True] * 6 + [False], "f was not measured by this run"
    assert [f">{name}<" in section for name in names] == [True] * 6 + [False]


def test_curves_and_results_that_are_replaced_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished training's folder is renamed; the page still answers, with the curves under the new name."""
    path = tmp_path / "data/curves/a/plots/metrics/train/loss.tsv"
    path.parent.mkdir(parents=True)
    path.write_text("step\tloss\n0\t1.5\n")

    def read(folder: Path, names: list[str], _: object) -> object:
        if names != ["a"]:
            raise FileNotFoundError(folder / names[0])
        return load_curves(folder, names)

    def raise_not_found(_: Path) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(page, "load_curves", read)
    monkeypatch.setattr("flows.watching.page.metrics.read_metrics", raise_not_found)
    sections = parts([], seen_run(tmp_path), 80.0)
    assert '"y":1.5' in sections["charts"] and sections["results"] == ""


def test_a_page_of_a_run_that_ended_leads_to_its_report(tmp_path: Path) -> None:
    (tmp_path / ".retemper").mkdir()
    (tmp_path / ".retemper/report.html").write_text("a report")
    ended_run = seen_run(tmp_path, replace(RUN, ended=70.0), alive=False)
    other_run = Seen(".retemper/tree", tmp_path, replace(RUN, command="retemper sweep grid.yaml: lr=1"), True, 60.0)
    sections = parts([other_run, ended_run], ended_run, 80.0)
    assert '<a href="report?place=this%20folder"' in sections["state"] and "timeline" not in sections["state"]
    assert (
        '<a href="?place=.retemper/tree">retemper sweep grid.yaml: lr=1</a> <span class="note">.retemper/tree, running<' in sections["runs"]
    )
    assert '<a href="?place=this%20folder" aria-current="page">' in sections["runs"]
    assert "report?" not in parts([ended_run], seen_run(tmp_path), 80.0)["state"], "it is of an earlier run while this one goes on"
    assert parts([], None)["state"].startswith("<p>No run")
    assert "connect-src &#39;self&#39;" in shell("<b>") or "connect-src 'self'" in shell("<b>")
    assert "<h1>&lt;b&gt;</h1>" in shell("<b>")
