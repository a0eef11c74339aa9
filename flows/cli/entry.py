"""The script `retemper`, and `python -m flows.cli`: Ctrl-C ends it without a traceback before a command has begun, too."""

import signal


def main() -> int:
    """Run the command line; returns its exit status, or 130 if Ctrl-C came before a command could handle it."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # otherwise it is ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from flows.cli import main as command_line  # a tenth of a second

    signal.signal(signal.SIGINT, handler)
    try:
        return command_line.main()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
