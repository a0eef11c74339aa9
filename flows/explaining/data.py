"""Find the data of a past run again: at its source, or as dataset.source with the first batches of the inbox."""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.batches.merge import absolute, merge_folders
from flows.batches.records import form_of
from flows.intake import inbox, inspection, settings
from flows.parameters.sources import Memory, describe, list_dataset
from tasks.core.errors import DiskError, UserError
from tasks.core.params.sections import read_yaml, validate
from tasks.core.sources.datasets import parse_dataset

FOLDER = Path(".retemper/why/data")  # merged batches, one folder per choice of batches


@dataclass(frozen=True)
class Data:
    """A data set: its SPEC, its entry of data/source.json, and, if known, the batches that were merged with dataset.source.

    `available`: whether the SPEC still holds that content. If not, only what is in the cache can be used.
    """

    spec: str
    entry: Mapping[str, Any]
    batches: tuple[str, ...] | None = None
    available: bool = True


class Inbox:
    """dataset.source of parameters `sections` (default: the working tree's), and the batches of the inbox, in order of their names."""

    def __init__(self, folder: Path = FOLDER, sections: Mapping[str, Any] | None = None) -> None:
        rule = intake()
        sections = read_yaml(Path("params.yaml")) if sections is None else sections
        self._folder, self._found = folder, set[Path]()  # the merged folders that `find` has returned
        self._memory, self._needs_qrels = Memory(), sections.get("queries") != "pseudo"
        self._source = absolute(str((sections.get("dataset") or {}).get("source", "")), Path.cwd())
        mergeable = rule.inbox is not None and rule.mode == "append" and parse_dataset(self._source).kind in inspection.READABLE
        self.batches = {path.name: path for path in inbox.batches_to_merge(rule, self._source, Path.cwd())} if mergeable else {}
        listed = inbox.list_batches(rule, self._source, Path.cwd()) if mergeable and not self.batches else []
        self.kept_out = [batch.name for batch in listed if batch.state == "quarantined"]  # if there is no other batch

    def merge(self, chosen: Sequence[str]) -> Data:
        """Merge dataset.source with the `chosen` batches; without any, it is dataset.source itself."""
        names = tuple(name for name in self.batches if name in chosen)
        if not names:
            return Data(self._source, self._describe(self._source), ())
        out = self._place(names)
        paths = [self.batches[name] for name in names]
        folders = inbox.folders_to_merge(intake(), self._source, Path.cwd(), chosen=paths)
        merge_folders(folders, out / "merged", out / "stamp.json", form=form_of(self._source))
        spec = f"beir:{(out / 'merged').resolve()}"
        return Data(spec, self._describe(spec), names)

    def find(self, entry: Mapping[str, Any]) -> Data:
        """Find the data of an `entry` of data/source.json: from the inbox's first batches, or at its source; else it is not `available`."""
        names = list(self.batches)
        for count in range(len(names), -1, -1) if names else ():
            data: Data | None = None
            try:
                data = self.merge(names[:count])
            except DiskError:
                raise
            except (UserError, OSError):  # a batch that came later may be malformed, or still be written
                pass
            place = self._place(names[:count])
            if data and data.entry["digest"] == entry["digest"]:
                self._found.add(place)
                return data
            if count and place not in self._found:
                shutil.rmtree(place, ignore_errors=True)
        spec = absolute(str(entry["source"]), Path.cwd())
        try:
            found = self._describe(spec)["digest"] == entry["digest"]
        except (UserError, OSError):
            found = False
        return Data(spec, {**entry, "source": spec}, None, found)

    def _place(self, names: Sequence[str]) -> Path:
        return self._folder / hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]

    def _describe(self, spec: str) -> dict[str, Any]:
        return describe(spec, list_dataset(spec, needs_qrels=self._needs_qrels), self._memory)


def intake() -> settings.Intake:
    """Section `intake` of retraining.yaml, or its defaults."""
    section = read_yaml(settings.FILE).get("intake") if settings.FILE.exists() else None
    return validate(settings.Intake, section or {}, str(settings.FILE), section="intake")
