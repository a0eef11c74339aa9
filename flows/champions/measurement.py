"""The champion, measured on the new data by the ordinary run of a second tree. The current folder is the retrainings' worktree."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flows.champions import champion
from flows.champions.champion import Champion
from flows.champions.parts import Parts, outs_of, parts_of
from flows.experiments.evaluate import untrained
from flows.parameters import edit
from flows.parameters.needs import entries
from flows.parameters.sources import STANDS
from flows.pipeline import server
from flows.process import locks
from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository.lock import commit_of, read_lock
from flows.repository.worktree import COMPARED, RUN, SOURCE, equip, make_worktree, remove_worktree, run_in
from flows.results.fusions import BM25
from flows.results.generations import lock_here
from flows.results.metrics import METRICS
from tasks.core.stage.errors import Problem, UserError
from tasks.core.stage.files import read_json
from tasks.core.stage.params import read_yaml
from tasks.core.stage.safe_yaml import parse_yaml

SCRATCH = Path(".retemper", COMPARED)
OF_SERVER = ("PREFECT_API_URL", "RETEMPER_DEVICE_LIMIT")  # environment: a Prefect server, and its limit


class NotComparable(UserError):
    """The champion cannot be measured as it is served."""


def tell_not_comparable(project: Path, now: Champion, *, warn: Callable[[str], None]) -> None:
    """Warn, before a training, where `evaluate_champion` will find that the champion cannot be measured on the prepared data."""
    own = parse_yaml(champion.show(project, now.commit, "params.yaml") or "") or {}
    names = champion.parts_at(project, now).encoders
    if not any(entries(own, "adore").get(name, {}).get("index", "Flat") != "Flat" for name in names):
        return
    before, after = (outs_of(lock).get("data/corpus") for lock in (champion.locked(project, now.commit), lock_here()))
    if before != after:
        warn(
            f"champion/{now.number} ({now.model}) was trained with a compressed index of its own, which is of another corpus: a new "
            f"model cannot be compared with it and will be refused; crown it with retemper champion set MODEL"
        )


def evaluate_champion(project: Path, now: Champion, corpus: str, *, processes: Processes, display: Display) -> dict[str, Any]:
    """Metrics of the champion on the new corpus and queries; values by query are in SCRATCH/values afterwards.

    A second tree measures it by an ordinary run: its encoders are rounds of no steps with its own text and token settings, as it is
    served; a fusion has its own weights, and BM25 is built with its own settings. How deep it is searched and what is measured are as
    now. Shards come from the shard store where documents have not changed. A compressed index that it was trained with is searched as
    it is served, over the corpus that it is of, in a tree of its own commit. UserError where an encoder is nowhere any more;
    NotComparable where it has such an index, and the present `corpus` (digest) is another.
    """
    name = f"champion/{now.number}"
    remove_worktree(SCRATCH)
    SCRATCH.mkdir(parents=True)
    parts = champion.parts_at(project, now)
    get = partial(champion.get_out, project, now.commit)
    for kind in parts.encoders.values():
        get(parts.paths[kind], SCRATCH / kind)
    (SCRATCH / "params.yaml").write_text(champion.show(Path.cwd(), now.commit, "params.yaml") or "", encoding="utf-8")
    own, sections = read_yaml(SCRATCH / "params.yaml"), read_yaml(Path("params.yaml"))
    present: dict[str, Any] = {section: sections[section] for section in ("retrieve", "evaluate") if section in sections}
    if indexed := _has_index(parts, own, get):
        if corpus != now.digests.get("corpus"):
            raise NotComparable(
                f"{name}: it was trained with an index of its own, which is of another corpus, so the two cannot be "
                f"compared; the champion stays (to have the new one: retemper champion set MODEL)"
            )
        model, target = now.model, f"evaluate_{'fuse' if now.fusion else 'adore'}@{now.model}"
        tree = make_worktree(SCRATCH / "tree", now.commit)
    else:
        model, target = (now.model, f"evaluate_fuse@{now.model}") if now.fusion else ("champion", "evaluate@champion")
        tree = make_worktree(SCRATCH / "tree", commit_of("HEAD"))
        for file in (locks.DVC_LOCK, SOURCE, "params.yaml"):
            shutil.copy(file, tree / file)
        present |= {section: own[section] for section in ("text", "tokenize", "encode") if section in own}
        present |= untrained({one if now.fusion else model: str((SCRATCH / kind).resolve()) for one, kind in parts.encoders.items()})
        if now.fusion:
            present["fuse"] = {one: {**own["fuse"][one], **setting} for one, setting in now.fusion.items() if one != BM25}
            present["bm25"] = own.get("bm25") or {}
    edit.apply([edit.setting(key, value) for key, value in present.items()], tree / "params.yaml", lambda _: None)
    equip(tree)
    (tree / ".retemper").mkdir(exist_ok=True)
    Path(".retemper/shards").mkdir(exist_ok=True)
    (tree / ".retemper/shards").symlink_to(Path(".retemper/shards").resolve())
    status, problems = _run_second(tree, target, processes, show=lambda line: display.output(name, line) if " | " in line else None)
    if status:
        why = problems[-1].message if problems else f"its run ended with status {status}"
        raise UserError(f"{name} could not be measured on the new data: {why}")
    if indexed and _made_again(tree, now) != now.digests:
        raise NotComparable(f"{name}: its encoder and index were not made again as they are served; the champion stays")
    shutil.copytree(tree / "data/values" / model, SCRATCH / "values")
    return dict(read_json(tree / METRICS / f"{model}.json"))


def _has_index(parts: Parts, own: Mapping[str, Any], get: Callable[[str, Path], None]) -> bool:
    """Whether the champion, with parameters `own`, was trained with a compressed index. UserError where that is nowhere any more."""
    found = []
    for name, kind in parts.encoders.items():
        if name in (own.get("adore") or {}):
            index = SCRATCH / kind.replace("encoder", "index")
            get(f"data/indexes/{name}", index)
            found.append((index / "index.faiss").exists())
    return any(found)


def _made_again(tree: Path, now: Champion) -> Mapping[str, str]:
    """Digests of the champion's parts as a run in `tree` made them."""
    return parts_of(read_lock(tree / locks.DVC_LOCK), now.model, lambda path: read_json(tree / path), where=str(tree)).digests


def _run_second(tree: Path, target: str, processes: Processes, *, show: Callable[[str], None]) -> tuple[int, list[Problem]]:
    """An ordinary run in a second tree, whose sources are those of this one. It does without a Prefect server that is unavailable."""
    command, env = (*RUN, target), {STANDS: "1", "PREFECT_HOME": str(server.HOME.absolute())}
    ended = run_in(tree, command, processes, show=show, env=env)
    if ended[0] and server.is_configured() and not server.answers():
        ended = run_in(tree, command, processes, show=show, env={**env, **dict.fromkeys(OF_SERVER, "")})
    return ended


def values(folder: Path, measure: str, measured: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """`measure` of every dev query, from the values of a model with the metrics `measured`; UserError where there is no dev."""
    import pyarrow as pa

    from tasks.core.tables.parquet import read_table

    path = folder / "dev.parquet"
    if not path.exists():
        raise UserError(f"{path}: not found: the data set has no judged dev queries, on which models are compared; add some")
    schema = pa.schema([("query", pa.string()), *((name, pa.float64()) for name in measured["dev"])])
    table = read_table(path, schema, ["query", measure])
    return dict(zip(table["query"].to_pylist(), table[measure].to_pylist(), strict=True))
