"""DVC commands that its command line lacks: `python -m flows.remote runs | pull STAGES | checkout STAGES | repro STAGE | repro-pull STAGE`.

They check by content what they take from the cache (`flows.integrity`). And `dvc repro --pull` fetches the
remote's whole run cache, every entry again, for every stage. Here the entries that are new are fetched once, and a stage
then pulls only what its own restored run needs.
"""

import sys
from typing import Any

from flows.integrity import by_content


def fetch_runs() -> int:
    """Copy run-cache entries that are not here from the remote: which run made what, not the outs themselves."""
    from dvc.repo import Repo

    repo = Repo()
    remote = repo.cloud.get_remote_odb(None, "fetch --run-cache", hash_name="md5-dos2unix")
    with repo.lock:
        fetched = repo.stage_cache.transfer(remote, repo.cache.legacy, force=False)
    print(f"{len(fetched)} runs fetched")
    return 0


def reproduce(stage: str, pull: bool) -> int:
    """`dvc repro --single-item STAGE`; with `pull`, `--pull` less its fetch of the run cache."""
    from dvc.cli import main
    from dvc.stage.cache import StageCache

    if not pull:
        return int(main(["--wait-for-lock", "repro", "--single-item", stage]))

    def fetched_before(*_: Any, **__: Any) -> list[tuple[str, str]]:
        return []

    StageCache.pull = fetched_before
    return int(main(["--wait-for-lock", "repro", "--single-item", "--pull", stage]))


def main(arguments: list[str]) -> int:
    if arguments == ["runs"]:
        from dvc.exceptions import DvcException

        try:
            return fetch_runs()
        except (DvcException, OSError) as error:
            print(f"ERROR: {error}", file=sys.stderr)
            return 1
    by_content()
    command, *stages = arguments
    if command in ("pull", "checkout"):
        from dvc.cli import main as dvc

        return int(dvc(["--wait-for-lock", command, *stages]))
    return reproduce(stages[0], pull=command == "repro-pull")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
