"""The commands of a team: remote, cache, merge, verify, gc, lineage, sweep and others. Imports are made where they are used."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any


def add_commands(commands: Any) -> None:
    """Add them to the command line's sub-parsers."""
    remote = commands.add_parser("remote", help="the team's remote: what anyone has computed, nobody computes again")
    kinds = remote.add_subparsers(dest="what", required=True, metavar="add | list | remove")
    add = kinds.add_parser("add", help="share by a folder, s3://BUCKET/PATH, ssh://HOST/PATH ..., once it was written to and read")
    add.add_argument("name")
    add.add_argument("url")
    add.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="DVC's options of a remote (endpointurl, access_key_id ...); secrets stay out of git, the value - is asked for",
    )
    kinds.add_parser("list", help="the remotes of this project")
    kinds.add_parser("remove", help="forget a remote; what lies there stays").add_argument("name")
    remote.set_defaults(work=_remote)

    cache = commands.add_parser("cache", help="one cache folder for all users of a machine")
    share = cache.add_subparsers(dest="what", required=True, metavar="share").add_parser(
        "share", help="use FOLDER as the cache, with links"
    )
    share.add_argument("folder", type=Path)
    cache.set_defaults(work=_cache)

    merge = commands.add_parser("merge", help="resolve git's conflicts in params.yaml and dvc.lock: the changes of both sides")
    merge.set_defaults(work=_merge)

    verify = commands.add_parser("verify", help="read the whole cache; what is damaged is removed, and fetched or computed by the next run")
    verify.add_argument("--remote", type=str.lower, metavar="NAME", help="the remote's objects instead")
    verify.set_defaults(work=_verify)

    gc = commands.add_parser("gc", help="remove from the cache what no branch, tag, experiment or working tree needs")
    gc.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
    gc.add_argument("--remote", type=str.lower, metavar="NAME", help="from this remote as well, once every git remote was fetched")
    gc.add_argument("--days", type=float, default=7, metavar="N", help="leave what came to the remote in the last N days (default: 7)")
    gc.set_defaults(work=_gc)

    lineage = commands.add_parser("lineage", help="what made a model or a metric: data, parameters, code, stages, commits")
    lineage.add_argument("artifact", help="a model (star), its metrics (data/metrics/star.json) or any artifact's path")
    lineage.add_argument("--rev", help="as a commit, branch, tag or experiment has it; default: this working tree")
    form = lineage.add_mutually_exclusive_group()
    form.add_argument("--all", action="store_true", help="also every command, code file and digest")
    form.add_argument("--json", action="store_true")
    form.add_argument("--html", type=Path, metavar="FILE", help="write a page instead")
    lineage.set_defaults(work=_lineage)

    reproduce = commands.add_parser("reproduce", help="run a revision in a fresh clone and compare every digest with its dvc.lock")
    reproduce.add_argument("rev", help="a commit, branch, tag or experiment with a dvc.lock")
    reproduce.add_argument("--into", type=Path, metavar="FOLDER", help="the clone, kept afterwards; default: a temporary one")
    reproduce.add_argument("--recompute", action="store_true", help="with an empty cache and no remote: every stage runs")
    reproduce.set_defaults(work=_reproduce)

    sweep = commands.add_parser("sweep", help="run the points of a grid as DVC experiments, beside your working tree")
    sweep.add_argument(
        "file",
        type=Path,
        help="YAML: grid: {KEY: [VALUE, ...]} and/or points: {NAME: {KEY: VALUE, ...}}; keys as in --set; docs/recipes/sweeps.md",
    )
    sweep.add_argument("--jobs", type=int, default=1, metavar="N", help="points at work at the same time (default: 1)")
    sweep.add_argument("--test", action="store_true", help="show test figures as well; choose by dev")
    sweep.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="over every point of FILE, as in retemper run")
    sweep.set_defaults(work=_sweep)

    experiments = commands.add_parser("experiments", help="parameters and metrics of the experiments of this repository")
    experiments.add_argument("--test", action="store_true", help="show test figures as well; choose by dev")
    experiments.add_argument("--json", action="store_true")
    experiments.set_defaults(work=_experiments)


def _remote(options: Namespace, _: object) -> int:
    from flows.team import remotes

    if options.what == "add":
        print(remotes.add(options.name, options.url, options.option))
    elif options.what == "remove":
        remotes.remove(options.name)
    else:
        for name, url, default in remotes.remotes():
            print(f"{name}  {url}{'  (runs share by it)' if default else ''}")
    return 0


def _cache(options: Namespace, _: object) -> int:
    from flows.process import locks
    from flows.repository.lock import worktrees
    from flows.team import remotes

    with locks.only_run_in(worktrees()):  # those of sweeps and retrainings work over this cache
        print(remotes.share(options.folder))
    return 0


def _merge(_: Namespace, __: object) -> int:
    from flows.process import locks
    from flows.repository.cache import cache_folder
    from flows.repository.merge import merge

    with locks.only_run():
        print("\n".join(merge(cache_folder())))
    return 0


def _verify(options: Namespace, _: object) -> int:
    from flows.team.verify import verify_cache, verify_remote

    return verify_remote(options.remote) if options.remote else verify_cache()


def _gc(options: Namespace, _: object) -> int:
    from flows.team.gc import collect

    collect(options.dry_run, options.remote, print, options.days)
    return 0


def _lineage(options: Namespace, _: object) -> int:
    from flows.team import lineage

    lineage.show(options.artifact, options.rev, "json" if options.json else "text", options.html, whole=options.all)
    return 0


def _reproduce(options: Namespace, _: object) -> int:
    from flows.experiments.reproduce import reproduce

    return reproduce(options.rev, options.into, options.recompute)


def _sweep(options: Namespace, _: object) -> int:
    from flows.experiments.sweep import sweep

    return sweep(options.file, options.jobs, options.test, edits=options.set)


def _experiments(options: Namespace, _: object) -> int:
    from flows.experiments.store import show

    show(options.test, options.json)
    return 0


def parser() -> ArgumentParser:
    """These commands alone, for tests."""
    whole = ArgumentParser()
    add_commands(whole.add_subparsers(dest="command", required=True))
    return whole
