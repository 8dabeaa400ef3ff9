"""The prompt before the texts of a request, and the task whose adapters its tokens get.

A request names a task itself or by a prompt of the task's name, as clients of sentence-transformers do. A task named
itself brings its prompt, unless the request names another. A request that says what its texts are for (`input_type`)
gets the prompt of that use, and the task of the same name; of a model without one, nothing is put before its texts.

Source: sentence-transformers 6.2 (prompts, encode_query, encode_document); the encode of jina-embeddings-v3's own code
(task and its instruction).
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from models.artifacts.card import Card
from service.embedding.requests import Ids, InputType
from service.embedding.tokenize.packing import NO_TASK
from service.errors import BadInput, ConflictingFields, OutOfRange, UnknownValue

USES: dict[InputType, tuple[str, ...]] = {
    "query": ("query", "search_query", "retrieval.query", "s2p_query"),
    "document": ("document", "passage", "corpus", "search_document", "retrieval.passage"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "separation", "Clustering"),
}
"""Names that models give to the prompt of a use, the first that a model has counting.

sentence-transformers knows the first of query and the first three of document; the others are those of nomic, Jina v3,
Stella and EmbeddingGemma.
"""
SPELLINGS: dict[str, InputType] = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
    "classification": "classification",
    "clustering": "clustering",
}
"""Uses by the names that clients send: Voyage's and NVIDIA's query, document and passage, and Cohere's."""

INSTRUCTED = re.compile(
    r"(?P<before>.*?(?:Instruct: |<instruct>|<\|im_start\|>system\n)).*"
    r"(?P<behind>\n(?:Query: ?|<query>)|<\|im_end\|>\n<\|im_start\|>user\n)",
    re.DOTALL,
)
"""Prompts with an instruction: those of Qwen3-Embedding, Qwen3-VL-Embedding, gte-Qwen2, and of E5 and BGE."""
USUAL = "Instruct: ", "\nQuery: "  # around the instruction of models without such a prompt whose name says `instruct`
LONGEST_INSTRUCTION = 2048  # characters


def prompt_of(card: Card, name: str | None, task: str | None = None, input_type: InputType | None = None) -> str:
    """Return the prompt to put before a text: the one of that name, else the task's, else the model's default.

    Args:
        card: card of the model.
        name: the prompt's name in the request; None: none.
        task: the task in the request; None: none.
        input_type: the use of the text; if neither is named, the prompt of this use is taken, or none.

    Raises:
        UnknownValue: the model has no such prompt.
    """
    if name is None:
        if task is None and input_type is not None:
            named = _name_of(card, input_type)
            if named is None and card.text_ending:  # a conversation is not read without its begin
                named = card.default_prompt
            return card.prompts.get(named or "", "")
        return card.prompts.get(task or card.default_prompt or card.default_task or "", "")
    if name not in card.prompts:
        known = ", ".join(repr(prompt) for prompt in card.prompts) or "none"
        raise UnknownValue(f"is {name[:80]!r}", field=("prompt_name",), allowed=f"{card.name} has the prompts {known}")
    return card.prompts[name]


def instructed(card: Card, instruction: str, prompt_name: str | None) -> str:
    """Return the prompt of a request with an instruction of its own, in the form that the model was trained with.

    Raises:
        ConflictingFields: no prompt of the model holds an instruction, or one is named too.
        OutOfRange: it is too long.
    """
    if prompt_name is not None:
        raise ConflictingFields("is sent, and so is prompt_name", field=("instruction",), remedy="send one of them")
    if len(instruction) > LONGEST_INSTRUCTION:
        allowed = f"send {LONGEST_INSTRUCTION} at most"
        raise OutOfRange(f"has {len(instruction)} characters", field=("instruction",), allowed=allowed)
    if card.pooling and not card.pooling.include_prompt:
        return instruction  # INSTRUCTOR's stands before the text as it is
    fitting = next(filter(None, map(INSTRUCTED.fullmatch, card.prompts.values())), None)
    if fitting is None and "instruct" not in f"{card.name} {card.source}".lower():
        received = f"is sent, and no prompt of {card.name} holds an instruction"
        raise ConflictingFields(received, field=("instruction",), remedy="leave it out, or put it before the texts")
    before, behind = (fitting["before"], fitting["behind"]) if fitting else USUAL
    return f"{before}{instruction}{behind}"


def task_of(card: Card, task: str | None, prompt_name: str | None, input_type: InputType | None = None) -> int:
    """Return the number of the task that a request names, directly or by its prompt, else of the model's default task.

    Args:
        input_type: the use of the texts; if neither is named, the task of this use is taken, if there is one.

    Returns:
        the place among the card's tasks; NO_TASK: no adapter adds anything.

    Raises:
        UnknownValue: the model has no such task.
    """
    if task is not None and task not in card.tasks:
        known = f"the tasks {', '.join(map(repr, card.tasks))}" if card.tasks else "no tasks"
        remedy = "" if card.tasks else "leave it out"
        raise UnknownValue(f"is {task[:80]!r}", field=("task",), allowed=f"{card.name} has {known}", remedy=remedy)
    if prompt_name is None and task is None and input_type is not None:
        prompt_name = _name_of(card, input_type)
    named = task or (prompt_name if prompt_name in card.tasks else card.default_task)
    return NO_TASK if named is None else card.tasks.index(named)


def _name_of(card: Card, input_type: InputType) -> str | None:
    """Return the name of a model's prompt for a use, or of its task without a prompt; None if it has neither.

    Empty prompts count last: sentence-transformers saves them as placeholders beside a prompt of another name.
    """
    names = [name for name in USES[input_type] if name in card.prompts or name in card.tasks]
    return next((name for name in names if card.prompts.get(name) or name in card.tasks), None)


def with_ending(encoded: dict[int, Ids], ending: Sequence[int]) -> dict[int, Ids]:
    """Return the ids of texts with those of an ending behind them; models with an ending read no segments."""
    behind = np.array(ending, np.int64)
    return {index: each._replace(ids=np.concatenate([each.ids, behind])) for index, each in encoded.items()}


def check_prompts(encoded: Mapping[int, Ids], prompts: Mapping[int, int]) -> None:
    """Raise BadInput for the first input that is cut so short that no token is pooled."""
    for index, sequence in encoded.items():
        if len(sequence.ids) <= prompts[index]:
            raise BadInput(
                f"is cut to {len(sequence.ids)} tokens, all of them its prompt's, which pooling does not count",
                field=("inputs", index),
                remedy="use a shorter prompt",
            )
