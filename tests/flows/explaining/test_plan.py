"""What differs between two sides, and what a configuration between them is made from; by hand, without git or a run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.explaining.costs import estimate, relevant_factors
from flows.explaining.data import Data, Inbox
from flows.explaining.plan import Plan, reseed
from flows.explaining.runs import Configuration, Refused, evaluation, is_direct, training
from flows.explaining.sides import Factor, Side, factors, join_factors


def side(name: str, *, lr: float = 1e-5, k1: float = 0.9, data: str = "d1", code: str = "c1", model: str = "star") -> Side:
    """A model of one training, its figures measured by stage evaluate."""
    stages: dict[str, Any] = {
        "prepare": {"params": {"data/source.json": {"dataset.digest": data}}, "outs": [{"path": "data/corpus", "md5": data}]},
        "bm25": {
            "deps": [{"path": "data/corpus"}],
            "params": {"data/params.json": {"bm25": {"k1": k1}}},
            "outs": [{"path": "data/negatives/bm25"}],
        },
        f"train@{model}": {
            "deps": [{"path": "data/negatives/bm25"}],
            "params": {"data/params.json": {f"rounds.{model}": {"lr": lr}}, "data/code.json": {"train": code}},
            "outs": [{"path": f"data/encoders/{model}"}],
        },
        f"evaluate@{model}": {
            "deps": [{"path": f"data/encoders/{model}"}],
            "params": {"data/params.json": {"evaluate": {}}},
            "outs": [{"path": f"data/metrics/{model}.json"}],
        },
    }
    sections = {
        "dataset": {"source": "beir:x"},
        "rounds": {model: {"lr": lr}},
        "bm25": {"k1": k1},
        "evaluate": {"of": name},
        "report": {"of": name},
    }
    source = {"dataset": {"source": "beir:x", "digest": data}, "encoder": {"digest": "e"}}
    graph = {"prepare": {}, "bm25": {}, "train": {}, "evaluate": {}}
    return Side(name, f"commit of {name}", model, stages, sections, source, graph, "nDCG@10", {})


def plan(old: Side, new: Side, differing: list[Factor]) -> Plan:
    data = [Data(f"beir:{version.name}", version.source["dataset"]) for version in (old, new)]
    return Plan(old, new, differing, data[0], data[1], inbox=None)  # type: ignore[arg-type]


def test_what_differs() -> None:
    old = side("old")
    assert factors(old, side("new")) == []
    differences = factors(old, side("new", lr=2e-5, data="d2", code="c2", k1=1.2))
    assert [(factor.name, factor.differs) for factor in differences] == [
        ("data", ("dataset: d1 -> d2",)),
        ("bm25", ("bm25.k1: 0.9 -> 1.2",)),
        ("rounds", ("rounds.star.lr: 1e-05 -> 2e-05",)),
        ("code", ("train",)),
    ]
    differences = factors(old, side("new", model="warmup"))
    assert [factor.name for factor in differences] == ["rounds", "model"]
    assert differences[0].differs == ("rounds.star: given -> not given", "rounds.warmup: not given -> given")
    joined = join_factors("parameters", differences)
    assert (joined.sections, joined.model, joined.code) == (("rounds",), True, False)


def test_code_that_a_parameter_names_is_code() -> None:
    old, new = side("old"), side("new")
    for version, digest in ((old, "0" * 16), (new, "1" * 16)):
        tracked = version.stages["train@star"]["params"]["data/params.json"]["rounds.star"]
        tracked["loss"] = f"tasks.train.mine:loss@{digest}"
        version.sections["rounds"]["star"]["loss"] = "tasks.train.mine:loss"
    differences = factors(old, new)
    assert [(factor.name, factor.differs) for factor in differences] == [("code", ("tasks.train.mine:loss",))]
    other = Factor("rounds", sections=("rounds",))  # of another round
    assert relevant_factors(old, new, [*differences, other])["train@star"] == {"code"}, "the parameter itself is the same"


def test_a_configuration_is_made_of_both_sides() -> None:
    old, new = side("old"), side("new", lr=2e-5, data="d2", code="c2", k1=1.2)
    comparison = plan(old, new, factors(old, new))
    none, whole = comparison.configuration(frozenset()), comparison.yardstick
    assert (none.commit, none.sections["rounds"], none.source["dataset"]["digest"]) == (old.commit, old.sections["rounds"], "d1")
    assert (whole.commit, whole.sections["bm25"], whole.sections["dataset"]) == (
        new.commit,
        {"k1": 1.2},
        {"source": "beir:new"},
    )
    mixed = comparison.configuration(frozenset({"code", "rounds"}))
    assert (mixed.commit, mixed.sections["rounds"], mixed.sections["bm25"]) == (new.commit, {"star": {"lr": 2e-5}}, {"k1": 0.9})
    assert mixed.sections["dataset"] == {"source": "beir:old"}
    assert mixed.sections["evaluate"] == {"of": "new"}, "how models are measured is no factor: it goes with the code"
    assert not comparison.is_direct(frozenset({"code", "rounds"}))
    assert comparison.is_direct(frozenset({"code", "data"}))
    same_code = plan(old, side("new", lr=2e-5), [Factor("rounds", sections=("rounds",))])
    assert same_code.configuration(frozenset()).commit == "commit of new", "where the code is no factor, it is the newer one"
    assert is_direct(same_code.configuration(frozenset()), same_code.yardstick)


def test_repetitions_have_other_seeds() -> None:
    sections = {"rounds": {"init": {"steps": 0}, "a": {"seed": 42}, "b": {}}, "bm25": {"k1": 1}, "mix": {}}
    assert reseed(sections, 0) == sections
    assert reseed(sections, 2)["rounds"] == {"init": {"steps": 0}, "a": {"seed": 2042}, "b": {"seed": 2000}}
    assert reseed(sections, 2)["bm25"] == {"k1": 1}
    assert reseed({"rounds": {"a": {"seed": 2**32 - 1}}}, 1)["rounds"] == {"a": {"seed": 999}}, "beyond the largest seed"


def test_the_stages_of_a_model() -> None:
    sections = {"rounds": {"star": {}}, "adore": {"tower": {}}, "fuse": {"hybrid": {}}, "rerank": {"again": {}}}
    configurations = {name: Configuration("", sections, {}, name) for name in ("star", "tower", "hybrid", "again", "bm25", "nobody")}
    assert [evaluation(configurations[name]) for name in list(configurations)[:5]] == [
        "evaluate@star",
        "evaluate_adore@tower",
        "evaluate_fuse@hybrid",
        "evaluate_rerank@again",
        "evaluate_bm25",
    ]
    assert [training(configurations[name]) for name in ("star", "tower", "hybrid")] == ["train@star", "adore@tower", "fuse@hybrid"]
    with pytest.raises(Refused, match=r"nobody: no such model in params\.yaml, expected one of bm25, star, tower, hybrid, again"):
        evaluation(configurations["nobody"])
    with pytest.raises(Refused, match="again: cannot be measured on other data"):
        training(configurations["again"])


def test_costs_count_what_no_side_has_run() -> None:
    """BM25 depends on data and k1, the training on both and its own two: 16 trainings less those of the two sides."""
    old, new = side("old"), side("new", lr=2e-5, data="d2", code="c2", k1=1.2)
    differences = factors(old, new)
    reads = relevant_factors(old, new, differences)
    assert reads["bm25"] == {"data", "bm25"}
    assert reads["train@star"] == {"data", "bm25", "rounds", "code"}
    names = [factor.name for factor in differences]
    coalitions = [frozenset(name for bit, name in enumerate(names) if number >> bit & 1) for number in range(16)]
    seconds = {"bm25": 1.0, "train@star": 100.0}

    def cost(repetitions: int) -> Any:
        runs = [(coalition, repetition) for coalition in coalitions for repetition in range(repetitions)]
        comparison = plan(old, new, differences)
        return estimate(
            (old, new), differences, runs, known=3, direct=comparison.is_direct, trained=lambda _: "train@star", seconds=seconds
        )

    once = cost(1)
    assert (once.runs, once.known, once.trainings) == (16, 3, 14)
    assert once.seconds == 2 * 1 + 14 * 100, "BM25 over the old data with the new k1, and the other way round"
    assert once.untimed == 3 + 12, "evaluate: of 4 direct configurations one has run; 12 are measured beside"
    assert cost(2).trainings == 14 + 16, "with other seeds, both sides' too"
    assert once.line == "runs: 16 (3 more known); trainings: 14 at most; by recorded times: 23m22s (not recorded: 15 stages)"


def test_costs_of_a_model_that_is_a_round_on_one_side_and_an_adore_on_the_other() -> None:
    old, other = side("old"), side("new")
    stages = {name.replace("train@", "adore@").replace("evaluate@", "evaluate_adore@"): entry for name, entry in other.stages.items()}
    trained = {"params": {"data/params.json": {"adore.star": {"lr": 1e-5}}}}
    stages["adore@star"] = {**stages["adore@star"], **trained}
    sections = {**other.sections, "rounds": {}, "adore": {"star": {"lr": 1e-5}}}
    new = replace(other, stages=stages, sections=sections)
    differences = [join_factors("parameters", [factor for factor in factors(old, new) if factor.sections])]
    comparison = plan(old, new, differences)
    runs = [(frozenset[str](), 0), (frozenset({"parameters"}), 0)]
    costs = estimate(
        (old, new),
        differences,
        runs,
        known=0,
        direct=comparison.is_direct,
        trained=lambda coalition: training(comparison.configuration(coalition)),
        seconds={},
    )
    assert [training(comparison.configuration(coalition)) for coalition, _ in runs] == ["train@star", "adore@star"]
    assert (costs.runs, costs.trainings) == (2, 0), "both sides have run"


def test_data_is_found_as_the_first_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place, names in (("source", ["a"]), ("inbox/w1", ["b"]), ("inbox/w2", ["a", "c"]), ("inbox/.w3", ["x"])):
        (tmp_path / place / "qrels").mkdir(parents=True)
        lines = "".join(f'{{"_id": "{name}", "text": "{place}"}}\n' for name in names)
        (tmp_path / place / "corpus.jsonl").write_text(lines)
        (tmp_path / place / "queries.jsonl").write_text('{"_id": "q", "text": "what"}\n')
        (tmp_path / place / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    Path("params.yaml").write_text("dataset: {source: beir:source}\n")
    Path("retraining.yaml").write_text("intake: {inbox: inbox}\n")
    inbox = Inbox(tmp_path / "merged")
    assert list(inbox.batches) == ["w1", "w2"]
    followed = Inbox(tmp_path / "merged", {"dataset": {"source": "beir:inbox/w1"}})
    assert followed.merge([]).entry["digest"] != inbox.merge([]).entry["digest"], "the parameters of a commit, not of the working tree"
    merged = inbox.merge(["w1"])
    assert (
        Path(merged.spec.removeprefix("beir:")) / "corpus.jsonl"
    ).read_text() == '{"_id": "a", "text": "source"}\n{"_id": "b", "text": "inbox/w1"}\n'
    for names in ([], ["w1"], ["w1", "w2"]):
        entry = {**inbox.merge(names).entry, "source": "beir:nowhere"}
        data = Inbox(tmp_path / "again").find(entry)
        assert (data.batches, data.available) == (tuple(names), True)
        assert data.entry["digest"] == entry["digest"]
    lost = inbox.find({"source": "beir:nowhere", "digest": "0"})
    assert (lost.batches, lost.available) == (None, False)
    Path("retraining.yaml").unlink()
    default = Inbox(tmp_path / "merged").find({"source": "beir:source", "digest": inbox.merge([]).entry["digest"]})
    assert (default.batches, default.available) == (None, True)


@pytest.mark.parametrize("kind", ["beir", "csv"])
def test_batches_are_found_beside_a_source_of_either_form(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(f"dataset: {{source: '{kind}:base'}}\nqueries: pseudo\n")
    (tmp_path / "retraining.yaml").write_text("intake: {inbox: inbox}\n")
    for folder, name in (("base", "d1"), ("inbox/1", "d2")):
        (tmp_path / folder).mkdir(parents=True)
        content = f"id,text\n{name},x\n" if kind == "csv" else json.dumps({"_id": name, "text": "x"}) + "\n"
        (tmp_path / folder / ("corpus.csv" if kind == "csv" else "corpus.jsonl")).write_text(content)
    inbox = Inbox(tmp_path / "merged")
    assert list(inbox.batches) == ["1"]
    alone, merged = inbox.merge([]), inbox.merge(["1"])
    assert inbox.find(alone.entry).batches == ()
    assert inbox.find(merged.entry).batches == ("1",)
