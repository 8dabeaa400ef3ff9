"""Turns the tensors of a request into the core's request, and the core's result into tensors.

A request may hold
    input_ids        [B, T], padded on either side where attention_mask [B, T] says so
    attention_mask, token_type_ids, position_ids and a family's extra inputs: shaped as input_ids (bbox: one axis more)
    text             BYTES [B] or [B, 1], UTF-8, instead of all of these
    text_pair        beside it, the second text of each pair, for models with labels; one text goes with each of many
Outputs are [B, d] where pooled; else [B, T, d] as padded as the ids came, and for texts padded with zeros on the right.
`scores` [B, labels] of models with labels are their activated `class_logits`.
`lengths` [B], rows of each, may be requested, and is always sent with rows of texts.
Sparse vectors are three tensors: sparse_embedding [N], the values of all inputs; sparse_embedding_indices [N], their
columns; sparse_embedding_lengths [B], how many of them each input has. Without `outputs` all three come.

A padded row gives what its unpadded tokens give: tokens masked at either end never reach the model. A mask with holes
goes to the model as it is, from its first to its last token.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.card import Card
from service.embedding.limits import check_inputs
from service.embedding.ranking import ACTIVATIONS, text_activation
from service.embedding.requests import DIRECTIONS, EmbedRequest, EmbedResult, Ids, Input, Int64s, Output, Text
from service.embedding.tokenize.packing import real_tokens
from service.errors import (
    BadRequest,
    ConflictingFields,
    EmptyInput,
    EmptyRequest,
    MissingField,
    OutOfRange,
    TooLarge,
    UnknownField,
)
from service.protocols.inlay.inputs import LISTS
from service.protocols.inlay.needs import has_row_per_token, is_sparse
from service.protocols.oip.messages import SHOWN_CHARACTERS, Inference, InputTensor, OutputTensor, input_error
from service.settings import Settings

Tensors = Mapping[str, InputTensor]
Places = NDArray[np.bool_]
"""[B, T]: where the tokens of each sequence stand, from its first to its last; padding stands elsewhere."""


def request_of(
    card: Card, inference: Inference, settings: Settings, allowed: Collection[str]
) -> tuple[EmbedRequest, Places | None]:
    """Return the core's request, and the places of its sequences in the caller's tensors, None for texts.

    Args:
        allowed: the names of the tensors that the model takes.

    Raises:
        BadRequest, BadInput, TooLarge: the tensors make no valid request.
    """
    tensors, names = _by_name(card, inference.inputs, allowed), inference.outputs
    _check_distinct("outputs", names)
    inputs, places = _sequences(card, tensors, settings) if "input_ids" in tensors else (_texts(tensors), None)
    computed = tuple(dict.fromkeys([_source(card, name) for name in names if name != "lengths"]))
    options = inference.parameters.options(computed, inference.parameters.dtype)
    return EmbedRequest(inputs, card.name, options), places


def outputs_of(card: Card, inference: Inference, result: EmbedResult, places: Places | None) -> list[OutputTensor]:
    """Return the tensors of a result, in the order and shape that the request had."""
    left = (DIRECTIONS[inference.parameters.truncation_direction] or card.cut_side) == "left"
    activation = text_activation(card)
    tensors = {tensor.name: tensor for output in result.outputs for tensor in _tensors(output, places, left)}
    names = inference.outputs or list(tensors)
    if "lengths" in names:
        lengths = [output.lengths for output in result.outputs if _is_padded(output)]
        tensors["lengths"] = OutputTensor("lengths", np.array(lengths[0] if lengths else result.lengths, np.int64))
    if "scores" in names and activation:
        logits = tensors[card.classifier_output].array
        scores = ACTIVATIONS[activation](logits.astype(np.float64))
        tensors["scores"] = OutputTensor("scores", scores.astype(logits.dtype))
    return [tensors[name] for name in names]


def padded_bytes(result: EmbedResult, places: Places | None, most: int) -> int:
    """Return the bytes of a result's token rows with their padding.

    Raises:
        TooLarge: padding makes them larger than this server sends.
    """
    padded = [output for output in result.outputs if _is_padded(output)]
    if (size := sum([_places(each, places).size * each.rows[:1].nbytes for each in padded])) > most:
        raise TooLarge(
            f"padded, the outputs are {size} bytes",
            allowed=f"this server answers with {most} at most",
            remedy="send sequences of like length together",
        )
    return size


def _is_padded(output: Output) -> bool:
    """Return whether an output has rows of each sequence that are padded to the longest."""
    return not output.pooled and output.indices is None


def _places(output: Output, places: Places | None) -> Places:
    """Return the places of an output's rows: those of the caller's ids if it has a row for each token."""
    return real_tokens(output.lengths) if places is None or not has_row_per_token(output.name) else places


def _tensors(output: Output, places: Places | None, left: bool) -> Iterator[OutputTensor]:
    """Yield the tensors to send of an output if the request names none.

    Args:
        left: whether truncation cut off the beginning.
    """
    rows, name = output.rows, output.name
    if output.indices is not None:
        yield OutputTensor(name, rows[:, 0])
        yield OutputTensor(f"{name}_indices", output.indices)
        yield OutputTensor(f"{name}_lengths", np.array(output.lengths, np.int64))
    elif output.pooled:
        yield OutputTensor(name, rows)
    else:
        yield OutputTensor(name, placed(rows, output.lengths, _places(output, places), left))
        if places is None or not has_row_per_token(name):
            yield OutputTensor("lengths", np.array(output.lengths, np.int64))


def _source(card: Card, tensor: str) -> str:
    """Return the model's output that a tensor is made of."""
    if tensor == "scores" and text_activation(card):
        return card.classifier_output
    output = tensor.removesuffix("_indices").removesuffix("_lengths")
    return output if is_sparse(output) else tensor


def _check_distinct(field: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        shown = ", ".join(names)[: 2 * SHOWN_CHARACTERS]
        raise ConflictingFields("names a tensor twice", field=(field,), allowed=shown, remedy="name each once")


def _by_name(card: Card, inputs: Sequence[InputTensor], allowed: Collection[str]) -> dict[str, InputTensor]:
    tensors = {tensor.name: tensor for tensor in inputs}
    _check_distinct("inputs", [tensor.name for tensor in inputs])
    if unknown := [name for name in tensors if name not in allowed]:
        raise UnknownField(f"{card.name} has no input {unknown[0][:80]!r}", allowed=f"allowed: {', '.join(allowed)}")
    if others := tensors.keys() - {"text", "text_pair"} if "text" in tensors else ():
        received = f"came with {', '.join(sorted(others))}"
        raise input_error(ConflictingFields, "text", received, remedy="send texts or token ids, not both")
    if "text_pair" in tensors and "text" not in tensors:
        raise MissingField('"text" is missing', allowed='"text_pair" came', remedy="send both")
    if not tensors.keys() & {"text", "input_ids"}:
        required = '"input_ids" or "text"' if "text" in allowed else '"input_ids"'
        received = ", ".join(map(repr, tensors)) or "no inputs"
        raise MissingField(f"{required} is missing", allowed=f"{received} came")
    return tensors


def _texts(tensors: Tensors) -> list[Input]:
    """Return each text, with its own pair, or one text with each pair."""
    texts = _strings(tensors["text"])
    if "text_pair" not in tensors:
        return [Text(text) for text in texts]
    others = _strings(tensors["text_pair"])
    if len(texts) not in (1, len(others)):
        allowed = f"allowed: [{len(texts)}], as many as the texts, or one text with any number"
        raise _wrong_shape(tensors["text_pair"], allowed)
    texts = texts * len(others) if len(texts) == 1 else texts
    return [Text(text, other) for text, other in zip(texts, others, strict=True)]


def _strings(tensor: InputTensor) -> list[str]:
    if not isinstance(tensor.values, list):
        raise input_error(BadRequest, tensor.name, f"has datatype {tensor.datatype}", "allowed: BYTES")
    if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
        raise _wrong_shape(tensor, "allowed: [B] or [B, 1]")
    return tensor.values


def _sequences(card: Card, tensors: Tensors, settings: Settings) -> tuple[list[Input], Places]:
    """Return each sequence's ids and extra inputs, without padding, and their places in the tensors."""
    ids = tensors["input_ids"]
    values = _integers(ids, ids.shape)
    if not len(values):
        raise input_error(EmptyRequest, ids.name, f"has shape {list(ids.shape)}", remedy="send one token id at least")
    if len(values) > settings.max_request_tokens:
        allowed = f"this server takes {settings.max_request_tokens} a request"
        raise input_error(TooLarge, ids.name, f"has {len(values)} elements", allowed)
    if len(ids.shape) != 2:
        raise _wrong_shape(ids, "allowed: [B, T]")
    check_inputs(ids.shape[0], settings.max_inputs)  # before each is an object
    columns: dict[str, Any] = {
        field: _integers(tensors[name], ids.shape) for name, field in LISTS.items() if name in tensors
    }
    mask = columns.get("mask")
    places = places_of(ids.shape, mask)
    has_holes = mask is not None and int(mask.sum()) < int(places.sum())
    if card.mask_from != "pad_count" and not has_holes:
        columns.pop("mask", None)
    sent = [extra for extra in card.extras if extra.name in tensors]
    extras = {extra.name: _integers(tensors[extra.name], ids.shape, extra.columns) for extra in sent}
    if len(columns) == 1 and not extras and places.all():
        return [Ids(row) for row in values.reshape(ids.shape)], places  # half the time of splitting
    return _split(columns, extras, places), places


def _split(columns: dict[str, Any], extras: dict[str, Any], places: Places) -> list[Input]:
    """Return each sequence's part of the flat columns and extra inputs: its tokens alone."""
    ends = np.cumsum(places.sum(axis=1))[:-1]
    split: dict[str, Any] = {
        name: np.split(column[places.ravel()], ends) for name, column in {**columns, **extras}.items()
    }
    return [
        Ids(
            **{field: split[field][index] for field in columns},
            extras={name: split[name][index] for name in extras} or None,
        )
        for index in range(len(places))
    ]


def _integers(tensor: InputTensor, shape: tuple[int, ...], columns: int = 1) -> Int64s:
    """Return the numbers of a tensor, one or several a token; raise BadRequest for another shape, or for texts."""
    if isinstance(tensor.values, list):
        raise input_error(BadRequest, tensor.name, f"has datatype {tensor.datatype}", "allowed: integers")
    expected = shape if columns == 1 else (*shape, columns)
    if tensor.shape != expected:
        raise _wrong_shape(tensor, f"allowed: that of input_ids, {list(expected)}")
    return tensor.values if columns == 1 else tensor.values.reshape(-1, columns)


def _wrong_shape(tensor: InputTensor, allowed: str) -> BadRequest:
    return input_error(BadRequest, tensor.name, f"has shape {list(tensor.shape)}", allowed)


# ---- padding


def places_of(shape: tuple[int, ...], mask: Int64s | None) -> Places:
    """Return the places of tokens: all but the masked ones at either end of each sequence.

    Args:
        shape: (B, T).
        mask: 0 and 1, flat; None: nothing is masked.

    Raises:
        OutOfRange: the mask holds something else.
        EmptyInput: a row is all padding.
    """
    if mask is None:
        return np.ones(shape, np.bool_)
    if (odd := mask[(mask < 0) | (mask > 1)]).size:
        raise OutOfRange(f"holds {odd[0]}", field=("inputs", "attention_mask"), allowed="allowed: 0 and 1")
    rows = mask.reshape(shape).astype(np.bool_)
    if (empty := ~rows.any(axis=1)).any():
        field = ("inputs", "attention_mask", int(np.argmax(empty)))
        raise EmptyInput("is all 0", field=field, remedy="leave the sequence out")
    begun: Places = np.logical_or.accumulate(rows, axis=1)
    return begun & np.logical_or.accumulate(rows[:, ::-1], axis=1)[:, ::-1]


def placed(rows: NDArray[Any], lengths: Sequence[int], places: Places, left: bool) -> NDArray[Any]:
    """Return rows at the places of their tokens, [B, T, d], with zeros elsewhere.

    Args:
        rows: [sum(lengths), d].
        lengths: rows of each sequence: one a token, or fewer if it was truncated.
        left: whether truncation cut off the beginning.
    """
    if len(rows) == places.size:
        return rows.reshape(*places.shape, -1)
    order, counts = places.cumsum(axis=1), np.array(lengths)[:, None]
    kept = order > order[:, -1:] - counts if left else order <= counts
    full = np.zeros((*places.shape, rows.shape[1]), rows.dtype)
    full[places & kept] = rows
    return full
