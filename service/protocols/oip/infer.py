"""Turns the tensors of a request into the core's request, and the core's result into tensors.

A request may hold
    input_ids        [B, T], padded on either side where attention_mask [B, T] says so, or flat [N] with lengths [B]
    attention_mask, token_type_ids, position_ids and a family's extra inputs: shaped as input_ids (bbox: one axis more)
    text             BYTES [B] or [B, 1], UTF-8, instead of all of these
    text_pair        beside it, the second text of each pair, for models with labels; one text goes with each of many
Outputs are [B, d] where pooled; else [B, T, d] as padded as the ids came, [N, d] for flat ids, and for texts [B, T, d]
padded with zeros on the right. `scores` [B, labels] of models with labels are their activated `class_logits`.
`lengths` [B], rows of each, may be requested, and is always sent with rows of texts.
Sparse vectors are three tensors: sparse_embedding [N], the values of all inputs; sparse_embedding_indices [N], their
columns; sparse_embedding_lengths [B], how many of them each input has. Without `outputs` all three come.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from models.artifacts.card import Card
from models.recipes.extra_inputs import Extra
from service.embedding.limits import check_inputs
from service.embedding.ranking import text_activation
from service.embedding.requests import EmbedRequest, EmbedResult, Ids, Input, Int64s, Output, Text
from service.embedding.scores import ACTIVATIONS
from service.errors import BadRequest, ConflictingFields, EmptyRequest, MissingField, OutOfRange, TooLarge, UnknownField
from service.protocols.inlay.needs import has_row_per_token, is_sparse
from service.protocols.oip.messages import SHOWN_CHARACTERS, Inference, InputTensor, OutputTensor, input_error
from service.protocols.oip.padding import Places, placed, places_of, right_padded
from service.settings import Settings

Tensors = Mapping[str, InputTensor]
BESIDE = ("token_type_ids", "position_ids")


def request_of(
    card: Card, inference: Inference, settings: Settings, allowed: Collection[str]
) -> tuple[EmbedRequest, Places | None]:
    """Return the core's request, and the places of its sequences in the caller's tensors, None for texts.

    Args:
        allowed: the names of the tensors that the model takes.

    Raises:
        BadRequest, BadInput, TooLarge: the tensors make no valid request.
    """
    tensors, names = _by_name(card, inference.inputs, allowed), [output.name for output in inference.outputs]
    if len(set(names)) < len(names):
        shown = ", ".join(names)[:SHOWN_CHARACTERS]
        raise ConflictingFields("names one twice", field=("outputs",), allowed=shown, remedy="ask for each once")
    inputs, places = _sequences(card, tensors, settings) if "input_ids" in tensors else (_texts(tensors), None)
    computed = tuple(dict.fromkeys([_source(card, name) for name in names if name != "lengths"]))
    return EmbedRequest(inputs, card.name, inference.parameters.options(computed)), places


def outputs_of(card: Card, inference: Inference, result: EmbedResult, places: Places | None) -> list[OutputTensor]:
    """Return the tensors of a result, in the order and shape that the request had."""
    left, activation = inference.parameters.truncation_direction == "left", text_activation(card)
    made = [_tensors(output, _places(output, places), left) for output in result.outputs]
    names = [output.name for output in inference.outputs] or [tensor.name for tensor in made[0]]
    tensors = {tensor.name: tensor for output in made for tensor in output}
    if "lengths" in names:
        lengths = [output.lengths for output in result.outputs if not output.pooled and output.indices is None]
        tensors["lengths"] = _lengths("lengths", lengths[0] if lengths else result.lengths)
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
    size = 0
    for output in result.outputs:
        if not output.pooled and output.indices is None:
            shape = (_places(output, places) or right_padded(output.lengths)).shape
            size += math.prod(shape) * output.rows.shape[1] * output.rows.itemsize
    if size > most:
        raise TooLarge(
            f"padded, the outputs are {size} bytes",
            allowed=f"this server answers with {most} at most",
            remedy="send sequences of like length together, or flat ids",
        )
    return size


def _places(output: Output, places: Places | None) -> Places | None:
    """Return the places of an output's rows in the caller's tensors; None if it has no row for each token."""
    return places if has_row_per_token(output.name) else None


def _tensors(output: Output, places: Places | None, left: bool) -> list[OutputTensor]:
    """Return the tensors to send of an output if the request names none.

    Args:
        left: whether truncation cut off the beginning.
    """
    rows, name = output.rows, output.name
    if output.indices is not None:
        values, indices = OutputTensor(name, rows[:, 0]), OutputTensor(f"{name}_indices", output.indices)
        return [values, indices, _lengths(f"{name}_lengths", output.lengths)]
    if output.pooled:
        return [OutputTensor(name, rows)]
    if places:
        return [OutputTensor(name, placed(rows, output.lengths, places, left))]
    padded = placed(rows, output.lengths, right_padded(output.lengths), left)
    return [OutputTensor(name, padded), _lengths("lengths", output.lengths)]


def _lengths(name: str, lengths: Sequence[int]) -> OutputTensor:
    return OutputTensor(name, np.array(lengths, np.int64))


def _source(card: Card, tensor: str) -> str:
    """Return the model's output that a tensor is made of."""
    if tensor == "scores" and text_activation(card):
        return card.classifier_output
    output = tensor.removesuffix("_indices").removesuffix("_lengths")
    return output if is_sparse(output) else tensor


def _by_name(card: Card, inputs: Sequence[InputTensor], allowed: Collection[str]) -> dict[str, InputTensor]:
    tensors = {tensor.name: tensor for tensor in inputs}
    if len(tensors) < len(inputs):
        shown = ", ".join([tensor.name for tensor in inputs])[: 2 * SHOWN_CHARACTERS]
        raise ConflictingFields("holds a tensor twice", field=("inputs",), allowed=shown, remedy="send each once")
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
    shape, values = ids.shape, _integers(ids, ids.shape)
    if not len(values):
        raise EmptyRequest(f"has shape {list(shape)}", field=("inputs", ids.name), remedy="send one token id at least")
    if len(values) > settings.max_request_tokens:
        allowed = f"this server takes {settings.max_request_tokens} a request"
        raise input_error(TooLarge, ids.name, f"has {len(values)} elements", allowed)
    mask = _mask(tensors["attention_mask"], shape) if "attention_mask" in tensors else None
    places = places_of(shape, _sent_lengths(tensors.get("lengths")), mask)
    check_inputs(len(places.starts), settings.max_inputs)  # before each is an object
    sent = mask if card.mask_from == "pad_count" or places.holes else None
    types, positions = [_integers(tensors[name], shape) if name in tensors else None for name in BESIDE]
    extras = {extra.name: _extra(extra, tensors[extra.name], shape) for extra in card.extras if extra.name in tensors}
    if sent is types is positions is None and not (extras or places.padded) and len(shape) == 2:
        return [Ids(row) for row in values.reshape(shape)], places  # half the time of slicing
    return [
        Ids(
            values[cut],
            _part(sent, cut),
            _part(types, cut),
            _part(positions, cut),
            {name: column[cut] for name, column in extras.items()} or None,
        )
        for cut in places.slices
    ], places


def _part(column: Int64s | None, cut: slice) -> Int64s | None:
    return None if column is None else column[cut]


def _mask(tensor: InputTensor, shape: tuple[int, ...]) -> Int64s:
    mask = _integers(tensor, shape)
    if (mask.view(np.uint64) > 1).any():  # negative values wrap to huge ones
        odd = mask[int(np.argmax((mask < 0) | (mask > 1)))]
        raise input_error(OutOfRange, tensor.name, f"holds {odd}", "allowed: 0 and 1")
    return mask


def _sent_lengths(tensor: InputTensor | None) -> Int64s | None:
    if tensor is not None and len(tensor.shape) != 1:
        raise _wrong_shape(tensor, "allowed: [B]")
    return None if tensor is None else _integers(tensor, tensor.shape)


def _integers(tensor: InputTensor, shape: tuple[int, ...]) -> Int64s:
    """Return the numbers of a tensor, flat; raise BadRequest for another shape, or for texts."""
    if isinstance(tensor.values, list):
        raise input_error(BadRequest, tensor.name, f"has datatype {tensor.datatype}", "allowed: integers")
    if tensor.shape != shape:
        raise _wrong_shape(tensor, f"allowed: that of input_ids, {list(shape)}")
    return tensor.values


def _extra(extra: Extra, tensor: InputTensor, shape: tuple[int, ...]) -> Int64s:
    if extra.columns == 1:
        return _integers(tensor, shape)
    return _integers(tensor, (*shape, extra.columns)).reshape(-1, extra.columns)


def _wrong_shape(tensor: InputTensor, allowed: str) -> BadRequest:
    return input_error(BadRequest, tensor.name, f"has shape {list(tensor.shape)}", allowed)
