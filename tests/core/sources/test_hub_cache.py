"""The cache of Hugging Face models: a partial copy counts as absent, however it came about."""

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RevisionNotFoundError

from tasks.core.errors import UserError
from tasks.core.files import file_digest, write_json
from tasks.core.sources.downloads import encoder_folder, recorded_folder
from tasks.core.sources.hub_cache import cached_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = ("config.json", "modules.json", "1_Pooling/config.json", "config_sentence_transformers.json", "model.safetensors", "vocab.txt")
LISTED = (*FILES, "pytorch_model.bin", "README.md")  # the last two are not fetched
Fill = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Fill the cache with files of the model org/model, with huggingface_hub's list of a commit's files unless `listed` is None."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--model"

    def fill(*files: str, listed: tuple[str, ...] | None = LISTED, ref: str = COMMIT) -> Path:
        texts = {f"snapshots/{COMMIT}/{name}": name for name in files} | {"refs/main": ref}
        if listed is not None:
            entries = {name: {"size": 1, "blob_id": "0"} for name in listed}
            texts[f"trees/{COMMIT}.json"] = json.dumps({"format_version": 1, "files": entries})
        for name, text in texts.items():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_text(text)
        return repository / "snapshots" / COMMIT

    return fill


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str | None]]:
    """Let downloads do what is given, each in turn; the returned list gets the revisions that they are asked for."""

    def answer(*effects: Exception | Callable[[], Path]) -> list[str | None]:
        waiting, revisions = list(effects), list[str | None]()

        def download(name: str, revision: str | None = None, **_: Any) -> str:
            assert name == "org/model"
            revisions.append(revision)
            effect = waiting.pop(0)
            if isinstance(effect, Exception):
                raise effect
            return str(effect())

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        return revisions

    return answer


def test_a_complete_copy(fill: Fill) -> None:
    assert cached_model("org/model") == (None, None)
    assert (fill(*FILES), COMMIT) == cached_model("org/model")


@pytest.mark.parametrize("missing", FILES)
def test_a_partial_copy_is_none(fill: Fill, missing: str) -> None:
    folder = fill(*FILES)
    (folder / missing).unlink()
    assert cached_model("org/model") == (None, COMMIT)
    (folder / missing).symlink_to("gone")
    assert cached_model("org/model") == (None, COMMIT)


def test_a_copy_without_a_list_of_its_files_is_none(fill: Fill) -> None:
    """Programs that load a model fetch single files: AutoModel no modules.json, so the model would have another pooling."""
    folder = fill(*FILES, listed=None)
    assert cached_model("org/model") == (None, COMMIT)
    (folder.parents[1] / "trees").mkdir()
    for text in ("{", "[]", "{}", '{"files": 7}'):
        (folder.parents[1] / f"trees/{COMMIT}.json").write_text(text)
        assert cached_model("org/model") == (None, COMMIT), text


def test_a_partial_copy_is_completed_at_its_commit(fill: Fill, answer: Any) -> None:
    folder = fill("config.json", "model.safetensors", listed=None)
    revisions = answer(lambda: fill(*FILES))
    assert encoder_folder("org/model") == folder
    assert encoder_folder("org/model") == folder
    assert revisions == [COMMIT]


def test_a_partial_copy_of_a_commit_that_is_gone_is_replaced(fill: Fill, answer: Any) -> None:
    """The authors rewrote their history."""
    fill("config.json", listed=None)
    response = httpx2.Response(404, request=httpx2.Request("GET", "https://huggingface.co"))
    revisions = answer(RevisionNotFoundError("404", response=response), lambda: fill(*FILES))
    assert encoder_folder("org/model").name == COMMIT
    assert revisions == [COMMIT, None]


@pytest.mark.parametrize("key", ["encoder", "rerankers.small"])
def test_a_stage_refuses_files_that_are_not_the_recorded_ones(
    fill: Fill, answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Its outs would be cached under the digest of others: the authors have a new commit, which is downloaded."""
    monkeypatch.chdir(tmp_path)
    answer(lambda: fill(*FILES))
    folder = recorded_folder("org/model", key)
    files = {name: file_digest(folder / name) for name in FILES}
    entry = {"source": "org/model", "digest": "d", "files": files, "packages": {}}

    def record(entry: object) -> None:
        write_json(Path("data/source.json"), {"encoder": entry} if key == "encoder" else {"rerankers": {"small": entry}})

    Path("data").mkdir()
    record(entry)
    assert recorded_folder("org/model", key) == folder
    assert recorded_folder(str(folder), key) == folder, "of a folder, the flow compares the digest"
    record(entry | {"files": files | {"config.json": "0"}})
    message = (
        r"^encoder org/model: has changed: found other files \(config.json\), expected those of data/source.json; run again to use these"
    )
    with pytest.raises(UserError, match=message):
        recorded_folder("org/model", key)
    assert encoder_folder("org/model") == folder, "the flow's record follows"
    for other in (files | {"gone.json": "0"}, dict(list(files.items())[1:])):
        record(entry | {"files": other})
        with pytest.raises(UserError, match="found other files"):
            recorded_folder("org/model", key)
    record({})
    assert recorded_folder("org/model", key) == folder


def test_an_empty_reference_names_no_commit(fill: Fill, answer: Any) -> None:
    """A crash left it so."""
    folder = fill(ref="")
    assert cached_model("org/model") == (None, None)
    revisions = answer(lambda: folder.parent, lambda: fill(*FILES))
    with pytest.raises(UserError, match=r"^encoder org/model: not on this machine; go online once, or name a folder$"):
        encoder_folder("org/model")  # offline, huggingface_hub takes the folder of all commits for the copy
    assert encoder_folder("org/model") == folder
    assert revisions == [None, None]


FAILURES = [
    (httpx2.ProxyError("407 Proxy Authentication Required"), "ProxyError: 407 Proxy Authentication Required"),
    (httpx2.RemoteProtocolError("Server disconnected"), "RemoteProtocolError: Server disconnected"),
    (json.JSONDecodeError("Expecting value", "<html>", 0), "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),  # a login page
    (LocalEntryNotFoundError("no\nnetwork"), "LocalEntryNotFoundError: no network"),
]


@pytest.mark.parametrize(("error", "reason"), FAILURES)
def test_a_failed_download_is_one_line(fill: Fill, answer: Any, error: Exception, reason: str) -> None:
    failed = f"and the download failed ({reason}); go online once, or name"
    answer(error, error, error)
    with pytest.raises(UserError, match=f"^{re.escape(f'encoder org/model: not on this machine, {failed} a folder')}$"):
        encoder_folder("org/model")
    folder = fill(listed=None)
    folder.mkdir(parents=True)
    may_lack = f"encoder org/model: its copy {folder} may lack files (the cache has no list of them), {failed} that folder if it suffices"
    with pytest.raises(UserError, match=f"^{re.escape(may_lack)}$"):
        encoder_folder("org/model")
    fill("config.json", "model.safetensors")
    lacks = f"{folder} lacks modules.json, 1_Pooling/config.json, config_sentence_transformers.json, ..., {failed}"
    with pytest.raises(UserError, match=re.escape(lacks)):
        encoder_folder("org/model")


def test_offline_a_copy_without_a_list_is_refused_with_its_folder(fill: Fill, answer: Any) -> None:
    """There huggingface_hub returns it as it is. The user knows whether it suffices."""
    folder = fill(*FILES, listed=None)
    answer(lambda: folder)
    with pytest.raises(UserError, match=rf"its copy {folder} may lack files .*; go online once, or name that folder if it suffices$"):
        encoder_folder("org/model")
    assert encoder_folder(str(folder)) == folder


def test_a_full_disk_is_not_called_a_failed_download(answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    answer(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        encoder_folder("org/model")
