"""When two queries are the same, an id for a text without one, and the split of a query.

A training query with the plain text of a dev or test query is a leak.
"""

from dataclasses import dataclass
from hashlib import blake2b, sha256

SHARE = 0.1  # of the training queries, where a split has none
DIGITS = 16  # of an id
SHARES = 1 << 32  # a query's hash modulo this decides its split


def plain(text: str) -> str:
    """A text with case folded and white space reduced to single blanks."""
    return " ".join(text.casefold().split())


def digest(text: str, title: str = "") -> str:
    """An id made of a text; texts that differ only in case and blanks have the same one."""
    content = f"{plain(title)}\n{plain(text)}" if title.strip() else plain(text)
    return sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def record_label(kind: str, record: str, shown: str = "") -> str:
    """A document or a query as a message names it: by its id, or by `shown` in its place, but not by an id made of an empty text."""
    return f"the {kind}" if record == digest("") else f"{kind} {shown or record}"


def is_dev(query: str, share: float) -> bool:
    """Whether a query is held out, by a hash of its plain text: so it is held out in every batch, and however a file grows."""
    return int.from_bytes(blake2b(query.encode("utf-8", "replace"), digest_size=4, person=b"split").digest(), "big") < share * SHARES


@dataclass(frozen=True)
class Shares:
    """The shares of the training queries that become dev and test."""

    dev: float = 0.0
    test: float = 0.0

    def split(self, split: str, query: str) -> str:
        """The split of a query of `split`, by its text."""
        if split != "train":
            return split
        text = plain(query)
        return "dev" if is_dev(text, self.dev) else "test" if is_dev(text, self.dev + self.test) else split
