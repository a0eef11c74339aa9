"""Queries written by a tiny T5: equal to transformers' own call, independent of what else is written, refused where it is none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from tasks.core.stage.errors import UserError
from tasks.pseudo.generator import BATCH, make_writer
from tasks.pseudo.making import candidates
from tasks.pseudo.params import Pseudo

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def generator(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, eos_token_id=102, pad_token_id=0, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings(generator: Path, **values: Any) -> Pseudo:
    return Pseudo.model_validate({"kinds": ["generated"], "generator": str(generator), "generated": 2, "generator_tokens": 12} | values)


def test_queries_are_those_of_transformers(generator: Path) -> None:
    params, texts = settings(generator), [f"document number {n} about the river" for n in range(BATCH + 3)]
    heard: list[int] = []
    found = make_writer(generator, params, CPU, torch.float32, heard.append)(texts)
    assert [len(queries) for queries in found] == [2] * len(texts) and heard == [BATCH, 3]
    assert len({query for queries in found for query in queries}) > len(texts), "they are drawn, not all the same"
    assert make_writer(generator, params, CPU, torch.float32, heard.append)(texts[BATCH:]) == found[BATCH:], "whatever is written before"
    assert make_writer(generator, settings(generator, seed=1), CPU, torch.float32, heard.append)(texts) != found
    greedy = make_writer(generator, settings(generator, top_k=1, generated=1), CPU, torch.float32, heard.append)(texts[:2])
    tokenizer, model = AutoTokenizer.from_pretrained(generator), T5ForConditionalGeneration.from_pretrained(generator).eval()
    for text, (query,) in zip(texts, greedy, strict=False):
        ids = tokenizer([text], truncation=True, max_length=12, return_tensors="pt")
        (alone,) = model.generate(ids["input_ids"], attention_mask=ids["attention_mask"], do_sample=False, max_new_tokens=64)
        assert query == " ".join(tokenizer.decode(alone, skip_special_tokens=True).split()), "the likeliest token each time"


def test_the_caller_s_draws_and_determinism_are_left_alone(generator: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    write = make_writer(generator, settings(generator), CPU, torch.float32, lambda _: None)
    before = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch.use_deterministic_algorithms(True, warn_only=False)  # as choose_device sets it on CUDA, for the judge that encodes afterwards
        write(["one text"])
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(True, warn_only=before)
    assert torch.equal(torch.rand(3), expected)


def test_they_are_queries_of_their_document(generator: Path) -> None:
    params = settings(generator, kinds=["title", "generated"])
    made = candidates("d", "A title", "Text.", params, ["what is it", "a TITLE", ""])
    assert [(one.id, one.text) for one in made] == [("pseudo-title-0-d", "A title"), ("pseudo-generated-0-d", "what is it")]


def test_what_is_no_generator_is_refused(tiny_encoder: Path) -> None:
    with pytest.raises(UserError, match=r"pseudo.generator: .*cannot be loaded .*expected a sequence-to-sequence model, such as T5"):
        make_writer(tiny_encoder, settings(tiny_encoder), CPU, torch.float32, lambda _: None)
    with pytest.raises(ValueError, match="kinds title and generator x: expected generated among"):
        Pseudo.model_validate({"kinds": ["title"], "generator": "x"})
    with pytest.raises(ValueError, match="kinds generated and generator null: expected generated among the kinds, and a generator"):
        Pseudo.model_validate({"kinds": ["generated"]})
