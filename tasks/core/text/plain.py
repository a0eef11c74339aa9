"""What makes two queries the same: a training query with the plain text of one of dev or test is a leak."""


def plain(text: str) -> str:
    """A text without case, and with single blanks."""
    return " ".join(text.casefold().split())
