"""Read dvc.lock from git, at any revision, branch, tag, or experiment, and from working trees."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows.process.locks import BEFORE
from flows.repository.git import git
from tasks.core.errors import UserError
from tasks.core.params.safe_yaml import parse_yaml, refuse_bomb
from tasks.core.params.sections import FROZEN

LOCK = "dvc.lock"
TO_COMMIT = f"commit {LOCK}, params.yaml, and data/source.json after retemper run"  # where a commit has no results
GRAPH = ("dvc.yaml", "params.yaml")  # which say what stages there are

Lock = Mapping[str, Mapping[str, Any]]  # from a stage's name to its entry: cmd, deps, params, outs


def entry_digest(entry: Mapping[str, Any]) -> str:
    """The digest of a stage's entry in dvc.lock: command, parameters, inputs and outs."""
    return hashlib.sha256(json.dumps(entry, sort_keys=True, default=str).encode()).hexdigest()


def out_digests(lock: Lock) -> dict[str, str]:
    """The digest of every out, by its path; empty if DVC has recorded none."""
    return {str(out["path"]): str(out.get("md5") or "") for entry in lock.values() for out in entry.get("outs") or []}


def out_makers(lock: Lock) -> dict[str, str]:
    """The stage that makes every out, by the out's path."""
    return {str(out["path"]): stage for stage, entry in lock.items() for out in entry.get("outs") or []}


def overlap(path: str, other: str) -> bool:
    """Whether two paths are the same, or one is in the other."""
    return path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/")


def commit_of(revision: str) -> str:
    """The full id of the commit of a revision, or of an experiment by its bare name. UserError if git has no such revision."""
    commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", check=False)
    if not commit:
        experiments = [ref for ref in references() if ref.startswith("refs/exps/") and ref.endswith(f"/{revision}")]
        commit = git("rev-parse", f"{experiments[-1]}^{{commit}}") if experiments else ""
    if not commit:
        raise UserError(f"revision {revision}: not found in git, expected a commit, branch, tag or experiment; try git fetch")
    return commit


def references(folder: Path | None = None) -> list[str]:
    """The full names of all branches (including remote ones), tags, experiments, and the stash."""
    return git("for-each-ref", "--format=%(refname)", folder=folder).splitlines()


def read_blob(commit: str, path: str, folder: Path | None = None) -> str | None:
    """The content of a text file in a commit, or in git's index (""); None if it is not there.

    GitFailed if git fails; UserError if the file is not UTF-8.
    """
    name = f"{commit}:./{path}"
    header, _, text = git("cat-file", "--batch", folder=folder, text=f"{name}\n").partition("\n")
    if header.endswith(" missing"):
        name_of = partial(git, "rev-parse", "--verify", "--quiet", folder=folder, check=False)
        known = name_of(commit)  # empty: HEAD before the first commit, or git's index
        if git("ls-tree", known, "--", path, folder=folder) if known else name_of(name):  # ls-tree fails if the commit is lost
            git("cat-file", "blob", name, folder=folder)  # so does this: the file is there, but its object is missing or corrupt
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{path} of commit {commit[:10]}: not UTF-8; save it as UTF-8 and commit it") from None
    return text


def parse_lock(text: str, where: str) -> Lock:
    """The stages of a dvc.lock, by name. UserError if it is invalid, or a YAML bomb."""
    try:
        refuse_bomb(text)
        value = YAML(typ="safe").load(text) or {}
        return dict(value.get("stages") or {})
    except (YAMLError, AttributeError) as error:
        raise UserError(f"{where}: invalid dvc.lock ({' '.join(str(error).split())[:100]}); git checkout it, or run retemper run") from None


def read_lock(path: Path = Path(LOCK)) -> Lock:
    """The dvc.lock of a working tree; empty if it does not exist yet. UserError if it is invalid, or emptied by a kill.

    The copy from before a project's first run is empty.
    """
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    if path.name == LOCK and path.parts[-2:] != BEFORE.parts and text.strip() in ("", "{}"):
        raise UserError(f"{path}: found no stages in it, expected those of the last run; git checkout it, or run retemper run")
    return parse_lock(text, str(path))


def current_lock() -> Lock:
    """The stages of the working tree's dvc.lock that its graph still has."""
    return stages_in_graph(read_lock(), *read_graph())


def read_graph(tree: Path = Path()) -> tuple[str | None, str | None]:
    """The texts of dvc.yaml and params.yaml in a working tree, None for a missing one, as `stages_in_graph` takes them."""
    graph, params = ((tree / name).read_text(encoding="utf-8") if (tree / name).exists() else None for name in GRAPH)
    return graph, params


def mapping_at(commit: str, path: str, folder: Path | None = None) -> Mapping[str, Any]:
    """A YAML file of a commit, such as params.yaml; empty if the commit lacks it. UserError if it is no mapping."""
    return _mapping(path, read_blob(commit, path, folder) or "")


def lock_of(commit: str, where: str, folder: Path | None = None) -> Lock | None:
    """The stages in a commit's dvc.lock that its graph still has; None if it has no dvc.lock. `where`: the commit's name in errors."""
    text, graph, params = (read_blob(commit, name, folder) for name in (LOCK, *GRAPH))
    return None if text is None else stages_in_graph(parse_lock(text, f"{where}:{LOCK}"), graph, params)


def stages_in_graph(lock: Lock, graph: str | None, params: str | None) -> Lock:
    """The stages of a dvc.lock that dvc.yaml and params.yaml (given as text) still have. DVC keeps the stages of removed rounds in it.

    All stages if there is no dvc.yaml. UserError if either file is not YAML.
    """
    if graph is None:
        return lock
    stages, sections = _mapping("dvc.yaml", graph).get("stages") or {}, _mapping("params.yaml", params or "")

    def belongs(name: str) -> bool:
        stage, at, key = name.partition("@")
        if not at or stage not in stages:
            return stage in stages
        keys = _foreach_keys(stages[stage]["foreach"], sections) if "foreach" in stages[stage] else None
        return ("foreach" in stages[stage] or "matrix" in stages[stage]) and (keys is None or key in keys)

    return {name: entry for name, entry in lock.items() if belongs(name)}


def _foreach_keys(foreach: Any, sections: Mapping[str, Any]) -> set[str] | None:
    """The keys that DVC makes from a stage's foreach: ${rounds}, or ${own.names} in a graph that a team has extended.

    None if they are unknown, as where they are of another file than params.yaml, or are no plain strings and whole numbers.
    """
    keys = foreach
    if isinstance(foreach, str):
        keys = sections
        for part in foreach.strip("${}").split("."):
            if not isinstance(keys, Mapping) or part not in keys:
                return None
            keys = keys[part]
    is_known = isinstance(keys, Mapping | list) and all(type(key) in (str, int) and "${" not in str(key) for key in keys)
    return set(map(str, keys)) if is_known else None


def _mapping(name: str, text: str) -> Mapping[str, Any]:
    try:
        value = parse_yaml(text) or {}
    except YAMLError as error:
        raise UserError(f"{name}: not YAML ({' '.join(str(error).split())[:100]}); fix that line") from None
    if not isinstance(value, Mapping):
        raise UserError(f"{name}: found a {type(value).__name__}, expected a mapping of sections")
    return value


def parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of an entry, by dotted key: from data/params.json, or from params.yaml, which stages tracked before version 0.2."""
    return tracked("params.yaml", entry) | tracked(FROZEN, entry)


def tracked(file: Path | str, *entries: Mapping[str, Any]) -> dict[str, Any]:
    """The values that these entries tracked in a parameter file, by key; where two differ, the last one."""
    return {key: value for entry in entries for key, value in ((entry.get("params") or {}).get(str(file)) or {}).items()}


def corpus_of(lock: Mapping[str, Mapping[str, Any]]) -> str:
    """The corpus folder with the queries that systems answer: data/corpus, or data/pseudo if stage tokenize reads that."""
    dep_paths = {dep["path"] for dep in lock.get("tokenize", {}).get("deps", [])}
    return "data/pseudo" if "data/pseudo" in dep_paths else "data/corpus"


def locks_of_references(folder: Path | None = None, *, invalid: bool = True) -> Iterator[tuple[str, list[Lock]]]:
    """For each reference, each stash, and the HEAD of each working tree: all dvc.lock and .dvc files in the project and below it.

    Equal files are read once. UserError if one is invalid; with `invalid` false, it counts as empty instead.
    """
    by_blob: dict[str, Lock] = {}
    trees: dict[str, list[Lock]] = {}
    stashed = git("rev-list", "--walk-reflogs", "refs/stash", folder=folder, check=False).splitlines()  # only the latest has a reference
    stashed = [f"{stash}{part}" for stash in stashed for part in ("", "^2", "^3")]  # its index, and with `git stash -u` its new files
    for name in [*references(folder), *stashed, "HEAD", *(f"worktree {tree}" for tree in worktrees(folder))]:
        where = Path(name.removeprefix("worktree ")) if name.startswith("worktree ") else folder
        revision = "HEAD" if name.startswith("worktree ") else name
        tree = git("rev-parse", "--verify", "--quiet", f"{revision}:./", folder=where, check=False)
        if tree and tree not in trees:
            trees[tree] = []
            for line in filter(None, git("ls-tree", "-r", "-z", "--full-tree", tree, folder=where).split("\0")):
                (mode, _, blob), path = line.partition("\t")[0].split(), line.partition("\t")[2]
                if mode.startswith("100") and is_dvc_file(path):
                    if blob not in by_blob:
                        try:
                            by_blob[blob] = parse_dvc_file(git("cat-file", "blob", blob, folder=where), f"{name}:{path}")
                        except UserError:
                            if invalid:
                                raise
                            by_blob[blob] = {}
                    trees[tree].append(by_blob[blob])
        yield name, trees.get(tree, [])


def is_dvc_file(path: str) -> bool:
    """Whether a file with this name lists objects in the cache: a dvc.lock or a .dvc file."""
    return path.endswith(".dvc") or path.rpartition("/")[2] == LOCK


def dvc_files(tree: Path) -> list[Path]:
    """The dvc.lock and .dvc files of a working tree, committed or not."""
    names = git("ls-files", "-z", "-co", "--exclude-standard", folder=tree).split("\0")
    return [tree / name for name in names if is_dvc_file(name) and (tree / name).is_file()]


def parse_dvc_file(text: str, where: str) -> Lock:
    """The stages of a dvc.lock. A .dvc file, made by `dvc add`, counts as one stage."""
    if not where.endswith(".dvc"):
        return parse_lock(text, where)
    try:
        refuse_bomb(text)
        return {where: {"outs": (YAML(typ="safe").load(text) or {}).get("outs") or []}}
    except (YAMLError, AttributeError) as error:
        raise UserError(f"{where}: invalid .dvc file ({' '.join(str(error).split())[:100]}); git checkout it") from None


def worktrees(folder: Path | None = None, *, all_known: bool = False) -> list[Path]:
    """The project's folder in every working tree of the repository that still exists, the main one first, and `folder`'s own always.

    Where git's folder is not in the main tree, git lists that folder in its place: in a submodule, and after `git init
    --separate-git-dir`. From other trees of the latter, the main one is unknown. With `all_known`, that is a UserError, as is a tree that
    git lists but that is missing, on a drive that is not mounted for instance. Trees that killed commands had in .retemper may be missing.
    """
    words = ("--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir", "--show-prefix")
    top, own, common, prefix = git("rev-parse", *words, folder=folder).split("\n")
    entries = [entry.splitlines() for entry in git("worktree", "list", "--porcelain", folder=folder).split("\n\n")]
    main, *others = [Path(entry[0].removeprefix("worktree ")) for entry in entries]
    if main.resolve() == Path(common) and "bare" not in entries[0]:
        main = Path(top) if own == common else Path(common, git("config", "core.worktree", folder=folder, check=False))  # of a submodule
        if main == Path(common) and all_known:
            raise UserError(f"{top}: git does not know the main working tree of {common}; run this there")
    if all_known and (missing := [tree for tree in others if not (tree / ".git").exists() and ".retemper" not in tree.parts]):
        raise UserError(
            f"{missing[0]}: git lists this working tree, but it is missing, so what it needs is unknown; mount its drive, or run git "
            "worktree prune if it is gone"
        )
    trees = dict.fromkeys((tree / prefix).resolve() for tree in (main, *others, Path(top)))
    return [tree for tree in trees if (tree / ".dvc").is_dir()]


def is_committed(commit: str, path: str) -> bool:
    """Whether a file in the working tree equals the one in `commit`."""
    text, file = read_blob(commit, path), Path(path)
    return text is not None and file.exists() and file.read_bytes() == text.encode()
