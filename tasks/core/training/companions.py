"""Files that come with an encoder's weights: next to its own files in a folder from outside, and then in its state.

Whoever provides the weights writes them (a retraining: flows.retraining.plan). A round of zero steps, whose weights are the same, copies
them from the encoder's state to its own; a pre-training, whose weights still know these queries, copies KNOWN.
"""

import shutil
from pathlib import Path

KNOWN = "known_queries.json"  # ids of the training queries that the weights know: see tasks.core.training.replay
LEARNED = (
    "trained_index.safetensors"  # the learned part of the index that the weights were trained with: see tasks.core.retrieval.ann.trained
)


def copy_companions(source: Path | None, to: Path, names: tuple[str, ...] = (KNOWN, LEARNED)) -> None:
    """Copy those of these files that the folder `source` has, if it is given, to the folder `to`."""
    for name in names:
        if source is not None and (source / name).exists():
            to.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, to / name)
