"""Hard negatives of one's own, in every form of a folder but MS MARCO's (tests/prepare/test_msmarco.py)."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.batches.merge import merge_folders
from flows.intake.inbox import take_in
from flows.intake.settings import Intake
from tasks.core.errors import UserError
from tasks.core.sources.datasets import dataset_files, parse_dataset
from tasks.core.sources.forgotten import mark
from tasks.prepare.commands.withdraw import withdraw_records
from tasks.prepare.readers.kinds import read

DOCUMENTS = {name: f"text of {name}" for name in ("d1", "d2", "d3", "d4", '"d5')}
PAIRS = [("q2", "d1"), ("q1", "d3"), ("q1", "d2"), ("q1", "d3"), ("q1", "d1"), ("dev1", "d1"), ("q1", '"d5')]
KEPT = [("q1", "d3", 1, 0.0), ("q1", "d2", 2, 0.0), ("q1", '"d5', 3, 0.0), ("q2", "d1", 1, 0.0)]
QUERIES = ("q1", "q2", "dev1")
JUDGED = {"train": [("q1", "d1"), ("q2", "d2")], "dev": [("dev1", "d4")]}


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def rows(header: str, mark: str, pairs: list[tuple[str, str]], end: str = "") -> str:
    return header + "\n" + "".join(f"{quote(query)}{mark}{quote(doc)}{end}\n" for query, doc in pairs)


def write_beir(folder: Path, negatives: str = "negatives.tsv") -> str:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": d, "text": text}) + "\n" for d, text in DOCUMENTS.items()))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": q, "text": f"asks {q}"}) + "\n" for q in QUERIES))
    for split, pairs in JUDGED.items():
        text = "".join(f"{query}\t{doc}\t1\n" for query, doc in pairs)
        (folder / f"qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{text}")
    packed = rows("query-id\tcorpus-id\tscore", "\t", PAIRS, "\t.5").encode()
    (folder / negatives).write_bytes(gzip.compress(packed) if negatives.endswith(".gz") else packed)
    return f"beir:{folder}"


def write_tables(folder: Path, negatives: str = "negatives.csv") -> str:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.csv").write_text("id,text\n" + "".join(f"{quote(d)},{text}\n" for d, text in DOCUMENTS.items()))
    (folder / "queries.csv").write_text("id,text\n" + "".join(f"{q},asks {q}\n" for q in QUERIES))
    for split, pairs in JUDGED.items():
        (folder / f"qrels/{split}.csv").write_text(rows("query,doc,grade", ",", pairs, ",1"))
    tab = negatives.endswith(".tsv")
    (folder / negatives).write_text(rows("qid\tdoc_id" if tab else "qid,doc_id", "\t" if tab else ",", PAIRS))
    return f"csv:{folder}"


def write_parquet(folder: Path, negatives: str = "negatives.parquet") -> str:
    (folder / "qrels").mkdir(parents=True)

    def write_columns(name: str, **columns: list[Any]) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), folder / name)

    write_columns("documents.parquet", id=list(DOCUMENTS), text=list(DOCUMENTS.values()))
    write_columns("queries.parquet", id=list(QUERIES), text=[f"asks {q}" for q in QUERIES])
    for split, pairs in JUDGED.items():
        write_columns(f"qrels/{split}.parquet", query=[q for q, _ in pairs], doc=[d for _, d in pairs], score=[1] * len(pairs))
    write_columns(negatives, query=[q for q, _ in PAIRS], doc=[d for _, d in PAIRS])
    return f"parquet:{folder}"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (write_beir, "negatives.tsv"),
        (write_beir, "negatives.tsv.gz"),
        (write_tables, "negatives.csv"),
        (write_tables, "negatives.tsv"),
        (write_parquet, "negatives.parquet"),
        (write_parquet, "negatives/train.parquet"),
    ],
)
def test_every_form_of_a_folder_may_have_its_own(make: Any, name: str, prepare: Any, tmp_path: Path) -> None:
    source = make(tmp_path / "in", name)
    prepared = prepare(source)
    assert prepared.official == KEPT
    assert (prepared.counts["that are known positives"], prepared.counts["of a query outside the training split"]) == (1, 1)
    assert tmp_path / "in" / name in dataset_files(parse_dataset(source)), "a change of them is a change of the data"


@pytest.mark.parametrize("make", [write_beir, write_tables, write_parquet])
def test_one_that_names_no_document_is_refused_with_its_place(make: Any, prepare: Any, tmp_path: Path) -> None:
    source = make(tmp_path / "in")
    if make is write_parquet:
        pq.write_table(pa.table({"query": ["q1"], "doc": ["gone"]}), tmp_path / "in/negatives.parquet")
    else:
        (file,) = (tmp_path / "in").glob("negatives.*")
        file.write_text(
            rows("query,doc" if make is write_tables else "query\tdoc", "," if make is write_tables else "\t", [("q1", "gone")])
        )
    with pytest.raises(UserError, match=r"negatives\.\w+:[12]: document 'gone' is not in the dataset; add it"):
        prepare(source)


def test_without_a_header_they_are_refused(tmp_path: Path, prepare: Any) -> None:
    source = write_beir(tmp_path / "in")
    (tmp_path / "in/negatives.tsv").write_text("q1\td2\n")
    with pytest.raises(UserError, match=r"negatives\.tsv:1: found columns q1, d2, expected query-id or .* in a header separated by tabs"):
        prepare(source)


def test_batches_add_to_them(tmp_path: Path, prepare: Any) -> None:
    write_beir(tmp_path / "base")
    batch, other = tmp_path / "batch", tmp_path / "other"
    batch.mkdir()
    other.mkdir()
    (batch / "negatives.tsv").write_text("query-id\tcorpus-id\nq1\td2\nq2\td3\n")
    (other / "negatives.csv").write_text("doc,query\nd4,q2\n")
    merge_folders([tmp_path / "base", batch, other], tmp_path / "out", tmp_path / "stamp.json")
    assert prepare(f"beir:{tmp_path / 'out'}").official == [*KEPT, ("q2", "d3", 2, 0.0), ("q2", "d4", 3, 0.0)]


def test_a_batch_whose_negatives_name_no_document_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_beir(tmp_path / "base")
    (tmp_path / "inbox/3").mkdir(parents=True)
    (tmp_path / "inbox/3/negatives.tsv").write_text("\n")
    for number, doc in enumerate(("gone", "d2")):
        (tmp_path / f"inbox/{number}").mkdir(parents=True)
        (tmp_path / f"inbox/{number}/negatives.tsv").write_text(f"query-id\tcorpus-id\nq1\t{doc}\n")
    (tmp_path / "inbox/2").mkdir()
    (tmp_path / "inbox/2/negatives.tsv").write_text("query-id\tcorpus-id\nq1\t\n")
    intake = take_in(Intake.model_validate({"inbox": "inbox"}), source, tmp_path, say=lambda _: None)
    states = {batch.name: (batch.state, batch.reason) for batch in intake.batches}
    assert states["1"][0] == "accepted"
    assert states["3"][0] == "quarantined" and "negatives.tsv: empty, expected a header" in str(states["3"])
    assert states["0"][0] == "quarantined" and "negatives.tsv:2: document 'gone' is neither in the data set nor" in str(states["0"])
    assert states["2"][0] == "quarantined" and "negatives.tsv:2: found id ''" in str(states["2"])


@pytest.mark.parametrize("make", [write_beir, write_tables])
def test_those_of_what_is_forgotten_are_taken_out(make: Any, tmp_path: Path) -> None:
    source = parse_dataset(make(tmp_path / "in"))
    (file,) = (tmp_path / "in").glob("negatives.*")
    counts, *_ = withdraw_records(source.kind, tmp_path / "in", {mark("document", "d3"), mark("query", "q2")}, dry=False)
    assert counts[str(file)] == 3
    assert [(negative.query, negative.doc) for negative in read(source).negatives()] == [
        (query, doc) for query, doc in PAIRS if doc != "d3" and query != "q2"
    ]
