"""How to retrain: fully, or from the champion. The part of retraining.yaml that says so, and what `auto` decides, with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from flows.retraining.news import News
from tasks.core.params.sections import Params

Mode = Literal["full", "continue", "query_tower", "index", "skip"]  # the last two are not set by hand: `auto` and a lack of news choose
FROM_CHAMPION = ("continue", "query_tower", "index")


class Retrain(Params):
    """What a retraining trains, and from which weights."""

    mode: Literal["full", "continue", "query_tower", "auto"] = Field(
        "full",
        description="full: params.yaml from the start; continue: one more round from the champion's weights; query_tower: only the "
        "champion's query tower (ADORE), over its document vectors, which are kept; auto: chosen by what is new since the champion",
    )
    systems: list[str] | None = Field(
        None,
        min_length=1,
        description="rounds, entries of adore, and fusions of params.yaml that may become champion; full runs only what they need; null: "
        "all",
    )
    replay: float = Field(
        0.25,
        ge=0,
        le=1,
        description="continue, query_tower: share of the known training queries that are trained on again together with new ones",
    )
    round: dict[str, Any] = Field(
        {}, description="continue: keys that differ from those of params.yaml's round that the champion comes from, such as lr, epochs"
    )
    adore: dict[str, Any] = Field({}, description="query_tower: keys of the entry of adore that differ from params.yaml's or the defaults")
    least_share: float = Field(
        0.01,
        ge=0,
        description="auto: train only if the new training queries since the last training are at least this share of the known ones",
    )
    document_share: float = Field(
        0.1, ge=0, description="auto: train the document tower again once the new documents since its last training reach this share"
    )
    full_share: float = Field(
        0.5,
        ge=0,
        description="auto: retrain fully once the new training queries since the last full retraining reach this share",
    )


@dataclass(frozen=True)
class Choice:
    """What to do, and why in one line."""

    mode: Mode
    why: str


@dataclass(frozen=True)
class Descent:
    """What was new in the retrainings between the last full one and the champion, summed over their records.

    `queries`: new training queries since the last full retraining, which had `queries_before`. `documents`, `documents_before`: likewise
    since the document tower was last trained. `untrained`: queries since anything was last trained; from then on it was only indexed.
    """

    queries: int = 0
    queries_before: int | None = None  # None: the champion itself is of a full retraining
    documents: int = 0
    documents_before: int | None = None  # None: the champion's own retraining trained its document tower
    untrained: int = 0

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]]) -> "Descent":
        """Sum up the records (`how`) of the champion, of the champion that it started from, and so on, up to a full retraining."""
        queries, documents, untrained = 0, 0, 0
        queries_before = documents_before = None
        trained = False  # whether any record so far has trained the document tower
        indexed = True  # whether all records so far have only indexed
        for record in records:
            if record.get("mode") not in FROM_CHAMPION:
                break
            news = record.get("news", {})
            queries, queries_before = queries + news.get("queries", 0), news.get("queries_before", 0)
            trained, indexed = trained or record["mode"] == "continue", indexed and record["mode"] == "index"
            if indexed:
                untrained = queries
            if not trained:
                documents, documents_before = documents + news.get("documents", 0), news.get("documents_before", 0)
        return cls(queries, queries_before, documents, documents_before, untrained)


def choose(
    settings: Retrain, champion: str, news: News | None, *, changed: Sequence[str], refused: Mapping[Mode, str], descent: Descent
) -> Choice:
    """Choose the mode of this retraining. `news` is None if the data is the same as the champion's.

    `changed`: the parts of the recipe that have changed since `champion`; `refused`: modes that this champion rules out, with the reason.
    """
    if settings.mode == "auto" and changed:
        return Choice("full", f"{', '.join(changed)} changed since {champion}")
    if news is None:
        return Choice("skip", f"no document and no training query is new since {champion}")
    queries = descent.untrained + news.queries
    summary = f"{news.line} since {champion}" + (
        f", {descent.untrained:,} more {'query' if descent.untrained == 1 else 'queries'} since it was trained" if descent.untrained else ""
    )
    if settings.mode == "auto" and (due := _due_by_sum(settings, news, descent, summary=summary)):
        return _allowed_or_full(refused, due)
    least = max(1.0, settings.least_share * (news.queries_before - descent.untrained)) if settings.mode == "auto" else 1.0
    if queries < least:
        few = "too few to train on" if queries else "nothing to train on"
        if not (news.documents or news.removed):
            return Choice("skip", f"{summary}: {few}, and the index is complete")
        return _allowed_or_full(refused, Choice("index", f"{summary}: {few}; the champion is indexed with them"))
    if settings.mode != "auto":
        return Choice(settings.mode, summary)
    return _allowed_or_full(refused, Choice("query_tower", f"{summary}: few or no documents are new since their tower was trained"))


def _due_by_sum(settings: Retrain, news: News, descent: Descent, *, summary: str) -> Choice | None:
    """A full retraining, or one of the document tower, if the small batches of many retrainings add up to it; else None.

    However few queries are new today.
    """
    queries = (descent.queries + news.queries) / max(1, news.queries_before if descent.queries_before is None else descent.queries_before)
    if queries >= settings.full_share:
        return Choice("full", f"{summary}: {queries:.0%} since the last full one, {settings.full_share:.0%} or more")
    if not (descent.untrained + news.queries or settings.replay):  # no query would be left to train on
        return None
    documents = descent.documents + news.documents
    documents_share = documents / max(1, news.documents_before if descent.documents_before is None else descent.documents_before)
    if documents_share >= settings.document_share:
        share = f"{documents_share:.0%} of documents since their tower was trained, {settings.document_share:.0%} or more"
        return Choice("continue", f"{summary}: {share}")
    return None


def _allowed_or_full(refused: Mapping[Mode, str], choice: Choice) -> Choice:
    """`choice`, or a full retraining if the champion rules that mode out."""
    return Choice("full", f"{refused[choice.mode]}, so no {choice.mode}") if choice.mode in refused else choice
