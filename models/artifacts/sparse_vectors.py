"""Exports sparse vectors: the card's `sparse`, a table of weights, the graph of a linear layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from models.artifacts import weights
from models.artifacts.tokenizer import FILE_NAME as TOKENIZER
from models.checkpoints import sentence_transformers, sparse_modules
from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.located import LocatedCheckpoint
from models.checkpoints.provenance import Setting
from models.checkpoints.sparse_modules import SparseFiles
from models.errors import BadCheckpoint
from models.families.fitting import FittedModel
from models.recipes.heads import Lexical, Sparse
from models.recipes.sentence_modules import Dense, SentenceModules
from models.recipes.steps import Linear

TABLE = "sparse_table"
_WEIGHT, _BIAS = "sparse_linear.weight", "sparse_linear.bias"
_HAVE_LINEAR = ("xlm-roberta",)  # model types of which a hub repository may hold a linear layer


@dataclass(frozen=True, slots=True)
class SparseHead:
    """How a checkpoint makes sparse vectors, and the tensors that this needs besides the model's.

    Attributes:
        sparse: the card's entry.
        arrays: tensors by the names in it.
        read_from: where its settings were read.
    """

    sparse: Sparse
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    read_from: tuple[Setting, ...] = ()


def find(
    place: LocatedCheckpoint, source: Checkpoint, fitted: FittedModel, files: SparseFiles | None
) -> SparseHead | None:
    """Return how a checkpoint whose blocks are exported makes sparse vectors; None if it makes none.

    Args:
        files: what the files or the operator say of SPLADE.

    Raises:
        BadCheckpoint: a part is missing or not computed.
    """
    if files is not None and files.splade:
        return _splade(place, source, fitted, files)
    if not fitted.encoder:
        return None
    linear = sparse_modules.find_linear(source.folder)
    if linear is None and place.repository and source.model_type in _HAVE_LINEAR:
        for name in sparse_modules.LINEARS:
            if place.repository.copy(name, source.folder / name):
                break
        linear = sparse_modules.find_linear(source.folder)
    return None if linear is None else _lexical(linear, source, fitted)


def _splade(place: LocatedCheckpoint, source: Checkpoint, fitted: FittedModel, files: SparseFiles) -> SparseHead:
    if not fitted.encoder or fitted.head is None:
        why = fitted.no_blocks_reason if not fitted.encoder else fitted.no_head_reason
        raise BadCheckpoint(
            f"{source.name} gives no SPLADE vectors, which are made of the logits of a masked language model: {why}; "
            "its token vectors can be exported with --pooling none"
        )
    width, most = fitted.head.vocab_size, sparse_modules.max_active_dims(place.folder)
    made = f"SPLADE, {files.splade.pooling} of {files.splade.activation}" if files.splade else ""
    read_from = provenance(files.origin, made, most)
    if files.table is None:
        return SparseHead(Sparse(width, files.splade, max_active_dims=most), read_from=read_from)
    table = sparse_modules.read_table(place.folder, files.table, place.fetch_module)
    if len(table) != width:
        raise BadCheckpoint(f"{source.name} weighs {len(table)} ids of queries, and documents have {width} logits")
    other = place.folder / files.table / TOKENIZER
    if place.repository and (content := place.repository.read(f"{files.table}/{TOKENIZER}")):
        other.write_bytes(content)
    if other.is_file() and not sparse_modules.same_vocabulary(source.folder / TOKENIZER, other):
        raise BadCheckpoint(f"{source.name} tokenizes queries ({other}) and documents differently; one tokenizer is")
    sparse = Sparse(width, files.splade, table=TABLE, default_input_type=files.default_input_type, max_active_dims=most)
    return SparseHead(sparse, {TABLE: table}, read_from)


def provenance(origin: str, made: str, most: int | None) -> tuple[Setting, ...]:
    """Return where it was read how sparse vectors are made, and how many of their values are kept."""
    kept = (Setting("active dimensions", f"{most} at most", sentence_transformers.MODEL_CONFIG),) if most else ()
    return (Setting("sparse vectors", made, origin), *kept)


def _lexical(path: Path, source: Checkpoint, fitted: FittedModel) -> SparseHead:
    width = fitted.token_width
    weight, bias = sparse_modules.read_linear(path, width)
    step = Dense(Linear(_WEIGHT, _BIAS), "relu")
    modules = SentenceModules((step,), width, 1, 2 * width, weights.FILE_NAME)
    lexical = Lexical(modules, sparse_modules.unused_ids(source.folder))
    return SparseHead(Sparse(fitted.config.count("vocab_size"), lexical=lexical), {_WEIGHT: weight, _BIAS: bias})
