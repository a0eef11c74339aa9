"""Escape ids for TREC lines, whose fields are separated by blanks.

An id with white space is written as %00 plus its percent-encoding (RFC 3986): `doc 1` as `%00doc%201`. Every other id is written as it
is, even `a%20b`: %00 encodes a character that no id begins with, and an id that begins with these three characters is encoded too. So
`unescape(escape(id)) == id` for every id, and no parameter needs to say whether a file has escaped ids.
"""

import re
from urllib.parse import quote, unquote

MARK = "%00"
WHITE = re.compile(r"\s", re.ASCII)  # what TREC tools split lines at
NEEDED = rf"[\t\n\v\f\r ]|^{MARK}"  # for pyarrow: an id that `escape` changes
_ENCODED = re.compile(r"[%\s]", re.ASCII)


def escape(name: str) -> str:
    """The id as written in a TREC line."""
    if not WHITE.search(name) and not name.startswith(MARK):
        return name
    return MARK + _ENCODED.sub(lambda match: quote(match[0]), name)


def unescape(field: str) -> str:
    """The id that `escape` wrote as `field`."""
    return unquote(field[len(MARK) :]) if field.startswith(MARK) else field
