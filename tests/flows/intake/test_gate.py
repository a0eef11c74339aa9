"""A batch that passes the gate can be prepared, in either mode; one that prepare would refuse is quarantined, and says why."""

import json
from pathlib import Path

import pytest

from flows.intake.inbox import take_in
from flows.intake.settings import Intake
from flows.intake.verdict import Batch
from tasks.core.sources.datasets import parse_dataset
from tasks.prepare.corpus import write_corpus
from tasks.prepare.params import Prepare
from tasks.prepare.readers.kinds import read

DATA = {"corpus.jsonl": '{"_id": "d1", "text": "one"}\n', "queries.jsonl": '{"_id": "q1", "text": "What is one?"}\n'}
HEADER = "query-id\tcorpus-id\tscore\n"
TRAIN = {"qrels/train.tsv": f"{HEADER}q1\td1\t1\n"}
TABLES = {
    "corpus.csv": "id,text\nd3,three\n",
    "queries.csv": "id,text\nq3,what is three\n",
    "qrels/train.csv": "query,doc,grade\nq3,d3,1\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set without a dev split."""
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "base", DATA | TRAIN)
    (tmp_path / "inbox").mkdir()
    return tmp_path


def put(folder: Path, files: dict[str, str]) -> None:
    (folder / "qrels").mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def taken(project: Path, mode: str = "append") -> dict[str, Batch]:
    """What became of each batch; what is trained on must pass prepare."""
    found = take_in(Intake.model_validate({"inbox": "inbox", "mode": mode}), "beir:base", project, say=lambda _: None)
    sections = json.loads(Path("params.yaml").read_text()) if Path("params.yaml").exists() else {}
    (project / "out").mkdir(exist_ok=True)
    out = project / "out" / str(len(list((project / "out").iterdir())))
    out.mkdir()
    needs_qrels = "queries" not in sections
    write_corpus(
        read(parse_dataset(found.spec), needs_qrels=needs_qrels),
        Prepare(**sections.get("prepare", {})),
        out,
        needs_qrels=needs_qrels,
        processes=1,
    )
    return {batch.name: batch for batch in found.batches}


def test_a_split_needs_a_relevant_document_in_the_batch_or_in_the_data_set(project: Path) -> None:
    queries = {"queries.jsonl": '{"_id": "q2", "text": "not one"}\n'}
    put(project / "inbox/1", queries | {"qrels/dev.tsv": f"{HEADER}q2\td1\t0\n"})
    put(project / "inbox/2", {"qrels/train.tsv": f"{HEADER}q1\td1\t1\n", "qrels/test.tsv": HEADER})
    found = taken(project)
    assert found["1"].wrong == (
        f"1 splits without a relevant document: {project / 'inbox/1/qrels/dev.tsv'}: would leave split dev without a relevant document, "
        "every grade is 0 or less; expected a grade above 0, here or in the data set",
    )
    assert found["2"].state == "accepted", "a file without a judgment makes no split"
    put(project / "inbox/3", {"queries.jsonl": '{"_id": "q4", "text": "four"}\n', "qrels/dev.tsv": f"{HEADER}q4\td1\t1\n"})
    assert {batch.state for batch in taken(project).values()} == {"accepted"}, "it came with a later batch"


def test_a_judgment_that_prepare_drops_makes_no_split(project: Path) -> None:
    Path("params.yaml").write_text(json.dumps({"prepare": {"unknown_documents": "drop"}}))
    put(project / "inbox/1", {"qrels/dev.tsv": f"{HEADER}q9\td1\t1\nq1\td9\t1\n"})
    assert "1 splits without a relevant document" in taken(project)["1"].reason


def test_a_table_with_nothing_in_it_is_no_table(project: Path) -> None:
    put(project / "inbox/1", TABLES | {"qrels/dev.csv": ""})
    put(project / "inbox/2", TABLES | {"corpus.csv": "\ufeff\n,\n"})
    for mode in ("append", "replace"):
        found = taken(project, mode)
        expected = "empty, expected a header and rows below it"
        assert found["1"].wrong == (f"1 empty parts: {project / 'inbox/1/qrels/dev.csv'}: {expected}",)
        assert found["2"].lines[0] == f"{project / 'inbox/2/corpus.csv'}: {expected}"


@pytest.mark.parametrize(
    ("files", "params", "reason"),
    [
        (DATA, {}, "qrels: found no qrels, expected train.tsv"),
        (DATA | {"qrels/dev.tsv": HEADER}, {}, "1 empty parts: PATH/qrels: found no judgment, expected at least one"),
        (DATA | {"qrels/train.tsv": f"{HEADER[:-1]}\tnote\nq1\td1\t1\n"}, {}, "1 malformed lines: PATH/qrels/train.tsv:1: found 4 columns"),
        (DATA | {"qrels/train.tsv": f"{HEADER}q1\td1\t0\n"}, {}, "1 splits without a relevant document: PATH/qrels/train.tsv: would"),
        (TRAIN | {"queries.jsonl": DATA["queries.jsonl"]}, {"prepare": {"unknown_documents": "drop"}}, "corpus.jsonl: not found"),
        (TRAIN | {"corpus.jsonl": DATA["corpus.jsonl"]}, {"prepare": {"unknown_documents": "drop"}}, "queries.jsonl: not found"),
        ({"corpus.jsonl": "\n"}, {"queries": "pseudo"}, "1 empty parts: PATH/corpus.jsonl: would leave no document with"),
        ({"corpus.jsonl": DATA["corpus.jsonl"]}, {"queries": "pseudo"}, ""),
    ],
)
def test_a_batch_that_replaces_the_data_set_is_a_whole_one(
    project: Path, files: dict[str, str], params: dict[str, object], reason: str
) -> None:
    Path("params.yaml").write_text(json.dumps(params))
    put(project / "inbox/1", files)
    found = taken(project, "replace")["1"]
    assert reason.replace("PATH", str(project / "inbox/1")) in found.reason
    assert found.state == ("quarantined" if reason else "accepted")
