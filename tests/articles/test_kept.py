"""Finished pieces of a large source are kept: the same articles and counts, and only damaged pieces are made again."""

from pathlib import Path

import pytest

from tasks.articles import extract
from tasks.articles.params import Articles
from tasks.core.sources.wikipedia import article_files, parse_articles
from tests.articles.test_dump import multistream_dump

PARAMS = Articles(least_words=5)


@pytest.mark.parametrize("processes", [1, 2])
def test_kept_pieces_equal_those_made_at_once(processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pages.xml.bz2").write_bytes(multistream_dump())
    spec = parse_articles(f"dump:{tmp_path / 'pages.xml.bz2'}")
    files, scratch = article_files(spec), tmp_path / "scratch"
    monkeypatch.setattr(extract, "STREAMS", 2)
    expected = list(extract.extract(spec, files, PARAMS, 1))
    assert list(extract.extract(spec, files, PARAMS, processes, scratch)) == expected
    assert any(part.dropped for part in expected) and any(part.articles for part in expected)
    pieces = sorted(scratch.glob("??????"))
    assert 1 < len(pieces) < len(expected)
    pieces[1].write_bytes(pieces[1].read_bytes()[:-3])
    cleaned, real = list[object](), extract.clean
    monkeypatch.setattr(extract, "clean", lambda work, params: cleaned.append(work) or real(work, params))
    assert list(extract.extract(spec, files, PARAMS, 1, scratch)) == expected
    assert len(cleaned) in (1, 2)
