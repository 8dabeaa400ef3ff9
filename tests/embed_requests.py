"""Requests of the embedding pipeline with their options by name, for tests."""

from collections.abc import Sequence
from typing import Any

from service.embedding.requests import Chunking, EmbedOptions, EmbedRequest, Input, Spans


def embed_request(
    inputs: Sequence[Input],
    model: str | None = None,
    outputs: tuple[str, ...] = (),
    *,
    spans: Spans | Chunking | None = None,
    **options: Any,
) -> EmbedRequest:
    """Return a request; `options` are the other fields of EmbedOptions."""
    return EmbedRequest(inputs, model, EmbedOptions(outputs, **options), spans)
