"""Find artifacts of different generations, by dvc.lock and the cache: whether each stage ran on the inputs that dvc.lock has now.

A run that was stopped, failed, or was limited to some stages leaves later stages as they were.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

from flows.repository.lock import Lock, corpus_of, current_lock, out_digests, out_makers, parameters
from flows.results.metrics import METRICS, Metrics
from flows.storage.cache import cache_folder, digest_of
from tasks.core.errors import UserError

SERVED = ("data/encoders", "data/embeddings", "data/indexes")  # outs that must match, in addition to the tokens' corpus


def outdated(lock: Lock) -> dict[str, str]:
    """Map each stale stage to the input, direct or upstream, that has since been replaced.

    A dep within an out (data/corpus/qrels) is compared if the cache has the listing of that out.
    """
    makers, replaced, current = out_makers(lock), dict[str, str](), _current(out_digests(lock))

    def look(name: str) -> str:
        if name not in replaced:
            replaced[name] = _replaced(lock, name, current)
            for dep in lock[name].get("deps", []):
                place = Path(dep["path"])
                maker = next((makers[str(path)] for path in (place, *place.parents) if str(path) in makers), None)
                replaced[name] = replaced[name] or (look(maker) if maker else "")
        return replaced[name]

    return {name: path for name in lock if (path := look(name))}


def stale_outs(lock: Lock) -> dict[str, str]:
    """The outs of stale stages, by path, each with the input that has been replaced."""
    return {str(out["path"]): path for name, path in outdated(lock).items() for out in lock[name].get("outs", [])}


def find_mismatch(lock: Lock, model: str, measured: bool = False, *, retrieved: Collection[str] = ()) -> str:
    """Why encoder, vectors, index (and, if `measured`, the metrics) of `model` are not of one generation; empty if they are.

    `retrieved`: splits whose runs are checked too. For a fusion's systems that is always dev, on whose runs its weight was chosen. Other
    queries do not count: those of training make the next model, not this one.
    """
    retrieved = ("dev", "test") if measured else retrieved
    fused = lock.get(f"fuse@{model}")
    parts = [str(parameters(fused)[f"fuse.{model}"][part]) for part in ("first", "second")] if fused else []
    for part in parts:
        if problem := find_mismatch(lock, part, retrieved=retrieved or ("dev",)):
            return problem
    tower = lock.get(f"adore@{model}")
    round_ = str(parameters(tower)[f"adore.{model}"]["round"]) if tower else model
    stages = ["pseudo"] if corpus_of(lock) == "data/pseudo" else []
    stages += ["tokenize", f"encode@{round_}", f"index@{round_}", f"adore@{model}", f"fuse@{model}"]
    stages += ["bm25", "retrieve_bm25"] if model == "bm25" else []
    stages += [f"{stage}@{model}" for stage in ("retrieve", "retrieve_adore")] if retrieved else []
    stages += [f"{stage}@{model}" for stage in ("evaluate", "evaluate_adore", "evaluate_fuse")] if measured else []
    read = ("data/corpus", "data/pseudo", "data/tokens", "data/candidates", *(f"data/runs/{name}" for name in (model, *parts)))
    current = _current({path: digest for path, digest in out_digests(lock).items() if path.startswith(SERVED) or path in read})
    splits = ("", *retrieved, *(["dev"] if fused else []))
    for name in stages:
        if name in lock and (path := _replaced(lock, name, lambda dep: current(dep) if _split(dep) in splits else "")):
            return f"{name} was made from another {path}"
    return ""


def refuse_unfit(lock: Lock, model: str, where: str, *, measured: bool = False) -> None:
    """Raise UserError if the parts of `model` are of different generations."""
    if problem := find_mismatch(lock, model, measured):
        raise UserError(f"{where}: model {model}: {problem}, expected the current one; run retemper run to bring them up to date")


def refuse_truncated(lock: Lock, outs: Collection[Path]) -> None:
    """Raise UserError if one of `outs` has fewer bytes than dvc.lock says: faiss opens some truncated files without an error."""
    expected = {Path(out["path"]): int(out["size"]) for entry in lock.values() for out in entry.get("outs", []) if "size" in out}
    for out in sorted(expected.keys() & set(outs)):
        size = sum(file.stat().st_size for file in ([out] if out.is_file() else out.rglob("*")) if file.is_file())
        if size < expected[out]:  # more bytes are files that DVC ignores
            raise UserError(
                f"{out}: found {size:,} bytes, expected the {expected[out]:,} of dvc.lock: it is corrupt or being made; run retemper run"
            )


def current_metrics(metrics: Metrics, lock: Lock | None = None) -> tuple[Metrics, str]:
    """`metrics` without those of replaced artifacts, and a line that names the excluded ones, if any."""
    lock = current_lock() if lock is None else lock
    stale = stale_outs(lock)
    reasons = {model: stale[path] for model in metrics if (path := str(METRICS / f"{model}.json")) in stale}
    return leave_out(metrics, {model: f"measured before the current {path} was made" for model, path in reasons.items()})


def leave_out(metrics: Metrics, reasons: Mapping[str, str]) -> tuple[Metrics, str]:
    """`metrics` without the models that `reasons` names, and a line that names them, if any, with each reason once."""
    models: dict[str, list[str]] = {}
    for model, reason in reasons.items():
        if model in metrics:
            models.setdefault(reason, []).append(model)
    excluded = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in models.items())
    return {model: splits for model, splits in metrics.items() if model not in reasons}, f"excluded: {excluded}" if excluded else ""


def _split(path: str) -> str:
    """The split whose queries or qrels a path holds; empty for anything else."""
    place = Path(path)
    return place.stem if place.parent.name in ("queries", "qrels") else ""


def _current(digests: Mapping[str, str]) -> Callable[[str], str]:
    """A function from a path to its digest by those of outs; empty if it is neither an out nor a known part of one."""
    root = cache(cache_folder)  # imports DVC, so only for a part

    @cache
    def current(path: str) -> str:
        is_part = path not in digests and any(path.startswith(f"{out}/") for out in digests)
        return digest_of(digests, path, root() / "files/md5") if is_part else digests.get(path, "")

    return current


def _replaced(lock: Lock, name: str, current: Callable[[str], str]) -> str:
    """The first dep of a stage whose `current` digest is known and differs from the one that the stage read; empty if there is none."""
    deps = lock[name].get("deps", [])
    return next((str(dep["path"]) for dep in deps if current(str(dep["path"])) not in ("", dep.get("md5"))), "")
