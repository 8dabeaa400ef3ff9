"""Exports a table of weights by id, in which inference-free sparse models look queries up without a graph."""

from models.artifacts import sparse_vectors, tokenizer, weights
from models.artifacts.card import SPARSE, Card
from models.artifacts.folder import Target, atomic_folder, finish_folder
from models.artifacts.sparse_vectors import TABLE
from models.artifacts.tokenizer import FILE_NAME as TOKENIZER
from models.checkpoints import sentence_transformers, sparse_modules
from models.checkpoints.json_files import read_object
from models.checkpoints.located import LocatedCheckpoint
from models.errors import BadCheckpoint
from models.recipes.heads import Sparse

FAMILY = "sparse_static_embedding"


def export(place: LocatedCheckpoint, table_place: str, target: Target) -> Card:
    """Write the table and the tokenizer to the target and return the model's card.

    Args:
        place: place of the checkpoint.
        table_place: place of the SparseStaticEmbedding in it.
        target: folder to write to.

    Raises:
        ModelError: the checkpoint cannot be exported.
        OSError: a file cannot be written.
    """
    table = sparse_modules.read_table(place.folder, table_place, place.fetch_module)
    module = sentence_transformers.path_inside(place.folder, table_place)
    if not (module / TOKENIZER).is_file():
        raise BadCheckpoint(f"{module} holds no {TOKENIZER}, by which texts become ids")
    most = sparse_modules.max_active_dims(place.folder)
    prompts, default_prompt = sentence_transformers.prompts(place.folder)
    with atomic_folder(target.out) as folder:
        stored = weights.write(folder, {TABLE: table}, (), progress=target.progress)
        tokenizer.write_bare(read_object(module / TOKENIZER), folder)
        card = Card(
            family=FAMILY,
            hidden_size=1,
            vocab_size=len(table),
            max_tokens=sentence_transformers.tokenizer_max_tokens(module),
            default_output=SPARSE,
            weights=weights.FILE_NAME,
            tokenizer=TOKENIZER,
            prompts=prompts,
            default_prompt=default_prompt,
            dtype="float32",
            parameters=len(table),
            bytes=table.nbytes,
            tolerance=0.0,
            tables=stored.tables,
            sparse=Sparse(len(table), table=TABLE, default_input_type="query", max_active_dims=most),
            provenance=sparse_vectors.provenance(f"{table_place}/model.safetensors", "a weight for each token", most),
        )
        return finish_folder(folder, card, target)
