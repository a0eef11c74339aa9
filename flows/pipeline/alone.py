"""The pipeline alone, in a process of its own: `python -m flows.pipeline.alone [--with-dev] [TARGET ...]`.

Other commands run it in their own worktrees. They have checked params.yaml and data/source.json, so neither is checked or updated here.
"""

import sys

from flows.pipeline import run
from flows.process.problems import print_problems
from tasks.core.errors import one_line_errors

WITH_DEV = "--with-dev"  # a data set without a dev split is refused


def main() -> int:
    """Bring the targets in the current folder up to date; returns the exit status."""
    targets = [word for word in sys.argv[1:] if word != WITH_DEV]
    try:
        with one_line_errors():
            run.run(targets, check=lambda: None, nested=True, with_dev=WITH_DEV in sys.argv)
    except run.StagesFailed as failed:
        print_problems(failed.problems)
        return failed.status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
