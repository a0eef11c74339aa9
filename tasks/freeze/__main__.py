"""Entry point of stage `freeze`, for plain `dvc repro`: it always runs, so that DVC sees every edit of parameters and code.

It is refused beside a run, whose next stages would execute their frozen code, and be recorded with the digest of the edited one.
"""

from tasks.core.errors import one_line_errors
from tasks.core.stage.frozen import freeze
from tasks.core.stage.run_lock import hold_run_lock


def main() -> None:
    with one_line_errors(), hold_run_lock():
        freeze()


if __name__ == "__main__":
    main()
