"""What a step may draw: no document with the text of a positive is a negative, whatever its id and title."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flows.team import exposure as team_exposure
from tasks import exposure
from tasks.bm25.negatives import without_positives
from tasks.core.tables.parquet import write_table
from tasks.core.tables.schemas import DOCUMENTS, QRELS, QUERIES, RANKED
from tasks.core.text.document import Text, document_text
from tasks.core.tokens.same_texts import SAME
from tasks.core.training.exposure import HARD
from tasks.reranker import groups
from tasks.reranker.groups import draw_groups, read_groups, same_documents
from tasks.reranker.params import Reranker

DOCS = [("p", "", "one text"), ("copy", "a title", "one text"), ("other", "", "another"), ("s", "", "a third"), ("third", "", "a third")]
ASKED = {"q": "a question", "again": "a question", "lone": "nothing but a copy"}  # the first two are the same
JUDGED = [("q", "p"), ("lone", "s")]
LISTED = [("q", ("p", "copy", "other")), ("again", ("copy", "other")), ("lone", ("third",))]


def corpus(folder: Path, docs: Sequence[tuple[str, str, str]] = DOCS) -> Path:
    (folder / "queries").mkdir()
    (folder / "qrels").mkdir()
    write_table(folder / "documents.parquet", DOCUMENTS, [pa.table([*map(list, zip(*docs, strict=True))], schema=DOCUMENTS)])
    columns = [list(ASKED), list(ASKED.values()), [[] for _ in ASKED]]
    write_table(folder / "queries/train.parquet", QUERIES, [pa.table(columns, schema=QUERIES)])
    qrels = pa.table([*map(list, zip(*JUDGED, strict=True)), pa.array([1] * len(JUDGED), pa.int32())], schema=QRELS)
    write_table(folder / "qrels/train.parquet", QRELS, [qrels])
    rows = [(query, doc, rank, 1.0) for query, docs in LISTED for rank, doc in enumerate(docs, 1)]
    candidates = pa.Table.from_pylist([dict(zip(RANKED.names, row, strict=True)) for row in rows], RANKED)
    write_table(folder / "negatives.parquet", RANKED, without_positives([candidates], qrels))
    return folder


def test_a_copy_of_a_positive_is_no_negative(tmp_path: Path) -> None:
    training_groups = read_groups(corpus(tmp_path), tmp_path / "negatives.parquet", (1, 200), Text(), tmp_path)
    assert training_groups.queries.tolist() == [0], "one has no judgment of its own, of one every listed document is a copy"
    assert training_groups.negatives_of(0).tolist() == [2]
    params = Reranker.model_validate({"source": "x", "negatives": "bm25", "steps": 1, "hard_negatives": 2, "batch_queries": 4})
    assert {tuple(docs) for step in range(20) for _, docs in draw_groups(training_groups, params, step)} == {(0, 2, 2)}


def test_a_near_duplicate_of_a_positive_is_no_negative(tmp_path: Path) -> None:
    """Those that tokenize found (tokenize.near_duplicates), as in rounds: here `other` is nearly `p`, and `third` is not `s`."""
    docs = [("p", "", "one text"), ("copy", "", "else"), ("other", "", "one text, nearly"), ("s", "", "a third"), ("third", "", "a fourth")]
    path, near = corpus(tmp_path, docs), tmp_path / SAME
    read = partial(read_groups, path, tmp_path / "negatives.parquet", (1, 200), Text(), tmp_path)
    np.save(near, np.empty(0, np.int64))
    assert [read(near=near).negatives_of(query).tolist() for query in (0, 2)] == [[1, 2], [4]], "it did not look for any"
    np.save(near, np.array([0, 1, 0, 3, 4]))
    assert [read(near=near).negatives_of(query).tolist() for query in (0, 2)] == [[1], [4]]


def test_documents_of_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across parts of the file: all with the text of a given one, and the first of each."""
    path = corpus(tmp_path) / "documents.parquet"
    for rows in (1, 2, groups.ROWS):
        monkeypatch.setattr(groups, "ROWS", rows)
        same = same_documents(path, np.array([3, 1, 1]), Text())
        assert same.members.tolist() == [0, 1, 3, 4] and same.first.tolist() == [0, 0, 3, 3]
    assert same_documents(path, np.array([], dtype=np.int64), Text()).members.tolist() == []


def test_documents_that_have_only_a_title_are_not_copies_if_it_is_read(tmp_path: Path) -> None:
    """The titles count as the cross-encoder reads them: joined to the text, if at all."""
    docs = [("p", "Red shoe", ""), ("copy", "", "Red shoe"), ("other", "Blue hat", ""), ("s", "Green coat", ""), ("third", "A", "")]
    path, titles = corpus(tmp_path, docs), Text(titles=True, separator="")
    training_groups = read_groups(path, tmp_path / "negatives.parquet", (1, 200), titles, tmp_path)
    assert training_groups.queries.tolist() == [0, 2]
    assert [training_groups.negatives_of(query).tolist() for query in (0, 2)] == [[2], [4]]
    same = same_documents(path / "documents.parquet", np.array([0]), titles)
    assert same.members.tolist() == [0, 1] and same.first.tolist() == [0, 0]
    assert same_documents(path / "documents.parquet", np.array([0]), Text()).members.tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize(("title", "body"), [("t", "b"), ("", "b"), ("t", ""), ("", "")])
def test_a_text_is_as_the_cross_encoder_reads_it(title: str, body: str) -> None:
    rows = pa.table({"title": [title], "text": [body]})
    for text in (Text(), Text(titles=True), Text(titles=True, separator=": ")):
        assert groups._texts(rows, text).to_pylist() == [document_text(title, body, text)]


def test_exposure_replays_with_the_titles_of_the_training(tmp_path: Path) -> None:
    path = corpus(tmp_path, [(doc, doc, "") for doc, _, _ in DOCS])
    (path / "mined").mkdir()
    (path / "negatives.parquet").rename(path / "mined/train.parquet")
    entry = {
        "cmd": f"python -m tasks.reranker --name r --negatives {path}/mined --corpus {path}",
        "params": {"data/params.json": {"text": {"titles": True}, "rerankers.r": {"source": "x", "negatives": "bm25", "steps": 1}}},
    }
    question = team_exposure._question(team_exposure.Training("reranker", "r", {"reranker@r": entry}), tmp_path, tmp_path)
    ((_, roles),) = exposure.replay(question, tmp_path).steps
    assert set(roles[HARD].tolist()) == {1, 2, 4}
