"""BM25 against a plain loop and a case worked by hand; ties, empty queries, determinism."""

import json
import math
import random
import string
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from tasks.core.errors import UserError
from tasks.core.lexical.build import build, save
from tasks.core.lexical.params import BM25, Stopwords
from tasks.core.lexical.search import HELD, SPARSE, Searcher, load, ranked, term_ids
from tasks.core.text.analysis import analyzer, stop_list

PLAIN = BM25(stemmer="none", stopwords="none")


def lucene_bm25(documents: list[list[str]], query: list[str], k1: float, b: float) -> list[float]:
    """The formula, one loop: sum over query words of idf * tf / (tf + k1 (1 - b + b dl / avgdl))."""
    average = sum(len(document) for document in documents) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for word in query:
            n = sum(word in other for other in documents)
            tf = document.count(word)
            idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
            score += idf * tf / (tf + k1 * (1 - b + b * len(document) / average))
        scores.append(score)
    return scores


def search(documents: dict[str, str], queries: list[tuple[str, str]], params: BM25, depth: int) -> list[tuple[str, str, int, float]]:
    terms = analyzer(params.stemmer, params.stopwords, params.cjk)
    with TemporaryDirectory() as scratch:
        index = build(documents.values(), terms, params, Path(scratch))
        query_terms = [(name, term_ids(terms(text), index.vocab_dict)) for name, text in queries]
        tables = ranked(query_terms, index, pa.array(documents), depth)
        return [tuple(row.values()) for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_plain_loop(seed: int) -> None:
    rng = random.Random(seed)
    words = [a + b for a in string.ascii_lowercase[:6] for b in "xy"]
    documents = {f"d{i}": " ".join(rng.choices(words, k=rng.randint(0, 12))) for i in range(40)}
    queries = [(f"q{i}", " ".join(rng.choices([*words, "unknown"], k=rng.randint(1, 5)))) for i in range(60)]
    params = BM25(k1=rng.uniform(0, 2), b=rng.random(), stemmer="none", stopwords="none")
    depth = rng.choice([1, 5, 40])
    rows = search(documents, queries, params, depth)
    for query, text in queries:
        scores = lucene_bm25([d.split() for d in documents.values()], text.split(), params.k1, params.b)
        matching = {doc: score for doc, score in zip(documents, scores, strict=True) if score > 0}
        results = [(doc, rank, score) for q, doc, rank, score in rows if q == query]
        assert len(results) == min(depth, len(matching))
        assert [rank for _, rank, _ in results] == list(range(1, len(results) + 1))
        best = sorted(matching.values(), reverse=True)
        for doc, rank, score in results:
            assert score == pytest.approx(matching[doc], rel=1e-5)
            assert score == pytest.approx(best[rank - 1], rel=1e-5)
        assert results == sorted(sorted(results, reverse=True), key=lambda row: -row[2])  # ties: falling document id


@pytest.mark.parametrize("sparse", [0, SPARSE, 10**9], ids=["postings", "as it is", "documents"])
@pytest.mark.parametrize("seed", range(6))
def test_scores_have_the_bits_of_bm25s_and_nothing_is_left_in_the_buffer(
    seed: int, sparse: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the library's scores of all documents, fully sorted; repeated terms, ties at the last rank, queries in a row."""
    monkeypatch.setattr("tasks.core.lexical.search.SPARSE", sparse)
    rng = random.Random(seed)
    words = [f"w{int(rng.paretovariate(0.5))}" for _ in range(2000)]
    texts = [" ".join(rng.choices(words, k=rng.choice([0, 1, 5, 30]))) for _ in range(400)]
    index = build(texts, str.split, PLAIN, tmp_path)
    searcher, depths = Searcher(index), [1, 2, 10, 100, 1000]
    for _ in range(60):
        terms, depth = term_ids(rng.choices([*words, "unknown"], k=rng.randint(0, 6)), index.vocab_dict), rng.choice(depths)
        rows, scores = searcher.best(terms, depth)
        all_scores = index.get_scores_from_ids(terms)
        last = sorted(all_scores.tolist(), reverse=True)[:depth][-1]
        expected = np.flatnonzero((all_scores > 0) & (all_scores >= last))
        assert rows.tolist() == expected.tolist()
        assert scores.tobytes() == all_scores[expected].tobytes()
        assert not searcher.scores.any()


def test_tables_are_cut_where_results_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they hold HELD results or more, counted from the table before; queries without any count for nothing."""
    index = build(["cat", "cat dog", "dog", "cat"], str.split, PLAIN, tmp_path)
    words = ["cat", "dog", "bird", "cat", "dog", "dog", "cat", "bird"]
    queries = [(f"q{n}", term_ids([word], index.vocab_dict)) for n, word in enumerate(words)]
    assert HELD > 99
    (table,) = ranked(queries, index, pa.array(["a", "b", "c", "d"]), 3)
    for most in range(1, 17):
        monkeypatch.setattr("tasks.core.lexical.search.HELD", most)
        parts = list(ranked(queries, index, pa.array(["a", "b", "c", "d"]), 3))
        expected, rows = list[int](), 0
        for word in words:
            rows += {"cat": 3, "dog": 2, "bird": 0}[word]
            if rows >= most:
                expected, rows = [*expected, rows], 0
        assert [len(part) for part in parts if len(part)] == [*expected, rows][: len(expected) + bool(rows)]
        assert pa.concat_tables(parts).equals(table)


def test_a_query_of_rare_terms_touches_only_their_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    texts = [{f"w{int(rng.paretovariate(0.5))}" for _ in range(20)} for _ in range(300)]
    index = build([" ".join(sorted(words)) for words in texts], str.split, PLAIN, tmp_path)
    sizes, genuine = list[int](), Searcher._best_of_few
    monkeypatch.setattr(Searcher, "_best_of_few", lambda *args: sizes.append(args[2]) or genuine(*args))
    searcher, expected = Searcher(index), list[int]()
    for _ in range(200):
        words = rng.choices([*index.vocab_dict], k=rng.randint(0, 4))
        searcher.best(term_ids(words, index.vocab_dict), 10)
        postings = sum(word in text for word in words for text in texts)
        expected += [postings] if postings * SPARSE < len(texts) else []
    assert sizes == expected and 20 < len(sizes) < 180


def test_worked_by_hand() -> None:
    # Three documents of 2, 3 and 1 words: avgdl 2. k1 0.9, b 0.4.
    # "cat" occurs in 2 of 3: idf = ln(1 + 1.5 / 2.5) = ln 1.6 = 0.470004; "fish" in 1: ln(1 + 2.5 / 1.5) = 0.980829.
    # a: tf 1, dl 2: 1 / (1 + 0.9 (0.6 + 0.4 * 1))   = 0.526316 -> 0.470004 * 0.526316 = 0.247370
    # b: cat  tf 2, dl 3: 2 / (2 + 0.9 (0.6 + 0.6))  = 0.649351 -> 0.305197
    #    fish tf 1, dl 3: 1 / (1 + 1.08)              = 0.480769 -> 0.471553; together 0.776750
    rows = search({"a": "cat dog", "b": "Cat fish, cat!", "c": "bird"}, [("q", "cat fish")], PLAIN, 10)
    assert [row[:3] for row in rows] == [("q", "b", 1), ("q", "a", 2)]
    assert [row[3] for row in rows] == pytest.approx([0.776750, 0.247370], abs=1e-6)


def test_ties_at_the_last_rank_are_broken_by_descending_string_id() -> None:
    documents = dict.fromkeys(("9", "10", "2", "1"), "same words here") | {"0": "same words here same"}
    rows = search(documents, [("q", "words")], PLAIN, 3)
    assert [row[1] for row in rows] == ["9", "2", "10"]  # "0" is longer, so last; of the others "1" falls out


def test_ties_of_several_queries_are_each_broken_by_id() -> None:
    documents = {"b": "cat dog", "d": "cat", "a": "cat", "c": "dog cat", "e": "dog"}
    rows = search(documents, [("q1", "cat"), ("q2", "cat dog"), ("q3", "dog")], PLAIN, 5)
    assert [row[:3] for row in rows] == [
        *(("q1", doc, rank) for rank, doc in enumerate("dacb", 1)),
        *(("q2", doc, rank) for rank, doc in enumerate("cbeda", 1)),
        *(("q3", doc, rank) for rank, doc in enumerate("ecb", 1)),
    ]


def test_query_without_a_match_has_no_rows() -> None:
    assert search({"a": "cat"}, [("q1", "dog"), ("q2", ""), ("q3", "?!")], PLAIN, 5) == []
    assert [row[0] for row in search({"a": "cat"}, [("q1", "dog"), ("q2", "cat")], PLAIN, 5)] == ["q2"]


def test_analysis() -> None:
    assert analyzer("english", "english")("The Runners were running, to I/O & café2!") == ["runner", "were", "run", "café2"]
    assert analyzer("none", "english_plus")("The runners were running") == ["runners", "running"]
    assert analyzer("german", "none")("Häuser") == ["haus"]
    with pytest.raises(ValidationError, match="expected none or one of arabic"):
        BM25(stemmer="klingon")


def test_stopwords_must_match_the_stemmers_language() -> None:
    assert analyzer("german", "german")("Die Kanzlerin und der Kanzler") == ["kanzl", "kanzl"]
    for name in get_args(Stopwords):
        stemmer = name.removesuffix("_plus")
        assert BM25(stemmer=stemmer, stopwords=name).stopwords == name
        words = stop_list(name)
        assert (len(words) > 30 or name == "none") and analyzer(stemmer, name)(" ".join(words)) == []
    for stemmer, stopwords in [("porter", "english_plus"), ("dutch_porter", "dutch"), ("none", "french"), ("arabic", "none")]:
        BM25(stemmer=stemmer, stopwords=stopwords)
    mismatches = {
        ("german", "english"): "german or none",
        ("arabic", "english"): "none",
        ("porter", "french"): "english or english_plus or none",
    }
    for (stemmer, stopwords), expected in mismatches.items():
        with pytest.raises(ValueError, match=f"stopwords are {stopwords}, the stemmer is {stemmer}; expected stopwords: {expected} "):
            BM25.model_validate({"stemmer": stemmer, "stopwords": stopwords})


def test_saved_index_answers_the_same_and_is_the_same_bytes(tmp_path: Path) -> None:
    texts = ["one fish two fish", "", "red fish blue fish", "two"]
    terms = analyzer("english", "english")
    ids = [pa.array(["a", "b"]), pa.array(["c", "d"])]
    for name in ("first", "second"):
        with TemporaryDirectory() as scratch:
            save(tmp_path / name, build(iter(texts), terms, BM25(), Path(scratch)), ids, BM25())
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert all((tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes() for name in files)
    for name in files:
        if name.endswith(".npy"):
            np.load(tmp_path / "first" / name, allow_pickle=False)
    index, read_ids, analysis = load(tmp_path / "first")
    assert isinstance(index.scores["data"], np.memmap)
    query = [("q", term_ids(analyzer(**analysis)("two fish"), index.vocab_dict))]
    saved = [t.to_pylist() for t in ranked(query, index, read_ids, 9)]
    fresh = [t.to_pylist() for t in ranked(query, build(texts, terms, BM25(), tmp_path), read_ids, 9)]
    assert saved == fresh
    assert [row["doc"] for row in saved[0]] == ["a", "c", "d"]


def test_a_corpus_without_terms_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 documents have no terms, expected text; set text\.titles=true if"):
        build(["the", "!"], analyzer("english", "english"), BM25(), tmp_path)


CHINESE = {"a": "北京大学位于海淀区", "b": "我在Windows 10系统上安装软件", "c": "東京都はｶﾞｽを使う", "d": "Red fish in 北京"}


@pytest.mark.parametrize(
    ("query", "bigrams", "words"),
    [
        ("海淀区", "a", ""),
        ("北京", "da", "d"),
        ("windows系统", "b", ""),
        ("ガス", "c", ""),
        ("海", "", ""),  # a character is no bigram
        ("fishes", "d", "d"),
    ],
)
def test_text_without_blanks_is_found(query: str, bigrams: str, words: str) -> None:
    for cjk, expected in {"bigrams": bigrams, "words": words}.items():
        rows = search(CHINESE, [("q", query)], BM25.model_validate({"cjk": cjk}), 10)
        assert "".join(row[1] for row in rows) == expected


def test_an_index_is_searched_as_it_was_built(tmp_path: Path) -> None:
    """Whatever params.yaml says by then; an export from before there was a choice has words."""
    for cjk in ("bigrams", "words"):
        params = BM25.model_validate({"cjk": cjk})
        terms = analyzer(params.stemmer, params.stopwords, cjk)
        with TemporaryDirectory() as scratch:
            save(tmp_path / cjk, build(CHINESE.values(), terms, params, Path(scratch)), [pa.array(CHINESE)], params)
        index, _, analysis = load(tmp_path / cjk)
        assert analysis == {"stemmer": "english", "stopwords": "english", "cjk": cjk}
        assert term_ids(analyzer(**analysis)("海淀区"), index.vocab_dict) == term_ids(terms("海淀区"), index.vocab_dict)
    analysis_file = tmp_path / "words" / "analysis.json"
    analysis_file.write_text(json.dumps({"stemmer": "english", "stopwords": "english"}))
    assert load(tmp_path / "words")[2] == analysis
    analysis_file.write_text(json.dumps({"stemmer": "english", "stopwords": "english", "cjk": "trigrams"}))
    with pytest.raises(UserError, match=r"analysis\.json: cjk: found 'trigrams', expected bigrams or words; run bm25 again"):
        load(tmp_path / "words")
