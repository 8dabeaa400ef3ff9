"""The vector cache: pooled vectors of texts and token ids that were computed before, for each loaded model.

Only pooled vectors are kept: one of 384 values takes 2 KiB with all that belongs to it, the rows of its text's tokens
twenty times as much and more. They are kept as they are before they are cut, normalised and cast, so requests that
differ in these options alone share an entry. No text is kept, only its SHA-256.

Exported encoders give a text the same bits in every batch, so what is kept is what would be computed. Of an adopted
graph that pads its batches, whose last bits depend on them, it is what was computed once.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from service.embedding.model import Model
from service.embedding.requests import Ids, Input, Picture, Text

ENTRY_BYTES = 480  # of memory beside the vector: key, numbers, and what Python needs to find them
_Entries = OrderedDict[bytes, tuple[bytes, int, bool]]
"""Entries of one model, the least recently used first: a vector as bytes (100 fewer than an array), tokens, cut."""


class VectorCache:
    """Pooled vectors of all models, at most `max_bytes` together.

    The least recently used of the model with the most make room. Entries belong to a loaded model and not to its name:
    they are freed with it, when it is replaced or unloaded and its last request is done.

    Args:
        max_bytes: bytes of memory, with keys and everything else that belongs to the entries; 0: nothing is kept.
        count: called after each look-up with the model's name, and how many inputs were found and not found.
    """

    def __init__(self, max_bytes: int, count: Callable[[str, int, int], None] = lambda *_: None) -> None:
        self.max_bytes = max_bytes
        self._count = count
        self._models: WeakKeyDictionary[Model, _Entries] = WeakKeyDictionary()

    @property
    def held_bytes(self) -> int:
        """The bytes of all entries."""
        return sum([_size(entries) for entries in self._models.values()])

    def find(self, model: Model, keys: Sequence[bytes]) -> Iterator[tuple[int, Ids, NDArray[np.float32]]]:
        """Yield the number of each key that has an entry, zeros for the ids that were read, and the vector [1, d]."""
        entries: _Entries = self._models.get(model) or OrderedDict()
        found = [number for number, key in enumerate(keys) if key in entries]
        self._count(model.card.name, len(found), len(keys) - len(found))
        for number in found:
            entries.move_to_end(keys[number])
            vector, tokens, cut = entries[keys[number]]
            yield number, Ids(np.broadcast_to(np.int64(0), tokens), cut=cut), np.frombuffer(vector, np.float32)[None]

    def keep(self, model: Model, key: bytes, read: Ids, vector: NDArray[np.float32]) -> None:
        """Keep the vector of an input that was read as these ids; all vectors of a model have one width."""
        if ENTRY_BYTES + vector.nbytes > self.max_bytes:
            return
        self._models.setdefault(model, OrderedDict())[key] = vector.tobytes(), read.tokens, read.cut
        while self.held_bytes > self.max_bytes:
            max(self._models.values(), key=_size).popitem(last=False)


def _size(entries: _Entries) -> int:
    return len(entries) * (ENTRY_BYTES + len(next(iter(entries.values()))[0])) if entries else 0


def keys_of(inputs: Sequence[Input], ids: Sequence[Ids | None], *options: object) -> list[bytes]:
    """Return a key for each input of a request: the SHA-256 of everything that determines its pooled vector.

    Args:
        ids: the token ids of each input as they are read; None: it is a text.
        options: what determines the vectors besides the inputs. With API keys the caller's name is among them, so that
            no time tells a caller what another one sent.
    """
    digest = sha256(ascii(options).encode()).digest()
    return [sha256(digest + _bytes_of(item, sequence)).digest() for item, sequence in zip(inputs, ids, strict=True)]


def _bytes_of(item: Input, sequence: Ids | None) -> bytes:
    match item:
        case Text():
            return _text_bytes(item)
        case Picture(data):
            return b"image " + data
    return _ids_bytes(sequence or item)


def _text_bytes(item: Text) -> bytes:
    text = item.text.encode("utf-8", "surrogatepass")
    if item.pair is None:
        return b"text " + text
    return b"pair %d " % len(text) + text + item.pair.encode("utf-8", "surrogatepass")


def _ids_bytes(sequence: Ids) -> bytes:
    """Return the bytes of all arrays after a description of them, so that no two sequences share them."""
    ids, mask, types, positions, extras, cut = sequence[:6]
    arrays = {"ids": ids, "mask": mask, "types": types, "positions": positions, **(extras or {})}
    sent = {name: values for name, values in arrays.items() if values is not None}
    form = repr((cut, [(name, values.shape) for name, values in sent.items()]))
    return b"".join([form.encode(), *[values.tobytes() for values in sent.values()]])
