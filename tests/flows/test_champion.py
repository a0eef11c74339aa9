"""What makes up a served model, by a dvc.lock."""

import pytest

from flows.champion import digests_of, outs_of

LOCK = """
schema: '2.0'
stages:
  prepare: {{outs: [{{path: data/corpus, md5: corpus}}]}}
  index@star: {{outs: [{{path: data/indexes/star, md5: {factory}}}, {{path: data/index_metrics/star.json, md5: m}}]}}
  adore@tower:
    params: {{params.yaml: {{adore.tower: {{round: star, negatives: none{entry}}}}}}}
    outs: [{{path: data/encoders/tower, md5: weights}}, {{path: data/indexes/tower, md5: own}}]
"""


@pytest.mark.parametrize(
    ("entry", "index"),
    [("", "of_star"), (", index: Flat", "of_star"), (', index: "PQ8"', "own"), (', index: "PQ8", centroids: true', "own")],
)
def test_a_query_tower_without_an_index_is_served_by_its_rounds(entry: str, index: str) -> None:
    """So a change of index.factory alone, which remakes that, is a change of the model as it is served."""
    found = digests_of(outs_of(LOCK.format(factory="of_star", entry=entry)), "tower")
    assert found == {"encoder": "weights", "index": index, "corpus": "corpus"}
    changed = digests_of(outs_of(LOCK.format(factory="of_star_anew", entry=entry)), "tower")
    assert (changed != found) == (index == "of_star")


def test_an_empty_lock() -> None:
    assert outs_of("") == {}
