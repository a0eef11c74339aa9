"""params.yaml of a retraining from the champion: of the default graph's models, checked as any params.yaml, read by a person here."""

from dataclasses import replace
from typing import Any

import pytest

from flows.champions.parts import Parts
from flows.parameters.checks import check
from flows.retraining.modes import Retrain
from flows.retraining.starting import Start, baselines_of, candidates, refusals, refuse, sections_of
from tasks.core.errors import UserError

SOURCE = "./.retemper/starts/0123"
HYBRID = {"bm25": {"k1": 0.9}, "hybrid": {"first": "bm25", "second": "star_adore", "method": "linear", "weight": 0.25}}
ROUND = {"init": "from_champion", "negatives": "none", "steps": 0}


def start_of(recipe: dict[str, Any], model: str, **fields: Any) -> Start:
    dense = "star_adore" if model == "hybrid" else model
    fusion = HYBRID if model == "hybrid" else {}
    return Start("champion/3", model, Parts({}, {}, {dense: "encoder"}, fusion), recipe, recipe, **{"origins": {}, "number": 3, **fields})


def checked_sections(full_params: dict[str, Any], model: str, mode: Any, **settings: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What is set, and what the models are; the whole must be a valid params.yaml."""
    sections, origins = sections_of(mode, start_of(full_params, model), Retrain(**settings), sources={model: SOURCE})
    check(full_params | sections)
    return sections, origins


@pytest.mark.parametrize("model", ["star", "init"])
def test_the_query_tower_of_a_round(full_params: dict[str, Any], model: str) -> None:
    full_params["rounds"]["star"]["temperature"] = 0.1
    sections, origins = checked_sections(full_params, model, "query_tower", adore={"lr": 1e-4})
    assert sections["rounds"] == {model: ROUND}, "nothing but the champion's own document vectors"
    assert sections["encoders"] == {"from_champion": {"source": SOURCE}}
    own = {"temperature": 0.1} if model == "star" else {}
    entry = {"round": model, "negatives": "none", "replay": 0.25, "seed": 45, "lr": 1e-4}
    assert sections["adore"] == {f"{model}_queries": own | entry}
    assert not any(
        sections[section] for section in ("pretrain", "mine", "mix", "rerankers", "teacher", "rerank", "rescore", "fuse", "study")
    )
    assert origins == {model: model, f"{model}_queries": model}


def test_the_query_tower_of_a_fusion(full_params: dict[str, Any]) -> None:
    full_params["adore"]["star_adore"] |= {"loss": "ranknet", "steps": 9, "seed": 7}
    sections, origins = sections_of("query_tower", start_of(full_params, "hybrid"), Retrain(replay=0.5), sources={"star_adore": SOURCE})
    check(full_params | sections)
    assert sections["rounds"] == {"star_adore": ROUND}
    entry = {"round": "star_adore", "negatives": "none", "loss": "ranknet", "replay": 0.5, "seed": 10}
    assert sections["adore"] == {"star_adore_queries": entry}, "the recipe's own, without its steps"
    assert sections["fuse"] == {"hybrid": {"first": "bm25", "second": "star_adore_queries", "method": "linear"}}, (
        "its weight is chosen again"
    )
    assert "bm25" not in sections, "BM25 is built as params.yaml says"
    assert origins == {"star_adore": "star_adore", "star_adore_queries": "star_adore", "hybrid": "hybrid"}
    next_start = start_of(full_params, "hybrid", origins=origins, number=4)
    next_start = replace(next_start, parts=replace(next_start.parts, encoders={"star_adore_queries": "encoder"}))
    second, _ = sections_of("query_tower", next_start, Retrain(replay=0.5), sources={"star_adore_queries": SOURCE})
    entry["seed"] = 11
    assert second == sections | {"adore": {"star_adore_queries": entry}}, "the same names each time, other queries"


def test_one_more_round(full_params: dict[str, Any]) -> None:
    full_params["mine"]["warmup"]["relative_margin"] = 0.05
    full_params["rounds"]["star"]["train_share"] = 0.05  # all that are new count as known afterwards, so all are trained on
    sections, origins = checked_sections(full_params, "star", "continue", round={"lr": 1e-6})
    assert sections["rounds"]["star"] == ROUND
    assert sections["rounds"]["star_continued"] == {
        "loss": "ranknet",
        "in_batch": True,
        "window": [1, 20],
        "epochs": 0.5,
        "init": "from_champion",
        "negatives": "star",
        "replay": 0.25,
        "seed": 46,
        "split_seed": 3,
        "lr": 1e-6,
    }
    assert sections["mine"] == {"star": {"search": "embeddings", "depth": 200, "relative_margin": 0.05}}, (
        "by the champion, over all documents"
    )
    assert sections["adore"] == sections["fuse"] == {}
    assert origins == {"star": "star", "star_continued": "star"}
    assert checked_sections(full_params, "warmup", "continue")[0]["rounds"]["warmup_continued"]["negatives"] == "bm25"
    assert checked_sections(full_params, "warmup", "continue")[0]["mine"] == {}


def test_one_more_round_of_a_query_tower(full_params: dict[str, Any]) -> None:
    sections, origins = sections_of("continue", start_of(full_params, "hybrid"), Retrain(), sources={"star_adore": SOURCE})
    check(full_params | sections)
    assert list(sections["rounds"]) == ["star_adore", "star_adore_round"]
    assert sections["rounds"]["star_adore_round"]["loss"] == "ranknet"
    assert sections["adore"] == {"star_adore_continued": {"round": "star_adore_round", "negatives": "none", "loss": "lambda"}}
    assert sections["fuse"]["hybrid"]["second"] == "star_adore_continued"
    assert set(origins.values()) == {"star_adore", "hybrid"}


def test_an_index_is_made_as_the_champion_is_served(full_params: dict[str, Any]) -> None:
    start = start_of(full_params, "hybrid", origins={"star_adore": "star_adore"})
    params = full_params | {"bm25": {"k1": 1.5}}
    sections, origins = sections_of("index", replace(start, own=params), Retrain(), sources={"star_adore": SOURCE})
    check(full_params | sections)
    assert sections["rounds"] == {"star_adore": ROUND}
    assert sections["adore"] == {}
    assert sections["fuse"] == {"hybrid": HYBRID["hybrid"]}, "with its weight"
    assert (sections["bm25"], origins) == ({"k1": 1.5}, {"star_adore": "star_adore"})


JPQ = {"round": "star", "negatives": "none", "index": "OPQ24,IVF1,PQ24x8", "centroids": True, "centroid_lr": 1e-5, "nprobe": 3, "lr": 1e-6}
GIVEN = {"quantizer": "given", **{key: JPQ[key] for key in ("index", "centroids", "centroid_lr", "nprobe")}}


def start_with_own_index(full_params: dict[str, Any]) -> Start:
    """A champion with an index of its own, in a recipe that mines."""
    full_params["adore"]["star_adore"] = dict(JPQ)
    start = start_of(full_params, "hybrid", origins={"star_adore": "star_adore"})
    return replace(start, parts=replace(start.parts, encoders={"star_adore": "encoder"}))


@pytest.mark.parametrize("mode", ["index", "query_tower", "continue"])
def test_a_champion_with_an_index_of_its_own(mode: Any, full_params: dict[str, Any]) -> None:
    """Its documents are a round's, and its index is filled with them; only another document tower needs another index."""
    start = start_with_own_index(full_params)
    assert refusals(start) == {}
    sections, origins = sections_of(mode, start, Retrain(adore={"steps": 7}), sources={"star_adore": SOURCE})
    check(full_params | sections)
    assert sections["rounds"]["star_adore_documents"] == ROUND
    if mode == "index":
        assert sections["adore"] == {"star_adore": {"round": "star_adore_documents", "negatives": "none", "steps": 0} | GIVEN}
        assert candidates(mode, start, sections) == ["hybrid"]
        assert sections["failures"]["model"] == "hybrid"
        assert origins == {"star_adore": "star_adore"}
        return
    tower = {"query_tower": "star_adore_queries", "continue": "star_adore_continued"}[mode]
    if mode == "query_tower":
        entry = {"round": "star_adore_documents", "negatives": "none", "lr": 1e-6, "replay": 0.25, "seed": 45, "steps": 7}
        assert sections["adore"] == {tower: GIVEN | entry}
    else:
        assert sections["rounds"]["star_adore_round"]["negatives"] == "star_adore_documents" == next(iter(sections["mine"]))
        assert sections["adore"] == {tower: JPQ | {"round": "star_adore_round"}}, "trained anew on the new vectors"
    names = candidates(mode, start, sections)
    assert sections["failures"]["model"] == "hybrid"
    assert names and tower in names and "hybrid" in names
    assert not {"star_adore_documents", "star_adore_round"} & set(names), "rounds are searched uncompressed, which it was not"
    assert set(origins.values()) == {"star_adore", "hybrid"}


def test_any_system_of_a_retraining_may_become_champion_but_where_nothing_is_trained(full_params: dict[str, Any]) -> None:
    start = start_of(full_params, "hybrid")
    assert candidates("query_tower", start, {}) is None
    assert candidates("index", start, {}) == ["hybrid"]


@pytest.mark.parametrize(
    ("model", "mode", "named", "expected"),
    [
        ("star_adore", "continue", ["star_adore"], ["star_adore", "star_adore_continued"]),
        ("star_adore", "continue", ["star", "star_adore"], ["star_adore", "star_adore_round", "star_adore_continued"]),
        ("star_adore", "query_tower", ["star_adore"], ["star_adore", "star_adore_queries"]),
        ("hybrid", "continue", ["hybrid"], ["hybrid"]),
        ("hybrid", "query_tower", ["hybrid", "star_adore"], ["star_adore", "star_adore_queries", "hybrid"]),
        ("star", "continue", ["star"], ["star", "star_continued"]),
    ],
)
def test_what_takes_the_place_of_a_champion_is_named_too(
    model: str, mode: Any, named: list[str], expected: list[str], full_params: dict[str, Any]
) -> None:
    start = start_of(full_params, model)
    assert refusals(start, named=named) == {}
    sections, _ = sections_of(mode, start, Retrain(), sources={"star_adore" if model == "hybrid" else model: SOURCE})
    assert candidates(mode, start, sections, named=named) == expected


def test_the_round_below_a_compressed_champion_is_no_candidate_even_where_its_entry_is_named(full_params: dict[str, Any]) -> None:
    start = start_with_own_index(full_params)
    sections, _ = sections_of("continue", start, Retrain(), sources={"star_adore": SOURCE})
    assert candidates("continue", start, sections, named=["star", "star_adore", "hybrid"]) == ["star_adore_continued", "hybrid"]
    assert candidates("continue", start, sections, named=["hybrid"]) == ["hybrid"]


def test_what_a_champion_rules_out(full_params: dict[str, Any]) -> None:
    start = start_of(full_params, "star_adore")
    assert refusals(start) == {}
    several = replace(start, parts=replace(start.parts, encoders={"star_adore": "encoder", "warmup": "encoder.warmup"}))
    assert refusals(several) == dict.fromkeys(("continue", "query_tower"), "champion/3 has 2 encoders, expected one")
    gone = refusals(replace(start, recipe=full_params | {"adore": {}}))
    assert gone["query_tower"] == "params.yaml no longer has star_adore, which champion/3 comes from"
    longer = full_params | {"tokenize": full_params["tokenize"] | {"document_length": 96}}
    assert set(refusals(replace(start, recipe=longer))) == {"query_tower", "index"}
    assert refusals(replace(start, lost="not kept")) == dict.fromkeys(("query_tower", "index"), "not kept")
    message = "champion/3 comes from star_adore, which retrain.systems lacks"
    assert refusals(start, named=["hybrid"]) == dict.fromkeys(("continue", "query_tower", "index"), message), "it was set by hand"
    fusion = start_of(full_params, "hybrid")
    assert refusals(fusion) == refusals(start, fused=False) == {}
    assert refusals(fusion, fused=False) == {"index": "champion/3 is a fusion, which promotion.fusions excludes"}
    full_params["rounds"]["star"]["loss"] = "kl"
    assert set(refusals(start)) == {"continue"}
    with pytest.raises(
        UserError, match=r"^retraining.yaml: retrain.mode: found continue, but champion/3 is distilled .*; expected full, or"
    ):
        refuse("continue", refusals(start), "retraining.yaml: retrain.mode")
    refuse("query_tower", refusals(start), "retraining.yaml: retrain.mode")


def test_a_champion_that_learned_from_another_model_is_not_continued_with_its_own_scores(full_params: dict[str, Any]) -> None:
    own_loss = {"init": "warmup", "negatives": "ce", "loss": "mine.losses:soft", "distill": True}
    imitating = {"init": "base", "negatives": "warmup", "positive_ranks": 10, "window": [46, 50]}
    reasons = []
    for entry in (own_loss, imitating, imitating | {"negatives": "bm25"}):
        full_params["rounds"]["star"] = entry
        reasons.append(refusals(start_of(full_params, "star")))
    assert reasons == [
        {"continue": "champion/3 is distilled from a teacher's scores, which new queries lack"},
        {"continue": "champion/3 imitates the ranking of warmup, which new queries lack"},
        {},
    ]


def test_what_retrain_round_asks_for_decides_whether_a_champion_would_learn_from_itself(full_params: dict[str, Any]) -> None:
    start = start_of(full_params, "star")
    said = "champion/3, trained with retrain.round,"
    assert refusals(start, changes={"lr": 1e-6}) == {}
    assert refusals(start, changes={"loss": "kl"}) == {"continue": f"{said} is distilled from a teacher's scores, which new queries lack"}
    imitation = {"positive_ranks": 10, "window": [46, 50]}
    assert refusals(start, changes=imitation)["continue"].startswith(f"{said} imitates the ranking of warmup")
    full_params["rounds"]["star"] |= imitation
    assert set(refusals(start_of(full_params, "star"))) == {"continue"}
    assert refusals(start_of(full_params, "star"), changes={"positive_ranks": None}) == {}


@pytest.mark.parametrize("mode", ["continue", "query_tower"])
def test_a_query_tower_over_given_lists_has_them_mined_as_before(full_params: dict[str, Any], mode: Any) -> None:
    """Skipped ranks and margins keep out documents that nobody has judged."""
    mined = {"depth": 600, "skip": 20, "relative_margin": 0.05}
    full_params["mine"]["star"] = {"search": "embeddings", **mined}
    full_params["adore"]["star_adore"] |= {"negatives": "star", "depth": 500}
    sections, _ = sections_of(mode, start_of(full_params, "star_adore"), Retrain(), sources={"star_adore": SOURCE})
    assert sections["mine"]["star_adore"]["depth"] == 600
    if mode == "query_tower":
        assert sections["mine"] == {"star_adore": {"search": "embeddings", **mined}}
        del full_params["mine"]["star"]
    full_params["rounds"]["star"]["negatives"] = "bm25"
    sections, _ = sections_of(mode, start_of(full_params, "star_adore"), Retrain(), sources={"star_adore": SOURCE})
    expected = {"depth": 500} if mode == "query_tower" else mined
    assert sections["mine"] == {"star_adore": {"search": "embeddings", **expected}}


def test_baselines_are_those_that_a_retraining_has(full_params: dict[str, Any]) -> None:
    full_params["report"]["baselines"] = ["bm25", "init", "star", "star_adore"]
    sections, _ = sections_of("index", start_of(full_params, "hybrid"), Retrain(), sources={"star_adore": SOURCE})
    with pytest.raises(UserError, match=r"^params\.yaml: report\.baselines: found 'star', expected one of bm25, star_adore"):
        check(full_params | sections)
    baselines = baselines_of(sections, full_params)
    assert baselines == {"report.baselines": ["bm25", "star_adore"]}
    check(full_params | sections | {"report": {**full_params["report"], "baselines": baselines["report.baselines"]}})
    assert baselines_of(sections, {"report": {}}) == {}
