"""What becomes of single pieces of wiki markup."""

import pytest

from tasks.articles.markup import plain_text


@pytest.mark.parametrize(
    ("markup", "wanted"),
    [
        ("the [[wikt:brigand|brigand]] of [[Portal:Art|art]] and [[s:The Raven|The Raven]]", "the brigand of art and The Raven"),
        ("one [[wikt:brigand]][[de:Räuber]][[Category: Thieves]][[s:Raven]] two", "one two"),
        ("one [[File:A.jpg|thumb|words]] [[Image: B.jpg|words]] [[Category:C|words]] two", "one two"),
        ("see [[:Category:Thieves]] and [[Star Wars: Episode I|Episode I]]", "see Category:Thieves and Episode I"),
        ("{{convert|5|km|mi|1}} and {{cvt|12|mi|0|abbr=on}}", "5 km and 12 mi"),
        ("{{convert|400|to|670|mm}}", "400 to 670 mm"),
        ("{{convert|10|-|12|ft|m}}, {{convert|10|–|12|ft}}", "10–12 ft, 10–12 ft"),
        ("{{convert|2|by|3|by|4|m|ft|0}}, {{convert|2|x|3|m}}, {{convert|2|and|3|m}}", "2 by 3 by 4 m, 2 × 3 m, 2 and 3 m"),
        ("{{convert|5|ft|10|in}} and {{convert|5|ft|10.5|in|cm|0}}", "5 ft 10 in and 5 ft 10.5 in"),
    ],
)
def test_links_and_quantities(markup: str, wanted: str) -> None:
    assert plain_text(markup) == (wanted, 0)
