"""What comes with an encoder's weights: files beside its own, in a folder from outside and then in its state.

Whoever gives the weights writes them (a retraining: flows.retraining.plan). From an encoder's state they go into that of a round of no
steps, whose weights are the same.
"""

import shutil
from pathlib import Path

KNOWN = "known_queries.json"  # ids of the training queries that the weights know: see tasks.core.training.replay
LEARNED = "trained_index.safetensors"  # what the index that the weights were trained with has learned: see tasks.core.retrieval.trained


def pass_on(source: Path | None, to: Path) -> None:
    """Copy these files from `source`, if that is a folder with some of them, to the folder `to`."""
    for name in (KNOWN, LEARNED):
        if source is not None and (source / name).exists():
            to.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, to / name)
