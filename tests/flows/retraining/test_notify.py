"""Notices: what a webhook is sent, and that one that is away, wrong or secret harms nothing."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from flows.retraining.notify import BLOCK, WEBHOOK, check_webhook, notify
from tasks.core.stage.errors import UserError


class Hook(BaseHTTPRequestHandler):
    """Answers with the status that its path names, and remembers what it was sent."""

    got: list[dict[str, object]]

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(int(self.path.strip("/")))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[dict[str, object]]]]:
    monkeypatch.delenv(BLOCK, raising=False)
    got: list[dict[str, object]] = []
    monkeypatch.setattr(Hook, "got", got, raising=False)
    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def test_a_webhook_is_told(hook: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, got = hook
    warnings: list[str] = []
    monkeypatch.setenv(WEBHOOK, f"{url}/200")
    notify("promoted", "a is the champion", warnings.append, champion=3)
    assert (got, warnings) == ([{"text": "a is the champion", "event": "promoted", "champion": 3}], [])
    monkeypatch.setenv(WEBHOOK, f"{url}/500")
    notify("failed", "why", warnings.append)
    assert warnings == [f"{WEBHOOK}: not notified of failed (status 500)"]
    monkeypatch.delenv(WEBHOOK)
    notify("failed", "nobody listens", warnings.append)
    assert len(got) == 2


@pytest.mark.parametrize(
    "address",
    ["file:///etc/passwd", "secret", "http://127.0.0.1:9/secret", "http://", "http://[secret", "http://h:secret/", "http://h/a secret"],
)
def test_a_webhook_that_is_none_is_a_warning_without_its_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.delenv(BLOCK, raising=False)
    monkeypatch.setenv(WEBHOOK, address)
    notify("failed", "why", warnings.append)
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{WEBHOOK}: not notified of failed (")
    assert "secret" not in warnings[0]
    if not address.startswith("http"):
        with pytest.raises(UserError, match="begins with http"):
            check_webhook()
