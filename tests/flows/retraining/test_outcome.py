"""How a retraining ended, on its page."""

import errno
import re
from pathlib import Path

import pytest

from flows.champions.history import Ended
from flows.pages import measured
from flows.process.display import Display
from flows.retraining import outcome

PAGE = f"<nav>{measured.LINKS}</nav>{measured.PLACE}"
METRICS = {
    "<a>": {"dev": {"nDCG@10": 0.5, "RR@10": 0.25, "queries": "all"}, "test": {"nDCG@10": 0.75}},
    "champion/3": {"dev": {"nDCG@10": 0.625, "RR@10": 0.125}},
    "b": {"dev": {"nDCG@10": 0.1}},
}
ENDED = Ended("1", "refused", "<a> against champion/3: worse", "now", champion=3, candidate="<a>", commit="c", metrics=METRICS)


def test_the_candidate_stands_beside_the_champion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / measured.PAGE).parent.mkdir()
    (tmp_path / measured.PAGE).write_text(PAGE)
    outcome.show(tmp_path, ENDED, Display())
    outcome.show(tmp_path, ENDED, Display())
    text = (tmp_path / measured.PAGE).read_text()
    assert capsys.readouterr().out == 2 * f"\npage of this retraining: {tmp_path / measured.PAGE}\n"
    assert text.count('<h2 id="outcome">') == text.count('<a href="#outcome">') == 1, "once, whatever is written again"
    assert "Retraining refused: &lt;a&gt; against champion/3: worse." in text
    assert "difference from champion/3" in text
    cells = [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in text.split("<tr>")[2:]]
    assert cells == [
        ["nDCG@10", "dev", "0.5000", "0.6250", "-0.1250"],
        ["RR@10", "dev", "0.2500", "0.1250", "+0.1250"],
        ["nDCG@10", "test", "0.7500", "", ""],
    ]


def test_without_a_page_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome.show(tmp_path, ENDED, Display())
    assert capsys.readouterr() == ("", "")


def test_a_first_champion_has_nothing_beside_it() -> None:
    first = Ended("1", "promoted", "<a> is the first champion", "now", candidate="<a>", commit="c", metrics={"<a>": METRICS["<a>"]})
    assert "difference" not in outcome.section(first).html()


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def raise_disk_full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(measured, "add", raise_disk_full)
    outcome.show(tmp_path, ENDED, Display())
    assert "No space left on device; the page does not show" in "".join(capsys.readouterr())
