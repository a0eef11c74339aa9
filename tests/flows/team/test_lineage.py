"""Lineage from dvc.lock and git: parents, code by commit, what is stale or uncommitted."""

import hashlib
import json
import platform
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from flows.repository.git import git
from flows.storage import cache
from flows.team import lineage
from flows.team.code import Code
from tasks.core.charts.page import POLICY
from tasks.core.errors import UserError, printable
from tasks.core.stage.code import Reader
from tasks.core.stage.references import freeze_references, frozen_references

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def current_toy(finished_toy: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(finished_toy.folder)
    for name, value in finished_toy.environment.items():
        if name.startswith(("GIT_", "DVC_")):
            monkeypatch.setenv(name, value)
    return finished_toy


@pytest.mark.usefixtures("current_toy")
def test_what_made_a_model() -> None:
    first = subprocess.run(["git", "rev-list", "--max-parents=0", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    history = lineage.trace("b")
    assert history.artifact == "data/encoders/b"
    assert (history.revision, history.committed) == ("working tree", False)
    assert [step.stage for step in history.steps] == ["prepare", "train@b"]
    train = history.steps[-1]
    assert train.parents == ("prepare",)
    assert train.params == {"rounds.b": {"value": 2}}
    assert [(file.path, file.made_by, file.note) for file in train.inputs] == [("data/corpus", "prepare", "")]
    assert [(file.path, file.commit) for file in history.steps[0].code] == [("step.py", first)]
    assert train.cached, "the run cache has the time"
    assert history.metrics["dev"]["nDCG@10"] == 0.5
    assert "its dvc.lock is uncommitted" in lineage.as_text(history)
    page = lineage.as_html(history)
    assert "<title>Lineage of data/encoders/b</title>" in page and "<h1>Lineage of data/encoders/b</h1>" in page
    assert f'content="{POLICY}"' in page and 'name="viewport"' in page and "<table" not in page, "fits a phone, and fetches nothing"
    assert re.findall("<h2>(.*?)</h2>", page) == ["train@b", "prepare"]
    assert "<dt>parameters</dt><dd>rounds.b = {&#34;value&#34;: 2}</dd>" in page and "<dt>code</dt><dd>step.py <i>" in page
    assert "&lt;b&gt;" in lineage.as_html(replace(history, artifact="<b>")), "escaped"
    lines = lineage.as_short_text(history).splitlines()
    assert [line.split()[0] for line in lines[lines.index("") + 1 : -2]] == ["train@b", "value", "by", "prepare", "first", "by"]
    assert lines[lines.index("") + 1].endswith("from prepare")
    assert lines[-1] == "commands, code, digests and files: retemper lineage b --all"
    assert "step.py" in lineage.as_text(history)
    assert "step.py" not in "\n".join(lines)

    report = lineage.trace("data/report")
    assert sorted(step.stage for step in report.steps) == ["evaluate@a", "evaluate@b", "prepare", "report", "train@a", "train@b"]
    assert report.steps[-1].parents == ("evaluate@a", "evaluate@b"), "parts of the folder that it reads"
    with pytest.raises(UserError, match=r"^HEAD: found a revision, expected a model, metric or path; .* MODEL --rev HEAD$"):
        lineage.trace("HEAD")
    with pytest.raises(UserError, match="no such model, metric or path; models: a, b"):
        lineage.trace("zebra")


def record_params(params: Any) -> None:
    """Record `params` as those of the first stage."""
    lock = YAML(typ="safe").load(Path("dvc.lock").read_text())
    lock["stages"]["prepare"]["params"] = params
    YAML().dump(lock, Path("dvc.lock"))


@pytest.mark.usefixtures("current_toy")
def test_only_sources_that_were_read_are_named() -> None:
    record_params({"data/source.json": {"dataset.digest": "1", "encoders.e5.digest": "3", "generator.digest": "4"}})
    read_sources = {"dataset": {"source": "demo", "digest": "1"}, "encoders": {"e5": {"source": "me/e5", "digest": "3"}}}
    unread_sources = {"articles": {"source": "demo", "digest": "2"}, "generator": {"source": "", "digest": "4"}}
    Path("data/source.json").write_text(json.dumps(read_sources | unread_sources))
    assert lineage.trace("b").source == {"dataset": read_sources["dataset"], "encoders.e5": {"source": "me/e5", "digest": "3"}}
    lines = lineage.as_short_text(lineage.trace("b")).splitlines()
    assert lines[2:4] == ["dataset: demo  sha256 1", "encoders.e5: me/e5  sha256 3"]


@pytest.mark.usefixtures("current_toy")
def test_parameters_whose_blanks_matter_are_in_quotes() -> None:
    record_params({"params.yaml": {"text": {"separator": " ", "stemmer": "english"}, "query_prefix": ""}})
    assert '  separator " ", stemmer english, query_prefix ""' in lineage.as_short_text(lineage.trace("b")).splitlines()


@pytest.mark.usefixtures("current_toy")
def test_the_short_form_is_printed_unless_the_whole_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    record_params({"data/source.json": {"dataset.digest": "1"}})
    Path("data/source.json").write_text(json.dumps({"dataset": {"source": "demo\x1b", "digest": "1", "files": {"corpus.jsonl": "2"}}}))
    history = lineage.trace("b")
    assert "corpus.jsonl" in lineage.as_text(history)
    assert "corpus.jsonl" not in lineage.as_short_text(history)
    for full, text in ((False, lineage.as_short_text(history)), (True, lineage.as_text(history))):
        lineage.show("b", None, "text", page=None, full=full)
        assert capsys.readouterr().out == f"{printable(text)}\n"


def test_lineage_of_a_revision_and_of_uncommitted_code(current_toy: Any) -> None:
    with pytest.raises(UserError, match=r"no dvc\.lock"):
        lineage.trace("b", "HEAD")
    text = Path("dvc.lock").read_text()
    current_toy.command("git", "add", "dvc.lock")
    current_toy.command("git", "commit", "--quiet", "-m", "computed")
    current_toy.command("git", "tag", "-a", "champion/1", "-m", "first")
    current_toy.command("git", "checkout", "--quiet", "--detach")
    current_toy.command("git", "rm", "--quiet", "--cached", "dvc.lock")
    current_toy.command("git", "commit", "--quiet", "-m", "gone")
    tagged = lineage.trace("b", "champion/1")
    assert tagged.committed
    assert (
        tagged.revision == subprocess.run(["git", "rev-parse", "champion/1^{}"], capture_output=True, text=True, check=True).stdout.strip()
    )
    assert tagged.digest == lineage.trace("b").digest
    lock = text.replace(text[text.index("path: step.py") :].split("md5: ")[1].split("\n")[0], "0" * 32)
    Path("dvc.lock").write_text(
        lock.replace("path: data/corpus\n      hash: md5\n      md5: 2", "path: data/corpus\n      hash: md5\n      md5: 3")
    )
    assert lineage.trace("b").steps[0].code[0].note == "uncommitted"
    with pytest.raises(UserError, match="not found in git"):
        lineage.trace("b", "nowhere")


def test_the_commit_of_code_that_a_parameter_names(current_toy: Any) -> None:
    """The latest one that has it; a later commit of other code is not named."""
    mine = Path("tasks/train/mine.py")
    mine.parent.mkdir(parents=True, exist_ok=True)
    digests, commits = [], []
    for value in (1, 2):
        mine.write_text(f"def loss(): return {value}\n")
        current_toy.command("git", "add", "tasks")
        current_toy.command("git", "commit", "--quiet", "-m", f"loss {value}")
        digests.append(frozen_references(freeze_references("tasks.train.mine:loss", Reader(Path()))).popitem()[1])
        commits.append(subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip())
    code = Code("HEAD")
    assert [code.commit_of_reference("tasks.train.mine:loss", digest) for digest in digests] == commits
    assert code.commit_of_reference("tasks.train.mine:loss", "0" * 16) == "", "uncommitted"
    assert code.commit_of_reference("tasks.train.other:loss", digests[0]) == ""
    lock = YAML(typ="safe").load(Path("dvc.lock"))
    params = lock["stages"]["train@a"].setdefault("params", {}).setdefault("data/params.json", {})
    params["rounds.a"] = {"loss": f"tasks.train.mine:loss@{digests[0]}"}
    with Path("dvc.lock").open("w") as handle:
        YAML(typ="safe").dump(lock, handle)
    step = next(step for step in lineage.trace("a").steps if step.stage == "train@a")
    assert [(file.path, file.commit) for file in step.code if "mine" in file.path] == [("tasks.train.mine:loss", commits[0])]


def test_a_removed_round_made_nothing(reduced_toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reduced_toy.folder)
    for revision in (None, "HEAD"):
        assert [step.stage for step in lineage.trace("data/report", revision).steps] == ["evaluate@a", "report"]
        with pytest.raises(UserError, match="no such model, metric or path"):
            lineage.trace("data/metrics/b.json", revision)


def test_the_digest_of_a_folder_is_dvcs(tmp_path: Path) -> None:
    """The oracle: `dvc add` of the project's own core."""
    folder = tmp_path / "repo"
    shutil.copytree(ROOT / "tasks" / "core", folder / "core", ignore=shutil.ignore_patterns("__pycache__"))
    with Repo.init(str(folder), no_scm=True) as repo:
        added = repo.add(str(folder / "core"))[0].outs[0].hash_info.value
    files = {path.relative_to(folder / "core").as_posix(): cache.file_md5(path) for path in (folder / "core").rglob("*") if path.is_file()}
    assert cache.folder_digest(files) == added
    entries = json.loads((folder / ".dvc/cache/files/md5" / added[:2] / added[2:]).read_text())
    assert cache.listing(folder / ".dvc/cache/files/md5", added) == {entry["relpath"]: entry["md5"] for entry in entries}


def test_a_colleague_sees_who_made_it_and_with_what(finished_toy: Any, tmp_path: Path) -> None:
    assert finished_toy.call("remote", "add", "team", str(tmp_path / "remote")).returncode == 0
    finished_toy.set_rounds(a="1", b="7")
    finished_toy.run()
    finished_toy.command("git", "add", ".dvc/config", "dvc.lock", "params.yaml")
    finished_toy.command("git", "commit", "--quiet", "-m", "computed")
    finished_toy.command("git", "clone", "--quiet", str(finished_toy.folder), str(tmp_path / "clone"))
    project = type(finished_toy)(tmp_path / "clone", finished_toy.environment)
    assert project.call("run").returncode == 0
    for folder in (finished_toy.folder, project.folder):
        result = type(finished_toy)(folder, finished_toy.environment).call("lineage", "data/encoders/b", "--json")
        step = json.loads(result.stdout)["steps"][-1]
        assert step["stage"] == "train@b"
        assert {"by", "at", "commit", "seconds", "environment"} <= step["making"].keys()
        assert step["making"]["environment"]["python"] == platform.python_version()
    output = project.call("lineage", "data/encoders/b", "--all").stdout
    assert re.search(r"by +\S.*, \d{4}-\d\d-\d\d \d\d:\d\d UTC, commit \w{7}.*, [\d.]+ s", output), output
    assert f"python {platform.python_version()}" in output


def test_the_commit_is_that_of_the_code_that_ran(toy: Any) -> None:
    """Someone commits while the run goes on."""
    first = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=toy.folder, text=True).strip()
    toy.set_acts(encoders__a="linger")
    process = toy.start("run")
    toy.wait_for_start("encoders/a")
    toy.command("git", "commit", "--quiet", "--allow-empty", "-m", "meanwhile")
    assert process.wait(300) == 0, process.communicate()
    step = json.loads(toy.call("lineage", "a", "--json").stdout)["steps"][-1]
    assert (step["stage"], step["making"]["commit"]) == ("train@a", first)


def test_the_header_names_no_data_that_the_model_never_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`prepare` has run on another data set since then, or has yet to."""
    monkeypatch.chdir(tmp_path)
    for words in (("init", "--quiet"), ("commit", "--quiet", "--allow-empty", "-m", "one")):
        git(*words)
    stats = {"documents": {"count": 3}, "splits": {"dev": {"queries": 2}}}
    objects = tmp_path / ".dvc/cache/files/md5"

    def add_object(content: str, kind: str = "") -> str:
        oid = hashlib.md5(content.encode()).hexdigest() + kind
        path = cache.object_path(objects, oid)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return oid

    corpus = add_object(json.dumps([{"md5": add_object(json.dumps(stats)), "relpath": "stats.json"}]), ".dir")

    def head(*, recorded: str, read: str) -> list[str]:
        stages = {
            "prepare": {"params": {"data/source.json": {"dataset.digest": recorded}}, "outs": [{"path": "data/corpus", "md5": corpus}]},
            "base": {"params": {"data/source.json": {"encoder.digest": "e"}}, "outs": [{"path": "data/encoders/base", "md5": "b"}]},
            "tokenize": {"deps": [{"path": "data/corpus", "md5": read}], "outs": [{"path": "data/tokens", "md5": "t"}]},
            "train@a": {
                "deps": [{"path": "data/tokens", "md5": "t"}, {"path": "data/encoders/base", "md5": "b"}],
                "outs": [{"path": "data/encoders/a", "md5": "a"}],
            },
        }
        Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
        return list(lineage._head(lineage.trace("a")))[2:]

    sources = {"dataset": {"source": "beir:new", "digest": "d2"}, "encoder": {"source": "x/y", "digest": "e"}}
    Path("data").mkdir()
    Path("data/source.json").write_text(json.dumps(sources))
    encoder, rows = "encoder: x/y  sha256 e", "rows: 3 documents; queries: dev 2"
    assert head(recorded="d2", read=corpus) == ["dataset: beir:new  sha256 d2", encoder, rows]
    assert head(recorded="d1", read=corpus) == [encoder, rows], "prepare has not run on it yet"
    assert head(recorded="d2", read="0.dir") == ["stale: made before data/corpus was replaced", encoder], "tokenize has not"
