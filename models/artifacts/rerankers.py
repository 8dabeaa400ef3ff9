"""Causal rerankers: a score is the logit of one token, minus that of another, after a text of query and document.

Source: sentence-transformers 6.2, cross_encoder.modules.LogitScore and base.modules.Transformer; the template of models
    without one of their own is that of Qwen3-Reranker's published files.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.artifacts.chat_templates import rendered
from models.checkpoints import sentence_transformers
from models.checkpoints.checkpoint import Checkpoint, read_object, read_tensors
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
QWEN3 = PairTemplate(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: ',
    "\n<Query>: ",
    "\n<Document>: ",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "Given a web search query, retrieve relevant passages that answer the query",
)
_TEMPLATE_CHARACTERS = 1 << 16
_MARKS = {"system": "\ue000", "query": "\ue001", "document": "\ue002"}  # private characters, which no template has
_NOT_RENDERED = {"restore_suffix", "padding", "truncation", "max_length", "return_tensors", "tokenize", "return_dict"}


def token_ids(folder: Path, source: Checkpoint, option: str | None) -> tuple[int, ...] | None:
    """Return the ids whose logits make a score, the first minus the second if there are two; None if there is none.

    Args:
        folder: folder of the sentence-transformers files.
        source: the checkpoint.
        option: entries of the vocabulary, joined by a comma, instead of what the files say.

    Raises:
        BadCheckpoint: the files or the option name no such tokens.
    """
    if option is not None:
        known = _vocabulary(source.folder)
        names = option.split(",")
        if len(names) > 2 or not all(name in known for name in names):
            raise BadCheckpoint(f"--reranker {option!r} must be one or two entries of the vocabulary, such as yes,no")
        return tuple(known[name] for name in names)
    place = next((place for kind, place in sentence_transformers.modules(folder) if kind == LOGIT_SCORE), None)
    if place is None:
        return None
    path = sentence_transformers.path_inside(folder, place) / "config.json"
    config = read_object(path)
    if (reads := config.get("module_input_name", "causal_logits")) != "causal_logits":
        raise BadCheckpoint(f"{path} says module_input_name {reads!r}; only 'causal_logits' is computed")
    ids = [config.get(key) for key in ("true_token_id", "false_token_id")]
    if type(ids[0]) is not int or (ids[1] is not None and type(ids[1]) is not int):
        raise BadCheckpoint(f"{path}: true_token_id and false_token_id must be token ids, and the second may be null")
    return tuple(int(each) for each in ids if each is not None)


def entries(source: Checkpoint, ids: tuple[int, ...]) -> list[str]:
    """Return the tokens of these ids, quoted; of one that the tokenizer does not have, its number."""
    by_id = {number: name for name, number in _vocabulary(source.folder).items()}
    return [repr(by_id.get(number, number)) for number in ids]


def example(template: PairTemplate) -> str:
    """Return the text that a template makes of an example pair, as one line."""
    parts = (template.before_instruction, template.instruction or "", template.before_query, "QUERY")
    return repr("".join((*parts, template.before_document, "DOCUMENT", template.ending)))


def layer(source: Checkpoint, fitted: FittedModel, ids: tuple[int, ...]) -> tuple[StoredModules, Computed]:
    """Return the layer from a hidden state to its score, and the function that computes its matrix of one row.

    Raises:
        MissingHead: the model's logits are not its hidden states times a matrix.
        BadCheckpoint: an id is none of its rows.
    """
    head = fitted.head
    if head is None:
        raise MissingHead(f"it has no output head: {fitted.no_head_reason}")
    if head.transform or head.bias or head.cap or (head.before, head.after) != (1.0, 1.0):
        raise MissingHead("its logits are not hidden states times a matrix alone")
    if not all(0 <= each < head.vocab_size for each in ids):
        raise BadCheckpoint(f"the score is of tokens {', '.join(map(str, ids))}; the model has {head.vocab_size}")

    def computed() -> dict[str, NDArray[Any]]:
        matrix = read_tensors(source, [head.matrix])[head.matrix]  # of a hub repository, it is fetched whole
        rows = [np.asarray(matrix[each : each + 1], np.float32) for each in ids]
        return {WEIGHT: rows[0] if len(rows) == 1 else rows[0] - rows[1]}

    place = Tensor(WEIGHT, "F32", (1, head.inner), Path(), 0, 4 * head.inner)
    steps = (Dense(Linear(WEIGHT, None), "identity"),)
    return StoredModules(steps, {WEIGHT: place}, head.inner, 1), computed


def template(folder: Path, source: Checkpoint, sentence: SentenceFiles, option: str | None) -> tuple[PairTemplate, str]:
    """Return the template of a pair's text and its origin: the chat template, or Qwen3's if only `option` says that
    the model ranks.

    Raises:
        MissingHead: it has no chat template of queries and documents.
        BadCheckpoint: the tokenizer does not have the tokens of Qwen3's.
    """
    text, variables, origin = _chat_template(source.folder)
    prompt = sentence.prompts.get(sentence.default_prompt or "")
    rendered_template = _rendered(text, variables | _render_options(folder), prompt or None) if text else None
    if rendered_template is not None:
        return rendered_template, origin
    if option is None:
        raise MissingHead("its chat template does not carry a query and a document")
    if not {"<|im_start|>", "<|im_end|>"} <= set(_vocabulary(source.folder)):
        raise BadCheckpoint(
            f"{source.name} has no chat template of the roles query and document, and its tokenizer lacks the tokens "
            "of Qwen3-Reranker's: add a chat_template.jinja"
        )
    return QWEN3, "Qwen3-Reranker's model card"


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
