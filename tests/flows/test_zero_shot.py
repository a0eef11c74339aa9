"""`retemper evaluate` with its real stages: a model is measured as it is, whatever the project says of its own models."""

import json
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from flows import zero_shot

PLAIN: dict[str, None] = {"query": None, "document": None}


def evaluated(
    small: Any, prefixes: Mapping[str, str | None], lengths: Mapping[str, int | None] = PLAIN, titles: bool = False, drop: bool = False
) -> Any:
    """What `retemper evaluate --model data/encoders/warmup --data beir:beir` measures, in this process."""
    beside = small.folder / "beside"
    for module, *arguments in zero_shot.commands("m", "data/encoders/warmup", "beir:beir", beside, prefixes, lengths, titles, drop, False):
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
    told = zero_shot._texts(Path("data"), False, False)
    assert re.fullmatch(r"queries of at most \d+ tokens, prefix ''; documents of at most 24 tokens, prefix ''; titles off", told)
    assert zero_shot._texts(Path("data"), False, True) == f"{told}; identical ids left out"


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
    assert "tokenize.document_length is 2000, the model takes 512 tokens at most: 512 are taken" in done.out
    assert (length(small, "queries"), length(small, "documents")) == (32, 512)
    done = small.stage(*arguments, "--document-length=600")
    assert (done.status, done.err) == (2, "retemper: --document-length: found 600, the model takes 512 tokens at most\n")


def test_the_command_line_hands_them_over(small: Any, monkeypatch: Any) -> None:
    given: list[Any] = []
    monkeypatch.setattr(zero_shot, "evaluate", lambda *arguments: given.append(arguments[3:]) or 0)
    done = small.retemper(
        "evaluate", "--model", "m", "--data", "demo", "--document-length", "128", "--no-titles", "--drop", "--ignore-identical-ids"
    )
    assert done.status == 0, done
    assert given == [(PLAIN, {"query": None, "document": 128}, False, True, True)]
    for ignore, flag in ((True, "--ignore-identical-ids"), (False, "--no-ignore-identical-ids")):
        assert zero_shot.commands("m", "model", "demo", Path("x"), PLAIN, PLAIN, False, False, ignore)[-1][-1] == flag


def test_a_length_without_room_for_a_word(small: Any) -> None:
    done = small.retemper("evaluate", "--model", "data/encoders/warmup", "--data", "demo", "--query-length", "2")
    assert (done.status, done.err) == (2, "retemper: --query-length 2: expected 3 tokens at least, special ones included\n")
