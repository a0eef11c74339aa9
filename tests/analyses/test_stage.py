"""The stage over a finished project: the same figures twice, gradients as a plain loop has them, and what is refused."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from transformers import AutoConfig

from flows.parameters.checks import check
from tasks.analyses.gradients import draw_batches, gradient_norms, layer_count, part_of
from tasks.analyses.overlap import overlap
from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import Towers, load_towers
from tasks.core.models.limits import model_class
from tasks.core.params.sections import read_yaml
from tasks.core.statistics.judged import click_id
from tasks.core.tables.ids import IDS, read_ids
from tasks.core.tables.parquet import read_table, write_table
from tasks.core.tables.schemas import QRELS
from tasks.core.tokens.folder import Tokens, open_tokens


def test_every_analysis_of_a_round(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = json.loads((small.folder / "data/analyses/seen/analysis.json").read_text())
    read = list[Path]()
    monkeypatch.setattr("tasks.core.tokens.folder.read_ids", lambda path: (read.append(path), read_ids(path))[1])
    result = small.stage("analyses@seen", *small.elsewhere("analyses@seen", str(tmp_path)))
    assert result.status == 0, result
    assert json.loads((tmp_path / "data/analyses/seen/analysis.json").read_text()) == analysis, "the same twice"
    assert (analysis["round"], analysis["split"], analysis["depth"]) == ("warmup", "dev", 20)
    assert analysis["negatives_overlap"]["warmup"] > 0.9, "its own mined negatives are what it finds"
    assert 0 < analysis["negatives_overlap"]["bm25"] < 1
    assert set(analysis["gradients"]) == {"in_batch", "random", "bm25", "warmup"}
    for figures in analysis["gradients"].values():
        assert set(figures) == {"loss", "all", "embeddings", "bottom", "middle"}, "a layer of two is no third of them"
        parts = [value for part, value in figures.items() if part not in ("loss", "all")]
        assert figures["all"] <= sum(parts) * (1 + 1e-6)
    for curve in analysis["curves"]:
        assert curve["scores"] == sorted(curve["scores"], reverse=True)
    assert read and not [path for path in read if path.parent.name == "documents"], "a corpus has millions of ids"
    (map_,) = analysis["maps"]
    judged = read_table(small.folder / "data/corpus/qrels/dev.parquet", QRELS).to_pylist()
    relevant = {row["doc"] for row in judged if row["query"] == map_["query"]}
    assert {point["id"] for point in map_["points"] if point["kind"] == "relevant"} == relevant
    kinds = [point["kind"] for point in map_["points"]]
    assert kinds[:2] == ["query", "relevant"]
    assert set(kinds[2:]) <= {"relevant", "bm25", "warmup", "both"}
    assert "pairwise errors per query" in result.out


@pytest.mark.parametrize(("shared", "prompt"), [(True, 0), (False, 0), (True, 2)])
def test_gradients_are_those_of_a_plain_loop(small: Any, shared: bool, prompt: int) -> None:
    folder = small.folder / "data"
    documents, queries = (replace(open_tokens(folder / "tokens" / part), prompt=prompt) for part in ("documents", "queries/train"))
    batches = [(np.array([0, 2]), np.array([5, 1]), np.array([3, 3])), (np.array([1]), np.array([0]), np.array([9]))]

    def towers() -> Towers:
        loaded = load_towers(folder / "encoders/warmup")
        loaded.document.shape = replace(loaded.document.shape, pools_prompt=not prompt)
        return loaded if shared else Towers(loaded.query, load_towers(folder / "encoders/warmup").document)

    norms = gradient_norms(towers(), queries, documents, batches, temperature=0.1)

    def vector(tower: Any, tokens: Tokens, row: int) -> torch.Tensor:
        ids = torch.from_numpy(tokens.flat[tokens.offsets[row] : tokens.offsets[row + 1]].astype(np.int64))[None]
        return tower(ids, torch.ones_like(ids), prompt)[0]

    expected: dict[str, float] = {}
    for query, positive, negative in batches:
        plain_towers = towers()
        losses = []
        for q, p, n in zip(query, positive, negative, strict=True):
            query_vector = vector(plain_towers.query, queries, q)
            margin = query_vector @ vector(plain_towers.document, documents, p) - query_vector @ vector(plain_towers.document, documents, n)
            losses.append(torch.log(1 + torch.exp(-margin / 0.1)))
        loss = sum(losses) / len(losses)
        loss.backward()
        squares: dict[str, float] = {}
        for tower in {id(tower): tower for tower in (plain_towers.query, plain_towers.document)}.values():
            for name, weight in tower.named_parameters():
                if weight.grad is not None:
                    part = "embeddings" if "embeddings" in name else {"0": "bottom", "1": "middle"}[name.split("layer.")[1][0]]
                    squares[part] = squares.get(part, 0) + float((weight.grad**2).sum())
        figures = {
            "loss": float(loss.detach()),
            "all": math.sqrt(sum(squares.values())),
            **{part: math.sqrt(v) for part, v in squares.items()},
        }
        for part, value in figures.items():
            expected[part] = expected.get(part, 0) + value / len(batches)
    assert norms == pytest.approx(expected, rel=1e-3)


def test_thirds_of_layers() -> None:
    assert [part_of(f"transformer.encoder.layer.{n}.output.weight", 12) for n in (0, 3, 4, 7, 8, 11)] == [
        "bottom", "bottom", "middle", "middle", "top", "top",
    ]  # fmt: skip
    assert part_of("transformer.layers.5.mlp.weight", 6) == "top"
    assert part_of("transformer.embeddings.word_embeddings.weight", 6) == "embeddings"
    assert part_of("head.linear.weight", 6) == "head"


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("t5", {"d_model": 8, "num_layers": 6, "num_heads": 1, "d_kv": 8, "d_ff": 8}),  # a block has numbered layers of its own
        ("gpt2", {"n_embd": 8, "n_layer": 6, "n_head": 1}),
        ("mpnet", {"hidden_size": 8, "num_hidden_layers": 6, "num_attention_heads": 1, "intermediate_size": 8}),
    ],
)
def test_thirds_of_the_layers_of_any_architecture(kind: str, sizes: dict[str, int]) -> None:
    config = AutoConfig.for_model(kind, vocab_size=20, **sizes)
    with torch.device("meta"):
        transformer = model_class(config).from_config(config)
    stack = max((module for module in transformer.modules() if isinstance(module, nn.ModuleList)), key=len)
    places = {id(weight): number for number, layer in enumerate(stack) for weight in layer.parameters()}
    names = {f"transformer.{name}": weight for name, weight in transformer.named_parameters()}
    for name, weight in names.items():
        if id(weight) in places:
            assert part_of(name, layer_count(names)) == ["bottom", "middle", "top"][places[id(weight)] // 2], name
    assert part_of(next(name for name in names if names[name] is transformer.get_input_embeddings().weight), 6) == "embeddings"


def test_batches_have_no_relevant_negatives_and_the_same_queries_for_every_source() -> None:
    positives = {q: np.array([q, q + 20]) for q in range(0, 40, 2)}
    lists = {q: np.array([q + 1, q + 3]) for q in positives}
    queries = []
    for source, in_batch in ((None, True), (None, False), (lists, False)):
        drawn = list(draw_batches(positives, source, 80, batches=3, size=8, in_batch=in_batch, seed=3))
        assert [len(query) for query, _, _ in drawn] == [8, 8, 8]
        for query, positive, negative in drawn:
            assert all(p in positives[q] and n not in positives[q] for q, p, n in zip(query.tolist(), positive, negative, strict=True))
            if in_batch:
                assert set(negative) <= set(positive)
            if source:
                assert all(n in lists[q] for q, n in zip(query.tolist(), negative, strict=True))
        queries.append([query.tolist() for query, _, _ in drawn])
    assert queries[0] == queries[1] == queries[2]
    batches = list(draw_batches({0: np.array([0])}, {}, 1, batches=2, size=4, in_batch=False, seed=0))
    assert batches == [], "no negative, no batch"


def test_a_corpus_of_relevant_documents_gives_no_random_negatives() -> None:
    assert list(draw_batches({0: np.arange(3)}, None, 3, batches=1, size=1, in_batch=False, seed=0)) == []


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"round": "sun", "negatives": "bm25"}, r"analyses\.x\.round: found 'sun', expected one of"),
        ({"round": "star", "negatives": "none"}, r"analyses\.x\.negatives: found 'none', expected one of"),
        ({"round": "star", "negatives": "star"}, r"analyses\.x\.negatives: found 'star'.*; add mine\.star"),
    ],
)
def test_references_are_checked(full_params: dict[str, Any], entry: dict[str, str], message: str) -> None:
    full_params["analyses"] = {"x": entry}
    with pytest.raises(UserError, match=message):
        check(full_params)


def test_one_judged_query_in_dev_and_in_test_is_refused_in_one_line(small: Any, tmp_path: Path) -> None:
    """Uniformity needs a pair."""
    for split in ("dev", "test"):
        path = small.folder / f"data/corpus/qrels/{split}.parquet"
        table = read_table(path, QRELS).slice(0, 1)
        path.unlink()
        write_table(path, QRELS, [table])
    result = small.stage("analyses@seen", *small.elsewhere("analyses@seen", str(tmp_path / "out")))
    assert (result.status, result.err.count("\n")) == (2, 1), result
    assert "data/corpus: found 1 query of dev with a relevant document and 60 documents in all, expected at least two" in result.err
    assert not (tmp_path / "out").exists()


def test_documents_below_the_relevant_grade_are_not_relevant(small: Any, tmp_path: Path) -> None:
    """As in the measures: PairwiseErrors@k and the analysis count errors over the same documents."""
    path = small.folder / "data/corpus/qrels/dev.parquet"
    table = read_table(path, QRELS)
    graded = table.set_column(2, QRELS.field("grade"), pa.array([2, 2, 2, *[1] * (len(table) - 3)], QRELS.field("grade").type))
    path.unlink()
    write_table(path, QRELS, [graded])
    for file in ("params.yaml", "data/params.json"):
        sections = read_yaml(small.folder / file)
        small.write(file, json.dumps(sections | {"evaluate": {**(sections.get("evaluate") or {}), "relevance": {"dev": 2}}}))
    result = small.stage("analyses@seen", *small.elsewhere("analyses@seen", str(tmp_path)))
    assert result.status == 0, result
    assert json.loads((tmp_path / "data/analyses/seen/analysis.json").read_text())["queries"] == 3


def rename_queries(path: Path, schema: pa.Schema, column: str, names: Mapping[str, str]) -> None:
    table = read_table(path, schema)
    renamed = pa.array([names.get(value, value) for value in table[column].to_pylist()], pa.string())
    path.unlink()
    write_table(path, schema, [table.set_column(table.schema.get_field_index(column), schema.field(column), renamed)])


def test_queries_of_a_click_log_count_in_no_figure(small: Any, tmp_path: Path) -> None:
    qrels = small.folder / "data/corpus/qrels/dev.parquet"
    first, second, *others = read_table(qrels, QRELS)["query"].unique().to_pylist()
    clicked = {query: click_id(query) for query in others}
    rename_queries(qrels, QRELS, "query", clicked)
    rename_queries(small.folder / "data/tokens/queries/dev/ids.parquet", IDS, "id", clicked)
    top: dict[str, dict[str, list[str]]] = {"warmup": {}, "bm25": {}}
    for run, ranked in top.items():
        path = small.folder / "data/runs" / run / "dev.trec"
        rows = [line.split(" ") for line in path.read_text().splitlines()]
        for query in (first, second):
            ranked[query] = [row[2] for row in rows if row[0] == query]
        path.unlink()
        path.write_text("".join(" ".join([clicked.get(query, query), *rest]) + "\n" for query, *rest in rows))
    result = small.stage("analyses@seen", *small.elsewhere("analyses@seen", str(tmp_path)))
    assert result.status == 0, result
    analysis = json.loads((tmp_path / "data/analyses/seen/analysis.json").read_text())
    assert analysis["queries"] == 2 and {record["query"] for record in (*analysis["curves"], *analysis["maps"])} <= {first, second}
    assert analysis["bm25_overlap"] == pytest.approx(overlap(top["warmup"], top["bm25"], 20))


@pytest.mark.parametrize("grade", [1, 0])
def test_test_is_analyzed_if_people_judged_too_few_dev_queries(small: Any, tmp_path: Path, grade: int) -> None:
    """As in evaluation, the rest of dev is a click log's, even if no document is relevant to what people judged."""
    path = small.folder / "data/corpus/qrels/dev.parquet"
    first, *others = read_table(path, QRELS)["query"].unique().to_pylist()
    clicked = {query: click_id(query) for query in others}
    rename_queries(path, QRELS, "query", clicked)
    rename_queries(small.folder / "data/tokens/queries/dev/ids.parquet", IDS, "id", clicked)
    table = read_table(path, QRELS)
    grades = [grade if query == first else 1 for query in table["query"].to_pylist()]
    path.unlink()
    write_table(path, QRELS, [table.set_column(2, QRELS.field("grade"), pa.array(grades, QRELS.field("grade").type))])
    result = small.stage("analyses@seen", *small.elsewhere("analyses@seen", str(tmp_path)))
    assert result.status == 0, result
    assert json.loads((tmp_path / "data/analyses/seen/analysis.json").read_text())["split"] == "test"
