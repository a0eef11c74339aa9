"""What a card says of how a model was made, and what it leaves out."""

from pathlib import Path
from typing import Any, Never

import pytest

from flows.champions import champion
from flows.champions.champion import Champion
from flows.serving import card
from tasks.core.errors import UserError
from tasks.core.models.export import Export


def test_a_row_of_parameters_names_no_folder_of_a_machine() -> None:
    settings = {"kinds": ["generated"], "generator": "/srv/anna/client/t5", "generated": 3}
    entry = {"params": {"data/params.json": {"pseudo": settings, "encoders.e5": {"source": "/srv/anna/e5"}}}}
    assert card._parameters(entry) == 'kinds ["generated"], generated 3'
    trained = {"epochs": 1.0, "steps": 4}
    assert card._parameters({"params": {"data/params.json": {"rounds.star": trained}}}) == "steps 4", "which decide"


def test_versions_are_those_of_each_stage() -> None:
    old, new = {"environment": {"torch": "2.4", "precision": "bf16"}}, {"environment": {"torch": "2.6", "precision": "bf16"}}
    assert list(card._versions({"train@star": old, "fuse@hybrid": {}, "tokenize": old})) == ["", "Versions: torch 2.4, precision bf16."]
    several = ["- torch 2.4, precision bf16 (train@star, tokenize)", "- torch 2.6, precision bf16 (fuse@hybrid)"]
    assert list(card._versions({"train@star": old, "fuse@hybrid": new, "tokenize": old})) == ["", "Versions:", "", *several]
    assert list(card._versions({"train@star": {}})) == []


def test_a_card_says_less_while_the_remote_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the last step of an export, whose vectors may have taken hours."""

    def unavailable(*_: Any) -> Never:
        raise UserError("not in the cache, and could not be fetched from the remote")

    length = {"prefix": "", "max_length": 8}
    export = Export("star", {"star": ("encoder", "index")}, query=length, document={**length, "separator": " "})
    for owner, name, result in ((champion, "lock_at", {}), (card, "read_blob", None), (card, "read_record", export)):
        monkeypatch.setattr(owner, name, lambda *_, result=result: result)
    monkeypatch.setattr(card, "cache_of", lambda _: tmp_path)
    monkeypatch.setattr(champion, "read_out", unavailable)
    card.write_card(tmp_path, Champion(1, "star", "set", "2026-11-30T12:00:00+00:00"), tmp_path)
    assert "\nNone is recorded.\n" in (tmp_path / card.CARD).read_text()
