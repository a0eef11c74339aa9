"""Mistakes of usage: one line, which says what may be meant."""

from pathlib import Path

import pytest

from flows.cli import main as cli


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing command; see retemper --help"),
        (("runs",), "no such command 'runs'. Did you mean 'run', 'rounds'; see retemper --help"),
        (("run", "--bogus"), "run: no such option: --bogus; see retemper run --help"),
        (("run", "--set"), "option '--set' requires an argument; see retemper --help"),
        (("export",), "no such command 'export'. Did you mean 'champion export'; see retemper --help"),
        (("champion", "list"), "champion: no such command 'list', expected one of export, history"),
        (("search",), "search: missing argument 'TEXT...'; see retemper search --help"),
        (
            ("search", "a", "-k", "many"),
            "search: invalid value for '-k': Input should be a valid integer, unable to parse string as an integer (found 'many')",
        ),
        (("preview", "a"), "preview: got unexpected extra argument(s) (a); see retemper preview --help"),
        (("evaluate", "--model", "x"), "evaluate: missing option '--data'; see retemper evaluate --help"),
        (("rounds", "ance", "--n", "many\n"), "rounds ance: invalid value for '--n'"),
        (("sweep", "/"), "sweep: invalid value for 'file': file '/' is a directory; see retemper sweep --help"),
        (("sweep", "none.yaml"), "sweep: invalid value for 'file': file 'none.yaml' does not exist"),
        (("new", "x", "--like", "none"), "new: invalid value for '--like': dir 'none' does not exist; see retemper new --help"),
        (("browse", "--batch", __file__), "browse: invalid value for '--batch'"),
        (("cache", "share", __file__), "cache share: invalid value for 'folder'"),
        (("remote", "add", "team"), "remote add: missing argument 'url'; see retemper remote add --help"),
    ],
)
def test_a_usage_error_is_one_line_anywhere(
    tmp_path: Path, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2
    assert line.startswith(f"retemper: {message}")
