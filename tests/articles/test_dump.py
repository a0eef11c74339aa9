"""A handmade dump in every form gives the same articles without markup; corruption is reported."""

import bz2
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.articles.dump import read_pages, split_dump
from tasks.articles.extract import Cleaned, extract
from tasks.articles.markup import plain_text
from tasks.articles.pages import Page, is_disambiguation
from tasks.articles.params import Articles
from tasks.core.errors import UserError
from tasks.core.sources.wikipedia import article_files, parse_articles

RESIDUE = re.compile(r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]|<ref|</ref|''")
ARTICLE = """{{Infobox scientist
| name = Ada {{nowrap|Lovelace}}
| image = [[File:Ada.jpg|thumb|A [[portrait]]]]
}}
'''Ada Lovelace''' ({{IPAc-en|ˈ|eɪ}}; 10 December 1815 – 27 November 1852) was an [[England|English]] [[mathematician]].<ref name="a">{{cite book |title=Ada}}</ref><!-- a comment with [[links]] -->
[[File:Engine.jpg|thumb|left|The [[Analytical Engine]] with a ''long'' caption]]
She worked with Charles Babbage&nbsp;on the ''[[Analytical Engine]]''{{sfn|Fuegi|2003}} and saw {{convert|5|km|mi}} of cards.

== Legacy ==
{| class="wikitable"
! Year !! Event
|-
| 1980 || The language {{lang|en|Ada}} was named {| class="inner" | nested |}
|}
* The language [[Ada (programming language)|Ada]] was named after her in 1980 {{citation needed}}.
* Short one
<gallery>
File:A.jpg|Caption
</gallery>
The value is <math>x^{2}</math> large, says [http://example.org the site of the museum], and not {{unknown|thing}} small.<ref group=n/>
{{unbalanced template that never ends on this line of the article
A last line after the unbalanced template stands here.

== References ==
{{reflist}}
* Some book of many words that nobody needs here

== External links ==
* [http://example.org A site of many words that nobody needs here]
[[Category:Mathematicians]]
[[de:Ada Lovelace]]
"""  # noqa: E501
PAGES = [
    ("Ada Lovelace", 0, ARTICLE),
    ("Ada L.", 0, "#REDIRECT [[Ada Lovelace]]"),
    ("Ada", 0, "'''Ada''' may refer to:\n* [[Ada Lovelace]], a mathematician of the nineteenth century in England\n{{disambiguation}}"),
    ("List of mathematicians", 0, "* [[Ada Lovelace]] was one of them and there are many others in this list"),
    ("Talk:Ada Lovelace", 1, "What do you think of this article about her, everybody? It is long."),
    ("Stub", 0, "A short one."),
    *((f"Number {n}", 0, f"Number {n} is a [[natural number]] that comes after the number {n - 1}.") for n in range(1, 30)),
]
PARAMS = Articles(source="x", least_words=10, least_line_words=4)


def page(number: int, title: str, namespace: int, text: str) -> str:
    redirect = '<redirect title="Ada Lovelace" />' if text.startswith("#REDIRECT") else ""
    body = f'<revision><id>7</id><text xml:space="preserve">{escape(text)}</text></revision>'
    return f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>{redirect}{body}\n  </page>\n"


HEADER = '<mediawiki version="0.10" xml:lang="en">\n  <siteinfo><sitename>Wikipedia</sitename></siteinfo>\n'
BODY = [page(number, *rest) for number, rest in enumerate(PAGES, 1)]
FOOTER = "</mediawiki>\n"
WHOLE = (HEADER + "".join(BODY) + FOOTER).encode()


def multistream_dump() -> bytes:
    parts = [HEADER, *("".join(BODY[n : n + 5]) for n in range(0, len(BODY), 5)), FOOTER]
    return b"".join(bz2.compress(part.encode()) for part in parts)


def pbzip2_dump() -> bytes:
    """Streams that end anywhere, even inside a word."""
    return b"".join(bz2.compress(WHOLE[start : start + 700]) for start in range(0, len(WHOLE), 700))


FORMS: dict[str, Callable[[], bytes]] = {
    "plain.xml.bz2": lambda: bz2.compress(WHOLE), "multi.xml.bz2": multistream_dump,
    "pbzip2.xml.bz2": pbzip2_dump, "pages.xml": lambda: WHOLE,
}  # fmt: skip


def extract_all(spec: str, processes: int = 1) -> Cleaned:
    cleaned = Cleaned()
    parsed = parse_articles(spec)
    for part in extract(parsed, article_files(parsed), PARAMS, processes):
        cleaned.articles.extend(part.articles)
        cleaned.dropped.update(part.dropped)
        cleaned.lines.update(part.lines)
    return cleaned


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_articles(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FORMS[name]())
    cleaned = extract_all(f"dump:{tmp_path / name}")
    assert [article.title for article in cleaned.articles] == ["Ada Lovelace", *(f"Number {n}" for n in range(1, 30))]
    assert cleaned.articles[0].id == "1"
    assert cleaned.dropped == {"redirects": 1, "disambiguations": 1, "lists": 1, "other namespaces": 1, "stubs": 1}
    assert cleaned.articles[5].text == "Number 5 is a natural number that comes after the number 4."
    assert not RESIDUE.search("\n".join(article.text for article in cleaned.articles))


def test_processes_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "multi.xml.bz2").write_bytes(multistream_dump())
    assert extract_all(f"dump:{tmp_path}", 2) == extract_all(f"dump:{tmp_path}", 1)


def test_multistream_is_cut_where_streams_begin(tmp_path: Path) -> None:
    path = tmp_path / "multi.xml.bz2"
    path.write_bytes(multistream_dump())
    sizes = [sum(1 for _ in read_pages(piece)) for piece in split_dump(path)]
    assert sizes == [0, 5, 5, 5, 5, 5, 5, 5, 0]


def test_words_of_markup_are_kept() -> None:
    text, removed = plain_text(ARTICLE)
    assert removed == 1  # the unbalanced template
    assert text.split("\n") == [
        "Ada Lovelace (10 December 1815 – 27 November 1852) was an English mathematician.",
        "She worked with Charles Babbage on the Analytical Engine and saw 5 km of cards.",
        "The language Ada was named after her in 1980.",
        "Short one",
        "The value is large, says the site of the museum, and not small.",
        "A last line after the unbalanced template stands here.",
    ]


def test_lines_with_leftover_markup_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser that stopped working is seen: what it leaves is taken out, but counted."""
    (tmp_path / "a.xml").write_bytes(WHOLE)
    assert extract_all(f"dump:{tmp_path}").lines == {"kept": 34, "with markup": 1}
    monkeypatch.setattr("tasks.articles.markup._link", str)
    assert extract_all(f"dump:{tmp_path}").lines["with markup"] > 30


def test_parameters_keep_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_bytes(WHOLE)
    spec = parse_articles(f"dump:{tmp_path}")
    params = Articles(source="x", redirects=True, disambiguations=True, lists=True, least_words=1, least_line_words=1)
    titles = [a.title for part in extract(spec, article_files(spec), params, 1) for a in part.articles]
    assert titles == [title for title, namespace, _ in PAGES if namespace == 0]


def test_plain_sources(tmp_path: Path) -> None:
    rows = [
        {"id": str(n), "url": "x", "title": f"T{n}", "text": f"T{n}\n\nText number {n} is here, with ten words or more of them."}
        for n in (1, 2)
    ]
    rows += [
        {"id": "3", "url": "x", "title": "Mercury", "text": "Mercury may refer to:\n\nMercury, the planet nearest to the Sun of them all"}
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "json" / "AA").mkdir(parents=True)
    (tmp_path / "json" / "AA" / "wiki_00").write_text(lines)
    (tmp_path / "json" / "AA" / "wiki_01.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "part.parquet")
    texts = [f"Text number {n} is here, with ten words or more of them." for n in (1, 2)]
    assert [article.text for article in extract_all(f"parquet:{tmp_path}").articles] == texts
    cleaned = extract_all(f"jsonl:{tmp_path / 'json'}")
    assert [article.text for article in cleaned.articles] == texts * 2
    assert cleaned.dropped == {"disambiguations": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mercury\n\nMercury may refer to:\n\nMercury, a planet", True),
        ("Mercury most commonly refers to:\nMercury (planet)\nMercury (element)", True),
        ("Mercury is the planet nearest to the Sun.\n\nMercury may also refer to:\nMercury (element)", True),
        ("Ada can stand for one of the following people:\nAda Lovelace", True),
        ("Mercury is a planet. Its name may refer to the god of trade.\n\nIt has no moon: it is too near to the Sun.", False),
        ("Mercury is a planet." + " It has no moon." * 20 + "\n\nMercury may also refer to:\nMercury (element)", False),
    ],
)
def test_disambiguations_of_plain_text(text: str, expected: bool) -> None:
    assert is_disambiguation(Page("1", "Mercury", text)) == expected


def test_files_of_a_folder(tmp_path: Path) -> None:
    dumps = ["a/enwiki-pages-articles1.xml-p1p41242.bz2", "enwiki-pages-articles-multistream2.xml-p41243p50000.bz2", "p.xml", "p2.xml"]
    dumps += ["q.xml-p1p2", "r-2026-03-01-p10p52.xml.bz2", "r-2026-03-01-p53p99.xml.bz2", "simplewiki-pages-articles-multistream.xml.bz2"]
    others = ["enwiki-pages-articles-multistream-index1.txt-p1p41242.bz2", "md5sums.txt", "x.xml.gz", "x.xml-p1.bz2", "x.xml.bz2.part"]
    (tmp_path / "a").mkdir()
    for name in [*dumps, *others]:
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in article_files(parse_articles(f"dump:{tmp_path}"))] == dumps


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("dump", "a/w-pages-articles.xml.bz2", "w-pages-articles-multistream.xml.bz2"),
        ("dump", "w-pages-articles.xml", "w-pages-articles.xml.bz2"),
        ("dump", "w-pages-articles.xml.bz2", "w-pages-articles1.xml-p1p41242.bz2"),
        ("dump", "w-pages-articles-multistream.xml.bz2", "w-pages-articles2.xml-p41243p5.bz2"),
        ("dump", "a/w-pages-articles2.xml.bz2", "w-pages-articles.xml"),
        ("dump", "w-pages-articles-multistream1.xml-p1p41242.bz2", "w-pages-articles1.xml-p1p41242.bz2"),
        ("dump", "w-pages-articles1.xml-p1p41242", "w-pages-articles1.xml-p1p41242.bz2"),
        ("dump", "w-pages-articles.xml.bz2", "w-pages-meta-current.xml.bz2"),
        ("dump", "a/w-20260301-pages-articles.xml.bz2", "w-20260401-pages-articles.xml.bz2"),
        ("dump", "w-20260301-pages-articles1.xml-p1p41242.bz2", "w-latest-pages-articles-multistream2.xml-p41300p5.bz2"),
        ("dump", "w-2026-03-01-p10p52.xml.bz2", "w-2026-04-01-p10p55.xml.bz2"),
        ("dump", "a/w-2026-03-01-p10p52.xml.bz2", "w-2026-03-01-p10p52.xml.bz2"),
        ("dump", "w-20260301-pages-articles.xml.bz2", "w-pages-articles.xml.bz2"),
        ("jsonl", "a/wiki_00", "a/wiki_00.gz"),
        ("jsonl", "a.jsonl", "a.jsonl.gz"),
    ],
)
def test_the_same_articles_twice_are_refused(kind: str, first: str, second: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in (first, second):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=re.escape(f"{tmp_path / second}: repeats articles of {tmp_path / first}; move one")) as refusal:
        article_files(parse_articles(f"{kind}:{tmp_path}"))
    assert "\n" not in str(refusal.value)
    (tmp_path / first).unlink()
    assert article_files(parse_articles(f"{kind}:{tmp_path}")) == (tmp_path / second,)


def test_files_of_one_name_in_folders_of_wikiextractor(tmp_path: Path) -> None:
    for folder in ("AA", "AB"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "wiki_00.gz").touch()
    assert len(article_files(parse_articles(f"jsonl:{tmp_path}"))) == 2


def test_a_history_is_refused_by_its_name_and_by_its_pages(tmp_path: Path) -> None:
    path = tmp_path / "w-pages-meta-history1.xml-p1p812.bz2"
    path.touch()
    for place in (tmp_path, path):
        with pytest.raises(UserError, match=r"w-pages-meta-history1\.xml-p1p812\.bz2: contains every revision"):
            article_files(parse_articles(f"dump:{place}"))
    history = page(1, "Ada", 0, ARTICLE).replace("<revision>", "<revision><text>An older text.</text></revision><revision>")
    (tmp_path / "a.xml").write_text(HEADER + history + FOOTER)
    with pytest.raises(UserError, match=r"a\.xml: page 'Ada' has 2 revisions, expected one"):
        extract_all(f"dump:{tmp_path / 'a.xml'}")


def test_corrupt_stream_header_is_reported_with_its_place(tmp_path: Path) -> None:
    multi = multistream_dump()
    path = tmp_path / "multi.xml.bz2"
    starts = [match.start() for match in re.finditer(rb"BZh91AY&SY", multi)]
    for start in starts[1:]:
        for damage in (b"\0" * 10, b"XZh91AY&SY", b"BZh91AX&SY"):
            path.write_bytes(multi[:start] + damage + multi[start + 10 :])
            with pytest.raises(UserError, match=rf"the bz2 stream at byte {start} is corrupt"):
                extract_all(f"dump:{path}")
    path.write_bytes(multi)
    cleaned = extract_all(f"dump:{path}")
    path.write_bytes(multi[: starts[3]] + bz2.compress(b"") + multi[starts[3] :])  # an empty stream is no damage
    assert extract_all(f"dump:{path}") == cleaned


def test_unreadable_parquet_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    rows = {name: [f"{name} {n}: ten words or more, so that it is no stub at all" for n in range(40)] for name in ("id", "title", "text")}
    half = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))  # no UTF-8
    for table in (pa.table({**rows, "text": [["a list"]] * 40}), pa.table({"id": ["1"], "title": ["t"], "text": half})):
        pq.write_table(table, path)
        with pytest.raises(UserError, match=r"part.parquet: cannot be read as Parquet of id, title, text"):
            extract_all(f"parquet:{path}")
    pq.write_table(pa.table(rows), path)
    content, refusals = path.read_bytes(), 0
    for place in range(4, len(content), 23):  # no checksum: some damage is read as other text, none of it is a traceback
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            extract_all(f"parquet:{path}")
        except UserError as error:
            refusals += 1
            assert str(error).startswith(str(path))
    assert refusals > 20


def test_damage_is_reported_with_its_place(tmp_path: Path) -> None:
    archive, multi = bz2.compress(WHOLE), multistream_dump()
    starts = [match.start() for match in re.finditer(rb"BZh91AY&SY", multi)]
    cases = {
        "cut.xml.bz2": (archive[:-100], f"truncated at byte {len(archive) - 100}: the bz2 stream that begins at byte 0 has no end"),
        "late.xml.bz2": (
            multi[: starts[-2] + 50],
            f"truncated at byte {starts[-2] + 50}: the bz2 stream that begins at byte {starts[-2]}",
        ),
        "edge.xml.bz2": (multi[: starts[-1]], f"truncated at byte {starts[-1]}: no </mediawiki> at the end"),
        "half.xml": (WHOLE[:-500], f"truncated at byte {len(WHOLE) - 500}: no </mediawiki>"),
        "first.xml": (WHOLE.replace(b"<page>", b"<pagx>", 1), "found the end of a page without <page> at its beginning"),
        "last.xml": (b"<page ".join(WHOLE.rsplit(b"<page>", 1)), "found the end of a page without <page> at its beginning"),
        "other.xml": (b"<rss><page>x</page></rss>", "begins with '<rss><page>x</page></rss>', expected <mediawiki"),
        "empty.xml": (b"", "begins with '', expected <mediawiki"),
        "bad.xml.bz2": (archive[:200] + b"xxxx" + archive[204:], "corrupt"),
    }
    for name, (content, line) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=re.escape(line)) as refusal:
            extract_all(f"dump:{tmp_path / name}")
        assert str(refusal.value).startswith(str(tmp_path / name)), name
    for text, line in (
        ('{"id": 1}\n', r"a.jsonl:2: found '\{\"id\": 1\}"),
        ("{\n", "a.jsonl:2: not JSON"),
        ('{"text": "x \\ud83d"}', "a.jsonl:2: the text contains an unpaired surrogate"),
        ('{"_id": "\\udc00", "text": "x"}', "a.jsonl:2: the id contains an unpaired surrogate"),
    ):
        (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' + text)
        with pytest.raises(UserError, match=line):
            extract_all(f"jsonl:{tmp_path / 'a.jsonl'}")
    for spec, line in (
        ("dump:", "expected dump:PATH"),
        ("zim:x", "unknown kind 'zim'"),
        (f"parquet:{tmp_path}", "found no"),
        ("dump:nowhere", "not found"),
    ):
        with pytest.raises(UserError, match=line):
            extract_all(spec)


def test_corrupt_source_leaves_no_partial_output(tmp_path: Path) -> None:
    (tmp_path / "cut.xml.bz2").write_bytes(bz2.compress(WHOLE)[:-100])
    (tmp_path / "few.jsonl").write_text('{"text": "A stub."}\n')
    for source, line in (("dump:cut.xml.bz2", "truncated at byte"), ("jsonl:few.jsonl", "no articles found (excluded: 1 stubs)")):
        (tmp_path / "params.yaml").write_text(f'articles: {{source: "{source}"}}\n')
        result = subprocess.run(
            [sys.executable, "-m", "tasks.articles", "--out", "out"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert result.returncode == 2 and line in result.stderr.splitlines()[-1] and "Traceback" not in result.stderr
        assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_streams_do_not_make_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump of a quarter of a million streams must not give as many row groups, each with its footer."""
    (tmp_path / "multi.xml.bz2").write_bytes(multistream_dump())
    (tmp_path / "params.yaml").write_text('articles: {source: "dump:multi.xml.bz2", least_words: 5}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["articles", "--out", "out"])
    module = import_module("tasks.articles.__main__")
    monkeypatch.setattr(module, "cores", lambda: 1)
    module.main()
    spec = parse_articles("dump:multi.xml.bz2")
    parts = [part for part in extract(spec, article_files(spec), Articles(least_words=5), 1) if part.articles]
    with pq.ParquetFile(tmp_path / "out" / "articles.parquet") as file:
        assert (file.num_row_groups, len(parts) > 2) == (1, True)
        assert [row["id"] for row in file.read().to_pylist()] == [article.id for part in parts for article in part.articles]


@pytest.mark.slow
def test_the_sample_of_the_english_wikipedia(shared_data: Path) -> None:
    """Counts against regular expressions over the raw XML; no residue of markup in 2.7 million characters."""
    [path] = (shared_data / "enwiki-sample").glob("*.bz2")
    raw = bz2.decompress(path.read_bytes()).decode()
    cleaned = extract_all(f"dump:{path}", 2)
    assert len(cleaned.articles) + sum(cleaned.dropped.values()) == raw.count("<page>") == 206
    pages = [xml for xml in re.findall(r"<page>.*?</page>", raw, re.DOTALL) if "<ns>0</ns>" in xml]
    assert cleaned.dropped["other namespaces"] == 206 - len(pages)
    assert cleaned.dropped["redirects"] == sum("<redirect " in xml for xml in pages) == 99
    text = "\n".join(article.text for article in cleaned.articles)
    assert len(text) > 2_000_000
    assert not RESIDUE.search(text)
    assert cleaned.lines["with markup"] <= 0.001 * cleaned.lines["kept"]  # 1 line is removed; a failing parser leaves thousands
    assert not re.search(r"^\s*[|!]|<(?:table|div|span|gallery)\b|\bFile:|\bCategory:", text, re.MULTILINE)


def test_a_page_that_cannot_be_parsed_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_on_lovelace(markup: str) -> tuple[str, int]:
        if "Lovelace" in markup:
            raise RecursionError
        return plain_text(markup)

    monkeypatch.setattr("tasks.articles.extract.plain_text", fail_on_lovelace)
    (tmp_path / "a.xml").write_bytes(WHOLE)
    cleaned = extract_all(f"dump:{tmp_path}")
    assert cleaned.dropped["pages whose markup cannot be parsed"] == 1
    assert len(cleaned.articles) == 29


@pytest.mark.parametrize("namespace", ["²", "--1", "9" * 5000])
def test_a_namespace_that_is_no_number_is_that_of_articles(tmp_path: Path, namespace: str) -> None:
    (tmp_path / "a.xml").write_text(WHOLE.decode().replace("<ns>0</ns>", f"<ns>{namespace}</ns>", 1), encoding="utf-8")
    assert f"<ns>{namespace}</ns>" in (tmp_path / "a.xml").read_text(encoding="utf-8")
    assert next(page.namespace for piece in split_dump(tmp_path / "a.xml") for page in read_pages(piece)) == 0
