"""Tells people: a webhook or a Prefect block, both named in the environment and never written down. One that is away harms nothing."""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from tasks.core.stage.errors import UserError

WEBHOOK = "RETEMPER_WEBHOOK"  # an http(s) address that takes {"text": ..., "event": ..., ...} by POST
BLOCK = "RETEMPER_NOTIFY_BLOCK"  # a notification block of the Prefect server, KIND/NAME, such as slack-webhook/team
SECONDS = 10


def check_webhook() -> None:
    """UserError, without the address, where the webhook is none."""
    if (address := os.environ.get(WEBHOOK)) and not address.startswith(("http://", "https://")):
        raise UserError(f"{WEBHOOK}: expected an address that begins with http:// or https://")


def check_block() -> None:
    """UserError where the block is not on the server. Needs Prefect's API."""
    if name := os.environ.get(BLOCK):
        _load(name)


def notify(event: str, text: str, warn: Callable[[str], None], **facts: Any) -> None:
    """Tell `text` to whoever is named; what goes wrong is one warning, without addresses."""
    if address := os.environ.get(WEBHOOK):
        try:
            check_webhook()
            _post(address, {"text": text, "event": event, **facts})
        except (OSError, ValueError, http.client.HTTPException, UserError) as error:
            reason = f"status {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
            warn(f"{WEBHOOK}: not notified of {event} ({reason})")
    if name := os.environ.get(BLOCK):
        try:
            _load(name).notify(body=text, subject=f"retemper: {event}")
        except Exception as error:  # whatever a block of others raises
            warn(str(error) if isinstance(error, UserError) else f"{BLOCK}: {name}: not notified of {event} ({type(error).__name__})")


def _post(address: str, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json", "User-Agent": "retemper"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        answer.read()


def _load(name: str) -> Any:
    from prefect.blocks.abstract import NotificationBlock
    from prefect.blocks.core import Block

    try:
        block = Block.load(name)
    except ValueError:
        raise UserError(f"{BLOCK}: {name}: no such block on the Prefect server, expected KIND/NAME; make it on its page") from None
    if not isinstance(block, NotificationBlock):
        raise UserError(f"{BLOCK}: {name}: not a notification block; name one that notifies, such as slack-webhook/NAME")
    return block
