"""`python -m tasks.search`: the best documents with their text, from the index that would be served."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.bm25.params import BM25
from tasks.core.encoding.encode import encode_texts
from tasks.core.errors import UserError
from tasks.core.lexical.build import build, save
from tasks.core.lexical.search import term_ids
from tasks.core.models.bi_encoder import load_towers
from tasks.core.retrieval.ann.search import search_index
from tasks.core.tables.parquet import read_batches, write_table
from tasks.core.tables.schemas import DOCUMENTS
from tasks.core.text.analysis import analyzer
from tasks.core.tokens.params import Cut
from tasks.core.tokens.store import write_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.search import lists
from tasks.search.__main__ import headline, paragraph
from tasks.search.lists import DenseSystem, Texts, texts_of_tokens

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def project(tiny_corpus: Any, tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    tokenizer = load_tokenizer(tiny_encoder)
    ids, texts = list(tiny_corpus.documents), [text for _, text in tiny_corpus.documents.values()]
    write_tokens(folder / "tokens" / "documents", [(ids, texts)], tokenizer, Cut(32), digest="", total=len(ids))
    write_tokens(folder / "tokens" / "queries" / "train", [(["q"], ["text"])], tokenizer, Cut(8, "query: "), digest="", total=1)
    batches = list(read_batches(tiny_corpus.records / "documents.parquet", DOCUMENTS))
    parts = [batch.slice(start, 7) for batch in batches for start in range(0, batch.num_rows, 7)]
    write_table(folder / "documents.parquet", DOCUMENTS, parts)  # row groups of seven
    index = faiss.IndexFlatIP(128)
    index.add(encode_texts(load_towers(tiny_encoder).document, load_tokenizer(tiny_encoder), texts, 32, CPU))
    (folder / "index").mkdir()
    faiss.write_index(index, str(folder / "index" / "index.faiss"))
    return folder


def argv(encoder: Path, query: str, *options: str) -> list[str]:
    return ["--model", "m", str(encoder), "index", "--documents=documents.parquet", "--tokens=tokens", f"--query={query}", *options]


def run(project: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "argv", ["search", *arguments])
    import_module("tasks.search.__main__").main()


@pytest.mark.parametrize(
    ("text", "k"),
    [("Chancellor of Germany", 5), ("a query of far more than eight tokens that is truncated", 1), ("x", 1000), ("\udcff", 2)],
)
def test_prints_the_best_documents_with_their_texts(
    text: str,
    k: int,
    project: Path,
    tiny_corpus: Any,
    tiny_encoder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(project, monkeypatch, argv(tiny_encoder, text, f"--k={k}"))
    lines = capsys.readouterr().out.splitlines()
    tower, tokenizer = load_towers(tiny_encoder).document, load_tokenizer(tiny_encoder)
    bodies = [body for _, body in tiny_corpus.documents.values()]
    query = encode_texts(tower, tokenizer, ["query: " + text.replace("\udcff", "\ufffd")], 8, CPU)[0]
    scores = encode_texts(tower, tokenizer, bodies, 32, CPU).astype(np.float64) @ query.astype(np.float64)
    ids = list(tiny_corpus.documents)
    best = sorted(range(60), key=lambda n: -scores[n])[:k]
    heads = [line for line in lines if not line.startswith("     ")]
    assert [line.split()[::2][:2] for line in heads] == [[str(rank), ids[n]] for rank, n in enumerate(best, 1)]
    assert [float(line.split()[1]) for line in heads] == pytest.approx(scores[best].tolist(), abs=2e-4)
    assert [line.split("  ")[-1] for line in heads] == [tiny_corpus.documents[ids[n]][0] for n in best]
    first_hit = "\n".join(lines).split("\n" + heads[1])[0] if len(heads) > 1 else "\n".join(lines)
    excerpt = " ".join(first_hit.split("\n", 1)[1].split()).removesuffix(" ...")
    assert len(excerpt) > 20 and " ".join(bodies[best[0]].split()).startswith(excerpt)
    assert max(map(len, lines)) <= 140


def test_json_has_the_same_documents_as_the_text(
    project: Path, tiny_corpus: Any, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(project, monkeypatch, argv(tiny_encoder, "Chancellor\u2028of Germany", "--k=5"))
    text = printed_scores(capsys.readouterr().out)
    run(project, monkeypatch, argv(tiny_encoder, "Chancellor\u2028of Germany", "--k=5", "--json"))
    answer = json.loads(capsys.readouterr().out)
    assert (answer["query"], answer["model"]) == ("Chancellor\u2028of Germany", "m")
    assert [(hit["rank"], hit["id"], f"{hit['score']:.4f}") for hit in answer["hits"]] == [
        (rank, doc, f"{score:.4f}") for rank, (doc, score) in enumerate(text.items(), 1)
    ]
    assert [(hit["title"], hit["text"]) for hit in answer["hits"]] == [tiny_corpus.documents[hit["id"]] for hit in answer["hits"]]


@pytest.mark.parametrize(
    ("query", "options", "words"), [("", (), "the query is empty"), (" \t\n", (), "the query is empty"), ("x", ("--k=0",), "--k 0")]
)
def test_invalid_queries_and_counts_are_refused(
    query: str, options: tuple[str, ...], words: str, project: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=words):
        run(project, monkeypatch, argv(tiny_encoder, query, *options))


def test_an_index_of_another_corpus_is_refused(project: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    batch = next(read_batches(project / "documents.parquet", DOCUMENTS)).slice(0, 2)
    write_table(tmp_path / "few.parquet", DOCUMENTS, [batch])
    arguments = [*argv(tiny_encoder, "x"), f"--documents={tmp_path / 'few.parquet'}"]
    with pytest.raises(UserError, match=r"few.parquet: no document d\d+; the index is from another corpus"):
        run(project, monkeypatch, arguments)


def test_an_index_that_finds_too_little_is_told_once(
    project: Path, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    exact = faiss.read_index("index/index.faiss")
    index = faiss.index_factory(128, "IVF8,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(exact.reconstruct_n())
    index.add(exact.reconstruct_n())
    Path("few").mkdir()
    faiss.write_index(index, "few/index.faiss")
    flags = []
    read_index = faiss.read_index
    monkeypatch.setattr(faiss, "read_index", lambda path, flag: (flags.append(flag), read_index(path, flag))[1])
    system = DenseSystem(texts_of_tokens(Path("tokens")), encoder=tiny_encoder, index=Path("few"))
    assert len(system.search(["Chancellor of Germany"], 1)[0].documents) == 1
    assert not capsys.readouterr().err
    counts = [len(system.search(["Chancellor of Germany", "a river"], 1000)[n].documents) for n in (0, 1)]
    assert capsys.readouterr().err == (
        f"few: the index found too few results for 2 of 2 queries, {min(counts)} of {exact.ntotal} at worst; "
        "raise nprobe (1 of 8 inverted lists probed)\n"
    )
    assert flags == [faiss.IO_FLAG_MMAP_IFC], "once, and not into memory"


def test_one_long_document_does_not_make_every_search_as_deep(tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(60), [*rng.integers(1, 4, size=59), 300]).astype(np.int32)
    index = faiss.IndexFlatIP(128)
    index.add(rng.normal(size=(len(owners), 128)).astype(np.float32))
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    depths = []
    monkeypatch.setattr(lists, "search_index", lambda *args: (depths.append(args[2]), search_index(*args))[1])
    ids = pa.array([f"d{number:02}" for number in range(60)])
    system = DenseSystem(Texts("", 8, owners, ids), encoder=tiny_encoder, index=tmp_path)
    vector = encode_texts(load_towers(tiny_encoder).query, load_tokenizer(tiny_encoder), ["a river"], 8, CPU)
    scores = index.reconstruct_n().astype(np.float64) @ vector[0].astype(np.float64)
    best = [float(scores[owners == owner].max()) for owner in range(60)]
    for depth in (1, 5, 60, 100):
        (result,) = system.search(["a river"], depth)
        assert result.documents == [f"d{owner:02}" for owner in sorted(range(60), key=lambda owner: -best[owner])[:depth]]
        assert result.scores == pytest.approx(sorted(best, reverse=True)[:depth], abs=1e-4)
    assert depths[0] == 4, "the first rows for one document; a list of the longest would be 300 times as long"


def test_an_empty_query_is_a_one_line_error_with_status_2(project: Path, tiny_encoder: Path) -> None:
    command = [sys.executable, "-m", "tasks.search", *argv(tiny_encoder, "")]
    process = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == "retemper: the query is empty; enter some words\n"


def test_a_reader_that_has_seen_enough_gets_no_traceback(project: Path, tiny_encoder: Path) -> None:
    """`retemper search TEXT | head`."""
    command = [sys.executable, "-m", "tasks.search", *argv(tiny_encoder, "a village")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    process = subprocess.Popen(command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert (process.stderr.read(), process.wait()) == ("", 128 + signal.SIGPIPE)


def test_control_characters_in_a_document_are_escaped(
    tiny_encoder: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = list(read_batches(project / "documents.parquet", DOCUMENTS))
    hostile = [
        batch.set_column(n, name, pa.array([f"\x1b[2J\x9b\n{value}" for value in batch[name].to_pylist()]))
        for batch in batches
        for n, name in [(batch.schema.get_field_index("title"), "title")]
    ]
    hostile = [
        batch.set_column(n, name, pa.array([f"\x1b]0;x\x07 {value}" for value in batch[name].to_pylist()]))
        for batch in hostile
        for n, name in [(batch.schema.get_field_index("text"), "text")]
    ]
    write_table(tmp_path / "documents.parquet", DOCUMENTS, hostile)
    run(project, monkeypatch, [*argv(tiny_encoder, "x"), f"--documents={tmp_path / 'documents.parquet'}", "--k=2"])
    output = capsys.readouterr().out
    assert not [character for character in output if character != "\n" and not character.isprintable()]
    assert len([line for line in output.splitlines() if not line.startswith("     ")]) == 2, "a title is one line"
    assert headline(1, 0.5, "a\x1bb", "c\n\x1bd") == r"  1  0.5000  a\x1bb  c \x1bd"


def test_line_ends_of_a_text_are_blanks() -> None:
    """Those of Windows too, which a CSV file's cells may have."""
    assert paragraph("1. open\r\n2. \x1bclose\n\n\tdone") == r"     1. open 2. \x1bclose done"


def test_a_text_is_no_wider_than_its_terminal(paper: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    text = "word " * 60
    assert max(map(len, paragraph(text).splitlines())) > 100, "a pipe has no width"
    terminal = paper("stdout")
    for columns in (60, 80, 200):
        monkeypatch.setattr(terminal, "columns", columns)
        assert columns - 5 <= max(map(len, paragraph(text).splitlines())) <= columns or columns == 200


def test_a_fusion_combines_the_lists_of_its_systems(
    project: Path, tiny_corpus: Any, tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Min-max by hand, from what the parts print: all documents for the model; for BM25, those that share a word with the query."""
    terms, texts = analyzer("english", "english"), [text for _, text in tiny_corpus.documents.values()]
    postings = build(texts, terms, BM25(), tmp_path)
    save(project / "bm25", postings, [pa.array(list(tiny_corpus.documents))], BM25())
    text = " ".join(word for words in texts[:4] for word in words.split()[2:5])
    run(project, monkeypatch, argv(tiny_encoder, text, "--k=60"))
    dense = printed_scores(capsys.readouterr().out)
    weights = postings.get_scores_from_ids(term_ids(terms(text), postings.vocab_dict)).tolist()
    lexical = {doc: score for doc, score in zip(tiny_corpus.documents, weights, strict=True) if score > 0}
    assert 1 < len(lexical) < len(dense) == 60
    fusion = {"first": "bm25", "second": "m", "method": "linear", "weight": 0.35}
    (tmp_path / "hybrid.json").write_text(json.dumps(fusion))
    (tmp_path / "rrf.json").write_text(json.dumps({"first": "hybrid", "second": "m", "method": "rrf", "k": 5}))
    fused = ["--lexical=bm25", "--fusion", "hybrid", str(tmp_path / "hybrid.json")]

    def normalized_score(scores: dict[str, float], doc: str) -> float:
        low, high = min(scores.values()), max(scores.values())
        return (scores.get(doc, low) - low) / (high - low)

    expected = {doc: 0.35 * normalized_score(lexical, doc) + 0.65 * normalized_score(dense, doc) for doc in dense}
    run(project, monkeypatch, argv(tiny_encoder, text, "--k=7", *fused))
    best_scores = printed_scores(capsys.readouterr().out)
    assert list(best_scores) == sorted(expected, key=lambda doc: -expected[doc])[:7]
    assert list(best_scores.values()) == pytest.approx([expected[doc] for doc in best_scores], abs=1e-3)
    run(project, monkeypatch, argv(tiny_encoder, text, "--k=3", *fused, "--fusion", "both", str(tmp_path / "rrf.json")))
    ranks = [sorted(scores, key=lambda doc: -scores[doc]) for scores in (expected, dense)]
    reciprocal = {doc: sum(1 / (6 + order.index(doc)) for order in ranks) for doc in dense}
    assert list(printed_scores(capsys.readouterr().out)) == sorted(reciprocal, key=lambda doc: (reciprocal[doc], doc), reverse=True)[:3]
    shallow = ["--depth=5", "--lexical-depth=5", *fused, "--fusion", "both", str(tmp_path / "rrf.json")]
    run(project, monkeypatch, argv(tiny_encoder, text, "--k=60", *shallow))
    best_scores = printed_scores(capsys.readouterr().out)
    inner = {*ranks[1][:5], *sorted(lexical, key=lambda doc: -lexical[doc])[:5]}
    assert set(best_scores) == inner, "a fusion within a fusion is as deep as it says, not as the list of a model"
    (tmp_path / "hybrid.json").write_text(json.dumps(fusion | {"depth": 2}))
    run(project, monkeypatch, argv(tiny_encoder, text, "--k=60", *fused, "--fusion", "both", str(tmp_path / "rrf.json")))
    best_scores = printed_scores(capsys.readouterr().out)
    top = {doc: 1 / (6 + rank) for rank, doc in enumerate(ranks[0][:2])}
    reciprocal = {doc: top.get(doc, 0) + 1 / (6 + ranks[1].index(doc)) for doc in dense}
    assert best_scores == pytest.approx(reciprocal, abs=1e-4)
    (tmp_path / "rrf.json").write_text(json.dumps({"first": "star", "second": "m", "method": "rrf", "k": 5}))
    with pytest.raises(UserError, match=r"rrf.json: found first star, expected one of m, bm25; run retemper run"):
        run(project, monkeypatch, argv(tiny_encoder, text, "--fusion", "both", str(tmp_path / "rrf.json"), "--lexical=bm25"))


def printed_scores(output: str) -> dict[str, float]:
    heads = [line.split() for line in output.splitlines() if not line.startswith("     ")]
    return {head[2]: float(head[1]) for head in heads}
