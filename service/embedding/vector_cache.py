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
from itertools import count as counter
from weakref import WeakKeyDictionary

import numpy as np

from service.embedding.model import Model
from service.embedding.outputs.kind import Kept
from service.embedding.requests import Cut, Ids, Input, Text
from service.embedding.tokenize.packing import NO_TASK

ENTRY_BYTES = 480  # of memory beside the vector: key, numbers, and what Python needs to find them


class _Entry:
    """A vector as bytes, which take 100 bytes less than an array and keep no other array alive."""

    __slots__ = ("cut", "tokens", "used", "vector")

    def __init__(self, kept: Kept, used: int) -> None:
        self.vector, self.tokens, self.cut = kept.vector.tobytes(), kept.tokens, kept.cut
        self.used = used

    def kept(self) -> Kept:
        return Kept(np.frombuffer(self.vector, np.float32)[None], self.tokens, self.cut)


_Entries = OrderedDict[bytes, _Entry]  # of one model, the least recently used first


class VectorCache:
    """Pooled vectors of all models, at most `max_bytes` together; the least recently used make room for new ones.

    Entries belong to a loaded model and not to its name: they are freed with it, when it is replaced or unloaded and
    its last request is done.

    Args:
        max_bytes: bytes of memory, with keys and everything else that belongs to the entries; 0: nothing is kept.
        count: called after each look-up with the model's name, and how many inputs were found and not found.
    """

    def __init__(self, max_bytes: int, count: Callable[[str, int, int], None] = lambda *_: None) -> None:
        self.max_bytes = max_bytes
        self._count = count
        self._models: WeakKeyDictionary[Model, _Entries] = WeakKeyDictionary()
        self._used = counter()

    @property
    def held_bytes(self) -> int:
        """The bytes of all entries."""
        return sum([len(entries) * (ENTRY_BYTES + len(_oldest(entries).vector)) for entries in self._filled()])

    def find(self, model: Model, keys: Sequence[bytes]) -> list[Kept | None]:
        """Return the entry of each key, None for keys without one."""
        entries: _Entries = self._models.get(model) or OrderedDict()
        found = [entries.get(key) for key in keys]
        for key, entry in zip(keys, found, strict=True):
            if entry is not None:
                entry.used = next(self._used)
                entries.move_to_end(key)
        missed = found.count(None)
        self._count(model.card.name, len(found) - missed, missed)
        return [None if entry is None else entry.kept() for entry in found]

    def keep(self, model: Model, key: bytes, kept: Kept) -> None:
        """Keep the vector of an input; all vectors of a model have one width."""
        if ENTRY_BYTES + kept.vector.nbytes > self.max_bytes:
            return
        entries = self._models.setdefault(model, OrderedDict())
        entries[key] = _Entry(kept, next(self._used))
        while self.held_bytes > self.max_bytes:
            min(self._filled(), key=lambda entries: _oldest(entries).used).popitem(last=False)

    def _filled(self) -> Iterator[_Entries]:
        return (entries for entries in self._models.values() if entries)


def _oldest(entries: _Entries) -> _Entry:
    return next(iter(entries.values()))


def keys_of(
    inputs: Sequence[Input],
    ids: Sequence[Ids | None],
    form: tuple[object, ...] | None,
    prompt: str,
    cut: Cut,
    task: int = NO_TASK,
    key_name: str = "",
) -> list[bytes]:
    """Return a key for each input of a request: the SHA-256 of everything that determines its pooled vector.

    With API keys each has entries of its own, so that no time tells a caller what another one sent.

    Args:
        ids: the token ids of each input as they are read; None: it is a text.
        form: what determines the vectors besides the inputs.
        prompt: the prompt before each text.
        cut: how texts are cut.
        task: the number of the task whose adapters are used.
        key_name: the name of the caller's API key.
    """
    options = sha256(ascii((key_name, form, prompt, cut, task)).encode()).digest()
    return [
        sha256(options + (_text_bytes(item) if isinstance(item, Text) else _ids_bytes(sequence or item))).digest()
        for item, sequence in zip(inputs, ids, strict=True)
    ]


def _text_bytes(item: Text) -> bytes:
    text = item.text.encode("utf-8", "surrogatepass")
    return (
        b"text " + text
        if item.pair is None
        else b"pair %d " % len(text) + text + item.pair.encode("utf-8", "surrogatepass")
    )


def _ids_bytes(sequence: Ids) -> bytes:
    """Return the bytes of all arrays after a description of them, so that no two sequences share them."""
    ids, mask, types, positions, extras, cut = sequence[:6]
    arrays = {"ids": ids, "mask": mask, "types": types, "positions": positions, **(extras or {})}
    sent = {name: values for name, values in arrays.items() if values is not None}
    form = repr((cut, [(name, values.shape) for name, values in sent.items()]))
    return b"".join([form.encode(), *[values.tobytes() for values in sent.values()]])
