"""What makes two queries the same, an id of a text that has none, and the split of a query: one of train with the plain text of one of dev
or test is a leak."""

from dataclasses import dataclass
from hashlib import blake2b, sha256

SHARE = 0.1  # of the training queries, where a split has none
DIGITS = 16  # of an id
SHARES = 1 << 32  # a query's hash modulo this decides its split


def plain(text: str) -> str:
    """A text without case, and with single blanks."""
    return " ".join(text.casefold().split())


def digest(text: str, title: str = "") -> str:
    """What texts have that are equal but for case and blanks."""
    told = f"{plain(title)}\n{plain(text)}" if title.strip() else plain(text)
    return sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def named(what: str, record: str, shown: str = "") -> str:
    """A document or a query in a message: with its id (or how that is `shown`), but not where that is made of an empty text."""
    return f"the {what}" if record == digest("") else f"{what} {shown or record}"


def is_dev(query: str, share: float) -> bool:
    """Whether a query is held out: by a hash of its plain text, so that it is in every batch, and in every file that grows."""
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
