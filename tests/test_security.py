"""What this project does not do: unpickle, evaluate text, hand text to a shell, run remote code, listen to the world, tell secrets.

That a folder with nothing but a pickle in it, or with code of its own, is refused: test_bad_input.
"""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import chdir
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from flows.parameters.checks import check
from flows.pipeline import server
from flows.pipeline.stage import run_stage
from flows.process.processes import Processes
from flows.team import sync
from tasks.core.errors import UserError, redacted
from tasks.core.params.sections import read_yaml

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(file for folder in ("flows", "tasks", "benchmarks") for file in (ROOT / folder).rglob("*.py"))

MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
NAMES = {"eval", "exec", "__import__"}
DOTTED = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "torch.load", "torch.save",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "pd.read_pickle", "tempfile.mktemp",
}  # fmt: skip
TRUE_ONLY = {"shell", "trust_remote_code", "allow_pickle"}  # keywords that must be absent or False
EVERYWHERE = {"0.0.0.0", "::", ""}  # as a host: every interface of the machine


def dotted_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and reason of everything in `tree` that this project refuses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, f"imports {name}") for name in names if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            name = dotted_name(node.func)
            if name in NAMES or name in DOTTED:
                yield node.lineno, f"calls {name}"
            if name in ("YAML", "ruamel.yaml.YAML") and any(k.arg == "typ" and is_constant(k.value, "unsafe") for k in node.keywords):
                yield node.lineno, "reads YAML unsafely"
            safe = any(k.arg == "allow_pickle" and is_constant(k.value, False) for k in node.keywords)
            if name in ("np.load", "numpy.load") and not safe:
                yield node.lineno, "np.load without allow_pickle=False"
            for keyword in node.keywords:
                if keyword.arg in TRUE_ONLY and not is_constant(keyword.value, False):
                    yield node.lineno, f"{keyword.arg} is not False"
                if keyword.arg in ("host", "bind") and isinstance(keyword.value, ast.Constant) and keyword.value.value in EVERYWHERE:
                    yield node.lineno, f"binds {keyword.value.value!r}"
        elif isinstance(node, ast.Constant) and node.value == "0.0.0.0":
            yield node.lineno, "names every interface; servers listen on 127.0.0.1"


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_nothing_dangerous_is_called(file: Path) -> None:
    problems = list(faults(ast.parse(file.read_text(encoding="utf-8"))))
    assert not problems, f"{file.relative_to(ROOT)}: {problems}"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from joblib import load", "eval(x)", "exec(x)", "os.system(x)", "torch.load(p)", "yaml.load(t)",
        "YAML(typ='unsafe')", "np.load(p)", "np.load(p, allow_pickle=True)", "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=flag)",
        "AutoModel.from_pretrained(p, trust_remote_code=True)", "uvicorn.run(app, host='0.0.0.0')", "serve(host='')", "HOST = '0.0.0.0'",
    ],
)  # fmt: skip
def test_the_search_finds(text: str) -> None:
    assert list(faults(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "np.load(p, allow_pickle=False)", "subprocess.run(['a'], shell=False)", "model.eval()", "YAML(typ='safe', pure=True)",
        "AutoModel.from_pretrained(p, trust_remote_code=False)", "uvicorn.run(app, host='127.0.0.1')", "load(Model, 'x')",
    ],
)  # fmt: skip
def test_the_search_passes(text: str) -> None:
    assert not list(faults(ast.parse(text)))


def test_telemetry_is_off_in_what_is_committed() -> None:
    config = (ROOT / ".dvc" / "config").read_text(encoding="utf-8")
    assert "analytics = false" in config, ".dvc/config: core.analytics must be false"


# What DVC interpolates into a command goes through a shell.
INTERPOLATED = [
    (stage["foreach"][2:-1], field)
    for stage in read_yaml(ROOT / "dvc.yaml")["stages"].values()
    if "foreach" in stage
    for field in sorted(set(re.findall(r"\$\{(.+?)\}", stage["do"]["cmd"])))
]


@pytest.mark.parametrize(("section", "field"), sorted(set(INTERPOLATED)))
@pytest.mark.parametrize("text", ["x; touch y", "$(touch y)", "../x", "x y", "-x", "X", "x\n", "x|y", ""])
def test_no_command_takes_text_that_a_shell_could_read(section: str, field: str, text: str, full_params: dict[str, Any]) -> None:
    sections = full_params
    check(sections)
    entry = next(iter(sections[section].values()))
    if field == "key":
        sections[section] = {text: entry, **sections[section]}
    else:
        (sections if field == "queries" else entry)[field.removeprefix("item.")] = text
    if (section, field) == ("adore", "item.negatives"):  # otherwise refused for negatives of any name
        entry |= {"lists": "given", "loss": "ranknet"}
    name = "the name " if field == "key" else ""
    with pytest.raises(UserError, match=f"found {name}{re.escape(repr(text))}(, expected|; input should be)"):
        check(sections)


def test_commands_interpolate_nothing_but_names_of_entries_and_queries() -> None:
    for stage in read_yaml(ROOT / "dvc.yaml")["stages"].values():
        assert "${" not in stage.get("cmd", "").replace("${queries}", "").replace("${chunk.texts}", ""), stage["cmd"]
    assert all(field in ("key", "queries") or field.startswith("item.") for _, field in INTERPOLATED)


def test_ids_and_texts_become_no_file_names_and_no_markup(small: Any) -> None:
    """Every stage that sees ids and texts, with ids that climb and texts that are code."""
    before = {name for name in small.state() if name.startswith("data/")}
    siblings = set(small.folder.parent.iterdir())
    climbing = {"d00": "../../../d00", "d01": "/tmp/d01", "d02": "<script>alert(1)</script>", "d03": "$(touch_d03)", "d04": "d04;*"}
    for name in ("beir/corpus.jsonl", *(f"beir/qrels/{split}.tsv" for split in ("train", "dev", "test"))):
        text = small.read(name).decode()
        for plain, hostile_id in climbing.items():
            text = re.sub(rf'(?<=["\t]){plain}(?=["\t])', hostile_id, text)
        small.write(name, text)
    hostile = {"corpus": "<script>alert(2)</script> <img src=x onerror=alert(3)>", "queries": "<script>alert(4)</script>"}
    for name, code in hostile.items():  # not first: texts that are cut to the same tokens are the same to a model
        rows = [json.loads(line) for line in small.read(f"beir/{name}.jsonl").splitlines()]
        for row in rows:
            row["text"] = f"{row['_id'].strip('./')} {row['text'].replace(' ', f' {code} ', 1)}"
        small.write(f"beir/{name}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    for name in small.commands:
        if name.split("@")[0] not in ("base", "train"):
            assert small.stage(name).status == 0, name
    assert {name for name in small.state() if name.startswith("data/")} == before
    assert set(small.folder.parent.iterdir()) == siblings
    page = small.read("data/report/report.html").decode()
    assert "alert(4)" in page, "an example query is shown"
    assert not re.search(r"<script>alert|<img src=x", page)


def test_a_model_is_fetched_without_code_and_without_pickles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    from tasks.base.__main__ import recorded_folder

    monkeypatch.chdir(tmp_path)
    calls: list[Any] = []
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda _, **options: calls.append(options) or str(tmp_path))
    monkeypatch.setattr("tasks.core.sources.downloads.shortfall", lambda _: "")
    recorded_folder("somebody/model", "encoder")
    patterns = calls[0]["allow_patterns"]
    assert any(fnmatch("model.safetensors", pattern) for pattern in patterns)
    for name in ("pytorch_model.bin", "model.pt", "modeling_own.py", "weights.pkl", "model.ckpt", "training_args.bin", "setup.sh"):
        assert not any(fnmatch(name, pattern) for pattern in patterns), name


def test_servers_listen_on_loopback() -> None:
    assert server.SERVER[server.SERVER.index("--host") + 1] == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://me:pass@host/x", "http://***@host/x"),
        ("s3://AKIA:pass@b/x and ssh://me@h:22/y", "s3://***@b/x and ssh://***@h:22/y"),
        ("https://h/x?a=1&X-Amz-Signature=abc&token=t#f", "https://h/x?a=1&X-Amz-Signature=***&token=***"),
        ("data/corpus: found a@b.org at 12:30", "data/corpus: found a@b.org at 12:30"),
    ],
)
def test_passwords_of_urls_are_not_shown(text: str, expected: str) -> None:
    assert redacted(text) == expected


def test_secrets_stay_where_their_owner_put_them(small: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A stage and a push to a remote that is unavailable, with a password in the remote's URL and keys in the environment."""
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3cr3t-aws", "PREFECT_API_KEY": "s3cr3t-prefect", "HF_TOKEN": "s3cr3t-hub"}
    for name, value in (secrets | {"DVC_NO_ANALYTICS": "1"}).items():
        monkeypatch.setenv(name, value)
    config = "['remote \"team\"']\n    url = http://me:s3cr3t-url@127.0.0.1:9/cache\n[core]\n    remote = team\n"
    small.write(".dvc/config.local", config)
    lines: list[str] = []
    with chdir(small.folder):
        outcome = run_stage("prepare", Processes(), lines.append)
        assert outcome.state == "Ran", outcome.problem
        assert not sync.push(Processes(), "team", lines.append)
        assert not sync.pull(Processes(), "team", ["prepare"], warn=lines.append)
        monkeypatch.setattr(sync, "REMOTE", ["true"])
        assert sync.push(Processes(), "team", lines.append)
    assert small.stage("report").status == 0
    assert "s3cr3t" not in "\n".join(lines) + "".join(capfd.readouterr())
    files = [file for file in small.folder.rglob("*") if file.is_file() and file.name != "config.local"]
    assert not [file for file in files if b"s3cr3t" in file.read_bytes()]
