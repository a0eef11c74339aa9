"""The champion, measured on the new data by the ordinary run of a second tree. The current folder is the retrainings' worktree."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.champions import champion
from flows.champions.champion import Champion
from flows.champions.parts import documents_of, has_own_index, with_its_index
from flows.evaluating.evaluate import untrained_rounds
from flows.parameters import edit
from flows.parameters.sources import KEEP_SOURCE
from flows.pipeline import server
from flows.process import locks
from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository.lock import commit_of
from flows.repository.worktree import COMPARED, RUN, SOURCE, equip, make_worktree, remove_worktree, run_in
from flows.results.fusions import BM25
from flows.results.metrics import METRICS
from tasks.core.errors import Problem, UserError
from tasks.core.files import read_json
from tasks.core.params.safe_yaml import parse_yaml
from tasks.core.params.sections import read_yaml
from tasks.core.training.companions import LEARNED

SCRATCH = Path(".retemper", COMPARED)
PSEUDO = "pseudo"  # the section, and a value of `queries` and of pseudo.dev
DEV = Path("data/corpus/qrels/dev.parquet")  # the source's own
OF_SERVER = ("PREFECT_API_URL", "RETEMPER_DEVICE_LIMIT")  # environment: a Prefect server, and its limit


class NotComparable(UserError):
    """The champion cannot be measured as it is served."""


def lost_index(project: Path, reigning: Champion) -> str | None:
    """Why the champion cannot be searched over other documents; None if it can, because what its indexes have learned is kept."""
    sections = parse_yaml(champion.show(project, reigning.commit, "params.yaml") or "") or {}
    for name in champion.parts_at(project, reigning).encoders:
        if not has_own_index(sections, name):
            continue
        if not champion.read_out(project, reigning.commit, f"data/indexes/{name}/index.json").get("trained"):
            return f"champion/{reigning.number}: its compressed index was made before Retemper kept what such an index has learned"
    return None


def makes_dev(sections: Mapping[str, Any]) -> bool:
    """Whether stage pseudo makes the dev queries, by params.yaml and the prepared data set; False if it copies those of the source."""
    from tasks.core.tables.parquet import count_rows

    if sections.get("queries") != PSEUDO:
        return False
    if dev := (sections.get(PSEUDO) or {}).get("dev"):
        return bool(dev == PSEUDO)
    return DEV.exists() and not count_rows(DEV)


def other_dev(project: Path, reigning: Champion) -> str | None:
    """Why stage pseudo would make other dev queries in a run that searches as the champion does; None if it would not."""
    sections = read_yaml(Path("params.yaml"))
    if not makes_dev(sections):
        return None
    own = parse_yaml(champion.show(project, reigning.commit, "params.yaml") or "") or {}
    judging = ("text", "tokenize", *([BM25] if BM25 in reigning.fusion else []))
    if changed := [name for name in judging if (own.get(name) or {}) != (sections.get(name) or {})]:
        others = "which change the dev queries made from the documents (pseudo.dev)"
        return f"champion/{reigning.number}: params.yaml now has other settings in {', '.join(changed)}, {others}"
    return None


def warn_if_not_comparable(project: Path, reigning: Champion, *, warn: Callable[[str], None]) -> None:
    """Warn, before a training, if `evaluate_champion` will not be able to measure the champion."""
    with suppress(UserError):  # it is lost, and the run may make it again
        if reason := lost_index(project, reigning) or other_dev(project, reigning):
            warn(f"{reason}, so a new model cannot be compared with it and will be refused; crown it with retemper champion set MODEL")


def evaluate_champion(project: Path, reigning: Champion, *, processes: Processes, display: Display) -> dict[str, Any]:
    """Metrics of the champion on the new corpus and queries; values by query are in SCRATCH/values afterwards.

    A second tree measures it by an ordinary run, as it is served: its encoders are rounds of no steps with its own text and token
    settings; a fusion keeps its weights, and BM25 its settings. Search depth and measures are the current ones. Shards of unchanged
    documents come from the shard store. A compressed index that the champion was trained with is filled with the new documents. Where
    stage pseudo makes the dev queries, the start encoder stays, because it judges them. Raises UserError if an encoder is lost, and
    NotComparable if what such an index has learned was not kept, or dev queries would be others.
    """
    name = f"champion/{reigning.number}"
    remove_worktree(SCRATCH)
    SCRATCH.mkdir(parents=True)
    parts = champion.parts_at(project, reigning)
    get = champion.getter(project, reigning.commit)
    if reason := lost_index(project, reigning) or other_dev(project, reigning):
        raise NotComparable(
            f"{reason}, so the two cannot be compared; the champion stays (to crown the new one: retemper champion set MODEL)"
        )
    (SCRATCH / "params.yaml").write_text(champion.show(Path.cwd(), reigning.commit, "params.yaml") or "", encoding="utf-8")
    own_sections, sections = read_yaml(SCRATCH / "params.yaml"), read_yaml(Path("params.yaml"))
    for encoder, kind in parts.encoders.items():
        get(parts.paths[kind], SCRATCH / kind)
        if has_own_index(own_sections, encoder):
            get(f"data/indexes/{encoder}/{LEARNED}", SCRATCH / kind / LEARNED)
    stage = "evaluate_fuse" if reigning.fusion else "evaluate_adore" if has_own_index(own_sections, reigning.model) else "evaluate"
    tree = make_worktree(SCRATCH / "tree", commit_of("HEAD"))
    for file in (locks.DVC_LOCK, SOURCE, "params.yaml"):
        shutil.copy(file, tree / file)
    settings: dict[str, Any] = {section: sections[section] for section in ("retrieve", "evaluate") if section in sections}
    settings |= {section: own_sections[section] for section in ("text", "tokenize", "encode") if section in own_sections}
    encoders = {documents_of(own_sections, encoder): str((SCRATCH / kind).resolve()) for encoder, kind in parts.encoders.items()}
    same_start = sections.get("queries") == PSEUDO and own_sections.get("encoder") == sections.get("encoder")  # pseudo has run
    settings |= untrained_rounds(encoders, keep_start=same_start or makes_dev(sections))
    settings["adore"] = {
        encoder: with_its_index(own_sections, encoder) for encoder in parts.encoders if has_own_index(own_sections, encoder)
    }
    if reigning.fusion:
        settings["fuse"] = {
            fusion: {**own_sections["fuse"][fusion], **setting} for fusion, setting in reigning.fusion.items() if fusion != BM25
        }
    if BM25 in reigning.fusion:
        settings["bm25"] = own_sections.get("bm25") or {}
    edit.apply([edit.setting(key, value) for key, value in settings.items()], tree / "params.yaml", lambda _: None)
    equip(tree)
    (tree / ".retemper").mkdir(exist_ok=True)
    Path(".retemper/shards").mkdir(exist_ok=True)
    (tree / ".retemper/shards").symlink_to(Path(".retemper/shards").resolve())
    target = f"{stage}@{reigning.model}"
    status, problems = _run_second(tree, target, processes, show=lambda line: display.output(name, line) if " | " in line else None)
    if status:
        reason = problems[-1].message if problems else f"its run ended with status {status}"
        raise UserError(f"{name} could not be measured on the new data: {reason}")
    shutil.copytree(tree / "data/values" / reigning.model, SCRATCH / "values")
    return dict(read_json(tree / METRICS / f"{reigning.model}.json"))


def _run_second(tree: Path, target: str, processes: Processes, *, show: Callable[[str], None]) -> tuple[int, list[Problem]]:
    """Run a target in a second tree, with the sources of this one. If the Prefect server is unavailable, run again without it."""
    command, env = (*RUN, target), {KEEP_SOURCE: "1", "PREFECT_HOME": str(server.HOME.absolute())}
    result = run_in(tree, command, processes, show=show, env=env)
    if result[0] and server.is_configured() and not server.answers():
        result = run_in(tree, command, processes, show=show, env={**env, **dict.fromkeys(OF_SERVER, "")})
    return result


def values(folder: Path, measure: str, measured: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """`measure` of every dev query, from the values of a model whose metrics are `measured`. Raises UserError if there is no dev."""
    import pyarrow as pa

    from tasks.core.tables.parquet import read_table

    path = folder / "dev.parquet"
    if not path.exists():
        raise UserError(f"{path}: not found: the data set has no judged dev queries, on which models are compared; add some")
    schema = pa.schema([("query", pa.string()), *((name, pa.float64()) for name in measured["dev"])])
    table = read_table(path, schema, ["query", measure])
    return dict(zip(table["query"].to_pylist(), table[measure].to_pylist(), strict=True))
