"""`retemper lineage`: what made an artifact, from dvc.lock, data/source.json and git alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flows.repository.git import git
from flows.repository.lock import (
    LOCK,
    Lock,
    commit_of,
    corpus_of,
    current_lock,
    is_committed,
    lock_of,
    out_digests,
    out_makers,
    overlap,
    parameters,
    read_blob,
    tracked,
)
from flows.storage import makings
from flows.storage.cache import cache_folder, digest_of, file_md5, object_path
from flows.team.code import Code
from tasks.core.charts.page import head
from tasks.core.errors import UserError, printable
from tasks.core.files import write_text
from tasks.core.params.effective import effective
from tasks.core.plurals import counted
from tasks.core.stage.code import PACKAGE
from tasks.core.stage.frozen import CODE
from tasks.core.stage.references import frozen_references

SOURCE = "data/source.json"
STATS = "stats.json"


@dataclass(frozen=True)
class File:
    """A file or folder that a stage read or wrote. `made_by`: a stage, empty for code; `commit`: the latest with that content."""

    path: str
    digest: str
    made_by: str = ""
    commit: str = ""
    note: str = ""


@dataclass(frozen=True)
class Step:
    """A stage as dvc.lock recorded it. `cached`: when its run entered this clone's cache (ISO 8601, UTC), if it is there."""

    stage: str
    command: str
    parents: tuple[str, ...]
    params: Mapping[str, Any]
    inputs: tuple[File, ...]
    code: tuple[File, ...]
    outs: tuple[File, ...]
    cached: str = ""
    making: Mapping[str, Any] = field(default_factory=dict)  # who made it, when and with what (flows.storage.makings)


@dataclass(frozen=True)
class Lineage:
    """What made `artifact`: every stage up to the source, parents first."""

    artifact: str
    digest: str
    revision: str  # a commit, or `working tree`
    committed: bool  # whether git has this dvc.lock
    date: str  # of the commit, ISO 8601
    source: Mapping[str, Any]  # what its stages read from outside (`dataset`, `encoders.e5`): source, digest, files, packages
    rows: Mapping[str, Any]  # stats.json of the corpus, if the cache has it
    metrics: Mapping[str, Any]  # of the model, if the cache has them
    steps: tuple[Step, ...] = field(default=())


def show(artifact: str, revision: str | None, form: str, *, page: Path | None, full: bool = False) -> None:
    """Print the lineage of an artifact as text (short, or the `full` tree) or as JSON, or write a page."""
    lineage = trace(artifact, revision, cache_folder())
    if page:
        write_text(page, as_html(lineage))
        print(f"{page}: lineage of {lineage.artifact}")
    else:
        print(
            json.dumps(asdict(lineage), indent=2, ensure_ascii=False)
            if form == "json"
            else printable(as_text(lineage) if full else as_short_text(lineage))
        )


def trace(artifact: str, revision: str | None = None, cache: Path = Path(".dvc/cache")) -> Lineage:
    """The lineage of a model, a metric, or any out, in `revision` or in this working tree. Raises UserError if no stage made it."""
    commit = commit_of(revision or "HEAD")
    if revision:
        lock, source = lock_of(commit, revision), read_blob(commit, SOURCE)
        if lock is None:
            raise UserError(f"revision {revision}: its commit has no {LOCK}; commit it after a run, or omit --rev")
    else:
        lock, source = current_lock(), Path(SOURCE).read_text(encoding="utf-8") if Path(SOURCE).exists() else None
        if not Path(LOCK).exists():
            raise UserError(f"{LOCK}: not found; run retemper run first, or name a revision with --rev")
    makers = out_makers(lock)
    path = find(artifact, list(makers))
    stages = ancestors(lock, makers[path])
    objects = cache / "files" / "md5"
    code = Code(commit)
    records = makings.of_stages(cache, {name: lock[name] for name in stages})
    steps = tuple(replace(_step(name, lock, makers, code=code, cache=cache), making=records.get(name, {})) for name in stages)
    seen, corpus = _current(steps), corpus_of(lock)
    return Lineage(
        path,
        out_digests(lock)[path],
        commit if revision else "working tree",
        bool(revision) or is_committed(commit, LOCK),
        git("show", "-s", "--format=%cI", commit) if revision else "",
        sources_of(json.loads(source) if source else {}, lock, seen),
        recorded_json(lock, f"{corpus}/{STATS}", objects) if makers.get(corpus) in seen else {},
        recorded_json(lock, f"data/metrics/{Path(path).stem}.json", objects),
        steps,
    )


def find(artifact: str, outs: list[str]) -> str:
    """The out that `artifact` names: its path, a model's name, or the name of a system with metrics only (bm25)."""
    plain = artifact.rstrip("/").removeprefix("./")
    candidates = [plain, f"data/encoders/{plain}", f"data/metrics/{plain}.json", *(out for out in outs if plain.startswith(f"{out}/"))]
    for candidate in candidates:
        if candidate in outs:
            return candidate
    models = sorted(Path(out).name for out in outs if out.startswith("data/encoders/"))
    if _is_revision(artifact):
        raise UserError(f"{artifact}: found a revision, expected a model, metric or path; its own: retemper lineage MODEL --rev {artifact}")
    raise UserError(f"{artifact}: {LOCK} has no such model, metric or path; models: {', '.join(models) or 'none yet'}")


def _is_revision(name: str) -> bool:
    try:
        commit_of(name)
    except UserError:
        return False
    return True


def ancestors(lock: Lock, stage: str) -> list[str]:
    """`stage` and every stage that it needs, parents first."""
    needed: list[str] = []

    def visit(name: str) -> None:
        if name not in needed:
            for parent in parents(lock, name):
                visit(parent)
            needed.append(name)

    visit(stage)
    return needed


def sources_of(source: Mapping[str, Any], lock: Lock, stages: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The entries of data/source.json that `stages` read, by key (`dataset`, `encoders.e5`), without those that name no source.

    Entries whose digest is not the recorded one are left out: the stages read an earlier state of these sources.
    """
    read = {item for name in stages for item in tracked(SOURCE, lock[name]).items()}
    entries = dict[str, Mapping[str, Any]]()
    for kind, entry in source.items():
        entries |= {kind: entry} if "source" in entry else {f"{kind}.{name}": own for name, own in entry.items()}
    return {key: entry for key, entry in entries.items() if (f"{key}.digest", entry["digest"]) in read and entry["source"]}


def _current(steps: Sequence[Step]) -> list[str]:
    """The last of `steps`, and the stages before it whose outs on the way to it have not been replaced since."""
    by_name, current = {step.stage: step for step in steps}, [steps[-1].stage]
    for name in current:  # which grows
        makers = [maker for file in by_name[name].inputs if not file.note for maker in file.made_by.split(", ")]
        current += [maker for maker in dict.fromkeys(makers) if maker not in current]
    return current


def parents(lock: Lock, stage: str) -> list[str]:
    """The names of the stages that made what `stage` read: one of their outs is a dep, contains one, or is part of one."""
    wanted = [dep["path"] for dep in lock[stage].get("deps", [])]
    return sorted(
        name
        for name, entry in lock.items()
        if name != stage and any(overlap(out["path"], path) for out in entry.get("outs", []) for path in wanted)
    )


def recorded_json(lock: Lock, path: str, objects: Path) -> dict[str, Any]:
    """A JSON artifact by its digest in `lock`, from the cache or, if the digest matches, from the working tree; else empty."""
    digest = digest_of(out_digests(lock), path, objects)
    for file in (object_path(objects, digest), Path(path)) if digest else ():
        if file.is_file() and file_md5(file) == digest:
            value = json.loads(file.read_text(encoding="utf-8"))
            return value if isinstance(value, dict) else {}
    return {}


def _step(name: str, lock: Lock, makers: Mapping[str, str], *, code: Code, cache: Path) -> Step:
    entry = lock[name]
    inputs, code_files = [], []
    for dep in entry.get("deps", []):
        path, digest = str(dep["path"]), str(dep.get("md5", ""))
        stages = sorted({stage for out, stage in makers.items() if overlap(out, path)})
        if stages:
            recorded = digest_of(out_digests(lock), path, cache / "files" / "md5")
            stale = f"dvc.lock now has {recorded[:8]}" if recorded and recorded != digest else ""
            inputs.append(File(path, digest, ", ".join(stages), note=stale))
        else:
            commit = code.commit(path, digest)
            code_files.append(File(path, digest, commit=commit, note="" if commit else code.absence(limited=False)))
    outs = tuple(File(str(out["path"]), str(out.get("md5", "")), name) for out in entry.get("outs", []))
    for stage, digest in tracked(CODE, entry).items():
        commit = code.commit_of_stage(stage, digest)
        code_files.append(File(f"{PACKAGE}/{stage}", digest, commit=commit, note="" if commit else code.absence(limited=True)))
    for function, digest in frozen_references(dict(parameters(entry))).items():
        commit = code.commit_of_reference(function, digest)
        code_files.append(File(function, digest, commit=commit, note="" if commit else code.absence(limited=True)))
    source_params = {f"{SOURCE}: {key}": value for key, value in tracked(SOURCE, entry).items()}
    params = {**parameters(entry), **source_params}
    return Step(
        name, str(entry.get("cmd", "")), tuple(parents(lock, name)), params, tuple(inputs), tuple(code_files), outs, _cached(entry, cache)
    )


def _cached(entry: Mapping[str, Any], cache: Path) -> str:
    """When this run was added to the local run cache, by ending or by being fetched; empty if it is not there."""
    key = {"cmd": entry.get("cmd"), "deps": entry.get("deps", []), "outs": [out["path"] for out in entry.get("outs", [])]}
    key |= {"params": entry["params"]} if entry.get("params") else {}
    try:
        from dvc.utils import dict_sha256

        digest = dict_sha256(key, exclude=["size", "nfiles"])
        times = [path.stat().st_mtime for path in (cache / "runs" / digest[:2] / digest).iterdir()]
    except OSError:
        return ""
    return datetime.fromtimestamp(min(times), UTC).isoformat(timespec="seconds") if times else ""


def as_text(lineage: Lineage) -> str:
    """A tree: the artifact, its stage, what that stage read, and so on up to the source; each stage in full once."""
    return "\n".join([*_head(lineage), "", *_tree(lineage), ""]).rstrip()


def as_short_text(lineage: Lineage) -> str:
    """A few lines per stage, the last one first: what it made, its parameters, and what is stale or uncommitted."""
    revision = "" if lineage.revision == "working tree" else f" --rev {lineage.revision[:12]}"
    hint = f"commands, code, digests and files: retemper lineage {lineage.artifact.removeprefix('data/encoders/')}{revision} --all"
    return "\n".join([*_head(lineage, files=False), "", *_lines(lineage), "", hint])


def _lines(lineage: Lineage) -> Iterator[str]:
    for step in reversed(lineage.steps):  # last made first
        out = ", ".join(f"{Path(file.path).name} {file.digest[:8]}" for file in step.outs[:1])
        remarks = [
            *(f"code {note}" for note in dict.fromkeys(file.note for file in step.code) if note),
            *(f"{f.path}: {f.note}" for f in step.inputs if f.note),
        ]
        origin = f"  from {', '.join(step.parents)}" if step.parents else ""
        yield f"{step.stage}  {out}{origin}" + (f"  ({'; '.join(remarks)})" if remarks else "")
        if settings := _parameters(step.params):
            yield f"  {settings}"
        if step.making:
            yield f"  by {makings.describe(step.making)}"


def _parameters(params: Mapping[str, Any]) -> str:
    """`init warmup, lr 5e-05`: the fields of a stage's own sections; digests are elsewhere."""
    fields: list[tuple[str, Any]] = []
    for key, value in params.items():
        if ": " not in key:  # of data/source.json
            fields += effective(value).items() if isinstance(value, dict) else [(key, value)]
    return ", ".join(f"{key} {_bare_json(value)}" for key, value in fields)


def _bare_json(value: Any) -> str:
    """A value as JSON, but a string without quotes, unless it is empty or begins or ends with a blank."""
    bare = isinstance(value, str) and value != "" and value == value.strip()
    return str(value) if bare else json.dumps(value, ensure_ascii=False)


def _head(lineage: Lineage, files: bool = True) -> Iterator[str]:
    yield f"{lineage.artifact}  {lineage.digest}"
    date, uncommitted = f", {lineage.date}" if lineage.date else "", "" if lineage.committed else "; its dvc.lock is uncommitted"
    yield f"as of {lineage.revision}{date}{uncommitted}"
    if replaced := dict.fromkeys(file.path for step in lineage.steps for file in step.inputs if file.note):
        yield f"stale: made before {', '.join(replaced)} was replaced"
    for kind, entry in lineage.source.items():
        yield f"{kind}: {entry.get('source')}  sha256 {entry.get('digest')}"
        yield from (f"  {name} {version}" for name, version in entry.get("packages", {}).items())
        if files:
            yield from (f"  {name}  sha256 {digest}" for name, digest in entry.get("files", {}).items())
    if documents := lineage.rows.get("documents"):
        queries = ", ".join(f"{split} {value['queries']:,}" for split, value in lineage.rows.get("splits", {}).items())
        yield f"rows: {counted(documents['count'], 'documents')}; queries: {queries}"
    for split, values in lineage.metrics.items():
        yield f"{split}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items() if isinstance(value, float))


def _tree(lineage: Lineage) -> Iterator[str]:
    steps = {step.stage: step for step in lineage.steps}
    drawn: set[str] = set()

    def draw(name: str, lead: str) -> Iterator[str]:
        step = steps[name]
        if name in drawn:
            yield f"{lead}{name} (above)"
            return
        drawn.add(name)
        yield f"{lead}{name}{f'  in the cache since {step.cached}' if step.cached else ''}"
        below = f"{' ' * len(lead)}  "
        if step.making:
            yield f"{below}by       {makings.describe(step.making)}"
            yield f"{below}with     {makings.ran_with(step.making)}"
        yield f"{below}command  {step.command}"
        yield from (f"{below}made     {file.path}  {file.digest}" for file in step.outs)
        yield from (f"{below}param    {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in step.params.items())
        yield from (f"{below}code     {file.path}  {file.digest}  {file.commit[:10] or file.note}" for file in step.code)
        yield from (f"{below}read     {f.path}  {f.digest}  from {f.made_by}{f' ({f.note})' if f.note else ''}" for f in step.inputs)
        for parent in step.parents:
            yield from draw(parent, f"{below}└ ")

    yield from draw(lineage.steps[-1].stage, "")


def as_html(lineage: Lineage) -> str:
    """The same as a self-contained page, the artifact's own stage first."""
    title = f"Lineage of {lineage.artifact}"
    return Markup(
        '<!doctype html>\n<html lang="en">\n<head>\n{}\n</head>\n<body><main class="steps"><h1>{}</h1><pre>{}</pre>{}</main>'
        "</body>\n</html>\n"
    ).format(head(title), title, "\n".join(_head(lineage)), Markup("").join(map(_section, reversed(lineage.steps))))


def _section(step: Step) -> Markup:
    params = [Markup("{} = {}").format(key, json.dumps(value, ensure_ascii=False)) for key, value in step.params.items()]
    rows: dict[str, Sequence[str]] = {
        "by": [makings.describe(step.making), makings.ran_with(step.making)] if step.making else [step.cached],
        "made": [Markup("{} <code>{}</code>").format(f.path, f.digest[:8]) for f in step.outs],
        "read": [Markup("{} <code>{}</code> {} {}").format(f.path, f.digest[:8], f.made_by, f.note) for f in step.inputs],
        "parameters": params,
        "command": [step.command],
        "code": [Markup("{} <i>{}</i>").format(f.path, f.commit[:10] or f.note) for f in step.code],
    }
    entries = [Markup("<dt>{}</dt><dd>{}</dd>").format(term, Markup("<br>").join(lines)) for term, lines in rows.items() if any(lines)]
    return Markup('<section><h2>{}</h2><dl class="summary">{}</dl></section>').format(step.stage, Markup("").join(entries))
