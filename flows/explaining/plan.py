"""The configurations between two sides: what a model is made from, for each choice of old and new factors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flows.explaining.data import Data, Inbox
from flows.explaining.runs import Configuration, is_direct
from flows.explaining.shapley import Coalition
from flows.explaining.sides import Factor, Side, factors, join_factors
from flows.repository.lock import tracked
from flows.repository.worktree import SOURCE
from flows.storage.cache import cache_folder, object_path
from tasks.core.errors import UserError

SEEDED = ("pretrain", "rounds", "adore", "rerankers", "mix")  # sections whose entries have a seed
FURTHER = 1000  # added to every seed in each repetition, so that entries with different seeds keep different ones
SEEDS = 2**32  # the largest seed is one less (tasks.core.params.numbers)


@dataclass(frozen=True)
class Plan:
    """Two sides, the factors that differ between them, and the data of both."""

    old: Side
    new: Side
    factors: Sequence[Factor]
    old_data: Data
    new_data: Data
    inbox: Inbox

    @cached_property
    def yardstick(self) -> Configuration:
        """The newer side, with whose code, data, and settings every model is measured."""
        return self.configuration(self.names)

    @cached_property
    def names(self) -> Coalition:
        """The names of all factors."""
        return frozenset(factor.name for factor in self.factors)

    def configuration(self, new: Coalition, repetition: int = 0) -> Configuration:
        """The factors `new` from the newer side, all others from the older; with the original seeds (0), or those of a repetition.

        Whatever is not a factor is the same on both sides or cannot affect the model; it is taken from the side of the code.
        """
        code = self._side(new, [factor for factor in self.factors if factor.code])
        sections, source = dict(code.sections), dict(code.source)
        for factor in self.factors:
            side = self._side(new, [factor])
            for section in factor.sections:
                for target, origin in ((sections, side.sections), (source, side.source)):
                    target.pop(section, None)
                    if section in origin:
                        target[section] = origin[section]
        data = self._data(new)
        sections["dataset"], source["dataset"] = {**sections.get("dataset", {}), "source": data.spec}, data.entry
        articles = self._side(new, self._of_data)
        if "articles" in source and "articles" in articles.source:
            source["articles"] = articles.source["articles"]
            sections["articles"] = {**sections["articles"], "source": source["articles"]["source"]}
        model = self._side(new, [factor for factor in self.factors if factor.model]).model
        return Configuration(code.commit, reseed(sections, repetition), source, model)

    def is_direct(self, new: Coalition) -> bool:
        """Whether the run that trains a coalition's model also measures it."""
        return is_direct(self.configuration(new), self.yardstick)

    @property
    def _of_data(self) -> list[Factor]:
        """The factors that are data, as a whole or by batch."""
        return [factor for factor in self.factors if factor.data or factor.batches]

    def _side(self, new: Coalition, deciding: Sequence[Factor]) -> Side:
        """The newer side if all `deciding` factors are new, or there are none; else the older."""
        return self.new if all(factor.name in new for factor in deciding) else self.old

    def _data(self, new: Coalition) -> Data:
        if all(factor.name in new for factor in self._of_data):
            return self.new_data
        chosen = [factor for factor in self._of_data if factor.name in new]
        if not chosen:
            return self.old_data
        return self.inbox.merge([*(self.old_data.batches or ()), *(batch for factor in chosen for batch in factor.batches)])


def make_plan(old: Side, new: Side, split: Sequence[str], *, inbox: Inbox) -> Plan:
    """Make the plan between two sides. `split`: what to split further, `data` by batches and `parameters` by sections.

    Raises UserError if the data of a side is lost, or cannot be split.
    """
    old_data, new_data = (inbox.find(side.source["dataset"]) for side in (old, new))
    differing = factors(old, new)
    for side, data in ((old, old_data), (new, new_data)):
        if not data.available and not _is_cached(side):
            raise UserError(
                f"{side.name}: its data (sha256 {data.entry['digest'][:10]}) is neither at {data.entry['source']}, nor what the inbox "
                "makes, nor in the cache; restore one of them"
            )
    chosen = []
    data_factor = next((one for one in differing if one.data), None)
    if data_factor:
        chosen += _data_factors(data_factor, (old, old_data), (new, new_data), by_batch="data" in split)
    if parameters := [one for one in differing if one.sections or one.model]:
        chosen += parameters if "parameters" in split else [join_factors("parameters", parameters)]
    chosen += [one for one in differing if one.code]
    return Plan(old, new, chosen, old_data, new_data, inbox)


def reseed(sections: Mapping[str, Any], repetition: int) -> dict[str, Any]:
    """`sections` with the seeds of a repetition in every training; repetition 0 has the original seeds."""
    if not repetition:
        return dict(sections)

    def again(entry: Any) -> Any:
        return entry if entry.get("steps") == 0 else {**entry, "seed": (int(entry.get("seed") or 0) + FURTHER * repetition) % SEEDS}

    return {
        section: {name: again(entry) for name, entry in (value or {}).items()} if section in SEEDED else value
        for section, value in sections.items()
    }


def _data_factors(data_factor: Factor, old: tuple[Side, Data], new: tuple[Side, Data], *, by_batch: bool) -> list[Factor]:
    """The data as one factor, or a factor for each batch that only the newer side has."""
    old_batches, new_batches = old[1].batches, new[1].batches
    added: tuple[str, ...] = ()
    if old_batches is not None and new_batches is not None and new_batches[: len(old_batches)] == old_batches:
        added = new_batches[len(old_batches) :]
    if not by_batch:
        differs = (f"batches {', '.join(added)}",) if added else data_factor.differs
        return [Factor("data", data=True, differs=differs)]
    if not added:
        raise UserError(
            f"--split data: found no batches of the inbox that {new[0].name} has and {old[0].name} lacks, expected dataset.source and the "
            "first batches of the inbox on both sides, unchanged since; drop --split data"
        )
    return [Factor(f"batch {batch}", batches=(batch,)) for batch in added]


def _is_cached(side: Side) -> bool:
    """Whether the cache has everything that was made directly from the side's data."""
    objects = cache_folder() / "files" / "md5"
    made = [entry for entry in side.stages.values() if "dataset.digest" in tracked(SOURCE, entry)]
    return all(object_path(objects, str(out["md5"])).is_file() for entry in made for out in entry.get("outs") or [])
