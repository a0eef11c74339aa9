from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.params.runtime import Runtime, read_runtime


def test_the_runtime_file_is_optional_and_checked(tmp_path: Path) -> None:
    assert read_runtime(tmp_path / "none.yaml") == Runtime()
    (tmp_path / "r.yaml").write_text("device: cpu\nthreads: 1\n")
    assert read_runtime(tmp_path / "r.yaml") == Runtime(device="cpu", threads=1)
    for text, words in (("device: tpu", "device"), ("speed: 9", "unknown key"), ("threads: 0", "threads")):
        (tmp_path / "r.yaml").write_text(text)
        with pytest.raises(UserError, match=words):
            read_runtime(tmp_path / "r.yaml")
