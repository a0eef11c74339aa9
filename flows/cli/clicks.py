"""`retemper clicks`."""

from flows.cli.command import group

app = group()
