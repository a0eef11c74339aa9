"""Refusals of params.yaml: one line each, with file and key."""

from pathlib import Path
from typing import Any

import pytest

from flows.parameters.checks import check, check_file
from tasks.core.errors import Invalid, Missing, UserError
from tasks.core.params.sections import read_yaml

ROOT = Path(__file__).resolve().parents[3]
TRAINED: dict[str, Any] = {"init": "base", "negatives": "bm25"}
CARRIED: dict[str, Any] = {"optimizer_from": "continue", "schedule_steps": 100, "steps": 5}
FUSED: dict[str, Any] = {"first": "bm25", "second": "star"}
RESCORED: dict[str, Any] = {"run": "bm25", "round": "star", "encoder": "star"}
LISTS: dict[str, Any] = {"lists": "given", "loss": "ranknet"}


@pytest.fixture
def sections(checkout: Path) -> dict[str, Any]:
    """The project's own parameters, with our own rounds."""
    recipe = read_yaml(checkout / "params.yaml")
    warmup = {**TRAINED, "hard_negatives": 2, "steps": 10}
    recipe["rounds"] = {"warmup": warmup, "star": {"init": "warmup", "negatives": "warmup", "hard_negatives": 4}}
    recipe["mine"] = {"warmup": {"search": "embeddings", "depth": 100}}
    recipe |= {"adore": {}, "fuse": {}}
    return recipe


def with_value(sections: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    node = sections
    *parents, last = key.split(".")
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = value
    return sections


def test_the_projects_own_parameters_pass(checkout: Path) -> None:
    assert "warmup" in check_file(checkout / "params.yaml").rounds


@pytest.mark.parametrize(
    ("key", "value", "kind", "found", "expected"),
    [
        ("rounds.star.lr", "fast", Invalid, "'fast'", "input should be a valid number"),
        ("rounds.star.speed", 1, Invalid, "", "init, "),
        ("rounds.new", {"init": "base"}, Missing, "", ""),
        ("rounds", 7, Invalid, "7", "expected a mapping"),
    ],
)
def test_a_refusal_says_where_as_data(
    sections: dict[str, Any], key: str, value: Any, kind: type[UserError], found: str, expected: str
) -> None:
    with pytest.raises(kind) as refusal:
        check(with_value(sections, key, value), "grid.yaml: point grid.yaml.a")
    problem = refusal.value.problem
    place = f"grid.yaml: point grid.yaml.a: {key}{'.negatives' if kind is Missing else ''}"
    assert problem.message.startswith(f"{place}: ")
    assert (problem.where, problem.kind, problem.found) == (place, kind.kind, found)
    assert problem.expected.startswith(expected)


def test_the_papers_ablation_defaults_pass(checkout: Path) -> None:
    recipe = read_yaml(ROOT / "docs" / "recipes" / "costa-ablation.yaml")
    costa = check(read_yaml(checkout / "params.yaml") | recipe).pretrain["costa"]
    assert (costa.spans, costa.temperature, costa.epochs, costa.projector, costa.contrastive_weight) == (3, 1, 3, "nonlinear", 0.1)
    assert {entry["negatives"] for entry in recipe["rounds"].values()} == {"bm25"}


def test_what_passes(sections: dict[str, Any]) -> None:
    assert check(sections).rounds["star"].init == "warmup"


MOVED = {"measures": ["AP"], "depth": 500, "ignore_identical_ids": True}


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("rounds.Star", TRAINED, "rounds.Star: found the name 'Star', expected up to 64 lowercase letters, digits and _, a letter first"),
        ("rounds.a-b", TRAINED, "rounds.a-b: found the name 'a-b'"),
        ("rounds.2nd", TRAINED, "rounds.2nd: found the name '2nd'"),
        (f"rounds.{65 * 'a'}", TRAINED, f"rounds.{65 * 'a'}: found the name '{65 * 'a'}', expected up to 64 lowercase letters"),
        ("failures.model", "stat", "failures.model: found 'stat', expected one of bm25, warmup, star"),
        ("failures.against", "base", "failures.against: found 'base', expected one of bm25, warmup, star"),
        ("failures", {"model": "star", "against": "star"}, "failures.against: found 'star', the model itself; expected another system"),
        ("report.baselines", ["bm25", "warmpu"], "report.baselines: found 'warmpu', expected one of bm25, warmup, star"),
        ("rounds.bm25", TRAINED, "rounds.bm25: the name bm25 is reserved"),
        ("rounds.base", TRAINED, "rounds.base: the name base is reserved"),
        ("mine.official", {"search": "embeddings"}, "mine.official: the name official is reserved"),
        ("queries", "pseud", "queries: found 'pseud'; input should be 'corpus' or 'pseudo'"),
        ("pseudo.kinds", [], "pseudo.kinds: found []"),
        ("pseudo.per_document", 0, "pseudo.per_document: found 0"),
        ("rounds.star.init", "stat", "rounds.star.init: found 'stat', expected one of base, costa, warmup"),
        (
            "rounds.star.negatives",
            "nowhere",
            "rounds.star.negatives: found 'nowhere', expected one of bm25, none, official, random, warmup",
        ),
        (
            "rounds.warmup.negatives",
            "star",
            "rounds.warmup.negatives: found 'star', expected one of bm25, none, official, random; add mine.star",
        ),
        ("rounds.warmup.init", "star", "rounds.warmup: depends on itself: warmup -> star -> warmup"),
        ("rounds.warmup.negatives", "warmup", "rounds.warmup: depends on itself: warmup -> warmup"),
        ("mine.ance", {"search": "embeddings"}, "mine.ance: no round ance; negatives are mined with a round: warmup, star"),
        ("rounds.random", TRAINED, "rounds.random: the name random is reserved"),
        (
            "mix.m",
            {"first": "bm25", "second": "star"},
            "mix.m.second: found 'star', expected one of bm25, none, official, random, warmup; add mi",
        ),
        ("mix.warmup", {"first": "bm25", "second": "random"}, "mix.warmup: the name warmup is taken by mine.warmup"),
        ("mix.m", {"first": "m", "second": "bm25"}, "mix.m: depends on itself: mix.m -> mix.m"),
        (
            "mix.m",
            {"first": "none", "second": "bm25"},
            "mix.m: none has no negatives",
        ),
        (
            "teacher.t",
            {"negatives": "nowhere", "reranker": "r"},
            "teacher.t.negatives: found 'nowhere', expected one of bm25, none, official, ",
        ),
        (
            "teacher.t",
            {"negatives": "warmup", "reranker": "r"},
            "teacher.t.reranker: found 'r', expected one of the entries of rerankers",
        ),
        (
            "rerankers.r",
            {"source": "x", "negatives": "star", "steps": 3},
            "rerankers.r.negatives: found 'star', expected one of bm25, none,",
        ),
        ("rerankers.warmup", {"source": "x", "negatives": "none"}, "rerankers.warmup: the name warmup is taken by rounds.warmup"),
        ("rerank.r", {"run": "star", "reranker": "r"}, "rerank.r.reranker: found 'r', expected"),
        ("rescore.star", RESCORED, "rescore.star: the name star is taken by rounds.star"),
        ("rescore.r", RESCORED | {"run": "nowhere"}, "rescore.r.run: found 'nowhere', expected one of bm25, star, warmup"),
        ("rescore.r", RESCORED | {"round": "base"}, "rescore.r.round: found 'base', expected one of star, warmup"),
        ("rescore.r", RESCORED | {"encoder": "costa"}, "rescore.r.encoder: found 'costa', expected one of star, warmup"),
        ("fuse.star", FUSED, "fuse.star: the name star is taken by rounds.star"),
        ("fuse.f", FUSED | {"second": "nowhere"}, "fuse.f.second: found 'nowhere', expected one of bm25, star, warmup"),
        ("fuse.f", FUSED | {"second": "bm25"}, "fuse.f: first and second are both"),
        ("fuse.f", FUSED | {"depth": 99}, "fuse.f.depth: found 99, expected at least 100 for R@100 in evaluate.measures"),
        ("fuse.f", FUSED | {"first": "f"}, "fuse.f: depends on itself: fuse.f -> fuse.f; name another system in one of them"),
        ("fuse.f", FUSED | {"wait": 0.5}, "fuse.f.wait: unknown key, expected one of first, second, method, weight, k, queries, depth"),
        ("fuse.f", FUSED | {"k": 60}, "fuse.f: k is set, but linear has none; set weight"),
        ("fuse.f", FUSED | {"weight": 1.5}, "fuse.f.weight: found 1.5; input should be less than or equal to 1"),
        ("encoders.warmup", {"source": "x"}, "rounds.warmup: the name warmup is taken by encoders.warmup"),
        ("encoders.other", {"pooling": "cls"}, "encoders.other.source: missing; add it"),
        (
            "rescore.r",
            RESCORED | {"encoder": "warmup"},
            "rescore.r.encoder: found warmup, whose queries are made for the vectors of warmup, expected star as in rescore.r.round",
        ),
        (
            "encoder.source",
            "data/encoders/warmup",
            "encoder.source: found data/encoders/warmup, an output of this project's stages; copy it",
        ),
        (
            "dataset.source",
            "parquet:./data/corpus",
            "dataset.source: found parquet:./data/corpus, an output of this project's stages; copy it",
        ),
        ("teacher.t", {"negatives": "random", "reranker": "r"}, "teacher.t: negatives random: there is no table to score"),
        (
            "rounds.warmup",
            TRAINED | {"negatives": "none", "batch_queries": 1},
            "rounds.warmup: one query per step and no",
        ),
        (
            "rounds.warmup",
            TRAINED | {"negatives": "none", "loss": "ranknet", "alpha": 0},
            "rounds.warmup: alpha 0 without",
        ),
        ("mine.warmup.depth", 3, "rounds.star.hard_negatives: found 4, expected at most 3: mine.warmup.depth keeps ranks 1 to 3"),
        (
            "rounds.star.window",
            [150, 160],
            "rounds.star.hard_negatives: found 4, expected at most 0: mine.warmup.depth keeps ranks 1 to 100",
        ),
        ("rounds.star.window", [1, 3], "rounds.star: hard_negatives 4: window [1, 3] has only 3 ranks"),
        ("rounds.warmup.window", [100, 140], "rounds.warmup.hard_negatives: found 2, expected at most 1: bm25.depth keeps ranks 1 to 100"),
        ("rounds.warmup.loss", "kl", "rounds.warmup.negatives: found 'bm25', expected a mine or a teacher (warmup): loss kl needs"),
        ("rounds.warmup.sampling", "simans", "rounds.warmup.negatives: found 'bm25', expected a mine or a teacher (warmup): sampling"),
        (
            "rounds.warmup",
            {**TRAINED, **CARRIED},
            "rounds.warmup.init: found 'base', which is not a round; expected a round trained with adamw",
        ),
        ("rounds.star", {**TRAINED, **CARRIED, "init": "warmup", "optimizer": "lamb"}, "rounds.star.init: found a round trained with adam"),
        (
            "rounds.star",
            {**CARRIED, "init": "warmup", "negatives": "bm25", "schedule_steps": 14},
            "rounds.star.schedule_steps: found 14, expected at least 15, the steps of the whole chain",
        ),
        (
            "rounds",
            {
                "b": {"init": "base", "negatives": "none", **CARRIED, "steps": 0},
                "warmup": {**CARRIED, "init": "b", "negatives": "bm25", "hard_negatives": 2},
            },
            "rounds.b.init: found 'base', which is not a round; expected a round trained with adamw, or optimizer_from: fresh",
        ),
        (
            "rounds",
            {"warmup": {**CARRIED, "init": "below", "negatives": "bm25", "hard_negatives": 2}, "below": {**TRAINED, **CARRIED}},
            "rounds.below.init: found 'base', which is not a round; expected a round trained with adamw, or optimizer_from: fresh",
        ),
        (
            "rounds",
            {"warmup": {**TRAINED, "lora": {}, "steps": 5}, "star": {**CARRIED, "init": "warmup", "negatives": "bm25"}},
            "rounds.star.init: found 'warmup', whose optimizer state is of LoRA adapters, since merged; expected a round with lora: null",
        ),
        (
            "rounds",
            {
                "a": {**TRAINED, "steps": 5},
                "warmup": {"init": "a", "negatives": "none", "steps": 0, "width": 8},
                "star": {**CARRIED, "init": "warmup", "negatives": "bm25"},
            },
            "rounds.star.init: found 'warmup', a round of no steps, which has no optimizer state to continue from; expected a round that "
            "trains, such as a, or optimizer_from: fresh",
        ),
        ("rounds.star.lr", "fast", "rounds.star.lr: found 'fast'"),
        ("rounds.star.speed", 1, "rounds.star.speed: unknown key"),
        ("bm25.b", 2, "bm25.b: found 2"),
        ("nonsense", {}, "nonsense: unknown key"),
        ("dataset.source", "beer:x", "dataset.source: dataset 'beer:x': unknown kind"),
        ("pretrain.costa.init", "cost", "pretrain.costa.init: found 'cost', expected one of base, star, warmup"),
        ("pretrain.costa.init", "costa", "pretrain.costa: depends on itself: costa -> costa"),
        ("pretrain.costa.temperature", 0, "pretrain.costa.temperature: found 0; input should be greater than 0"),
        ("articles.source", "zim:wiki", "articles.source: articles 'zim:wiki': unknown kind 'zim'"),
        ("report.metric", "P@7", "report.metric: found 'P@7', expected one of evaluate.measures: nDCG@10"),
        (
            "evaluate.measures",
            ["nDCG@10", "PairwiseErrors@2000"],
            "retrieve.depth: found 1000, expected at least 2000 for PairwiseErrors@2000 in evaluate.measures",
        ),
        ("report.test", "wilcoxon", "report.test: found 'wilcoxon'"),
        ("retrieve.depth", 50, "retrieve.depth: found 50, expected at least 100 for R@100 in evaluate.measures"),
        ("bm25.run_depth", 99, "bm25.run_depth: found 99, expected at least 100 for R@100 in evaluate.measures"),
        (
            "evaluate",
            MOVED,
            "evaluate.depth: moved to section retrieve; remove depth, ignore_identical_ids from evaluate, and add "
            "retrieve: {depth: 500, ignore_identical_ids: true}",
        ),
        ("evaluate.precision", "fp32", "evaluate.precision: moved to section retrieve; remove precision from evaluate, and add "),
        (
            "evaluate.measures",
            ["AP", "nDCG@10", "R(rel=2)@2000"],
            "retrieve.depth: found 1000, expected at least 2000 for R(rel=2)@2000 in evaluate.measures",
        ),
        ("adore", {"a": {"round": "strar", "negatives": "none"}}, "adore.a.round: found 'strar', expected one of star, warmup"),
        ("adore", {"a": {"round": "base", "negatives": "none"}}, "adore.a.round: found 'base', expected one of star"),
        ("adore", {"star": {"round": "warmup", "negatives": "none"}}, "adore.star: the name star is taken by rounds.star"),
        ("adore", {"a": {"round": "warmup", "negatives": "star"} | LISTS}, "adore.a.negatives: found 'star', expected one of bm25, none"),
        ("adore", {"a": {"round": "warmup", "negatives": "none", "cut": 0}}, "adore.a: cut 0: every pair would have weight 0"),
        ("study", {"s": {"round": "nowhere", "factories": ["Flat"]}}, "study.s.round: found 'nowhere', expected one of star"),
        ("study", {"A": {"round": "warmup", "factories": ["Flat"]}}, "study.A: found the name 'A'"),
        ("rounds", {}, "rounds: found {}"),
        ("rounds.star", None, "rounds.star: found None"),
    ],
)
def test_refusals(sections: dict[str, Any], key: str, value: Any, line: str) -> None:
    with pytest.raises(UserError) as refusal:
        check(with_value(sections, key, value))
    assert str(refusal.value).startswith(f"params.yaml: {line}")
    assert "\n" not in str(refusal.value)


def test_a_list_that_loses_a_document_is_longer(sections: dict[str, Any]) -> None:
    sections["evaluate"], sections["retrieve"] = {"measures": ["nDCG@10", "R@1000"]}, {"ignore_identical_ids": True}
    line = r"^params.yaml: bm25.run_depth: found 1000, expected at least 1001 for R@1000 in evaluate.measures"
    with pytest.raises(UserError, match=line):
        check(sections)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds.star.window", [97, 140]),
        ("retrieve.depth", 100),
        ("evaluate.relevance", {"dev": 1, "test": 2}),
        ("rounds.star.negatives", "random"),
        ("rounds.star.negatives", "none"),
        ("rounds.star", {**CARRIED, "init": "warmup", "negatives": "warmup", "schedule_steps": 15}),
        ("rounds.star", {"init": "warmup", "negatives": "warmup", "loss": "kl", "sampling": "simans"}),
        ("rounds.star", {"init": "warmup", "negatives": "none", "steps": 0, "hard_negatives": 500}),
        ("mix", {"m": {"first": "bm25", "second": "random"}, "n": {"first": "m", "second": "warmup"}}),
    ],
)
def test_what_just_passes(sections: dict[str, Any], key: str, value: Any) -> None:
    check(with_value(sections, key, value))


def test_a_cycle_through_a_mixture(sections: dict[str, Any]) -> None:
    with_value(sections, "mix.m", {"first": "warmup", "second": "bm25"})
    with pytest.raises(UserError, match=r"^params.yaml: rounds.warmup: depends on itself: warmup -> mix.m -> warmup; let"):
        check(with_value(sections, "rounds.warmup.negatives", "m"))


def test_a_cycle_through_a_teacher(sections: dict[str, Any]) -> None:
    with_value(sections, "rerankers.r", {"source": "x", "negatives": "star", "steps": 3})
    with_value(sections, "teacher.t", {"negatives": "warmup", "reranker": "r"})
    with_value(sections, "mine.star", {"search": "embeddings"})
    with pytest.raises(UserError, match=r"^params.yaml: rounds.star: depends on itself: star -> teacher.t -> rerankers.r -> star; let"):
        check(with_value(sections, "rounds.star.negatives", "t"))


def test_cycles_through_a_fusion(sections: dict[str, Any]) -> None:
    sections["fuse"] = {"f": FUSED, "g": {"first": "f", "second": "again", "method": "rrf"}}
    sections["rescore"] = {"again": RESCORED | {"run": "f"}}
    assert check(sections).fuse["g"].second == "again"
    sections["fuse"]["f"] = {"first": "g", "second": "star"}
    with pytest.raises(UserError, match=r"fuse.f: depends on itself: fuse.f -> fuse.g -> fuse.f; name another system in one of them$"):
        check(sections)
    sections["fuse"] = {"f": {"first": "again", "second": "star"}}
    with pytest.raises(UserError, match=r"fuse.f: depends on itself: fuse.f -> rescore.again -> fuse.f; name another"):
        check(sections)


def test_cycles_through_a_query_tower(sections: dict[str, Any]) -> None:
    sections["adore"] = {"a": {"round": "star", "negatives": "none"}}
    sections["rounds"]["later"] = {"init": "a", "negatives": "warmup"}  # a round may start from one
    check(sections)
    sections["rounds"]["star"]["init"] = "later"
    with pytest.raises(UserError, match=r"rounds.star: depends on itself: star -> later -> a -> star"):
        check(sections)


@pytest.mark.parametrize("recipe", sorted((ROOT / "docs" / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_pass(recipe: Path, sections: dict[str, Any]) -> None:
    for section, entries in read_yaml(recipe).items():
        sections[section] = ((sections[section] or {}) | entries) if isinstance(entries, dict) else entries
    check(sections)


def test_a_missing_section_and_a_missing_field(sections: dict[str, Any]) -> None:
    del sections["rounds"]["star"]["init"]
    with pytest.raises(UserError, match=r"^params.yaml: rounds.star.init: missing"):
        check(sections)
    del sections["bm25"]
    with pytest.raises(UserError, match=r"^params.yaml: bm25: missing"):
        check(sections)


def test_a_query_tower_may_rescore_with_the_vectors_of_its_round(sections: dict[str, Any]) -> None:
    sections["adore"] = {"tower": {"round": "star", "negatives": "none"}}
    with_value(sections, "rescore.r", RESCORED | {"encoder": "tower"})
    assert check(sections).rescore["r"].encoder == "tower"
    with_value(sections, "rescore.r.round", "warmup")
    with pytest.raises(UserError, match=r"rescore\.r\.encoder: found tower, .* made for the vectors of star, expected warmup"):
        check(sections)


@pytest.mark.parametrize(("depths", "limit"), [((100, 200), 200), ((10, 200), 21), ((200, 30), 61), ((10, 5), 11)])
def test_a_mixture_ends_with_the_shorter_of_its_sources(sections: dict[str, Any], depths: tuple[int, int], limit: int) -> None:
    """Half of each: it holds twice the shorter one, plus one more where that comes second."""
    sections["bm25"]["depth"], sections["mine"]["warmup"]["depth"] = depths
    sections["mix"] = {"m": {"first": "bm25", "second": "warmup", "depth": 200}}
    entry = {**TRAINED, "init": "warmup", "negatives": "m", "window": [1, 200]}
    sections["rounds"] = {"warmup": TRAINED, "star": entry | {"hard_negatives": min(limit, 200)}}
    assert check(sections)
    sections["rounds"]["star"]["hard_negatives"] = limit + 1
    with pytest.raises(UserError, match=r"hard_negatives"):
        check(sections)


@pytest.mark.parametrize(
    ("text", "place"),
    [("{scifact: beir:../scifact}", 0), ("{\n  scifact: beir:../scifact, more: x}", 1), ("{a: [what, beir:../scifact]}", 0)],
)
def test_a_source_within_braces_needs_quotes(checkout: Path, tmp_path: Path, text: str, place: int) -> None:
    path = tmp_path / "params.yaml"
    before, after = (checkout / "params.yaml").read_text().split("extra: {}")
    path.write_text(f"{before}extra: {text}{after}")
    with pytest.raises(UserError) as refusal:
        check_file(path)
    line = before.count("\n") + 1 + place
    message = 'found beir:../scifact unquoted within {} or []; write "beir:../scifact"'
    assert str(refusal.value) == f"{path}:{line}: {message}"


def test_names_of_what_is_compared_count_only_where_something_is(sections: dict[str, Any]) -> None:
    """A second tree measures a model under the project's settings, and without its other systems."""
    check(with_value(sections, "failures", {"model": "star", "against": "bm25"}))
    check(with_value(sections, "report.baselines", ["bm25", "init", "star"]))
    with_value(sections, "failures.model", "gone")
    with_value(sections, "report.baselines", ["gone"])
    with pytest.raises(UserError, match=r"failures\.model"):
        check(sections)
    check(sections, compared=False)
    check(with_value(sections, f"rounds.{64 * 'a'}", TRAINED), compared=False)
