"""Renders chat templates, which are untrusted programs, in a separate process with little time and memory."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.errors import ModelError

SECONDS = 20  # by the clock
SCRIPT = Path(__file__).with_name("chat_template_process.py")
NO_JINJA = 3  # the status with which it ends where there is none


def rendered(
    text: str, variables: Mapping[str, Any], conversations: Sequence[Sequence[Mapping[str, Any]]]
) -> list[str | None]:
    """Return the text that a chat template makes of each conversation; None if it raises or exceeds its limits.

    Args:
        text: text of the template.
        variables: variables that it may read, besides `messages`.
        conversations: lists of messages, each with role and content.

    Raises:
        ModelError: jinja2 is not installed.
    """
    task = json.dumps({"text": text, "variables": dict(variables), "conversations": conversations})
    command = [sys.executable, "-I", str(SCRIPT)]
    try:
        done = subprocess.run(command, input=task, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return [None] * len(conversations)
    if done.returncode == NO_JINJA:
        raise ModelError("the chat template of a reranker is read by jinja2: install it (the extra `export`)")
    texts: list[str | None] = [None] * len(conversations) if done.returncode else json.loads(done.stdout)
    return texts
