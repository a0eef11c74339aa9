"""What a card says of how a model was made, and what it leaves out."""

from flows.serving import card


def test_a_row_of_parameters_names_no_folder_of_a_machine() -> None:
    settings = {"kinds": ["generated"], "generator": "/srv/anna/client/t5", "generated": 3}
    entry = {"params": {"data/params.json": {"pseudo": settings, "encoders.e5": {"source": "/srv/anna/e5"}}}}
    assert card._parameters(entry) == 'kinds ["generated"], generated 3'
