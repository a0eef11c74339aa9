"""The champion: the model that is served. Each one is an annotated tag `champion/N`; the highest N is the champion now.

A tag is never moved or deleted: setting another model, or going back, makes a new one. Its message is a line and a JSON
record; its commit holds dvc.lock, params.yaml and data/source.json, from which the model and its data can be had again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flows.champions import outs
from flows.champions.parts import NotServable, Parts, encoder_digests, is_same_model, outs_of, parts_of, settings_of
from flows.champions.tree import BRANCH, ZERO, is_ancestor, known_tip, move, resolve
from flows.process.display import text_table
from flows.repository.git import NOBODY, git
from flows.repository.lock import LOCK, Lock, lock_of, mapping_at, read_blob, read_lock
from flows.repository.tags import TAGS, prefix_of, read_tags, refuse_other_projects
from flows.results import generations
from flows.results.metrics import METRICS
from tasks.core.errors import UserError
from tasks.core.files import from_record, read_json
from tasks.core.metrics.selection import metric_of

NONE_YET = "there is no champion yet; run retemper retrain, or retemper champion set MODEL"
CROWN_ANOTHER = "crown another model: retemper champion set MODEL"
Get = Callable[[str, Path], None]  # copies an out, by its path, to a place


@dataclass(frozen=True)
class Champion:
    """`replaced` is the champion before it, `previous` the one that a rollback makes champion again."""

    number: int
    model: str
    cause: str  # first | promoted | data (the model as it was, over new data) | set | rollback
    when: str  # ISO 8601, UTC; shown, never compared
    measure: str = ""
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # split, measure
    replaced: int | None = None
    previous: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)  # DVC's, of the outs that make it up
    fusion: Mapping[str, Any] = field(default_factory=dict)  # of a fused model: the settings of each fusion, and BM25's
    settings: Mapping[str, Any] = field(default_factory=dict)  # flows.champions.parts.settings_of; empty in older records
    data: Mapping[str, Any] = field(default_factory=dict)  # dataset source and digest
    comparison: Mapping[str, Any] = field(default_factory=dict)
    prefix: str | None = None  # the project's folder in its repository, such as `law/`, which is "" at its top; None in older records
    commit: str = ""  # of the tag; not in its message


def read_champions(project: Path) -> list[Champion]:
    """All champions so far of `project` (see `read_tags`), by number. Raises UserError for a tag that holds no record."""
    champions = []
    for tag in read_tags(project):
        try:
            champions.append(from_record(Champion, {**tag.record, "number": tag.number, "commit": tag.commit}))
        except (ValueError, TypeError):
            raise UserError(f"tag {tag.name}: found no record of a champion in its message; delete it: git tag -d {tag.name}") from None
    return champions


def current(project: Path) -> Champion | None:
    """The champion now."""
    return next(reversed(read_champions(project)), None)


def crown(project: Path, champion: Champion, branch: tuple[str, str | None] | None = None) -> Champion:
    """Make the tag, in one transaction with moving the branch as `branch` (new, old) says, if given.

    `project` is the project's own folder, or that in a worktree. Raises GitFailed if the number is taken (another was crowned meanwhile) or
    the branch has moved; then nothing has changed.
    """
    champion = replace(champion, prefix=prefix_of(project))
    tag = tag_object(project, champion)
    moves = [f"update {BRANCH} {branch[0]} {branch[1] or ZERO}"] if branch else []
    move(project, [*moves, f"create {TAGS}{champion.number} {tag}"])
    return champion


def tag_object(project: Path, champion: Champion) -> str:
    """Write the annotated tag object of a champion, without a reference to it yet; return its digest."""
    record = {name: value for name, value in asdict(champion).items() if name not in ("number", "commit")}
    message = f"{describe(champion)}\n\n{json.dumps(record, indent=1, ensure_ascii=False)}\n"
    stamp = f"{int(datetime.now(UTC).timestamp())} +0000"
    tagger = f"{NOBODY['GIT_COMMITTER_NAME']} <{NOBODY['GIT_COMMITTER_EMAIL']}> {stamp}"
    body = f"object {champion.commit}\ntype commit\ntag champion/{champion.number}\ntagger {tagger}\n\n{message}"
    return git("mktag", text=body, folder=project)


def describe(champion: Champion) -> str:
    """One line: number, model, its figure on dev."""
    value = champion.metrics.get("dev", {}).get(champion.measure)
    figure = f", {champion.measure} {value:.4f} on dev" if value is not None else ""
    return f"champion/{champion.number}: {champion.model}{figure} ({champion.cause})"


def record_of(folder: Path, commit: str, model: str) -> dict[str, Any]:
    """What dvc.lock and data/source.json of `commit` say about `model`: digests and data.

    Raises UserError if the model has no encoder or no index there, or its index was made with another encoder.
    """
    lock, where = lock_at(folder, commit), f"{LOCK} of commit {commit[:12]}"
    _refuse_uncommitted(folder, commit, model, lock=lock)
    parts = parts_of(lock, model, partial(read_out, folder, commit), where=where)
    generations.refuse_unfit(lock, model, where)
    source = json.loads(read_blob(commit, "data/source.json", folder) or "{}").get("dataset", {})
    data = {name: source[name] for name in ("source", "digest") if name in source}
    return {"digests": parts.digests, "fusion": parts.fusion, "settings": parts.settings, "data": data}


def _refuse_uncommitted(folder: Path, commit: str, model: str, *, lock: Lock) -> None:
    """Raise UserError if `model` is in the folder's dvc.lock but not in that of `commit` (`lock`)."""
    index, lock_path = f"data/indexes/{model}", folder / LOCK
    if (
        outs_of(lock).get(index)
        or not lock_path.exists()
        or lock_path.read_text("utf-8").strip() == (read_blob(commit, LOCK, folder) or "").strip()
    ):
        return
    if outs_of(read_lock(lock_path)).get(index):
        raise UserError(
            f"{model}: found in {LOCK}, but not in that of commit {commit[:12]}; commit {LOCK}, params.yaml, and data/source.json"
        )


def with_settings(project: Path, champions: Sequence[Champion]) -> list[Champion]:
    """The champions; those whose records have no settings get them from their commits."""
    return [
        champion if champion.settings else replace(champion, settings=settings_of(lock_at(project, champion.commit), champion.model))
        for champion in champions
    ]


def parts_at(project: Path, champion: Champion, remedy: str = CROWN_ANOTHER) -> Parts:
    """The parts of a champion: its outs by path, as in its commit. Its record has the settings of its fusions: their runs may be lost.

    `remedy`: what NotServable says can be done.
    """

    def read(path: str) -> Any:
        return champion.fusion.get(Path(path).parent.name) or read_out(project, champion.commit, path)

    try:
        return parts_of(lock_at(project, champion.commit), champion.model, read, where=describe(champion))
    except NotServable as error:  # crowned by an earlier version
        raise NotServable(f"{error}; {remedy}") from None


def find_rejected(champions: Sequence[Champion], candidate: Parts) -> Champion | None:
    """Find the earlier champion with these parts, if someone has since replaced it manually.

    For the current champion's own model, all parts must be the same: the same model over other data was not taken back.
    """
    last_crowned = next((champion for champion in reversed(champions) if champion.cause != "data"), None)
    if last_crowned is None or last_crowned.cause not in ("set", "rollback"):
        return None
    same_model = [champion for champion in reversed(champions) if is_same_model(candidate, champion)]
    if champions[-1] not in same_model:
        return next(iter(same_model), None)
    if candidate.digests == champions[-1].digests:
        return None
    return next((champion for champion in same_model if champion.digests == candidate.digests), None)


def lock_at(folder: Path, commit: str) -> Lock:
    """The stages in dvc.lock of `commit` that its graph still has; empty if it has no dvc.lock."""
    return lock_of(commit, commit[:12], folder) or {}


def choose(project: Path, wanted: str) -> Champion:
    """Crown MODEL (of the last retraining, else of HEAD), a champion's tag, or REVISION:MODEL."""
    refuse_other_projects(project)
    champions = read_champions(project)
    reigning = champions[-1] if champions else None
    earlier = next((champion for champion in champions if wanted in (str(champion.number), f"champion/{champion.number}")), None)
    if earlier:
        return _crown_again(project, earlier, reigning, cause="set", previous=reigning.number if reigning else None)
    if wanted.startswith("champion/") and ":" not in wanted:
        raise UserError(f"{wanted}: no such champion; {f'the last is champion/{reigning.number}' if reigning else 'there is none yet'}")
    revision, colon, model = wanted.rpartition(":")
    commits = [commit for commit in ([resolve(project, revision)] if colon else [known_tip(project), resolve(project, "HEAD")]) if commit]
    if not commits:
        raise UserError(f"{wanted}: no commit {revision or 'yet'}; expected MODEL, champion/N or REVISION:MODEL")
    commit = next(
        (each for each in commits if {f"train@{model}", f"adore@{model}", f"fuse@{model}"} & lock_at(project, each).keys()), commits[0]
    )
    champion = Champion(
        number=(reigning.number if reigning else 0) + 1,
        model=model,
        cause="set",
        when=timestamp(),
        replaced=reigning.number if reigning else None,
        previous=reigning.number if reigning else None,
        commit=commit,
        measure=metric_of(mapping_at(commit, "params.yaml", project)),
        metrics=metrics_of(project, commit, model),
        **record_of(project, commit, model),
    )
    return _crown_by_hand(project, champion)


def is_newer_at_head(project: Path, crowned: Champion) -> bool:
    """Whether HEAD has another model of that name, made since HEAD and the retraining that made the one just crowned parted.

    A later commit that makes no model, such as one of settings, leaves HEAD with the model of before. False if the clone is too shallow to
    have the commit at which they parted.
    """
    head = resolve(project, "HEAD")
    if not head or is_ancestor(project, head, crowned.commit):
        return False
    common = git("merge-base", head, crowned.commit, folder=project, check=False)
    at_head = _digests_at(project, head, crowned.model)
    return bool(common) and at_head is not None and at_head not in (crowned.digests, _digests_at(project, common, crowned.model))


def _digests_at(project: Path, commit: str, model: str) -> Mapping[str, str] | None:
    """The digests of `model` in a commit; None if it has no such model."""
    with suppress(UserError):
        return dict(record_of(project, commit, model)["digests"])
    return None


def metrics_of(project: Path, commit: str, model: str) -> dict[str, dict[str, float]]:
    """The metrics of `model` in `commit`, by split; empty if neither the cache nor the remote has them.

    UserError if they may be on the remote, and that is unavailable.
    """
    try:
        return dict(read_out(project, commit, str(METRICS / f"{model}.json")))
    except outs.Lost:
        return {}


def roll_back(project: Path) -> Champion:
    """Make the previous champion champion again; calling it again goes back further. Raises UserError if there is none."""
    champions = {champion.number: champion for champion in read_champions(project)}
    if not champions:
        raise UserError(NONE_YET)
    reigning = champions[max(champions)]
    previous = champions.get(reigning.previous or 0)
    if previous is None and reigning.previous:
        raise UserError(
            f"champion/{reigning.previous}, which was before champion/{reigning.number}, has no tag here; fetch it (git fetch --tags), or "
            "crown another one: retemper champion set champion/N"
        )
    if previous is None:
        first = earliest_same(list(champions.values()), reigning)
        again = f"champion/{first.number} again, " if first.number != reigning.number else ""
        history_hint = "retemper champion history shows the later ones, retemper champion set champion/N crowns one of them"
        remedy = history_hint if len(champions) > 1 else "retemper champion set MODEL crowns another model of the last retraining"
        raise UserError(f"champion/{reigning.number} is {again}the first champion: nothing before it to go back to; {remedy}")
    refuse_other_projects(project)
    return _crown_again(project, previous, reigning, cause="rollback", previous=previous.previous)


def earliest_same(champions: Sequence[Champion], champion: Champion) -> Champion:
    """The earliest champion with the same model, commit, and digests: what a rollback or set brought back; else `champion` itself."""
    same = (champion.model, champion.commit, champion.digests)
    return next((one for one in champions if (one.model, one.commit, one.digests) == same), champion)


def _crown_again(project: Path, old: Champion, reigning: Champion | None, *, cause: str, previous: int | None) -> Champion:
    number = reigning.number if reigning else 0
    fields = {**asdict(old), "number": number + 1, "cause": cause, "when": timestamp(), "replaced": number, "previous": previous}
    return _crown_by_hand(project, Champion(**fields))


def _crown_by_hand(project: Path, champion: Champion) -> Champion:
    """Crown it. Raises UserError if a part of it is lost, since no server could load it."""
    outs.refuse_lost(parts_at(project, champion).paths.values(), project=project, lock=lock_at(project, champion.commit))
    return crown(project, champion)


def timestamp() -> str:
    """The current time, as it is shown."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def table(champions: list[Champion]) -> str:
    """Every champion, the current one last."""
    rows = []
    for champion in champions:
        value = champion.metrics.get("dev", {}).get(champion.measure)
        figure = f"{champion.measure} {value:.4f}" if value is not None else ""
        rows.append(
            [
                f"champion/{champion.number}",
                champion.model,
                champion.cause,
                figure,
                champion.when,
                champion.digests.get("encoder", "")[:10],
                champion.commit[:10],
            ]
        )
    return text_table(["champion", "model", "cause", "dev", "when", "encoder", "commit"], rows)


def details(champion: Champion) -> str:
    """Lines on the champion: its model, since when it is champion, its figures, and its data."""
    lines = [
        describe(champion),
        f"  since     {champion.when}" + (f", in place of champion/{champion.replaced}" if champion.replaced else ""),
    ]
    for split, measured in champion.metrics.items():
        lines.append(
            f"  {split:9} " + ", ".join(f"{name} {value:.4f}" for name, value in measured.items() if isinstance(value, (int, float)))
        )
    if champion.comparison:
        lines.append(f"  against   {champion.comparison.get('reason', '')}")
    lines.append(f"  data      {_shown(str(champion.data.get('source', 'unknown')))} ({str(champion.data.get('digest', ''))[:12]})")
    lines += [f"  {kind:9} {digest}" for kind, digest in encoder_digests(champion).items()]
    lines += [f"  {name:9} {_settings(entry)}" for name, entry in champion.fusion.items()]
    lines.append(f"  commit    {champion.commit}")
    return "\n".join(lines)


def _shown(source: str) -> str:
    """A source as another machine may show it: a path in the project relative to it, any other absolute path by its last part."""
    kind, colon, place = source.rpartition(":")
    path = Path(place)
    if not path.is_absolute():
        return source
    return f"{kind}{colon}{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name}"


def _settings(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in entry.items())


def read_out(project: Path, commit: str, path: str) -> Any:
    """A JSON file in an out of `commit`, from the cache or the remote."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / Path(path).name
        get_out(project, commit, path, out=out)
        return read_json(out)


def getter(project: Path, commit: str) -> Get:
    """`get_out` of one commit: a function of the out's path and of the place for it."""

    def get(path: str, place: Path) -> None:
        get_out(project, commit, path, out=place)

    return get


def get_out(project: Path, commit: str, path: str, *, out: Path) -> None:
    """Copy an out of `commit` from the cache (or the remote) to `out`, completely or not at all. UserError if neither has it."""
    outs.get(path, out, project=project, commit=commit, lock=lock_at(project, commit))
