"""Exports a table of weights of ids, from which inference-free sparse models look queries up: no graph is run."""

from pathlib import Path

from models.artifacts import static_export, weights
from models.artifacts.card import SPARSE, Card
from models.artifacts.folder import atomic_folder, finish_folder
from models.artifacts.sparse_vectors import TABLE
from models.artifacts.tokenizer import FILE_NAME as TOKENIZER
from models.checkpoints import sentence_transformers, sparse_modules
from models.checkpoints.located import LocatedCheckpoint
from models.errors import BadCheckpoint
from models.positions.learned import PositionRule
from models.progress import Progress, no_progress
from models.recipes.heads import Sparse
from models.recipes.positional_encodings import Encodings

FAMILY = "sparse_static_embedding"


def export(
    place: LocatedCheckpoint, table_place: str, out: Path, name: str, tool: str, progress: Progress = no_progress
) -> Card:
    """Write the table and the tokenizer to `out` and return the model's card.

    Args:
        table_place: of the SparseStaticEmbedding in the checkpoint.
        tool: the exporter, as the card records it.

    Raises:
        ModelError: the checkpoint cannot be exported.
        OSError: a file cannot be written.
    """
    table = sparse_modules.read_table(place.folder, table_place, place.fetch_module)
    own = sentence_transformers.path_inside(place.folder, table_place)
    if not (own / TOKENIZER).is_file():
        raise BadCheckpoint(f"{own} holds no {TOKENIZER}, by which texts become ids")
    prompts, default_prompt = sentence_transformers.prompts(place.folder)
    with atomic_folder(out) as folder:
        stored = weights.write(folder, {TABLE: table}, (), progress=progress)
        static_export.write_tokenizer(own / TOKENIZER, folder / TOKENIZER)
        card = Card(
            name=name,
            family=FAMILY,
            hidden_size=1,
            vocab_size=len(table),
            max_tokens=sentence_transformers.tokenizer_max_tokens(own),
            pad_id=None,
            type_rows=0,
            types="none",
            position=PositionRule("arange", 0, None),
            graphs={},
            default_output=SPARSE,
            recipe=(),
            encoder=(),
            weights=weights.FILE_NAME,
            tokenizer=TOKENIZER,
            pooling=None,
            prompts=prompts,
            default_prompt=default_prompt,
            encodings=Encodings(),
            dtype="float32",
            parameters=len(table),
            bytes=table.nbytes,
            flops_per_token={},
            flops_per_token_and_key=0,
            largest_difference={},
            tolerance=0.0,
            files={},
            source=place.name,
            tool=tool,
            tables=stored.tables,
            sparse=Sparse(len(table), table=TABLE, default_input_type="query"),
        )
        return finish_folder(folder, card, progress)
