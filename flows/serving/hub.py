"""An export on Hugging Face's hub: the encoder at the root, where libraries look for it, everything else below."""

import os
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flows.serving.card import CARD, MARK, is_edited
from tasks.core.errors import Corrupt, Invalid, Missing, Unavailable, UserError, printable
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
    """Push an exported folder in one commit; a new repository is private. Return its address, with what was kept there.

    Files of an export that was pushed there before, and that this one lacks, are deleted in the same commit; other files stay, as does a
    card that was edited there. Raises UserError if the push fails.
    """
    import httpx
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    export = read_record(folder)
    try:
        api = HfApi(token=os.environ[TOKEN])
        with TemporaryDirectory() as scratch:
            write_record(Path(scratch), record_on_hub(export))
            paths = files_by_hub_name(folder, export) | {RECORD: Path(scratch) / RECORD}
            url = api.create_repo(repo, private=True, exist_ok=True)
            present = set(api.list_repo_files(repo))
            card = _read(api, repo, CARD, scratch=Path(scratch) / "former") if CARD in present else None
            keeps_card = card is not None and is_edited(card)
            if keeps_card:
                paths.pop(CARD, None)
            additions = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in sorted(paths.items())]
            former = former_files(api, repo, present, scratch=Path(scratch) / "former")
            deletions = [CommitOperationDelete(path_in_repo=name) for name in sorted(former - paths.keys())]
            api.create_commit(repo, [*additions, *deletions], commit_message=f"Export {export.label}")
    except OfflineModeIsEnabled:
        raise Unavailable("HF_HUB_OFFLINE is set, so nothing was pushed; unset it and run again") from None
    except (OSError, httpx.HTTPError, ValueError) as error:
        line = printable(" ".join(str(error).replace(os.environ[TOKEN], "***").split())) or type(error).__name__
        raise Unavailable(f"--push-to-hub {repo}: not pushed ({line[:300]}); run the same command again, which pushes {folder}") from None
    if card is None or not keeps_card:
        return str(url)
    found = "differs from what Retemper wrote" if MARK in card else "was written by hand, or by an earlier version of Retemper"
    return f"{url} ({CARD} there {found}, and is kept; delete it there before a push to get the new one)"


def former_files(api: Any, repo: str, present: set[str], *, scratch: Path) -> set[str]:
    """The files of an export among those `present`, by the record there; none without one. UserError if the record is invalid."""
    if RECORD not in present:
        return set()
    api.hf_hub_download(repo, RECORD, local_dir=scratch)
    try:
        return present & read_record(scratch).files.keys()
    except UserError:
        raise Corrupt(
            f"--push-to-hub {repo}: its {RECORD} is not the record of an export, so which files are of one is unknown; delete it there, "
            "with the files of the former export, and run again"
        ) from None


def _read(api: Any, repo: str, name: str, *, scratch: Path) -> str:
    return Path(api.hf_hub_download(repo, name, local_dir=scratch)).read_text(encoding="utf-8", errors="replace")


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
