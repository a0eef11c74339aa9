"""`retemper champion`: which model is the champion and since when, its history, and a champion by hand."""

import json
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.process.display import text_table
from flows.retraining.champion import Champion, choose, current, details, export, read_champions, roll_back, table
from flows.retraining.history import read_events
from flows.retraining.tree import fetch, push
from tasks.core.stage.errors import printable

NONE_YET = "there is no champion yet; run retemper retrain"


def command(project: Path, action: str, options: Namespace) -> int:
    """`retemper champion [ACTION]`; returns the exit status."""
    shown: Any
    if action == "history":
        events = read_events(project)
        rows = [
            [one.when, one.result, f"champion/{one.champion}" if one.champion else "", one.candidate or "", one.reason] for one in events
        ]
        shown = [asdict(one) for one in events]
        text = (
            text_table(["when", "result", "champion", "candidate", "reason"], rows) if rows else "no retraining yet; run retemper retrain"
        )
    else:
        champion = _act(project, action, options)
        shown, text = (asdict(champion), details(champion)) if champion else (None, NONE_YET)
        if action == "show" and champion and champion.number > 1:
            text += f"\n\n{table(read_champions(project))}"
    print(json.dumps(shown, indent=2, ensure_ascii=False) if options.json else printable(text))
    return 0


def _act(project: Path, action: str, options: Namespace) -> Champion | None:
    if action in ("set", "rollback"):
        _warn(fetch(project))
        champion = choose(project, options.wanted) if action == "set" else roll_back(project)
        _warn(push(project))
        return champion
    if action == "export":
        return export(project, options.folder)
    return current(project)


def _warn(problem: str | None) -> None:
    if problem:
        print(f"retemper: warning: {printable(problem)}", file=sys.stderr)
