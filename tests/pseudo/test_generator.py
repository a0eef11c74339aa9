"""Queries written by a tiny T5: equal to transformers' own call, independent of what else is written, refused where it is none."""

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from transformers import AutoTokenizer, T5ForConditionalGeneration

from tasks.core.errors import UserError
from tasks.core.stage.progress import Progress
from tasks.pseudo.generator import BATCH, load_generator, make_writer
from tasks.pseudo.journal import Journal
from tasks.pseudo.making import candidates
from tasks.pseudo.params import Pseudo
from tests.fake_gpu import GPU, fake_gpu

CPU = torch.device("cpu")


def settings(generator: Path, **values: Any) -> Pseudo:
    return Pseudo.model_validate({"kinds": ["generated"], "generator": str(generator), "generated": 2, "generator_tokens": 12} | values)


class Writing:
    """A generator that writes to the journal `name` of this folder."""

    def __init__(self, generator: Path, name: str = "", **values: Any) -> None:
        self.progress = Progress("generate", None)
        journal = Journal(Path(name or f"{uuid4()}"))
        self.write = make_writer(generator, settings(generator, **values), CPU, torch.float32, journal=journal, progress=self.progress)


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_queries_are_those_of_transformers(generator: Path) -> None:
    texts = [f"document number {n} about the river" for n in range(BATCH + 3)]
    writing = Writing(generator)
    query_lists = writing.write(texts)
    assert [len(queries) for queries in query_lists] == [2] * len(texts)
    assert (writing.progress.done, writing.progress.resumed) == (BATCH + 3, 0)
    assert len({query for queries in query_lists for query in queries}) > len(texts), "they are drawn, not all the same"
    assert Writing(generator).write(texts[BATCH:]) == query_lists[BATCH:], "whatever is written before"
    assert Writing(generator, seed=1).write(texts) != query_lists
    greedy = Writing(generator, top_k=1, generated=1).write(texts[:2])
    tokenizer, model = AutoTokenizer.from_pretrained(generator), T5ForConditionalGeneration.from_pretrained(generator).eval()
    for text, (query,) in zip(texts, greedy, strict=False):
        ids = tokenizer([text], truncation=True, max_length=12, return_tensors="pt")
        (token_ids,) = model.generate(ids["input_ids"], attention_mask=ids["attention_mask"], do_sample=False, max_new_tokens=64)
        assert query == " ".join(tokenizer.decode(token_ids, skip_special_tokens=True).split()), "the likeliest token each time"


def test_another_attention_of_config_json_is_ignored(generator: Path, tmp_path: Path) -> None:
    """One that needs a package which is not installed."""
    folder = tmp_path / "flash"
    shutil.copytree(generator, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attn_implementation": "flash_attention_2"}))
    texts = ["a document about the river", "another one"]
    assert Writing(folder).write(texts) == Writing(generator).write(texts)


def test_batches_that_were_written_are_not_written_again(generator: Path) -> None:
    """Killed after the second of five batches, in the middle of a line; a batch's line is then spoilt on disk."""
    first, second = [f"text {n}" for n in range(BATCH + 5)], [f"other {n}" for n in range(2 * BATCH + 1)]
    undisturbed = Writing(generator)
    expected = undisturbed.write(first), undisturbed.write(second)
    killed = Writing(generator, "journal")
    assert killed.write(first) == expected[0]
    with Path("journal").open("ab") as handle:
        handle.write(b'["0123", 2, [["half a li')
    resumed = Writing(generator, "journal")
    assert (resumed.write(first), resumed.write(second)) == expected
    assert (resumed.progress.done, resumed.progress.resumed) == (3 * BATCH + 6, BATCH + 5)
    lines = Path("journal").read_text().splitlines(keepends=True)
    assert len(lines) == 6
    lines[1] = lines[1].replace('", 1, [["', '", 1, [["x')
    Path("journal").write_text("".join(lines))
    again = Writing(generator, "journal")
    assert (again.write(first), again.write(second)) == expected
    assert (again.progress.done, again.progress.resumed) == (3 * BATCH + 6, 3 * BATCH + 1)


def test_the_caller_s_draws_and_determinism_are_left_alone(generator: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    write = Writing(generator).write
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
    pseudo_queries = candidates("d", "A title", "Text.", params, ["what is it", "a TITLE", ""])
    assert [(query.id, query.text) for query in pseudo_queries] == [("pseudo-title-0-d", "A title"), ("pseudo-generated-0-d", "what is it")]


def test_what_is_no_generator_is_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"pseudo.generator: .*cannot be loaded .*expected a sequence-to-sequence model, such as T5"):
        Writing(tiny_encoder)
    (tmp_path / "config.json").write_text('{"model_type": "t5", "d_model": "wide"}')
    with pytest.raises(UserError, match=r"pseudo.generator: .*cannot be loaded .*d_model.*expected a sequence-to-sequence model"):
        load_generator(tmp_path)
    with pytest.raises(ValueError, match="kinds title and generator x: expected generated among"):
        Pseudo.model_validate({"kinds": ["title"], "generator": "x"})
    with pytest.raises(ValueError, match="kinds generated and generator null: expected generated among the kinds, and a generator"):
        Pseudo.model_validate({"kinds": ["generated"]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_are_written_on_a_gpu(generator: Path, dtype: torch.dtype) -> None:
    progress = Progress("generate", None)
    with fake_gpu():
        write = make_writer(generator, settings(generator), GPU, dtype, journal=Journal(Path("journal")), progress=progress)
        written = write([f"document {number} about a river" for number in range(70)])
    assert [len(queries) for queries in written] == [2] * 70
