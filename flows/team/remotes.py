"""What a team shares: a remote (`retemper remote`), or one cache folder on one machine (`retemper cache share`)."""

import getpass
import json
import os
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.process.display import megabytes
from flows.repository.git import git
from flows.repository.lock import read_lock, worktrees
from flows.repository.project import edit_settings, repository
from flows.storage import forgettings, makings
from flows.storage.cache import cache_of, intact_path, object_id, object_path, objects
from flows.storage.dvc import PROJECTS, PUSHED, earlier_results, objects_of
from flows.storage.remote import write_mark
from flows.team.sync import remedy
from tasks.core.errors import DiskError, UserError
from tasks.core.files import file_digest, new_file, write_text
from tasks.core.plurals import counted
from tasks.core.sources.datasets import local_path

CONFIG, LOCAL_CONFIG = Path(".dvc/config"), Path(".dvc/config.local")  # committed, and this clone's own
SECRET = ("password", "passphrase", "token", "key", "secret", "credential", "connection_string", "keyfile", "user", "profile")
NAME = re.compile(r"[a-z0-9_-]+")
LINKS = ["reflink", "hardlink", "symlink", "copy"]
PATIENCE = {"s3": {"connect_timeout": 10, "read_timeout": 30}, "ssh": {"timeout": 15}}


def add(name: str, url: str, options: Sequence[str]) -> str:
    """Check that `url` can be written and read, and make it this project's remote `name`; return a summary.

    `options` are DVC's remote options, `key=value`; for the value `-`, the user is asked. Secrets go to .dvc/config.local, which git
    ignores. The remote gets its mark (`flows.storage.remote`); without one, runs treat it as unavailable. Raises UserError, with nothing
    changed, if the remote is unavailable or refuses access.
    """
    name = name.lower()  # as DVC reads the names of remotes
    if not NAME.fullmatch(name):
        raise UserError(f"remote {name!r}: expected a name of letters, digits, _ and -; choose another")
    scheme, values = _scheme(url), dict(_option(option) for option in options)
    if scheme in ("http", "https"):
        raise UserError(
            f"remote {name}: found an HTTP remote, which cannot list what it holds, so no run could take anything from it; "
            "expected a folder, s3://, ssh:// or another URL"
        )
    if scheme == "":
        url = str(_folder(url))
    secrets = {key: value for key, value in values.items() if any(word in key for word in SECRET)}
    plain = {key: value for key, value in values.items() if key not in secrets}
    plain |= {"shared": "group"} if scheme == "" else {}
    with _undone_unless_kept():
        _write(name, {"url": url, "verify": "true", **plain}, secrets)
        probe(name, scheme)
    PUSHED.unlink(missing_ok=True)  # the next run checks what is there: this may be a new remote in the place of an old one
    hidden = f"; {', '.join(sorted(secrets))} in {LOCAL_CONFIG}, which git ignores" if secrets else ""
    summary = f"remote {name}: {url} can be written and read{hidden}. For the team: git commit {CONFIG} -m 'Remote {name}'"
    return "\n".join([summary, *_to_send()])


def _to_send() -> Iterator[str]:
    """A line on what the first push sends, if anything."""
    oids: set[str] = set()
    with repository() as repo:
        root = Path(repo.cache.local_cache_dir)
    with suppress(UserError):  # dvc.lock is invalid; the next run reports it
        oids = objects_of(root, [*earlier_results(root), *read_lock().values()])
    size = sum(object_path(root / "files" / "md5", oid).stat().st_size for oid in oids)
    if oids:
        yield (
            f"the next run sends what was computed here before: {counted(len(oids), 'files')}, {megabytes(size)} MB, except what is "
            "there already; to send only what a branch, tag or working tree needs, first: retemper gc --unsent"
        )


def remotes() -> list[tuple[str, str, bool]]:
    """For every remote: its name, its URL, and whether runs use it."""
    with repository() as repo:
        default = repo.config["core"].get("remote")
        return [(name, str(remote["url"]), name == default) for name, remote in repo.config["remote"].items()]


def remove(name: str) -> None:
    """Remove a remote and its secrets from the settings; its content stays. Raises UserError if there is no remote of that name."""
    name = name.lower()
    known = [known for known, _, _ in remotes()]
    if name not in known:
        raise UserError(f"{CONFIG}: no remote {name}, expected one of {', '.join(known) or 'none'}; add it with retemper remote add")
    with repository() as repo:
        for level in ("local", "repo"):
            with edit_settings(repo.config, level) as config:
                config["remote"].pop(name, None)
                if str(config["core"].get("remote")).lower() == name:
                    del config["core"]["remote"]


def probe(name: str, scheme: str) -> None:
    """Write a file to a remote, read it and delete it; then mark the remote.

    Raises UserError, in one line and without any secret, if that fails.
    """
    from dvc.fs import RemoteMissingDepsError, get_cloud_fs

    content = uuid.uuid4().hex.encode()
    try:
        with repository() as repo:
            kind, config, place = get_cloud_fs(repo.config, name=name)
            fs = kind(**{**config, **{key: config.get(key, value) for key, value in PATIENCE.get(scheme, {}).items()}})
            file = fs.join(place, f"probe-{content.decode()}")
            if scheme == "":
                Path(place).mkdir(exist_ok=True)  # not its parents: if a share is not mounted, we would write to the disk beneath it
                open_to_group(Path(place))
            fs.pipe_file(file, content)
            try:
                if fs.cat_file(file) != content:
                    raise UserError(f"remote {name}: the bytes read are not the bytes written; check that it stores files unchanged")
            finally:
                fs.remove(file)
            write_mark(fs, place)
    except (RemoteMissingDepsError, ImportError):
        raise UserError(f"remote {name}: {scheme}:// needs DVC's plug-in; pip install 'dvc[{scheme}]', then try again") from None
    except UserError:
        raise
    except Exception as error:  # from DVC, the disk, or any library that talks to remotes
        fix = remedy(name, _reason(error))
        raise UserError(f"remote {name}: cannot be written and read: {_reason(error)}; nothing was changed{fix}") from None


def share(folder: Path) -> str:
    """Make `folder` this clone's cache, shared with the folder's group, and move what is cached here into it; return a summary.

    Outs are linked to it, not copied (reflinks where the disk supports them, else hard links, else symbolic links).
    """
    folder = local_path(str(folder)).resolve()
    own_cache = Path(".dvc/cache").absolute()
    if not folder.parent.is_dir():
        raise UserError(f"{folder}: {folder.parent} not found; create it, or mount it")
    if folder != own_cache.resolve() and (folder.is_relative_to(own_cache.resolve()) or own_cache.resolve().is_relative_to(folder)):
        raise UserError(f"{folder}: inside or around {own_cache}, this clone's own cache; name a folder elsewhere")
    folder.mkdir(exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        access = f"give it to the group (chgrp TEAM {folder}; chmod 2775 {folder}), or mount it for writing"
        raise UserError(f"{folder}: no write permission; {access}")
    open_to_group(folder)
    with repository() as repo:
        previous = Path(repo.cache.local_cache_dir)
        is_same = previous.exists() and previous.samefile(folder)
        # Neither another folder nor a link to one: others may use that.
        is_own = previous.resolve() == own_cache.parent.resolve() / own_cache.name
        leaves_own = is_own and not is_same
        others = _other_users(previous) if leaves_own else []
        register(folder, Path.cwd())  # first, or a colleague's gc would remove what is being copied
        copied = _copy_cache(previous, folder) if leaves_own else 0
        if leaves_own and not others:
            shutil.rmtree(previous, ignore_errors=True)
        with edit_settings(repo.config, "local") as config:
            config["cache"] |= {"dir": str(folder), "shared": "group", "type": LINKS}
    outcome = f"{counted(copied, 'files')} moved there from {previous}"
    if others:
        outcome = f"{counted(copied, 'files')} copied there; {previous} stays as it is, since {others[0]} uses it"
    elif not (is_own or is_same):
        outcome = f"{previous} stays as it is, since others may use it"
    return f"cache: {folder} ({outcome}); set in {LOCAL_CONFIG} for this clone"


def open_to_group(folder: Path) -> None:
    """Let a folder's group write to it, and give it all new files there; only its owner can. What others may do stays as it is."""
    if folder.stat().st_uid == os.getuid():
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o2770)


def register(folder: Path, project: Path) -> None:
    """Record in a shared cache that `project` uses it, so that no garbage collection removes what it needs."""
    note = folder / PROJECTS / f"{uuid.uuid5(uuid.NAMESPACE_URL, str(project)).hex}.json"
    if not note.exists():
        note.parent.mkdir(exist_ok=True)
        open_to_group(note.parent)
        write_text(note, json.dumps({"folder": str(project)}) + "\n")
        note.chmod(0o664)


def refuse_unmounted(folder: Path) -> None:
    """Raise DiskError if a cache shared with a group is empty and lacks the notes of its projects, since its disk is not mounted.

    Otherwise a run would begin a new cache on the disk beneath the mount point, and compute everything again.
    """
    from dvc.config import Config

    if Config.from_cwd()["cache"].get("shared") != "group" or (folder / PROJECTS).is_dir():
        return
    if not any((folder / "files/md5").glob("[0-9a-f][0-9a-f]")):
        raise DiskError(
            f"{folder}: found an empty cache without {PROJECTS}/, expected the one that this clone shares; mount its disk, or, if the "
            f"cache is new, retemper cache share {folder}"
        )


def register_again(folder: Path, warn: Callable[[str], None]) -> None:
    """`register` on every run with a shared cache: the project may have moved, or its settings may have been copied.

    The cache of another clone (`dvc cache dir --local ../A/.dvc/cache`) becomes shared, and that clone is registered first.
    Anything in a `.retemper` folder (worktrees, temporary clones) is skipped: its needs count as its project's, or not at all.
    """
    if ".retemper" in Path.cwd().parts:
        return
    trees = worktrees()
    try:
        if not (folder / PROJECTS).is_dir():
            place = folder.resolve()
            if place.parts[-2:] != (".dvc", "cache") or place.parents[1] in trees:
                return  # this project's own, or one of which no owner is known
            register(place, place.parents[1])
        register(folder, next(iter(trees), Path.cwd()))
    except OSError as error:
        warn(f"{folder / PROJECTS}: {error.strerror}; another user's retemper gc may remove what this project needs")


def registered(folder: Path) -> list[Path]:
    """The projects that use a shared cache. Raises UserError if one is unavailable, since what it needs is then unknown."""
    found = []
    for note in sorted((folder / PROJECTS).glob("*.json")):
        try:
            project = Path(json.loads(note.read_text(encoding="utf-8"))["folder"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{note}: not a valid note of a project that uses this cache; delete it if nobody needs it") from None
        if not os.path.isdir(project / ".dvc"):  # noqa: PTH112 - pathlib raises if we may not enter a folder above it
            raise UserError(
                f"{note}: cannot see its project {project}, so what it needs is unknown; mount it, or delete this note if it is gone"
            )
        found.append(project)
    return found


def _other_users(cache: Path) -> list[Path]:
    """Other projects, and other working trees of this one, that use its own cache. Raises UserError if they cannot be known.

    Those in .retemper get this project's settings whenever a command uses them.
    """
    projects = registered(cache) if (cache / PROJECTS).is_dir() else []
    trees = dict.fromkeys(tree for project in (None, *projects) for tree in worktrees(project, all_known=True))
    here = Path.cwd().resolve()
    return [tree for tree in trees if tree != here and ".retemper" not in tree.parts and cache_of(tree).resolve() == cache.resolve()]


def _copy_cache(source: Path, target: Path) -> int:
    """Copy what `target` lacks or has corrupt, with records of how it was made; return the number of files of `source`."""
    count, root = 0, source / "files" / "md5"
    records = (path for folder in ("runs", makings.FOLDER, forgettings.FOLDER) for path in (source / folder).rglob("*") if path.is_file())
    for file in [*objects(root), *records]:
        copy = target / file.relative_to(source)
        count += 1
        is_intact = intact_path(target / "files" / "md5", object_id(file)) if file.is_relative_to(root) else copy.exists()
        if not is_intact:
            for parent in reversed(copy.relative_to(target).parents[:-1]):
                (target / parent).mkdir(exist_ok=True)
                open_to_group(target / parent)
            mode = file.stat().st_mode
            with new_file(copy) as temporary:
                shutil.copyfile(file, temporary)
                if file_digest(temporary) != file_digest(file):
                    raise UserError(f"{copy}: the copy differs from its original; check the disk ({source} was kept)")
                temporary.chmod(mode)
    return count


def _write(name: str, shared: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    from dvc.config import ConfigError

    if secrets and not git("check-ignore", str(LOCAL_CONFIG), check=False):
        raise UserError(f"{LOCAL_CONFIG}: git does not ignore it, so a secret cannot go there; add /config.local to .dvc/.gitignore")
    with repository() as repo:
        try:
            with edit_settings(repo.config, "repo") as config:
                if name in config["remote"] and config["remote"][name]["url"] != shared["url"]:
                    raise UserError(f"{CONFIG}: remote {name} is {config['remote'][name]['url']}; run retemper remote remove {name} first")
                config["remote"][name] = {**config["remote"].get(name, {}), **shared}  # new credentials keep the other options
                config["core"]["remote"] = name
            if secrets:
                with edit_settings(repo.config, "local") as config:
                    config["remote"][name] = {**config["remote"].get(name, {}), **secrets}
                LOCAL_CONFIG.chmod(0o600)
        except ConfigError as error:
            raise UserError(f"remote {name}: {_reason(error)}; dvc remote modify --help lists the options") from None


@contextmanager
def _undone_unless_kept() -> Iterator[None]:
    contents = {path: path.read_bytes() if path.exists() else None for path in (CONFIG, LOCAL_CONFIG)}
    try:
        yield
    except BaseException:
        for path, content in contents.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)
        raise


def _scheme(url: str) -> str:
    """The part before ://, empty for a folder. Raises UserError if the URL holds a password, since the config file is committed."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme and urlsplit(url).password is not None:
        bare = url.replace(f":{urlsplit(url).password}@", "@", 1)
        raise UserError(
            f"remote: the URL holds a password, which git would store; add {bare} --option password=- instead, which asks for it"
        )
    return "" if scheme == "file" else scheme


def _folder(url: str) -> Path:
    if not url.removeprefix("file://").strip():
        raise UserError("remote: found no URL, expected a folder, s3://, ssh:// or another URL; name one")
    folder = local_path(url.removeprefix("file://")).absolute()
    if not folder.parent.is_dir():
        raise UserError(f"{folder}: {folder.parent} not found; create it, or mount it")
    if folder.resolve().is_relative_to(Path.cwd().resolve()):
        raise UserError(f"{folder}: found a folder within this project, expected one elsewhere, which the team can reach; name another")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: found a file, expected a folder")
    return folder


def _option(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"--option {text}: expected key=value, such as endpointurl=https://host (dvc remote modify --help lists them)")
    if value == "-":
        try:
            value = getpass.getpass(f"{key}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
        except EOFError:
            value = ""
        if not value:
            raise UserError(f"--option {text}: expected the value on the terminal, or as a line on stdin; found none")
    return key, value


def _reason(error: BaseException) -> str:
    cause: Any = error.__cause__ or error
    return " ".join(str(cause).split())[:300] or type(cause).__name__
