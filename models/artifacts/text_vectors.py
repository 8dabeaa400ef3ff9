"""The text vectors of families that need no sentence-transformers files: CLIP, SigLIP, Jina's of several towers."""

from dataclasses import replace
from pathlib import Path

from models.artifacts.card import TextFilling
from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.json_files import read_optional
from models.checkpoints.page_texts import page_texts
from models.checkpoints.sentence_modules import StoredModules
from models.checkpoints.sentence_transformers import EOS, Pooling, SentenceFiles
from models.checkpoints.tokenizers.checkpoint_tokenizer import read_tokenizer
from models.checkpoints.tokenizers.files import TOKENIZER, read_files
from models.errors import BadCheckpoint
from models.families import jina_clip
from models.families.config import Config
from models.families.family import TextVector
from models.families.fitting import FittedModel
from models.recipes.sentence_modules import Dense
from models.recipes.steps import Linear
from models.vision import similarity

_OLD_END = 2  # eos_token_id of CLIP's files before 2023, which is no token of theirs


def with_own_vector(sentence: SentenceFiles, fitted: FittedModel, source: Checkpoint) -> SentenceFiles:
    """Return the settings with the family's pooling and letter case; unchanged if files describe a pooling.

    Vectors of a dual encoder are scaled to unit length, which is how it compares them itself.

    Raises:
        BadCheckpoint: the config names no single end token.
    """
    text_vector = fitted.family.text_vector
    if text_vector is None or not fitted.encoder or sentence.pooling:
        return _with_mean(sentence, fitted, source)
    unit = similarity.read_similarity(source) is not None
    pooling = Pooling(text_vector.mode, unit, end_id=_end_id(fitted.config) if text_vector.mode == EOS else None)
    return replace(sentence, pooling=pooling, lowercase=sentence.lowercase or text_vector.lowercase)


def _with_mean(sentence: SentenceFiles, fitted: FittedModel, source: Checkpoint) -> SentenceFiles:
    """Return the settings of a model whose own code takes the mean: jina-embeddings-v4, jina-clip; of others as given.

    Of requests that name no prompt, the first takes that of queries, the second its usual adapter without a prompt.
    """
    if not fitted.encoder or sentence.pooling:
        return sentence
    mean, pages = Pooling("mean", normalize=True), page_texts(source)
    if pages and pages.mean:
        return replace(sentence, pooling=mean, default_prompt="query")
    if source.model_type != jina_clip.OUTER:
        return sentence
    named = fitted.config.get("default_prompt")
    prompts = {jina_clip.NO_INSTRUCTION: ""} if fitted.tasks and not named else {}
    return replace(sentence, pooling=mean, prompts=prompts, default_prompt=next(iter(prompts), named))


def _end_id(config: Config) -> int | None:
    """Return the id whose first occurrence ends a text; None: the largest id of the text.

    Source: transformers 5.23, CLIPTextModel.
    """
    end = config.count("eos_token_id", least=0)
    return None if end == _OLD_END else end


def projection(fitted: FittedModel, source: Checkpoint) -> StoredModules:
    """Return the projection after the family's pooling as modules; empty if the file holds none."""
    text_vector = fitted.family.text_vector
    name = text_vector and _in_file(text_vector, fitted, source)
    if not text_vector or not name:
        return StoredModules()
    hidden, tensor = fitted.config.count("hidden_size"), source.tensors[name]
    if len(tensor.shape) != 2 or tensor.shape[1] != hidden:
        raise BadCheckpoint(f"{name!r} has shape {list(tensor.shape)}; it must be [width of a vector, {hidden}]")
    bias = name.removesuffix("weight") + "bias"
    linear = Linear(name, bias if text_vector.projection.bias and bias in source.tensors else None)
    tensors = {each: source.tensors[each] for each in (linear.weight, linear.bias) if each}
    if source.fetch:
        source.fetch(list(tensors.values()))
    return StoredModules((Dense(linear, "identity"),), tensors, hidden, tensor.shape[0])


def _in_file(text_vector: TextVector, fitted: FittedModel, source: Checkpoint) -> str | None:
    """Return the file's name of the projection: in the tower, or beside it."""
    prefixes = (fitted.prefix, fitted.prefix.removesuffix(fitted.family.prefix))
    names = (prefix + text_vector.projection.weight for prefix in prefixes)
    return next((name for name in names if name in source.tensors), None)


def filling(fitted: FittedModel, folder: Path, max_tokens: int | None) -> TextFilling | None:
    """Return how texts are filled up to the length that the family was trained with; None if they are not."""
    text_vector = fitted.family.text_vector
    if text_vector is None or not text_vector.filled or not fitted.encoder or max_tokens is None:
        return None
    token_id = _tokenizer_pad_id(folder)
    return TextFilling(max_tokens, fitted.pad_id or 0 if token_id is None else token_id)


def _tokenizer_pad_id(folder: Path) -> int | None:
    """Return the id with which the checkpoint's tokenizer pads; None if its files do not say.

    It is not always the config's pad_token_id: SigLIP2's files leave that out, and its default is another token there.
    """
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        return None
    named = read_files(folder).special.get("pad")
    token_id: int | None = tokenizer.library.token_to_id(named) if named else None
    padding = (read_optional(folder / TOKENIZER).get("padding") or {}).get("pad_id")
    return padding if token_id is None and type(padding) is int else token_id
