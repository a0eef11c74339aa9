"""What a record was in which training, by the lock file and the cache alone."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.team import exposure
from tasks.core.errors import UserError


def test_parts_are_those_of_every_training_and_models_follow(dvc_project: Any) -> None:
    """Compared with the batches that the stage itself would draw from the working tree; the replay has only the cache."""
    from tasks.core.params.sections import load
    from tasks.core.tokens.folder import open_tokens
    from tasks.train.batches import draw_batch, read_training_set
    from tasks.train.params import Round

    data = Path("data")
    params = load(Round, "rounds.warmup")
    tokens = data / "tokens"
    training_set = read_training_set(
        open_tokens(tokens / "queries/train"),
        open_tokens(tokens / "documents"),
        data / "corpus/qrels/train.parquet",
        data / "negatives/bm25/train.parquet",
        params,
        dvc_project.folder,
    )
    batches = [draw_batch(training_set, params, step) for step in range(2)]
    queries = pq.read_table(tokens / "queries/train/ids.parquet")["id"].to_pylist()
    documents = pq.read_table(tokens / "documents/ids.parquet")["id"].to_pylist()
    query = queries[int(batches[1].queries[0])]
    document = documents[int(batches[1].documents[batches[1].slots[0]])]
    for folder in data.iterdir():  # the cache is enough
        if folder.is_dir():
            folder.rename(folder.with_name(f".{folder.name}.away"))
    result = exposure.expose([query, document], exposure.known_locks())
    assert result.records == {query: ["query of train"], document: ["document"]}
    rows = {(part.id, part.training, part.role): part for part in result.parts}
    part = rows[query, "train@warmup", "query"]
    steps = [step for step in range(2) if query in {queries[q] for q in batches[step].queries.tolist()}]
    assert (part.first, part.last, part.count, part.steps) == (steps[0], steps[-1], len(steps), 2)
    assert rows[document, "train@warmup", "positive"].last == 1
    assert rows[document, "adore@tower", "searched"].count is None
    assert {part.seen for part in result.parts} == {("working tree",)}
    models = {model.name: model.trainings for model in result.models}
    assert "train@warmup" in models["warmup"]
    assert "train@warmup" in models["taught"], "it starts from warmup"
    assert "train@warmup" in models["tower"]
    assert "init" not in models, "it was not trained"
    assert "costa" not in models, "it was trained on articles"
    assert not result.notes
    text = exposure.as_text(result)
    assert f"{query}: query of train" in text
    dev = next(iter(pq.read_table(data / ".corpus.away/queries/dev.parquet")["id"].to_pylist()))
    assert exposure.expose([dev], exposure.known_locks()).parts == ()
    with pytest.raises(UserError, match="zebra: no document or query has this id"):
        exposure.expose(["zebra"], exposure.known_locks())


def test_what_the_cache_lacks_is_said(dvc_project: Any) -> None:
    lock = exposure.known_locks()["working tree"]
    table = next(out for out in lock["bm25"]["outs"] if out["path"] == "data/negatives/bm25")
    listing = json.loads((dvc_project.folder / ".dvc/cache/files/md5" / table["md5"][:2] / table["md5"][2:]).read_text())
    oid = next(entry["md5"] for entry in listing if entry["relpath"] == "train.parquet")
    (dvc_project.folder / ".dvc/cache/files/md5" / oid[:2] / oid[2:]).unlink()
    result = dvc_project.retemper("exposure", "d00", "--json")
    assert result.status == 0, result
    report = json.loads(result.out)
    assert [note.partition(":")[0] for note in report["notes"]] == ["train@warmup (working tree)"]
    assert "is not in the cache" in report["notes"][0]
    result = dvc_project.retemper("exposure", "zebra")
    assert (result.status, len(result.err.strip().splitlines())) == (2, 1)
