"""POST /models/{name}/logits: logits of hidden states, or the most likely tokens with their probabilities."""

from functools import partial
from typing import Any

from models.positions.table import MAX_WIDTH, Table
from service.context import ServiceContext
from service.embedding import logits
from service.embedding.model import Model
from service.embedding.position_tables import TableCall
from service.errors import ConflictingFields
from service.http.parameter_types import Tensor, TypedArrayOptions, described, number, one_of, whole
from service.http.worker_threads import inline_or_in_thread
from service.request_context import RequestContext

LOGITS_BYTES = 4 + 3 * 8  # of a logit in the block that is read, float32, and of its transformations


class LogitsParameters(TypedArrayOptions):
    """Hidden states, and which results to compute from their logits."""

    hidden: Tensor = described("what the last block and the final norm give [..., hidden_size]")
    top_k: int | None = whole(1, MAX_WIDTH, "tokens of each row, the largest logits first; left out: every token", None)
    temperature: float = number("what logits are divided by, above 0", 1.0)
    output: str | None = one_of(
        ("ids", *logits.OUTPUTS), "with top_k: one alone; left out: all. Without: which, left out: logits", None
    )


def with_head(model: Model) -> Model:
    """Return the model; raise NotFound if it has no output head."""
    logits.head_of(model)
    return model


async def logits_call(
    context: ServiceContext, model: Model, parameters: LogitsParameters, call: RequestContext
) -> TableCall:
    """Return the call that makes a request's table; the tokens of the largest logits are computed already.

    Raises:
        NotFound, BadRequest, Overloaded: the model has no head, or cannot serve the parameters.
    """
    hidden = parameters.hidden
    states = await inline_or_in_thread(hidden.size, logits.check_states, model, hidden, parameters.temperature)
    context.metrics.used(call, model.card.name, len(states.hidden))
    if parameters.top_k is None:
        output = _whole_output(parameters.output)
        return _call(states, logits.whole(states, output), output=output)
    context.budget.reserve(logits.TOP_BYTES * len(states.hidden) * parameters.top_k, call)
    table = await context.computations.run("logits", partial(logits.top, states, parameters.top_k))
    return _call(states, table, top_k=parameters.top_k)


def _whole_output(output: str | None) -> str:
    if output == "ids":
        allowed = f"without it there are {', '.join(logits.OUTPUTS)}"
        raise ConflictingFields("ids goes with top_k", field=("output",), allowed=allowed)
    return output or logits.OUTPUTS[0]


def _call(states: logits.HiddenStates, table: Table, **form: Any) -> TableCall:
    """Return a call whose ETag covers everything that determines the table's values."""

    def logits_of(**_: Any) -> Table:
        return table

    held = states.hidden.nbytes + LOGITS_BYTES * states.block_rows * states.head.vocab_size
    return TableCall(logits_of, states.identity | form, held_bytes=held)
