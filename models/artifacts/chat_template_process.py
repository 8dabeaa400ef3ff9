"""The process of chat_templates.py: reads a template and conversations from stdin, writes the rendered texts.

It imports nothing of this project, as it runs without its path.

Source: transformers 5.23, utils.chat_template_utils (the sandbox and what templates may call).
"""

import json
import resource
import sys
from typing import Any

CPU_SECONDS = 10
MEMORY_BYTES = 1 << 30
MOST_CHARACTERS = 1 << 20  # of what is rendered


def render(text: str, variables: dict[str, Any], conversations: list[Any]) -> list[str | None]:
    """Return the text that a template makes of each conversation; None if it raises, or makes too much."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    texts: list[str | None] = []
    for messages in conversations:
        try:
            made: str | None = environment.from_string(text).render(messages=messages, **variables)
        except Exception:  # whatever a template raises
            made = None
        texts.append(made if made is None or len(made) <= MOST_CHARACTERS else None)
    return texts


def main() -> int:
    """Render the task of the standard input; return the status of the process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    try:
        texts = render(**json.load(sys.stdin))
    except ImportError:
        return 3
    json.dump(texts, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
