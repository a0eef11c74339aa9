"""Other tools' files become a BEIR folder that prepare accepts as it is: every form, the splits, what is left out, what is refused."""

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import datasets
import pytest

from flows.converting.convert import Converted, Inputs, convert, convert_source, parse_qrels, shares_of
from tasks.core.errors import UserError
from tasks.core.sources.datasets import parse_dataset
from tasks.core.sources.forgotten import HEAD, mark
from tasks.core.text.plain import Shares
from tasks.prepare.corpus import write_corpus
from tasks.prepare.negatives import write_official
from tasks.prepare.params import Prepare
from tasks.prepare.readers.kinds import read

ROOT = Path(__file__).resolve().parents[3]
ALL_TRAIN = Shares()
SEEDED = """\
import sys
from flows.converting.convert import Inputs, Path, convert
from tasks.core.text.plain import Shares
convert(Path(sys.argv[1]), Inputs([("train", Path(sys.argv[2]))]), Shares(0.2, 0.2))
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write("train.jsonl", *rows): a file of JSON lines, gzip if its name says so."""

    def write_rows(name: str, *rows: dict[str, Any]) -> Path:
        raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return tmp_path / name

    return write_rows


def passage(doc: str, title: str = "") -> dict[str, str]:
    return {"docid": doc, "title": title, "text": f"text of {doc}"}


def tevatron_row(query: str, positives: str, negatives: str = "") -> dict[str, Any]:
    """tevatron_row("q1", "d1 d2", "d3")"""
    lists = {"positive_passages": positives, "negative_passages": negatives}
    return {"query_id": query, "query": f"asks {query}", **{name: [passage(doc) for doc in docs.split()] for name, docs in lists.items()}}


def run(folder: Path, *train: Path, shares: Shares = ALL_TRAIN, **files: Any) -> Converted:
    return convert(folder, Inputs([("train", path) for path in train], **files), shares)


def files_of(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*")) if path.is_file()}


def prepare_folder(folder: Path, tmp_path: Path, **settings: Any) -> tuple[dict[str, Any], Counter[str]]:
    """prepare's statistics and counts of negatives; it refuses whatever is wrong."""
    source, parameters = read(parse_dataset(f"beir:{folder}")), Prepare(**settings)
    (target := tmp_path / "prepared").mkdir()
    corpus = write_corpus(source, parameters, target / "corpus")
    (target / "official").mkdir()
    counts = write_official(source, corpus, target / "corpus/queries/train.parquet", parameters, target / "official")
    return json.loads((target / "corpus/stats.json").read_text()), counts


def test_tevatron_becomes_these_files(tmp_path: Path, write: Write) -> None:
    train = write("train.jsonl.gz", tevatron_row("q1", "d1", "d3 d2"), tevatron_row("q2", '"d4', 'd1 "d5') | {"query": "wer läuft?"})
    dev = write("dev.jsonl", tevatron_row("q3", "d6", "d7") | {"answers": ["6"]})
    corpus = write("corpus.jsonl", passage("d9", "T"), passage("d2"))
    examples = [("train", train), ("dev", dev)]
    converted = convert(tmp_path / "out", Inputs(examples, corpora=[corpus]), Shares())
    order = ["d9", "d2", "d1", "d3", '"d4', '"d5', "d6", "d7"]
    assert files_of(tmp_path / "out") == {
        "corpus.jsonl": "".join(
            json.dumps({"_id": doc, "title": "T" if doc == "d9" else "", "text": f"text of {doc}"}) + "\n" for doc in order
        ),
        "queries.jsonl": '{"_id": "q1", "text": "asks q1"}\n{"_id": "q2", "text": "wer läuft?"}\n'
        '{"_id": "q3", "text": "asks q3", "answers": ["6"]}\n',
        "qrels/train.tsv": 'query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\t"d4\t1\n',
        "qrels/dev.tsv": "query-id\tcorpus-id\tscore\nq3\td6\t1\n",
        "negatives.tsv": 'query-id\tcorpus-id\nq1\td3\nq1\td2\nq2\td1\nq2\t"""d5"\n',
    }
    assert converted.forms == {corpus: "Tevatron", train: "Tevatron (passages)", dev: "Tevatron (passages)"}
    assert (converted.documents, converted.negatives, converted.left_out) == (8, 4, {})
    assert converted.queries == converted.judgments == {"train": 2, "dev": 1, "test": 0}
    stats, counts = prepare_folder(tmp_path / "out", tmp_path)
    assert (stats["documents"]["count"], counts["kept"]) == (8, 4)


def test_tevatron_with_ids_and_a_corpus_equals_tevatron_with_passages(tmp_path: Path, write: Write) -> None:
    corpus = write("corpus.jsonl", *map(passage, ("d1", "d2", "d3")))
    rows = {"query_id": "q1", "query": "asks q1", "positive_document_ids": ["d1"], "negative_document_ids": ["d3", "d2"]}
    converted = run(tmp_path / "ids", write("ids.jsonl", rows), corpora=[corpus])
    run(tmp_path / "passages", write("passages.jsonl", tevatron_row("q1", "d1", "d3 d2")), corpora=[corpus])
    assert files_of(tmp_path / "ids") == files_of(tmp_path / "passages")
    assert list(converted.forms.values()) == ["Tevatron", "Tevatron (ids)"]
    with pytest.raises(UserError, match=r"ids.jsonl:1: document 'd1' is not in any corpus.* --corpus$"):
        run(tmp_path / "none", tmp_path / "ids.jsonl")


def test_flag_embedding_has_ids_of_its_texts(tmp_path: Path, write: Write) -> None:
    rows = [{"query": "a", "pos": ["x", "y"], "neg": ["z"], "pos_scores": [1, 0.5]}, {"query": "b", "pos": ["z"], "neg": ["x", "x"]}]
    converted = run(tmp_path / "out", write("train.jsonl", *rows))
    a, b, x, y, z = (sha256(text.encode()).hexdigest()[:16] for text in "abxyz")
    files = files_of(tmp_path / "out")
    assert [json.loads(line)["_id"] for line in files["corpus.jsonl"].splitlines()] == [x, y, z]
    assert files["qrels/train.tsv"].splitlines()[1:] == [f"{a}\t{x}\t1", f"{a}\t{y}\t1", f"{b}\t{z}\t1"]
    assert files["negatives.tsv"].splitlines()[1:] == [f"{a}\t{z}", f"{b}\t{x}"]
    assert converted.forms == {tmp_path / "train.jsonl": "FlagEmbedding"}
    assert prepare_folder(tmp_path / "out", tmp_path)[1]["kept"] == 2


def test_texts_without_ids_are_documents_of_the_corpus(tmp_path: Path, write: Write) -> None:
    """Otherwise a relevant text would be in the corpus twice, once unjudged."""
    corpus = write("corpus.jsonl", passage("d1"), passage("d2", "title"))
    run(tmp_path / "out", write("train.jsonl", {"query": "a", "pos": ["text of d1"], "neg": ["text of d2"]}), corpora=[corpus])
    files = files_of(tmp_path / "out")
    other_id = sha256(b"text of d2").hexdigest()[:16]
    assert [json.loads(line)["_id"] for line in files["corpus.jsonl"].splitlines()] == ["d1", "d2", other_id]
    assert files["qrels/train.tsv"].splitlines()[1] == f"{sha256(b'a').hexdigest()[:16]}\td1\t1"


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_sentence_transformers_as_datasets_writes_them(tmp_path: Path, kind: str) -> None:
    columns = {"anchor": ["a", "a", "b"], "positive": ["x", "y", "z"], "negative_1": ["z", "z", "x"], "negative_2": ["y", "w", "w"]}
    path = tmp_path / f"train.{kind}"
    getattr(datasets.Dataset.from_dict(columns), f"to_{kind}")(path)
    converted = run(tmp_path / "out", path)
    a, b, w, x, y, z = (sha256(text.encode()).hexdigest()[:16] for text in "abwxyz")
    files = files_of(tmp_path / "out")
    assert [json.loads(line)["text"] for line in files["corpus.jsonl"].splitlines()] == list("xzyw")
    assert files["qrels/train.tsv"].splitlines()[1:] == [f"{a}\t{x}\t1", f"{a}\t{y}\t1", f"{b}\t{z}\t1"]
    assert files["negatives.tsv"].splitlines()[1:] == [f"{a}\t{z}", f"{a}\t{w}", f"{b}\t{x}", f"{b}\t{w}"]
    assert converted.left_out == {"negatives that are relevant to their query": 1}
    assert converted.forms == {path: "sentence-transformers"}


def test_labels_tell_positives_from_negatives(tmp_path: Path, write: Write) -> None:
    rows = [
        {"sentence1": first, "sentence2": second, "label": label} for first, second, label in (("a", "x", 1), ("a", "y", 0), ("b", "x", 0))
    ]
    converted = run(tmp_path / "out", write("train.jsonl", *rows))
    assert (converted.documents, converted.judgments["train"], converted.negatives) == (2, 1, 1)
    assert converted.left_out == {"queries without a relevant document": 1}


def test_tevatron_in_parquet(tmp_path: Path) -> None:
    rows = [tevatron_row("q1", "d1", "d2"), tevatron_row("q2", "d2", "d1")]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    converted = run(tmp_path / "out", tmp_path / "train.parquet")
    assert (converted.documents, converted.judgments["train"], converted.negatives) == (2, 2, 2)


def test_pyserini_keeps_grades(tmp_path: Path, write: Write) -> None:
    corpus = write("corpus.jsonl", *({"id": f"d{number}", "contents": f"text {number}"} for number in range(4)))
    (tmp_path / "topics.tsv").write_text("1\twho\n2\twhat\n3\twhere\n4\tnever judged\n")
    (tmp_path / "train.txt").write_text("1 0 d0 1\n1 0 d1 0\n")
    (tmp_path / "dev.txt").write_text("2\t0\td2\t3\n3 0 d3 0\n")
    qrels = [("train", tmp_path / "train.txt"), ("dev", tmp_path / "dev.txt")]
    converted = run(tmp_path / "out", corpora=[corpus], queries=[tmp_path / "topics.tsv"], qrels=qrels)
    files = files_of(tmp_path / "out")
    assert files["qrels/train.tsv"].splitlines()[1:] == ["1\td0\t1", "1\td1\t0"]
    assert files["qrels/dev.tsv"].splitlines()[1:] == ["2\td2\t3"]
    assert "negatives.tsv" not in files
    assert list(converted.forms.values()) == ["Pyserini", "tab-separated", "TREC qrels", "TREC qrels"]
    assert converted.left_out == {"queries without a relevant document": 2}
    assert prepare_folder(tmp_path / "out", tmp_path)[0]["documents"]["count"] == 4


def test_dev_and_test_are_taken_by_a_hash_of_the_text(tmp_path: Path, write: Write) -> None:
    """The oracle: 32 bits of BLAKE2b, in quarters; a query's id, case, white space and position do not matter."""
    rows = [tevatron_row(f"q{number}", "d1", "d2") for number in range(60)]
    twins = [row | {"query_id": f"twin of {row['query_id']}", "query": row["query"].upper().replace(" ", "  ")} for row in rows]
    expected: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    for row in rows:
        share = int.from_bytes(blake2b(row["query"].encode(), digest_size=4, person=b"split").digest(), "big") / 2**32
        expected["dev" if share < 0.25 else "test" if share < 0.5 else "train"] |= {row["query_id"], f"twin of {row['query_id']}"}
    converted = run(tmp_path / "out", write("train.jsonl", *rows, *twins), shares=Shares(0.25, 0.25))
    lines = {split: (tmp_path / f"out/qrels/{split}.tsv").read_text().splitlines()[1:] for split in expected}
    assert {split: {line.split("\t")[0] for line in split_lines} for split, split_lines in lines.items()} == expected
    assert min(map(len, expected.values())) > 10
    rejected = (tmp_path / "out/negatives.tsv").read_text().splitlines()[1:]
    assert {line.split("\t")[0] for line in rejected} == expected["train"], "no query of dev or test has negatives"
    assert converted.leaks == 0
    run(tmp_path / "turned", write("turned.jsonl", *twins[::-1], *rows[::-1]), shares=Shares(0.25, 0.25))
    for split, split_lines in lines.items():
        assert sorted((tmp_path / f"turned/qrels/{split}.tsv").read_text().splitlines()[1:]) == sorted(split_lines)


def test_positives_that_come_later_are_no_negatives(tmp_path: Path, write: Write) -> None:
    converted = run(tmp_path / "out", write("train.jsonl", tevatron_row("q1", "d1", "d2 d1"), tevatron_row("q1", "d2", "d3")))
    assert (tmp_path / "out/negatives.tsv").read_text() == "query-id\tcorpus-id\nq1\td3\n"
    assert converted.left_out == {"negatives that are relevant to their query": 2}


def test_negatives_of_dev_are_none_of_train(tmp_path: Path, write: Write) -> None:
    train, dev = write("train.jsonl", tevatron_row("q1", "d1", "d2")), write("dev.jsonl", tevatron_row("q1", "d1", "d3"))
    converted = convert(tmp_path / "out", Inputs([("train", train), ("dev", dev)]), ALL_TRAIN)
    assert (tmp_path / "out/negatives.tsv").read_text() == "query-id\tcorpus-id\nq1\td2\n"
    assert (converted.documents, converted.leaks) == (3, 1)


def test_what_is_left_out_is_counted(tmp_path: Path, write: Write) -> None:
    empty = {"docid": "e", "title": " ", "text": ""}
    rows = [
        tevatron_row("q1", "d1"),
        tevatron_row("q2", "", "d2"),
        tevatron_row("q3", "d3") | {"query": " "},
        tevatron_row("q4", "") | {"positive_passages": [empty]},
        tevatron_row("q5", "d1") | {"negative_passages": [empty]},
    ]
    converted = run(tmp_path / "out", write("train.jsonl", *rows))
    assert [json.loads(line)["_id"] for line in (tmp_path / "out/corpus.jsonl").read_text().splitlines()] == ["d1", "d2", "d3"]
    assert converted.left_out == {
        "documents without title and text": 1,
        "negatives without text": 1,
        "pairs with a document without text": 1,
        "queries without a relevant document": 2,
        "queries without text": 1,
    }
    assert (tmp_path / "out/qrels/train.tsv").read_text().splitlines()[1:] == ["q1\td1\t1", "q5\td1\t1"]
    prepare_folder(tmp_path / "out", tmp_path)


GOOD = tevatron_row("q1", "d1", "d2")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            json.dumps(GOOD) + "\n{",
            r"train.jsonl:2: not JSON \(.*, column 2\), expected an object with the keys of its first line; fix the file",
        ),
        (json.dumps(GOOD) + '\n{"query": 1, "query": 2}', "train.jsonl:2: found the key 'query' twice in an object"),
        (json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"query": "other"}), "train.jsonl:2: query 'q1' has another text at .*train.jsonl:1"),
        (
            json.dumps(GOOD) + "\n" + json.dumps(tevatron_row("q2", "") | {"positive_passages": [{"docid": "d2", "text": "other"}]}),
            "train.jsonl:2: document 'd2' has another title or text at .*train.jsonl:1",
        ),
        (
            json.dumps(GOOD) + "\n" + json.dumps(GOOD | {"positive_passages": 1}),
            "train.jsonl:2: found positive_passages 1, expected a list",
        ),
        (
            json.dumps(GOOD | {"positive_passages": [{"docid": "a\tb", "text": "x"}]}),
            r"train.jsonl:1: found positive_passages.docid 'a\\tb'",
        ),
        (json.dumps({"a": 1}), "train.jsonl:1: found a, expected the keys of Tevatron .* FlagEmbedding .* sentence-transformers"),
        (json.dumps(tevatron_row("q1", "")), "train.jsonl: no query has a relevant document"),
        ("", "train.jsonl: found no line"),
    ],
)
def test_a_mistake_leaves_nothing_behind(tmp_path: Path, raw: str, message: str) -> None:
    (tmp_path / "train.jsonl").write_text(raw)
    with pytest.raises(UserError, match=message):
        run(tmp_path / "out", tmp_path / "train.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


def test_a_truncated_gzip_file_leaves_nothing_behind(tmp_path: Path, write: Write) -> None:
    path = write("train.jsonl.gz", *(tevatron_row(f"q{number}", "d1") for number in range(200)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train.jsonl.gz:\d+: the gzip file is truncated or corrupt here"):
        run(tmp_path / "out", path)
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_new_folder_is_written(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("train.jsonl", GOOD)
    (tmp_path / "empty").mkdir()
    run(tmp_path / "empty", path)
    before = files_of(tmp_path / "empty")
    with pytest.raises(UserError, match="empty: already exists, expected a new folder as the first argument"):
        run(tmp_path / "empty", path)
    assert files_of(tmp_path / "empty") == before
    with pytest.raises(UserError, match=r"train.jsonl: found a file, expected a new folder as the first argument"):
        run(path, path)
    with pytest.raises(UserError, match="none: no such folder, expected one to write out in"):
        run(tmp_path / "none/out", path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match=r"\.: already exists"):
        run(Path(), path)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: found no regular file, expected a file"):
        run(tmp_path / "out", tmp_path / "pipe")
    with pytest.raises(UserError, match="none: not found"):
        run(tmp_path / "out", qrels=[("train", tmp_path / "none")])


def test_shares() -> None:
    path = Path("x")
    train, all_splits = Inputs([("train", path)]), Inputs([("train", path), ("dev", path)], qrels=[("test", path)])
    assert shares_of(train, None, None) == Shares(0.1, 0.1)
    assert shares_of(train, 0.5, 0) == Shares(0.5, 0)
    assert shares_of(all_splits, None, None) == Shares()
    assert shares_of(all_splits, 0, None) == Shares()
    assert shares_of(Inputs([("test", path)]), None, None) == Shares()
    for inputs, dev, test, message in (
        (train, 1.0, None, "--dev-share: found 1, expected a number from 0 to below 1"),
        (train, float("nan"), None, "--dev-share: found nan"),
        (train, None, -0.1, "--test-share: found -0.1"),
        (train, 0.5, 0.5, "--dev-share and --test-share: found 0.5 and 0.5, expected a sum below 1"),
        (train, 0.95, None, "found 0.95 and 0.1, expected a sum below 1"),
        (all_splits, 0.1, None, "--dev-share: found files of dev too, expected a share only if"),
        (Inputs([("test", path)]), 0.1, None, "--dev-share: found no training file"),
    ):
        with pytest.raises(UserError) as error:
            shares_of(inputs, dev, test)
        assert message in str(error.value)


def test_splits_of_qrels() -> None:
    assert parse_qrels("validation=a=b") == ("dev", Path("a=b"))
    for option in ("dev", "dev=", "eval=x", "=x"):
        with pytest.raises(UserError, match=f"--qrels {option}: expected SPLIT=FILE"):
            parse_qrels(option)


def test_inputs_that_make_no_sense_are_refused(tmp_path: Path, write: Write) -> None:
    corpus = write("corpus.jsonl", passage("d1"))
    with pytest.raises(UserError, match="found no training file, no --qrels, and no --data"):
        run(tmp_path / "out", corpora=[corpus])
    with pytest.raises(UserError, match="found --queries without --qrels"):
        run(tmp_path / "out", corpus, queries=[corpus])


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    with (tmp_path / "corpus.jsonl").open("w") as handle:
        for number in range(300):
            handle.write(json.dumps({"docid": number, "text": f"{number} " + "text " * 2000}) + "\n")
    (tmp_path / "train.jsonl").write_text(json.dumps({"query_id": 1, "query": "who", "positive_document_ids": [7]}) + "\n")
    tracemalloc.start()
    try:
        converted = run(tmp_path / "out", tmp_path / "train.jsonl", corpora=[tmp_path / "corpus.jsonl"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert converted.documents == 300
    assert peak < 1e6, "of 3 MB"


def test_files_are_the_same_whatever_the_seed_of_hashes(tmp_path: Path, write: Write) -> None:
    path = write("train.jsonl", *({"query": f"q{n}", "pos": [f"p{n % 7}", f"p{n}"], "neg": [f"p{n + 1}"]} for n in range(50)))
    run(tmp_path / "here", path, shares=Shares(0.2, 0.2))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}  # this process has another, random as a rule
    command = [sys.executable, "-c", SEEDED, tmp_path / "there", path]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


def test_a_tasks_module_of_the_user_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery's, for example. Records that the project here has forgotten stay out."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text("raise RuntimeError\n")
    (tmp_path / "faq.csv").write_text("id,question,answer\n1,who?,me\n2,where?,here\n")
    (tmp_path / "forgotten.txt").write_text(f"{HEAD}document {mark('document', '2')} 2026-11-30\n")
    assert convert_source(Path("out"), "pairs:faq.csv")["documents"] == 1
    assert [json.loads(line)["text"] for line in (tmp_path / "out/corpus.jsonl").open()] == ["me"]
