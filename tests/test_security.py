"""What this project does not do: unpickle, evaluate text, hand text to a shell, run remote code, listen to the world."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
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
            name = dotted(node.func)
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
    found = list(faults(ast.parse(file.read_text(encoding="utf-8"))))
    assert not found, f"{file.relative_to(ROOT)}: {found}"


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
