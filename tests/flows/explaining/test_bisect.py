"""`retemper bisect`: simulated trainings with noise, and a real search in the toy project."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats

from flows.champions import tree
from flows.champions.champion import Champion
from flows.explaining import bisect
from flows.explaining.bisect import Culprit, Range, Train, Tried, model_of, search
from flows.explaining.bisect import text as told_of
from flows.explaining.runs import Measured
from flows.explaining.search import Search, Z, mean_and_error
from flows.process import locks
from flows.repository.git import git
from flows.repository.worktree import SOURCE
from flows.storage.cache import objects
from tasks.core.errors import UserError

NAMES = [f"b{number:02}" for number in range(16)]
WHOLE = Range(NAMES, 0, 16)


def trainings(bad: int, drop: float, *, noise: float, seed: int) -> tuple[Train, list[int]]:
    """A training whose model loses `drop` from batch `bad` on, with noise by query and by seed; and what was trained."""
    draw = random.Random(seed)
    base = [draw.uniform(0, 1) for _ in range(500)]
    counts: list[int] = []

    def train(count: int, repetition: int) -> Measured:
        counts.append(count)
        generator = random.Random(f"{seed} {count} {repetition}")
        shift = generator.gauss(0, noise) + 0.0005 * count - (drop if count >= bad else 0)
        values = {f"q{number}": value + shift + generator.gauss(0, 0.1) for number, value in enumerate(base)}
        return Measured(math.fsum(values.values()) / len(values), values, {})

    return train, counts


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_batch_among_sixteen_is_found_in_five_retrainings(seed: int) -> None:
    """20 of 20. Both ends were retrainings before: the champion, and the one that was refused."""
    bad = random.Random(seed).randint(1, 16)
    train, counts = trainings(bad, 0.05, noise=0.004, seed=seed)
    result = search(WHOLE, train)
    assert result.batch == bad
    assert counts[:2] == [0, 16]
    assert len(counts) - 2 <= 5
    assert result.probability >= Search.SURE
    assert result.queries == 500


@pytest.mark.parametrize("bad", range(1, 17))
def test_without_noise_it_is_plain_bisection(bad: int) -> None:
    train, counts = trainings(bad, 0.2, noise=0, seed=1)
    assert search(WHOLE, train).batch == bad
    assert len(counts) - 2 == 4


def test_a_noisy_figure_is_not_trusted_alone() -> None:
    """With noise half as large as the drop, prefixes are trained again, with other seeds, and the bad batch is found all the same."""
    correct, repeated = 0, 0
    for seed in range(20):
        bad = random.Random(seed).randint(1, 16)
        bisection = Search(16, -1.0)
        draw = random.Random(seed)
        while not bisection.sure:
            count = bisection.next()
            bisection.add(count, (-1.0 if count >= bad else 0.0) + draw.gauss(0, 0.5), 0.5)
        correct += bisection.best == bad
        repeated += len(bisection.seen) > 4
    assert correct >= 18
    assert repeated >= 15


def test_the_posterior_by_hand() -> None:
    bisection = Search(2, -1.0)
    assert bisection.posterior() == [0.5, 0.5]
    assert bisection.next() == 1
    bisection.add(1, -0.75, 0.5)  # of the first batch alone: 0.25 from the drop, 0.75 from none, with a scale of 0.5
    bad, good = stats.t.pdf([0.25 / 0.5, 0.75 / 0.5], 5)
    assert bisection.posterior()[0] == pytest.approx(bad / (bad + good))
    assert bisection.best == 1


def test_no_loss_is_no_batch() -> None:
    train, counts = trainings(99, 0.05, noise=0.001, seed=3)
    result = search(WHOLE, train)
    assert result.batch is None
    assert counts == [0, 16]
    better, _ = trainings(5, -0.05, noise=0.001, seed=3)
    assert search(WHOLE, better).batch is None
    assert search(WHOLE, better, fewer=True).batch == 5, "of a measure that counts mistakes, more is worse"


def test_the_search_begins_after_the_good_batches() -> None:
    train, counts = trainings(12, 0.05, noise=0.001, seed=4)
    result = search(Range(NAMES, 10, 14), train)
    assert result.batch == 12
    assert counts[:2] == [10, 14]
    assert set(counts[2:]) <= {11, 12, 13}


def test_the_seed_noise_that_an_answer_bears_is_told() -> None:
    train, _ = trainings(5, 0.05, noise=0.001, seed=5)
    result = search(WHOLE, train)
    lines = told_of(result, WHOLE, what="nDCG@10 of star", trained=4).splitlines()
    assert lines[-3].startswith("bad batch: b04 (probability ")
    assert f"moves the mean by less than {abs(result.drop) / 10:.4f}, a tenth of the drop" in lines[-2]


def test_a_loss_of_several_batches_is_told() -> None:
    """The search is for one batch; where a prefix costs a part of the drop, beyond the noise, a second one is likely."""

    def report(part: float) -> str:
        result = Culprit(2, 0.99, drop=-0.12, error=0.01, queries=80, tried=[Tried(1, -0.001, 0.01), Tried(2, part, 0.01)])
        return told_of(result, Range(NAMES, 0, 4), what="AP of a", trained=4)

    assert (
        "the first 2 batches account for -0.0600 of -0.1200, so more than one batch may be bad: leave b01 out, and search again\n"
        in report(-0.06)
    )
    lines = report(-0.06).splitlines()
    assert "(up to 0.0164 may be chance, 80 queries)" in lines[0], "1.645 errors, below which a difference decides nothing"
    assert lines[1].split() == ["batches", "last", "batch", "difference", "noise", "looks"]
    for within_noise in (-0.11, -0.12, -0.15, -0.016):
        assert "more than one batch" not in report(within_noise)


def test_an_error_is_that_of_groups() -> None:
    mean, error = mean_and_error({"a": 0.0, "b": 0.25, "c": 0.5}, {})
    assert mean == pytest.approx(0.25)
    assert Z * error == pytest.approx(stats.t.ppf(0.95, 2) * 0.25 / math.sqrt(3), rel=1e-3)
    mean, error = mean_and_error({"a": 0.0, "b": 0.2, "c": 0.7}, {"b": "a", "a": "a"})
    sums = (0.2 - 2 * 0.3, 0.7 - 0.3)  # of two groups, {a, b} and {c}: deviations from the mean, 0.3
    assert mean == pytest.approx(0.3)
    jackknife = math.sqrt(1 / 2 * ((sums[0] / 1) ** 2 + (sums[1] / 2) ** 2))
    assert Z * error == pytest.approx(stats.t.ppf(0.95, 9 / 5 - 1) * jackknife, rel=1e-3)


@pytest.mark.parametrize(("differences", "groups"), [({"a": -0.5}, {}), ({"a": -0.5, "b": -0.4}, {"a": "a", "b": "a"})])
def test_one_group_is_no_evidence(differences: dict[str, float], groups: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"^dev: found (one query|2 of 2 queries that share .*), expected at most 80% in one group"):
        mean_and_error(differences, groups)


def test_a_few_queries_that_agree_are_no_certain_evidence() -> None:
    """Two queries lose 0.01 each: with a chance of 5%, 78% of the others differ. Of 1,000, 0.3%."""
    for count, bound in ((2, 1 - math.sqrt(0.05)), (1000, 1 - 0.05**0.001)):
        mean, error = mean_and_error(dict.fromkeys(map(str, range(count)), -0.01), {})
        assert (mean, 1.645 * error) == pytest.approx((-0.01, 1.01 * bound))

    def train(count: int, _: int) -> Measured:
        return Measured(0.6, dict.fromkeys("ab", 0.59 if count > 4 else 0.6), {})

    assert search(Range(NAMES[:8], 0, 8), train).batch is None


def test_queries_that_share_documents_are_no_independent_evidence() -> None:
    """Without any effect, one search in twenty finds a drop. 60 groups of 5 queries, design effect 1.8: as if independent, one in nine."""
    groups = {f"q{number}": f"q{number // 5 * 5}" for number in range(300)}
    drops = 0
    for seed in range(400):
        draw = random.Random(seed)
        shared = [draw.gauss(0, math.sqrt(0.2)) for _ in range(60)]
        lost = {query: shared[number // 5] + draw.gauss(0, math.sqrt(0.8)) for number, query in enumerate(groups)}
        mean, error = mean_and_error(lost, groups)
        drops += mean + Z * error < 0
    assert 0.03 < drops / 400 < 0.075


@pytest.mark.parametrize("largest", [150, 240])
def test_one_group_with_most_queries_is_no_certain_evidence(largest: int) -> None:
    """Of 300 queries so many share documents: with the error of groups of one size, one search in ten to five finds a drop."""
    groups, drops = {f"q{number}": "q0" for number in range(largest)}, 0
    for seed in range(400):
        draw = random.Random(seed)
        mean, error = mean_and_error({f"q{number}": draw.gauss(0, 1) for number in range(300)}, groups)
        drops += mean + Z * error < 0
    assert drops / 400 < 0.075


def test_a_prefix_on_which_no_query_changes_is_without_the_drop() -> None:
    """Few queries: what other queries may do unseen says nothing about where the drop of these is."""

    def train(count: int, _: int) -> Measured:
        return Measured(0.5, {f"q{number}": 0.5 - (0.02 + number / 1000) * (count > 5) for number in range(30)}, {})

    result = search(Range(NAMES[:8], 0, 8), train)
    assert result.batch == 6 and result.probability >= Search.SURE and len(result.tried) == 3


def test_queries_that_tell_no_noise_are_refused_after_one_training() -> None:
    trained = []

    def train(count: int, _: int) -> Measured:
        trained.append(count)
        return Measured(0.5, dict.fromkeys("abc", 0.5), dict.fromkeys("abc", "a"))

    with pytest.raises(UserError, match="found 3 of 3 queries that share relevant documents"):
        search(Range(NAMES[:8], 0, 8), train)
    assert trained == [0]


def test_queries_of_a_click_log_are_left_out() -> None:
    """They favor the model that showed their documents."""

    def train(count: int, _: int) -> Measured:
        lost = 0.3 if count > 3 else 0.0
        values = {f"q{number}": 0.5 + number / 1000 * bool(count) for number in range(20)}
        return Measured(0.5, values | {f"click-{number:016x}": 0.5 - lost for number in range(80)}, {})

    result = search(Range(NAMES[:8], 0, 8), train)
    assert (result.batch, result.queries) == (None, 20)


@pytest.mark.parametrize(
    ("adore", "origins", "expected"),
    [
        ({"tower": {}}, {"tower_queries": "tower", "tower_documents": "tower"}, "tower"),
        ({"tower": {}, "tower_queries": {}}, {"tower_queries": "tower"}, "tower_queries"),
        ({"tower": {}}, {}, "tower_queries"),
    ],
)
def test_a_champion_that_was_trained_further_is_searched_as_the_model_that_it_comes_from(
    adore: dict[str, Any], origins: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet", folder=tmp_path)
    record = {"id": "1", "result": "promoted", "reason": "", "when": "now", "how": {"mode": "query_tower", "origins": origins}}
    (tmp_path / tree.RECORD).write_text(json.dumps(record))
    git("add", tree.RECORD, folder=tmp_path)
    git("-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--quiet", "-m", "one", folder=tmp_path)
    current = Champion(1, "tower_queries", "promoted", "now", commit=git("rev-parse", "HEAD", folder=tmp_path).strip())
    assert model_of(current, {"rounds": {"a": {}}, "adore": adore}) == expected


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_bisection_leaves_the_data_of_another_alone(dry_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would remove the merged batches that the other trains on."""
    monkeypatch.chdir(tmp_path)
    with locks.hold_run_lock(bisect.FOLDER / "bisect.lock"), pytest.raises(UserError, match="another run is in progress"):
        bisect.bisect(model=None, good=None, bad=None, follow="HEAD", measure=None, dry_run=dry_run, as_json=False)


@pytest.fixture
def add_batch(project: Any) -> Callable[..., Path]:
    """A batch of documents with these texts."""
    place = project.folder.parent / "inbox"
    place.mkdir()

    def write_batch(name: str, *texts: float) -> Path:
        (place / name).mkdir()
        lines = [json.dumps({"_id": f"{name}-{number}", "text": str(text)}) + "\n" for number, text in enumerate(texts)]
        (place / name / "corpus.jsonl").write_text("".join(lines))
        return Path(place / name)

    return write_batch


@pytest.mark.parametrize(
    ("batches", "good", "first", "note"),
    [(("b00", "b01"), None, 2, False), (None, None, 0, True), (None, "b02", 3, False), ((), None, 0, False)],
)
def test_a_champion_of_other_batches_is_told(batches: tuple[str, ...] | None, good: str | None, first: int, note: bool) -> None:
    """If new batches sort among the champion's by name, all are searched; the help says only those after the champion's."""
    inbox: Any = SimpleNamespace(batches=dict.fromkeys(NAMES), find=lambda _: SimpleNamespace(batches=batches))
    batch_range = bisect.range_of(inbox, Champion(3, "a", "promoted", "now", data={"digest": "d"}), good, bad=None)
    assert (batch_range.good, batch_range.bad) == (first, 16)
    assert batch_range.note.startswith("champion/3 was not trained on exactly the first batches by name") is note


def test_a_source_that_is_not_here_is_as_the_commit_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = {"source": "/nowhere/tower", "digest": "d1", "files": {"model.safetensors": "f1"}, "packages": {}}
    monkeypatch.setattr(
        bisect, "read_blob", lambda commit, path: json.dumps({"encoder": encoder}) if (commit, path) == ("c", SOURCE) else None
    )
    inbox: Any = SimpleNamespace(merge=lambda _: SimpleNamespace(spec="demo"))
    sections = {"dataset": {"source": "beir:../old"}, "encoder": {"source": "/nowhere/tower"}}
    source = bisect._source("c", sections, inbox)
    assert source["encoder"] == encoder
    assert (source["dataset"]["source"], bool(source["dataset"]["digest"])) == ("demo", True)


def test_the_bad_batch_of_an_inbox_is_named(project: Any, add_batch: Callable[..., Path]) -> None:
    assert "retraining.yaml: found no batches to search" in project.call("bisect", status=2)[1]
    (project.folder / "retraining.yaml").write_text("intake: {inbox: ../inbox}\n")
    add_batch("w1", 0.5)
    assert "bisect: batches to search: found 1, expected at least two" in project.call("bisect", "--model", "a", status=2)[1]
    add_batch("w2", -5.0)
    assert "bisect: there is no champion yet" in project.call("bisect", status=2)[1]
    assert "--bad w9: no such batch in the inbox, expected one of w1, w2" in project.call("bisect", "--bad", "w9", status=2)[1]
    error = project.call("bisect", "--model", "a", "--measure", "nDCG@7", status=2)[1]
    assert "--measure: found nDCG@7, expected one of evaluate.measures: " in error
    assert not (project.folder / ".retemper/bisect/tree").exists(), "nothing was trained first"
    out, _ = project.call("bisect", "--dry-run", "--model", "a")
    assert "2 batches, w1 to w2: retrainings: 1, and the two ends if they are not in the cache" in out
    out, _ = project.call("bisect", "--model", "a")
    assert "bad batch: w2 (probability 1.00; retrainings: 3)" in out
    answer = json.loads(project.call("bisect", "--model", "a", "--json")[0])
    assert (answer["batch"], answer["retrainings"], answer["note"]) == ("w2", 0, ""), "what was measured is known"
    assert not (project.folder / ".retemper/bisect/tree").exists()


def test_a_graph_without_the_training_is_one_line(project: Any, add_batch: Callable[..., Path]) -> None:
    (project.folder / "retraining.yaml").write_text("intake: {inbox: ../inbox}\n")
    add_batch("w1", 0.5)
    add_batch("w2", -5.0)
    graph = json.loads((project.folder / "dvc.yaml").read_text())
    for name in ("train", "evaluate"):
        (project.folder / "dvc.yaml").write_text(
            json.dumps({"stages": {key: stage for key, stage in graph["stages"].items() if key != name}})
        )
        project.commit()
        error = project.call("bisect", "--model", "a", status=2)[1]
        assert error.startswith(f"retemper: dvc.yaml: found no stage {name} in commit ")
        assert error.endswith("expected one, since a needs it; commit a dvc.yaml that has it, or name another revision: --follow REV\n")


def test_a_graph_without_what_the_evaluation_reads_is_one_line(project: Any, add_batch: Callable[..., Path]) -> None:
    """Said before anything is trained."""
    (project.folder / "retraining.yaml").write_text("intake: {inbox: ../inbox}\n")
    add_batch("w1", 0.5)
    add_batch("w2", -5.0)
    graph = json.loads((project.folder / "dvc.yaml").read_text())
    del graph["stages"]["retrieve"]
    (project.folder / "dvc.yaml").write_text(json.dumps(graph))
    project.commit()
    error = project.call("bisect", "--model", "a", status=2)[1]
    assert error == (
        "retemper: dvc.yaml: evaluate@a reads data/runs/a, which does not exist and which no stage makes; create it, "
        "or add the stage that makes it\n"
    )
    assert not list(objects(project.folder / ".dvc/cache/files/md5"))
    assert not (project.folder / ".retemper/bisect/tree").exists(), "a refusal leaves nothing to resume"
    assert "bisect" not in project.git("worktree", "list")
    (project.folder / ".retemper/bisect/tree").mkdir()  # of a search that was killed
    assert project.call("bisect", "--model", "a", status=2)[1] == error
    assert (project.folder / ".retemper/bisect/tree").exists(), "its finished pieces are resumed"


def test_what_a_bisection_could_not_push_goes_with_the_next_run(project: Any, add_batch: Callable[..., Path], tmp_path: Path) -> None:
    """Its trees are gone by then."""
    (project.folder / "retraining.yaml").write_text("intake: {inbox: ../inbox}\n")
    remote, away = tmp_path / "remote", tmp_path / "away"
    project.call("remote", "add", "team", str(remote))
    project.call("run")
    project.commit()
    remote.rename(away)
    add_batch("w1", 0.5)
    add_batch("w2", -5.0)
    out, _ = project.call("bisect", "--model", "a")
    assert "bad batch: w2" in out
    assert out.count("remote team is unavailable, so nothing is pulled: ") == 1, "not with every retraining"
    away.rename(remote)
    assert "executed 0" in project.call("run")[0]
    local, pushed = ({path.name for path in objects(root / "files/md5")} for root in (project.folder / ".dvc/cache", remote))
    assert local == pushed


@pytest.mark.heavy
def test_what_came_after_the_champion_is_searched(project: Any, add_batch: Callable[..., Path]) -> None:
    (project.folder / "retraining.yaml").write_text("intake: {inbox: ../inbox}\n")
    project.commit()
    add_batch("w1", 0.5)
    assert project.retrain() == "retraining promoted: a is the first champion"
    for name, text in (("w2", 0.5), ("w3", 0.51), ("w4", -5.0), ("w5", 0.5)):
        add_batch(name, text)
    assert project.retrain().startswith("retraining refused")
    out, _ = project.call("bisect", "--dry-run")
    assert "4 batches, w2 to w5: retrainings: 2, and the two ends if they are not in the cache" in out
    answer = json.loads(project.call("bisect", "--json")[0])
    assert answer["batch"] == "w4"
    assert answer["retrainings"] == 2, "both ends were retrainings before"
