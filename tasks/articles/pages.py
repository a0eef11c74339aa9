"""A page of any source, and which pages are not articles."""

import re
from typing import NamedTuple

from tasks.articles.params import Articles

REDIRECT, OTHER, DISAMBIGUATION, LIST, STUB = "redirects", "other namespaces", "disambiguations", "lists", "stubs"
UNREADABLE = "pages whose markup cannot be parsed"

_REDIRECT = re.compile(r"\s*#\s*redirect\b", re.IGNORECASE)
_LIST = re.compile(r"(lists? of|index of|outline of|timeline of|glossary of) ", re.IGNORECASE)
_DISAMBIGUATION = re.compile(  # templates of en.wikipedia's Category:Disambiguation message boxes, and set index articles
    r"\{\{\s*((?!r |needs? )([\w'./-]+ ){0,5}disambig(uation)?( cleanup)?|dab|disamb|hndis|geodis|mathdab|roaddis|schooldis|stationdis"
    r"|hospitaldis|numberdis|mil-unit-dis|surname|given name|set index( article)?|sia"
    r"|(chemistry|enzyme|lake|locomotive|mountain|river|road|ship|sport|storm) ?index)\s*(\||\}\})",
    re.IGNORECASE,
)
_MEANINGS = re.compile(  # "may also refer to:", "can stand for one of the following:", "most commonly refers to:"
    r"\b((may|can|could|might) (also |most commonly |commonly )?(refer to|mean|stand for)"
    r"|((most )?(commonly|often|usually|frequently) |also )refers to)( several| one of| any of| the)*[\w ]{0,40}:"
)
_BEGINNING = 300  # characters: room for a title and one meaning before the phrase


class Page(NamedTuple):
    """A page as its source has it. `text` is wiki markup if `markup` is set."""

    id: str
    title: str
    text: str
    namespace: int = 0
    redirect: bool = False
    markup: bool = False


class Article(NamedTuple):
    """An article as plain text, paragraphs on lines of their own."""

    id: str
    title: str
    text: str


def exclusion_reason(page: Page, params: Articles) -> str | None:
    """Why a page is excluded, before its text is cleaned; None if it is an article."""
    if page.namespace != 0:
        return OTHER
    if not params.redirects and (page.redirect or _REDIRECT.match(page.text)):
        return REDIRECT
    if not params.disambiguations and is_disambiguation(page):
        return DISAMBIGUATION
    if not params.lists and _LIST.match(page.title):
        return LIST
    return None


def is_disambiguation(page: Page) -> bool:
    """Whether a page is a disambiguation, by its title, its template, or, in plain text, its beginning ("Mercury may refer to:")."""
    if page.title.endswith("(disambiguation)"):
        return True
    return bool(_DISAMBIGUATION.search(page.text) if page.markup else _MEANINGS.search(page.text, 0, _BEGINNING))


def long_lines(text: str, least_words: int) -> str:
    """The lines that have at least `least_words` words, with spaces folded."""
    lines = (line.split() for line in text.splitlines())
    return "\n".join(" ".join(words) for words in lines if len(words) >= least_words)
