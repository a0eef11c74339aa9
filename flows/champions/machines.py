"""What several machines share: the branch and the tags, in a git remote. No push is forced, and no record is lost.

If two machines retrained at once, the one whose push is rejected takes over what the other recorded (`settle`). Its own records
follow on the branch. A champion that it crowned without knowing the other's is superseded: its record says so, its tag is kept as
`superseded/champion-N-DIGEST`, and the next retraining is compared with the current champion. A model crowned by hand stays crowned,
under the next number.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.champions import champion, history
from flows.champions.champion import Champion
from flows.champions.tree import BRANCH, RECORD, SUPERSEDED, ZERO, is_ancestor, move, records, remote_of, resolve
from flows.repository.git import NOBODY, GitFailed, git
from flows.repository.tags import TAGS, prefix_of, refuse_other_projects
from tasks.core.errors import UserError

ASK_SECONDS, SEND_SECONDS = 60, 300  # to a git remote, at most
TRIES = 5  # pushes, if others push at the same time
NO_ATOMIC = "does not support --atomic"


@dataclass(frozen=True)
class Met:
    """The result of a fetch or push. `problem`: the remote is unavailable; `merged`: how two histories were merged; each a line or None.

    `again`: a promotion from here is superseded, so the comparison should be made again.
    """

    problem: str | None = None
    merged: str | None = None
    again: bool = False


def fetch(project: Path) -> Met:
    """Take over what other machines have added to the branch and the tags; settle if both sides have added something.

    The caller holds the lock of retrainings, or does nothing that depends on the branch. Raises GitFailed if another process moved it,
    UserError if both sides have added something and another project of the repository has champions.
    """
    return _meet_remote(project, partial(settle, project))


def peek(project: Path) -> str | None:
    """`fetch` for a caller that only reads champions: if both sides have added something, move nothing. Return one line, or None."""
    message = "another machine crowned a champion or retrained at the same time, and both differ; the next retraining settles it"
    return _meet_remote(project, lambda *_: Met(f"git remote {remote_of(project)}: {message}")).problem


def _meet_remote(project: Path, on_divergence: Callable[[Mapping[str, str], Mapping[str, str]], Met]) -> Met:
    remote = remote_of(project)
    if not remote:
        return Met()
    try:
        local_refs, remote_refs = _refs(project), _fetch_references(project, remote)
    except GitFailed as error:
        return Met(f"git remote {remote}: cannot be asked for other machines' champions: {_without_address(error)}")
    if have_diverged(project, local_refs, remote_refs):
        return on_divergence(local_refs, remote_refs)
    behind = BRANCH in remote_refs and not (BRANCH in local_refs and is_ancestor(project, remote_refs[BRANCH], local_refs[BRANCH]))
    new = [name for name, digest in remote_refs.items() if local_refs.get(name) != digest and (name != BRANCH or behind)]
    if new:
        move(project, [f"update {name} {remote_refs[name]} {local_refs.get(name, ZERO)}" for name in new])
    return Met()


def push(project: Path, later: str = "the next retraining tries again") -> Met:
    """Push branch and tags to the git remote, all or none. If another machine was first, settle and push the result.

    `later`: what a problem's line says about how they get there.
    """
    remote, met = remote_of(project), Met()
    if not (remote and _refs(project)):
        return met
    for tries_left in reversed(range(TRIES)):
        remote_refs: dict[str, str] = {}
        try:
            local_refs, remote_refs = _refs(project), _fetch_references(project, remote)
            if have_diverged(project, local_refs, remote_refs):
                met = _combine(met, settle(project, local_refs, remote_refs))
                local_refs = _refs(project)
            ahead = [name for name, digest in local_refs.items() if remote_refs.get(name) != digest]
            if BRANCH in ahead and BRANCH in remote_refs and is_ancestor(project, local_refs[BRANCH], remote_refs[BRANCH]):
                ahead.remove(BRANCH)  # the next fetch takes over what is new there
            if ahead:
                _send(project, remote, ahead)
            return met
        except GitFailed as error:
            if not tries_left or not _moved(project, remote, remote_refs):
                problem = f"git remote {remote}: branch and tags are not pushed ({_without_address(error)}); {later}"
                return replace(met, problem=problem)
        except UserError as error:
            return replace(met, problem=f"git remote {remote}: branch and tags are not pushed: {error}")
    return met


def _combine(first: Met, second: Met) -> Met:
    return Met(None, second.merged if not first.merged else f"{first.merged}; {second.merged}", first.again or second.again)


def have_diverged(project: Path, local_refs: Mapping[str, str], remote_refs: Mapping[str, str]) -> bool:
    """Whether both sides have what the other lacks: commits on the branch, or another tag of the same name."""
    if any(local_refs[name] != digest for name, digest in remote_refs.items() if name in local_refs and name != BRANCH):
        return True
    ours, theirs = local_refs.get(BRANCH), remote_refs.get(BRANCH)
    return bool(ours and theirs and not is_ancestor(project, ours, theirs) and not is_ancestor(project, theirs, ours))


def settle(project: Path, local_refs: Mapping[str, str], remote_refs: Mapping[str, str]) -> Met:
    """Append what only this side has to what the other side has, in one transaction. The objects of `remote_refs` have been received.

    Raises UserError if another project of the repository has champions, here or there.
    """
    refuse_other_projects(project, {digest for name, digest in remote_refs.items() if name.startswith(TAGS)} - set(local_refs.values()))
    champions = {f"{TAGS}{crowned.number}": crowned for crowned in champion.read_champions(project)}
    clash = any(local_refs[name] != digest for name, digest in remote_refs.items() if name in local_refs and name.startswith(TAGS))
    ours = [crowned for name, crowned in champions.items() if remote_refs.get(name) != local_refs[name]] if clash else []
    lost = _superseded(ours)
    latest = _latest(remote_refs)
    kept = [crowned.number for crowned in ours if crowned.number not in lost]
    new_numbers = {old: latest + place for place, old in enumerate(kept, 1)}
    tip, undone = _replayed(project, local_refs.get(BRANCH), remote_refs, lost=lost, new_numbers=new_numbers)
    new_refs = {name: digest for name, digest in remote_refs.items() if name != BRANCH}
    # Tags of ours that the remote lacks are deleted, unless their number is reused.
    new_refs |= {f"{TAGS}{crowned.number}": "" for crowned in ours if f"{TAGS}{crowned.number}" not in remote_refs}
    for crowned in ours:
        if crowned.number in lost:
            digest = local_refs[f"{TAGS}{crowned.number}"]
            new_refs[f"{SUPERSEDED}champion-{crowned.number}-{digest[:10]}"] = digest
        else:
            number = new_numbers[crowned.number]
            # After a superseded champion, it follows `latest` now: the old number may be another champion's.
            previous = latest if crowned.previous in lost else new_numbers.get(crowned.previous or 0, crowned.previous)
            renumbered = replace(crowned, number=number, replaced=number - 1 or None, previous=previous)
            new_refs[f"{TAGS}{number}"] = champion.tag_object(project, renumbered)
    if tip:
        new_refs[BRANCH] = tip
    updates = list[str]()
    for name in sorted(new_refs, key=lambda name: (not name.startswith(SUPERSEDED), name != BRANCH)):  # a kill leaves the first ones done
        if (digest := new_refs[name]) != local_refs.get(name, ""):
            updates.append(f"update {name} {digest} {local_refs.get(name, ZERO)}" if digest else f"delete {name} {local_refs[name]}")
    if updates:
        move(project, updates)
    models = {crowned.number: crowned.model for crowned in ours if crowned.number in lost} | undone
    return Met(None, _describe_superseded(models, new_numbers=new_numbers, latest=latest), bool(models))


def _superseded(ours: Sequence[Champion]) -> set[int]:
    """Numbers of our champions that a retraining crowned, and of rollbacks that only undid one of these."""
    lost: set[int] = set()
    for crowned in ours:
        if crowned.cause not in ("set", "rollback") or (crowned.cause == "rollback" and crowned.replaced in lost):
            lost.add(crowned.number)
    return lost


def _replayed(
    project: Path, ours: str | None, remote_refs: Mapping[str, str], *, lost: set[int], new_numbers: Mapping[int, int]
) -> tuple[str | None, dict[int, str]]:
    """The branch's new tip: each commit that only we have is made again on top of theirs. Its second parent keeps the former commit.

    Also the model, by number, of each promotion of ours whose tag was replaced with theirs by `git fetch --tags --force`: it is superseded
    like those of `lost`. `new_numbers`: of our other champions, by the former number.
    """
    theirs = remote_refs.get(BRANCH)
    if not ours or (theirs and is_ancestor(project, ours, theirs)):
        return theirs, {}
    if not (lost or new_numbers) and (not theirs or is_ancestor(project, theirs, ours)):
        return ours, {}
    latest = _latest(remote_refs) or None
    tip, undone = theirs, dict[int, str]()
    span = [ours, *([f"^{theirs}"] if theirs else [])]
    for commit in records(project, *span):
        outcome = _numbered_as_here(project, commit, new_numbers)
        tag = remote_refs.get(f"{TAGS}{outcome.champion}") if outcome else None
        if outcome and outcome.result == "superseded":
            pass  # by a merge that was killed before it had moved all references
        elif outcome and outcome.result == "promoted" and (outcome.champion in lost or (tag and not is_ancestor(project, tag, commit))):
            if outcome.champion and outcome.champion not in lost:
                undone[outcome.champion] = outcome.candidate or "unknown"
            reason = (
                f"{outcome.reason}; superseded: another machine had crowned champion/{latest} by then, so the next retraining decides again"
            )
            outcome = replace(outcome, result="superseded", reason=reason, champion=latest)
        elif outcome and outcome.champion in {*lost, *undone}:
            reason = f"{outcome.reason}; that champion/{outcome.champion} is superseded by another machine's champion/{latest}"
            outcome = replace(outcome, reason=reason, champion=None)  # so the next retraining does not take it for the same again
        elif outcome and (number := new_numbers.get(outcome.champion or 0)):
            outcome = replace(outcome, champion=number)
        content = _with_record(project, commit, outcome) if outcome else git("rev-parse", f"{commit}^{{tree}}", folder=project)
        message = git("log", "-1", "--format=%B", commit, folder=project)
        parents = [word for parent in (tip, commit) if parent for word in ("-p", parent)]
        tip = git("commit-tree", content, *parents, text=message, folder=project, env=NOBODY)
    return tip, undone


def _numbered_as_here(project: Path, commit: str, new_numbers: Mapping[int, int]) -> history.Ended | None:
    """The record of a commit. If a merge that was killed before it moved the tags has renumbered its champion: with the former number."""
    outcome = history.read_outcome(project, commit)
    if outcome and outcome.champion and resolve(project, f"{commit}^2"):
        before = _numbered_as_here(project, f"{commit}^2", new_numbers)
        if before and before.id == outcome.id and before.champion in new_numbers:
            return replace(outcome, champion=before.champion)
    return outcome


def _latest(remote_refs: Mapping[str, str]) -> int:
    """The number of the remote's last champion; 0 without one."""
    return max((int(digits) for name in remote_refs if (digits := name.removeprefix(TAGS)).isdigit()), default=0)


def _with_record(project: Path, commit: str, outcome: history.Ended) -> str:
    """The tree of a commit with another record in it."""
    record = json.dumps(asdict(replace(outcome, commit=None)), indent=1, ensure_ascii=False) + "\n"
    blob = git("hash-object", "-w", "--stdin", text=record, folder=project)
    path = prefix_of(project) + RECORD
    with TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git("read-tree", commit, folder=project, env=index)
        git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", folder=project, env=index)
        return git("write-tree", folder=project, env=index)


def _describe_superseded(models: Mapping[int, str], *, new_numbers: Mapping[int, int], latest: int) -> str:
    """One line. `models`: those of the superseded champions, by number."""
    parts = [
        f"champion/{number} of this machine ({model}) is superseded by another machine's champion/{latest}"
        for number, model in models.items()
    ]
    parts += [f"champion/{old}, set by hand, is champion/{new} now" for old, new in new_numbers.items()]
    return "another machine crowned a champion or retrained at the same time, and its records come first: " + (
        "; ".join(parts) or "those of this machine follow"
    )


def _refs(project: Path) -> dict[str, str]:
    """By name, the digests of the branch and of all champions' tags here, also superseded ones."""
    names = (BRANCH, TAGS.rstrip("/"), SUPERSEDED.rstrip("/"))
    listed = git("for-each-ref", "--format=%(refname) %(objectname)", *names, folder=project)
    return dict(line.split() for line in listed.splitlines())


def _refs_of(project: Path, remote: str) -> dict[str, str]:
    listed = git("ls-remote", "--refs", remote, BRANCH, f"{TAGS}*", f"{SUPERSEDED}*", timeout=ASK_SECONDS, folder=project)
    return {name: digest for digest, name in (line.split("\t") for line in listed.splitlines())}


def _fetch_references(project: Path, remote: str) -> dict[str, str]:
    """Fetch the remote's objects without moving a reference of ours; return its references."""
    local_refs, remote_refs = _refs(project), _refs_of(project, remote)
    if new := [name for name, digest in remote_refs.items() if local_refs.get(name) != digest]:
        git("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", remote, *new, timeout=SEND_SECONDS, folder=project)
    return remote_refs


def _send(project: Path, remote: str, names: Sequence[str]) -> None:
    """Push all of `names` or none; one after another if the remote's server cannot do that."""
    command = ["push", "--quiet", "--no-verify"]
    try:
        git(*command, "--atomic", remote, *names, timeout=SEND_SECONDS, folder=project)
    except GitFailed as error:
        if NO_ATOMIC not in str(error):
            raise
        git(*command, remote, *names, timeout=SEND_SECONDS, folder=project)


def _moved(project: Path, remote: str, remote_refs: Mapping[str, str]) -> bool:
    """Whether the remote's references have changed since we saw them."""
    try:
        return _refs_of(project, remote) != remote_refs
    except GitFailed:
        return False


def _without_address(error: GitFailed) -> str:
    return " ".join("(address)" if "://" in word or "@" in word else word for word in str(error).split())
