"""The cache of Hugging Face models: a partial copy counts as absent, however it came about."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UserError
from tasks.core.sources import downloads
from tasks.core.sources.hub_cache import cached_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},  # without a file
]
PLAIN = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "weights"}
WHOLE = PLAIN | {"modules.json": json.dumps(MODULES), "1_Pooling/config.json": "{}"}
LISTED = [*WHOLE, "onnx/config.json", "pytorch_model.bin", "README.md"]
INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
IN_SHARDS = {"config.json": "{}", ".gitattributes": "", "model.safetensors.index.json": INDEX, "model-1.safetensors": "weights"}


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Fill the cache with files of the model org/model; `listed`: with huggingface_hub's list of the commit's files."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--model"

    def fill(files: Mapping[str, str], listed: list[str] | None = None, absent: str = "") -> Path:
        texts = {f"snapshots/{COMMIT}/{name}": text for name, text in files.items()} | {"refs/main": COMMIT}
        if listed is not None:
            entries = {name: {"size": 1, "blob_id": "0"} for name in listed}
            texts[f"trees/{COMMIT}.json"] = json.dumps({"format_version": 1, "files": entries})
        if absent:
            texts[f".no_exist/{COMMIT}/{absent}"] = ""
        for name, text in texts.items():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_text(text)
        return repository / "snapshots" / COMMIT

    return fill


def without(files: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: text for key, text in files.items() if key != name}


@pytest.mark.parametrize(
    ("files", "options"),
    [
        (WHOLE, {}),
        (WHOLE | {"modules.json": "{"}, {}),  # corrupt: loading says so
        (PLAIN, {"absent": "modules.json"}),
        (PLAIN | {".gitattributes": ""}, {}),
        (IN_SHARDS | {"model-2.safetensors": "weights"}, {}),
        (WHOLE | {"onnx/config.json": "{}"}, {"listed": LISTED}),
        (PLAIN, {"listed": [*PLAIN, "pytorch_model.bin"]}),
    ],
)
def test_a_complete_copy(fill: Callable[..., Path], files: dict[str, str], options: dict[str, Any]) -> None:
    assert cached_model("org/model") == (None, None)
    assert (fill(files, **options), COMMIT) == cached_model("org/model")


@pytest.mark.parametrize(
    ("files", "options"),
    [
        ({}, {}),
        (PLAIN, {}),  # as AutoModel.from_pretrained leaves it: the model may have a pooling of its own
        (without(WHOLE, "1_Pooling/config.json"), {}),
        (without(WHOLE, "model.safetensors"), {}),
        (without(WHOLE, "config.json"), {}),
        (IN_SHARDS, {}),
        (WHOLE, {"listed": LISTED}),  # a colleague has onnx/config.json, too, and so another digest
        (PLAIN, {"listed": LISTED, "absent": "modules.json"}),
    ],
)
def test_a_partial_copy_is_none(fill: Callable[..., Path], files: dict[str, str], options: dict[str, Any]) -> None:
    fill(files, **options)
    assert cached_model("org/model") == (None, COMMIT)


def test_offline_what_loading_needs_is_enough(fill: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(WHOLE, listed=LISTED)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cached_model("org/model") == (folder, COMMIT)
    (folder / "modules.json").unlink()
    assert cached_model("org/model") == (None, COMMIT)


def test_a_partial_copy_is_completed_at_its_commit(fill: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def download(name: str, revision: str | None, **_: Any) -> str:
        requests.append((name, revision))
        return str(fill(WHOLE))

    requests: list[Any] = []
    folder = fill(PLAIN)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert downloads.encoder_folder("org/model") == folder
    assert downloads.encoder_folder("org/model") == folder
    assert requests == [("org/model", COMMIT)]


@pytest.mark.parametrize(("answer", "is_known"), [("EntryNotFoundError", True), ("LocalEntryNotFoundError", False)])
def test_a_model_without_modules(fill: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, answer: str, is_known: bool) -> None:
    """The server says that there is no modules.json, which huggingface_hub remembers; offline, nobody knows."""
    import huggingface_hub
    from huggingface_hub import errors

    def probe(name: str, file: str, revision: str) -> None:
        assert (name, file, revision) == ("org/model", "modules.json", COMMIT)
        if is_known:
            fill(PLAIN, absent="modules.json")
        raise getattr(errors, answer)("not found")

    folder = fill(PLAIN)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", probe)
    if is_known:
        assert downloads.encoder_folder("org/model") == folder
    else:
        with pytest.raises(UserError, match=rf"its copy in {folder} is incomplete, or has no \*.safetensors; go online once"):
            downloads.encoder_folder("org/model")
