"""`retemper new`: a project by flags and by questions, its refusals, and what a stop or a kill leaves."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.core.params.safe_yaml import parse_yaml
from tests.forks import retemper

TINY = "package:cognition/model"
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(tmp_path: Path, toy_environment: dict[str, str], checkout: Path) -> Call:
    """`call("new", ...)` in an otherwise empty folder, with the code of the working tree."""

    def run_command(*arguments: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        code = ["--code", str(checkout)] if arguments[0] == "new" else []
        return retemper([arguments[0], *code, *arguments[1:]], folder, toy_environment)

    return run_command


@pytest.fixture
def beir_folder(tmp_path: Path, tiny_corpus: Any) -> Path:
    """The tiny corpus as a BEIR folder of the test's own."""
    return Path(shutil.copytree(tiny_corpus.beir, tmp_path / "beir"))


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.rstrip("\n")


def test_a_project_by_flags_is_whole_checked_and_committed(call: Call, beir_folder: Path, tmp_path: Path, checkout: Path) -> None:
    flags = ["--data", "beir", "--queries", "corpus", "--encoder", TINY, "--share", "remote", "--document-length", "auto"]
    flags += ["--like", "beir"]  # no project, and so no times: this checkout may have some
    result = call(
        "new", "mine", *flags, "--set", "rounds.star=", "--set", "mine=", "--set", "mine={}", "--set", "adore={}", "--set", "fuse={}"
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "documents           60 " in result.stdout
    assert "time of the first run: unknown, as no finished run is recorded" in result.stdout
    assert "disk of the first run: about" in result.stdout
    project = tmp_path / "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beir", "mine", "remote"], "nothing else is left"
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "log", "--format=%s") == "Start a Retemper project"
    tracked = git(project, "ls-files").splitlines()
    needed = {
        "Makefile",
        "dvc.yaml",
        "dvc.lock",
        "pyproject.toml",
        "retemper.toml",
        "tasks/train/__main__.py",
        "docs/recipes/ance_maxp.yaml",
    }
    assert needed <= set(tracked)
    assert not [name for name in tracked if name.startswith(("tests/", "benchmarks/", ".ci/", "CHANGELOG"))]
    parameters = parse_yaml((project / "params.yaml").read_text())
    assert parameters["dataset"]["source"] == "beir:../beir"
    assert parameters["encoder"]["source"] == TINY
    assert parameters["pretrain"] == {}
    assert list(parameters["rounds"]) == ["init", "warmup"]
    assert parameters["tokenize"]["document_length"] % 32 == 0
    text = (project / "params.yaml").read_text()
    assert "# use 128 or more" in text, "comments stay"
    assert re.search(r"epochs: 1 +# choose your own on dev", text), "and are true in a project"
    assert "url = " + str(tmp_path / "remote") in (project / ".dvc/config").read_text()
    assert git(checkout, "rev-parse", "HEAD") in (project / "retemper.toml").read_text()
    assert project.stat().st_mode == beir_folder.stat().st_mode, "as any other folder"
    dry_run = call("run", "--dry-run", "--json", folder=project)
    assert dry_run.returncode == 0, dry_run.stderr
    stages = [entry["stage"] for entry in json.loads(dry_run.stdout)]
    assert "prepare" not in stages, "it has run"
    assert "report" in stages
    (record,) = map(json.loads, (path.read_text() for path in project.glob(".dvc/cache/made/*/*.json")))
    assert (record["stage"], record["at_least"]) == ("prepare", False)
    assert record["by"] and record["seconds"] > 0 and record["environment"]["python"], "lineage tells how it was made"


def test_documents_alone_become_a_project_of_made_queries(call: Call, beir_folder: Path, tmp_path: Path) -> None:
    for path in [beir_folder / "queries.jsonl", *(beir_folder / "qrels").iterdir()]:
        path.unlink()
    (beir_folder / "qrels").rmdir()
    (tmp_path / "mine").mkdir()  # an empty folder is as good as none
    result = call(
        "new",
        "mine",
        "--data",
        str(beir_folder),
        "--encoder",
        TINY,
        "--share",
        "cache:cache",
        "--defaults",
        "--set",
        "report.test=permutation",
    )
    assert result.returncode == 0, result.stderr
    parameters = parse_yaml((tmp_path / "mine/params.yaml").read_text())
    assert (parameters["queries"], parameters["pseudo"]["per_document"], parameters["report"]["test"]) == ("pseudo", 3, "permutation")
    assert parameters["dataset"]["source"] == f"beir:{beir_folder}", "an absolute path stays"
    assert not (tmp_path / "mine/.retemper/recipe.json").exists()
    assert list((tmp_path / "cache/files/md5").glob("*/*")), "what was checked is in the shared cache"
    registered = [path.read_text() for path in (tmp_path / "cache/projects").iterdir()]
    assert any(str(tmp_path / "mine") in text for text in registered)


FLAGS = {"--data": "beir", "--queries": "corpus", "--encoder": TINY, "--share": "none", "--document-length": "64"}


@pytest.mark.parametrize(
    ("folder", "flags", "expected"),
    [
        ("full", FLAGS, "full: found a folder with files, expected a new or empty one; name another"),
        ("file", FLAGS, "file: found a file, expected a new folder; name another"),
        ("mine:2", FLAGS, "mine:2: found ':' in the folder's name, which separates folders in PYTHONPATH; rename it"),
        ("a/b", FLAGS, "a: no such folder, expected one to make the project in; make it first"),
        (
            "mine",
            {},
            "new: found no --data, --queries, --encoder, --share, --document-length, and no terminal to ask for them; give them, or --data",
        ),
        ("mine", {"--encoder": TINY, "--defaults": ""}, "new: found no --data, and no terminal to ask for them; give them"),
        ("mine", FLAGS | {"--data": "nowhere"}, "nowhere: no such folder or file, expected one, or demo | beir:PATH"),
        ("mine", FLAGS | {"--data": "file"}, "file: found a file of another form, expected a file of queries and answers: .csv"),
        ("mine", FLAGS | {"--data": "beir:nowhere"}, "nowhere: not found, expected a BEIR folder"),
        (
            "mine",
            FLAGS | {"--data": "full"},
            "full: found no corpus.jsonl (BEIR), corpus.csv, collection.tsv (MS MARCO), or documents.parquet",
        ),
        ("mine", FLAGS | {"--queries": "some"}, "queries: found 'some', expected corpus"),
        ("mine", FLAGS | {"--encoder": "./nowhere"}, "encoder './nowhere': no such folder"),
        ("mine", FLAGS | {"--encoder": "full"}, "no config.json in full"),
        ("mine", FLAGS | {"--share": ""}, "share: found nothing, expected none, a remote"),
        ("mine", FLAGS | {"--share": "a/b/c"}, "a/b not found; create it, or mount it"),
        ("mine", FLAGS | {"--document-length": "long"}, "document length: found 'long', expected a number of tokens"),
        ("mine", FLAGS | {"--document-length": "9999"}, "document length: found 9999, expected at most 512, the encoder's limit, or auto"),
        ("mine", FLAGS | {"--set": "rounds.star.lr=fast"}, "params.yaml: rounds.star.lr: found 'fast'"),
        ("mine", FLAGS | {"--set": "rounds.star"}, "--set rounds.star: expected section.key=value"),
        ("mine", FLAGS | {"--queries": "pseudo", "--set": "rounds.star.epochs=2"}, "has no effect, because rounds.star.steps is 50"),
        ("mine", FLAGS | {"--code": "full"}, "expected the URL or folder of a git repository of Retemper"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    call: Call, beir_folder: Path, tmp_path: Path, folder: str, flags: dict[str, str], expected: str
) -> None:
    assert beir_folder.is_dir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    result = call("new", *[word for flag, value in flags.items() for word in (flag, value) if word or flag == "--share"], folder)
    assert result.returncode == 2, result.stdout
    assert result.stderr.count("\n") == 1, result.stderr
    assert expected in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        (
            "qrels/train.tsv",
            "q00\tnowhere\t1\n",
            "beir/qrels/train.tsv:42: document 'nowhere' is not in the dataset (1 such line); add it, or set",
        ),
        ("corpus.jsonl", "{\n", "beir/corpus.jsonl:61: not JSON"),
    ],
)
def test_unfit_data_is_refused_with_its_line_and_leaves_nothing(
    call: Call, beir_folder: Path, tmp_path: Path, name: str, line: str, expected: str
) -> None:
    with (beir_folder / name).open("a") as file:
        file.write(line)
    result = call("new", "mine", "--data", "beir", "--encoder", TINY, "--defaults")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert expected in result.stderr
    assert "../beir" not in result.stderr, "as it was typed"
    assert expected not in result.stdout, "said once"
    assert [path.name for path in tmp_path.iterdir()] == ["beir"]


def test_the_working_folder_becomes_a_project(call: Call, beir_folder: Path, tmp_path: Path) -> None:
    """With a shared cache, which is set in the finished project; a mistake there leaves the folder, empty."""
    project = tmp_path / "mine"
    project.mkdir()
    flags = ["--data", "../beir", "--encoder", TINY, "--defaults", "--set", "fuse={}"]
    result = call("new", ".", *flags, "--share", f"cache:{beir_folder}/corpus.jsonl", folder=project)
    assert (result.returncode, list(project.iterdir())) == (2, []), result.stderr
    result = call("new", ".", *flags, "--share", f"cache:{tmp_path}/cache", folder=project)
    assert (result.returncode, result.stderr) == (0, "")
    assert ".: a project of Retemper" in result.stdout and "\nnext: retemper run (" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beir", "cache", "mine"], "nothing else is left"
    assert git(project, "status", "--porcelain") == ""
    dry_run = call("run", "--dry-run", "--json", folder=project)
    assert "prepare" not in [entry["stage"] for entry in json.loads(dry_run.stdout)], "it has run"


def test_data_without_training_queries_becomes_a_project_that_trains_nothing(call: Call, beir_folder: Path, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (beir_folder / f"qrels/{split}.tsv").unlink()
    sets = ["--set", "bm25.k1=1.5", "--set", "rounds.warmup.lr=2e-5", "--set", "rounds.init.seed=7", "--set", "fuse={}"]
    sets += ["--set", "rounds.own={init: base, negatives: none, steps: 0}", "--set", "rounds.own.seed=8"]
    result = call("new", "mine", "--data", "beir", "--encoder", TINY, "--defaults", *sets)
    assert result.returncode == 0, result.stderr
    assert "left out, because the recipe has no such entry: --set rounds.warmup.lr=2e-5\n" in result.stderr
    assert "beir:../beir: found no train queries, so the project trains nothing (recipe zero_shot); to train on queries" in result.stderr
    assert "but no dev: the best system is chosen on test" in result.stderr
    parameters = parse_yaml((tmp_path / "mine/params.yaml").read_text())
    assert (list(parameters["rounds"]), parameters["fuse"], parameters["bm25"]["k1"]) == (["init", "own"], {}, 1.5)
    assert [entry["seed"] for entry in parameters["rounds"].values()] == [7, 8]
    assert not (tmp_path / "mine/.retemper/recipe.json").exists()
    dry_run = call("run", "--dry-run", "--json", folder=tmp_path / "mine")
    assert dry_run.returncode == 0, dry_run.stderr
    assert {"report", "train@init"} <= {entry["stage"] for entry in json.loads(dry_run.stdout)}


def test_copies_among_the_documents_are_said(call: Call, beir_folder: Path) -> None:
    lines = (beir_folder / "corpus.jsonl").read_text().splitlines()
    copy = json.dumps({**json.loads(lines[0]), "_id": "again"})
    (beir_folder / "corpus.jsonl").write_text("\n".join([*lines, copy, ""]))
    result = call("new", "mine", "--data", "beir", "--queries", "corpus", "--encoder", TINY, "--defaults")
    assert result.returncode == 0, result.stderr
    assert "equal texts: 1 document is a copy of another" in result.stdout


def test_one_document_becomes_a_project_that_trains_nothing(call: Call, beir_folder: Path, tmp_path: Path) -> None:
    document = json.loads((beir_folder / "corpus.jsonl").read_text().splitlines()[0])
    (beir_folder / "corpus.jsonl").write_text(json.dumps(document) + "\n")
    query_ids = iter([json.loads(line)["_id"] for line in (beir_folder / "queries.jsonl").read_text().splitlines()])
    for split in ("train", "dev", "test"):
        (beir_folder / f"qrels/{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{next(query_ids)}\t{document['_id']}\t1\n")
    result = call("new", "mine", "--data", "beir", "--encoder", TINY, "--defaults", "--queries", "corpus", "--set", "fuse={}")
    assert result.returncode == 0, result.stderr
    assert "beir:../beir: found 1 document, so the project trains nothing (recipe zero_shot)\n" in result.stderr
    assert list(parse_yaml((tmp_path / "mine/params.yaml").read_text())["rounds"]) == ["init"]


def test_texts_that_the_encoder_cannot_read_and_those_that_are_cut_are_said(call: Call, beir_folder: Path) -> None:
    lines = [json.loads(line) for line in (beir_folder / "corpus.jsonl").read_text().splitlines()]
    texts = "".join(json.dumps({**line, "text": "<p>word</p> " + "word " * 399 + "\ua66e " * 100}) + "\n" for line in lines)
    (beir_folder / "corpus.jsonl").write_text(texts)
    result = call("new", "mine", "--data", "beir", "--queries", "corpus", "--encoder", TINY, "--defaults")
    assert result.returncode == 0, result.stderr
    warning = f"retemper: warning: encoder {TINY}: 20% of the documents' tokens are unknown; choose one for their language (encoder.source)"
    assert warning in result.stderr.splitlines()
    assert "100% of the documents have a title, which is not read; text.titles=true puts it before the text" in result.stdout
    assert "100% of the documents have HTML, such as <p>, which is read as text; remove it at the source" in result.stdout
    assert (
        "256 tokens of each document are read (95% have at most 509); tokenize.passages=N reads N times as many"
        in result.stdout.splitlines()
    )


def test_training_queries_are_made_where_a_flag_asks_for_them(call: Call, beir_folder: Path, tmp_path: Path) -> None:
    """As the warning about data without train queries says."""
    (beir_folder / "qrels/train.tsv").unlink()
    result = call("new", "mine", "--data", "beir", "--encoder", TINY, "--defaults", "--queries", "pseudo")
    assert (result.returncode, result.stderr) == (0, "")
    assert "they are made from the documents (queries: pseudo, recipe cold_start)\n" in result.stdout
    assert "a title, which is not read" not in result.stdout, "titles become queries"
    assert list(parse_yaml((tmp_path / "mine/params.yaml").read_text())["rounds"]) == ["init", "warmup", "star"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_leaves_nothing_and_a_kill_nothing_for_long(
    beir_folder: Path, tmp_path: Path, toy_environment: dict[str, str], checkout: Path, number: int, call: Call
) -> None:
    arguments = ["new", "mine", "--data", "beir", "--encoder", TINY, "--defaults", "--code", str(checkout)]
    script = [sys.executable, "-c", "import sys; from flows.cli.main import main; sys.exit(main())"]
    process = subprocess.Popen(
        [*script, *arguments], cwd=tmp_path, env=toy_environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".retemper-new-*/dvc.yaml")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    names = sorted(path.name for path in tmp_path.iterdir() if path != beir_folder)
    if number == signal.SIGTERM:
        assert process.returncode == 128 + signal.SIGTERM
        assert "retemper: stopped; nothing was left behind" in errors
        assert names == []
    else:
        assert len(names) == 1 and names[0].startswith(".retemper-new-")
        with (beir_folder / "corpus.jsonl").open("a") as file:
            file.write("{\n")
        deadline = time.monotonic() + 120
        while names != ["beir"]:  # the killed one's own stage may still be ending, and write
            assert time.monotonic() < deadline, names
            assert call("new", "mine", "--data", "beir", "--encoder", TINY, "--defaults").returncode == 2
            names = sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.usefixtures("beir_folder")
def test_five_questions_on_a_terminal(tmp_path: Path, toy_environment: dict[str, str], checkout: Path) -> None:
    """A wrong answer is refused and asked again; an empty one is the default."""
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        script = "import sys; from flows.cli.main import main; sys.exit(main())"
        arguments = ["new", "mine", "--code", str(checkout), "--set", "tokenize.query_length=16"]
        os.execve(sys.executable, [sys.executable, "-c", script, *arguments], toy_environment | {"TERM": "dumb", "COLUMNS": "200"})
    text = ""

    def read_until(prompt: str) -> None:
        nonlocal text
        readable = select.poll()
        readable.register(screen, select.POLLIN)
        deadline = time.monotonic() + 120
        while prompt not in text:
            assert time.monotonic() < deadline, text
            if readable.poll(100):
                text += os.read(screen, 4096).decode()
        text = text.partition(prompt)[2]

    for question, answer in (
        ("Documents, queries, and judgments", "nowhere"),
        ("nowhere: no such folder", "beir"),
        ("Queries: corpus", ""),
        ("Encoder to start from", "./nowhere"),
        ("no such folder", TINY),
        ("The team's remote", ""),
        ("95% of the documents have at most", "zero"),
        ("found 'zero'", "40"),
    ):
        read_until(question)
        os.write(screen, f"{answer}\n".encode())
    read_until("next: cd mine && retemper run")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(screen)
    parameters = parse_yaml((tmp_path / "mine/params.yaml").read_text())
    assert (parameters["dataset"]["source"], parameters["queries"], parameters["encoder"]["source"]) == ("beir:../beir", "corpus", TINY)
    assert (parameters["tokenize"]["document_length"], parameters["tokenize"]["query_length"]) == (40, 16)
