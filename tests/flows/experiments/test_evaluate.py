"""`retemper evaluate` with its real stages: a model is measured as it is, whatever the project says of its own models."""

import json
import re
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from flows.experiments import evaluate
from flows.experiments.evaluate import Settings, Shown
from tasks.core.stage.errors import UserError
from tasks.core.stage.params import read_yaml

PLAIN: dict[str, None] = {"query": None, "document": None}
ONE = {"dev": 1, "test": 1}


def evaluated(
    small: Any,
    prefixes: Mapping[str, str | None],
    lengths: Mapping[str, int | None] = PLAIN,
    titles: bool = False,
    drop: bool = False,
    relevance: Mapping[str, int] = ONE,
) -> Any:
    """What `retemper evaluate --model data/encoders/warmup --data beir:beir` measures, in this process."""
    beside, shown = small.folder / "beside", Shown(titles, False, relevance)
    planned = evaluate.commands("m", "data/encoders/warmup", "beir:beir", beside, Settings(prefixes, lengths, drop=drop), shown)
    for module, *arguments in evaluate.judged_first(planned, beside, "beir:beir", relevance):
        done = small.call(import_module(f"{module}.__main__").main, [module, *arguments])
        assert done.status == 0, (module, done)
    return json.loads((beside / "metrics.json").read_text())


def test_a_model_is_evaluated_in_its_own_shape_with_its_own_prompts(small: Any) -> None:
    own = json.loads((small.folder / "data/metrics/warmup.json").read_text())
    small.set("base", {"pooling": "cls", "head": "linear_norm", "similarity": "cosine", "seed": 1})
    small.set("tokenize.query_prefix", "another model's: ")
    assert evaluated(small, {"query": None, "document": None}) == own
    assert evaluated(small, {"query": "a chancellor of West Germany ", "document": None}) != own


def test_how_texts_were_put_is_told(small: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(small.folder)
    told = evaluate._texts(Path("data"), Shown(False, False, ONE))
    assert re.fullmatch(r"queries of at most \d+ tokens, prefix ''; documents of at most 24 tokens, prefix ''; titles off", told)
    told_too = f"{told}; identical ids excluded; test: relevant from grade 2"
    assert evaluate._texts(Path("data"), Shown(False, True, {"dev": 1, "test": 2})) == told_too


def length(small: Any, kind: str) -> Any:
    return json.loads(next((small.folder / "beside/tokens" / kind).rglob("meta.json")).read_text())["max_length"]


def test_lengths_titles_and_tolerance_are_the_evaluations_own(small: Any) -> None:
    params = small.read("params.yaml")
    own = evaluated(small, PLAIN)
    corpus, qrels = small.read("beir/corpus.jsonl"), small.read("beir/qrels/test.tsv")
    small.write("beir/corpus.jsonl", corpus + b'{"_id": "void", "title": "", "text": ""}\n')
    small.write("beir/qrels/test.tsv", qrels + b"nobody\tnowhere\t1\n")
    assert evaluated(small, PLAIN, drop=True) == own, "what is dropped changes nothing"
    assert evaluated(small, PLAIN, {"query": 5, "document": 30}, titles=True, drop=True) != own
    assert (length(small, "queries"), length(small, "documents")) == (5, 30)
    assert small.read("params.yaml") == params


def test_a_length_of_the_project_that_the_model_does_not_take(small: Any) -> None:
    small.set("tokenize.document_length", 2000)
    arguments = ["tokenize", "--out", "beside/tokens", "--prompts", "data/encoders/warmup/config_sentence_transformers.json"]
    done = small.stage(*arguments)
    assert done.status == 0, done
    assert "tokenize.document_length is 2000, above the model's limit; using 512" in done.out
    assert (length(small, "queries"), length(small, "documents")) == (32, 512)
    done = small.stage(*arguments, "--document-length=600")
    assert (done.status, done.err) == (2, "retemper: --document-length: found 600, expected at most 512, the model's limit; decrease it\n")


def test_the_command_line_hands_them_over(small: Any, monkeypatch: Any) -> None:
    given: list[Any] = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *arguments: given.append(arguments[3]) or 0)
    flags = ["--document-length", "128", "--no-titles", "--drop", "--ignore-identical-ids", "--relevance", "2", "3"]
    done = small.retemper("evaluate", "--model", "m", "--data", "demo", *flags)
    assert done.status == 0, done
    assert given == [Settings(PLAIN, {"query": None, "document": 128}, False, True, True, [2, 3])]
    for ignore, flag in ((True, "--ignore-identical-ids"), (False, "--no-ignore-identical-ids")):
        *_, retrieve, measure = evaluate.commands("m", "model", "demo", Path("x"), given[0], Shown(False, ignore, {"dev": 1, "test": 3}))
        assert (retrieve[0], retrieve[-1], measure[-3:]) == ("tasks.retrieve", flag, ["--relevance", "1", "3"])


def test_the_projects_least_grades_are_those_of_its_own_data(small: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(small.folder)
    small.set("evaluate.relevance", {"dev": 1, "test": 2})
    small.set("dataset.source", "beir:beir")
    plain = Settings(PLAIN, PLAIN)
    for same in ("beir:beir", "beir:./beir", f"beir:{small.folder / 'beir'}"):
        assert evaluate.decided(plain, same) == Shown(False, False, {"dev": 1, "test": 2})
    assert evaluate.decided(plain, "beir:elsewhere") == evaluate.decided(plain, "irds:beir") == Shown(False, False, ONE)
    for relevance, least in (([3], {"dev": 3, "test": 3}), ([1, 3], {"dev": 1, "test": 3})):
        given = Settings(PLAIN, PLAIN, titles=True, ignore_identical_ids=True, relevance=relevance)
        assert evaluate.decided(given, "beir:beir") == Shown(True, True, least)
    small.set("evaluate.relevance", 2)
    small.set("evaluate.measures", ["nDCG@10", "RR@10", "AP", "AP(rel=1)"])
    assert evaluate.decided(Settings(PLAIN, PLAIN, relevance=[2]), "demo").relevance == {"dev": 2, "test": 2}
    with pytest.raises(UserError, match=r"^--relevance \(a grade that suits evaluate.measures\): .*'AP\(rel=1\)' is listed twice"):
        evaluate.decided(plain, "demo")
    done = small.stage("evaluate@warmup", "--relevance", "1", "2")
    assert (done.status, done.err.count("\n")) == (2, 1) and "is listed twice" in done.err


def test_what_cannot_be_measured_is_refused_before_it_is_encoded(small: Any) -> None:
    small.set("evaluate.relevance", 2)
    evaluated(small, PLAIN)  # all grades are 1, and the project's are not asked for
    (small.folder / "beside/encoder/config.json").write_text("none is read")
    line = "^beir:beir: found 1 as the largest grade of test, expected 2 at least, the least that is relevant; set --relevance 1, or"
    with pytest.raises(UserError, match=line):
        evaluated(small, PLAIN, relevance={"dev": 1, "test": 2})
    assert (small.folder / "beside/encoder/config.json").read_text() == "none is read", "base did not run"
    for split in ("dev", "test"):
        header, *_ = small.read(f"beir/qrels/{split}.tsv").splitlines(keepends=True)
        small.write(f"beir/qrels/{split}.tsv", header)
    with pytest.raises(UserError, match=r"^beir:beir: found no relevant document for dev or test queries, expected some"):
        evaluated(small, PLAIN)
    for given in ("0", "1 0", "1 2 3"):
        done = small.retemper("evaluate", "--model", "data/encoders/warmup", "--data", "demo", "--relevance", *given.split())
        line = f"retemper: --relevance {given}: expected a grade of 1 at least, or one for dev and one for test\n"
        assert (done.status, done.err) == (2, line)


def test_a_length_without_room_for_a_word(small: Any) -> None:
    done = small.retemper("evaluate", "--model", "data/encoders/warmup", "--data", "demo", "--query-length", "2")
    assert (done.status, done.err) == (2, "retemper: --query-length 2: expected 3 tokens at least, special ones included\n")


def test_a_fusion_is_evaluated_with_bm25_built_there_and_the_weight_as_chosen(small: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(small.folder)
    sections, shown = read_yaml(small.folder / "params.yaml"), Shown(False, False, ONE)

    def measured(name: str, data: str) -> Any:
        beside = small.folder / f"beside-{data.rpartition(':')[2]}"
        planned = evaluate.fused_commands(evaluate.fused_plan(name, sections), data, beside, settings=Settings(PLAIN, PLAIN), shown=shown)
        for module, *arguments in planned:
            done = small.call(import_module(f"{module}.__main__").main, [module, *arguments])
            assert done.status == 0, (module, done)
        return json.loads((beside / "metrics.json").read_text()), beside

    own, beside = measured("hybrid", "beir:beir")
    assert own == json.loads(small.read("data/metrics/hybrid.json")), "on the project's own data the project's own figures"
    assert (beside / "runs/hybrid/test.trec").read_bytes() == small.read("data/runs/hybrid/test.trec")
    assert sorted(path.name for path in (beside / "candidates").iterdir()) == ["dev.parquet", "test.parquet"], "no training queries"
    record = json.loads(small.read("data/runs/hybrid/fusion.json")) | {"weight": 1.0}
    small.write("data/runs/hybrid/fusion.json", json.dumps(record))  # BM25 alone
    for place in small.folder.glob("beside-*"):
        shutil.rmtree(place)
    bm25 = json.loads(small.read("data/metrics/bm25.json"))
    for split, figures in measured("hybrid", "beir:beir")[0].items():
        assert figures["RR@10"] == pytest.approx(bm25[split]["RR@10"])


def test_a_fusion_that_cannot_be_evaluated(small: Any) -> None:
    def line(name: str) -> str:
        done = small.retemper("evaluate", "--model", name, "--data", "beir:beir")
        assert (done.status, done.err.count("\n")) == (2, 1)
        return str(done.err)

    assert "fuse.three: is made from crossed, which reorders a run and cannot be searched for a new query" in line("three")
    small.set("fuse.hybrid.method", "rrf")
    assert "data/runs/hybrid/fusion.json: found method linear, expected rrf as in fuse.hybrid of params.yaml; run retemper run" in line(
        "hybrid"
    )
    shutil.rmtree(small.folder / "data/runs/hybrid")
    assert "data/runs/hybrid/fusion.json: not found: fuse.hybrid has not run yet; run retemper run" in line("hybrid")
    shutil.rmtree(small.folder / "data/encoders/tower")
    assert "data/encoders/tower: not found, and fuse.hybrid is made from it; run retemper run" in line("hybrid")
