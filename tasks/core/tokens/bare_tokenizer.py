"""A tokenizer without transformers, whose import takes each of many processes a second and 150 MB.

For tokenizers that split at white space (tasks.core.tokens.words), whose file describes everything that transformers does with them.
"""

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from tasks.core.tokens.words import word_by_word

FILE = "tokenizer.json"


class Known(NamedTuple):
    """Facts about a tokenizer that transformers has and the file lacks."""

    pad_token_id: int
    cls_token_id: int | None


def known_of(tokenizer: Any, folder: Path) -> Known | None:
    """The facts that `BareTokenizer` needs to give the same tokens as `tokenizer`, which is loaded from `folder`; None if it would not."""
    if not word_by_word(tokenizer) or tokenizer.split_special_tokens or not (folder / FILE).is_file():
        return None
    contents = []
    for backend in (tokenizer.backend_tokenizer, Tokenizer.from_file(str(folder / FILE))):
        backend.no_truncation()  # a file may have what an earlier call left; each call sets its own
        backend.no_padding()
        contents.append(backend.to_str())
    return Known(*(getattr(tokenizer, name) for name in Known._fields)) if contents[0] == contents[1] else None


class Encoded(dict[str, Any]):
    """The tokens of a text, or of many, as transformers names them."""

    def __init__(self, encodings: list[Encoding], many: bool) -> None:
        self._encodings = encodings
        ids, special = ([getattr(encoding, name) for encoding in encodings] for name in ("ids", "special_tokens_mask"))
        super().__init__(input_ids=ids if many else ids[0], special_tokens_mask=special if many else special[0])

    def word_ids(self, number: int = 0) -> list[int | None]:
        ids: list[int | None] = self._encodings[number].word_ids
        return ids


class BareTokenizer:
    """Called like transformers' fast tokenizer, as far as documents and articles need it."""

    truncation_side = "right"  # of all that split at white space

    def __init__(self, folder: Path, known: Known) -> None:
        self.backend_tokenizer = Tokenizer.from_file(str(folder / FILE))
        self.backend_tokenizer.no_padding()
        self.pad_token_id, self.cls_token_id = known

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def __call__(
        self, text: str | list[str], *, add_special_tokens: bool = True, truncation: bool = False, max_length: int | None = None, **_: Any
    ) -> Encoded:
        """Other arguments are ignored: in transformers they add outputs, and change no ids."""
        if truncation:
            assert max_length is not None, "a file does not say a model's limit"
            self.backend_tokenizer.enable_truncation(max_length)
        else:
            self.backend_tokenizer.no_truncation()
        many = isinstance(text, list)
        return Encoded(self.backend_tokenizer.encode_batch(text if many else [text], add_special_tokens=add_special_tokens), many)
