"""CUDA_VISIBLE_DEVICES as CUDA reads it: the names before the first invalid one."""

import pytest

from flows.pipeline import stage
from tasks.core.params.runtime import Runtime


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("", []), ("-1", []), ("NoDevFiles", []), ("0,1", ["0", "1"]), ("0,-1,1", ["0"]), (" 1 , GPU-ab", ["1", "GPU-ab"])],
)
def test_names_before_the_first_invalid_one_are_gpus(visible: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert stage._gpus(Runtime(device="auto")) == expected
