"""The log of queries and clicks, JSON Lines, as the intake of click logs reads it. Off unless asked for: people's words are private.

    {"event": "search", "id": ..., "time": ..., "query": ..., "shown": [document ids, best first], "model": ...}
    {"event": "click",  "id": (that of the search), "time": ..., "doc": ..., "position": (from 1)}

`hashed`: in place of a query is a keyed hash, so equal queries can be counted and nobody without the key can try out words.
"""

import json
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

Form = Literal["hashed", "plain"]


class Log:
    """Appends to a file that is opened for every line, so it may be moved away at any time. Only its owner may read it."""

    def __init__(self, path: Path, form: Form, failed: Callable[[OSError], None]) -> None:
        """A line that cannot be written is lost, and `failed` is told: no answer waits for a disk. OSError if none can be, now."""
        self._path, self._form, self._failed = path, form, failed
        path.parent.mkdir(parents=True, exist_ok=True)
        self._append(b"")
        self._key = self._read_key() if form == "hashed" else b""

    def searched(self, name: str, query: str, shown: Sequence[str], model: str) -> None:
        """A query was answered; `name` is the id that a click gives."""
        text = query if self._form == "plain" else "blake2b:" + blake2b(query.encode(), key=self._key, digest_size=16).hexdigest()
        self._write({"event": "search", "id": name, "time": _now(), "query": text, "shown": list(shown), "model": model})

    def clicked(self, name: str, doc: str, position: int) -> None:
        """A document that was shown for the search `name` was opened."""
        self._write({"event": "click", "id": name, "time": _now(), "doc": doc, "position": position})

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._append(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            self._failed(error)

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)  # one call: lines of several servers do not mix
        finally:
            os.close(file)

    def _read_key(self) -> bytes:
        """The key of this log, made once: hashes stay comparable over restarts."""
        path = self._path.with_name(f"{self._path.name}.key")
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
                new.write(secrets.token_bytes(32))
        except FileExistsError:
            pass
        return path.read_bytes()[:64]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
