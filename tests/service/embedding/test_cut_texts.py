"""A text that is cut before it is tokenized has the ids and places of the whole text, by the tokenizers library."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.embedding.requests import Cut, Direction, Text
from service.embedding.tokenize import text_tokens
from service.embedding.tokenize.tokenizer import Tokenizer, beside
from service.errors import TooLarge, TooLong, Unavailable
from service.heavy.lane import HeavyLane, serving
from service.scheduling.memory_budget import MemoryBudget
from tests.minilm_golden import checkpoint
from tests.service.embedding.tokenizers_of_each_kind import KINDS, library_tokenizer, write

PIECES = (
    *(
        "a",
        "ab",
        "!",
        "각!",
        "今天",
        "=",
        "1",
        "12345",
        "it's ",
        "I'M ",
        " ",
        "\n",
        "\t ",
        "a\u0301",
        "\u0323",
        "\u0301",
    ),
    *(
        "<mask>",
        " <mask> ",
        "[SEP]",
        "the word ",
        "ﬁ",
        "🍕",
        "👩\u200d",
        "\u00ad",
        "\x00",
        "Straße ",
        "don",
        "'",
        "x\r\n",
    ),
    *("ᄀ", "ᅡ", "▁", "\ufffd", "some words of a text. "),
)
kinds = pytest.mark.parametrize("kind", KINDS)
repeated = st.builds(
    lambda pieces, size: ("".join(pieces) * size)[:size],
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=6),
    st.sampled_from((1, 40, 2600)),
)
texts = st.lists(repeated, min_size=1, max_size=3).map("".join)
directions = st.sampled_from(("right", "left"))


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return cache(lambda kind: Tokenizer(write(kind, folder), may_be_empty=(True, True)))


def expected(kind: str, text: str, cut: Cut) -> tuple[list[int], Any, int]:
    """The ids of the whole text cut afterwards, the places of its own tokens that are left, and how many it has."""
    judge, most = library_tokenizer(kind), cut.most or 0
    whole = judge.encode(text, add_special_tokens=cut.special_tokens)
    own = np.flatnonzero(np.array(whole.special_tokens_mask) == 0)
    keep = min(len(own), most - (len(whole) - len(own)))
    left = own[len(own) - keep :] if cut.direction == "left" else own[:keep]
    removed = {*own.tolist()} - {*left.tolist()}
    ids = [id_ for place, id_ in enumerate(whole.ids) if place not in removed]
    return ids, np.array(whole.offsets).reshape(-1, 2)[left], len(own)


@kinds
@settings(max_examples=50)
@given(text=texts, most=st.sampled_from((5, 9, 64)), direction=directions, special=st.booleans())
def test_ids_and_places_are_those_of_the_whole_text(
    make: Callable[[str], Tokenizer], kind: str, text: str, most: int, direction: Direction, special: bool
) -> None:
    tokenizer, cut = make(kind), Cut(True, direction, None, special, most)
    ids, places, total = expected(kind, text, cut)
    (sequence,) = tokenizer.encode({7: Text(text)}, cut).values()
    assert sequence.ids.tolist() == ids
    assert sequence.cut == (total > len(places))
    located_ids, located = tokenizer.encode_located({7: Text(text)}, cut, "")
    assert located_ids[7].ids.tolist() == ids
    assert located[7].total in ((None, total) if direction == "right" else (total,))
    if located[7].starts is not None and located[7].stops is not None and len(places):
        assert located[7].starts.tolist() == np.minimum.accumulate(places[::-1, 0])[::-1].tolist()
        assert located[7].stops.tolist() == np.maximum.accumulate(places[:, 1]).tolist()


@kinds
@settings(max_examples=50)
@given(one=texts, other=texts, most=st.sampled_from((64, 65)), direction=directions, special=st.booleans())
def test_pairs_are_cut_as_the_library_cuts_them(
    make: Callable[[str], Tokenizer], kind: str, one: str, other: str, most: int, direction: Direction, special: bool
) -> None:
    judge = library_tokenizer(kind)
    (whole,) = judge.encode_batch_fast([(one, other)], add_special_tokens=special)
    judge.enable_truncation(most, strategy="longest_first", direction=direction)
    try:
        (encoding,) = judge.encode_batch_fast([(one, other)], add_special_tokens=special)
    finally:
        judge.no_truncation()
    (sequence,) = make(kind).encode({0: Text(one, other)}, Cut(True, direction, None, special, most)).values()
    assert sequence.ids.tolist() == encoding.ids
    assert sequence.types is not None
    assert sequence.types.tolist() == encoding.type_ids
    assert sequence.cut == (len(whole) > most)


# ---- cost


def read(kind: str, text: str, most: int) -> tuple[text_tokens.TextTokens, int]:
    """What is read of a text, and the characters that were tokenized for it."""
    sizes: list[int] = []

    def encode(pieces: list[str], **options: Any) -> Any:
        sizes.extend(map(len, pieces))
        return library_tokenizer(kind).encode_batch_fast(pieces, **options)

    return text_tokens.read_tokens(encode, text, most), sum(sizes)


@kinds
@pytest.mark.parametrize("piece", ["some words of a text ", "각!", "今天天气很好，我们去公园散步。"])
def test_characters_that_the_model_cannot_read_cost_nothing(kind: str, piece: str) -> None:
    part, characters = read(kind, piece * (200_000 // len(piece)), 256)
    assert len(part.ids) == 256
    assert part.total is None
    assert characters <= text_tokens.whole_characters(256) + text_tokens.ENDS


def test_no_piece_ends_where_the_rest_could_change_it() -> None:
    for text in ("a" + " " * 30_000 + "<mask>", "a" + "\u0301" * 30_000 + "\u0323"):
        assert read("bytes", text, 8)[0].total is not None


def test_what_is_left_over_of_one_character_may_come_first() -> None:
    for size in range(30_000, 30_016):
        whole = library_tokenizer("unigram_one_word").encode("a" * size, add_special_tokens=False)
        assert read("unigram_one_word", "a" * size, 8)[0].ids.tolist() == whole.ids[:8]


LARGE = """
import resource, sys
from pathlib import Path
from service.embedding.requests import Cut, Text
from service.embedding.tokenize.tokenizer import Tokenizer
tokenizer, cut = Tokenizer(Path(sys.argv[1])), Cut(most=256)
tokenizer.encode({0: Text("a")}, cut)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for text in (Text("!" * 16_000, "!" * 16_000), Text("각!" * (1 << 20)), Text("a b " * (1 << 18), "c " * (1 << 19))):
    assert len(tokenizer.encode({0: text}, cut)[0].ids) == 256
tokenizer.encode_located({0: Text("각!" * (1 << 20))}, cut, "")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_the_longest_texts_and_pairs_need_little_memory() -> None:
    path = checkpoint() / "tokenizer.json"
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(path)], capture_output=True, text=True, timeout=300, check=True
    )
    assert int(done.stdout) < 100 << 10  # KiB: the texts themselves have 8 MB


async def test_a_long_text_is_tokenized_by_the_heavy_process(tmp_path: Path) -> None:
    path = write("wordpiece", tmp_path)
    tokenizer, texts = Tokenizer(path), {3: Text("a long text " * 6000)}
    work = 72_000, MemoryBudget(80 << 20), tokenizer.encode, texts
    with serving(HeavyLane(1, 256 << 20, 60.0)):
        read = await beside(*work, Cut())
        assert read[3].ids.tolist() == tokenizer.encode(texts, Cut())[3].ids.tolist()
    write("unigram", tmp_path).rename(path)
    with serving(HeavyLane(1, 256 << 20, 60.0)):
        await beside(*work, Cut(most=256))  # which this process reads
        with pytest.raises(Unavailable, match="exchanged meanwhile"):
            await beside(*work, Cut())


async def test_memory_for_a_long_text_is_reserved_without_it(tmp_path: Path) -> None:
    tokenizer, texts = Tokenizer(write("wordpiece", tmp_path)), {0: Text("a " * 18_000)}
    with pytest.raises(TooLarge, match="needs 39600000 bytes of memory"):
        await beside(36_000, MemoryBudget(1 << 20), tokenizer.encode, texts, Cut())


@pytest.mark.parametrize(("text", "count"), [("a " * 300, "302"), ("a " * 100_000, "more than 256")])
def test_the_error_counts_tokens_where_they_are_known(tmp_path: Path, text: str, count: str) -> None:
    tokenizer = Tokenizer(write("wordpiece", tmp_path))
    with pytest.raises(TooLong, match=rf"has {count} tokens; this model reads 256"):
        tokenizer.encode({0: Text(text)}, Cut(truncate=False, most=256))
