"""How a stage begins: tied to its parent's life, offline where it can be, with a quiet log."""

import ctypes
import gc
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.core.stage.errors import UserError, one_line_errors

PR_SET_PDEATHSIG = 1
BEGUN = "RETEMPER_BEGUN"  # set by the flow (flows/repository/dvc.py): when it began to take digests, seconds since 1970
TETHER = "RETEMPER_TETHER"  # set by the flow's tether (flows/process/tether.py), which leads our session


@contextmanager
def stage() -> Iterator[None]:
    """Run a stage's entry: no telemetry, no orphan (Linux: the stage dies with its parent), user errors and Ctrl-C in one line."""
    gc.freeze()  # what was imported stays: no collection looks through it again, while models are imported and later
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.environ.get(TETHER) and os.getsid(os.getppid()) != os.getsid(0):
            raise SystemExit(143)  # our parent was killed while we imported: another run may be at our outs already
    try:
        with one_line_errors():
            refuse_newer(os.environ.get(BEGUN))
            yield
    except KeyboardInterrupt:
        print("retemper: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def refuse_newer(begun: str | None, params: Path = Path("params.yaml")) -> None:
    """UserError where code or parameters may be newer than the digests taken at `begun` (seconds since 1970): they were written since."""
    if begun is None:
        return
    ours = __package__.partition(".")[0]
    code = [Path(module.__file__) for name, module in [*sys.modules.items()] if name.startswith(f"{ours}.") and module.__file__]
    for path in (*code, params):
        if path.exists() and path.stat().st_ctime > float(begun):
            raise UserError(f"{path}: changed while the stage was starting; run again")


def parser(description: str, **paths: str) -> ArgumentParser:
    """A stage's command line: one required `--name PATH` for each keyword, whose value is its help text."""
    arguments = ArgumentParser(description=description)
    for name, text in paths.items():
        arguments.add_argument(f"--{name.replace('_', '-')}", type=Path, required=True, help=text)
    return arguments
