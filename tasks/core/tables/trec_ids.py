"""Ids as TREC lines can hold them, whose fields are separated by blanks.

An id with white space is written as %00 and its percent-encoding (RFC 3986): `doc 1` as `%00doc%201`. Every other id is written as it
is, `a%20b` too: %00 stands for a character that no id begins with, and one that begins with these three is encoded itself. So
`unescape(escape(id)) == id` for every id, and no parameter has to say whether a file holds escaped ones.
"""

import re
from urllib.parse import quote, unquote

MARK = "%00"
WHITE = re.compile(r"\s", re.ASCII)  # what TREC tools split lines at
NEEDED = rf"[\t\n\v\f\r ]|^{MARK}"  # for pyarrow: an id that `escape` changes
_ENCODED = re.compile(r"[%\s]", re.ASCII)


def escape(name: str) -> str:
    """The id as it stands in a TREC line."""
    if not WHITE.search(name) and not name.startswith(MARK):
        return name
    return MARK + _ENCODED.sub(lambda found: quote(found[0]), name)


def unescape(field: str) -> str:
    """The id that `escape` has written."""
    return unquote(field[len(MARK) :]) if field.startswith(MARK) else field
