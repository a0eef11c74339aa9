"""Sources that change while a stage reads them: its outs would be cached, and shared, under the digest of the former ones."""

import os
from pathlib import Path
from typing import Any

from flows.parameters.sources import changes
from tasks.core.errors import USER_ERROR, InputChanged, one_line_errors
from tasks.core.files import read_json
from tasks.core.stage.entry import SOURCES

KINDS = "RETEMPER_SOURCE_KINDS"  # the sources to look at again, with commas between them


def refuse_changed_sources() -> None:
    """From now on, a stage fails if its sources, by the record that SOURCES names, are not the same when its command has ended.

    They are listed again, by the rules that made the record, so a file that has been added counts too.
    """
    from dvc.stage import run
    from dvc.stage.exceptions import StageCmdFailedError

    cmd_run = run.cmd_run

    def run_and_compare(stage: Any, *args: Any, **kwargs: Any) -> None:
        cmd_run(stage, *args, **kwargs)
        changed = changes(read_json(Path(os.environ[SOURCES]))["files"], filter(None, os.environ[KINDS].split(",")))
        if not changed:
            return
        more = f" and {len(changed) - 3} more" if changed[3:] else ""
        try:
            with one_line_errors():
                message = f"{', '.join(changed[:3])}{more}: changed while {stage.addressing} ran; its output was discarded, run again"
                raise InputChanged(message)
        except SystemExit:  # DVC would take it for its own end
            raise StageCmdFailedError(stage.cmd, USER_ERROR) from None

    if SOURCES in os.environ and KINDS in os.environ:
        run.cmd_run = run_and_compare
