"""Real retrainings of a toy project (conftest): real git, DVC and Prefect, a source that grows, failures, kills, inboxes."""

import errno
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.champions import champion, history
from flows.champions import tree as retraining_tree
from flows.champions.parts import Parts
from flows.pipeline.run import StagesFailed
from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository.git import GitFailed, git
from flows.retraining import decision, outlook, retrain
from tasks.core.errors import FULL, Problem, UserError
from tasks.core.sources.forgotten import FILE, mark


@pytest.fixture
def served_retraining(retraining: Any, server_url: str) -> Any:
    """The project, with the session's Prefect server set."""
    retraining.environment["PREFECT_API_URL"] = server_url
    return retraining


def test_from_the_first_champion_to_one_that_is_refused(served_retraining: Any) -> None:
    project = served_retraining
    remote = project.folder.parent / "remote.git"
    project.git("init", "--quiet", "--bare", str(remote))
    project.git("remote", "add", "origin", str(remote))
    (project.folder / "params.yaml").write_text((project.folder / "params.yaml").read_text() + "# a dirty tree\n")
    (project.folder / FILE).write_text(f"document {mark('document', 'x')} 2026-11-29\n")  # by retemper forget; not committed yet
    head, before = project.git("rev-parse", "HEAD"), project.git("status", "--porcelain")
    output, warnings = project.call("retrain")
    assert output.splitlines()[-1] == "retraining promoted: a is the first champion"
    assert warnings.startswith("retemper: warning: params.yaml: found uncommitted changes, which this retraining does not use;")
    assert warnings.splitlines()[-1] == "retemper: warning: params.yaml: this retraining did not use the uncommitted changes"
    first = project.champion()
    assert first
    assert (first.number, first.model, first.cause, first.replaced) == (1, "a", "first", None)
    assert first.metrics["dev"]["nDCG@10"] == pytest.approx(0.5 + 0.0095)
    assert project.git("rev-parse", "HEAD") == head, "nobody's branch has moved"
    assert project.git("status", "--porcelain") == before, "nobody's tree has changed"
    assert not (project.folder / "data/corpus").exists()

    assert project.retrain().startswith("retraining unchanged: a is champion/1 itself")
    assert project.champion() == first

    project.add(*[0.9] * 10)
    assert project.retrain().startswith(
        "retraining promoted: a against champion/1: nDCG@10 +0.2000 on dev (20 queries), lower bound +0.0331"
    )
    second = project.champion()
    assert second
    assert (second.number, second.replaced, second.previous, second.cause) == (2, 1, 1, "promoted")
    assert second.digests["encoder"] != first.digests["encoder"]
    assert second.data["digest"] != first.data["digest"]

    project.add(*[0.0] * 20)
    assert project.retrain().startswith("retraining refused: a against champion/2: nDCG@10 -0.3500 on dev")
    assert project.champion() == second

    tip = project.git("rev-parse", "retemper/retraining")
    assert project.git("ls-remote", str(remote), "refs/heads/*").split()[0] == tip, "branch and tags are pushed"
    assert len(project.git("ls-remote", str(remote), "refs/tags/champion/?").splitlines()) == 2
    assert project.git("log", "-1", "--format=%an %ae", tip) == "retemper retemper@localhost", "no identity is needed"
    files = project.git("ls-tree", "-r", "--name-only", second.commit).splitlines()
    assert {"dvc.lock", "params.yaml", "data/source.json", "retraining.json", "dvc.yaml", "forgotten.txt"} <= set(files)
    lock = YAML(typ="safe").load(project.git("show", f"{second.commit}:dvc.lock"))
    assert {out["md5"] for out in lock["stages"]["train@a"]["outs"]} >= {second.digests["encoder"]}
    entries = json.loads(project.call("champion", "--history", "--json")[0])
    assert [entry["result"] for entry in entries] == ["promoted", "unchanged", "promoted", "refused"]
    assert [entry["champion"] for entry in entries] == [1, 1, 2, 2]

    clone = project.folder.parent / "clone"
    project.git("clone", "--quiet", str(remote), str(clone), "--branch", "retemper/retraining")
    assert champion.current(clone) == second, "the lineage is the team's"

    out, _ = project.call("champion", "rollback")
    assert out.startswith("champion/3: a, nDCG@10 0.5095 on dev (rollback)")
    third = project.champion()
    assert third
    assert (third.digests, third.commit) == (first.digests, first.commit)
    assert "champion/3 is champion/1 again, the first champion: nothing before it" in project.call("champion", "rollback", status=2)[1]
    latest = json.loads(project.call("champion", "history", "--json")[0])[-1]
    assert (latest["result"], latest["champion"], latest["reason"]) == ("rollback", 3, "champion/1 again, by hand, in place of champion/2")
    champion.choose(project.folder, "champion/2")
    champion.choose(project.folder, "a")
    current = project.champion()
    assert current
    assert (current.number, current.commit) == (5, tip), "the model of the last retraining"
    assert current.digests["encoder"] not in (first.digests["encoder"], second.digests["encoder"])
    champion.choose(project.folder, f"{second.commit}:a")
    last = project.champion()
    assert last and last.number == 6
    for kind in ("encoders", "indexes"):
        champion.get_out(project.folder, last.commit, f"data/{kind}/a", out=project.folder / "served" / kind)
    assert json.loads((project.folder / "served/encoders/model").read_text()) == pytest.approx(0.7)
    assert (project.folder / "served/indexes").read_text() == "index of a"
    for name, word in (("nobody", "no encoder nobody, expected one of a"), ("nowhere:a", "no commit nowhere")):
        with pytest.raises(UserError, match=word):
            champion.choose(project.folder, name)


def test_a_promotion_with_a_guarantee(served_retraining: Any) -> None:
    """Enough dev queries, one system, which is .2 better on each of them, then worse on each."""
    project = served_retraining
    for split in ("dev", "test"):
        rows = "".join(f"q{n:03}\td0\t1\n" for n in range(200))
        (project.source / f"qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    (project.folder / "retraining.yaml").unlink()  # the defaults
    project.commit()
    first = "retraining promoted: a is the first champion, chosen on the 54 of 200 dev queries that choose (rule guaranteed)"
    assert project.retrain() == first
    project.add(*[0.9] * 10)
    line = project.retrain()
    assert line.startswith("retraining promoted: a against champion/1: nDCG@10 +0.2000 (lower bound +0.1")
    assert line.endswith(" on dev is > -0.0100; better than champion/1 (guaranteed: 146 of 200 dev queries, 0 of them new)")
    current = project.champion()
    assert (current.comparison["rule"], current.comparison["beaten"], list(current.comparison["against"])) == ("guaranteed", [1], ["1"])
    project.add(*[0.0] * 20)
    out, errors = project.call("retrain")
    assert "retraining refused: a against champion/2: nDCG@10 -0.3500" in out.splitlines()[-1]
    assert "dev: cannot tell which queries are newer than champion/2, so none counts as new: data/corpus/qrels/dev.parquet" in errors
    record = history.read_outcome(project.folder, project.git("rev-parse", "retemper/retraining"))
    assert record and record.comparison and record.comparison["promoted"] is False, "a refusal's figures are kept as well"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_failed_a_stopped_and_a_killed_run_leave_the_champion(served_retraining: Any) -> None:
    project = served_retraining
    project.retrain()
    first = project.champion()
    project.add(*[0.9] * 10)
    project.set_act("fail")
    out, errors = project.call("retrain", status=1)
    assert out.splitlines()[-1] == "retraining failed: corpus.jsonl:7: found nothing, expected a number; fix it"
    assert "Traceback" not in errors
    for number in (signal.SIGTERM, signal.SIGKILL):
        project.set_act("hang")
        run = project.start("retrain")
        project.wait_for_start()
        with pytest.raises(UserError, match="another run is in progress in this folder"):
            retrain.retrain(project.folder)
        run.send_signal(number)
        run.wait(timeout=300)
        assert project.wait_for_end(), project.processes()
        assert project.champion() == first
    folder = project.folder / retraining_tree.FOLDER
    git_folder = Path(git("rev-parse", "--absolute-git-dir", folder=folder))
    (git_folder / "index.lock").touch()  # as a kill may leave them
    (project.folder / ".git" / f"{retraining_tree.BRANCH}.lock").touch()
    (folder / "params.yaml").write_text("cut sho")
    project.set_act("")
    assert project.retrain().startswith("retraining promoted")
    entries = json.loads(project.call("champion", "history", "--json")[0])
    assert [entry["result"] for entry in entries] == ["promoted", "failed", "stopped", "killed", "promoted"]
    shutil.rmtree(folder / ".dvc")
    (folder / ".git").unlink()  # half of a worktree
    assert project.retrain().startswith("retraining unchanged")


def test_a_batch_in_the_inbox_and_a_webhook_that_is_away(served_retraining: Any) -> None:
    project = served_retraining
    inbox = project.folder.parent / "inbox"
    (inbox / ".unfinished").mkdir(parents=True)
    (project.folder / "retraining.yaml").write_text("intake: {inbox: ../inbox}\npromotion: {rule: better, metric: nDCG@10}\n")
    project.commit()
    secret = "http://127.0.0.1:9/secret-path"
    out, errors = project.call("retrain", RETEMPER_WEBHOOK=secret)
    assert "RETEMPER_WEBHOOK: could not send the notice of promoted (URLError)" in errors
    assert "secret-path" not in out + errors
    (inbox / "001").mkdir()
    project.add(*[0.7] * 10, folder=inbox / "001")  # the same ids: each document has changed
    (inbox / "000-bad").mkdir()
    (inbox / "000-bad/corpus.jsonl").write_text('{"_id": "d0", "text": "0.1"}\n{"_id": \n')
    out, errors = project.call("retrain", RETEMPER_WEBHOOK=secret)
    assert "nDCG@10 +0.2000" in out, "the bad batch is not in the data set"
    assert f"batch 000-bad: quarantined: 1 malformed line: {inbox / '000-bad/corpus.jsonl'}:2: not JSON" in out.replace("toy/../", "")
    assert "could not send the notice of quarantined" in errors
    batches = json.loads(project.git("show", "retemper/retraining:retraining.json"))["intake"]
    assert [(batch["name"], batch["state"], batch["documents"]) for batch in batches] == [
        ("000-bad", "quarantined", 1),
        ("001", "accepted", 10),
    ]
    listing = json.loads(project.call("intake", "--json")[0])
    assert [batch["state"] for batch in listing] == ["left out", "quarantined", "accepted"]
    assert "cannot be merged" in project.call("intake", "accept", "000-bad", status=2)[1]
    assert "batch 001: accepted" in project.call("intake", "check", str(inbox / "001"))[0]
    project.call("champion", "rollback")
    assert project.retrain() == "retraining refused: a is champion/2, which was rolled back by hand; champion/3 stays"
    (project.folder / "retraining.yaml").write_text("promotion: {rule: bettr}\n")
    project.commit()
    assert project.retrain(status=1).startswith("retraining failed: retraining.yaml: promotion.rule: found 'bettr'")
    project.git("checkout", "--quiet", "--detach")
    for follow, label in (("nowhere", "nowhere"), ("", '--follow ""')):
        out, errors = project.call("retrain", "--follow", follow, status=2)
        assert errors.startswith(f"retemper: {label}: no such commit, branch or tag") and not out, "nothing began"
    assert project.retrain(status=1).startswith("retraining failed: retraining.yaml"), "a detached HEAD is followed as well"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            f"disk: {FULL}; no partial output was kept, make room and run again",
        ),
        (UserError("beir:x: not there;\n give access"), "beir:x: not there; give access"),
        (StagesFailed([Problem("stage", "train@a: failed with status 1", 1)], 1), "train@a: failed with status 1"),
        (RuntimeError("surprise"), "RuntimeError: surprise"),
    ],
)
def test_whatever_goes_wrong_is_one_line_of_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: Exception, message: str
) -> None:
    def fail_retraining(*_: Any, **__: Any) -> Any:
        note = json.loads((tmp_path / history.AT_WORK).read_text())
        assert note["result"] == "killed", "what the next run finds, should this one be killed"
        raise problem

    notices: list[tuple[str, str]] = []
    monkeypatch.setattr(retrain, "_retrain_once", fail_retraining)
    monkeypatch.setattr(retraining_tree, "prepare", lambda *_: retraining_tree.Tree(tmp_path, tmp_path, "", None))
    monkeypatch.setattr(retrain.notify, "notify", lambda event, text, *_, **__: notices.append((event, text)))
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    outcome = retrain.retrain(tmp_path)
    assert (outcome.result, outcome.reason) == ("failed", message)
    assert notices == [("failed", f"{tmp_path.name}: retraining failed: {message}")]
    assert [entry.reason for entry in history.read_history(tmp_path)] == [message]
    assert not (tmp_path / history.AT_WORK).exists()
    assert capsys.readouterr().out.splitlines()[-1] == f"retraining failed: {message}"
    dated = retrain.retrain(tmp_path, dated=True)
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"+00:00 {dated.line}"), "for a log"


def test_a_wrong_key_in_export_yaml_is_a_failure_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a schedule would fail every week without a notice."""
    notices: list[tuple[str, str]] = []
    monkeypatch.setattr(retrain.notify, "notify", lambda event, text, *_, **__: notices.append((event, text)))
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "export.yaml").write_text("wandbb: {}\n")
    outcome = retrain.retrain(tmp_path)
    assert outcome.result == "failed" and outcome.reason.startswith("export.yaml: wandbb: ")
    assert notices == [("failed", f"{tmp_path.name}: retraining failed: {outcome.reason}")]
    assert history.read_history(tmp_path) == [outcome]
    assert not (tmp_path / history.AT_WORK).exists()


def test_a_note_of_a_dead_run_becomes_history_and_one_that_is_cut_short_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retraining_tree, "prepare", lambda *_: (_ for _ in ()).throw(UserError("no")))
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".retemper").mkdir()
    dead = history.Ended("1", "killed", "killed half-way", "2026-01-01T00:00:00+00:00")
    (tmp_path / history.AT_WORK).write_text(json.dumps(asdict(dead)))
    (tmp_path / history.HISTORY).write_text('{"id": "0", "resu\n')  # a full disk
    retrain.retrain(tmp_path)
    assert [entry.result for entry in history.read_history(tmp_path)] == ["killed", "failed"]
    (tmp_path / history.AT_WORK).write_text('{"id": ')
    retrain.retrain(tmp_path)
    assert [entry.result for entry in history.read_history(tmp_path)] == ["killed", "failed", "failed"]


def make_champion(number: int, cause: str, encoder: str, corpus: str = "c1", when: str = "now", **fields: Any) -> champion.Champion:
    digests = {"encoder": encoder, "index": f"{encoder}{corpus}", "corpus": corpus}
    return champion.Champion(number, "a", cause, when, digests=digests, **fields)


COMPARED = "a against champion/1: https://***@host is unavailable"


def test_what_was_taken_back_by_hand_is_told_from_what_is_new() -> None:
    first, second = make_champion(1, "first", "e1"), make_champion(2, "promoted", "e2")
    rollback = make_champion(3, "rollback", "e1")

    def rejected_number(champions: list[champion.Champion], candidate: champion.Champion) -> int | None:
        rejected = champion.find_rejected(champions, Parts({}, candidate.digests, {}))
        return rejected.number if rejected else None

    assert rejected_number([first, second, rollback], second) == 2
    assert rejected_number([first, second, rollback], make_champion(0, "", "e2", "c2")) == 2, (
        "the same encoder over new data is still the one"
    )
    assert rejected_number([first, second, rollback, make_champion(4, "data", "e1", "c2")], make_champion(0, "", "e2", "c2")) == 2
    assert rejected_number([first, second, rollback], make_champion(0, "", "e3")) is None
    assert rejected_number([first, second, rollback], make_champion(0, "", "e1", "c2")) is None, "new data under the current model"
    assert rejected_number([first, second, rollback], rollback) is None
    assert rejected_number([first, second, make_champion(3, "promoted", "e1")], second) is None, "nobody's hand"
    data = make_champion(2, "data", "e1", "c2")
    assert rejected_number([first, data, rollback], data) == 2
    assert rejected_number([], first) is None


@pytest.mark.parametrize(
    ("encoder", "corpus", "changes", "champions", "result", "message"),
    [
        ("e1", "c1", {}, [("first", "e1", "c1")], "unchanged", "a is champion/1 itself"),
        ("e1", "c2", {}, [("first", "e1", "c1")], "promoted", "a is the model of champion/1, with new data"),
        (
            "e2",
            "c1",
            {},
            [("first", "e1", "c1"), ("promoted", "e2", "c1"), ("rollback", "e1", "c1")],
            "refused",
            "which was rolled back by hand",
        ),
        ("e2", "c2", {}, [("first", "e1", "c1")], "refused", COMPARED),
        ("e1", "c1", {"separator": "|"}, [("first", "e1", "c1")], "refused", COMPARED),
        ("e1", "c2", {"separator": "|"}, [("first", "e1", "c1")], "refused", COMPARED),
        ("e1", "c1", {"index": "by other code"}, [("first", "e1", "c1")], "refused", COMPARED),
    ],
)
def test_what_is_done_without_a_test(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    *,
    encoder: str,
    corpus: str,
    changes: dict[str, str],
    champions: Any,
    result: str,
    message: str,
) -> None:
    """A pipeline that made `encoder` over `corpus`; what cannot be done without a comparison fails, and so does the checkout at the end."""
    monkeypatch.chdir(tmp_path)
    outs = {"data/encoders/a": encoder, "data/indexes/a": changes.get("index", f"{encoder}{corpus}"), "data/corpus": corpus}
    tokenize = {"params": {"data/params.json": {"text": {"separator": changes.get("separator", " ")}}}}
    lock = {"stages": {"all": {"outs": [{"path": path, "md5": digest} for path, digest in outs.items()]}, "tokenize": tokenize}}
    Path("dvc.lock").write_text(json.dumps(lock))
    Path("params.yaml").write_text("report: {metric: nDCG@10}\n")
    records = [make_champion(number, *entry, settings={"text": {"separator": " "}}) for number, entry in enumerate(champions, 1)]
    crownings: list[champion.Champion] = []

    def git(*words: str, **_: object) -> str:
        if words[0] == "checkout":
            raise GitFailed("no room")
        return ""

    def refuse_comparison(*_: Any, **__: Any) -> Any:
        raise decision.NotComparable("champion/1: https://me:secret@host is unavailable")

    figures = {"spread": 0.25, "queries": 800, "dev": 1000, "rule": "guaranteed"}
    last = history.Ended("0", "refused", "", "", champion=99, comparison=figures)
    monkeypatch.setattr(history, "read_outcome", lambda *_: last)
    monkeypatch.setattr(retrain, "run_pipeline", lambda *_, targets=(): print("pipeline", *targets))
    monkeypatch.setattr(outlook.shrinkage, "refuse", lambda _, current, most, **__: print(f"champion/{current.number} may lose {most}"))
    seen = "champion/{0.number} is seen before training"
    monkeypatch.setattr(outlook.measurement, "warn_if_not_comparable", lambda _, rival, *__, **___: print(seen.format(rival)))
    monkeypatch.setattr(decision.metrics, "read_metrics", lambda: {"a": {"dev": {"nDCG@10": 0.5}}})
    fusion_flags: list[bool] = []
    monkeypatch.setattr(decision.metrics, "best_model", lambda *_, fused: fusion_flags.append(fused) or "a")
    Path("retraining.yaml").write_text(f"promotion: {{fusions: {str(not changes).lower()}}}\n")
    monkeypatch.setattr(champion, "read_champions", lambda _: records)
    monkeypatch.setattr(champion, "record_of", lambda *_: {})
    monkeypatch.setattr(champion, "crown", lambda _, new, *__: crownings.append(new))
    monkeypatch.setattr(decision, "evaluate_champion", refuse_comparison)
    monkeypatch.setattr(decision, "refuse_other_projects", lambda _: None)
    monkeypatch.setattr(retraining_tree, "git", git)
    monkeypatch.setattr(retraining_tree, "commit", lambda *_: "f" * 40)
    monkeypatch.setattr(retraining_tree, "move", lambda *_: None)
    record = history.Ended("1", "killed", "", "now")
    tree = retraining_tree.Tree(tmp_path, tmp_path, "", "tip")
    outcome = retrain._retrain_once(tmp_path, tree, record, check=lambda: None, processes=Processes(), display=Display())
    out = capsys.readouterr().out.splitlines()
    label = f"champion/{len(records)}"
    told = f"{label} is seen before training"
    assert out[:3] == ["pipeline prepare", f"{label} may lose 0.3", told], "nothing else before the data are known to be whole"
    assert out[3].startswith("promotion (guaranteed): with 1,000 dev queries (800 confirm)"), "said before training"
    assert out[4] == "pipeline"
    assert outcome.result == result
    assert fusion_flags == [not changes], "promotion.fusions says whether a fusion may be the candidate"
    assert message in outcome.reason
    assert "secret" not in outcome.reason
    assert [crowning.cause for crowning in crownings] == (["data"] if result == "promoted" else [])
