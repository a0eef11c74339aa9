"""Which pages list the meanings of a title, by the templates that say so."""

import pytest

from tasks.articles.pages import Page, is_disambiguation


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("{{disambiguation}}", True),
        ("{{Disambig|geo}}", True),
        ("{{ disambiguation cleanup }}", True),
        ("{{human name disambiguation}}", True),
        ("{{letter-number combination disambiguation}}", True),
        ("{{station disambiguation}}", True),
        ("{{Road disambiguation|state}}", True),
        ("{{math disambiguation}}", True),
        ("{{genus disambiguation}}", True),
        ("{{Species Latin name abbreviation disambiguation|A. b.}}", True),
        ("{{Mountain index}}", True),
        ("{{shipindex}}", True),
        ("{{ship index}}", True),
        ("{{set index article}}", True),
        ("{{roaddis}}", True),
        ("{{surname}}", True),
        ("{{disambiguation needed|date=May 2020}}", False),
        ("{{needs disambiguation}}", False),
        ("{{R from incomplete disambiguation}}", False),
        ("{{other uses|Ada (disambiguation)}}", False),
        ("{{redirect|Ada|the page|Ada (disambiguation)}}", False),
        ("{{stock index|DAX}}", False),
        ("the disambiguation}} of words", False),
    ],
)
def test_disambiguations_by_template(markup: str, expected: bool) -> None:
    assert is_disambiguation(Page("1", "Ada", f"Ada is a name.\n* [[Ada]]\n{markup}\n", markup=True)) == expected
