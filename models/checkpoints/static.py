"""Opens static embedding checkpoints: Model2Vec's, and the StaticEmbedding and WordEmbeddings of sentence-transformers.

A folder that both libraries read (Model2Vec writes modules.json too) is opened as Model2Vec's: its config.json says
more. Model2Vec drops unknown tokens and cuts texts; sentence-transformers counts every token.

Source: model2vec 0.10 (StaticModel, persistence), sentence-transformers 6.2 (StaticEmbedding, WordEmbeddings).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from models.checkpoints import safetensors, sentence_transformers, word_embeddings
from models.checkpoints.checkpoint import READABLE, headers
from models.checkpoints.json_files import optional_count, read_json, read_object
from models.checkpoints.provenance import Setting
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_transformers import Pooling, SentenceFiles
from models.errors import BadCheckpoint
from models.recipes.static import StaticTable, WordRules

TOKENIZER = "tokenizer.json"
MAX_TOKENS = 512  # what Model2Vec reads where config.json names no max_length
TABLES = (*READABLE, "F64", "I8")
_INTEGERS = ("I64", "I32", "I16", "I8", "U32", "U16", "U8")
Kind = Literal["model2vec", "static_embedding", "word_embeddings"]
KINDS: dict[str, Kind] = {"StaticEmbedding": "static_embedding", word_embeddings.MODULE: "word_embeddings"}
_BEHIND = {"static_embedding": ((), ("Normalize",)), "word_embeddings": (("Pooling",), ("Pooling", "Normalize"))}


@dataclass(frozen=True, slots=True)
class StaticCheckpoint:
    """An opened static embedding checkpoint; `tensors` are places on disk.

    Attributes:
        kind: kind of model whose rules it follows.
        folder: holds the weights and the tokenizer.
        static: table and rules of the model.
        tensors: tensors by name.
        sentence: pooling, prompts and the longest input.
        tokenizer: its tokenizer.json, with special tokens as the checkpoint has them.
        read_from: where the settings of texts and vectors were read.
    """

    kind: Kind
    folder: Path
    static: StaticTable
    tensors: dict[str, Tensor]
    sentence: SentenceFiles
    tokenizer: Mapping[str, Any]
    read_from: tuple[Setting, ...]

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
    if modules and modules[0][0] in KINDS:
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
    tensors, table = _headers(place)
    held = {name: tensors[name] for name in (table, "mapping", "weights") if name in tensors}
    chain = sentence_transformers.modules(folder)
    kind = KINDS.get(chain[0][0] if chain else "", "static_embedding")
    if table == "embeddings" and (place / "config.json").is_file():
        kind = "model2vec"
    rules = _model2vec(place) if kind == "model2vec" else _sentence_transformers(folder, place, kind)
    sentence = replace(rules.sentence, similarity_function=sentence_transformers.similarity_function(folder))
    if pooling is None and sentence.pooling:
        dimensions = sentence_transformers.default_dimensions(folder)
        sentence = replace(sentence, pooling=replace(sentence.pooling, dimensions=dimensions))
    if pooling == "none":
        sentence = replace(sentence, pooling=None)
    mapping, weights = (name if name in held else None for name in ("mapping", "weights"))
    static = StaticTable(table, mapping, weights, rules.dropped, rules.characters, rules.words)
    model = StaticCheckpoint(kind, place, static, held, sentence, rules.tokenizer, _provenance(folder, pooling, rules))
    _check(model, rules.last_id)
    return model


def _headers(place: Path) -> tuple[dict[str, Tensor], str]:
    """Return the tensors in `place`, and the name of the table among them."""
    tensors, names = headers(place), ("embeddings", "embedding.weight", word_embeddings.TABLE)
    if (table := next((name for name in names if name in tensors), None)) is None:
        raise BadCheckpoint(
            f"{place} should hold the table as 'embeddings' (Model2Vec), 'embedding.weight' or '{names[-1]}' "
            f"(sentence-transformers), but holds {', '.join(map(repr, sorted(tensors))) or 'nothing'}; save the model "
            "anew with its library"
        )
    return tensors, table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """How a kind of model reads texts, and what its files say of vectors.

    Attributes:
        tokenizer: its tokenizer.json.
        last_id: the largest id of a text.
        sentence: pooling, prompts and the longest input.
        dropped, characters, words: see StaticTable.
        origins: the files that say how vectors are pooled, how texts are tokenized, and how long they may be.
    """

    tokenizer: Mapping[str, Any]
    last_id: int
    sentence: SentenceFiles
    dropped: int | None = None
    characters: int | None = None
    words: WordRules | None = None
    origins: tuple[str, str, str]


def _provenance(folder: Path, option: str | None, rules: _Rules) -> tuple[Setting, ...]:
    """Return where the settings of texts and vectors were read."""
    pooling, of_texts, of_length = rules.origins
    sentence, longest = rules.sentence, rules.sentence.max_tokens
    value = f"mean{', normalised' * bool(sentence.pooling and sentence.pooling.normalize)}"
    by_option = Setting("pooling", option or "", "--pooling").against(pooling, value)
    return (
        by_option if option == "none" else Setting("pooling", value, pooling),
        *sentence_transformers.prompt_provenance(sentence),
        Setting("tokenizer", of_texts if rules.words is None else "words", of_texts),
        Setting("longest input", f"{longest} tokens" if longest else "any", of_length if longest else "no file"),
    )


def _library(tokenizer: Mapping[str, Any], path: Path) -> Any:
    """Return the tokenizer of the tokenizers library that a tokenizer.json describes."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(tokenizer))
    except Exception as error:  # the library raises bare Exception
        raise BadCheckpoint(f"{path} is not a tokenizer the tokenizers library reads: {error}") from error


def _model2vec(place: Path) -> _Rules:
    data, path = read_object(place / TOKENIZER), place / "config.json"
    tokenizer, config = _library(data, place / TOKENIZER), read_object(path)
    limit = optional_count(path, {"max_length": MAX_TOKENS} | config, "max_length")
    sizes = [len(token) for token in tokenizer.get_vocab()]
    median = int(np.median(sizes)) if sizes else 0
    return _Rules(
        tokenizer=data,
        last_id=max(tokenizer.get_vocab().values(), default=-1),
        sentence=SentenceFiles(Pooling("mean", bool(config.get("normalize", False))), max_tokens=limit),
        dropped=_unknown_id(tokenizer, data),
        characters=None if limit is None else limit * median,
        origins=(path.name, TOKENIZER, path.name if "max_length" in config else "Model2Vec's default"),
    )


def _unknown_id(tokenizer: Any, data: Mapping[str, Any]) -> int | None:
    """Return the id of the unknown token, as Model2Vec finds it."""
    unknown_id: int | None
    if not hasattr(tokenizer.model, "unk_token"):  # Unigram
        unknown_id = data["model"].get("unk_id")
    else:
        token = tokenizer.model.unk_token
        unknown_id = None if token is None else tokenizer.token_to_id(token)
    return unknown_id


def _sentence_transformers(folder: Path, place: Path, kind: Kind) -> _Rules:
    first, *behind = [name for name, _ in sentence_transformers.modules(folder)] or ["StaticEmbedding"]
    pooling = sentence_transformers.described_pooling(folder)
    if tuple(behind) not in _BEHIND[kind] or (pooling and pooling.mode != "mean"):
        modes = f", which pools by {pooling.mode}" if pooling else ""
        computed = (
            "Normalize or nothing" if kind == "static_embedding" else "a Pooling by mean, then Normalize or nothing"
        )
        raise BadCheckpoint(
            f"{folder / 'modules.json'} chains {', '.join((first, *behind))}{modes}; what is computed after {first}: "
            f"{computed}"
        )
    prompts, default = sentence_transformers.prompts(folder)
    words, pooled_by = None, f"the module {first}"
    if kind == "word_embeddings":
        words, pooled_by = word_embeddings.read_words(place), "the module Pooling"
    data = words.tokenizer if words else read_object(place / TOKENIZER)
    tokenizer = _library(data, place / TOKENIZER)
    longest = words.max_tokens if words else (tokenizer.truncation or {}).get("max_length")
    of_texts, of_length = (word_embeddings.TOKENIZER, word_embeddings.CONFIG) if words else (TOKENIZER, TOKENIZER)
    return _Rules(
        tokenizer=data,
        last_id=max(tokenizer.get_vocab().values(), default=-1),
        sentence=SentenceFiles(Pooling("mean", sentence_transformers.normalizes(folder)), prompts, default, longest),
        words=words.rules if words else None,
        origins=(pooled_by, of_texts, of_length),
    )


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
            f"{model.folder}: the tokenizer gives ids up to {last_id}, but {path} has rows for 0 to "
            f"{model.vocab_size - 1}; save both from the same model"
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
