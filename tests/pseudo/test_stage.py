"""The stage keeps what both judges find, as plain loops do; splits are disjoint; equal inputs give equal bytes."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.encoding.encode import encode_texts
from tasks.core.errors import UserError
from tasks.core.files import folder_digest, write_json
from tasks.core.lexical.params import BM25
from tasks.core.models.bi_encoder import load_towers
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import COLUMNS, DOCUMENTS, QRELS, QUERIES, SPLITS
from tasks.core.text.analysis import analyzer
from tasks.core.text.document import Text
from tasks.core.text.plain import plain
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.pseudo.judges import consistent_ids, search_bm25
from tasks.pseudo.making import Candidate, candidates, is_dev
from tasks.pseudo.params import Pseudo

Run = Callable[..., Any]
FLAT = {"k1": 0.0}  # counts do not matter, so that BM25 has ties, and misses what the encoder finds
SETTINGS = {"per_document": 2, "least_words": 1, "most_words": 4, "precision": "fp32", "dev_share": 0.3, "dev": "pseudo"}


@pytest.fixture
def project(tmp_path: Path, tiny_corpus: Any, run_stage: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(tiny_corpus.records, tmp_path / "corpus")
    (tmp_path / "runtime.yaml").write_text("device: cpu\n")
    monkeypatch.chdir(tmp_path)
    configure(tmp_path)
    (tmp_path / "corpus" / "stats.json").write_text(json.dumps({"documents": {"count": 60}}))
    if not (tmp_path / "encoder").exists():
        run_stage(tmp_path, "base", "--encoder", "encoder", "--state", "state", "--tokenizer", "tokenizer")
    return tmp_path


def configure(folder: Path, **pseudo: object) -> None:
    sections = {
        "encoder": {"source": "package:cognition/model"},
        "base": {},
        "text": {"titles": False},
        "tokenize": {"query_length": 16, "document_length": 32},
        "bm25": FLAT,
        "pseudo": SETTINGS | pseudo,
    }
    (folder / "params.yaml").write_text(json.dumps(sections))


def arguments(out: str) -> list[str]:
    return ["pseudo", "--corpus", "corpus", "--encoder", "encoder", "--tokenizer", "tokenizer", "--out", out]


def rows(folder: Path, split: str) -> tuple[dict[str, str], list[tuple[str, str, int]]]:
    queries = read_table(folder / "queries" / f"{split}.parquet", QUERIES).to_pylist()
    qrels = read_table(folder / "qrels" / f"{split}.parquet", QRELS).to_pylist()
    return {row["id"]: row["text"] for row in queries}, [tuple(row.values()) for row in qrels]


def best_documents(scores: dict[str, float], depth: int) -> list[str]:
    """The best documents, ties by descending id."""
    return [doc for doc, _ in sorted(scores.items(), key=lambda pair: (pair[1], pair[0]), reverse=True)][:depth]


def bm25_documents(query: str, documents: dict[str, str], depth: int) -> list[str]:
    terms, settings = analyzer("english", "english"), BM25.model_validate(FLAT)
    bags = {doc: terms(text) for doc, text in documents.items()}
    mean = sum(map(len, bags.values())) / len(bags)
    scores: dict[str, float] = {}
    for term in terms(query):
        containing = sum(term in bag for bag in bags.values())
        idf = math.log(1 + (len(bags) - containing + 0.5) / (containing + 0.5))
        for doc, bag in bags.items():
            if count := bag.count(term):
                weight = idf * count / (settings.k1 * (1 - settings.b + settings.b * len(bag) / mean) + count)
                scores[doc] = float(np.float32(scores.get(doc, 0)) + np.float32(weight))  # rounded as there, so that ties are the same
    return best_documents(scores, depth)


@pytest.mark.parametrize("depth", [1, 3])
def test_what_both_judges_find_is_kept(project: Path, tiny_corpus: Any, run_stage: Run, depth: int) -> None:
    configure(project, agree_depth=depth)
    run_stage(project, *arguments("out"))
    params = Pseudo.model_validate(SETTINGS | {"agree_depth": depth})
    documents = {doc: text for doc, (_, text) in tiny_corpus.documents.items()}
    pseudo_queries = [
        candidate for doc, (title, text) in tiny_corpus.documents.items() for candidate in candidates(doc, title, text, params)
    ]
    towers, tokenizer, cpu = load_towers(project / "encoder"), load_tokenizer(project / "tokenizer"), torch.device("cpu")
    vectors = {doc: encode_texts(towers.document, tokenizer, [text], 32, cpu)[0] for doc, text in documents.items()}
    kept_texts: dict[str, set[str]] = {"train": set(), "dev": set()}
    lexical = dense = dense_alone = 0
    for candidate in pseudo_queries:
        vector = encode_texts(towers.query, tokenizer, [candidate.text], 16, cpu)[0]
        by_bm25 = candidate.doc in bm25_documents(candidate.text, documents, depth)
        by_encoder = candidate.doc in best_documents(
            {doc: float(np.dot(vector, document_vector)) for doc, document_vector in vectors.items()}, depth
        )
        lexical, dense, dense_alone = lexical + by_bm25, dense + by_encoder, dense_alone + (by_encoder and not by_bm25)
        if is_dev(candidate.doc, params):
            if by_bm25 or by_encoder:
                kept_texts["dev"].add(plain(candidate.text))
        elif by_bm25 and by_encoder:
            kept_texts["train"].add(plain(candidate.text))
    stats = json.loads((project / "out" / "stats.json").read_text())["pseudo"]
    assert stats["in_dev_or_test"] == len(kept_texts["train"] & kept_texts["dev"])
    kept_texts["train"] -= kept_texts["dev"]
    assert dense_alone and dense < len(pseudo_queries) and lexical < len(pseudo_queries), "each judge refuses what the other finds"
    for split, expected in kept_texts.items():
        queries, qrels = rows(project / "out", split)
        assert {plain(text) for text in queries.values()} == expected
        assert {query for query, _, _ in qrels} == set(queries) and {grade for _, _, grade in qrels} == {1}
        assert all(is_dev(doc, params) == (split == "dev") for _, doc, _ in qrels)
    counts = {name: sum(row[name] for row in stats["kinds"].values()) for name in ("made", "bm25", "encoder", "both")}
    assert counts == {"made": len(pseudo_queries), "bm25": lexical, "encoder": dense, "both": dense - dense_alone}


def test_equal_inputs_give_equal_bytes_and_another_seed_others(project: Path, run_stage: Run) -> None:
    for folder in ("one", "two"):
        output = run_stage(project, *arguments(folder))
    assert folder_digest(project / "one") == folder_digest(project / "two")
    assert "without human judgments" in output
    configure(project, seed=43)
    run_stage(project, *arguments("three"))
    assert folder_digest(project / "one") != folder_digest(project / "three")


def test_test_and_a_dev_of_the_source_are_copied_and_its_train_is_not_read(project: Path, run_stage: Run) -> None:
    configure(project, dev=None)
    of_corpus = json.loads((project / "corpus/stats.json").read_text())
    write_json(project / "corpus/stats.json", of_corpus | {"dev_in_test": 3})
    for folder in ("queries", "qrels"):
        (project / "corpus" / folder / "train.parquet").unlink()
    run_stage(project, *arguments("out"))
    for split in ("dev", "test"):
        assert rows(project / "out", split) == rows(project / "corpus", split)
    train, _ = rows(project / "out", "train")
    assert train and all(query.startswith("pseudo-") for query in train)
    assert read_table(project / "out/documents.parquet", DOCUMENTS).equals(read_table(project / "corpus/documents.parquet", DOCUMENTS))
    stats = json.loads((project / "out" / "stats.json").read_text())
    assert stats["dev_in_test"] == 3
    assert stats["pseudo"]["dev"] == "corpus" and stats["splits"]["train"]["queries"] == len(train)


@pytest.mark.parametrize(("dev", "kept"), [(None, ["dev", "test"]), ("pseudo", ["test"])])
def test_a_split_of_the_source_keeps_its_columns(project: Path, run_stage: Run, dev: str | None, kept: list[str]) -> None:
    configure(project, dev=dev)
    for split in SPLITS:
        query = next(iter(rows(project / "corpus", split)[0]))
        write_table(project / "corpus/columns" / f"{split}.parquet", COLUMNS, [pa.table([[query], ["source"], [split]], schema=COLUMNS)])
    run_stage(project, *arguments("out"))
    assert sorted(path.stem for path in (project / "out/columns").iterdir()) == kept
    for split in kept:
        columns = Path("columns") / f"{split}.parquet"
        assert (project / "out" / columns).read_bytes() == (project / "corpus" / columns).read_bytes()


def test_a_query_that_test_has_too_is_neither_in_train_nor_in_dev(project: Path, run_stage: Run) -> None:
    run_stage(project, *arguments("before"))
    leaks = {split: next(iter(rows(project / "before", split)[0].values())) for split in ("train", "dev")}
    table = read_table(project / "corpus/queries/test.parquet", QUERIES)
    extra = [{"id": f"leak{n}", "text": text.upper(), "answers": []} for n, text in enumerate(leaks.values())]
    write_table(project / "corpus/queries/test.parquet", QUERIES, [table.from_pylist(table.to_pylist() + extra, schema=QUERIES)])
    run_stage(project, *arguments("after"))
    for split in ("train", "dev"):
        texts = set(rows(project / "after", split)[0].values())
        assert texts == set(rows(project / "before", split)[0].values()) - {leaks[split]}


def test_so_many_documents_give_queries(project: Path, run_stage: Run) -> None:
    configure(project, documents=7, agree_depth=60, kinds=["title"])
    run_stage(project, *arguments("out"))
    judged_docs = {doc for split in ("train", "dev") for _, doc, _ in rows(project / "out", split)[1]}
    stats = json.loads((project / "out" / "stats.json").read_text())["pseudo"]["kinds"]["title"]
    assert stats["made"] == 7 and judged_docs


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"kinds": ["span"], "least_words": 500, "most_words": 500, "most_sentence_words": 500},
            ("no document gives a query", "least_words"),
        ),
        ({"dev_share": 1e-9}, ("none for dev", "pseudo.dev_share")),
        ({"kinds": []}, ("pseudo.kinds", "at least 1 item")),
        ({"per_document": 0}, ("pseudo.per_document", "greater than or equal to 1")),
    ],
)
def test_what_cannot_be_made_is_told_in_one_line(project: Path, try_stage: Run, settings: dict[str, Any], words: tuple[str, ...]) -> None:
    configure(project, **settings)
    result = try_stage(project, *arguments("out"))
    line = result.err.strip().splitlines()[-1]
    assert result.status == 2 and all(word in line for word in words), result
    assert not (project / "out").exists()


def test_a_source_without_dev_cannot_give_dev_and_nothing_found_is_an_error(project: Path, try_stage: Run) -> None:
    for folder, schema in (("queries", QUERIES), ("qrels", QRELS)):
        write_table(project / "corpus" / folder / "dev.parquet", schema, [])
    configure(project, dev="corpus")
    assert "the source has no dev qrels" in try_stage(project, *arguments("out")).err
    table = read_table(project / "corpus/documents.parquet", DOCUMENTS)
    same_texts = [row | {"text": "the same words in all of them", "id": f"d{n}"} for n, row in enumerate(table.to_pylist())]
    write_table(project / "corpus/documents.parquet", DOCUMENTS, [table.from_pylist(same_texts[::-1], schema=DOCUMENTS)])
    configure(project, kinds=["title"], documents=1)
    result = try_stage(project, *arguments("out"))
    assert result.status == 2 and "both judges kept none of" in result.err
    assert set(SPLITS) == {path.stem for path in (project / "corpus/queries").glob("*.parquet")}


@pytest.mark.parametrize(("name", "value"), [("compute_dtype", torch.bfloat16), ("hardware", "another machine")])
def test_other_arithmetic_is_other_work(project: Path, try_stage: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    def raise_digest(_: str, digest: str) -> Path:
        raise UserError(digest)

    monkeypatch.setattr("tasks.pseudo.__main__.scratch_folder", raise_digest)
    first, again = (try_stage(project, *arguments("out")).err for _ in range(2))
    monkeypatch.setattr(f"tasks.pseudo.__main__.{name}", lambda *_: value)
    assert first == again != try_stage(project, *arguments("out")).err


def test_a_generator_goes_on_where_it_was_killed(project: Path, generator: Path, run_stage: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two judges: what was written is not written again, and the outs are those of a run that was not killed."""
    configure(project, kinds=["sentence", "generated"], generator=str(generator), generated=2)
    output = run_stage(project, *arguments("whole"))
    assert "generated" in output and "generate queries (cpu): 60/60 documents" in output
    shutil.rmtree(project / ".retemper/scratch")
    with monkeypatch.context() as patched:
        patched.setattr("tasks.pseudo.__main__.search_dense", lambda *_, **__: exit("killed"))
        with pytest.raises(AssertionError, match="killed"):
            run_stage(project, *arguments("resumed"))
    monkeypatch.setattr("tasks.pseudo.journal.Journal.add", lambda *_: exit("written again"))
    run_stage(project, *arguments("resumed"))
    assert folder_digest(project / "resumed") == folder_digest(project / "whole")
    table = read_table(project / "corpus/documents.parquet", DOCUMENTS)
    write_table(project / "corpus/documents.parquet", DOCUMENTS, [table.slice(1)])
    with pytest.raises(AssertionError, match="written again"):  # other documents are other work
        run_stage(project, *arguments("other"))


@pytest.mark.parametrize(("cjk", "expected_ids"), [("bigrams", {"q1", "q2"}), ("words", {"q2"})])
def test_bm25_judges_text_without_blanks_by_its_setting(tmp_path: Path, cjk: str, expected_ids: set[str]) -> None:
    documents = [{"id": "d1", "title": "", "text": "北京大学位于海淀区"}, {"id": "d2", "title": "", "text": "上海的 fish"}]
    write_table(tmp_path / "documents.parquet", DOCUMENTS, [pa.Table.from_pylist(documents, DOCUMENTS)])
    pseudo_queries = [Candidate("q1", "span", "海淀区", "d1"), Candidate("q2", "span", "fish", "d2")]
    results = search_bm25(
        pseudo_queries, tmp_path / "documents.parquet", BM25.model_validate({"cjk": cjk}), Text(), depth=1, scratch=tmp_path
    )
    assert consistent_ids(pseudo_queries, results) == expected_ids
