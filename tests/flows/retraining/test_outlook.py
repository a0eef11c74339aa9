"""What a retraining would do, said before it trains."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.champions import champion
from flows.champions import tree as retraining_tree
from flows.intake.settings import Intake
from flows.process.display import Display
from flows.process.processes import Processes
from flows.retraining import outlook, plan
from flows.retraining.modes import Choice
from flows.watching.record import BEFORE, read


def files(folder: Path) -> dict[str, bytes]:
    """What a retraining leaves of itself in a project."""
    paths = [
        folder / ".retemper/retrainings.jsonl",
        *(folder / ".retemper").glob("accepted/*"),
        *(folder / ".retemper").glob("quarantine/*"),
    ]
    return {path.name: path.read_bytes() for path in paths if path.exists()}


def test_a_dry_run_names_batches_and_stages_and_leaves_no_trace(retraining: Any, server_url: str) -> None:
    project = retraining
    project.environment["PREFECT_API_URL"] = server_url
    inbox = project.folder.parent / "inbox"
    inbox.mkdir()
    (project.folder / "retraining.yaml").write_text("intake: {inbox: ../inbox}\npromotion: {rule: better, metric: nDCG@10}\n")
    project.commit()
    lines = project.call("retrain", "--dry-run")[0].splitlines()
    assert "retraining: full: retrain.mode" in lines and "the new model becomes the first champion, without a comparison" in lines
    assert lines[-2].endswith(" stages may run (fewer if outputs come out the same or are in the cache)")
    assert files(project.folder) == {}
    assert project.champion() is None
    assert project.retrain() == "retraining promoted: a is the first champion"
    before, champion, refs = files(project.folder), project.champion(), project.git("show-ref")
    assert project.call("retrain", "--dry-run")[0].splitlines()[-1] == "0 stages may run: everything is up to date"

    for name, text in (("001", '{"_id": "new", "text": "0.9"}\n'), ("002-bad", '{"_id": \n')):
        (inbox / name).mkdir()
        (inbox / name / "corpus.jsonl").write_text(text)
    (project.folder / "params.yaml").write_text((project.folder / "params.yaml").read_text() + "# dirty\n")
    out, errors = project.call("retrain", "--dry-run")
    assert "batch 001: accepted, 1 document (1 new)" in out
    assert "batch 002-bad: quarantined: 1 malformed line: " in out
    assert "train@a: about " in out
    assert "the new model is compared with champion/1: a, nDCG@10 " in out and "(first): nDCG@10, promotion.rule better\n" in out
    assert errors.count("params.yaml: found uncommitted changes, which this retraining does not use") == 1
    assert "did not use" not in errors
    assert (files(project.folder), project.champion(), project.git("show-ref")) == (before, champion, refs)
    assert "not checked" in project.call("intake")[0]
    out, _ = project.call("retrain")
    assert "batch 001: accepted" in out
    assert set(files(project.folder)) == {*before, "001.json", "002-bad.json"}


def test_a_batch_that_was_only_looked_at_is_not_missed(retraining: Any, server_url: str) -> None:
    project = retraining
    project.environment["PREFECT_API_URL"] = server_url
    inbox = project.folder.parent / "inbox"
    for name in ("001", "002"):
        (inbox / name).mkdir(parents=True)
        (inbox / name / "corpus.jsonl").write_text(f'{{"_id": "{name}", "text": "0.9"}}\n')
    (project.folder / "retraining.yaml").write_text("intake: {inbox: ../inbox}\npromotion: {rule: better, metric: nDCG@10}\n")
    project.commit()
    project.call("retrain", "--dry-run")
    (inbox / "002/corpus.jsonl").unlink()
    (inbox / "002").rmdir()
    assert "gone from the inbox" not in project.call("retrain")[1]


def test_the_check_of_an_inbox_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("dataset: {source: beir:base}\n")
    for name in ("base", "inbox/1", "inbox/2"):
        Path(name).mkdir(parents=True)
        Path(name, "corpus.jsonl").write_text(f'{{"_id": "{name}", "text": "some"}}\n')
    Path("inbox/2/corpus.jsonl").write_text("{")
    Path("base/queries.jsonl").write_text('{"_id": "q", "text": "what"}\n')
    Path("base/qrels").mkdir()
    Path("base/qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq\tbase\t1\n")
    pages: list[Any] = []
    check = outlook.inbox.take_in

    def watch_check(*arguments: Any, doing: Any, **options: Any) -> Any:
        pages.append(read(BEFORE))

        def record_line(line: str) -> None:
            pages.append(line)
            doing(line)

        return check(*arguments, doing=record_line, **options)

    monkeypatch.setattr(outlook.inbox, "take_in", watch_check)
    outlook.take_in(Intake(inbox="inbox"), tmp_path, Display(), processes=Processes())
    first, *lines = pages
    assert [(stage.name, stage.state) for stage in first.stages] == [("checking batches", "running")] and first.part
    assert lines == [
        "inbox: 0/2 batches, 0 accepted, 0 quarantined; now 1",
        "inbox: 1/2 batches, 1 accepted, 0 quarantined; now 2",
        "inbox: 2/2 batches, 1 accepted, 1 quarantined; now merging",
    ]
    last = read(BEFORE)
    assert last is not None and last.is_done and last.stages[0].said == lines[-1]
    BEFORE.unlink()
    monkeypatch.setattr(outlook.inbox, "take_in", check)
    outlook.take_in(Intake(), tmp_path, Display(), processes=Processes())
    assert not BEFORE.exists(), "there is no inbox"


@pytest.mark.parametrize(
    ("shrink", "mode", "lasting", "limits"),
    [
        ("0.4", "full", True, [0.4]),
        ("null", "full", True, []),
        ("0.4", "full", False, []),
        ("0.4, retrain: {mode: auto}", "full", False, [0.4]),
        ("0.4", "index", False, [0.4]),
        ("0.4", "skip", True, [0.4]),
        ("null", "index", False, []),
    ],
)
def test_what_the_data_set_may_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shrink: str, mode: Any, lasting: bool, limits: list[float]
) -> None:
    """Null: anything. A dry run prepares no data in mode full, so there is nothing to compare; auto has prepared them to choose it.

    Mode skip looks as well: a delivery that lost half of its dev queries, say, has no new document and no new training query.
    """
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("report: {metric: nDCG@10}\n")
    intake, _, other = shrink.partition(", ")
    Path("retraining.yaml").write_text(f"intake: {{shrink: {intake}}}\n{other}\n")
    current = champion.Champion(1, "a", "first", "then")
    for place, name, value in (
        (champion, "read_champions", [current]),
        (champion, "with_settings", [current]),
        (outlook.plan, "make", plan.Planned(Choice(mode, "it is a test"), {})),
        (outlook.measurement, "warn_if_not_comparable", None),
        (outlook.power, "foresee", ""),
    ):
        monkeypatch.setattr(place, name, lambda *_, value=value, **__: value)
    checked: list[float] = []
    monkeypatch.setattr(outlook.shrinkage, "refuse", lambda *arguments, **_: checked.append(arguments[2]))
    tree = retraining_tree.Tree(tmp_path, tmp_path, "", None)
    outlook.look(tmp_path, tree, bring=lambda **_: None, processes=Processes(), display=Display(), lasting=lasting)
    assert checked == limits


@pytest.mark.parametrize(
    ("queries", "mode", "lasting", "happened"),
    [
        ("corpus", "full", True, ["prepare", "foresee data/corpus"]),
        ("corpus", "index", True, ["foresee data/corpus"]),
        ("corpus", "full", False, []),
        ("corpus", "index", False, ["foresee data/corpus"]),
        ("corpus", "skip", True, []),
        ("pseudo", "full", True, ["prepare"]),
    ],
)
def test_a_first_retraining_looks_at_its_dev_queries_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, queries: str, mode: Any, lasting: bool, happened: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(f"report: {{metric: nDCG@10}}\nqueries: {queries}\n")
    happenings: list[str] = []
    for name in ("read_champions", "with_settings"):
        monkeypatch.setattr(champion, name, lambda *_: [])
    monkeypatch.setattr(outlook.plan, "make", lambda *_, **__: plan.Planned(Choice(mode, "it is a test"), {}))
    monkeypatch.setattr(outlook.evidence, "foresee", lambda corpus, *_, **__: happenings.append(f"foresee {corpus}"))
    tree = retraining_tree.Tree(tmp_path, tmp_path, "", None)
    outlook.look(
        tmp_path, tree, bring=lambda targets: happenings.extend(targets), processes=Processes(), display=Display(), lasting=lasting
    )
    assert happenings == happened


@pytest.mark.parametrize(("rule", "expected"), [("guaranteed", [(2, "crown"), (1, "set promotion.anchor")]), ("not_worse", [(2, "crown")])])
def test_each_champion_that_a_new_model_may_be_compared_with_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, expected: list[tuple[int, str]]
) -> None:
    """An earlier one that cannot be measured would refuse each new model, after each training."""
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("report: {metric: nDCG@10}\n")
    Path("retraining.yaml").write_text(f"promotion: {{rule: {rule}}}\n")
    digests = [{"encoder": f"e{number}"} for number in (1, 2)]
    champions = [
        champion.Champion(1, "a", "first", "then", digests=digests[0]),
        champion.Champion(2, "a", "set", "then", digests=digests[1]),
    ]
    for place, name, value in (
        (champion, "read_champions", champions),
        (champion, "with_settings", champions),
        (outlook.plan, "make", plan.Planned(Choice("full", "it is a test"), {})),
        (outlook.shrinkage, "refuse", None),
        (outlook.power, "foresee", ""),
    ):
        monkeypatch.setattr(place, name, lambda *_, value=value, **__: value)
    seen: list[tuple[int, str]] = []
    look = outlook.measurement
    monkeypatch.setattr(look, "warn_if_not_comparable", lambda _, rival, way_out, **__: seen.append((rival.number, way_out)))
    tree = retraining_tree.Tree(tmp_path, tmp_path, "", None)
    outlook.look(tmp_path, tree, bring=lambda **_: None, processes=Processes(), display=Display())
    assert [(number, way_out.startswith(begin)) for (number, way_out), (_, begin) in zip(seen, expected, strict=True)] == [
        (number, True) for number, _ in expected
    ]


def test_relative_sources_are_found_from_the_worktree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, tree = tmp_path / "project", tmp_path / "project/tree"
    (project / "ce").mkdir(parents=True)
    tree.mkdir()
    monkeypatch.chdir(tree)
    Path("params.yaml").write_text(
        "dataset: {source: demo}\nencoder: {source: some/model}\narticles: {source: 'dump:wiki'}\nrerankers: {s: {source: ./ce}}\n"
    )
    assert outlook.take_in(Intake(), project, Display(), processes=Processes()) is None
    params = YAML(typ="safe").load(Path("params.yaml").read_text())
    assert params["dataset"]["source"] == "demo"
    assert params["encoder"]["source"] == "some/model"
    assert params["articles"]["source"] == f"dump:{project / 'wiki'}"
    assert params["rerankers"]["s"]["source"] == str(project / "ce")
