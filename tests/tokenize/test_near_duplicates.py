"""Near-duplicates by MinHash, against sets compared in a plain loop."""

import json
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tasks.core.files import write_json
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.tokens.same_texts import SAME, same_texts
from tasks.tokenize.near_duplicates import FOUND, VALUES, bands_of, first_of_near


def tokens_of(folder: Path, documents: list[list[list[int]]]) -> Tokens:
    """A token folder of documents, each a list of passages."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [passage for passages in documents for passage in passages]
    np.array([token for row in rows for token in row], dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))
    np.save(folder / "owners.npy", np.repeat(np.arange(len(documents)), [len(passages) for passages in documents]).astype(np.int32))
    schema = pa.schema([("id", pa.string())])
    write_table(folder / "ids.parquet", schema, [pa.table({"id": [f"d{n}" for n in range(len(documents))]}, schema)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": 64, "prefix": "", "tokenizer": ""})
    return open_tokens(folder)


def shingles(document: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(row[place : place + 3]) for row in document for place in range(max(1, len(row) - 2))}


def jaccard(document: list[list[int]], other: list[list[int]]) -> float:
    first, second = shingles(document), shingles(other)
    return len(first & second) / len(first | second)


def corpus() -> list[list[list[int]]]:
    """60 documents of one or two passages, each with a copy that has 0 to 5 tokens changed."""
    rng = np.random.default_rng(5)
    documents = []
    for number in range(60):
        passages = [rng.integers(1, 500, size=rng.integers(30, 60)).tolist() for _ in range(1 + number % 2)]
        copy = [list(row) for row in passages]
        for place in rng.integers(0, 30, size=number % 6):
            copy[0][place] = 999
        documents += [passages, copy]
    return documents


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_groups_are_those_of_a_plain_loop(threshold: float, tmp_path: Path) -> None:
    documents = corpus()
    firsts = first_of_near(tokens_of(tmp_path, documents), threshold)
    alike = {
        (first, second)
        for first, second in combinations(range(len(documents)), 2)
        if jaccard(documents[first], documents[second]) >= threshold
    }
    linked = {(first, second) for first, second in combinations(range(len(documents)), 2) if firsts[first] == firsts[second]}
    assert linked <= alike, "exact: every pair is compared"
    assert len(linked) >= FOUND * len(alike)
    assert 10 <= len(alike) <= 60
    assert all(firsts[owner] <= owner and firsts[firsts[owner]] == firsts[owner] for owner in range(len(documents)))


def test_short_documents_and_chains(tmp_path: Path) -> None:
    long = list(range(100, 160))
    chain = [[long], [[*long[:-1], 1]], [[*long[:-2], 2, 1]]]  # neighbours differ in one token
    ends = [[[1, 2, 3], [9]], [[1, 2, 3], [8]]]  # a passage shorter than a shingle counts as one
    firsts = first_of_near(tokens_of(tmp_path, [[[7]], [[7]], [[8]], [[7, 8]], *chain, [[]], *ends]), 0.9)
    assert firsts.tolist() == [0, 0, 2, 3, 4, 4, 4, 7, 8, 9]


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9])
def test_a_prefix_does_not_count(threshold: float, tmp_path: Path) -> None:
    """Short documents under a long prefix are as alike as without it; of a passage that it fills, the last token counts."""
    chain = [[list(range(100, 160))], [[*range(100, 159), 1]]]
    documents = [[[1, 2, 3]], [[4, 5], [6, 7, 8]], [[9]], [[9, 10]], [[6, 7, 8]], *chain, *corpus()]
    prompt = list(range(600, 640))
    prefixed = [[prompt + row for row in passages] for passages in documents]
    plain = first_of_near(tokens_of(tmp_path / "plain", documents), threshold).tolist()
    assert first_of_near(tokens_of(tmp_path / "prefixed", prefixed), threshold, prompt).tolist() == plain
    assert plain[:4] == [0, 1, 2, 3] and plain[5:7] == [5, 5]
    full = [[prompt[:30]], [[*prompt[:29], 7]], [[]], [[*prompt[:20], 7]]]
    assert first_of_near(tokens_of(tmp_path / "full", full), threshold, prompt).tolist() == [0, 1, 2, 1]


def test_the_bands_find_a_pair_at_the_threshold() -> None:
    for threshold in (0.3, 0.5, 0.8, 0.95, 1.0):
        bands, values = bands_of(threshold)
        assert bands * values <= VALUES
        assert 1 - (1 - threshold**values) ** bands >= FOUND
    assert bands_of(0.8) == (10, 6)


def test_the_stage_groups_documents_if_asked(tiny_corpus: Any, tiny_encoder: Path, tmp_path: Path, run_stage: Callable[..., str]) -> None:
    shutil.copytree(tiny_corpus.records, tmp_path / "corpus")
    table = pq.read_table(tmp_path / "corpus/documents.parquet")
    copy = table.slice(3, 1).set_column(0, table.schema.field(0), pa.array(["copy"]))
    write_table(tmp_path / "corpus/documents.parquet", table.schema, [pa.concat_tables([table, copy])])
    arguments = ["--corpus", "corpus", "--tokenizer", str(tiny_encoder)]
    for value, out in (("null", "plain"), ("0.9", "near")):
        (tmp_path / "params.yaml").write_text(f"text: {{}}\ntokenize: {{near_duplicates: {value}}}\n")
        output = run_stage(tmp_path, "tokenize", *arguments, "--out", out)
        assert ("1 of 61 documents is a near-duplicate of an earlier one" in output) == (value != "null")
    assert np.load(tmp_path / "plain/documents" / SAME).shape == (0,)
    assert same_texts(open_tokens(tmp_path / "near/documents"), np.arange(61)).first[60] == 3


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PREFIX = "Represent this document of the corpus, with its title and all that it says of people and places, for a search by questions: "
HALF = "On the day after the flood, the people of the lower town carried what was left of their houses to the hill above the church"
LONG = f"{HALF}; nobody had seen water in the market since the year of the great storm, when the old bridge broke, "
SHORT = ["Yes", "No", "Yes weather today", "No weather today", "1", "2", ""]
TEXTS = [*SHORT, f"{LONG}and slept.", f"{LONG}and sang.", f"{HALF}, and slept."]
GROUPS = [0, 1, 2, 3, 4, 5, 6, 7, 7, 9]


def byte_level() -> Tokenizer:
    """As GPT-2, RoBERTa, and ModernBERT: the space before a word is a part of its token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([PREFIX + text for text in TEXTS] * 3, trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """As XLM-RoBERTa: SentencePiece, with a space before the first word."""
    words = [f"\u2581{word}" for word in " ".join([PREFIX, *TEXTS]).split()]
    scores = {piece: -float(len(SPECIAL) + number) for number, piece in enumerate(dict.fromkeys([*words, *"".join(words)]))}
    tokenizer = Tokenizer(models.Unigram([*((token, 0.0) for token in SPECIAL), *scores.items()], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return tokenizer


def spaced() -> Tokenizer:
    """As Llama: SentencePiece without words, so a token may begin with a word's end and a space."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, max_token_length=5, show_progress=False)
    tokenizer.train_from_iterator([PREFIX + text for text in TEXTS] * 3, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT: no token has a space."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator([PREFIX + text for text in TEXTS] * 3, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, special: str, folder: Path) -> None:
    """`special`: how special tokens are around a text, as `[CLS] $A [SEP]`."""
    tokenizer.post_processor = processors.TemplateProcessing(single=special, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


@pytest.mark.parametrize("special", ["[CLS] $A [SEP]", "$A [SEP]", "$A"])
@pytest.mark.parametrize("make", [byte_level, unigram, spaced, word_piece])
def test_short_documents_under_a_prefix_differ_by_their_first_word(
    make: Callable[[], Tokenizer], special: str, tiny_corpus: Any, tmp_path: Path, run_stage: Callable[..., str]
) -> None:
    """The space behind a prefix is often a part of the text's first token, and of no token of the prefix's own."""
    shutil.copytree(tiny_corpus.records, tmp_path / "corpus")
    (tmp_path / "corpus/documents.parquet").unlink()
    ids = [f"d{number}" for number in range(len(TEXTS))]
    write_table(tmp_path / "corpus/documents.parquet", DOCUMENTS, [pa.table([ids, [""] * len(TEXTS), TEXTS], schema=DOCUMENTS)])
    save_tokenizer(make(), special, tmp_path / "tokenizer")
    prompt = PREFIX.strip()
    for prefix, passages, length in (("", 1, 128), (PREFIX, 1, 128), (prompt, 1, 128), (f"{prompt}\n", 1, 128), (PREFIX, 9, 64)):
        params = {"document_prefix": prefix, "document_length": length, "passages": passages, "near_duplicates": 0.8}
        (tmp_path / "params.yaml").write_text(json.dumps({"text": {"titles": False}, "tokenize": params}))
        run_stage(tmp_path, "tokenize", "--corpus", "corpus", "--tokenizer", "tokenizer", "--out", "out")
        tokens = open_tokens(tmp_path / "out/documents")
        assert np.load(tokens.folder / SAME).tolist() == GROUPS, (passages, prefix)
        assert (len(tokens) > len(TEXTS)) == (passages > 1), "the long ones have several passages"
