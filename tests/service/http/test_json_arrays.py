"""Large documents: orjson's own bytes, written in slices and beside the event loop."""

import base64
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from service.http import json_arrays as numbers
from service.http import worker_threads

RNG = np.random.default_rng(5)
LARGE = numbers.INLINE_VALUES + 1


@pytest.mark.parametrize(
    "rows",
    [
        RNG.normal(size=(300, 384)).astype(np.float32),
        RNG.normal(size=(300, 384)).astype(np.float16),
        RNG.normal(size=LARGE),
        RNG.integers(0, 99, size=(5, 40_000)),
        RNG.normal(size=(1, LARGE)),  # a row longer than a slice
        RNG.normal(size=(700, 10, 20)),
        np.zeros((LARGE, 0)),
        np.zeros((0, LARGE)),
    ],
    ids=lambda rows: f"{rows.dtype} {rows.shape}",
)
def test_large_documents_equal_those_of_orjson(rows: Any) -> None:
    document = {"model": "a", "outputs": {"x": rows, "y": [rows[:1], rows[:2]]}, "usage": {"tokens": 3}}
    assert b"".join(numbers.json_pieces(document)) == orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def test_slices_are_no_longer_than_the_inline_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, dumps = [], orjson.dumps

    def watched(value: Any, *arguments: Any, **named: Any) -> bytes:
        seen.extend([value.size] if isinstance(value, np.ndarray) else [])
        return dumps(value, *arguments, **named)

    monkeypatch.setattr(orjson, "dumps", watched)
    rows = RNG.normal(size=(1000, 384))
    longest = max(map(len, numbers.json_pieces({"rows": rows})))
    assert longest <= 24 * numbers.INLINE_VALUES
    assert sum(seen) == rows.size
    assert max(seen) <= numbers.INLINE_VALUES


@pytest.mark.parametrize(
    ("size", "beside"), [(worker_threads.INLINE_BYTES, False), (worker_threads.INLINE_BYTES + 1, True)]
)
async def test_large_documents_are_encoded_in_a_thread(size: int, beside: bool) -> None:
    thread = await worker_threads.inline_or_in_thread(size, threading.get_ident)
    assert (thread != threading.get_ident()) is beside


def test_rejects_other_objects_as_orjson_does() -> None:
    with pytest.raises(TypeError, match="set"):
        numbers.dumps({"x": {1}})
    with pytest.raises(TypeError, match="set"):
        list(numbers.json_pieces({"x": {1}}))


@pytest.mark.parametrize("write", [numbers.dumps, lambda document: b"".join(numbers.json_pieces(document))])
def test_bytes_are_written_as_base64(write: Callable[[Any], bytes]) -> None:
    data = RNG.integers(0, 256, numbers.BASE64_BYTES * 2 + 1).astype(np.uint8).tobytes()
    assert orjson.loads(write({"data": [numbers.base64_text(memoryview(data))]})) == {
        "data": [base64.b64encode(data).decode()]
    }
