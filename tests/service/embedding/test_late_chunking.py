"""Late chunking on a tiny encoder, judged by the hidden states of the whole text; its errors and limits.

tests/parity/test_late_chunking_live.py judges it by transformers and sentence-transformers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from service.embedding.requests import Chunking, Cut, EmbedResult, Ids, Spans, Text
from service.embedding.tokenize.tokenizer import Tokenizer
from service.errors import BadInput, ConflictingFields, InlayError, MissingField, OutOfRange, TooManyInputs, WrongShape
from tests.embed_requests import embed_request
from tests.golden_cases import write_json, write_tiny_bert
from tests.service.registry.registry_service import Service

Make = Callable[..., Service]
TEXT = "hello world, a b c d e hello"  # nine tokens: a comma is one
STARTS = [0, 6, 11, 13, 15, 17, 19, 21, 23]
STOPS = [5, 11, 12, 14, 16, 18, 20, 22, 28]
PROMPT = "hello a "


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`mean` has prompts and reads 24 tokens; `unprompted` leaves them out of pooling; `cls` pools the first row."""
    folder = tmp_path_factory.mktemp("spans")
    for name, pooling in (("mean", "mean"), ("unprompted", "mean"), ("cls", "cls")):
        checkpoint = write_tiny_bert(folder / name, pooling=pooling)
        write_json(checkpoint / "config_sentence_transformers.json", {"prompts": {"query": PROMPT}})
        if name == "unprompted":
            pooled = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "include_prompt": False}
            write_json(checkpoint / "1_Pooling/config.json", pooled)
        export(checkpoint, folder / "store" / name)
    return folder / "store"


@pytest.fixture(scope="module")
def make(store: Path) -> Make:
    services: dict[Any, Service] = {}

    def made(model: str = "mean", **changes: object) -> Service:
        key = (model, *changes.items())
        if key not in services:
            services[key] = Service(store, **{"default_model": model, "models": (model,)} | changes)
        return services[key]

    return made


async def embed(service: Service, *inputs: Text | Ids, **fields: object) -> EmbedResult:
    return await service.pipeline.embed(embed_request(inputs, **fields))  # type: ignore[arg-type]


async def hidden(service: Service, item: Text | Ids, **fields: object) -> NDArray[np.float32]:
    (output,) = (await embed(service, item, outputs=("last_hidden_state",), **fields)).outputs
    return output.rows


def spans(*bounds: list[list[int]], unit: Any = "characters", joined: bool = False) -> Spans:
    every = np.array([span for own in bounds for span in own], np.int64).reshape(-1, 2)
    return Spans(every, tuple(map(len, bounds)), unit, joined)


def mean(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    vector = rows.mean(axis=0, dtype=np.float64)
    return np.asarray(vector / np.linalg.norm(vector))


def ids(*values: int, **others: list[int]) -> Ids:
    return Ids(np.array(values, np.int64), **{name: np.array(value, np.int64) for name, value in others.items()})


def close(vectors: Any, *wanted: Any) -> None:
    np.testing.assert_allclose(vectors, np.stack(wanted), atol=1e-6)


async def test_a_span_is_the_mean_of_the_tokens_it_touches(make: Make) -> None:
    rows = await hidden(make(), Text(TEXT))
    result = await embed(make(), Text(TEXT), spans=spans([[0, 11], [4, 7], [5, 13], [0, len(TEXT)]]))
    (output,) = result.outputs
    close(output.rows, mean(rows[1:3]), mean(rows[1:3]), mean(rows[2:4]), mean(rows[1:10]))
    assert (output.lengths, output.pooled) == ((4,), False)
    (chunks,) = result.chunks
    assert chunks.tokens.tolist() == [[0, 2], [0, 2], [1, 3], [0, 9]]
    assert chunks.characters is not None
    assert chunks.characters.tolist() == [[0, 11], [0, 11], [6, 12], [0, 28]]


async def test_spans_of_several_inputs_keep_their_order(make: Make) -> None:
    inputs = Text("hello"), Text(TEXT)
    result = await embed(make(), *inputs, spans=spans([[0, 5]], [[13, 14], [0, 5]]))
    one, two = [await hidden(make(), item) for item in inputs]
    close(result.outputs[0].rows, mean(one[1:2]), mean(two[4:5]), mean(two[1:2]))
    assert result.outputs[0].lengths == (1, 2)


@pytest.mark.parametrize("model", ["mean", "unprompted"])
async def test_offsets_do_not_count_the_prompt(make: Make, model: str) -> None:
    rows = await hidden(make(model), Text(TEXT), prompt_name="query")
    result = await embed(make(model), Text(TEXT), spans=spans([[0, 5], [6, 28]]), prompt_name="query")
    close(result.outputs[0].rows, mean(rows[3:4]), mean(rows[4:12]))
    of_tokens = spans([[0, 1], [1, 9]], unit="tokens")
    again = await embed(make(model), Text(TEXT), spans=of_tokens, prompt_name="query")
    assert np.array_equal(again.outputs[0].rows, result.outputs[0].rows)


@pytest.mark.parametrize(("model", "first"), [("mean", 0), ("unprompted", 3)])
async def test_joined_texts_share_the_tokens_at_the_ends(make: Make, model: str, first: int) -> None:
    """An excluded prompt is left out with [CLS] before it, as of a whole text."""
    rows = await hidden(make(model), Text(TEXT), prompt_name="query")
    joined = spans([[0, 11], [13, 28]], joined=True)
    result = await embed(make(model), Text(TEXT), spans=joined, prompt_name="query")
    close(result.outputs[0].rows, mean(rows[first:5]), mean(rows[6:13]))
    whole = await embed(make(model), Text(TEXT), spans=spans([[0, 28]], joined=True), prompt_name="query")
    plain = await embed(make(model), Text(TEXT), prompt_name="query")
    assert np.array_equal(whole.outputs[0].rows, plain.outputs[0].rows)
    fields: dict[str, Any] = {"prompt_name": "query", "max_tokens": 5, "truncation_direction": "left"}
    cut = await embed(make(model), Text(TEXT), spans=spans([[0, 20], [20, 28]], joined=True), **fields)
    rows = await hidden(make(model), Text(TEXT), **fields)  # of [CLS] d e hello [SEP]
    close(cut.outputs[0].rows, mean(rows[:2] if model == "mean" else rows[1:2]), mean(rows[2:]))


@pytest.mark.parametrize(
    ("size", "overlap", "tokens"),
    [
        (4, 0, [[0, 4], [4, 8], [8, 9]]),
        (4, 1, [[0, 4], [3, 7], [6, 9]]),
        (3, 2, [[0, 3], [1, 4], [2, 5], [3, 6], [4, 7], [5, 8], [6, 9]]),
        (9, 3, [[0, 9]]),
        (100, 50, [[0, 9]]),
        (1, 0, [[number, number + 1] for number in range(9)]),
    ],
)
async def test_chunks_cover_the_text(make: Make, size: int, overlap: int, tokens: list[list[int]]) -> None:
    result = await embed(make(), Text(TEXT), spans=Chunking(size, overlap))
    (chunks,) = result.chunks
    assert chunks.tokens.tolist() == tokens
    assert chunks.characters is not None
    assert chunks.characters.tolist() == [[STARTS[first], STOPS[end - 1]] for first, end in tokens]
    asked = await embed(make(), Text(TEXT), spans=spans(tokens, unit="tokens"))
    assert np.array_equal(asked.outputs[0].rows, result.outputs[0].rows)


async def test_every_token_id_counts(make: Make) -> None:
    item = ids(2, 5, 6, 7, 8, 3, mask=[1, 1, 0, 1, 1, 1])
    rows = await hidden(make(), item)
    result = await embed(make(), item, spans=spans([[0, 3], [2, 4]], unit="tokens"))
    close(result.outputs[0].rows, mean(rows[:2]), mean(rows[3:4]))
    assert result.chunks[0].characters is None
    with pytest.raises(BadInput, match=r"inputs\[0\].attention_mask is all 0 in one of the spans"):
        await embed(make(), item, spans=spans([[2, 3]], unit="tokens"))


@pytest.mark.parametrize(
    ("direction", "read", "bounds"),
    [("right", slice(0, 5), [[0, 5], [13, 16]]), ("left", slice(4, 9), [[15, 16], [23, 28]])],
)
async def test_offsets_of_cut_texts_are_those_of_the_whole(
    make: Make, direction: str, read: slice, bounds: list[list[int]]
) -> None:
    """Seven tokens, two of them special, so five of the text's nine are read."""
    fields: dict[str, Any] = {"max_tokens": 7, "truncation_direction": direction}
    rows = (await hidden(make(), Text(TEXT), **fields))[1:-1]
    chunked = await embed(make(), Text(TEXT), spans=Chunking(2), **fields)
    assert chunked.chunks[0].tokens[:, 0].tolist() == list(range(9))[read][::2]
    assert chunked.truncated == (0,)
    places = [[STARTS.index(start), STOPS.index(stop) + 1] for start, stop in bounds]
    wanted = [mean(rows[first - read.start : end - read.start]) for first, end in places]
    for own in (spans(bounds), spans(places, unit="tokens")):
        result = await embed(make(), Text(TEXT), spans=own, **fields)
        close(result.outputs[0].rows, *wanted)
        assert result.chunks[0].tokens.tolist() == places
    partly = await embed(make(), Text(TEXT), spans=spans([[0, 28]]), **fields)
    close(partly.outputs[0].rows, mean(rows))
    gone = [[23, 28]] if direction == "right" else [[0, 5]]
    with pytest.raises(BadInput, match=r"spans\[0\]\[0\] is .* covers no token that is read, since the input was cut"):
        await embed(make(), Text(TEXT), spans=spans(gone), **fields)


async def test_cut_token_ids_count_from_the_first_that_was_sent(make: Make) -> None:
    item = ids(2, 5, 6, 7, 8, 3)
    fields: dict[str, Any] = {"max_tokens": 4, "truncation_direction": "left"}
    rows = await hidden(make(), item, **fields)
    result = await embed(make(), item, spans=spans([[2, 4], [5, 6]], unit="tokens"), **fields)
    close(result.outputs[0].rows, mean(rows[:2]), mean(rows[3:]))


@pytest.mark.parametrize(("direction", "starts"), [("left", [19, 21, 23]), ("right", [0])])
def test_texts_cut_by_characters_keep_their_offsets(store: Path, direction: Any, starts: list[int]) -> None:
    """Nine characters are read of the prompt and the text."""
    tokenizer = Tokenizer(store / "mean/tokenizer.json", max_characters=9)
    ids, located = tokenizer.encode_located({0: Text(PROMPT + TEXT)}, Cut(direction=direction), PROMPT)
    assert located[0].starts is not None
    assert located[0].starts.tolist() == starts
    plain = tokenizer.encode({0: Text(PROMPT + TEXT)}, Cut(direction=direction))
    assert np.array_equal(ids[0].ids, plain[0].ids)


async def test_a_chunk_has_the_same_bits_beside_others(make: Make) -> None:
    alone = await embed(make(), Text(TEXT), spans=spans([[13, 18]]))
    beside = await embed(
        make(), Text("a b " * 9), Text(TEXT), Text("c"), spans=spans([[0, 9]], [[0, 5], [13, 18]], [[0, 1]])
    )
    assert np.array_equal(beside.outputs[0].rows[2:3], alone.outputs[0].rows)


async def test_vectors_of_whole_texts_are_not_taken_for_spans(make: Make) -> None:
    service = make(vector_cache_bytes=1 << 20)
    whole = await embed(service, Text(TEXT))
    part = await embed(service, Text(TEXT), spans=spans([[0, 5]]))
    assert not np.array_equal(part.outputs[0].rows, whole.outputs[0].rows)
    assert np.array_equal((await embed(service, Text(TEXT))).outputs[0].rows, whole.outputs[0].rows)


async def test_options_of_vectors_apply_to_spans(make: Make) -> None:
    own = spans([[0, 11]])
    rows = await hidden(make(), Text(TEXT))
    plain = await embed(make(), Text(TEXT), spans=own, normalize=False)
    close(plain.outputs[0].rows, rows[1:3].mean(axis=0))
    short = await embed(make(), Text(TEXT), spans=own, dimensions=8, dtype="float16")
    close(short.outputs[0].rows.astype(np.float64), mean(rows[1:3, :8]).astype(np.float16))
    largest = await embed(make(), Text(TEXT), spans=own, pooling="max", normalize=False)
    close(largest.outputs[0].rows, rows[1:3].max(axis=0))
    of_cls = await embed(make("cls"), Text(TEXT), spans=own, pooling="mean", normalize=False)
    close(of_cls.outputs[0].rows, (await hidden(make("cls"), Text(TEXT)))[1:3].mean(axis=0))


async def test_other_outputs_come_beside_chunks(make: Make) -> None:
    names = ("last_hidden_state", "sentence_embedding")
    result = await embed(make(), Text(TEXT), outputs=names, spans=Chunking(5))
    rows, vectors = result.outputs
    assert (rows.lengths, vectors.lengths) == ((11,), (2,))
    close(vectors.rows, mean(rows.rows[1:6]), mean(rows.rows[6:10]))


ERRORS: list[tuple[dict[str, Any], type[InlayError], str]] = [
    ({"spans": spans([[0, 29]])}, OutOfRange, r"spans\[0\]\[0\] is \[0, 29\]; it ends behind the input's last char"),
    (
        {"spans": spans([[0, 1], [0, 2]], [[0, 1], [0, 9]]), "inputs": [Text(TEXT), Text("a b")]},
        OutOfRange,
        r"spans\[1\]\[1\] is \[0, 9\]",
    ),
    ({"spans": spans([[0, 10]], unit="tokens")}, OutOfRange, r"\[0, 10\]; the input has 9 tokens"),
    ({"spans": spans([[0, 1], [5, 5]])}, OutOfRange, r"spans\[0\]\[1\] is \[5, 5\]; a span is"),
    ({"spans": spans([[-1, 5]])}, OutOfRange, r"is \[-1, 5\]"),
    ({"spans": spans([[5, 6]])}, BadInput, r"spans\[0\]\[0\] is \[5, 6\] and covers no token: leave it out"),
    ({"spans": spans([[5, 6]], joined=True)}, BadInput, r"inputs\[0\] has no token"),
    ({"spans": spans([])}, MissingField, r"spans\[0\] is empty"),
    ({"spans": spans([[0, 1]], [[0, 1]])}, WrongShape, "has lists for 2 inputs, and 1 came"),
    ({"spans": spans([[0, 1]] * 2049)}, TooManyInputs, "2049 spans; this server takes 2048"),
    ({"spans": spans([[0, 1]]), "inputs": [ids(2, 3)]}, ConflictingFields, "counts characters, and the input is token"),
    ({"spans": spans([[0, 1]]), "inputs": [Text("a", "b")]}, ConflictingFields, "an input is a pair"),
    ({"spans": spans([[0, 1]]), "outputs": ("last_hidden_state",)}, ConflictingFields, "applies to sentence_embedding"),
    ({"spans": spans([[0, 1]]), "pooling": "lasttoken"}, ConflictingFields, r"pools one token \(lasttoken\)"),
    ({"spans": spans([[0, 1]]), "model": "cls"}, ConflictingFields, r"cls pools one token \(cls\)"),
    ({"spans": Chunking(0)}, OutOfRange, "chunking.size is 0"),
    ({"spans": Chunking(3, 3)}, OutOfRange, "chunking.overlap is 3; it is 0 to 2"),
    ({"spans": Chunking(3), "inputs": [Text("")]}, BadInput, r"inputs\[0\] has no token of its own"),
]


@pytest.mark.parametrize(("fields", "kind", "said"), ERRORS)
async def test_errors_say_what_is_wrong(make: Make, fields: dict[str, Any], kind: type[InlayError], said: str) -> None:
    sent = {"inputs": [Text(TEXT)]} | fields
    with pytest.raises(kind, match=said):
        await make(sent.get("model", "mean")).pipeline.embed(embed_request(**sent))


async def test_limits_count_spans_and_their_tokens(make: Make) -> None:
    few = make(max_inputs=4)
    with pytest.raises(TooManyInputs, match="9 spans; this server takes 4"):
        await embed(few, Text(TEXT), spans=Chunking(1))
    with pytest.raises(TooManyInputs, match="6 spans"):
        await embed(few, Text(TEXT), Text(TEXT), spans=Chunking(3))
    bounded = make(max_request_tokens=20)
    with pytest.raises(InlayError, match="spans has chunks of 27 tokens together; this server takes 20"):
        await embed(bounded, Text(TEXT), spans=spans([[0, 28]] * 3))
    small = make(max_answer_bytes=4 * 32 * 8)
    with pytest.raises(InlayError, match=f"sentence_embedding are {4 * 32 * 9} bytes"):
        await embed(small, Text(TEXT), spans=Chunking(1))
