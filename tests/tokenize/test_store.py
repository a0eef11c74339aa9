"""Token folders equal the tokenizer's own output text by text; the stage's entry from corpus to folders."""

import random
import shutil
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tasks.core.errors import UserError
from tasks.core.files import folder_digest
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import QUERIES
from tasks.core.text import mapped
from tasks.core.tokens.folder import open_tokens
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.tokenize import pieces
from tasks.tokenize.params import Tokenize

LETTERS = "abcdefghij    éüñßøłżЖдщ東京日本語한글🙂👩‍👩‍👧\u200b\u0301\t\n-.,'[]"


def random_texts(count: int) -> list[str]:
    draw = random.Random(count)
    texts = ["".join(draw.choices(LETTERS, k=draw.choice([1, 3, 20, 100, 700]))) for _ in range(count - 5)]
    return [*texts, "", " ", "\u200b", "[CLS] [SEP] [PAD]", "long " * 900]


def reference_tokens(tokenizer: Any, text: str, max_length: int) -> list[int]:
    """Cut by ourselves: the special tokens stay at both ends."""
    ids = tokenizer(text, verbose=False)["input_ids"]
    return ids if len(ids) <= max_length else [*ids[: max_length - 1], tokenizer.sep_token_id]


@pytest.mark.parametrize(("prefix", "max_length", "batch"), [("", 16, 7), ("passage: ", 64, 1000), ("", 3, 1)])
def test_equals_the_tokenizer_text_by_text(prefix: str, max_length: int, batch: int, tiny_encoder: Path, tmp_path: Path) -> None:
    tokenizer, texts = load_tokenizer(tiny_encoder), random_texts(60)
    ids = [f"d{n}" for n in range(len(texts))]
    parts = ((ids[n : n + batch], texts[n : n + batch]) for n in range(0, len(texts), batch))
    write_tokens(tmp_path / "t", parts, tokenizer, Cut(max_length, prefix), digest="digest", total=len(texts))
    tokens = open_tokens(tmp_path / "t")
    fresh_tokenizer = load_tokenizer(tiny_encoder)
    rows = [tokens.flat[first:end].tolist() for first, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
    assert rows == [reference_tokens(fresh_tokenizer, prefix + text, max_length) for text in texts]
    assert max(map(len, rows)) == max_length
    assert tokens.flat.dtype == np.uint16
    assert tokens.ids().to_pylist() == ids and tokens.owners.tolist() == list(range(len(texts)))
    assert (tokens.pad, tokens.max_length, tokens.prefix, tokens.tokenizer) == (0, max_length, prefix, "digest")


def rows_of(folder: Path) -> list[list[list[int]]]:
    """The rows of each text."""
    tokens = open_tokens(folder)
    rows: list[list[list[int]]] = [[] for _ in range(len(tokens.ids()))]
    for owner, first, end in zip(tokens.owners, tokens.offsets[:-1], tokens.offsets[1:], strict=True):
        rows[owner].append(tokens.flat[first:end].tolist())
    return rows


@pytest.mark.parametrize(
    ("max_length", "passages", "overlap", "batch"),
    [(16, 4, 0, 7), (64, 2, 0, 1000), (3, 5, 0, 1), (16, 1, 0, 7), (16, 6, 5, 7), (8, 9, 5, 60)],
)
def test_passages_equal_the_tokenizers_own_overflow(
    max_length: int, passages: int, overlap: int, batch: int, tiny_encoder: Path, tmp_path: Path
) -> None:
    tokenizer, texts = load_tokenizer(tiny_encoder), random_texts(60)
    parts = ((list(map(str, range(n, n + len(part)))), part) for n in range(0, 60, batch) if (part := texts[n : n + batch]))
    write_tokens(tmp_path / "t", parts, tokenizer, Cut(max_length, "", passages, overlap), digest="digest", total=60)
    fresh_tokenizer = load_tokenizer(tiny_encoder)
    options = {"truncation": True, "max_length": max_length, "stride": overlap, "return_overflowing_tokens": True}
    cut = [fresh_tokenizer(text, **options)["input_ids"][:passages] for text in texts]
    assert rows_of(tmp_path / "t") == cut
    assert max(map(len, cut)) == passages


def test_every_passage_has_the_prefix(tiny_encoder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_encoder)
    text = "one two three four five six seven eight nine ten eleven twelve"
    write_tokens(tmp_path / "t", [(["a", "b"], [text, "one"])], tokenizer, Cut(8, "passage: ", 3), digest="", total=2)
    words, prefix = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in (text, "passage: "))
    cls, sep, room = tokenizer.cls_token_id, tokenizer.sep_token_id, 8 - 2 - len(prefix)
    first, second = rows_of(tmp_path / "t")
    assert first == [[cls, *prefix, *words[n : n + room], sep] for n in (0, room, 2 * room)]
    assert second == [[cls, *prefix, words[0], sep]]
    write_tokens(tmp_path / "o", [(["a"], [text])], tokenizer, Cut(8, "passage: ", 9, 1), digest="", total=1)
    (overlapping,) = rows_of(tmp_path / "o")
    assert overlapping == [[cls, *prefix, *words[n : n + room], sep] for n in range(0, len(words) - 1, room - 1)]


def test_the_space_behind_a_prefix_belongs_to_the_next_token(tmp_path: Path) -> None:
    """In a byte-level vocabulary: later passages have the same prompt as the first, without a space of its own."""
    text, prefix = "one two three four five six seven", "passage: "
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "<pad>", "</s>"], show_progress=False)
    bpe.train_from_iterator([f"{prefix}{text}"] * 9, trainer)
    bpe.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    start, *words, end = tokenizer(prefix + text)["input_ids"]
    prompt, room = len(words) - 7, 2
    assert tokenizer.convert_ids_to_tokens(words[prompt:]) == [f"Ġ{word}" for word in text.split()]
    write_tokens(tmp_path / "t", [(["a"], [text])], tokenizer, Cut(2 + prompt + room, prefix, 9), digest="", total=1)
    (passages,) = rows_of(tmp_path / "t")
    assert passages == [[start, *words[:prompt], *words[first : first + room], end] for first in range(prompt, len(words), room)]


def test_prefix_that_leaves_no_room_is_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="document_prefix 'passage: ' fills all 4 tokens"):
        write_tokens(tmp_path / "t", [(["a"], ["b"])], load_tokenizer(tiny_encoder), Cut(4, "passage: ", 2), digest="", total=1)


def test_an_overlap_that_leaves_no_room_is_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="passage_overlap: found 6, expected less than 6, the tokens of a passage"):
        write_tokens(tmp_path / "t", [(["a"], ["b"])], load_tokenizer(tiny_encoder), Cut(8, "", 2, 6), digest="", total=1)


def test_overlap_needs_passages() -> None:
    with pytest.raises(ValueError, match="passage_overlap 4: a document is one passage; increase passages"):
        Tokenize(passage_overlap=4)


class Numbers:
    """A tokenizer of numbers, none of its own added, with a vocabulary of `size`."""

    pad_token_id = 1

    def __init__(self, size: int) -> None:
        self.size = size

    def get_vocab(self) -> dict[str, int]:
        return {"0": 0, f"{self.size - 1}": self.size - 1}

    def __call__(self, texts: list[str], max_length: int, **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(map(int, text.split()))[:max_length] for text in texts]}


@pytest.mark.parametrize(("size", "dtype"), [(100, "uint16"), (65536, "uint16"), (65537, "int32"), (250002, "int32")])
def test_every_id_of_the_vocabulary_fits(size: int, dtype: str, tmp_path: Path) -> None:
    batches = [(["a", "b", "c"], [f"0 {size - 1}", "", "7"])]
    write_tokens(tmp_path / "t", batches, Numbers(size), Cut(5), digest="", total=3)
    tokens = open_tokens(tmp_path / "t")
    assert tokens.flat.dtype == np.dtype(dtype)
    assert tokens.flat.tolist() == [0, size - 1, 1, 7]  # a text without tokens becomes one padding token
    assert tokens.offsets.tolist() == [0, 2, 3, 4]


def run(folder: Path, tokenizer: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, tokenize: str, titles: str = "false") -> Path:
    (folder / "params.yaml").write_text(f"text: {{titles: {titles}, separator: ' | '}}\ntokenize: {tokenize}\n")
    monkeypatch.chdir(folder)
    argv = ["tokenize", "--corpus", str(corpus), "--tokenizer", str(tokenizer), "--out", "tokens"]
    monkeypatch.setattr(sys, "argv", argv)
    import_module("tasks.tokenize.__main__").main()
    return folder / "tokens"


def test_stage_tokenizes_documents_and_every_split(
    tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = "{query_length: 8, document_length: 24, query_prefix: 'query: ', document_prefix: 'passage: '}"
    out = run(tmp_path, tiny_encoder, tiny_corpus.records, monkeypatch, params, titles="true")
    tokenizer = load_tokenizer(tiny_encoder)
    documents = open_tokens(out / "documents")
    texts = [f"passage: {title} | {text}" for title, text in tiny_corpus.documents.values()]
    assert documents.ids().to_pylist() == list(tiny_corpus.documents)
    assert documents.flat.tolist() == [token for text in texts for token in reference_tokens(tokenizer, text, 24)]
    assert documents.tokenizer == folder_digest(tiny_encoder)
    for split, queries in tiny_corpus.queries.items():
        tokens = open_tokens(out / "queries" / split)
        assert tokens.ids().to_pylist() == list(queries)
        assert tokens.flat.tolist() == [token for text in queries.values() for token in reference_tokens(tokenizer, "query: " + text, 8)]
        assert tokens.prefix == "query: "
    first = folder_digest(out)
    assert folder_digest(run(tmp_path, tiny_encoder, tiny_corpus.records, monkeypatch, params, titles="true")) == first


def test_a_folder_of_the_same_name_elsewhere_is_another_tokenizer(
    tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that runs the stage in two projects, as these tests do, must not keep the first one's."""
    for name, most in (("one", 512), ("two", 20)):
        tokenizer = load_tokenizer(tiny_encoder)
        tokenizer.model_max_length = most
        tokenizer.save_pretrained(tmp_path / name / "tokenizer")
    run(tmp_path / "one", Path("tokenizer"), tiny_corpus.records, monkeypatch, "{}")
    with pytest.raises(UserError, match="expected at most 20, the model's limit"):
        run(tmp_path / "two", Path("tokenizer"), tiny_corpus.records, monkeypatch, "{}")


@pytest.mark.parametrize(
    ("params", "titles", "message"),
    [
        (
            "{query_length: 8, query_prefix: 'one two three four five six'}",
            "false",
            "query_length: found 8, expected more than 8, the tokens",
        ),
        ("{document_length: 6, document_prefix: 'one two three four five'}", "false", "document_length: found 6, expected more than 7"),
        ("{document_length: 3}", "true", "of document_prefix, text.separator, and the special ones"),
    ],
)
def test_a_prefix_that_leaves_no_token_for_the_text_is_refused(
    tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: str, titles: str, message: str
) -> None:
    """All texts would have the same tokens."""
    with pytest.raises(UserError, match=message):
        run(tmp_path, tiny_encoder, tiny_corpus.records, monkeypatch, params, titles=titles)
    assert not (tmp_path / "tokens").exists()


def test_long_documents_are_tokenized_a_few_at_a_time(
    tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is bounded by its text; the files are the same, to the row groups of the ids."""
    expected = folder_digest(run(tmp_path, tiny_encoder, tiny_corpus.records, monkeypatch, "{}"))
    sizes, real = list[int](), pieces.rows_by

    def recorded_rows_by(*settings: Any) -> Any:
        def rows(ids: list[str], texts: list[str]) -> Any:
            sizes.append(sum(len(text.encode()) for text in texts))
            return real(*settings)(ids, texts)

        return rows

    pieces._rows.cache_clear()
    monkeypatch.setattr(pieces, "rows_by", recorded_rows_by)
    monkeypatch.setattr(mapped, "split_batch", partial(mapped.split_batch, size=2000))
    assert folder_digest(run(tmp_path, tiny_encoder, tiny_corpus.records, monkeypatch, "{}")) == expected
    assert len(sizes) > 4 and max(sizes) <= 2000
    pieces._rows.cache_clear()


def test_a_split_without_queries(tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tiny_corpus.records, tmp_path / "corpus")
    write_table(tmp_path / "corpus" / "queries" / "dev.parquet", QUERIES, [QUERIES.empty_table()])
    out = run(tmp_path, tiny_encoder, tmp_path / "corpus", monkeypatch, "{}")
    assert len(open_tokens(out / "queries" / "dev")) == 0
    assert open_tokens(out / "queries" / "dev").ids().equals(pa.array([], pa.string()))


@pytest.mark.parametrize("name", ["query_length", "document_length"])
def test_length_beyond_the_models_positions_is_refused(
    name: str, tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=rf"tokenize\.{name}: found 513, expected at most 512"):
        run(tmp_path, tiny_encoder, tiny_corpus.records, monkeypatch, f"{{{name}: 513}}")
    assert not (tmp_path / "tokens").exists()
