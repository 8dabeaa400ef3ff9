"""Reads how a checkpoint makes sparse vectors: sentence-transformers' SparseEncoder files, BGE-M3's linear layer.

Source: sentence-transformers 6.2: modules.json, router_config.json, SpladePooling and SparseStaticEmbedding;
    FlagEmbedding: sparse_linear.pt.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from models.checkpoints import safetensors, sentence_transformers
from models.checkpoints.checkpoint import file_headers, headers
from models.checkpoints.json_files import optional_count, read_json, read_object, read_optional
from models.checkpoints.sentence_modules import Fetch, on_disk
from models.checkpoints.sentence_transformers import Chain, path_inside
from models.checkpoints.tokenizers.checkpoint_tokenizer import read_tokenizer
from models.checkpoints.tokenizers.files import CONFIG, TOKENIZER, read_files
from models.errors import BadCheckpoint
from models.recipes.heads import InputType, Splade, SpladeActivation, SpladePooling

SPLADE = "splade"  # what --pooling calls it
LINEARS = ("sparse_linear.safetensors", "sparse_linear.pt")
_POOLING, _TABLE, _AUTOENCODER = "SpladePooling", "SparseStaticEmbedding", "SparseAutoEncoder"
_SPECIAL = ("cls_token", "eos_token", "pad_token", "unk_token")
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SparseFiles:
    """The settings in the files of a SparseEncoder.

    Attributes:
        splade: None: every text is looked up.
        table: the place of the weights of ids; None: there are none.
        default_input_type: kind of texts whose requests do not say.
        origin: file that says how logits are pooled, or the option.
    """

    splade: Splade | None = None
    table: str | None = None
    default_input_type: InputType = "document"
    origin: str = "--pooling"


def max_active_dims(folder: Path) -> int | None:
    """Return how many of the largest values of a vector the files keep; None: all."""
    path = folder / sentence_transformers.MODEL_CONFIG
    return optional_count(path, read_optional(path), "max_active_dims")


def find(folder: Path, pooling: str | None = None) -> SparseFiles | None:
    """Return how the modules of a checkpoint, or the operator, make sparse vectors; None if neither says.

    Args:
        pooling: the operator's choice: SPLADE, or None for what the files say; others are for dense vectors.

    Raises:
        BadCheckpoint: the files describe sparse vectors that are not computed.
    """
    if pooling not in (None, SPLADE):
        return None
    entry = sentence_transformers.entry_modules(folder)
    if entry and entry[0][0] == sentence_transformers.ROUTER:
        return _routed(folder, entry)
    kinds = [kind for kind, _ in entry]
    if _AUTOENCODER in kinds:
        raise BadCheckpoint(
            f"{folder / 'modules.json'} chains {', '.join(kinds)}: sparse vectors of a {_AUTOENCODER} (CSR) are not "
            "computed; export its dense vectors with --pooling MODE"
        )
    if kinds == [_TABLE]:
        return SparseFiles(table=entry[0][1])
    if _POOLING not in kinds and _TABLE not in kinds:
        return SparseFiles(Splade()) if pooling == SPLADE else None
    return SparseFiles(_splade(folder, entry), origin=f"{entry[1][1]}/config.json")


def _routed(folder: Path, entry: Chain) -> SparseFiles | None:
    """Return the settings of a Router's routes for queries and documents; None if neither makes sparse vectors."""
    routes = sentence_transformers.read_routes(folder, entry[0][1])
    kinds = {route: [kind for kind, _ in chain] for route, chain in routes.chains.items()}
    if not any({_POOLING, _TABLE} & set(chain) for chain in kinds.values()):
        return None
    if set(kinds) != {"query", "document"} or kinds["query"] != [_TABLE] or routes.mapped or len(entry) > 1:
        raise BadCheckpoint(
            f"{routes.path} has the routes {kinds}; what is computed: query through "
            f"{_TABLE}, document through Transformer and {_POOLING}, without route_mappings or modules behind"
        )
    default: InputType = "query" if routes.default == "query" else "document"
    document, table = routes.chains["document"], routes.chains["query"][0][1]
    return SparseFiles(_splade(folder, document), table, default, f"{document[1][1]}/config.json")


def _splade(folder: Path, chain: Chain) -> Splade:
    kinds = [kind for kind, _ in chain]
    if len(kinds) != 2 or kinds[0] not in sentence_transformers.TRANSFORMERS or kinds[1] != _POOLING:
        raise BadCheckpoint(
            f"{folder / 'modules.json'} chains {', '.join(kinds)}; what is computed: Transformer, {_POOLING}"
        )
    path = path_inside(folder, chain[1][1]) / "config.json"
    config = read_object(path)
    pooling, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    for key, value, allowed in (
        ("pooling_strategy", pooling, get_args(SpladePooling)),
        ("activation_function", activation, get_args(SpladeActivation)),
    ):
        if value not in allowed:
            raise BadCheckpoint(f"{path} says {key} {value!r}; what is computed: {', '.join(allowed)}")
    return Splade(pooling, activation)


def read_table(folder: Path, place: str, fetch: Fetch = on_disk) -> Floats:
    """Return the weight of each id, float32 [V]; BadCheckpoint if there is none, or a weight is not finite."""
    inner = path_inside(folder, place)
    fetch(place)
    if idf := read_optional(inner / "config.json").get("path"):
        raise BadCheckpoint(
            f"{inner / 'config.json'} takes the weights from {idf!r}; save the model once with sentence-transformers: "
            "SparseEncoder(folder).save_pretrained(new_folder)"
        )
    held = safetensors.read(headers(inner).values())
    if set(held) != {"weight"} or held["weight"].ndim != 1 or not held["weight"].size:
        shapes = {name: list(array.shape) for name, array in held.items()}
        raise BadCheckpoint(f"{inner} holds {shapes}; it holds a 'weight' of one dimension")
    return _finite(held["weight"], inner)


def find_linear(folder: Path) -> Path | None:
    """Return the file of BGE-M3's linear layer beside a checkpoint; None: there is none."""
    return next((folder / name for name in LINEARS if (folder / name).is_file()), None)


def read_linear(path: Path, width: int) -> tuple[Floats, Floats]:
    """Return weight [1, width] and bias [1] of the layer of lexical weights.

    Raises:
        BadCheckpoint: the file is damaged, hostile or holds other tensors.
    """
    held = safetensors.read(file_headers(path).values())
    shapes = {name: tuple(array.shape) for name, array in held.items()}
    if shapes != {"weight": (1, width), "bias": (1,)}:
        raise BadCheckpoint(f"{path} holds {shapes}; it holds a weight (1, {width}) and a bias (1,)")
    return _finite(held["weight"], path), _finite(held["bias"], path)


def unused_ids(folder: Path) -> tuple[int, ...]:
    """Return the ids without lexical weights: the tokens that begin, end and fill texts, and the unknown token.

    Raises:
        BadCheckpoint: there is no tokenizer, or its files do not name these tokens.
    """
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        raise BadCheckpoint(f"{folder} holds no {TOKENIZER}, by which special tokens have no lexical weight")
    special = read_files(folder).special
    texts = [special[role] for name in _SPECIAL if (role := name.removesuffix("_token")) in special]
    found = [tokenizer.library.token_to_id(text) for text in texts]
    ids = {token_id for token_id in found if token_id is not None}
    if not ids:
        raise BadCheckpoint(f"{folder / CONFIG} names none of {', '.join(_SPECIAL)}, which have no lexical weights")
    return tuple(sorted(ids))


def same_vocabulary(one: Path, other: Path) -> bool:
    """Return whether two tokenizer.json give a text the same ids."""
    if one.is_file() and one.read_bytes() == other.read_bytes():
        return True
    first, second = read_json(one), read_json(other)
    parts = ("model", "normalizer", "pre_tokenizer", "added_tokens")
    return all(first.get(part) == second.get(part) for part in parts)


def _finite(array: NDArray[Any], path: Path) -> Floats:
    values = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(values).all():
        raise BadCheckpoint(f"{path} holds a value that is infinite or not a number; the checkpoint is damaged")
    return values
