"""Exports the image side of a checkpoint to a folder that the service can load: weights, graphs, card.

The graphs are compared with the float64 reference on images of several sizes, then the folder is renamed into place.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.artifacts import weights
from models.artifacts.card import IMAGE_VECTOR, Card, Graph
from models.artifacts.comparison import TOLERANCE
from models.artifacts.folder import Target, atomic_folder, finish_folder
from models.artifacts.graph_files import save_graphs
from models.artifacts.verification import compare_graphs
from models.artifacts.vision_description import pictures
from models.artifacts.weights import WrittenWeights
from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.provenance import Setting, random_weights
from models.checkpoints.safetensors import Tensor
from models.errors import BadCheckpoint
from models.families.config import Config
from models.families.encoding_fitting import unless_refused
from models.graphs import vision as vision_graph
from models.graphs.builder import GraphBuilder
from models.recipes import cost
from models.recipes.positional_encodings import Encodings
from models.vision import preprocessor_config, similarity
from models.vision.fitting import PROCESSOR, FittedTower, fit, image_of
from models.vision.image_spec import AxialRope, Image
from models.vision.steps import Convolve, Patchify, Project


def export(source: Checkpoint, image_tower: tuple[str, Config], target: Target, encoder: bool | None = None) -> Card:
    """Write the image side of a checkpoint to the target and return its card.

    Args:
        source: the opened checkpoint.
        image_tower: the tower that models.vision.fitting.tower returned.
        target: folder to write to.
        encoder: whether to write the blocks; None: if they are covered and the checkpoint holds them.

    Raises:
        BadCheckpoint: the checkpoint cannot be exported.
        ReferenceMismatch: a graph differs from the reference.
        OSError: a file cannot be written.
    """
    fitted = _with_blocks(fit(source, *image_tower), encoder, source)
    dual_encoder = similarity.read_similarity(source)
    refused: dict[str, str] = {}
    axial = unless_refused(refused, "axial", lambda: fitted.axial, None)
    image = replace(image_of(fitted, source.folder), axial=axial, normalize=dual_encoder is not None)
    with atomic_folder(target.out) as folder:
        stored = weights.write(folder, fitted.read(source), (), progress=target.progress)
        graphs = save_graphs(folder, _graphs(fitted, stored.placed, axial), "image")
        card = _card(fitted, image, stored, graphs)
        read_from = (*random_weights(source.config), *_provenance(image, source.folder, dual_encoder is not None))
        card = replace(card, similarity=dual_encoder, encodings=Encodings(refused=refused), provenance=read_from)
        return finish_folder(folder, compare_graphs(folder, card, target.progress), target)


def _provenance(image: Image, folder: Path, compared: bool) -> tuple[Setting, ...]:
    """Return where the preprocessing of pictures and the making of their vector were read."""
    files = (preprocessor_config.FILE_NAME, PROCESSOR)
    origin = next((name for name in files if image.preprocessor and (folder / name).is_file()), "no file")
    vector = f"{image.vector_width} values{', normalised' * image.normalize}" if image.vector else "none"
    settings = [Setting("pictures", pictures(image.preprocessor), origin)] if image.feed != "features" else []
    settings.append(Setting("vector", vector, "the model's family"))
    if compared:
        settings.append(Setting("similarity", "scaled as the model learned it", "the tensor logit_scale"))
    return tuple(settings)


def _with_blocks(fitted: FittedTower, encoder: bool | None, source: Checkpoint) -> FittedTower:
    """Return the tower, without its blocks if they are not to be written."""
    if encoder and not fitted.encoder:
        raise BadCheckpoint(
            f"{source.name} (model_type {fitted.model_type!r}) cannot be exported whole: {fitted.no_blocks_reason}; "
            "its input layer can, with --encoder none"
        )
    return fitted.without_blocks() if encoder is False else fitted


def _graphs(fitted: FittedTower, placed: Mapping[str, Tensor], axial: AxialRope | None) -> dict[str, Any]:
    """Return the graphs by name."""
    inputs = vision_graph.inputs_of(fitted.steps, fitted.width)
    models = {
        "image": vision_graph.image(GraphBuilder(placed), fitted.steps, inputs, fitted.hidden_size),
        "image_components": vision_graph.components(GraphBuilder(placed), fitted.steps, inputs, fitted.hidden_size),
    }
    if fitted.encoder:
        sizes = vision_graph.TowerSizes(inputs, fitted.hidden_size, fitted.vector_width)
        models["image_encoder"] = vision_graph.encoder(
            GraphBuilder(placed), fitted.steps, fitted.encoder, fitted.vector, sizes, axial
        )
    return {name: model for name, model in models.items() if model is not None}


def _card(fitted: FittedTower, image: Image, stored: WrittenWeights, graphs: dict[str, Graph]) -> Card:
    multiplied = [step for step in fitted.steps if isinstance(step, Patchify | Project | Convolve)]
    flops = {"image": sum(2 * math.prod(fitted.shapes[step.weight]) for step in multiplied)}
    if fitted.encoder:
        flops["image_encoder"] = flops["image"] + cost.flops_per_token(
            fitted.encoder, fitted.shapes, fitted.hidden_size
        )
    return Card(
        family=fitted.model_type,
        hidden_size=fitted.hidden_size,
        vocab_size=0,
        graphs=graphs,
        default_output=_default_output(fitted),
        encoder=fitted.encoder,
        weights=weights.FILE_NAME,
        dtype="float32",
        parameters=stored.parameters(),
        bytes=stored.bytes,
        flops_per_token=flops,
        flops_per_token_and_key=cost.flops_per_token_and_key(fitted.encoder, fitted.hidden_size),
        tolerance=TOLERANCE["encoder" if fitted.encoder else "input"],
        image=image,
        no_blocks_reason=fitted.no_blocks_reason,
    )


def _default_output(fitted: FittedTower) -> str:
    if fitted.vector:
        return IMAGE_VECTOR
    return "last_hidden_state" if fitted.encoder else "input_embeddings"
