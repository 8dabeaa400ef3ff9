"""Random changes to inputs that were taken: what fuzzes where atheris is not installed. Sees no coverage."""

import random
from collections.abc import Sequence

ENDS = (0, 1, 2, 127, 128, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1)
LONGEST = 4096


def mutated(seeds: Sequence[bytes], words: Sequence[bytes], choose: random.Random) -> bytes:
    """One of the seeds with one to eight changes."""
    data = bytearray(choose.choice(seeds))
    for _ in range(choose.randint(1, 8)):
        choose.choice(CHANGES)(data, words, seeds, choose)
    return bytes(data[:LONGEST])


Change = tuple[bytearray, Sequence[bytes], Sequence[bytes], random.Random]


def _at(data: bytearray, choose: random.Random) -> int:
    return choose.randrange(len(data) + 1)


def _flip(data: bytearray, words: Sequence[bytes], seeds: Sequence[bytes], choose: random.Random) -> None:
    if data:
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def _replace(data: bytearray, words: Sequence[bytes], seeds: Sequence[bytes], choose: random.Random) -> None:
    if data:
        data[choose.randrange(len(data))] = choose.randrange(256)


def _number(data: bytearray, words: Sequence[bytes], seeds: Sequence[bytes], choose: random.Random) -> None:
    size, at = choose.choice((1, 2, 4, 8)), _at(data, choose)
    value = (choose.choice(ENDS) + choose.randint(-1, 1)) % (1 << 8 * size)
    data[at : at + size] = value.to_bytes(size, "little")


def _cut(data: bytearray, words: Sequence[bytes], seeds: Sequence[bytes], choose: random.Random) -> None:
    at = _at(data, choose)
    del data[at : at + choose.randint(1, 16)]


def _shorten(data: bytearray, words: Sequence[bytes], seeds: Sequence[bytes], choose: random.Random) -> None:
    del data[_at(data, choose) :]


def _repeat(data: bytearray, words: Sequence[bytes], seeds: Sequence[bytes], choose: random.Random) -> None:
    at, size = _at(data, choose), choose.randint(1, 32)
    data[at:at] = data[at : at + size] * choose.choice((1, 1, 2, 50))


def _insert(data: bytearray, words: Sequence[bytes], seeds: Sequence[bytes], choose: random.Random) -> None:
    at = _at(data, choose)
    word = choose.choice(words) if words else choose.randbytes(choose.randint(1, 8))
    data[at : at + choose.choice((0, len(word)))] = word


def _cross(data: bytearray, words: Sequence[bytes], seeds: Sequence[bytes], choose: random.Random) -> None:
    other, at = choose.choice(seeds), _at(data, choose)
    begin = choose.randrange(len(other) + 1)
    data[at:] = other[begin:]


CHANGES = (_flip, _replace, _number, _cut, _shorten, _repeat, _insert, _insert, _cross)
