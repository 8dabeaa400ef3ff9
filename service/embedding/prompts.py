"""The prompt before the texts of a request, and the task whose adapters its tokens get.

A request names a task itself or by a prompt of the task's name, as clients of sentence-transformers do. A task named
itself brings its prompt, unless the request names another.

Source: sentence-transformers 6.2 (prompts); the encode of jina-embeddings-v3's own code (task and its instruction).
"""

from models.artifacts.card import Card
from service.errors import UnknownValue

NO_TASK = -1


def prompt_of(card: Card, name: str | None, task: str | None = None) -> str:
    """Return the prompt to put before a text: the one of that name, else the task's, else the model's default.

    Args:
        card: of the model.
        name: that the request has for a prompt; None: none.
        task: that the request names; None: none.

    Raises:
        UnknownValue: the model has no such prompt.
    """
    if name is None:
        return card.prompts.get(task or card.default_prompt or card.default_task or "", "")
    if name not in card.prompts:
        known = ", ".join(repr(prompt) for prompt in card.prompts) or "none"
        raise UnknownValue(f"is {name[:80]!r}", field=("prompt_name",), allowed=f"{card.name} has the prompts {known}")
    return card.prompts[name]


def task_of(card: Card, task: str | None, prompt_name: str | None) -> int:
    """Return the number of the task that a request names, itself or by its prompt, else of the model's default task.

    Returns:
        the place among the card's tasks; NO_TASK: no adapter adds anything.

    Raises:
        UnknownValue: the model has no such task.
    """
    if task is not None and task not in card.tasks:
        known = f"the tasks {', '.join(map(repr, card.tasks))}" if card.tasks else "no tasks"
        remedy = "" if card.tasks else "leave it out"
        raise UnknownValue(f"is {task[:80]!r}", field=("task",), allowed=f"{card.name} has {known}", remedy=remedy)
    named = task or (prompt_name if prompt_name in card.tasks else card.default_task)
    return NO_TASK if named is None else card.tasks.index(named)
