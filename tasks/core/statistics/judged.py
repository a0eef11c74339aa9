"""Which dev queries count: those that people judged, not those of a click log, which favor the model that showed the documents."""

import re
from collections.abc import Collection
from hashlib import blake2b

CLICKS = "clicks"  # in metrics and values, beside dev and test: the dev queries of a click log, measured apart
_CLICK = re.compile(r"click-[0-9a-f]{16}")


def click_id(query: str) -> str:
    """The id of a query of a click log, computed from its plain text, so that it is the same in every batch."""
    return "click-" + blake2b(query.encode("utf-8", "replace"), digest_size=8).hexdigest()


def is_click(query: str) -> bool:
    """Whether a query's id is a `click_id`."""
    return bool(_CLICK.fullmatch(query))


def judged_queries(queries: Collection[str]) -> list[str]:
    """The queries that do not come from a click log; all of them if there are no others."""
    return [query for query in queries if not is_click(query)] or list(queries)


def parts(split: str, queries: Collection[str]) -> dict[str, list[str]]:
    """The queries of a split by the name under which they are measured: dev without CLICKS, and these; another split as it is."""
    if split != "dev":
        return {split: list(queries)}
    judged = judged_queries(queries)
    clicked = [query for query in queries if is_click(query)] if len(judged) < len(queries) else []
    return {split: judged} | ({CLICKS: clicked} if clicked else {})
