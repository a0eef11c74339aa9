"""How a stage begins: tied to its parent's life, offline where it can be, with a quiet log."""

import ctypes
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.core.errors import one_line_errors

PR_SET_PDEATHSIG = 1
TETHER = "RETEMPER_TETHER"  # set by the flow's tether (flows/tether.py), which leads our session


@contextmanager
def stage() -> Iterator[None]:
    """Run a stage's entry: no telemetry, no orphan (Linux: the stage dies with its parent), user errors and Ctrl-C in one line."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.environ.get(TETHER) and os.getsid(os.getppid()) != os.getsid(0):
            raise SystemExit(143)  # our parent was killed while we imported: another run may be at our outs already
    try:
        with one_line_errors():
            yield
    except KeyboardInterrupt:
        print("retemper: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def parser(description: str, **paths: str) -> ArgumentParser:
    """A stage's command line: one required `--name PATH` for each keyword, whose value is its help text."""
    arguments = ArgumentParser(description=description)
    for name, text in paths.items():
        arguments.add_argument(f"--{name.replace('_', '-')}", type=Path, required=True, help=text)
    return arguments
