"""Estimate time and disk of a project's first run, from recorded times of another project, scaled by the size of the data.

The time of a stage is assumed to be proportional to the work of its kind (flows.measuring.sizes). A small run takes most of its time to
start stages, so there is no estimate for data more than MOST times as large, nor for another encoder.
"""

import json
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from flows.explaining.costs import recorded_seconds
from flows.measuring.sizes import STATS, Size, size_of, work
from flows.parameters.checks import check_file
from flows.parameters.widths import shaped_width
from flows.process.display import clock
from flows.repository.lock import read_lock
from tasks.core.errors import UserError
from tasks.core.plurals import counted
from tasks.core.sources.datasets import encoder_files, parse_encoder
from tasks.params import Parameters

SOURCE = Path("data/source.json")
NUMBER_BYTES = 4
STATE = 3  # a trained round also keeps a state: its weights, and two moments of AdamW for each
MOST = 30  # times the work of the recorded run


@dataclass(frozen=True)
class Known:
    """A finished project: size, parameters, digest of its encoder, and the seconds that its stages took."""

    size: Size
    parameters: Parameters
    encoder: str
    seconds: Mapping[str, float]


def known(project: Path) -> Known | None:
    """What a project has recorded; None if it has not been run."""
    try:
        with chdir(project):
            stats, source = (json.loads(path.read_text(encoding="utf-8")) for path in (STATS, SOURCE))
            parameters = check_file()
            seconds = recorded_seconds(read_lock())
            return Known(size_of(stats, parameters.tokenize), parameters, source["encoder"]["digest"], seconds) if seconds else None
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


@dataclass(frozen=True)
class Scaled:
    """Seconds of stages, one after another. `unknown`: stages whose kind was not measured or does not scale; `factor`: the largest one."""

    seconds: float
    unknown: list[str]
    factor: float


def scale_seconds(stages: list[str], size: Size, parameters: Parameters, *, like: Known) -> Scaled:
    """The seconds that `stages` will take, scaled from those that stages of their kinds took in `like`."""
    spent_seconds, done_work, largest_work = dict[str, float](), dict[str, float](), dict[str, float]()
    for stage, seconds in like.seconds.items():
        kind, amount = stage.partition("@")[0], work(stage, like.size, like.parameters.rounds)
        if amount is not None:
            spent_seconds[kind] = spent_seconds.get(kind, 0) + seconds
            done_work[kind] = done_work.get(kind, 0) + amount
            largest_work[kind] = max(largest_work.get(kind, 0), amount)
    total, unknown, factor = 0.0, list[str](), 0.0
    for stage in stages:
        kind, amount = stage.partition("@")[0], work(stage, size, parameters.rounds)
        if amount is None or not done_work.get(kind):
            unknown.append(stage)
        else:
            total += spent_seconds[kind] * amount / done_work[kind]
            factor = max(factor, amount / largest_work[kind])
    return Scaled(total, unknown, factor)


def time_line(stages: list[str], size: Size, parameters: Parameters, *, encoder: str, like: Known | None, place: Path) -> str:
    """A line for the user on the time of the first run. `place`: where the recorded times are from."""
    if like is None:
        return f"time of the first run: unknown, as no finished run is recorded in {place}; the first run records its own"
    if like.encoder != encoder:
        return f"time of the first run: unknown, as the runs recorded in {place} used another encoder; the first run records its own"
    scaled = scale_seconds(stages, size, parameters, like=like)
    if len(scaled.unknown) == len(stages):
        return f"time of the first run: unknown, as no run of these stages is recorded in {place}; the first run records its own"
    if scaled.factor > MOST:
        return (
            f"time of the first run: unknown, as the run recorded in {place} is too small to scale "
            f"({counted(like.size.documents, 'documents')}, {like.size.train:,} training queries); the first run records its own"
        )
    unknown_part = f"; unknown: {', '.join(scaled.unknown)}" if scaled.unknown else ""
    return (
        f"time of the first run: about {clock(scaled.seconds)}, from the stages recorded in {place}, scaled by documents, queries, and "
        f"lengths (it may take half or twice as long{unknown_part})"
    )


def disk_line(size: Size, parameters: Parameters, encoder: Path | None, *, shares: bool) -> str:
    """A line for the user on the disk of the first run: vectors, a flat index, and weights of each round. `shares`: by data/ and cache."""
    if encoder is None or not encoder.is_dir():
        return "disk of the first run: unknown until the encoder is downloaded"
    base = parameters.base
    width = shaped_width(encoder, pooling=base.pooling, head=base.head, width=base.width)
    if width is None:
        return "disk of the first run: unknown, as the encoder's config.json does not give its hidden size"
    weights = sum(path.stat().st_size for path in encoder_files(parse_encoder(parameters.encoder.source)) if path.suffix == ".safetensors")
    rounds = parameters.rounds.values()
    passages = min(parameters.tokenize.passages, max(1, round(size.tokens / parameters.tokenize.document_length)))
    vectors = len(rounds) * size.documents * passages * width.kept * NUMBER_BYTES
    indexes = vectors if parameters.index.factory == "Flat" else 0
    models = weights * (1 + len(parameters.adore) + sum(1 if entry.steps == 0 else 1 + STATE for entry in rounds))
    gib = [number / 2**30 for number in (vectors, indexes, models)]
    copies, sharing = (1, "data/ and the cache share them") if shares else (2, "each once in data/ and once in the cache")
    return (
        f"disk of the first run: about {copies * sum(gib):.1f} GiB (vectors {gib[0]:.1f}, flat indexes {gib[1]:.1f}, weights and "
        f"optimizers {gib[2]:.1f}; {sharing})"
    )
