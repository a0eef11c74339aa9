"""Notices to people, by webhook, any service that apprise knows, or a Prefect block. They are named in the environment, never written down.

An unavailable service is retried, then gives a warning; nothing else fails.
"""

import http.client
import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tasks.core.errors import Invalid, UserError

WEBHOOK = "RETEMPER_WEBHOOK"  # an http(s) address that takes {"text": ..., "event": ..., ...} by POST, or an apprise URL (slack://...)
BLOCK = "RETEMPER_NOTIFY_BLOCK"  # a notification block of the Prefect server, KIND/NAME, such as slack-webhook/team
PLAIN = ("http://", "https://")
SECONDS = 10
RETRIES, WAIT_SECONDS = 2, 2.0
BUSY = (408, 425, 429)  # the 4xx statuses that may change on a retry


def check_webhook() -> None:
    """Raise UserError, without the address, if the webhook is neither an http(s) address nor a URL that apprise knows."""
    if (address := os.environ.get(WEBHOOK)) and not address.startswith(PLAIN):
        _service(address)


def check_block() -> None:
    """Raise UserError if the block is not on the server. Needs Prefect's API."""
    if name := os.environ.get(BLOCK):
        _load(name)


def notify(event: str, text: str, warn: Callable[[str], None], **facts: Any) -> None:
    """Send `text` to the services that the environment names; a failure gives one warning, without addresses."""
    if address := os.environ.get(WEBHOOK):
        try:
            if address.startswith(PLAIN):
                _post(address, {"text": text, "event": event, **facts})
            else:
                _send(address, event, text)
        except (OSError, ValueError, http.client.HTTPException, UserError) as error:
            reason = type(error).__name__
            if isinstance(error, urllib.error.HTTPError):
                reason = f"status {error.code}{', a redirect; give the address that it leads to' if 300 <= error.code < 400 else ''}"
            warn(f"{WEBHOOK}: could not send the notice of {event} ({reason})")
    if name := os.environ.get(BLOCK):
        try:
            _load(name).notify(body=text, subject=f"retemper: {event}")
        except Exception as error:  # whatever a third-party block raises
            warn(
                str(error)
                if isinstance(error, UserError)
                else f"{BLOCK}: {name}: could not send the notice of {event} ({type(error).__name__})"
            )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect as an error: following it would send a GET without the notice, which is answered as if all were well."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(address: str, message: dict[str, Any]) -> None:
    """POST `message` as JSON; retry if the address does not answer or reports a temporary error."""
    body = json.dumps(message).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json", "User-Agent": "retemper"})
    for remaining in reversed(range(RETRIES + 1)):
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=SECONDS) as answer:
                answer.read()
            return
        except OSError as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in BUSY
            if final or not remaining:
                raise
        time.sleep(WAIT_SECONDS)


def _send(address: str, event: str, text: str) -> None:
    """Send through apprise, which retries as often. Raises ConnectionError if the service does not accept the message."""
    import apprise

    kind = apprise.NotifyType.FAILURE if event == "failed" else apprise.NotifyType.INFO
    service = _service(address)
    with _silent():  # its log has addresses in it
        if not service.notify(body=text, title=f"retemper: {event}", notify_type=kind):
            raise ConnectionError


def _service(address: str) -> Any:
    """The service of an apprise URL. Raises Invalid, without the address, if apprise does not know it."""
    import apprise

    asset = apprise.AppriseAsset(app_id="Retemper", app_desc="Retemper", default_service_retry=RETRIES, default_service_wait=WAIT_SECONDS)
    service = apprise.Apprise(asset=asset)
    with _silent():
        is_known = service.add(address)
    if not is_known:
        raise Invalid(where=WEBHOOK, expected="an address that begins with http:// or https://, or a URL that apprise knows (slack://...)")
    return service


@contextmanager
def _silent() -> Iterator[None]:
    logger = logging.getLogger("apprise")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def _load(name: str) -> Any:
    from prefect.blocks.abstract import NotificationBlock
    from prefect.blocks.core import Block

    try:
        block = Block.load(name)
    except ValueError:
        raise UserError(
            f"{BLOCK}: {name}: no such block on the Prefect server, expected KIND/NAME; create it on the server's page"
        ) from None
    if not isinstance(block, NotificationBlock):
        raise UserError(f"{BLOCK}: {name}: not a notification block; name one that notifies, such as slack-webhook/NAME")
    return block
