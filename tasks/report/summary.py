"""The summary at the top of the page: the trainings and their data, whether the best model is better, and where it fails."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.core.plurals import counted
from tasks.report.significance import Pair
from tasks.report.systems import System
from tasks.report.weaknesses import Weaknesses, weakness_sentence


def training_sentence(sections: Mapping[str, Any], statistics: Mapping[str, Any], encoder: str) -> str:
    """A sentence on the number of trainings, their queries, and the encoder they started from."""
    counts = [
        (len([entry for entry in (sections.get("rounds") or {}).values() if entry.get("steps") != 0]), "round", "rounds"),
        (len(sections.get("adore") or {}), "query tower", "query towers"),
    ]
    trainings = " and ".join(f"{count} {singular if count == 1 else plural}" for count, singular, plural in counts if count)
    if not trainings:
        return "Nothing: the encoder is unchanged."
    train = (statistics.get("splits") or {}).get("train") or {}
    queries = (
        f" on {counted(train['queries'], 'queries')} with {train['positives']:,} relevant pair{'s' * (train['positives'] != 1)}"
        if train
        else ""
    )
    starts = {entry.get("init") for section in ("pretrain", "rounds") for entry in (sections.get(section) or {}).values()}
    others = [str(entry.get("source")) for name, entry in (sections.get("encoders") or {}).items() if name in starts]
    encoders = " and ".join(map(without_folders, [encoder, *others]))
    return f"{trainings}{queries}{f', from {encoders}' if encoder else ''}."


def without_folders(source: str) -> str:
    """A source without the folders of one machine: an absolute path becomes its last part, anything else stays."""
    kind, colon, place = source.rpartition(":")
    return f"{kind}{colon}{place.rstrip('/').rpartition('/')[2]}" if place.startswith(("/", "~")) else source


def baseline_differences(best: System, pairs: Sequence[Pair]) -> Iterator[tuple[str, float, Pair]]:
    """The best system against each baseline: yield the baseline, the best system's difference, and the pair."""
    for pair in pairs:
        if best.name in (pair.system, pair.baseline):
            sign, baseline = (1, pair.baseline) if pair.system == best.name else (-1, pair.system)
            yield baseline, sign * pair.difference + 0.0, pair  # -0.0 + 0.0 is 0.0


def comparison_sentence(best: System, pairs: Sequence[Pair], p_value: Any) -> str:
    """A sentence on whether the best system is above the baselines; empty without pairs."""
    parts = [
        f"{difference:+.4f} against {baseline} ({pair.verdict(p_value)})"
        for baseline, difference, pair in baseline_differences(best, pairs)
    ]
    return f"{best.name} has {', '.join(parts)}." if parts else ""


def index_sentence(best: System, sections: Mapping[str, Any], indexes: Mapping[str, Mapping[str, Any]]) -> str:
    """A sentence on the size of the index, or indexes, that the best system searches; empty if it has none."""
    sizes = {name: size for name in _searched(best.name, sections, indexes) if (size := indexes[name].get("bytes_per_vector"))}
    is_single = len(sizes) == 1
    subject = f"Its {'index' if is_single else 'indexes'} ({' and '.join(sizes)}) {'takes' if is_single else 'take'}"
    return f"{subject} {sum(sizes.values()):,.0f} bytes per passage." if sizes else ""


def _searched(name: str, sections: Mapping[str, Any], indexes: Mapping[str, Mapping[str, Any]]) -> dict[str, None]:
    """The indexes that a system's lists come from, in order. There are no cycles: the check of params.yaml refuses them."""
    if name in indexes:
        return {name: None}
    entry: Mapping[str, Any] = next(
        (found[name] for part in ("adore", "fuse", "rerank", "rescore") if name in (found := sections.get(part) or {})), {}
    )
    below = ("first", "second") if "first" in entry else [key for key in ("round", "run") if key in entry][:1]
    found = dict[str, None]()
    for key in below:
        found |= _searched(entry[key], sections, indexes)
    return found


def rows(
    sections: Mapping[str, Any],
    statistics: Mapping[str, Any],
    *,
    encoder: str,
    best: System,
    pairs: Sequence[Pair],
    indexes: Mapping[str, Mapping[str, Any]],
    weaknesses: Weaknesses | None,
    p_value: Any,
) -> list[tuple[str, str]]:
    """The questions and their answers. Questions without an answer are left out."""
    answers = [
        ("Trained", training_sentence(sections, statistics, encoder)),
        ("Better?", comparison_sentence(best, pairs, p_value)),
        ("Size", index_sentence(best, sections, indexes)),
        ("Where it fails", weakness_sentence(weaknesses) if weaknesses else ""),
    ]
    return [(question, answer) for question, answer in answers if answer]
