"""Notices: what a webhook or a service is sent, and that one that is unavailable, wrong or secret harms nothing."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from flows.retraining import notify as notices
from flows.retraining.notify import BLOCK, RETRIES, WEBHOOK, check_webhook, notify
from tasks.core.errors import UserError


class Hook(BaseHTTPRequestHandler):
    """Answers with the statuses in its path, one after another, repeating the last, and remembers what it was sent."""

    got: list[dict[str, object]]

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        statuses = self.path.strip("/").split("/")
        status = int(statuses[min(len(self.got), len(statuses)) - 1])
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/200")
        self.end_headers()

    def do_GET(self) -> None:
        """What a redirect leads to, for a client that follows it without the notice."""
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[dict[str, object]]]]:
    monkeypatch.delenv(BLOCK, raising=False)
    bodies: list[dict[str, object]] = []
    monkeypatch.setattr(Hook, "got", bodies, raising=False)
    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "WAIT_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("statuses", "count", "warning"),
    [
        ("200", 1, ""),
        ("503/200", 2, ""),
        ("429/200", 2, ""),
        ("500", 1 + RETRIES, "status 500"),
        ("404", 1, "status 404"),
        ("302", 1, "status 302, a redirect; give the address that it leads to"),
    ],
)
def test_a_webhook_gets_plain_json(
    hook: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch, statuses: str, count: int, warning: str
) -> None:
    url, bodies = hook
    warnings: list[str] = []
    monkeypatch.setenv(WEBHOOK, f"{url}/{statuses}")
    notify("promoted", "a is the champion", warnings.append, champion=3)
    assert bodies == [{"text": "a is the champion", "event": "promoted", "champion": 3}] * count
    assert warnings == ([f"{WEBHOOK}: could not send the notice of promoted ({warning})"] if warning else [])


def test_nothing_is_sent_where_nobody_is_named(hook: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WEBHOOK, raising=False)
    warnings: list[str] = []
    notify("failed", "nobody listens", warnings.append)
    assert (hook[1], warnings) == ([], [])


@pytest.mark.parametrize(("statuses", "count"), [("200", 1), ("500/200", 2), ("500", 1 + RETRIES)])
def test_a_service_that_apprise_knows(
    hook: tuple[str, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], statuses: str, count: int
) -> None:
    url, bodies = hook
    warnings: list[str] = []
    monkeypatch.setenv(WEBHOOK, url.replace("http://", "json://me:secret@") + f"/{statuses}")
    check_webhook()
    notify("failed", "why", warnings.append)
    assert [(body["title"], body["message"], body["type"]) for body in bodies] == [("retemper: failed", "why", "failure")] * count
    assert warnings == ([f"{WEBHOOK}: could not send the notice of failed (ConnectionError)"] if count > 2 else [])
    assert capfd.readouterr() == ("", ""), "its log has the address in it"


@pytest.mark.parametrize(
    "address",
    [
        *("file:///etc/passwd", "secret", "nowhere://secret", "slack://secret", "json://127.0.0.1:9/secret"),
        *("http://127.0.0.1:9/secret", "http://", "http://[secret", "http://h:secret/", "http://h/a secret"),
    ],
)
def test_an_invalid_webhook_is_a_warning_without_its_address(
    address: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    warnings: list[str] = []
    monkeypatch.delenv(BLOCK, raising=False)
    monkeypatch.setenv(WEBHOOK, address)
    notify("failed", "why", warnings.append)
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{WEBHOOK}: could not send the notice of failed (")
    assert "secret" not in warnings[0]
    if not address.startswith(("http", "json")):
        with pytest.raises(UserError, match="begins with http:// or https://, or a URL that apprise knows") as refusal:
            check_webhook()
        assert "secret" not in str(refusal.value)
    assert capfd.readouterr() == ("", "")
