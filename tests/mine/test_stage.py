"""Mined negatives equal a ranking by plain Python, every known positive removed; exact and through an index."""

import shutil
import sys
from importlib import import_module
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.models.bi_encoder import load_towers
from tasks.core.retrieval import queries as core_queries
from tasks.core.retrieval import ranked
from tasks.core.retrieval.ann import search as faiss_search
from tasks.core.retrieval.ann.search import index_scores
from tasks.core.retrieval.embeddings import Manifest, write_manifest
from tasks.core.tables.ids import IDS
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import QRELS, RANKED
from tasks.core.tokens.same_texts import SAME
from tasks.mine import guard

pytestmark = pytest.mark.usefixtures("one_thread")

QUERIES, DOCUMENTS, WIDTH = 9, 40, 128
Pairs = set[tuple[int, int]]


def write_tokens(folder: Path, name: str, rows: list[list[int]], owners: list[int]) -> None:
    folder.mkdir(parents=True)
    np.array([token for row in rows for token in row], dtype=np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, rows)]))
    np.save(folder / "owners.npy", np.array(owners, dtype=np.int32))
    ids = [f"{name}{n}" for n in range(max(owners, default=-1) + 1)]
    write_table(folder / "ids.parquet", IDS, [pa.table([ids], schema=IDS)])
    write_json(folder / "meta.json", {"dtype": "uint16", "pad": 0, "max_length": 8, "prefix": "", "tokenizer": ""})


class Case:
    """Random documents of one to three passages, their vectors, an index, queries and qrels."""

    def __init__(self, folder: Path, encoder: Path, queries: int = QUERIES, documents: int = DOCUMENTS, passages: int = 3) -> None:
        draw = np.random.default_rng(documents)
        self.folder, self.encoder = folder, encoder
        self.owners = np.repeat(np.arange(documents), draw.integers(1, passages + 1, size=documents)).tolist()
        self.rows = draw.integers(1000, 30000, size=(queries, 6)).tolist()
        self.vectors = draw.normal(size=(len(self.owners), WIDTH)).astype(np.float32)
        write_tokens(folder / "documents", "d", [[row] for row in range(len(self.owners))], self.owners)
        write_tokens(folder / "queries", "q", self.rows, list(range(queries)))
        (folder / "embeddings").mkdir()
        cut = len(self.owners) // 3
        shards = [part for part in (cut, len(self.owners) - cut) if part]
        for number, part in enumerate(np.split(self.vectors, np.cumsum(shards)[:-1])):
            np.save(folder / "embeddings" / f"{number:05}.npy", part)
        manifest = Manifest(len(self.owners), WIDTH, "float32", shards, "", "", 8, "")
        write_manifest(folder / "embeddings", manifest, folder / "documents")
        (folder / "indexes").mkdir()
        index = faiss.IndexFlatIP(WIDTH)
        index.add(self.vectors)
        faiss.write_index(index, str(folder / "indexes" / "index.faiss"))

    def order(self, query: int) -> list[tuple[int, float]]:
        """Every document with its best passage's score, the best first."""
        tower = load_towers(self.encoder).query
        with torch.no_grad():
            vector = tower(torch.tensor([self.rows[query]]), torch.ones(1, 6, dtype=torch.int64))[0].numpy().astype(np.float64)
        best: dict[int, float] = {}
        for owner, passage in zip(self.owners, self.vectors.astype(np.float64), strict=True):
            best[owner] = max(best.get(owner, -np.inf), float(sum(vector * passage)))
        return sorted(best.items(), key=lambda pair: -pair[1])

    def run(
        self, monkeypatch: pytest.MonkeyPatch, search: str, depth: int, skip: int, qrels: list[tuple[str, str, int]], options: str = ""
    ) -> list[tuple[str, str, int, float]]:
        (self.folder / "params.yaml").write_text(
            f"mine: {{m: {{search: {search}, depth: {depth}, skip: {skip}, precision: fp32{options}}}}}\n"
        )
        table = pa.table([list(column) for column in zip(*qrels, strict=True)] or [[], [], []], schema=QRELS)
        write_table(self.folder / "qrels.parquet", QRELS, [table])
        monkeypatch.chdir(self.folder)
        paths = f"--vectors {search} --encoder {self.encoder} --documents documents --queries queries --qrels qrels.parquet --out out"
        monkeypatch.setattr(sys, "argv", ["mine", "--name", "m", *paths.split()])
        import_module("tasks.mine.__main__").main()
        assert sorted(file.name for file in (self.folder / "out").iterdir()) == ["positives.parquet", "train.parquet"]
        return [tuple(row.values()) for row in read_table(self.folder / "out" / "train.parquet", RANKED).to_pylist()]


@pytest.mark.parametrize("search", ["embeddings", "indexes"])
@pytest.mark.parametrize(("depth", "skip"), [(5, 0), (1, 0), (4, 3), (1000, 0)])
def test_equals_brute_force_without_positives(
    search: str, depth: int, skip: int, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, tiny_encoder)
    orders = [case.order(query) for query in range(QUERIES)]
    positives: Pairs = {(q, doc) for q in range(1, QUERIES) for doc, _ in orders[q][: q - 1]}  # the best ones: they would be mined
    positives |= {(1, orders[1][2][0])}
    judged = [(f"q{q}", f"d{doc}", 1 + q % 2) for q, doc in sorted(positives)]
    irrelevant = [(f"q{q}", f"d{orders[q][-1][0]}", 0) for q in range(QUERIES)]  # judged, and not relevant: still negatives
    irrelevant += [("q0", f"d{orders[0][0][0]}", 0)]
    elsewhere = [("q3", "not in the corpus", 1), ("not a query", "d1", 2), *judged[:3]]  # and some rows twice
    monkeypatch.setattr(ranked, "QUERY_BLOCK", 4)
    rows = case.run(monkeypatch, search, depth, skip, judged + irrelevant + elsewhere)
    expected = []
    for query, order in enumerate(orders):
        negatives = [(doc, score) for doc, score in order if (query, doc) not in positives][skip : skip + depth]
        expected += [(f"q{query}", f"d{doc}", rank, pytest.approx(score, abs=1e-4)) for rank, (doc, score) in enumerate(negatives, 1)]
    assert rows == expected
    assert not {(int(q[1:]), int(doc[1:])) for q, doc, *_ in rows} & positives


def test_what_has_the_text_of_a_positive_is_not_mined(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Document 3 is a copy of the positive of query 0, and query 1 asks what query 0 does."""
    case = Case(tmp_path, tiny_encoder, passages=1)
    shutil.rmtree(tmp_path / "documents")
    write_tokens(tmp_path / "documents", "d", [[7 if row == 3 else row] for row in range(DOCUMENTS)], case.owners)
    tokens = np.fromfile(tmp_path / "queries/tokens.bin", dtype=np.uint16)
    tokens[6:12] = tokens[:6]
    tokens.tofile(tmp_path / "queries/tokens.bin")
    case.rows[1] = case.rows[0]
    rows = case.run(monkeypatch, "embeddings", 1000, 0, [("q0", "d7", 1), ("q2", "d9", 1)])
    excluded = {
        query: {f"d{n}" for n in range(DOCUMENTS)} - {doc for q, doc, *_ in rows if q == query} for query in ("q0", "q1", "q2", "q3")
    }
    assert excluded == {"q0": {"d3", "d7"}, "q1": {"d3", "d7"}, "q2": {"d9"}, "q3": set()}


def test_copies_of_a_positive_take_no_place_among_the_mined(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best twenty documents of query 0 are copies of one, its positive: the next two are mined."""
    case = Case(tmp_path, tiny_encoder, passages=1)
    order = [document for document, _ in case.order(0)]
    shutil.rmtree(tmp_path / "documents")
    write_tokens(tmp_path / "documents", "d", [[99] if row in order[:20] else [row] for row in range(DOCUMENTS)], case.owners)
    rows = case.run(monkeypatch, "embeddings", 2, 0, [("q0", f"d{order[0]}", 1)])
    assert [doc for query, doc, *_ in rows if query == "q0"] == [f"d{document}" for document in order[20:22]]


@pytest.mark.parametrize("search", ["embeddings", "indexes"])
def test_a_query_with_more_positives_than_depth(search: str, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, tiny_encoder, queries=2)
    order = case.order(1)
    rows = case.run(monkeypatch, search, 2, 0, [("q1", f"d{doc}", 1) for doc, _ in order[:30]])
    assert [row[1] for row in rows if row[0] == "q1"] == [f"d{doc}" for doc, _ in order[30:32]]
    rows = case.run(monkeypatch, search, 2, 0, [("q1", f"d{doc}", 1) for doc, _ in order])
    assert [row for row in rows if row[0] == "q1"] == []  # nothing is left
    assert len(rows) == 2


@pytest.mark.parametrize("search", ["embeddings", "indexes"])
@pytest.mark.parametrize(("queries", "documents"), [(0, 5), (1, 1), (3, 2)])
def test_the_smallest_cases(
    search: str, queries: int, documents: int, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, tiny_encoder, queries, documents, passages=1)
    rows = case.run(monkeypatch, search, 200, 0, [])
    assert len(rows) == queries * documents
    assert rows == [
        (f"q{q}", f"d{doc}", rank, pytest.approx(score, abs=1e-4))
        for q in range(queries)
        for rank, (doc, score) in enumerate(case.order(q), 1)
    ]
    assert case.run(monkeypatch, search, 200, 0, [("q0", "d0", 1)]) == without_pair(rows, "q0", "d0")


def test_a_skip_that_leaves_nothing_is_refused(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, tiny_encoder, 2, 3, passages=1)
    with pytest.raises(UserError, match=r"^params.yaml: mine.m: found no negative for any of 2 queries in 3 documents, .*; lower skip"):
        case.run(monkeypatch, "embeddings", 200, 3, [])


def without_pair(rows: list[tuple[str, str, int, float]], query: str, document: str) -> list[tuple[str, str, int, float]]:
    """`rows` without one pair, ranks closed up."""
    gone = next((rank for q, doc, rank, _ in rows if (q, doc) == (query, document)), 10**9)
    return [(q, doc, rank - (q == query and rank > gone), score) for q, doc, rank, score in rows if (q, doc) != (query, document)]


def test_encoder_of_wrong_width_or_with_nan_is_refused(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, tiny_encoder)
    monkeypatch.setattr(core_queries, "encode", lambda *_: np.ones((QUERIES, 7), dtype=np.float32))
    with pytest.raises(UserError, match="width 128, but the encoder has 7"):
        case.run(monkeypatch, "embeddings", 3, 0, [])
    monkeypatch.setattr(core_queries, "encode", lambda *_: np.full((QUERIES, WIDTH), np.nan, dtype=np.float32))
    for search in ("embeddings", "indexes"):
        with pytest.raises(UserError, match="returns NaN or infinity for a query"):
            case.run(monkeypatch, search, 3, 0, [])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("search", ["embeddings", "indexes"])
@pytest.mark.parametrize(("relative", "absolute"), [(0.2, None), (None, 3.0), (0.1, 6.0), (None, 0.0)])
def test_margins_discard_negatives_close_to_a_positive(
    search: str, relative: float | None, absolute: float | None, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is below the best of two positives; query 0 has none and keeps all; query 1's are negative in score."""
    case = Case(tmp_path, tiny_encoder)
    orders = [case.order(query) for query in range(QUERIES)]
    places = {1: (-1, -2), **{q: (q, q + 3) for q in range(2, QUERIES)}}
    positives = {(q, orders[q][place][0]) for q, pair in places.items() for place in pair}
    assert orders[1][-2][1] < 0
    options = "".join(f", {name}_margin: {value}" for name, value in (("relative", relative), ("absolute", absolute)) if value is not None)
    judged = [(f"q{q}", f"d{d}", 1) for q, d in sorted(positives)]
    rows = case.run(monkeypatch, search, 1000, 1, judged, options)
    expected = []
    for q, order in enumerate(orders):
        best = max((score for doc, score in order if (q, doc) in positives), default=None)
        margins = [] if best is None else [m for m in (relative and relative * abs(best), absolute) if m is not None]
        left = [(d, s) for d, s in order if (q, d) not in positives and all(s <= best - m for m in margins)][1:]
        expected += [(f"q{q}", f"d{d}", rank, pytest.approx(s, abs=1e-4)) for rank, (d, s) in enumerate(left, 1)]
    assert rows == expected
    short = case.run(monkeypatch, search, 4, 1, judged, options)  # discarded negatives within the searched depth are not replaced
    assert short
    assert short == [row for row in rows if row[2] <= sum(query == row[0] for query, *_ in short)]
    assert max(rank for *_, rank, _ in short) <= 4
    own = [tuple(row.values()) for row in read_table(tmp_path / "out" / "positives.parquet", RANKED).to_pylist()]
    assert own == [
        (f"q{q}", f"d{d}", rank, pytest.approx(s, abs=1e-4))
        for q, order in enumerate(orders)
        for rank, (d, s) in enumerate(((d, s) for d, s in order if (q, d) in positives), 1)
    ]


def test_scores_from_an_index_with_codes_are_those_of_its_own_search() -> None:
    draw = np.random.default_rng(0)
    vectors, queries = draw.normal(size=(400, 16)).astype(np.float32), draw.normal(size=(3, 16)).astype(np.float32)
    for factory in ("PQ4x4", "OPQ4,IVF4,PQ4x4", "IVF4,Flat", "HNSW8,Flat"):
        index = faiss.index_factory(16, factory, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        scores, rows = index.search(queries, 5)
        actual = index_scores(index, queries, np.repeat(np.arange(3), 5), rows.ravel())
        np.testing.assert_allclose(actual, scores.ravel(), rtol=1e-4, atol=1e-4)


def test_index_with_scores_unlike_its_vectors_is_refused(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positives would be scored on another scale than negatives, making margins meaningless."""
    case = Case(tmp_path, tiny_encoder)
    index = faiss.index_factory(WIDTH, "L2norm,Flat", faiss.METRIC_INNER_PRODUCT)
    index.add(case.vectors * 3)
    faiss.write_index(index, str(tmp_path / "indexes" / "index.faiss"))
    with pytest.raises(UserError, match=r"^params.yaml: mine.m.search: indexes: this index does not score by its decoded"):
        case.run(monkeypatch, "indexes", 4, 1, [("q0", "d1", 1)])


def set_parts_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ranked, core_queries, faiss_search, guard):
        monkeypatch.setattr(module, "QUERY_BLOCK", 4)
    monkeypatch.setattr(core_queries, "HELD", 1)
    monkeypatch.setattr(core_queries, "FEWEST", 4)


@pytest.mark.parametrize("search", ["embeddings", "indexes"])
def test_killed_and_resumed(search: str, tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine queries make three parts: a kill in the second keeps the vectors and the first part, and the result is the same."""
    case = Case(tmp_path, tiny_encoder)
    judged = [(f"q{q}", f"d{(q * 5 + n) % DOCUMENTS}", 1) for q in range(2, QUERIES) for n in range(3)]
    arguments = (search, 6, 1, judged, ", absolute_margin: 0.5")
    expected = case.run(monkeypatch, *arguments)
    assert not (tmp_path / ".retemper").exists(), "one part leaves nothing behind"
    set_parts_of_four(monkeypatch)
    assert case.run(monkeypatch, *arguments) == [(q, d, rank, pytest.approx(score, abs=1e-5)) for q, d, rank, score in expected]
    undisturbed = [(tmp_path / "out" / name).read_bytes() for name in ("train.parquet", "positives.parquet")]
    for name in (".retemper", "out"):
        shutil.rmtree(tmp_path / name)

    module, function = (core_queries, "exact_search") if search == "embeddings" else (faiss_search, "search_index")
    genuine, before, calls = getattr(module, function), int(search == "indexes"), list[int]()  # an index is tried out first

    def die_at_call(*given: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == killed:
            raise KeyboardInterrupt
        return genuine(*given, **named)

    monkeypatch.setattr(module, function, die_at_call)
    killed = before + 2
    with pytest.raises(KeyboardInterrupt):
        case.run(monkeypatch, *arguments)
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.glob(".retemper/scratch/mine-m/*/*.parquet"))) == 1

    killed = -1
    calls.clear()
    with monkeypatch.context() as patch:
        patch.setattr(core_queries, "encode", lambda *_: pytest.fail("the vectors are there"))
        case.run(monkeypatch, *arguments)
    assert len(calls) == before + 2
    assert [(tmp_path / "out" / name).read_bytes() for name in ("train.parquet", "positives.parquet")] == undisturbed

    (first, *_) = sorted(tmp_path.glob(".retemper/scratch/mine-m/*/*.parquet"))
    first.write_bytes(first.read_bytes()[:-9])  # a machine lost its power
    calls.clear()
    case.run(monkeypatch, *arguments)
    assert len(calls) == before + 1
    assert [(tmp_path / "out" / name).read_bytes() for name in ("train.parquet", "positives.parquet")] == undisturbed

    calls.clear()
    case.run(monkeypatch, search, 6, 1, judged[1:], ", absolute_margin: 0.5")
    assert len(calls) == before + 3, "other judgements, other work"


def test_queries_without_any_negative_between_parts(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole part of them too: the guard looks for the next table's queries further on."""
    case = Case(tmp_path, tiny_encoder)
    judged = [(f"q{q}", f"d{d}", 1) for q in (0, 4, 5, 6, 7) for d in range(DOCUMENTS)]
    undisturbed = case.run(monkeypatch, "embeddings", 3, 0, judged)
    assert sorted({q for q, *_ in undisturbed}) == ["q1", "q2", "q3", "q8"]
    set_parts_of_four(monkeypatch)
    assert [row[:3] for row in case.run(monkeypatch, "embeddings", 3, 0, judged)] == [row[:3] for row in undisturbed]


def digest_of(case: Case, monkeypatch: pytest.MonkeyPatch, search: str = "embeddings", depth: int = 3, options: str = "") -> str:
    """The digest that names the finished parts of a mining that has several."""

    def raise_digest(name: str, digest: str) -> Path:
        assert name == "mine-m"
        raise UserError(digest)

    with monkeypatch.context() as patch, pytest.raises(UserError) as refusal:
        set_parts_of_four(patch)
        patch.setattr("tasks.mine.__main__.scratch_folder", raise_digest)
        case.run(patch, search, depth, 0, [("q0", "d1", 1)], options)
    return str(refusal.value)


def test_other_near_duplicates_are_other_work(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, tiny_encoder)
    digests = [digest_of(case, monkeypatch)]
    for groups in (np.arange(DOCUMENTS), np.arange(DOCUMENTS) // 2):
        np.save(tmp_path / "documents" / SAME, groups)
        digests += [digest_of(case, monkeypatch), digest_of(case, monkeypatch)]
    assert digests[1] == digests[2] and digests[3] == digests[4] and len(set(digests)) == 3


def test_other_inputs_and_parameters_are_other_work(tiny_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an index, its file; of embeddings, their manifest."""
    case = Case(tmp_path, shutil.copytree(tiny_encoder, tmp_path / "encoder"))
    owners = np.load(tmp_path / "documents/owners.npy")
    owners[1:] = np.sort(owners[1:] * 0 + np.arange(1, len(owners)) % DOCUMENTS)
    ids = pa.table([[f"x{n}" for n in range(DOCUMENTS)]], schema=IDS)
    first = digest_of(case, monkeypatch)
    digests = [first, digest_of(case, monkeypatch, depth=4), digest_of(case, monkeypatch, options=", absolute_margin: 1.0")]
    tokens, manifest = tmp_path / "queries/tokens.bin", tmp_path / "embeddings/manifest.json"
    for change in (
        lambda: (tmp_path / "encoder/config.json").write_bytes((tmp_path / "encoder/config.json").read_bytes() + b"\n"),
        lambda: tokens.write_bytes(tokens.read_bytes()[::-1]),
        lambda: np.save(tmp_path / "documents/owners.npy", owners),
        lambda: write_table(tmp_path / "documents/ids.parquet", IDS, [ids]),
        lambda: manifest.write_bytes(manifest.read_bytes() + b"\n"),
    ):
        change()
        digests += [digest_of(case, monkeypatch)]
        assert digest_of(case, monkeypatch) == digests[-1]
    digests += [digest_of(case, monkeypatch, "indexes")]
    manifest.write_bytes(manifest.read_bytes() + b"\n")
    assert digest_of(case, monkeypatch, "indexes") == digests[-1]
    faiss.write_index(faiss.IndexFlatIP(WIDTH), str(tmp_path / "indexes/index.faiss"))
    assert len({*digests, digest_of(case, monkeypatch, "indexes")}) == len(digests) + 1
