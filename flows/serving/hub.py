"""An export on Hugging Face's hub: the encoder at the root, where libraries look for it, everything else below."""

import os
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.core.errors import Invalid, Missing, Unavailable, printable
from tasks.core.models.export import RECORD, Export, read_record, write_record

TOKEN = "HF_TOKEN"
REPO = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


def check(repo: str) -> None:
    """Raise UserError, before anything is exported, for an invalid name, or without a token."""
    if not REPO.fullmatch(repo):
        raise Invalid(f"--push-to-hub {repo}: expected OWNER/NAME")
    if not os.environ.get(TOKEN):
        raise Missing(f"{TOKEN}: not set, expected a token that may write to {repo}; set the variable and run again")


def push(folder: Path, repo: str) -> str:
    """Push an exported folder in one commit; a new repository is private. Return its address. Raises UserError if that fails."""
    import httpx
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    export = read_record(folder)
    try:
        api = HfApi(token=os.environ[TOKEN])
        with TemporaryDirectory() as scratch:
            write_record(Path(scratch), record_on_hub(export))
            paths = files_by_hub_name(folder, export) | {RECORD: Path(scratch) / RECORD}
            url = api.create_repo(repo, private=True, exist_ok=True)
            additions = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in sorted(paths.items())]
            api.create_commit(repo, additions, commit_message=f"Export {export.label}")
    except OfflineModeIsEnabled:
        raise Unavailable("HF_HUB_OFFLINE is set, so nothing was pushed; unset it and run again") from None
    except (OSError, httpx.HTTPError, ValueError) as error:
        line = printable(" ".join(str(error).replace(os.environ[TOKEN], "***").split())) or type(error).__name__
        raise Unavailable(f"--push-to-hub {repo}: not pushed ({line[:300]}); the folder {folder} is complete, push it again") from None
    return str(url)


def files_by_hub_name(folder: Path, export: Export) -> dict[str, Path]:
    """Every file of an export except its record, by its name on the hub."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    return {_moved(path.relative_to(folder).as_posix(), export): path for path in files}


def record_on_hub(export: Export) -> Export:
    """The export's record with the paths that files have on the hub."""
    first = next(iter(export.encoders))
    encoders = dict(export.encoders) | {first: (".", export.encoders[first][1])}
    return replace(export, encoders=encoders, files={_moved(name, export): value for name, value in export.files.items()})


def _moved(name: str, export: Export) -> str:
    encoder = next(iter(export.encoders.values()))[0]
    return name.removeprefix(f"{encoder}/")
