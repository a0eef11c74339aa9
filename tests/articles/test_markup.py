"""What becomes of single pieces of wiki markup."""

import pytest

from tasks.articles.markup import plain_text


@pytest.mark.parametrize(
    ("markup", "expected"),
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
def test_links_and_quantities(markup: str, expected: str) -> None:
    assert plain_text(markup) == (expected, 0)


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("{{Nihongo|'''Aikido'''|合気道|Aikidō|lead=yes}} is an art", "Aikido is an art"),
        ("the mass {{nowrap|1=''E'' = ''mc''<sup>2</sup>}} and {{chem|C|2|H|6}}", "the mass E = mc2 and C2H6"),
        ("a gauge of {{frac|4|8|15}} or {{frac|1|2}} or {{frac|3}}", "a gauge of 4 8/15 or 1/2 or 1/3"),
        ("{{as of|2015|6|30}} and {{As of|2014|lc=y}} and {{as of|lc=y|2012|May}}", "As of 30 June 2015 and as of 2014 and as of May 2012"),
        ("{{quote|text=It is [[so]].|author=A}}", "It is so."),
        ("{{lang-la|Opus {{big|Majus}}}} and {{transl|ar|DIN|al}}", "Opus Majus and al"),
        ("{{lang|grc|{{linktext|λόγος}}}} means reason", "λόγος means reason"),
        ("''Eagle''{{'s}} pads of {{circa|1500}}", "Eagle's pads of c. 1500"),
        ("{{HMS|Ajax|22|6}} for {{US$|5 million}}", "HMS Ajax for US$5 million"),
        ("the letter {{angbr|a}} is {{IPA|/æ/}} ({{IPA|fr|mɔ̃}})", "the letter ⟨a⟩ is /æ/"),
        ("{{Script|Xyzw|}}: Runic letter ( {{IPA-xx|a}} in Attic [incl. Gobies {{foo}}])", "Runic letter (in Attic [incl. Gobies])"),
        ("{{ordered list|start=1\n| One ''part''.\n| Two [[parts]].}}", "One part.\nTwo parts."),
        ("{{frac}}{{unknown|999999999=x}}{{lang|999999999=x}}", "1/"),
    ],
)
def test_words_of_templates(markup: str, expected: str) -> None:
    assert plain_text(markup) == (expected, 0)


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("A paragraph\ngoes on\nto its end.\n\nThe next\none.", "A paragraph goes on to its end.\nThe next one."),
        (
            "Before\n*one\n* two\n**three\nAfter\n== Head ==\nText\n;Term: words\n:more",
            "Before\none\ntwo\nthree\nAfter\nText\nTerm: words\nmore",
        ),
        ("One<br>two\nthree <poem>four\nfive</poem>", "One\ntwo three\nfour\nfive"),
        ("One <code>printf</code> two <code>a\nb</code> and <math>j</math>th of <math>x_{i}</math>.", "One printf two and jth of."),
        ("in ''Iliad'''s text, '''Alkane'''s, '''''both'' bold''', ''''quoted''''", "in Iliad's text, Alkanes, both bold, 'quoted'"),
        ("the ''Eagle'' L'''amour'' is", "the Eagle L'amour is"),
        ("{{formatnum:3003}} m and {{formatnum: {{val|7}} }} m", "3003 m and 7 m"),
    ],
)
def test_paragraphs_and_quotes(markup: str, expected: str) -> None:
    assert plain_text(markup) == (expected, 0)
