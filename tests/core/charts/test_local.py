"""Ports that a local page cannot have."""

import errno
import os
import socket
from typing import Any

import pytest

from tasks.core.charts.local import local_app, serve_local
from tasks.core.errors import UserError


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EACCES, "--port 80: no permission, expected 1024 or above"),
        (errno.EADDRINUSE, "--port 80: is taken, expected a free one; choose another, or 0"),
        (errno.EADDRNOTAVAIL, f"--port 80: {os.strerror(errno.EADDRNOTAVAIL)}, expected a free one; choose another, or 0"),
    ],
)
def test_a_port_is_refused_with_the_reason(number: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(UserError) as refusal:
        serve_local(local_app("page"), 80, "a note")
    assert str(refusal.value) == message
