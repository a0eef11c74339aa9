"""Queries are words of their document; draws depend on seed and id alone; equal texts are one query."""

import unicodedata

import pytest

from tasks.core.tables.schemas import QRELS, QUERIES
from tasks.core.text.plain import plain
from tasks.pseudo.making import Candidate, candidates, first_sentence, id_hash, is_dev, joined, words_of
from tasks.pseudo.params import Pseudo
from tasks.pseudo.splits import count_kept, make_split

TEXT = 'The  abbey (built 1.5 miles off) "fell." It was\nrebuilt in 1204 by monks of Ely who had come from the north.'
EXPECTED = [
    "An Abbey",
    'The abbey (built 1.5 miles off) "fell."',
    "was rebuilt in 1204 by monks of",
    "The abbey (built 1.5 miles off)",
    "rebuilt in 1204 by monks of Ely (封神演義の町), who had come from",
]
UNSPACED = {
    "Chinese": "东京是日本的首都，也是世界上人口最多的城市之一。它位于关东平原，人口约有1400万人。城中有许多Python公司！",
    "Japanese": "『吾輩は猫である』（わがはいはねこである）は、夏目漱石の長編小説であり、処女小説である。1905年に発表された。",
    "half-width": "ﾜｶﾞﾊｲﾊﾈｺﾃﾞｱﾙ､ﾅﾂﾒｿｳｾｷﾉﾁｮｳﾍﾝｼｮｳｾﾂﾃﾞｱﾘ､ｼｮｼﾞｮｼｮｳｾﾂﾃﾞｱﾙ｡ｲｯｾﾝｷｭｳﾋｬｸｺﾞﾈﾝﾆﾊｯﾋﾟｮｳｻﾚﾀ",
    "Thai": "กรุงเทพมหานครเป็นเมืองหลวงและนครที่มีประชากรมากที่สุดของประเทศไทย เป็นศูนย์กลางการปกครอง การศึกษา การคมนาคมขนส่ง",
    "Myanmar": "ရန်ကုန်မြို့သည်မြန်မာနိုင်ငံ၏စီးပွားရေးမြို့တော်ဖြစ်သည်။ လူဦးရေအများဆုံးမြို့လည်းဖြစ်သည်။",
}


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (TEXT, 'The  abbey (built 1.5 miles off) "fell."'),
        ("What is it? A bird.", "What is it?"),
        (" no end here ", "no end here"),
        ("一つ目。二つ目。", "一つ目。"),
        ("彼は「はい。」と言った。", "彼は「はい。」"),
    ],
)
def test_the_first_sentence_ends_at_a_mark_before_white_space(text: str, first: str) -> None:
    assert first_sentence(text) == first


def test_each_query_is_the_title_the_opening_or_a_run_of_words() -> None:
    params = Pseudo(per_document=20, least_words=2, most_words=5, most_sentence_words=4)
    pseudo_queries = candidates("d 1", "An  Abbey", TEXT, params)
    words, kinds = TEXT.split(), [query.kind for query in pseudo_queries]
    assert [query.text for query in pseudo_queries[:2]] == ["An Abbey", "The abbey (built 1.5"]
    assert kinds[:2] == ["title", "sentence"] and set(kinds[2:]) == {"span"}
    lengths = set()
    for query in pseudo_queries[2:]:
        length = len(query.text.split())
        lengths.add(length)
        assert query.text in {" ".join(words[start : start + length]) for start in range(len(words) - length + 1)}
    assert lengths == {2, 3, 4, 5}, "20 draws find every length"
    assert len({query.id for query in pseudo_queries}) == len(pseudo_queries) and all(
        query.doc == "d 1" and query.id.endswith("-d 1") for query in pseudo_queries
    )
    assert len({plain(query.text) for query in pseudo_queries}) == len(pseudo_queries), "a document gives a text once"


def test_kinds_and_lengths_are_obeyed() -> None:
    def kinds(title: str, text: str, **settings: object) -> list[str]:
        return [query.kind for query in candidates("d", title, text, Pseudo.model_validate({"per_document": 1} | settings))]

    assert kinds("A", TEXT, kinds=["span", "title"]) == ["span", "title"]
    assert kinds("", "two words") == [], "too short for 3 words, and no title"
    assert kinds("", "just three words") == ["sentence"], "its only span is its sentence"
    assert kinds("Just  THREE words", "just three words") == ["title"]


def test_draws_depend_on_the_seed_and_the_id() -> None:
    def spans(doc: str, seed: int) -> list[str]:
        return [query.text for query in candidates(doc, "", TEXT, Pseudo(kinds=("span",), per_document=4, seed=seed))]

    assert spans("a", 1) == spans("a", 1)
    assert spans("a", 1) != spans("b", 1) and spans("a", 1) != spans("a", 2)
    shares = [sum(is_dev(f"d{n}", Pseudo(dev_share=share)) for n in range(2000)) / 2000 for share in (0.1, 0.5)]
    assert shares == pytest.approx([0.1, 0.5], abs=0.04)
    assert id_hash("a", 1, b"x") != id_hash("a", 1, b"y")


def test_words_between_blanks_give_these_queries() -> None:
    """As before text without blanks was cut; a name in such letters is one word of an English text."""
    pseudo_queries = candidates("d 1", "An  Abbey", TEXT.replace("Ely", "Ely (封神演義の町),"), Pseudo())
    assert [query.text for query in pseudo_queries] == EXPECTED


@pytest.mark.parametrize("language", UNSPACED)
def test_text_without_blanks_gives_spans_of_two_characters_a_word(language: str) -> None:
    text = UNSPACED[language]
    assert joined(words_of(text)) == " ".join(text.split())
    pseudo_queries = candidates("d", "", text, Pseudo(per_document=200))
    assert [query.kind for query in pseudo_queries[:2]] == ["sentence", "span"], "before, neither: the text was too short"
    sizes = [len(letters(query.text)) for query in pseudo_queries[1:]]
    assert all(query.text in text for query in pseudo_queries) and len(letters(pseudo_queries[0].text)) <= 48
    assert max(sizes) <= 24 and min(sizes) <= 8 and sum(sizes) / len(sizes) > 10
    assert not any(unicodedata.category(query.text[0]).startswith("M") for query in pseudo_queries), "a mark stays with its letter"


def letters(text: str) -> list[str]:
    """The letters of a text, without marks; digits and Latin letters do not count."""
    return [char for char in text if unicodedata.category(char)[0] == "L" and not char.isascii()]


def test_words_of_such_text_end_where_another_script_begins() -> None:
    assert words_of("漢字とPythonの3本「夜。」は (a)") == [" 漢字", "と", "Python", "の", "3", "本", "「夜。」", "は", " (a)"]
    assert words_of("서울특별시는 대한민국의 수도이자") == [" 서울특별시는", " 대한민국의", " 수도이자"], "Korean has blanks"
    assert words_of("Tokyo (東京都) is") == [" Tokyo", " (東京都)", " is"]
    long = "吾輩は猫である名前はまだ無い"
    assert words_of(f"The novel begins thus, as everyone knows: {long}")[-7:] == [
        f"{' ' * (n == 0)}{long[n : n + 2]}" for n in range(0, 14, 2)
    ]


def test_equal_texts_are_one_query_with_all_their_documents() -> None:
    pseudo_queries = [
        Candidate("q1", "title", "The Abbey", "d1"),
        Candidate("q2", "span", "a mill", "d1"),
        Candidate("q3", "title", "the  abbey", "d2"),
        Candidate("q4", "title", "In dev too", "d3"),
    ]
    split, merged, left_out = make_split(pseudo_queries, {"in dev too"})
    assert split.queries.schema == QUERIES and split.qrels.schema == QRELS
    assert split.queries.to_pylist() == [
        {"id": "q1", "text": "The Abbey", "answers": []},
        {"id": "q2", "text": "a mill", "answers": []},
    ]
    assert [tuple(row.values()) for row in split.qrels.to_pylist()] == [("q1", "d1", 1), ("q1", "d2", 1), ("q2", "d1", 1)]
    assert (split.kinds, merged, left_out) == (["title", "span"], 1, 1)
    assert count_kept(pseudo_queries, {"q1", "q2"}, {"q1", "q4"}) == {
        "title": {"made": 3, "bm25": 1, "encoder": 2, "both": 1},
        "span": {"made": 1, "bm25": 1, "encoder": 0, "both": 0},
    }


@pytest.mark.parametrize("settings", [{"per_document": 0}, {"kinds": []}, {"least_words": 13}, {"dev_share": 1}, {"agree_depth": 0}])
def test_what_gives_no_query_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Pseudo.model_validate(settings)
