"""Metrics as docs/serving.md names them: latencies of the last searches, and lines that the query log lacks."""

import pytest

from tasks.search.server.__main__ import _unlogged
from tasks.search.server.measures import KEPT, Measures


def test_quantiles_are_those_of_the_last_10_000_searches() -> None:
    measures = Measures()
    for seconds in (3, 1, 2):
        measures.answered("/search", 200, seconds)
    assert (measures.quantile(0.5), measures.quantile(0.99)) == (2, 3), "nearest rank"
    assert KEPT == 10_000
    for seconds in [*[1e6] * 200, *range(KEPT, 0, -1)]:
        measures.answered("/search", 200, seconds)
    measures.answered("/search", 503, 5e6)
    measures.answered("/health", 200, 5e6)
    assert (measures.quantile(0.5), measures.quantile(0.99)) == (5000, 9900)
    text = measures.text("star", problem=False).decode()
    assert 'retemper_latency_seconds{quantile="0.5"} 5000.0' in text
    assert 'retemper_latency_seconds{quantile="0.99"} 9900.0' in text
    assert f"retemper_request_seconds_count {KEPT + 203}.0" in text


def test_lines_that_were_not_logged_are_counted_and_the_first_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    measures = Measures()
    assert "retemper_unlogged_total 0.0" in measures.text("star", problem=False).decode()
    for _ in range(3):
        _unlogged(measures, OSError("disk full"))
    warning = "retemper: warning: a line of the query log was not written (disk full); retemper_unlogged_total counts such lines\n"
    assert capsys.readouterr().err == warning
    assert "retemper_unlogged_total 3.0" in measures.text("star", problem=False).decode()
