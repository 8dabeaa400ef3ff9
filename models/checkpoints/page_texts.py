"""`PageTexts`: the texts around queries and pages of models that retrieve pages as pictures.

Source: colpali-engine 0.3 (ColQwen2Processor, ColPaliProcessor until 0.3.3); transformers 5.23 (ColQwen2Processor,
ColPaliProcessor); modeling_jina_embeddings_v4.py, the code beside jina-embeddings-v4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.json_files import read_optional
from models.checkpoints.tokenizers.checkpoint_tokenizer import read_tokenizer
from models.checkpoints.tokenizers.files import read_files
from models.errors import BadCheckpoint

NESTED = "vlm_config"  # of classes that add a projection to a model of several towers (ColQwen2ForRetrieval)
ENGINE, NATIVE, JINA = "custom_text_proj", "embedding_proj_layer", "multi_vector_projector"
_LIKE_QUERIES = "text-matching"  # the task of Jina's whose passages are read like queries
_FILES = {"query_prefix": "query", "visual_prompt_prefix": "page"}  # keys of processor_config.json
_PAGE = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>"


@dataclass(frozen=True, slots=True)
class PageTexts:
    """The texts of one kind of model; {bos} and {pad} stand for the tokenizer's tokens.

    Attributes:
        query: before a query.
        ending: behind a query.
        page: the text of an input that is one page, its image one token.
        around: what is around the part of it that the files may say, with {page}.
        begin: before every text.
        passage: before a text that is found; None: nothing is, and there is no prompt of that name.
        mean: the model also gives the mean of its hidden states, of an image of those between its vision tokens.
    """

    query: str
    ending: str
    page: str
    around: str = "{page}"
    begin: str = ""
    passage: str | None = None
    mean: bool = False


_QWEN = PageTexts("Query: ", "<|endoftext|>" * 10, f"{_PAGE}<|endoftext|>")
_ROWS = {
    ENGINE: _QWEN,
    NATIVE: replace(_QWEN, ending=f"{_QWEN.ending}\n"),
    JINA: PageTexts("Query: ", "", f"{_PAGE}\n", passage="Passage: ", mean=True),
    "paligemma": PageTexts(
        "Question: ", "{pad}" * 10 + "\n", "Describe the image.", "<image>{bos}{page}\n", begin="{bos}"
    ),
}


def page_projection(source: Checkpoint) -> str | None:
    """Return the name of the projection of a model that retrieves pages as pictures; None if it is none."""
    ends = tuple(f"{name}.weight" for name in (ENGINE, NATIVE, JINA))
    return next((name for name in source.tensors if name.endswith(ends)), None)


def page_texts(source: Checkpoint) -> PageTexts | None:
    """Return the texts of a model that retrieves pages as pictures, as its files have them; None if it is none.

    Raises:
        BadCheckpoint: the tokenizer lacks a token that stands around them.
    """
    if (name := page_projection(source)) is None:
        return None
    outer = source.config.get(NESTED, source.config)
    family = outer.get("model_type") if isinstance(outer, Mapping) else None
    row = _ROWS.get(str(family), next(row for key, row in _ROWS.items() if key in name))
    if row.passage and source.config.get("task_names") == [_LIKE_QUERIES]:
        row = replace(row, passage=row.query)
    said = read_optional(source.folder / "processor_config.json")
    stated: dict[str, Any] = {field: str(said[key]) for key, field in _FILES.items() if said.get(key)}
    row = replace(row, **stated)
    special = {"bos": "<bos>", "pad": "<pad>"} | read_files(source.folder).special
    tokenizer = read_tokenizer(source.folder)
    for role, token in special.items():
        used = f"{{{role}}}" in row.begin + row.ending + row.around
        if used and tokenizer and tokenizer.library.token_to_id(token) is None:
            raise BadCheckpoint(
                f"{source.folder}: {token!r}, its {role} token, stands around pages, and is no token of the vocabulary"
            )
    begin = row.begin.format(**special)
    if tokenizer and begin in tokenizer.library.encode("").tokens:  # the tokenizer puts it there
        begin = ""
    page = row.around.format(page=row.page, **special)
    return replace(row, ending=row.ending.format(**special), page=page, around="", begin=begin)
