"""What a push to the hub leaves there, and what it refuses."""

import json
from pathlib import Path

import pytest

from flows.serving import hub
from flows.serving.card import with_digest
from tasks.core.errors import UserError
from tasks.core.models.export import Export, file_digests, read_record, refuse_damaged, write_record
from tests.flows.serving.conftest import FakeHub


def make_export(folder: Path, label: str, *names: str) -> Path:
    """An export of made-up files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{label} {name}")
    settings = {"prefix": "", "max_length": 8}
    write_record(folder, Export("m", {"m": ("encoder", "index")}, settings, settings, label=label, files=file_digests(folder)))
    (folder / "README.md").write_text(f"card of {label}")
    return folder


TOWERS = ("encoder/router_config.json", "encoder/query/model.safetensors", "encoder/document/model.safetensors", "index/index.faiss")
STAR = ("encoder/config.json", "encoder/model.safetensors", "index/index.faiss")


def test_a_second_push_deletes_what_only_the_first_export_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router would lead queries to the first champion's encoder. What people added, stays."""
    fake_hub = FakeHub(monkeypatch)
    hub.push(make_export(tmp_path / "1", "champion/1 adore", *TOWERS, "documents.parquet"), "me/x")
    fake_hub.files |= {"LICENSE": b"mine", "query/notes.txt": b"mine"}
    del fake_hub.files["documents.parquet"]  # by hand
    hub.push(make_export(tmp_path / "2", "champion/2 star", *STAR), "me/x")
    own = {".gitattributes", "LICENSE", "query/notes.txt"}
    assert fake_hub.files.keys() == own | {"config.json", "model.safetensors", "index/index.faiss", "serving.json", "README.md"}
    assert (fake_hub.files["index/index.faiss"], fake_hub.files["LICENSE"]) == (b"champion/2 star index/index.faiss", b"mine")
    assert fake_hub.messages == ["me/x: Export champion/1 adore", "me/x: Export champion/2 star"]
    copy = fake_hub.download(tmp_path / "copy")
    refuse_damaged(copy, read_record(copy))
    fake_hub.files["serving.json"] = b"[]"
    with pytest.raises(UserError, match=r"^--push-to-hub me/x: its serving.json is not the record of an export, .* delete it there"):
        hub.push(tmp_path / "2", "me/x")
    assert len(fake_hub.messages) == 2


def test_a_card_that_was_edited_on_the_hub_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub = FakeHub(monkeypatch)
    for number in (1, 2):
        folder = make_export(tmp_path / str(number), f"champion/{number} star", *STAR)
        (folder / "README.md").write_text(with_digest(f"card of {number}\n"))
        assert hub.push(folder, "me/x") == "https://hub.example/me/x"
        assert fake_hub.files["README.md"].startswith(f"card of {number}\n".encode())
    fake_hub.files["README.md"] = edited = b"license: mit\n" + fake_hub.files["README.md"]
    fake_hub.files["model.safetensors"] = b"another"
    assert hub.push(folder, "me/x").startswith("https://hub.example/me/x (README.md there differs from what Retemper wrote, and is kept;")
    assert fake_hub.files["README.md"] == edited and fake_hub.files["model.safetensors"] != b"another"
    fake_hub.files["README.md"] = b"# star\n"
    assert " (README.md there was written by hand, or by an earlier version of Retemper, and is kept; " in hub.push(folder, "me/x")


def test_a_router_of_another_export_is_refused(tmp_path: Path) -> None:
    """As a push of an earlier version, or a copy over an older folder, left it."""
    folder = make_export(tmp_path / "2", "champion/2 star", *STAR)
    (folder / "encoder/LICENSE").write_text("mine")
    refuse_damaged(folder, read_record(folder))
    (folder / "encoder/router_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"encoder/router_config.json: found a file of another export, which serving.json does not list"):
        refuse_damaged(folder, read_record(folder))
    towers = make_export(tmp_path / "1", "champion/1 adore", *TOWERS)
    refuse_damaged(towers, read_record(towers))


def test_what_is_wrong_with_a_push_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    from huggingface_hub.errors import OfflineModeIsEnabled

    monkeypatch.delenv(hub.TOKEN, raising=False)
    with pytest.raises(UserError, match=r"^HF_TOKEN: not set, expected a token that may write to me/x; set the variable"):
        hub.check("me/x")
    with pytest.raises(UserError, match=r"^--push-to-hub x: expected OWNER/NAME$"):
        hub.check("x")
    (tmp_path / "serving.json").write_text(
        json.dumps({"model": "m", "encoders": {"m": ["encoder", "index"]}, "query": {"prefix": "", "max_length": 8}, "document": {}})
    )
    for error, line in (
        (OfflineModeIsEnabled("offline"), "^HF_HUB_OFFLINE is set, so nothing was pushed"),
        (httpx.ConnectError("refused hf_secret"), r"me/x: not pushed \(refused \*\*\*\); run the same command again, which pushes /"),
    ):
        FakeHub(monkeypatch, error)
        with pytest.raises(UserError, match=line):
            hub.push(tmp_path, "me/x")
