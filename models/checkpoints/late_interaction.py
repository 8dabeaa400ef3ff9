"""Reads the files that ColBERT's libraries and BGE-M3 write beside a checkpoint for late interaction.

sentence-transformers describes such a model by modules.json and the config of its Transformer; PyLate by modules.json
and config_sentence_transformers.json; Stanford's ColBERT by the architecture HF_ColBERT, artifact.metadata and a
tensor linear.weight; BGE-M3 by a file colbert_linear beside the weights; jina-reranker-v3 by the architecture
JinaForRanking.

Source: sentence-transformers 6.2, multi_vector_encoder.model; FlagEmbedding 1.3, inference.embedder.encoder_only.m3.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from models.checkpoints import safetensors, sentence_modules, sentence_transformers
from models.checkpoints.checkpoint import Checkpoint, file_headers, read_tensors
from models.checkpoints.json_files import optional_count, read_optional
from models.checkpoints.page_texts import PageTexts, page_projection, page_texts
from models.checkpoints.sentence_modules import Fetch
from models.errors import BadCheckpoint
from models.recipes.sentence_modules import Dense, Module, Normalize
from models.recipes.steps import Linear

STANFORD = "HF_ColBERT"
LISTWISE = "JinaForRanking"
METADATA = "artifact.metadata"
BGE = "colbert_linear"
BGE_FILES = (f"{BGE}.safetensors", f"{BGE}.pt")
BGE_TYPE = "xlm-roberta"
MASK_MODULE = "MultiVectorMask"
_LENGTH = 32  # of expanded queries, where no file says another
_PUNCTUATION = tuple(string.punctuation)
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_OLD_KEYS = (  # of PyLate, whose queries are expanded unless they say otherwise
    "query_length",
    "document_length",
    "query_expansion",
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "attend_to_mask_tokens",
    "query_prefix",
    "document_prefix",
    "skiplist_words",
)

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ExpansionFiles:
    """How queries are filled up, by the files.

    Attributes:
        tokens: least number of tokens of a query.
        token: the text of those added; None: the tokenizer's mask token.
        attended: whether other tokens attend to them.
        fixed: longer queries are cut to as many.
    """

    tokens: int
    token: str | None
    attended: bool
    fixed: bool


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """What the files say about late interaction.

    Attributes:
        steps: steps from hidden states to vectors.
        arrays: the tensors of the steps, by name.
        width: width of a vector.
        prompts: prompts by name, those with a marker token included.
        markers: prompts that begin with a marker, where that may have to be made one token.
        prompt_names: names of the prompts of queries and documents; None: the default prompt.
        lengths: the longest query and document; None: the model's own limit.
        expansion: how queries are filled up; None: they are not.
        skipped: texts of the tokens of queries and of documents that get no vector.
        first, mean: as in MultiVector.
        endings: texts behind queries and documents.
        marks: the tokens of documents and of the query in one text of all; None: texts are read one by one.
    """

    steps: tuple[Module, ...]
    arrays: Arrays
    width: int
    prompts: dict[str, str] = field(default_factory=dict)
    markers: tuple[str, ...] = ()
    prompt_names: tuple[str | None, str | None] = (None, None)
    lengths: tuple[int | None, int | None] = (None, None)
    expansion: ExpansionFiles | None = None
    skipped: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    first: int = 0
    mean: bool = False
    endings: tuple[str, str] = ("", "")
    marks: tuple[str, str] | None = None


def read(folder: Path, source: Checkpoint, width: int, fetch: Fetch) -> LateInteraction | None:
    """Return what the files of a checkpoint say about late interaction; None if they say nothing.

    Args:
        folder: the checkpoint's.
        source: config and tensors of the checkpoint.
        width: columns of its hidden states.
        fetch: called with the place of each module before its weights are read.

    Raises:
        BadCheckpoint: the files describe something that is not computed, or a file is missing or damaged.
    """
    if sentence_transformers.is_late_interaction(folder):
        return _modules(folder, width, fetch)
    if STANFORD in (source.config.get("architectures") or ()):
        return _stanford(source, width)
    if is_listwise(source):
        return _listwise(source, width)
    if texts := page_texts(source):
        return _pages(source, texts, width)
    return _bge(source.folder, width)


def is_stated(folder: Path, source: Checkpoint) -> bool:
    """Return whether files of sentence-transformers or PyLate, its class, or a projection for pages say that it is."""
    stated = sentence_transformers.is_late_interaction(folder) or is_listwise(source)
    return stated or page_projection(source) is not None


def is_listwise(source: Checkpoint) -> bool:
    """Return whether a checkpoint reads a query and all documents in one text."""
    return LISTWISE in (source.config.get("architectures") or ())


def _modules(folder: Path, width: int, fetch: Fetch) -> LateInteraction:
    """Return the settings that sentence-transformers or PyLate wrote."""
    path = folder / sentence_transformers.MODEL_CONFIG
    config = read_optional(path)
    chain = sentence_transformers.modules(folder)
    modules = sentence_modules.read_token_modules(folder, chain, width, fetch)
    steps, old = modules.steps, config.get("model_type") == sentence_transformers.PYLATE
    words, kinds = _skiplist(folder, chain)
    if old:
        steps, kinds = (*steps, Normalize()), ("document",)
        words = _words(path, config.get("skiplist_words"), _PUNCTUATION)
    elif MASK_MODULE not in [kind for kind, _ in chain]:
        raise BadCheckpoint(f"{folder / 'modules.json'} has no {MASK_MODULE}, which says what tokens get a vector")
    transformer = sentence_transformers.transformer_config(folder)
    stated = _old_settings(path, config) | {key: transformer[key] for key in _SETTINGS if key in transformer}
    prompts, markers = _marked_prompts(folder, config)
    expansion = _expansion(path, stated.get("query_expansion"))
    return LateInteraction(
        steps,
        read_tensors(Checkpoint(folder, {}, modules.tensors), modules.tensors),
        modules.width,
        prompts,
        markers,
        ("query" if "query" in prompts else None, next((name for name in _DOCUMENT_PROMPTS if name in prompts), None)),
        (_query_length(path, stated, expansion), optional_count(path, stated, "document_length")),
        expansion,
        (words if "query" in kinds else (), words if "document" in kinds else ()),
        mean=config.get("similarity_fn_name") == "meanmaxsim",
    )


def _marked_prompts(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the prompts, with the markers of queries and documents before theirs, and the markers."""
    prompts, _ = sentence_transformers.prompts(folder)
    markers = {kind: str(config[key] or "") for kind in ("query", "document") if (key := f"{kind}_prefix") in config}
    for kind, marker in markers.items():
        prompts[kind] = marker + prompts.get(kind, "").removeprefix(marker)
    return prompts, tuple(markers.values())


_SETTINGS = ("query_length", "document_length", "query_expansion")


def _old_settings(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyLate's settings as sentence-transformers names them."""
    named = [key for key in _SETTINGS if key in config]
    stated = {key: config[key] for key in named if config[key] is not None or key == "query_expansion"}
    if "query_expansion" not in stated and any(key in config for key in _OLD_KEYS):
        if config.get("do_query_expansion") is False:
            return stated | {"query_expansion": None}
        length = stated.pop("query_length", None) or _LENGTH
        attend = config.get("attend_to_expansion_tokens", config.get("attend_to_mask_tokens"))
        stated["query_expansion"] = {"strategy": "fixed", "attend": bool(attend), "length": length}
    return stated


def _skiplist(folder: Path, chain: list[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts of the tokens without a vector, and the kinds of texts that they apply to."""
    place = next((place for kind, place in chain if kind == MASK_MODULE), None)
    if place is None:
        return (), ()
    path = sentence_transformers.path_inside(folder, place) / "config.json"
    config = read_optional(path)
    if config.get("keep_only_token_ids"):
        raise BadCheckpoint(f"{path}: keep_only_token_ids is of documents that are images, which are not computed")
    kinds = config.get("skiplist_tasks")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return _words(path, config.get("skiplist_words"), ()), _words(path, kinds, ("document",))


def _words(path: Path, value: Any, missing: tuple[str, ...]) -> tuple[str, ...]:
    if value is None:
        return missing
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise BadCheckpoint(f"{path}: {str(value)[:40]!r} is no list of texts")
    return tuple(value)


def _expansion(path: Path, value: Any) -> ExpansionFiles | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("strategy") not in ("fixed", "min"):
        raise BadCheckpoint(f"{path}: query_expansion is {str(value)[:60]}; its strategy must be fixed or min")
    tokens, token, attend = optional_count(path, value, "length"), value.get("token"), value.get("attend", False)
    if tokens is None or not isinstance(attend, bool) or not (token is None or isinstance(token, str)):
        raise BadCheckpoint(f"{path}: query_expansion needs a length, attend true or false, and a token that is a text")
    return ExpansionFiles(tokens, token, attend, value["strategy"] == "fixed")


def _query_length(path: Path, stated: Mapping[str, Any], expansion: ExpansionFiles | None) -> int | None:
    length = optional_count(path, stated, "query_length")
    if expansion is None:
        return length
    return expansion.tokens if expansion.fixed else length and max(length, expansion.tokens)


def _stanford(source: Checkpoint, width: int) -> LateInteraction:
    """Return the settings that Stanford's ColBERT wrote."""
    path = source.folder / METADATA
    metadata = read_optional(path)
    name = "linear.weight"
    if name not in source.tensors or source.tensors[name].shape[1:] != (width,):
        raise BadCheckpoint(f"{source.name} is a ColBERT and holds no {name!r} of shape [any, {width}]")
    markers = [str(metadata.get(key) or usual) for key, usual in _MARKERS.items()]
    prompts = {kind: f"{marker} " for kind, marker in zip(("query", "document"), markers, strict=True)}
    skipped = _PUNCTUATION if metadata.get("mask_punctuation", True) else ()
    tokens = optional_count(path, metadata, "query_maxlen") or _LENGTH
    return LateInteraction(
        (Dense(Linear(name, None), "identity"), Normalize()),
        read_tensors(source, (name,)),
        source.tensors[name].shape[0],
        prompts,
        tuple(prompts.values()),
        ("query", "document"),
        (tokens, optional_count(path, metadata, "doc_maxlen")),
        ExpansionFiles(tokens, None, bool(metadata.get("attend_to_mask_tokens")), True),
        ((), skipped),
    )


def _listwise(source: Checkpoint, width: int) -> LateInteraction:
    """Return the settings of jina-reranker-v3, which its code has."""
    names = "projector.0.weight", "projector.2.weight"
    shapes = [source.tensors[name].shape if name in source.tensors else () for name in names]
    if [len(shape) for shape in shapes] != [2, 2] or shapes[0][1] != width or shapes[1][1] != shapes[0][0]:
        raise BadCheckpoint(
            f"{source.name} is a {LISTWISE}, and its {' and '.join(names)} have the shapes "
            f"{' and '.join(str(list(shape)) for shape in shapes)}, not [any, {width}] and [any, the first's rows]: "
            "download its weights again"
        )
    steps = Dense(Linear(names[0], None), "relu"), Dense(Linear(names[1], None), "identity")
    marks = "<|embed_token|>", "<|rerank_token|>"
    return LateInteraction(steps, read_tensors(source, names), shapes[1][0], marks=marks)


def _pages(source: Checkpoint, texts: PageTexts, width: int) -> LateInteraction:
    """Return the settings of models that retrieve pages as pictures, of colpali-engine or transformers."""
    name = str(page_projection(source))
    if source.tensors[name].shape[1:] != (width,):
        raise BadCheckpoint(
            f"{name!r} of {source.name} has shape {list(source.tensors[name].shape)}, not [any, {width}]"
        )
    other = "document" if texts.passage is None else "passage"
    prompts = {"query": texts.begin + texts.query, other: texts.begin + (texts.passage or "")}
    bias = name.removesuffix("weight") + "bias"
    names = (name, bias) if bias in source.tensors else (name,)
    linear = Linear(name, bias if len(names) > 1 else None)
    return LateInteraction(
        (Dense(linear, "identity"), Normalize()),
        read_tensors(source, names),
        source.tensors[name].shape[0],
        prompts,
        prompt_names=("query", other),
        endings=(texts.ending, ""),
    )


_MARKERS = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]"}


def _bge(folder: Path, width: int) -> LateInteraction | None:
    """Return the settings that BGE-M3 has beside its weights."""
    path = next((folder / name for name in BGE_FILES if (folder / name).is_file()), None)
    if path is None:
        return None
    held = safetensors.read(file_headers(path).values())
    weight, bias = held.get("weight"), held.get("bias")
    if weight is None or bias is None or weight.shape[1:] != (width,) or bias.shape != weight.shape[:1]:
        shapes = {name: list(array.shape) for name, array in held.items()}
        raise BadCheckpoint(f"{path} holds {shapes}; it must be weight [any, {width}] and bias")
    names = f"{BGE}.weight", f"{BGE}.bias"
    steps = Dense(Linear(*names), "identity"), Normalize()
    return LateInteraction(steps, dict(zip(names, (weight, bias), strict=True)), len(weight), first=1, mean=True)
