"""What a card says of how a model was made, and what it leaves out."""

from flows.serving import card


def test_a_row_of_parameters_names_no_folder_of_a_machine() -> None:
    settings = {"kinds": ["generated"], "generator": "/srv/anna/client/t5", "generated": 3}
    entry = {"params": {"data/params.json": {"pseudo": settings, "encoders.e5": {"source": "/srv/anna/e5"}}}}
    assert card._parameters(entry) == 'kinds ["generated"], generated 3'


def test_versions_are_those_of_each_stage() -> None:
    old, new = {"environment": {"torch": "2.4", "precision": "bf16"}}, {"environment": {"torch": "2.6", "precision": "bf16"}}
    assert list(card._versions({"train@star": old, "fuse@hybrid": {}, "tokenize": old})) == ["", "Versions: torch 2.4, precision bf16."]
    several = ["- torch 2.4, precision bf16 (train@star, tokenize)", "- torch 2.6, precision bf16 (fuse@hybrid)"]
    assert list(card._versions({"train@star": old, "fuse@hybrid": new, "tokenize": old})) == ["", "Versions:", "", *several]
    assert list(card._versions({"train@star": {}})) == []
