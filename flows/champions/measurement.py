"""The champion, measured on the new data by the ordinary run of a second tree. The current folder is the retrainings' worktree."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.champions import champion, outs
from flows.champions.champion import Champion
from flows.champions.outs import Lost
from flows.champions.parts import NotServable, Parts, documents_of, has_own_index, searched_sections
from flows.evaluating.evaluate import untrained_rounds
from flows.parameters import edit
from flows.parameters.sources import KEEP_SOURCE
from flows.pipeline import server
from flows.process import locks
from flows.process.display import Display
from flows.process.processes import Processes
from flows.repository.lock import commit_of, mapping_at
from flows.repository.worktree import COMPARED, RUN, SOURCE, equip, make_worktree, remove_worktree, run_in
from flows.results.metrics import METRICS
from tasks.core.errors import Problem, UserError
from tasks.core.files import read_json
from tasks.core.params.sections import read_yaml
from tasks.core.training.companions import LEARNED

SCRATCH = Path(".retemper", COMPARED)
TEXTS = ("text", "tokenize", "encode")  # sections that a model keeps when it is measured on other data
PSEUDO = "pseudo"  # a value of `queries`, and the stage that then writes the corpus with the queries
OF_SERVER = ("PREFECT_API_URL", "RETEMPER_DEVICE_LIMIT")  # environment: a Prefect server, and its limit


class NotComparable(UserError):
    """The champion cannot be measured as it is served."""


def lost_index(project: Path, reigning: Champion) -> str | None:
    """Why the champion cannot be searched over other documents; None if it can, because what its indexes have learned is kept."""
    sections = _own_sections(project, reigning)
    for name in champion.parts_at(project, reigning).encoders:
        if not has_own_index(sections, name):
            continue
        if not champion.read_out(project, reigning.commit, f"data/indexes/{name}/index.json").get("trained"):
            return f"champion/{reigning.number}: its compressed index was made before Retemper kept what such an index has learned"
    return None


def lost_part(project: Path, reigning: Champion, remedy: str = champion.CROWN_ANOTHER) -> str | None:
    """Which part that measures the champion neither the cache nor the remote has, in words; None if none is lost.

    Raises UserError if that is unknown, for example because the remote is unavailable; NotServable, with `remedy`, if it has no index.
    """
    try:
        parts, own_sections = champion.parts_at(project, reigning, remedy), _own_sections(project, reigning)
        paths = [parts.paths[kind] for kind in parts.encoders.values()]
        indexed = [name for name in parts.encoders if has_own_index(own_sections, name)]
        paths += [f"data/indexes/{name}/{file}" for name in indexed for file in ("index.json", LEARNED)]
        outs.refuse_lost(paths, project=project, lock=champion.lock_at(project, reigning.commit))
    except Lost as error:
        return f"champion/{reigning.number}: {error}"
    return None


def is_measurable(project: Path, reigning: Champion) -> bool:
    """Whether `evaluate_champion` can measure the champion, as far as is known without a run."""
    with suppress(UserError):
        return not (lost_part(project, reigning) or lost_index(project, reigning))
    return False


def warn_if_not_comparable(project: Path, reigning: Champion, way_out: str, *, warn: Callable[[str], None]) -> None:
    """Warn, before hours of training, if `evaluate_champion` will not be able to measure the champion. `way_out`: what can be done then.

    A lost part is not an error, because the same recipe over the same data makes it again. Nor is a remote that is unavailable now. But
    raises NotServable for a champion that never had an index.
    """
    try:
        lost = lost_part(project, reigning, way_out)
    except NotServable:
        raise
    except UserError as error:
        warn(f"champion/{reigning.number}: {error}. If that is still so after the training, the comparison, and so this retraining, fails")
        return
    if lost:
        warn(f"{lost}. Unless this retraining makes it again, a new model cannot be compared with it and will be refused; {way_out}")
        return
    with suppress(UserError):
        if reason := lost_index(project, reigning):
            warn(f"{reason}, so a new model cannot be compared with it and will be refused; {way_out}")


def _own_sections(project: Path, reigning: Champion) -> Mapping[str, Any]:
    """The champion's own params.yaml."""
    return mapping_at(reigning.commit, "params.yaml", project)


def evaluate_champion(project: Path, reigning: Champion, *, processes: Processes, display: Display) -> dict[str, Any]:
    """Metrics of the champion on the new corpus and queries; values by query are in SCRATCH/values afterwards.

    A second tree measures it by an ordinary run, as it is served: its encoders are rounds of no steps with its own text and token
    settings; a fusion keeps its weights, and BM25 its settings. Search depth and measures are the current ones. Shards of unchanged
    documents come from the shard store. A compressed index that the champion was trained with is filled with the new documents. Queries
    that stage pseudo has made are read, not made again: the champion as start encoder would judge them differently. Raises NotComparable
    if a part of it is lost, or what such an index has learned was not kept, and UserError if the remote is unavailable, or the run fails.
    """
    name = f"champion/{reigning.number}"
    remove_worktree(SCRATCH)
    SCRATCH.mkdir(parents=True)
    own_sections, sections = _own_sections(project, reigning), read_yaml(Path("params.yaml"))
    try:
        parts, no_index = champion.parts_at(project, reigning), lost_index(project, reigning)
        if not no_index:
            _get_encoders(project, reigning, parts, own_sections=own_sections)
    except Lost as error:
        raise NotComparable(f"{name}: {error}") from None
    if no_index:
        raise NotComparable(no_index)
    stage = "evaluate_fuse" if reigning.fusion else "evaluate_adore" if has_own_index(own_sections, reigning.model) else "evaluate"
    tree = make_worktree(SCRATCH / "tree", commit_of("HEAD"))
    for file in (locks.DVC_LOCK, SOURCE, "params.yaml"):
        shutil.copy(file, tree / file)
    settings: dict[str, Any] = {section: sections[section] for section in ("retrieve", "evaluate") if section in sections}
    folders = {encoder: (SCRATCH / kind).resolve() for encoder, kind in parts.encoders.items()}
    settings |= measured_sections(own_sections, folders, reigning.fusion)
    if sections.get("queries") == PSEUDO:
        settings |= {"queries": "corpus", "dataset.source": f"parquet:{Path('data', PSEUDO).resolve()}"}
        settings |= {"prepare.leaks": "allow", "bm25.depth": 0}  # nothing is trained
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


def measured_sections(own: Mapping[str, Any], folders: Mapping[str, Path], fusion: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of params.yaml, by key, with which an ordinary run measures a model on other data as it is served.

    `own`: the model's own params.yaml. `folders`: absolute paths of its encoders, which become rounds of no steps. `fusion`: see Parts.
    """
    texts = {section: own[section] for section in TEXTS if section in own}
    rounds = untrained_rounds({documents_of(own, name): str(folder) for name, folder in folders.items()})
    return texts | rounds | searched_sections(own, folders, fusion)


def _get_encoders(project: Path, reigning: Champion, parts: Parts, *, own_sections: Mapping[str, Any]) -> None:
    """Copy the champion's encoders, and what their own indexes have learned, to SCRATCH. Raises Lost if one is lost."""
    get = champion.getter(project, reigning.commit)
    for encoder, kind in parts.encoders.items():
        get(parts.paths[kind], SCRATCH / kind)
        if has_own_index(own_sections, encoder):
            get(f"data/indexes/{encoder}/{LEARNED}", SCRATCH / kind / LEARNED)


def _run_second(tree: Path, target: str, processes: Processes, *, show: Callable[[str], None]) -> tuple[int, list[Problem]]:
    """Run a target in a second tree, with the sources of this one. If the Prefect server is unavailable, run again without it."""
    command, env = (*RUN, target), {KEEP_SOURCE: "1", "PREFECT_HOME": str(server.HOME.absolute())}
    result = run_in(tree, command, processes, show=show, env=env)
    if result[0] and server.is_configured() and not server.answers():
        result = run_in(tree, command, processes, show=show, env={**env, **dict.fromkeys(OF_SERVER, "")})
    return result


def values(folder: Path, measure: str) -> dict[str, float]:
    """`measure` of every dev query, from the folder of a model's values. Raises UserError if there is no dev."""
    from tasks.core.tables.parquet import values_of

    path = folder / "dev.parquet"
    if not path.exists():
        raise UserError(f"{path}: not found: the data set has no judged dev queries, on which models are compared; add some")
    return values_of(path, measure)
