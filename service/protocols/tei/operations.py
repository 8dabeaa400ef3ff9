"""Operations that text-embeddings-inference's REST and gRPC share.

Both read their requests into EmbedOptions, which say how texts are cut and which prompt they get.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from models.artifacts.card import Card
from models.recipes.heads import ScoreActivation
from service.context import ServiceContext
from service.embedding import ranking
from service.embedding.limits import check_characters
from service.embedding.model import Model
from service.embedding.outputs.kind import HIDDEN, POOLED
from service.embedding.pooling import POOLINGS
from service.embedding.ranking import Labelled, Ranks, Reading, Scorer
from service.embedding.requests import EmbedOptions, EmbedRequest, EmbedResult, Input, Text
from service.embedding.tokenize.prompts import prompt_of
from service.embedding.tokenize.tokenizer import INLINE_CHARACTERS, Token, Tokenizer, beside
from service.errors import EmptyRequest, TooManyInputs, WrongModelKind
from service.machine import available_cpus
from service.protocols.inlay import needs
from service.registry.loading import BATCH_VALUES, encoder_tokens
from service.request_context import RequestContext

INPUT_LAYER = "input_embeddings"
Written = TypeVar("Written")
POOLING_NAMES = {"lasttoken": "last_token"}  # TEI's names, where they differ: it has cls, mean, last_token and splade


class Info(BaseModel):
    """What is served, and its limits."""

    model_id: str = Field(description="the Hub id it was made from, else its name here")
    model_sha: str | None = Field(default=None, description="the Hub's revision, which is not kept here")
    model_dtype: str
    served_model_name: str
    model_type: dict[str, dict[str, Any]]
    max_concurrent_requests: int = Field(description="of this process")
    max_input_length: int = Field(description="in tokens, special ones included")
    max_batch_tokens: int = Field(description="tokens that run together; a longer single input runs alone")
    max_batch_requests: int | None = None
    max_client_batch_size: int = Field(description="inputs of one request")
    auto_truncate: bool
    tokenization_workers: int = Field(description="threads that tokenise one request's texts")
    version: str
    sha: str | None = None
    docker_label: str | None = None


class Operations:
    """Serves requests for the vectors, scores, labels and tokens of texts.

    Its methods raise WrongModelKind where a model does not do what they are for, and the errors of
    EmbeddingPipeline.embed.

    Attributes:
        scorer: scores pairs of texts.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context, self._embedder, self._settings = context, context.embedder, context.settings
        self.scorer = Scorer(context.embedder, context.budget, context.settings)

    async def embed(
        self,
        model: Model,
        inputs: Sequence[Input],
        options: EmbedOptions,
        output_of: Callable[[Card], str],
        call: RequestContext,
    ) -> EmbedResult:
        """Return the one output that `output_of` names for a model."""
        options = options._replace(outputs=(output_of(model.card),))
        return await self._embedder.embed(EmbedRequest(inputs, model.card.name, options), call)

    async def rank(
        self, model: Model, query: str, texts: Sequence[str], reading: Reading, call: RequestContext
    ) -> Ranks:
        """Return the scores of texts with a query."""
        self.check_batch(len(texts), "texts")
        return await self.scorer.score(model, [(query, text) for text in texts], call, reading)

    async def label(
        self,
        model: Model,
        texts: Sequence[Text],
        options: EmbedOptions,
        activation: ScoreActivation | None,
        call: RequestContext,
    ) -> Labelled:
        """Return the scores of the labels of texts, or of pairs of texts; `activation` None: the model's own."""
        return await ranking.classify(self._embedder, model, texts, call, options, activation)

    async def tokenize(
        self,
        model: Model,
        texts: Sequence[str],
        special_tokens: bool,
        prompt_name: str | None,
        written: Callable[[list[list[Token]]], Written],
    ) -> Written:
        """Return every token of each text after its prompt; offsets count from the prompt's beginning.

        Args:
            written: writes the tokens, off the event loop where they are many: a second for half a million.
        """
        tokenizer, settings = _tokenizer(model), self._settings
        self.check_batch(len(texts), "inputs")
        check_characters([Text(text) for text in texts], settings)
        prompt = prompt_of(model.card, prompt_name)
        texts, most = [prompt + text for text in texts], settings.max_request_tokens
        characters, budget = sum(map(len, texts)), self._context.budget
        return await beside(characters, budget, _written, tokenizer, texts, special_tokens, most, written)

    async def decode(self, model: Model, sequences: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        """Return the text of each sequence of ids."""
        tokenizer = _tokenizer(model)
        self.check_batch(len(sequences), "ids")
        if sum(map(len, sequences)) <= INLINE_CHARACTERS:
            return tokenizer.decode(sequences, skip_special_tokens)
        return await asyncio.to_thread(tokenizer.decode, sequences, skip_special_tokens)

    def info(self, model: Model) -> Info:
        """Return the document of /info about this server and a model."""
        card, settings = model.card, self._settings
        lengths = (settings.max_request_tokens, card.max_tokens, card.position.longest())
        return Info(
            model_id=card.source if "/" in card.source else card.name,
            model_dtype=model.choice.precision if model.choice.engine == "openvino" else card.dtype,
            served_model_name=card.name,
            model_type=_model_type(model),
            max_concurrent_requests=settings.max_concurrent_requests,
            max_input_length=min([length for length in lengths if length is not None]),
            max_batch_tokens=_batch_tokens(model, settings.max_batch_tokens),
            max_client_batch_size=settings.max_inputs,
            auto_truncate=settings.auto_truncate,
            tokenization_workers=available_cpus(),
            version=self._context.version,
        )

    def check_batch(self, size: int, name: str, *, besides: int = 0) -> None:
        """Raise EmptyRequest for an empty list, TooLarge for one that with `besides` others exceeds the limit."""
        most = self._settings.max_inputs - besides
        if not size:
            raise EmptyRequest(f"`{name}` cannot be empty", remedy="send one at least")
        if size > most:
            raise TooManyInputs(f"batch size {size} > maximum allowed batch size {most}", remedy=f"send fewer {name}")


def reading_of(options: EmbedOptions, raw: bool) -> Reading:
    """Return how the pairs of a ranking are read; its scores are logits where they are `raw`, else their sigmoids."""
    return Reading(options.truncate, options.truncation_direction, "identity" if raw else "sigmoid")


def _written(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    special_tokens: bool,
    most: int,
    written: Callable[[list[list[Token]]], Written],
    limit: int | None,
) -> Written:
    return written(tokenizer.tokens(texts, special_tokens, most, limit))


def _tokenizer(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise WrongModelKind(f"{model.card.name} was exported without a tokenizer", allowed="it reads ids alone")
    return model.tokenizer


def _batch_tokens(model: Model, setting: int) -> int:
    if HIDDEN not in model.card.outputs:
        return max(1, BATCH_VALUES // model.card.hidden_size)
    return setting or encoder_tokens(model.engine, model.choice)


# ---- what a model gives


def _model_type(model: Model) -> dict[str, dict[str, Any]]:
    kind, card = needs.kind_of(model), model.card
    if kind == "embedding":
        pooling = card.pooling.mode if card.pooling else "splade" if needs.sparse_output(card) else "none"
        return {kind: {"pooling": POOLING_NAMES.get(pooling, pooling)}}
    labels = {str(number): label for number, label in enumerate(needs.labels_of(model))}
    return {kind: {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}}


def pooled_output(card: Card) -> str:
    """Return the name of the output that holds one vector per text; raise WrongModelKind if there is none."""
    if POOLED in card.outputs:
        return POOLED
    raise WrongModelKind(
        "Model is not an embedding model",
        allowed=f"{card.name} has {', '.join(card.outputs)} and no sentence vector",
        remedy=f"send a pooling ({', '.join(POOLINGS)}) to /embed"
        if HIDDEN in card.outputs
        else "ask /embed for these",
    )


def token_output(card: Card) -> str:
    """Return the name of the output that holds one vector per token: the encoder's, else the input layer's.

    Raises:
        WrongModelKind: the model has neither.
    """
    for name in (HIDDEN, INPUT_LAYER):
        if name in card.outputs:
            return name
    allowed = f"{card.name} gives {', '.join(card.outputs)} alone, by /embed"
    raise WrongModelKind("Model has no token embeddings", allowed=allowed)


def sparse_output(card: Card) -> str:
    """Return the name of the output that holds a sparse vector per text; raise WrongModelKind if there is none."""
    if name := needs.sparse_output(card):
        return name
    dense = f"{card.name} gives {'dense vectors' if POOLED in card.outputs else ', '.join(card.outputs)}, by /embed"
    raise WrongModelKind("Model is not an embedding model with SPLADE pooling", remedy=dense)
