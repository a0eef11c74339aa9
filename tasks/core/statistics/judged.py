"""Which dev queries count: those that people judged, not those of a click log, which favor the model that showed the documents."""

from collections.abc import Collection

CLICKED = "click-"  # begins the ids of queries of a click log
CLICKS = "clicks"  # in metrics and values, beside dev and test: the dev queries of a click log, measured apart


def judged_queries(queries: Collection[str]) -> list[str]:
    """The queries that do not come from a click log; all of them if there are no others."""
    return [query for query in queries if not query.startswith(CLICKED)] or list(queries)


def parts(split: str, queries: Collection[str]) -> dict[str, list[str]]:
    """The queries of a split by the name under which they are measured: dev without CLICKS, and these; another split as it is."""
    if split != "dev":
        return {split: list(queries)}
    judged = judged_queries(queries)
    clicked = [query for query in queries if query.startswith(CLICKED)] if len(judged) < len(queries) else []
    return {split: judged} | ({CLICKS: clicked} if clicked else {})
