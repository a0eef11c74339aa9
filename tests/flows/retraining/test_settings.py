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
        ("intake: {gate: null}", "intake.gate: found None; expected a mapping with duplicates, shift, p, least, sample"),
    ):
        file.write_text(text)
        with pytest.raises(UserError) as refusal:
            read_retraining(file)
        assert key in str(refusal.value)
