"""Parameter files that would use up memory or stack are refused in one line, at once, before DVC reads them."""

import resource
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from flows.repository.lock import parse_dvc_file, parse_lock
from flows.repository.project import project_folder
from tasks.core.errors import UserError
from tasks.core.params import safe_yaml
from tasks.core.params.safe_yaml import MOST_LEVELS, Refused, parse_yaml, refuse_bomb
from tasks.core.params.sections import read_yaml, refuse_yaml_bomb

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 40))
MERGES = "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60))
BOMBS = {
    "aliases within aliases": (LAUGHS, "aliases"),
    "merge keys": (MERGES, "aliases"),
    "braces": ("{" * 100_000, f"nested deeper than {MOST_LEVELS} levels"),
    "brackets": ("rounds: " + "[" * 100_000, "nested deeper"),
    "sections": ("".join(f"a{n}: {{" for n in range(200)), "nested deeper"),
    "dashes": ("- " * 100_000, "nested deeper"),
    "question marks": ("? " * 100_000, "nested deeper"),
    "indentation": ("".join(f"{' ' * n}a:\n" for n in range(1000)), "nested deeper"),
    "itself": ("rounds: &a\n  init: *a\n", "within its own anchor"),
}


@pytest.fixture(autouse=True)
def little_memory() -> object:
    """A bomb ends in MemoryError here, before it uses up the machine's memory."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 29), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_one_line_for_every_reader(name: str, tmp_path: Path) -> None:
    text, words = BOMBS[name]
    path = tmp_path / "params.yaml"
    path.write_text(text, encoding="utf-8")
    for reader in (read_yaml, refuse_yaml_bomb):
        with pytest.raises(UserError, match=rf"params\.yaml:\d+: not YAML \(.*{words}".replace("(*", r"\(\*")) as error:
            reader(path)
        assert len(str(error.value)) < 300 and "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"dvc\.lock: invalid dvc\.lock"):
        parse_lock(text, "dvc.lock")
    with pytest.raises(UserError, match=r"data\.dvc: invalid \.dvc file"):
        parse_dvc_file(text, "data.dvc")


@pytest.mark.parametrize("file", ["params.yaml", "dvc.yaml", "dvc.lock"])
def test_a_command_refuses_what_dvc_would_read(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (".dvc", ".git"):
        (tmp_path / folder).mkdir()
    for name in ("params.yaml", "dvc.yaml", "dvc.lock"):
        (tmp_path / name).write_text("a: 1\n", encoding="utf-8")
    project_folder()
    (tmp_path / file).write_text("{" * 100_000, encoding="utf-8")
    with pytest.raises(UserError, match=rf"^{file}:1: not YAML \(nested deeper"):
        project_folder()


def test_openers_in_a_row_are_refused_before_they_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """ruamel.yaml needs seconds for 1,000 of them."""
    monkeypatch.delattr(safe_yaml, "YAML")
    for opener in ("{", "[ ", "[\n{"):
        with pytest.raises(Refused) as error:
            parse_yaml("a: 1\nb: " + opener * 1000)
        assert error.value.problem_mark.line == 1


def test_harmless_yaml_passes(tmp_path: Path) -> None:
    text = "base: &base {lr: 1e-05, steps: [1, 2]}\nrounds:\n  a: *base\n  b: {<<: *base, lr: 2}\n"
    assert parse_yaml(text) == YAML(typ="safe", pure=True).load(text)
    assert parse_yaml(text)["rounds"]["a"]["lr"] == 1e-5
    nested = "a: " + "[" * (MOST_LEVELS - 2) + "]" * (MOST_LEVELS - 2)
    assert parse_yaml(nested)["a"]
    refuse_bomb("a: [1, 2\n" + "{" * 40)  # malformed: its reader reports that
    (tmp_path / "p").write_text("a: 1\n  b: 2\n")
    with pytest.raises(UserError, match=r":2: not YAML"):
        read_yaml(tmp_path / "p")


def test_counts_alone_never_pass_excessive_depth() -> None:
    """Whatever the counts let pass is at most twice as deep as the limit, which fast readers can handle."""
    for text in ("- " * 220, "{" * 220, "".join(f"{'  ' * n}- a:\n" for n in range(70))):
        with pytest.raises(Exception, match="nested deeper"):
            refuse_bomb(text)


@pytest.mark.parametrize("text", [r'"\ud83d\udd0e"', r'{deep: ["a\ud83d"]}', r'{"\udd0e": 1}'])
def test_half_a_character_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    """As JSON escapes a character beyond U+FFFF: no file could hold what YAML makes of it."""
    with pytest.raises(Refused, match=r"found \\ud[8d][0-9a-f]{2}, half of a character") as error:
        parse_yaml(f"a: 1\nb: {text}\n")
    assert error.value.problem_mark.line == 1
    (tmp_path / "params.yaml").write_text(f"a: 1\nb: {text}\n")
    with pytest.raises(UserError, match=r"params\.yaml:2: .*half of a character") as user_error:
        read_yaml(tmp_path / "params.yaml")
    assert "\n" not in str(user_error.value)


def test_a_whole_character_is_read_however_it_is_written() -> None:
    assert parse_yaml('a: 🔎\nb: "\\U0001F50E"\n') == {"a": "🔎", "b": "🔎"}
