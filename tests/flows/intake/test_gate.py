"""A batch that passes the gate can be prepared, in either mode; one that prepare would refuse is quarantined, and says why."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from flows.batches import known
from flows.batches.foreseen import Settings
from flows.intake import gate
from flows.intake.gate import REPEATED, check
from flows.intake.inbox import take_in
from flows.intake.settings import Intake
from flows.intake.verdict import Batch
from tasks.core.sources.datasets import parse_dataset
from tasks.core.sources.forgotten import FILE, mark, read_marks
from tasks.core.statistics.judged import click_id
from tasks.prepare.corpus import write_corpus
from tasks.prepare.forgotten import without_forgotten
from tasks.prepare.negatives import write_official
from tasks.prepare.params import Prepare
from tasks.prepare.readers.kinds import read

CLICK_1 = click_id("1")

DATA = {"corpus.jsonl": '{"_id": "d1", "text": "one"}\n', "queries.jsonl": '{"_id": "q1", "text": "What is one?"}\n'}
HEADER = "query-id\tcorpus-id\tscore\n"
TRAIN = {"qrels/train.tsv": f"{HEADER}q1\td1\t1\n"}
DEV = {"qrels/dev.tsv": f"{HEADER}q1\td1\t1\n"}
TABLES = {
    "corpus.csv": "id,text\nd3,three\n",
    "queries.csv": "id,text\nq3,what is three\n",
    "qrels/dev.csv": "query,doc,grade\nq3,d3,1\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set without a dev split."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "base", DATA | TRAIN)
    (tmp_path / "inbox").mkdir()
    return tmp_path


def write_files(folder: Path, files: dict[str, str]) -> None:
    (folder / "qrels").mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def take_batches(project: Path, mode: str = "append") -> dict[str, Batch]:
    """What became of each batch; what is trained on must pass prepare."""
    outcome = take_in(Intake.model_validate({"inbox": "inbox", "mode": mode}), "beir:base", project, say=lambda _: None)
    sections = json.loads(Path("params.yaml").read_text()) if Path("params.yaml").exists() else {}
    (project / "out").mkdir(exist_ok=True)
    out = project / "out" / str(len(list((project / "out").iterdir())))
    out.mkdir()
    settings = Prepare(**sections.get("prepare", {}))
    needs_qrels = "queries" not in sections
    source = without_forgotten(read(parse_dataset(outcome.spec), needs_qrels=needs_qrels), read_marks())
    corpus = write_corpus(source, settings, out, needs_qrels=needs_qrels, processes=1)
    write_official(source, corpus, out / "queries/train.parquet", settings, out)
    return {batch.name: batch for batch in outcome.batches}


def test_a_split_needs_a_relevant_document_in_the_batch_or_in_the_data_set(project: Path) -> None:
    queries = {"queries.jsonl": '{"_id": "q2", "text": "not one"}\n'}
    write_files(project / "inbox/1", queries | {"qrels/dev.tsv": f"{HEADER}q2\td1\t0\n"})
    write_files(project / "inbox/2", {"qrels/train.tsv": f"{HEADER}q1\td1\t1\n", "qrels/test.tsv": HEADER})
    batches = take_batches(project)
    assert batches["1"].wrong == (
        f"1 split without a relevant document: {project / 'inbox/1/qrels/dev.tsv'}: would leave split dev without a relevant document, "
        "every grade is 0 or less; expected a grade above 0, here or in the data set",
    )
    assert batches["2"].state == "accepted", "a file without a judgment makes no split"
    write_files(project / "inbox/3", {"queries.jsonl": '{"_id": "q4", "text": "four"}\n', "qrels/dev.tsv": f"{HEADER}q4\td1\t1\n"})
    assert {batch.state for batch in take_batches(project).values()} == {"accepted"}, "it came with a later batch"


def test_a_judgment_that_prepare_drops_makes_no_split(project: Path) -> None:
    Path("params.yaml").write_text(json.dumps({"prepare": {"unknown_documents": "drop"}}))
    write_files(project / "inbox/1", {"qrels/dev.tsv": f"{HEADER}q9\td1\t1\nq1\td9\t1\n"})
    assert "1 split without a relevant document" in take_batches(project)["1"].reason


def test_a_table_with_nothing_in_it_is_no_table(project: Path) -> None:
    write_files(project / "inbox/1", TABLES | {"qrels/test.csv": ""})
    write_files(project / "inbox/2", TABLES | {"corpus.csv": "\ufeff\n,\n"})
    for mode in ("append", "replace"):
        batches = take_batches(project, mode)
        expected = "empty, expected a header and rows below it"
        assert batches["1"].wrong == (f"1 empty part: {project / 'inbox/1/qrels/test.csv'}: {expected}",)
        assert batches["2"].lines[0] == f"{project / 'inbox/2/corpus.csv'}: {expected}"


@pytest.mark.parametrize(
    ("files", "params", "reason"),
    [
        (DATA, {}, "qrels: found no qrels, expected train.tsv"),
        (DATA | {"qrels/dev.tsv": HEADER}, {}, "1 empty part: PATH/qrels: found no judgment of dev, expected some to compare"),
        (DATA | TRAIN, {}, "1 empty part: PATH/qrels: found no judgment of dev, expected some to compare"),
        (DATA | DEV, {}, ""),
        (DATA | DEV, {"rounds": {"star": {"steps": 0}}}, ""),
        (DATA | DEV, {"rounds": {"star": {}}}, "1 empty part: PATH/qrels: found no judgment of train, expected some to train on"),
        (DATA | {"qrels/train.tsv": HEADER}, {"adore": {"a": {}}}, "2 empty parts: PATH/qrels: found no judgment of dev"),
        (DATA | {"qrels/train.tsv": f"{HEADER[:-1]}\tnote\nq1\td1\t1\n"}, {}, "1 malformed line: PATH/qrels/train.tsv:1: found 4 columns"),
        (DATA | {"qrels/train.tsv": f"{HEADER}q1\td1\t0\n"}, {}, "1 split without a relevant document: PATH/qrels/train.tsv: would"),
        (TRAIN | {"queries.jsonl": DATA["queries.jsonl"]}, {"prepare": {"unknown_documents": "drop"}}, "corpus.jsonl: not found"),
        (TRAIN | {"corpus.jsonl": DATA["corpus.jsonl"]}, {"prepare": {"unknown_documents": "drop"}}, "queries.jsonl: not found"),
        ({"corpus.jsonl": "\n"}, {"queries": "pseudo"}, "1 empty part: PATH/corpus.jsonl: would leave no document with"),
        ({"corpus.jsonl": DATA["corpus.jsonl"]}, {"queries": "pseudo"}, ""),
    ],
)
def test_a_batch_that_replaces_the_data_set_is_a_whole_one(
    project: Path, files: dict[str, str], params: dict[str, object], reason: str
) -> None:
    Path("params.yaml").write_text(json.dumps(params))
    write_files(project / "inbox/1", files)
    batch = take_batches(project, "replace")["1"]
    assert reason.replace("PATH", str(project / "inbox/1")) in batch.reason
    assert batch.state == ("quarantined" if reason else "accepted")


BARE = "1 split without a relevant document: PATH: would leave split train without a relevant document"
DROPPED = f"{BARE}, prepare drops all that are relevant (1); expected a grade above 0, here or in the data set"
ASKED = '{"_id": "q1", "text": "What is one?"}\n'


@pytest.mark.parametrize(
    ("files", "prepare", "file", "reason"),
    [
        ({"qrels/train.tsv": f"{HEADER}q1\td1\t0\n"}, {}, "/qrels/train.tsv", f"{BARE}, every grade is 0 or less; expected"),
        ({"corpus.jsonl": '{"_id": "d1", "text": ""}\n'}, {"empty_texts": "drop"}, "", f"{DROPPED}; 1 empty part: PATH/corpus.jsonl:"),
        ({"corpus.jsonl": '{"_id": "d1", "text": " "}\n{"_id": "d2", "text": "2"}\n'}, {"empty_texts": "drop"}, "", DROPPED),
        ({"queries.jsonl": ASKED.replace("What is one?", " ")}, {"empty_texts": "drop"}, "", DROPPED),
        ({"qrels/dev.tsv": f"{HEADER}q1\td1\t1\n"}, {"leaks": "drop"}, "", DROPPED),
        ({"queries.jsonl": ASKED.replace("q1", "q2"), "qrels/dev.tsv": f"{HEADER}q2\td1\t1\n"}, {"leaks": "drop"}, "", DROPPED),
        ({"queries.jsonl": ASKED.replace("q1", "q2"), "qrels/dev.tsv": f"{HEADER}q2\td1\t1\n"}, {"leaks": "allow"}, "", ""),
        ({"negatives.tsv": "query-id\tcorpus-id\nq1\td9\n"}, {"official_depth": 0}, "", ""),
        ({"negatives.tsv": "query-id\tcorpus-id\nq1\td9\n"}, {}, "/negatives.tsv", "1 judgment of an unknown document or query: PATH:2"),
        ({"negatives.tsv": "query-id\tcorpus-id\nq2\td9\n"}, {}, "", ""),  # of a query outside train
    ],
)
def test_a_batch_may_not_take_the_last_relevant_document_of_a_split(
    project: Path, files: dict[str, str], prepare: dict[str, object], file: str, reason: str
) -> None:
    """By a grade, an empty text, or a leak that prepare drops."""
    Path("params.yaml").write_text(json.dumps({"prepare": prepare}))
    write_files(project / "inbox/1", files)
    batch = take_batches(project)["1"]
    if "empty parts" in reason:
        reason = reason.replace("PATH/", f"{project}/inbox/1/")
    assert batch.reason.startswith(reason.replace("PATH", f"{project}/inbox/1{file}")), batch.reason
    assert batch.state == ("quarantined" if reason else "accepted")


def test_batches_count_in_the_order_of_the_merge(project: Path) -> None:
    """Whichever was there first: the relevant pair of batch 2 is not undone by a batch 1 that came later."""
    write_files(project / "inbox/2", {"corpus.jsonl": '{"_id": "d2", "text": "two"}\n', "qrels/train.tsv": f"{HEADER}q1\td2\t1\n"})
    assert take_batches(project)["2"].state == "accepted"
    write_files(project / "inbox/1", {"qrels/train.tsv": f"{HEADER}q1\td1\t0\nq1\td2\t0\n"})
    write_files(project / "inbox/3", {"qrels/train.tsv": f"{HEADER}q1\td2\t-1\n"})
    batches = take_batches(project)
    assert {name: batch.state for name, batch in batches.items()} == {"1": "accepted", "2": "accepted", "3": "quarantined"}
    assert BARE.replace("PATH", f"{project}/inbox/3/qrels/train.tsv") in batches["3"].reason


def test_of_what_is_said_twice_the_later_counts(project: Path) -> None:
    """As in the merge: batch 0 says again what the data set says."""
    with (project / "base/queries.jsonl").open("a") as handle:
        handle.write('{"_id": "q2", "text": "what"}\n{"_id": "q3", "text": "What is one?"}\n')
    with (project / "base/corpus.jsonl").open("a") as handle:
        handle.write('{"_id": "d2", "text": ""}\n')
    write_files(
        project / "inbox/0",
        {
            "corpus.jsonl": '{"_id": "d2", "text": "two"}\n',
            "queries.jsonl": '{"_id": "q2", "text": "What is one?"}\n{"_id": "q3", "text": "who"}\n',
        },
    )
    question = (project / "base/queries.jsonl").read_text().splitlines()[0].split('"text": ')[1]
    write_files(project / "inbox/1", {"queries.jsonl": f'{{"_id": "q4", "text": {question}\n', "qrels/train.tsv": f"{HEADER}q4\td2\t1\n"})
    write_files(project / "inbox/2", {"qrels/dev.tsv": f"{HEADER}q3\td2\t1\n"})
    write_files(
        project / "inbox/3", {"queries.jsonl": '{"_id": "q5", "text": "What is one?"}\n', "qrels/train.tsv": f"{HEADER}q5\td1\t1\n"}
    )
    write_files(project / "inbox/4", {"qrels/dev.tsv": f"{HEADER}q2\td1\t1\n"})
    batches = take_batches(project)
    assert [batch.state for _, batch in sorted(batches.items())] == ["accepted", "accepted", "accepted", "accepted", "quarantined"]
    assert "query 'q2' has the text of a query of train" in batches["4"].reason


def test_what_is_forgotten_is_not_there(project: Path) -> None:
    FILE.write_text(f"document {mark('document', 'd2')} 2026-01-01\nquery {mark('query', 'q2')} 2026-01-01\n")
    corpus = '{"_id": "d2", "text": ""}\n'
    write_files(project / "inbox/1", {"corpus.jsonl": corpus, "qrels/dev.tsv": f"{HEADER}q1\td2\t1\nq2\td1\t1\n"})
    write_files(project / "inbox/2", {"qrels/train.tsv": f"{HEADER}q1\td1\t0\nq1\td2\t1\n"})
    batches = take_batches(project)
    assert (batches["1"].state, batches["1"].documents, batches["1"].judgments) == ("accepted", 0, {"dev": 0})
    assert "would leave split train without a relevant document, every grade" in batches["2"].reason


def test_negatives_of_a_document_that_loses_its_text_are_dropped(project: Path) -> None:
    Path("params.yaml").write_text(json.dumps({"prepare": {"empty_texts": "drop"}}))
    write_files(project / "inbox/1", {"corpus.jsonl": '{"_id": "d2", "text": "two"}\n', "negatives.tsv": "query-id\tcorpus-id\nq1\td2\n"})
    write_files(project / "inbox/2", {"corpus.jsonl": '{"_id": "d2", "text": ""}\n'})
    batches = take_batches(project)
    assert {batch.state for batch in batches.values()} == {"accepted"}
    assert [batches[name].figures for name in "12"] == [
        "1 document (1 new), 0 queries, 1 negative",
        "1 document (0 new), 0 queries",
    ]


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [({"unknown_documents": "drop"}, ""), ({}, "1 judgment of an unknown document")],
)
def test_a_leak_is_one_only_where_prepare_reads_its_judgment(project: Path, prepare: dict[str, object], reason: str) -> None:
    """Query q1 is judged in dev for a document that does not exist, or exists only once batch 2 has come."""
    Path("params.yaml").write_text(json.dumps({"prepare": prepare}))
    queries = {"queries.jsonl": '{"_id": "q3", "text": "three"}\n'}
    write_files(project / "inbox/1", queries | {"qrels/dev.tsv": f"{HEADER}q1\td9\t1\nq3\td1\t1\n"})
    batches = take_batches(project)
    assert batches["1"].reason.startswith(reason) and (batches["1"].state == "accepted") == (not reason)
    write_files(project / "inbox/2", {"corpus.jsonl": '{"_id": "d9", "text": "nine"}\n'})
    leak = "1 training query that is also in dev or test: query 'q1' is judged in train and in dev or test"
    assert leak in [batch.reason for batch in take_batches(project).values()]


@pytest.mark.parametrize("answers", ['"one"', "[1]", '["\\ud800"]', '{"a": 1}'])
def test_answers_are_what_prepare_takes_for_them(project: Path, answers: str) -> None:
    write_files(project / "inbox/1", {"queries.jsonl": f'{{"_id": "q2", "text": "two", "answers": {answers}}}\n'})
    write_files(
        project / "inbox/2",
        {"queries.jsonl": '{"_id": "q3", "text": "3", "answers": ["x"]}\n{"_id": "q4", "text": "4", "answers": null}\n'},
    )
    write_files(project / "inbox/3", {"qrels/dev.tsv": f"{HEADER}q2\td1\t1\nq3\td1\t1\nq4\td1\t1\n"})
    batches = take_batches(project)
    assert batches["1"].reason.startswith(f"1 malformed line: {project}/inbox/1/queries.jsonl:1: ") and "answer" in batches["1"].reason
    assert batches["2"].state == "accepted"


def test_a_query_without_answers_is_named_where_evaluate_needs_them(project: Path) -> None:
    """As one typed in `retemper browse`: evaluate would fail, after the training. The last record of a query counts."""
    Path("params.yaml").write_text(json.dumps({"evaluate": {"measures": ["nDCG@10", "Coverage@20"]}}))
    lines = {name: json.dumps({"_id": name, "text": name, "answers": answers}) + "\n" for name, answers in (("q2", ["two"]), ("q3", [" "]))}
    write_files(project / "inbox/1", {"queries.jsonl": lines["q2"], "qrels/dev.tsv": f"{HEADER}q2\td1\t1\n"})
    write_files(project / "inbox/2", {"queries.jsonl": lines["q3"], "qrels/dev.tsv": f"{HEADER}q3\td1\t1\n"})
    typed = "".join(json.dumps({"_id": name, "text": name}) + "\n" for name in (CLICK_1, "browse-1"))
    write_files(project / "inbox/3", {"queries.jsonl": typed, "qrels/dev.tsv": f"{HEADER}{CLICK_1}\td1\t1\nbrowse-1\td1\t1\n"})
    write_files(project / "inbox/4", {"queries.jsonl": typed.split("\n")[0] + "\n", "qrels/dev.tsv": f"{HEADER}{CLICK_1}\td1\t1\n"})
    write_files(project / "inbox/5", {"queries.jsonl": '{"_id": "q2", "text": "2"}\n'})
    write_files(project / "inbox/6", {"queries.jsonl": typed.replace("browse", "other"), "qrels/train.tsv": f"{HEADER}other-1\td1\t1\n"})
    batches = take_batches(project)
    assert {name for name, batch in batches.items() if batch.state == "accepted"} == {"1", "4", "6"}
    remedy = "expected at least one, as evaluate.measures has Coverage@20; add `answers` to its line in queries.jsonl"
    for name, query in (("2", "q3"), ("3", "browse-1"), ("5", "q2")):
        assert batches[name].wrong == (f"1 query of dev or test without answers: query {query!r} of dev has no answers, {remedy}",)
    write_files(project / "inbox/7", {"queries.jsonl": lines["q3"].replace('" "', '"three"')})
    assert {name for name, batch in take_batches(project).items() if batch.state == "accepted"} == {"1", "2", "4", "6", "7"}
    Path("params.yaml").write_text(json.dumps({"evaluate": {"measures": ["nDCG@10"]}}))
    assert {batch.state for batch in take_batches(project).values()} == {"accepted"}


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_twice_is_found_in_whatever_blocks_lines_are_read(seed: int, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against plain Python: repeated ids, copies of texts, and judgments that contradict their pair's first one."""
    draw = random.Random(seed)
    documents = [(f"d{draw.randrange(9)}", f"text {draw.randrange(12)}") for _ in range(14)]
    queries = [f"q{draw.randrange(8)}" for _ in range(10)]
    judgments = [(draw.choice(queries), draw.choice(documents)[0], draw.randrange(2), draw.choice([1.0, 0.5])) for _ in range(25)]
    base = [("d1", "one"), ("d2", "text 2"), ("d3", "text 3")]
    for folder, texts in (("known", base), ("inbox/1", documents)):
        write_files(project / folder, {"corpus.jsonl": "".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts)})
    lines = "".join(json.dumps({"_id": name, "text": f"about {n}"}) + "\n" for n, name in enumerate(queries))
    (project / "inbox/1/queries.jsonl").write_text(lines)
    (project / "known/queries.jsonl").write_text("")
    rows = "".join(f"{query}\t{doc}\t{grade}\t{weight}\n" for query, doc, grade, weight in judgments)
    (project / "inbox/1/qrels/train.tsv").write_text(HEADER.strip() + "\tweight\n" + rows)

    new = [(name, text) for name, text in documents if name not in dict(base)]
    seen = {text for _, text in base}
    copies = 0
    for name, text in documents:
        copies += name not in dict(base) and text in seen
        seen.add(text)
    first: dict[tuple[str, str], tuple[int, float]] = {}
    conflicts = []
    for number, (query, doc, grade, weight) in enumerate(judgments, 2):
        other = first.setdefault((query, doc), (grade, weight))
        if other != (grade, weight):
            message = f"grade {grade} of {query} and {doc}, {other[0]} before" if other[0] != grade else ""
            message = message or f"weight {weight} of {query} and {doc}, {other[1]} before"
            conflicts.append(f"{project}/inbox/1/qrels/train.tsv:{number}: {message}; keep one")
    repeated = len(documents) - len(dict(documents)) + len(queries) - len(set(queries))
    for block in (1, 2, 3, 5, 100):
        monkeypatch.setattr(known, "BLOCK", block)
        data_set = known.Known(3)
        data_set.add(project / "known", batch=False)
        report = check(project / "inbox/1", data_set, Settings(), size=3)
        assert (report.documents, report.new, report.duplicates, report.queries) == (14, len(new), copies, len(set(queries)))
        assert report.judgments == {"train": 25}
        assert report.findings.counts[REPEATED] == repeated + len(conflicts)
        assert [line for line in report.findings.lines if line.endswith("keep one")] == conflicts


def test_hashes_of_many_blocks_are_kept_in_few_runs() -> None:
    """A run is merged into the one before unless that is more than twice as long, so a search goes through few of them."""
    seen = known.Seen()
    for block in range(64):
        assert not seen.add(np.arange(8 * block, 8 * block + 8, dtype=np.uint64)).any()
    assert seen.add(np.arange(513, dtype=np.uint64)).tolist() == [True] * 512 + [False]
    assert len(seen._runs) <= 7


@pytest.mark.parametrize("count", [1, 1200])
def test_only_the_kind_of_a_mistake_says_whether_its_remedy_may_still_come(count: int) -> None:
    """A later batch may bring a document, but corrects no line, whatever that line quotes."""
    answers = {}
    for kind in gate.ONE:
        findings = gate.Findings()
        for _ in range(count):
            findings.add(kind, f"inbox/{gate.UNKNOWN}/corpus.jsonl:1: {gate.IRRELEVANT}")
        answers[kind] = gate.may_arrive_later(findings.reasons()[0])
    assert {kind for kind, answer in answers.items() if answer} == {gate.UNKNOWN, gate.IRRELEVANT, gate.UNANSWERED}
