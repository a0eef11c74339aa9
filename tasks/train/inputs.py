"""What a round trains on, from the folders that it reads. The training and its replay (`retemper exposure`) both get it here."""

from dataclasses import dataclass, replace
from pathlib import Path

from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.training.replay import replayed_from
from tasks.train.batches import TrainingSet, among_positives, read_training_set, sampled_queries, with_weights
from tasks.train.params import Round
from tasks.train.validation import Sample, hold_out


@dataclass(frozen=True)
class Inputs:
    """The folders of texts and judgments that a round reads.

    `weights`: of training pairs. `state`: of the training that made the initial encoder.
    """

    tokens: Path
    corpus: Path
    negatives: Path
    weights: Path | None = None
    state: Path | None = None

    def queries(self) -> Tokens:
        """The training queries."""
        return open_tokens(self.tokens / "queries" / "train")

    def documents(self) -> Tokens:
        """The corpus."""
        return open_tokens(self.tokens / "documents")


@dataclass(frozen=True)
class Data:
    """The training set: the judged queries with their negatives, but those that are not replayed, held out, or not in the sample.

    `held_out`: for validation; None if the round does not validate. `notes`: lines that say which queries were left out.
    """

    training: TrainingSet
    held_out: Sample | None
    notes: tuple[str, ...]


def read_data(inputs: Inputs, params: Round, queries: Tokens, documents: Tokens, *, scratch: Path, key: str) -> Data:
    """Read the training set of a round. `key`: its place in params.yaml, for messages."""
    qrels = inputs.corpus / "qrels" / "train.parquet"
    negatives = inputs.negatives / "train.parquet"
    data = read_training_set(queries, documents, qrels, negatives, params, scratch)
    if inputs.weights and params.positive_ranks is None:
        data = with_weights(data, queries, documents, qrels, weights=inputs.weights / "train.parquet")
    ids = queries.folder / "ids.parquet"
    queries_N, line = replayed_from(inputs.state, data.queries, ids, share=params.replay, seed=params.split_seed, key=key)
    data, held_out, notes = replace(data, queries=queries_N), None, [line] if line else []
    if params.validate_every:
        data, held_out = hold_out(data, params)
        notes.append(f"validation: {held_out.describe(data)}")
    data = among_positives(sampled_queries(data, params), queries, documents, negatives=negatives, params=params, scratch=scratch)
    return Data(data, held_out, tuple(notes))


def steps_before(params: Round, behind: int) -> int:
    """The steps of earlier rounds that this one continues, out of the `behind` that its initial encoder has had."""
    return behind if params.optimizer_from == "continue" else 0
