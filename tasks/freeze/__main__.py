"""Entry point of stage `freeze`, for plain `dvc repro`: it always runs, so that DVC sees every edit of parameters and code."""

from tasks.core.errors import one_line_errors
from tasks.core.stage.frozen import freeze


def main() -> None:
    with one_line_errors():
        freeze()


if __name__ == "__main__":
    main()
