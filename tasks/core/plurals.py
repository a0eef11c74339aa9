"""Numbers with their nouns, in messages and in artifacts."""


def counted(count: int, nouns: str) -> str:
    """`2 documents without text`, but `1 document without text`. `nouns` begins with a plural."""
    plural, space, rest = nouns.partition(" ")
    singular = {"queries": "query", "batches": "batch", "entries": "entry", "searches": "search"}.get(plural, plural.removesuffix("s"))
    return f"{count:,} {singular if count == 1 else plural}{space}{rest}"
