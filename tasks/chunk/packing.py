"""Pack sentences, as tokens, into chunks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass
class Packed:
    """A chunk without its special tokens; `starts` are the positions of its sentences' first tokens, from 0."""

    ids: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def add(self, sentence: list[int]) -> None:
        self.starts.append(len(self.ids))
        self.ids += sentence


def pack(sentences: Iterable[tuple[list[int], list[int | None]]], room: int) -> Iterator[Packed]:
    """Pack whole sentences into chunks of at most `room` tokens, each as full as whole sentences allow.

    A sentence is its token ids and, if it is longer than `room`, the word that each token belongs to. A long sentence is split
    between words, or anywhere if a single word is longer.
    """
    chunk = Packed()
    for ids, words in sentences:
        if chunk.ids and len(chunk.ids) + len(ids) > room:
            yield chunk
            chunk = Packed()
        while len(ids) > room:
            cut = next((place for place in range(room, 0, -1) if words[place] != words[place - 1]), room)
            yield Packed(ids[:cut], [0])
            ids, words = ids[cut:], words[cut:]
        if ids:
            chunk.add(ids)
    if chunk.ids:
        yield chunk
