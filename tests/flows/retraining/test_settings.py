from pathlib import Path

import pytest

from flows.promotion.records import Promotion
from flows.retraining.settings import read_retraining
from tasks.core.errors import UserError


def test_the_file_and_what_is_wrong_in_it(tmp_path: Path) -> None:
    file = tmp_path / "retraining.yaml"
    assert read_retraining(file).promotion == Promotion()
    for text, key in (
        ("promotion: {margin: -1}", "promotion.margin"),
        ("speed: 1", "speed: unknown key"),
        ("intake: {mode: add}", "intake.mode"),
        ("retrain: {round: {learning_rate: 1}}", "retraining.yaml: retrain.round.learning_rate: unknown key; did you mean lr"),
        ("retrain: {adore: {lr: fast}}", "retraining.yaml: retrain.adore.lr: found 'fast'; input should be a valid number"),
        ("intake: {gate: null}", "intake.gate: found None; expected a mapping with duplicates, shift, p, least, sample"),
    ):
        file.write_text(text)
        with pytest.raises(UserError) as refusal:
            read_retraining(file)
        assert key in str(refusal.value)
    file.write_text("retrain: {round: {alpha: 0.5, epochs: 1}, adore: {lists: given}}")
    assert read_retraining(file).retrain.adore == {"lists": "given"}, "what these need may be in the recipe"
