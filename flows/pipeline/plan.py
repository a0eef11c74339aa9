"""What a run has to do: everything that is decided before the first stage runs, and without Prefect."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flows.pages import analyses
from flows.parameters.widths import refuse_unfit
from flows.pipeline.forecast import Forecast, lines, total_line
from flows.pipeline.reasons import reasons
from flows.process import locks
from flows.process.processes import Processes
from flows.repository import leftovers
from flows.repository.graph import DEFAULT_TARGET, Graph, read_graph, read_status, refuse_unmade
from flows.repository.lock import Lock, read_blob, read_lock
from flows.repository.project import dvc_errors, lock_is_readable, repository
from flows.storage import cache, forgettings, makings
from flows.storage.frozen import keep_graph
from flows.storage.patches import check_by_content, durably
from flows.team import remotes, sync
from tasks.core.errors import UserError
from tasks.core.params.runtime import read_runtime
from tasks.core.plurals import counted
from tasks.core.stage.frozen import freeze

GRAPH, LOCK = Path("dvc.yaml"), Path("dvc.lock")


@dataclass(frozen=True)
class Plan:
    """The stages that the targets need, and which of them DVC must look at: those that changed, and all that read from them."""

    graph: Graph
    changed: frozenset[str]
    remote: str | None  # the team's remote
    reached: bool  # whether it answered
    code: Path | None  # the frozen copy of the code that stages execute, if the project has its own code
    why: Mapping[str, list[str]] = field(default_factory=dict)  # what is new about a stage that must run (flows.pipeline.reasons)
    # By whom and at which commit, when the code was frozen (flows.storage.makings).
    provenance: Mapping[str, str] = field(default_factory=dict)
    costs: tuple[Forecast, ...] = ()  # of the changed stages, in topological order
    unasked: frozenset[str] = frozenset()  # of a dry run: changed stages that do not run if the remote has what dvc.lock names
    shown: Graph | None = None  # the stages that the pages show: those of `graph`, and all that the report needs

    def pages(self) -> Graph:
        """The stages that the pages show."""
        return self.shown or self.graph

    def changed_stages(self) -> list[tuple[str, list[str], tuple[str, ...]]]:
        """Name, reasons, and upstream stages of every stage that DVC must look at, in topological order."""
        return [(name, self.why.get(name, []), stage.upstream) for name, stage in self.graph.stages.items() if name in self.changed]

    def lines(self) -> list[str]:
        """The lines of a dry run: one per stage, then their sum, and what the remote may have."""
        if not self.changed:
            return ["0 stages may run: everything is up to date"]
        count, unasked = counted(len(self.changed_stages()), "stages"), len(self.unasked)
        output = lines(self.costs)
        output.append(f"{count} may run (fewer if outputs come out the same or are in the cache)")
        output.append(total_line(self.costs))
        if unasked:
            output.append(f"remote {self.remote} was not asked: if it has the files that dvc.lock names, {unasked} of these will not run")
        return output


def with_report(graph: Graph, full_graph: Graph) -> Graph:
    """`graph` plus the stages that the report needs, if the whole graph has a report."""
    return full_graph.upstream_of(full_graph.stages.keys() & {*graph.stages, DEFAULT_TARGET})


def with_analyses(graph: Graph) -> Graph:
    """`graph` plus the analyses in data/ that are up to date. A run makes analyses only if it names them."""
    made_stages = {f"analyses@{path.name}" for path in analyses.FOLDER.glob("*")} - graph.stages.keys()
    if not made_stages:
        return graph
    with dvc_errors(), repository() as repo:
        full_graph = read_graph(repo)
        needed = full_graph.upstream_of(made_stages & full_graph.stages.keys())
        changed = needed.downstream_of(read_status(repo, needed.stages))
    return full_graph.upstream_of([*graph.stages, *(made_stages & needed.stages.keys() - changed)])


def _without_cached(status: dict[str, list[Any]], lock: Lock) -> dict[str, list[Any]]:
    """`status` (see `read_status`) without the stages whose outs a run would only check out of the cache."""
    objects = cache.cache_folder() / "files/md5"
    cached = [name for name in sync.restorable(status, lock) if all(cache.contents(objects, oid) for oid, _ in cache.outs(lock[name]))]
    return {name: changes for name, changes in status.items() if name not in cached}


def check_parameters() -> None:
    """Check that the parameters and runtime.yaml are valid, and bring data/source.json up to date."""
    from flows.parameters.checks import check_file
    from flows.parameters.sources import KEEP_SOURCE, write_source
    from flows.repository.worktree import SECOND

    check_file(compared=SECOND not in os.environ)
    read_runtime()
    write_source(keep=KEEP_SOURCE in os.environ)


def _restore_lock() -> str:
    committed, staged = (partial(read_blob, revision, str(LOCK)) for revision in ("HEAD", ""))  # "": git's index
    return locks.restore(lock_is_readable, committed=committed, staged=staged)


def make_plan(
    targets: Sequence[str],
    processes: Processes,
    warn: Callable[[str], None],
    *,
    check: Callable[[], None] = check_parameters,
    dry: bool = False,
) -> Plan:
    """Check, repair, clean up, pull what others computed, and ask DVC once what changed. `dry`: delete and pull nothing."""
    check()
    code = freeze()
    if not dry:
        keep_graph()
    provenance = {} if dry else makings.current_provenance()
    locks.repair()
    if not dry and (message := _restore_lock()):
        warn(f"{LOCK} {message}")
    check_by_content()
    durably()
    with dvc_errors(), repository() as repo:
        if getattr(repo.scm, "no_commits", False):  # DVCLive asks git for the commit that a training belongs to
            raise UserError(f"{Path.cwd()}: no commit in its git repository, expected one; run git add . && git commit -m start")
        full_graph = read_graph(repo)
        graph = full_graph.upstream_of(full_graph.resolve(targets or [DEFAULT_TARGET]))
        shown = with_report(graph, full_graph)
        if not dry:
            locks.remember()
            leftovers.remove([out for stage in full_graph.stages.values() for out in stage.outs], warn)
        status = read_status(repo, graph.stages)
        if status and not dry:
            remotes.refuse_unmounted(cache.cache_folder())  # first: what is pulled would lie beneath the mount point
        if not dry and (uncached := cache.uncached(status)) and cache.restore_from_workspace(repo, uncached, warn):
            status = read_status(repo, graph.stages)
        refuse_unmade(repo, graph.downstream_of(status))
        remote = sync.remote_name(repo)
        reached, missing, lock = False, list[str](), read_lock() if status else {}
        if status and not dry:
            missing = sync.restorable(status, lock)
            if remote:
                reached = sync.pull(processes, remote, missing, warn=warn)
            elif missing:
                sync.restore(processes, missing)
            if missing and (reached or not remote):
                status = read_status(repo, graph.stages)  # of the graph as it was before, whatever was edited meanwhile
    if dry:
        status = _without_cached(status, lock)
    changed = graph.downstream_of(status)
    refuse_unfit([name for name in graph.stages if name in changed])
    unrestored = graph.stages.keys() & lock.keys() - (set(missing) if reached else set())
    for line in forgettings.explain_missing(cache.cache_folder(), {name: lock[name] for name in graph.stages if name in unrestored}):
        warn(line)
    why = reasons(status, graph) if dry else {}
    restorable = set(sync.restorable(status, lock)) if dry and remote else set()
    unasked = changed - graph.downstream_of(status.keys() - restorable)
    return Plan(graph, changed, remote, reached, code, why=why, provenance=provenance, shown=shown, unasked=unasked)
