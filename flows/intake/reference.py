"""The reference that a batch's texts are compared with: texts that the champion was trained on, by its encoder; without a champion, words.

A sample of these texts, their vectors, and the encoder are kept in .retemper/reference until another champion is crowned.
"""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from flows.batches.known import Known, Sample, full_text
from flows.champions import champion
from flows.champions.champion import Champion
from flows.intake.shift import WORDS, Shift, vector_shift, word_shift
from flows.process import locks
from flows.process.processes import Processes, environment
from tasks.core.errors import PROBLEM, UserError
from tasks.core.files import new_folder, read_json, write_json
from tasks.core.tables.id_sets import hashes
from tasks.core.tables.parquet import read_batches
from tasks.core.tables.schemas import DOCUMENTS, QUERIES

FOLDER = Path(".retemper/reference")
KINDS = ("documents", "queries")
ROOT = Path(__file__).resolve().parents[2]  # of the code that is running, whatever the current folder has
LEAST = 20  # texts that each of a test's three samples needs
Warn = Callable[[str], None]


@dataclass(frozen=True)
class Reference:
    """Texts by kind, and the champion's folder, if there is one: its encoder and the vectors of these texts."""

    texts: dict[str, list[str]]
    by: str
    folder: Path | None = None
    processes: Processes = field(default_factory=Processes)

    def shift(self, kind: str, texts: Sequence[str]) -> Shift | None:
        """Test a sample of a batch's documents or queries (`kind`) for a shift; None if there are too few to compare."""
        fixed, held_out = self.texts[kind][::2], self.texts[kind][1::2]
        if min(len(fixed), len(held_out), len(texts)) < LEAST:
            return None
        if self.folder is None:
            from tasks.core.text.analysis import analyzer

            return word_shift(texts, held_out, fixed, terms=analyzer("none", "none"))
        with np.load(self.folder / "vectors.npz", allow_pickle=False) as arrays:
            vectors = arrays[kind]
        return vector_shift(_encode(self.folder, {kind: list(texts)}, self.processes)[kind], vectors[1::2], vectors[::2], by=self.by)


def reference_of(project: Path, known: Known, size: int, *, warn: Warn, processes: Processes) -> Reference:
    """The champion's reference, or words of the `known` data set. `size`: of the samples. Warn if the champion's data is lost."""
    words = Reference({"documents": known.sampled_documents.texts(), "queries": known.sampled_queries.texts()}, WORDS)
    try:
        now = champion.current(project)
        return _of_champion(project, now, size, processes=processes) if now else words
    except (UserError, OSError) as error:
        warn(f"the test of shift uses words, not the champion's vectors: {' '.join(str(error).split())}")
        return words


def _of_champion(project: Path, now: Champion, size: int, *, processes: Processes) -> Reference:
    folder, name = project / FOLDER, f"champion/{now.number}"
    about = {"champion": now.number, "commit": now.commit, "size": size}
    with locks.wait_and_hold(folder.with_suffix(".lock")):  # a check by hand may run beside a retraining
        if not (folder / "reference.json").exists() or read_json(folder / "reference.json")["of"] != about:
            with new_folder(folder) as temporary:
                texts = _texts(project, now, size, folder=temporary / "tables")
                shutil.rmtree(temporary / "tables")
                paths = champion.parts_at(project, now).paths
                champion.get_out(project, now.commit, paths["encoder"], out=temporary / "encoder")
                np.savez(temporary / "vectors.npz", **_encode(temporary, texts, processes))  # type: ignore[arg-type]
                write_json(temporary / "reference.json", {"of": about, "texts": texts})
        return Reference(read_json(folder / "reference.json")["texts"], name, folder, processes)


def _texts(project: Path, now: Champion, size: int, *, folder: Path) -> dict[str, list[str]]:
    """A sample of the documents and training queries of the champion's corpus."""
    corpus = champion.parts_at(project, now).paths.get("corpus", "data/corpus")
    samples = {}
    for kind, path, schema in (("documents", "documents.parquet", DOCUMENTS), ("queries", "queries/train.parquet", QUERIES)):
        champion.get_out(project, now.commit, f"{corpus}/{path}", out=folder / Path(path).name)
        sample = Sample(size)
        for batch in read_batches(folder / Path(path).name, schema):
            titles = batch["title"].to_pylist() if "title" in schema.names else [""] * batch.num_rows
            texts = list(map(full_text, titles, batch["text"].to_pylist()))
            sample.add(hashes(batch["id"].to_pylist()).tolist(), texts)
        samples[kind] = sample.texts()
    return samples


def _encode(folder: Path, texts: dict[str, list[str]], processes: Processes) -> dict[str, npt.NDArray[np.float32]]:
    """Vectors of texts by the encoder in `folder`. Raises UserError if its process fails."""
    output = list[str]()
    with TemporaryDirectory() as scratch:  # of this process alone: a check by hand may run beside a retraining
        texts_file, out = Path(scratch, "texts.json"), Path(scratch, "out.npz")
        texts_file.write_text(json.dumps(texts), encoding="utf-8")
        command = [sys.executable, "-m", "flows.intake.vectors", *map(str, ((folder / "encoder").resolve(), texts_file, out))]
        env = {name: value for name, value in environment().items() if name != PROBLEM}  # a failure is a warning here
        if processes.run(command, output.append, env, folder=ROOT):
            raise UserError(output[-1].removeprefix("retemper: ") if output else "the encoder's process ended without a message")
        with np.load(out, allow_pickle=False) as arrays:
            return {kind: arrays[kind] for kind in texts}
