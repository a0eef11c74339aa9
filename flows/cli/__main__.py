"""`python -m flows.cli`: the command line where the `retemper` script is not installed."""

from flows.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
