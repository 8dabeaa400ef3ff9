"""The image tower in front of a decoder in an export: its tensors, its graph, its check, and its entry of the card."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.page_texts import PageTexts
from models.checkpoints.safetensors import Tensor
from models.checkpoints.sentence_transformers import SentenceFiles
from models.checkpoints.tokenizers.checkpoint_tokenizer import read_tokenizer
from models.errors import BadCheckpoint
from models.families.fitting import FittedModel
from models.families.tensor_parts import read_parts
from models.graphs.builder import GraphBuilder
from models.graphs.image_rows import image_rows as image_rows_graph
from models.recipes.extra_inputs import IMAGE_ROWS, PLACES, Extra
from models.recipes.steps import Attention, PlaceImages, Step
from models.tables.quantization import RowSource
from models.vision.image_spec import ImageTokens

if TYPE_CHECKING:
    from models.vision.tower_fitting import TokenTower


@dataclass(frozen=True, slots=True)
class Frame:
    """The texts around every input of a model of single vectors.

    Attributes:
        before: with {prompt}, a prompt of the model's files, or `usual`.
        after: behind the input.
        usual: the prompt where no file has one.
    """

    before: str
    after: str
    usual: str

    def prompts(self, files: SentenceFiles) -> SentenceFiles:
        """Return the files' prompts, each in the frame, and the usual one as the default where there is none."""
        prompts = {name: self.before.format(prompt=text) for name, text in files.prompts.items()}
        if files.default_prompt is not None:
            return replace(files, prompts=prompts)
        return replace(files, prompts={USUAL: self.before.format(prompt=self.usual)} | prompts, default_prompt=USUAL)


FRAMES = {  # Qwen3VLEmbedder of Qwen3-VL-Embedding's own code: the system's message is the instruction
    "qwen3_vl": Frame(
        "<|im_start|>system\n{prompt}<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
        "Represent the user's input.",
    )
}
USUAL = "default"
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
MOST_PLACES = 1 << 12  # of a check input


@dataclass(frozen=True, slots=True)
class ImageTower:
    """The tower of a checkpoint, and how the card describes it."""

    tower: "TokenTower"
    spec: ImageTokens

    def read(self, source: Checkpoint) -> dict[str, RowSource]:
        """Return every tensor of the tower by name."""
        parts, shapes = self.tower.stored, self.tower.shapes
        arrays = read_parts(source, parts, shapes)
        return {
            name: array if name in parts else np.asarray(array).reshape(shapes[name]) for name, array in arrays.items()
        }

    def graph(self, placed: Mapping[str, Tensor]) -> Any:
        """Return the tower's graph."""
        return image_rows_graph(GraphBuilder(placed), self.spec, self.tower.width)


def frame_of(source: Checkpoint, sentence: SentenceFiles) -> Frame | None:
    """Return the texts around every input of a model of single vectors; None if there are none."""
    return FRAMES.get(source.model_type) if sentence.pooling else None


def image_prompt(pages: PageTexts | None, sentence: SentenceFiles, frame: Frame | None) -> str:
    """Return the text of an input that is one image, of a model that retrieves pages or of another."""
    if pages:
        return pages.page
    before = sentence.prompts.get(sentence.default_prompt or "", "")
    return f"{before}{IMAGE}{frame.after}" if frame else f"{before}{IMAGE}"


def ids_of(folder: Path, text: str) -> tuple[int, ...]:
    """Return the ids of a text without special tokens around it.

    Raises:
        BadCheckpoint: there is no tokenizer.
    """
    read = read_tokenizer(folder)
    if read is None:
        raise BadCheckpoint(f"{folder} has no tokenizer, which numbers the tokens around an image")
    return tuple(read.library.encode(text, add_special_tokens=False).ids)


def described(
    tower: "TokenTower", fitted: FittedModel, folder: Path, prompt: str, between: bool = False
) -> ImageTower | None:
    """Return a tower as the card describes it; None if the files do not say how a picture becomes pixels.

    Args:
        tower: the tower.
        fitted: the decoder.
        folder: folder of the checkpoint.
        prompt: the text of an input that is one image, whose tokens stand at the token of images in it.
        between: the mean of an image is that of its tokens and of one before and behind them.

    Raises:
        BadCheckpoint: the prompt does not hold one token of images.
    """
    if tower.image.preprocessor is None:
        return None
    before, after = _around(folder, prompt, tower.token_id)
    width, window = fitted.config.count("hidden_size"), tower.window
    outside = (len(before) - 1, len(after) - 1) if between else (0, 0)
    spec = ImageTokens(tower.image, tower.blocks, tower.parts, width, window, tower.token_id, before, after, outside)
    by_grid = any(table.turns_with for table in fitted.encodings.ropes.values())
    return ImageTower(tower, spec if by_grid else replace(spec, numbering="row"))


def _around(folder: Path, prompt: str, token_id: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of a prompt before and behind the token of images."""
    ids = ids_of(folder, prompt)
    if ids.count(token_id) != 1:
        raise BadCheckpoint(
            f"{folder}: {prompt!r} holds image_token_id {token_id} {ids.count(token_id)} times, not once"
        )
    place = ids.index(token_id)
    return ids[:place], ids[place + 1 :]


def with_images(fitted: FittedModel, spec: ImageTokens) -> FittedModel:
    """Return the decoder with the steps and inputs that place images among its tokens."""
    steps: list[Step] = [PlaceImages()]
    layers = 0
    for step in fitted.encoder:
        if isinstance(step, Attention):
            if 0 < layers < len(spec.parts):
                steps.append(PlaceImages(layers))
            layers += 1
        steps.append(step)
    if layers < len(spec.parts):
        raise BadCheckpoint(
            f"its decoder has {layers} layers, and rows of images are added behind {len(spec.parts) - 1}"
        )
    extras = Extra(PLACES, MOST_PLACES), Extra(IMAGE_ROWS, 0, width=spec.width * len(spec.parts))
    return replace(fitted, encoder=tuple(steps), extras=(*fitted.extras, *extras))
