"""What an export holds; that it serves what the workspace does, its vectors are those of the index, and its card tells the truth."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from flows.cli.main import main
from flows.serving import card
from flows.serving.export import export
from tasks.core.errors import UserError
from tasks.core.models.export import file_digests, read_record
from tasks.search.__main__ import arguments, open_systems
from tasks.search.lists import resident_tower
from tasks.search.server.served import load
from tests.flows.serving.conftest import GIT, FakeHub

QUERIES = ("German politician", "a river in the north", "1925 novel", "zzz", "city in Japan")
SYSTEMS = ["--model", "tower", "data/encoders/tower", "data/indexes/warmup", "--model", "warmup", "data/encoders/warmup"]
SYSTEMS += ["data/indexes/warmup", "--lexical", "data/bm25", "--fusion", "hybrid", "data/runs/hybrid/fusion.json"]
SYSTEMS += ["--documents", "data/corpus/documents.parquet", "--tokens", "data/tokens", "--query", "unused"]


@pytest.mark.parametrize("model", ["hybrid", "warmup"])
def test_an_export_answers_as_the_workspace_does(model: str, crown: Callable[[str], Any], project: Path, tmp_path: Path) -> None:
    current = crown(model)
    export(project, tmp_path / "out", documents=True)
    systems = open_systems(arguments().parse_args(SYSTEMS))
    exported = load(tmp_path / "out")
    for k in (1, 10):
        for query, actual in zip(QUERIES, exported.search(QUERIES, k), strict=True):
            expected = systems.search(query, model, k)
            assert (list(actual.documents), list(actual.scores)) == (list(expected.documents), list(expected.scores)), "to the last bit"
    record = read_record(tmp_path / "out")
    assert (record.model, record.label) == (model, f"champion/{current.number} {model}")
    assert record.query == {"prefix": "", "max_length": 32}
    assert (record.document["max_length"], record.document["titles"], record.document["separator"]) == (24, False, " ")
    digests = {name: list(value) for name, value in file_digests(tmp_path / "out").items()}
    assert record.files == {name: value for name, value in digests.items() if name != "README.md"}, "which people edit"
    (tmp_path / "out/README.md").write_text("license: mit")
    assert load(tmp_path / "out").label == record.label


def test_the_whole_export_by_the_command(
    crown: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, vectors against the index, card against what it was made from, and its upload, taken apart."""
    crown("hybrid")
    out = tmp_path / "out"
    fake_hub = FakeHub(monkeypatch)
    command = ["champion", "export", str(out), "--with-documents", "--vectors", "--push-to-hub", "me/hybrid"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("champion/1: hybrid, nDCG@10 ")
    assert re.search(rf"\n\nwrote {out} \([\d.]+ MiB\); to serve it: retemper serve --export {out}\n$", printed.out)
    assert printed.err == "pushed to https://hub.example/me/hybrid\n"
    folders = {path.relative_to(out).parts[0] for path in out.rglob("*")}
    assert folders == {
        "README.md", "bm25", "champion.json", "documents.parquet", "encoder", "index", "serving.json", "vectors.parquet"
    }  # fmt: skip

    import faiss

    table = pq.read_table(out / "vectors.parquet")
    index = faiss.read_index(str(out / "index/index.faiss"))
    vectors = np.stack(table["vector"].to_numpy())
    assert np.array_equal(vectors, index.reconstruct_n(0, index.ntotal)), "the flat index holds them as they are"
    documents = {row["id"]: row for row in pq.read_table(out / "documents.parquet").to_pylist()}
    rows = table.select(["row", "id", "passage", "title", "text"]).to_pylist()
    assert [row["row"] for row in rows] == list(range(60)) and {row["passage"] for row in rows} == {0}
    assert all(documents[row["id"]] == {key: row[key] for key in ("id", "title", "text")} for row in rows)

    page = (out / "README.md").read_text(encoding="utf-8")
    _, header, text = page.split("---\n", 2)
    metadata = YAML(typ="safe").load(header)
    assert metadata["library_name"] == "sentence-transformers"
    measured = json.loads(Path("data/metrics/hybrid.json").read_text())
    results = {
        (result["dataset"]["split"], metric["type"]): metric["value"]
        for result in metadata["model-index"][0]["results"]
        for metric in result["metrics"]
    }
    assert results == {(split, name): round(value, 4) for split, values in measured.items() for name, value in values.items()}
    champion = json.loads((out / "champion.json").read_text())
    source = json.loads(Path("data/source.json").read_text())
    for fact in (champion["commit"], source["dataset"]["digest"], "weight 0.", "| train@warmup | ", "60 documents", "at most 32 tokens"):
        assert fact in text, fact
    assert "answers queries with the whole model: encoder, index, BM25's index and the fusion's weight." in text
    assert "- articles" not in text, "which no stage of it reads"
    assert str(tmp_path) not in page and "small@example.com" not in page, "no place and no person"

    pushed = fake_hub.download(tmp_path / "hub")
    lists = (load(folder).search(QUERIES, 5) for folder in (out, pushed))
    assert all(list(one.scores) == list(other.scores) for one, other in zip(*lists, strict=True)), "what the hub has serves, too"
    assert (pushed / "router_config.json").exists() and fake_hub.private
    assert fake_hub.messages == ["me/hybrid: Export champion/1 hybrid"]
    code = text.partition("```python\n")[2].partition("```")[0].replace('"encoder")', f"{str(pushed)!r}, device='cpu')")
    scope: dict[str, Any] = {}
    exec(code.replace("your query", "a river"), scope)
    record = read_record(out)
    expected = resident_tower(out / record.encoders["tower"][0], record.query["max_length"], record.query["prefix"])("a river")[0]
    assert np.allclose(scope["vector"], expected, rtol=1e-4, atol=1e-5), "the card's code gives the server's vector"


def test_the_command_whose_push_failed_pushes_what_it_exported(
    crown: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    crown("warmup")
    out = tmp_path / "out"
    command = ["champion", "export", str(out), "--push-to-hub", "me/x"]

    def refusal(*more: str) -> str:
        with pytest.raises(SystemExit, match=r"^2$"):
            main([*command, *more])
        return capsys.readouterr().err

    FakeHub(monkeypatch, httpx.ConnectError("refused"))
    assert refusal().endswith(f"me/x: not pushed (refused); run the same command again, which pushes {out}\n")
    fake_hub = FakeHub(monkeypatch)
    for other in ("--with-documents", "--vectors"):
        assert f"{out}: not empty, expected a new folder" in refusal(other)
    (out / ".env").write_text("SECRET=1")
    assert f"{out}: not empty, expected a new folder" in refusal(), "it would be pushed, too"
    (out / ".env").unlink()
    assert not fake_hub.messages
    assert main(command) == 0
    assert f"\n\nfound {out} (" in capsys.readouterr().out and fake_hub.messages == ["me/x: Export champion/1 warmup"]
    damage(out, "encoder/model.safetensors")
    assert "model.safetensors: its content has changed since the export" in refusal()
    crown("warmup")
    assert f"{out}: not empty, expected a new folder" in refusal(), "it is another champion's"
    assert len(fake_hub.messages) == 1


@pytest.mark.usefixtures("project")
def test_uncommitted_settings_are_named_when_a_champion_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    """A model trained with them is recorded with the params.yaml of its commit."""
    assert main(["champion"]) == 0
    assert capsys.readouterr().out == "there is no champion yet; run retemper retrain, or retemper champion set MODEL\n"
    assert main(["champion", "set", "warmup"]) == 0
    assert capsys.readouterr().err == ""
    with Path("params.yaml").open("a") as file:
        file.write("# edited\n")
    assert main(["champion", "set", "warmup"]) == 0
    assert "params.yaml: found uncommitted changes, which champion/2 is recorded without; if the model" in capsys.readouterr().err


def test_the_card_of_a_single_encoder(crown: Callable[[str], Any], project: Path, tmp_path: Path) -> None:
    crown("warmup")
    export(project, tmp_path / "out")
    text = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "answers queries with the whole model: encoder and index." in text
    assert [line.split(":")[0] for line in text.splitlines() if "SHA-256 `" in line] == ["- dataset", "- encoder"]


def test_an_export_goes_where_a_link_leads_and_never_replaces_a_mount_point(
    crown: Callable[[str], Any], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crown("warmup")
    for name in ("disk", "mounted"):
        (tmp_path / name).mkdir()
    (tmp_path / "out").symlink_to("disk")
    export(project, tmp_path / "out")
    assert (tmp_path / "out").is_symlink() and read_record(tmp_path / "disk").model == "warmup"
    mounted = tmp_path / "mounted"
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == mounted)
    line = f"{mounted}: found a mount point, which cannot be replaced; expected a new folder, such as {mounted}/export"
    with pytest.raises(UserError, match=f"^{line}$"):
        export(project, mounted)


def test_no_file_of_an_export_names_a_folder_of_this_machine(crown: Callable[[str], Any], project: Path, tmp_path: Path) -> None:
    """A retraining records the source by its whole path."""
    source = json.loads(Path("data/source.json").read_text())
    source["dataset"]["source"] = f"beir:{tmp_path}/private/scifact"
    Path("data/source.json").write_text(json.dumps(source))
    subprocess.run([*GIT, "commit", "--quiet", "-am", "a source elsewhere"], check=True)
    crown("hybrid")
    export(project, tmp_path / "out", documents=True)
    names = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file() and str(tmp_path).encode() in path.read_bytes()]
    assert names == []
    assert json.loads((tmp_path / "out/champion.json").read_text())["data"]["source"] == "beir:scifact"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("demo", "demo"),
        ("beir:../data/scifact", "beir:scifact"),
        ("irds:beir/scifact/test", "irds:beir/scifact/test"),
        ("intfloat/e5-base", "intfloat/e5-base"),
        ("/srv/secret/models/ours", "ours"),
        ("../models/ours", "ours"),
        ("package:cognition/model", "package:cognition/model"),
    ],
)
def test_a_card_names_no_folder_of_a_machine(source: str, expected: str) -> None:
    assert card.without_folder(source) == expected


def damage(folder: Path, name: str) -> None:
    """Change one byte of a file, in a copy of its own."""
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).unlink()
    (folder / name).write_bytes(content)


def test_a_damaged_export_is_refused_in_one_line(crown: Callable[[str], Any], project: Path, tmp_path: Path) -> None:
    crown("warmup")
    out = tmp_path / "out"
    export(project, out)
    with pytest.raises(UserError, match="out: not empty, expected a new folder"):
        export(project, out)
    content = (out / "index/owners.npy").read_bytes()
    damage(out, "index/index.faiss")
    with pytest.raises(UserError, match=r"index/index.faiss: its content has changed since the export \(SHA-256 differs\); copy or export"):
        load(out)
    (out / "index/owners.npy").write_bytes(content[:-4])
    with pytest.raises(UserError, match=r"index.faiss: its content|owners.npy: found \d+ bytes, expected \d+; copy or export it again"):
        load(out)
    (out / "encoder/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors: missing from the export; copy or export it again"):
        load(out)
    for text, line in (
        ("[]", "not the record of an export"),
        ("{", "not JSON"),
        (
            '{"format": 9, "model": "m", "encoders": {"m": ["a", "b"]}, "query": {"prefix": "", "max_length": 8}, "document": {}}',
            "format 9",
        ),
    ):
        (out / "serving.json").write_text(text)
        with pytest.raises(UserError, match=line):
            load(out)
    (out / "serving.json").unlink()
    with pytest.raises(UserError, match=r"serving.json: not found, expected an exported folder; make one with retemper champion export"):
        load(out)


def test_without_a_champion(project: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no champion yet; run retemper retrain, or retemper champion set MODEL"):
        export(project, tmp_path / "out")
    assert not (tmp_path / "out").exists()
