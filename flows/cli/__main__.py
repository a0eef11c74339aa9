"""`python -m flows.cli`: the command line where the `retemper` script is not installed."""

from flows.cli.entry import main

if __name__ == "__main__":
    raise SystemExit(main())
