"""The log of queries and clicks, JSON Lines, as the intake of click logs reads it. It is off by default, because queries are private.

    {"event": "search", "id": ..., "time": ..., "query": ..., "shown": [document ids, best first], "model": ...}
    {"event": "click",  "id": (of the search), "time": ..., "doc": ..., "position": (from 1)}

`hashed`: a keyed hash replaces the query, so equal queries can be counted, and nobody without the key can guess words.
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

from tasks.core.errors import Corrupt

Form = Literal["hashed", "plain"]
KEY_BYTES = 32


class Log:
    """Appends lines to a file that only its owner may read. It is opened for every line, so it may be renamed at any time."""

    def __init__(self, path: Path, form: Form, failed: Callable[[OSError], None]) -> None:
        """Open the log. OSError if the file cannot be written now, UserError if the key of hashes is incomplete.

        A later line that cannot be written is lost, and `failed` is called with the error. Answers do not fail because of it.
        """
        self._path, self._form, self._failed = path, form, failed
        path.parent.mkdir(parents=True, exist_ok=True)
        self._append(b"")
        self._key = self._read_key() if form == "hashed" else b""

    def searched(self, name: str, query: str, shown: Sequence[str], model: str) -> None:
        """Log an answered query. `name`: the id by which a click refers to it."""
        text = query if self._form == "plain" else "blake2b:" + blake2b(query.encode(), key=self._key, digest_size=16).hexdigest()
        self._write({"event": "search", "id": name, "time": _now(), "query": text, "shown": list(shown), "model": model})

    def clicked(self, name: str, doc: str, position: int) -> None:
        """Log that a document was opened that the search `name` had shown."""
        self._write({"event": "click", "id": name, "time": _now(), "doc": doc, "position": position})

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._append(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            self._failed(error)

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(file).st_size
            if line and size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line  # the last line is incomplete: the disk was full, or the machine stopped
            if os.write(file, line) < len(line):  # a single call, so that lines of several servers do not mix
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(file)

    def _read_key(self) -> bytes:
        """The key of this log, made once, so that hashes stay comparable over restarts. A kill leaves no incomplete key."""
        path = self._path.with_name(f"{self._path.name}.key")
        if not path.exists():
            with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as temporary:  # only its owner may read it
                temporary.write(secrets.token_bytes(KEY_BYTES))
                temporary.flush()
                os.fsync(temporary.fileno())
                with suppress(FileExistsError):  # another server was first
                    os.link(temporary.name, path)
        key = path.read_bytes()
        if len(key) < KEY_BYTES:
            raise Corrupt(
                f"{path}: found {len(key)} bytes, expected a key of {KEY_BYTES}; remove it, and later hashes will differ from earlier ones"
            )
        return key[:KEY_BYTES]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
