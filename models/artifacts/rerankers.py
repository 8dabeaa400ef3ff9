"""Causal rerankers: a score is the logit of one token, minus that of another, after a text of query and document.

Source: sentence-transformers 6.2, cross_encoder.modules.LogitScore and base.modules.Transformer.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.chat_templates import rendered
from models.artifacts.known_rerankers import KNOWN, QWEN3, KnownReranker, known_by_name
from models.checkpoints import sentence_transformers
from models.checkpoints.checkpoint import Checkpoint, read_tensors
from models.checkpoints.json_files import read_object
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_modules import StoredModules
from models.checkpoints.sentence_transformers import SentenceFiles
from models.checkpoints.tokenizers.checkpoint_tokenizer import read_tokenizer
from models.errors import BadCheckpoint
from models.families.fitting import FittedModel
from models.families.head_fitting import MissingHead
from models.recipes.heads import PairTemplate
from models.recipes.sentence_modules import Dense
from models.recipes.steps import Linear

Computed = Callable[[], dict[str, NDArray[Any]]]  # tensors by name
LOGIT_SCORE = "LogitScore"
WEIGHT = "reranker.weight"
_TEMPLATE_CHARACTERS = 1 << 16
_SPECIAL = re.compile(r"<\|im_start\|>|<\|im_end\|>|<bos>|<s>")
_PAIR = ("query", "document")
_MARKS = {"system": "\ue000", "query": "\ue001", "document": "\ue002"}  # private characters, which no template has
_NOT_RENDERED = {"restore_suffix", "padding", "truncation", "max_length", "return_tensors", "tokenize", "return_dict"}


def known(folder: Path, source: Checkpoint, option: str | None) -> KnownReranker | None:
    """Return the row of KNOWN that the option names; without an option, and files that rank, that of the name."""
    if option is not None:
        return KNOWN.get(option) or known_by_name(source)
    by_files = _score_place(folder) is not None or not _vocabulary(source.folder)
    return None if by_files else known_by_name(source)


def token_ids(
    folder: Path, source: Checkpoint, option: str | None, row: KnownReranker | None
) -> tuple[int, ...] | None:
    """Return the ids whose logits make a score, the first minus the second if there are two; None if there is none.

    Args:
        folder: folder of the sentence-transformers files.
        source: the checkpoint.
        option: a row of KNOWN, or entries of the vocabulary, joined by a comma, instead of what the files say.
        row: the known reranker; None: it is none.

    Raises:
        BadCheckpoint: the files or the option name no such tokens.
    """
    tokens = option if option is not None and option not in KNOWN else row.tokens if row else None
    if isinstance(tokens, int):
        return (tokens,)
    if tokens is not None:
        vocabulary = _vocabulary(source.folder)
        names = tokens.split(",")
        if len(names) > 2 or not all(name in vocabulary for name in names):
            raise BadCheckpoint(
                f"--reranker {tokens!r} must be one or two entries of the vocabulary, such as yes,no, or one of "
                f"{', '.join(KNOWN)}"
            )
        return tuple(vocabulary[name] for name in names)
    if (place := _score_place(folder)) is None:
        return None
    path = sentence_transformers.path_inside(folder, place) / "config.json"
    config = read_object(path)
    if (reads := config.get("module_input_name", "causal_logits")) != "causal_logits":
        raise BadCheckpoint(f"{path} says module_input_name {reads!r}; only 'causal_logits' is computed")
    ids = [config.get(key) for key in ("true_token_id", "false_token_id")]
    if type(ids[0]) is not int or (ids[1] is not None and type(ids[1]) is not int):
        raise BadCheckpoint(f"{path}: true_token_id and false_token_id must be token ids, and the second may be null")
    return tuple(int(each) for each in ids if each is not None)


def _score_place(folder: Path) -> str | None:
    return next((place for kind, place in sentence_transformers.modules(folder) if kind == LOGIT_SCORE), None)


def entries(source: Checkpoint, ids: tuple[int, ...]) -> list[str]:
    """Return the tokens of these ids, quoted; of one that the tokenizer does not have, its number."""
    by_id = {number: name for name, number in _vocabulary(source.folder).items()}
    return [repr(by_id.get(number, number)) for number in ids]


def layer(
    source: Checkpoint, fitted: FittedModel, ids: tuple[int, ...], divisor: float
) -> tuple[StoredModules, Computed]:
    """Return the layer from a hidden state to its score, and the function that computes its matrix of one row.

    Raises:
        MissingHead: the model's logits are not its hidden states times a matrix.
        BadCheckpoint: an id is none of its rows.
    """
    head = fitted.head
    if head is None:
        raise MissingHead(f"it has no output head: {fitted.no_head_reason}")
    if head.transform or head.bias or head.cap:
        raise MissingHead("its logits are not hidden states times a matrix alone")
    if not all(0 <= each < head.vocab_size for each in ids):
        raise BadCheckpoint(f"the score is of tokens {', '.join(map(str, ids))}; the model has {head.vocab_size}")

    def computed() -> dict[str, NDArray[Any]]:
        matrix = read_tensors(source, [head.matrix])[head.matrix]  # of a hub repository, it is fetched whole
        rows = [np.asarray(matrix[each : each + 1], np.float32) for each in ids]
        row = rows[0] if len(rows) == 1 else rows[0] - rows[1]
        return {WEIGHT: row * np.float32(head.before * head.after) / np.float32(divisor)}

    place = Tensor(WEIGHT, "F32", (1, head.inner), Path(), 0, 4 * head.inner)
    steps = (Dense(Linear(WEIGHT, None), "identity"),)
    return StoredModules(steps, {WEIGHT: place}, head.inner, 1), computed


def template(
    folder: Path, source: Checkpoint, sentence: SentenceFiles, row: KnownReranker | None
) -> tuple[PairTemplate, str]:
    """Return the template of a pair's text, and its origin.

    A chat template counts if the files of sentence-transformers score by it, or if it names the roles query and
    document: most chat templates carry any role, and say nothing of pairs.

    Raises:
        MissingHead: it has no chat template of queries and documents.
        BadCheckpoint: no file says how it reads a pair, and its name none that is known.
    """
    text, variables, origin = _chat_template(source.folder)
    prompt = sentence.prompts.get(sentence.default_prompt or "")
    by_files = _score_place(folder) is not None
    if text and (by_files or all(re.search(rf"['\"]{role}['\"]", text) for role in _PAIR)):
        rendered_template = _rendered(text, variables | _render_options(folder), prompt or None)
        if rendered_template is not None:
            return rendered_template, origin
    if by_files and row is None:
        raise MissingHead("its chat template does not carry a query and a document")
    vocabulary = set(_vocabulary(source.folder))
    if row is None and source.model_type == "qwen3":
        chosen, origin = QWEN3, "Qwen3-Reranker's card, as config.json says qwen3"
    elif row is not None:
        chosen, origin = row.template, f"the card of {row.card}"
    else:
        raise BadCheckpoint(
            f"no file of {source.name} says how it reads a pair: add a chat_template.jinja of the roles query and "
            f"document, or choose a known one: --reranker {' or '.join(KNOWN)}"
        )
    if missing := set(_SPECIAL.findall(chosen.text("", ""))) - vocabulary:
        raise BadCheckpoint(
            f"{source.name} would read pairs as {origin} says, and its tokenizer lacks {', '.join(sorted(missing))}: "
            "add a chat_template.jinja of the roles query and document"
        )
    return chosen, origin


def _rendered(text: str, variables: Mapping[str, Any], prompt: str | None) -> PairTemplate | None:
    """Return a chat template as texts around instruction, query and document; None if it cannot hold a pair."""
    roles = tuple(_MARKS)
    forms = [(chosen, structured) for structured in (False, True) for chosen in (roles[1:], roles)]
    conversations = [[_message(role, structured) for role in chosen] for chosen, structured in forms]
    texts = rendered(text, variables, conversations)
    split = [_split(each, chosen) if each else None for each, (chosen, _) in zip(texts, forms, strict=True)]
    for plain, instructed in (split[:2], split[2:]):
        if instructed:
            begin, end, before_document, ending = instructed
            usual = prompt or (plain[0].removeprefix(begin).removesuffix(end) if plain else "")
            if prompt or plain == [begin + usual + end, before_document, ending]:
                return PairTemplate(begin, end, before_document, ending, usual)
        if plain and not prompt:
            return PairTemplate("", plain[0], plain[1], plain[2])
    return None


def _message(role: str, structured: bool) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": _MARKS[role]}] if structured else _MARKS[role]}


def _split(text: str, roles: tuple[str, ...]) -> list[str] | None:
    """Return the texts around the messages of these roles; None if the template left one out or repeated it."""
    parts = [text]
    for role in roles:
        before, found, after = parts.pop().partition(_MARKS[role])
        if not found:
            return None
        parts += [before, after]
    return None if any(mark in part for mark in _MARKS.values() for part in parts) else parts


def _chat_template(folder: Path) -> tuple[str | None, dict[str, Any], str]:
    """Return the chat template of a tokenizer, None if it has none or a very long one, the special tokens, its file."""
    path = folder / "tokenizer_config.json"
    origin = f"{path.name}: chat_template"
    config = read_object(path) if path.is_file() else {}
    text: Any = config.get("chat_template")
    if isinstance(text, list):
        text = next((each.get("template") for each in text if each.get("name") == "default"), None)
    if (file := folder / "chat_template.jinja").is_file():
        text, origin = file.read_text(encoding="utf-8"), file.name
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    tokens = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    usable = isinstance(text, str) and 0 < len(text) <= _TEMPLATE_CHARACTERS
    return (text if usable else None), {key: value for key, value in tokens.items() if isinstance(value, str)}, origin


def _render_options(folder: Path) -> dict[str, Any]:
    """Return the options that the sentence-transformers files pass to the chat template."""
    path = sentence_transformers.weights_folder(folder) / sentence_transformers.TRANSFORMER_CONFIGS[0]
    settings = (read_object(path).get("processing_kwargs") or {}) if path.is_file() else {}
    options = settings.get("chat_template") or {}
    return {"add_generation_prompt": False} | {key: value for key, value in options.items() if key not in _NOT_RENDERED}


def _vocabulary(folder: Path) -> dict[str, int]:
    """Return the ids of a tokenizer's entries by name; empty if the checkpoint has no tokenizer."""
    tokenizer = read_tokenizer(folder)
    return dict(tokenizer.library.get_vocab()) if tokenizer else {}
