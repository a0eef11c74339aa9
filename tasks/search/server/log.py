"""The log of queries and clicks, JSON Lines, as the intake of click logs reads it. Off unless asked for: people's words are private.

    {"event": "search", "id": ..., "time": ..., "query": ..., "shown": [document ids, best first], "model": ...}
    {"event": "click",  "id": (that of the search), "time": ..., "doc": ..., "position": (from 1)}

`hashed`: in place of a query is a keyed hash, so equal queries can be counted and nobody without the key can try out words.
"""

import errno
import json
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal

from tasks.core.stage.errors import Corrupt

Form = Literal["hashed", "plain"]
KEY_BYTES = 32


class Log:
    """Appends to a file that is opened for every line, so it may be moved away at any time. Only its owner may read it."""

    def __init__(self, path: Path, form: Form, failed: Callable[[OSError], None]) -> None:
        """A line that cannot be written is lost, and `failed` is told: no answer fails for it. OSError if none can be, now.

        UserError for a key that is incomplete.
        """
        self._path, self._form, self._failed = path, form, failed
        self._torn = False  # the last line is incomplete, since the disk was full
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
            self._append(b"\n" * self._torn + json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            self._failed(error)

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            written = os.write(file, line)  # one call: lines of several servers do not mix
            self._torn = written < len(line)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(file)

    def _read_key(self) -> bytes:
        """The key of this log, made once: hashes stay comparable over restarts. It appears complete, whatever is killed."""
        path = self._path.with_name(f"{self._path.name}.key")
        if not path.exists():
            with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as new:  # only its owner may read it
                new.write(secrets.token_bytes(KEY_BYTES))
                new.flush()
                os.fsync(new.fileno())
                with suppress(FileExistsError):  # another server was first
                    os.link(new.name, path)
        key = path.read_bytes()
        if len(key) < KEY_BYTES:
            raise Corrupt(
                f"{path}: found {len(key)} bytes, expected a key of {KEY_BYTES}; remove it, and later hashes will differ from earlier ones"
            )
        return key[:KEY_BYTES]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
