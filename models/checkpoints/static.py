"""Opens static embedding checkpoints: Model2Vec's and sentence-transformers'.

A folder that both libraries read (Model2Vec writes modules.json too) is opened as Model2Vec's: its config.json says
more. Model2Vec drops unknown tokens and cuts texts; sentence-transformers counts every token.

Source: model2vec 0.10 (StaticModel, persistence), sentence-transformers 6.2 (StaticEmbedding).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from models.checkpoints import safetensors, sentence_transformers
from models.checkpoints.checkpoint import READABLE, headers, read_json, read_object
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_transformers import Pooling, SentenceFiles
from models.errors import BadCheckpoint
from models.recipes.static import StaticTable

TOKENIZER = "tokenizer.json"
MAX_TOKENS = 512  # what Model2Vec reads where config.json names no max_length
TABLES = (*READABLE, "F64", "I8")
_INTEGERS = ("I64", "I32", "I16", "I8", "U32", "U16", "U8")
Kind = Literal["model2vec", "static_embedding"]


@dataclass(frozen=True, slots=True)
class StaticCheckpoint:
    """An opened static embedding checkpoint; `tensors` are places on disk.

    Attributes:
        kind: kind of model whose rules it follows.
        folder: holds the weights and tokenizer.json.
        static: table and rules of the model.
        tensors: tensors by name.
        sentence: pooling, prompts and the longest input.
    """

    kind: Kind
    folder: Path
    static: StaticTable
    tensors: dict[str, Tensor]
    sentence: SentenceFiles

    @property
    def hidden_size(self) -> int:
        """Width of a row."""
        return self.tensors[self.static.table].shape[1]

    @property
    def vocab_size(self) -> int:
        """Ids from 0 on that have a row."""
        return self.tensors[self.static.mapping or self.static.table].shape[0]

    def described(self) -> str:
        """Return a description of the checkpoint for a terminal."""
        table = self.tensors[self.static.table]
        rules = [
            f"{table.shape[0]:,} rows for {self.vocab_size:,} ids",
            "weighted" if self.static.weights else "unweighted",
            f"without token {self.static.dropped}" if self.static.dropped is not None else "every token counts",
        ]
        return "\n".join(
            [
                f"{self.folder.resolve().name}: a checkpoint of family {self.kind!r}",
                f"static embeddings: {', '.join(rules)}",
                f"vectors: {self.hidden_size} x {table.dtype}; longest input {self.sentence.max_tokens or 'any'}",
            ]
        )


def find_static_folder(folder: Path) -> Path | None:
    """Return the folder inside `folder` that holds a static embedding's weights; None if there is none.

    Raises:
        BadCheckpoint: modules.json is not one, or names a folder outside.
    """
    modules = sentence_transformers.modules(folder)
    if modules and modules[0][0] == "StaticEmbedding":
        return sentence_transformers.path_inside(folder, modules[0][1])
    path = folder / "config.json"
    config = read_json(path) if not modules and path.is_file() else None
    return folder if isinstance(config, dict) and config.get("model_type") == "model2vec" else None


def open_static(folder: Path, place: Path, pooling: str | None = None) -> StaticCheckpoint:
    """Open the static embedding checkpoint in `place` and check every shape and id.

    Args:
        folder: the checkpoint's.
        place: the place that `find_static_folder(folder)` returned.
        pooling: None or mean: the mean; none: token vectors alone.

    Raises:
        BadCheckpoint: a file is missing, damaged or of other shapes, or modules are not computed.
    """
    if pooling not in (None, "mean", "none"):
        raise BadCheckpoint(f"{folder} holds static embeddings, whose pooling is mean: leave out --pooling {pooling}")
    tensors = _headers(place)
    kind: Kind = "model2vec" if "embeddings" in tensors and (place / "config.json").is_file() else "static_embedding"
    table = "embeddings" if "embeddings" in tensors else "embedding.weight"
    held = {name: tensors[name] for name in (table, "mapping", "weights") if name in tensors}
    from tokenizers import Tokenizer

    data = read_object(place / TOKENIZER)
    try:
        tokenizer = Tokenizer.from_file(str(place / TOKENIZER))
    except Exception as error:  # the library raises bare Exception
        raise BadCheckpoint(f"{place / TOKENIZER} is not a tokenizer the tokenizers library reads: {error}") from error
    rules = _model2vec if kind == "model2vec" else _sentence_transformers
    dropped, characters, sentence = rules(folder, place, tokenizer, data)
    sentence = replace(sentence, similarity_function=sentence_transformers.similarity_function(folder))
    if pooling is None and sentence.pooling:
        dimensions = sentence_transformers.default_dimensions(folder)
        sentence = replace(sentence, pooling=replace(sentence.pooling, dimensions=dimensions))
    if pooling == "none":
        sentence = replace(sentence, pooling=None)
    mapping, weights = (name if name in held else None for name in ("mapping", "weights"))
    static = StaticTable(table, mapping, weights, dropped, characters)
    model = StaticCheckpoint(kind, place, static, held, sentence)
    _check(model, max(tokenizer.get_vocab().values(), default=-1))
    return model


def _headers(place: Path) -> dict[str, Tensor]:
    tensors = headers(place)
    if not {"embeddings", "embedding.weight"} & set(tensors):
        raise BadCheckpoint(
            f"{place} should hold the table as 'embeddings' (Model2Vec) or 'embedding.weight' (sentence-transformers), "
            f"but holds {', '.join(map(repr, sorted(tensors))) or 'nothing'}"
        )
    return tensors


Rules = tuple[int | None, int | None, SentenceFiles]  # dropped id, most characters, and what the files say


def _model2vec(folder: Path, place: Path, tokenizer: Any, data: Mapping[str, Any]) -> Rules:
    config = read_object(place / "config.json")
    limit = config.get("max_length", MAX_TOKENS)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise BadCheckpoint(f"{place / 'config.json'}: max_length is {limit!r}; it is a number from 1 on, or null")
    sizes = [len(token) for token in tokenizer.get_vocab()]
    median = int(np.median(sizes)) if sizes else 0
    characters = None if limit is None else limit * median
    files = SentenceFiles(Pooling("mean", bool(config.get("normalize", False))), max_tokens=limit)
    return _unknown_id(tokenizer, data), characters, files


def _unknown_id(tokenizer: Any, data: Mapping[str, Any]) -> int | None:
    """Return the id of the unknown token, as Model2Vec finds it."""
    unknown_id: int | None
    if not hasattr(tokenizer.model, "unk_token"):  # Unigram
        unknown_id = data["model"].get("unk_id")
    else:
        token = tokenizer.model.unk_token
        unknown_id = None if token is None else tokenizer.token_to_id(token)
    return unknown_id


def _sentence_transformers(folder: Path, place: Path, tokenizer: Any, data: Mapping[str, Any]) -> Rules:
    kinds = [kind for kind, _ in sentence_transformers.modules(folder)]
    if kinds[1:] not in ([], ["Normalize"]):
        raise BadCheckpoint(
            f"{folder / 'modules.json'} chains {', '.join(kinds)}; what is computed after StaticEmbedding: Normalize"
        )
    normalize = sentence_transformers.normalizes(folder)
    prompts, default = sentence_transformers.prompts(folder)
    truncation = tokenizer.truncation or {}
    return None, None, SentenceFiles(Pooling("mean", normalize), prompts, default, truncation.get("max_length"))


def _check(model: StaticCheckpoint, last_id: int) -> None:
    """Check shapes and dtypes, and that every id the tokenizer can give has a row."""
    static = model.static
    table = model.tensors[static.table]
    path = table.path
    if len(table.shape) != 2 or 0 in table.shape or table.dtype not in TABLES:
        raise BadCheckpoint(
            f"{path}: {table.name!r} is {table.dtype} {list(table.shape)}; it is a [rows, d] table of "
            f"{', '.join(TABLES)}"
        )
    for name, dtypes in ((static.mapping, _INTEGERS), (static.weights, (*READABLE, "F64"))):
        if name and (model.tensors[name].dtype not in dtypes or model.tensors[name].shape != (model.vocab_size,)):
            held = model.tensors[name]
            raise BadCheckpoint(
                f"{path}: {name!r} is {held.dtype} {list(held.shape)}; it is [{model.vocab_size}], one value an id, "
                f"of {', '.join(dtypes)}"
            )
    if last_id >= model.vocab_size:
        raise BadCheckpoint(
            f"{model.folder / TOKENIZER} gives ids up to {last_id}, but {path} has rows for 0 to {model.vocab_size - 1}"
        )
    _check_mapping(model, table.shape[0])


def _check_mapping(model: StaticCheckpoint, count: int) -> None:
    if (name := model.static.mapping) is None:
        return
    mapping = safetensors.read([model.tensors[name]])[name]
    wrong = np.flatnonzero((mapping.astype(np.int64) < 0) | (mapping.astype(np.int64) >= count))
    if wrong.size:
        raise BadCheckpoint(
            f"{model.tensors[name].path}: 'mapping' sends id {wrong[0]} to row {mapping[wrong[0]]}; "
            f"the table has rows 0 to {count - 1}"
        )
