"""The part of late interaction in an export: the card's entry, with token ids of the tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from models.artifacts import weights
from models.checkpoints import late_interaction
from models.checkpoints.checkpoint import Checkpoint
from models.checkpoints.hub import Repository
from models.checkpoints.late_interaction import LISTWISE, Arrays, ExpansionFiles
from models.checkpoints.located import LocatedCheckpoint
from models.checkpoints.tokenizers.checkpoint_tokenizer import read_tokenizer
from models.checkpoints.tokenizers.files import read_files
from models.errors import BadCheckpoint
from models.families.fitting import FittedModel
from models.recipes.heads import Expansion, MultiVector, Side
from models.recipes.listwise import Listwise
from models.recipes.sentence_modules import SentenceModules, matrices
from models.recipes.steps import Attention, layers

_MOST_TOKENS = 1 << 14  # of a query that is filled up
_LEAST_TOKENS = 2  # of a text, which open and close it
_MASKS = ("[MASK]", "<mask>")  # of tokenizers whose config does not name theirs


@dataclass(frozen=True, slots=True)
class MultiVectorHead:
    """The head that makes several vectors of a text.

    Attributes:
        multi_vector: the card's field.
        arrays: tensors by name.
        prompts: prompts by name.
        markers: entries of the vocabulary that texts name, and the tokenizer would divide.
    """

    multi_vector: MultiVector
    arrays: Arrays
    prompts: dict[str, str]
    markers: tuple[str, ...]


def find(place: LocatedCheckpoint, source: Checkpoint, fitted: FittedModel) -> MultiVectorHead | None:
    """Return the head for several vectors of a text; None if the model has none, or its blocks are not exported.

    Args:
        place: place of the checkpoint, with the files of sentence-transformers.
        source: config and tensors of the checkpoint.
        fitted: the part of it that is exported.

    Raises:
        BadCheckpoint: it is described and not computed, or a file is missing or damaged.
    """
    if not fitted.encoder:
        return None
    if place.repository:
        _fetch(place.repository, source)
    files = late_interaction.read(place.folder, source, fitted.token_width, place.fetch_module)
    if files is None:
        return None
    vocabulary = _Vocabulary(source)
    queries, documents = (
        Side(prompt, length, vocabulary.ids(words), vocabulary.encoded(ending))
        for prompt, length, words, ending in zip(
            files.prompt_names, files.lengths, files.skipped, files.endings, strict=True
        )
    )
    expansion = None
    if stated := files.expansion:
        expansion = Expansion(stated.tokens, vocabulary.filler(stated), stated.attended)
        _check_seen(source, expansion, fitted)
    flops = 2 * sum(files.arrays[name].size for name in matrices(files.steps))
    modules = SentenceModules(files.steps, fitted.token_width, files.width, flops, weights.FILE_NAME)
    listwise = Listwise(*files.marks, vocabulary.marks(files.marks)) if files.marks else None
    multi_vector = MultiVector(modules, queries, documents, expansion, files.first, files.mean, listwise)
    return MultiVectorHead(multi_vector, files.arrays, files.prompts, vocabulary.divided(files.markers))


def longest(multi_vector: MultiVector, usual: int | None, positions: int | None) -> int | None:
    """Return the longest input of a model in tokens, if its files state lengths of queries and documents."""
    stated = [side.max_tokens for side in (multi_vector.query, multi_vector.document) if side.max_tokens is not None]
    most = None if usual is None else max([usual, *stated])
    return most if positions is None or most is None else min(most, positions)


def _fetch(repository: Repository, source: Checkpoint) -> None:
    """Fetch the files that Stanford's ColBERT and BGE-M3 have beside config.json."""
    names: tuple[str, ...] = ()
    if late_interaction.STANFORD in (source.config.get("architectures") or ()):
        names = (late_interaction.METADATA,)
    elif source.model_type == late_interaction.BGE_TYPE:
        names = late_interaction.BGE_FILES
    for name in names:
        if repository.copy(name, source.folder / name):
            return


def _check_seen(source: Checkpoint, expansion: Expansion, fitted: FittedModel) -> None:
    """Raise BadCheckpoint if a token that fills a query up has no position, or can see no token that counts."""
    most = min(fitted.position.longest() or _MOST_TOKENS, _MOST_TOKENS)
    if expansion.tokens > most:
        raise BadCheckpoint(f"{source.name} fills queries up to {expansion.tokens} tokens, and at most {most} are read")
    windows = [step.left for step in layers(fitted.encoder) if isinstance(step, Attention) and step.left is not None]
    if windows and not expansion.attended and min(windows) < expansion.tokens - _LEAST_TOKENS:
        raise BadCheckpoint(
            f"{source.name} fills queries up to {expansion.tokens} tokens that are not attended to, and a layer of it "
            f"sees {min(windows)} tokens back: the last would see none, and transformers' own forms of attention give "
            "different numbers there"
        )


class _Vocabulary:
    """The vocabulary of a checkpoint's tokenizer, read on first use."""

    def __init__(self, source: Checkpoint) -> None:
        self._name, self._folder = source.name, source.folder

    @cached_property
    def _tokenizer(self) -> Any:
        read = read_tokenizer(self._folder)
        if read is None:
            raise BadCheckpoint(f"{self._name} has no tokenizer.json, which numbers the tokens of its late interaction")
        return read.library

    def ids(self, words: Sequence[str]) -> tuple[int, ...]:
        """Return the ids of texts that are tokens; others are left out."""
        ids = [self._tokenizer.token_to_id(word) for word in words]
        return tuple(sorted({token_id for token_id in ids if token_id is not None}))

    def marks(self, words: tuple[str, str]) -> tuple[int, ...]:
        """Return the ids of two words; BadCheckpoint if one is no token of its own."""
        ids = [self.encoded(word) for word in words]
        if [len(each) for each in ids] != [1, 1]:
            raise BadCheckpoint(
                f"{self._folder / 'tokenizer.json'} has no tokens {' and '.join(words)}, which a {LISTWISE} reads: "
                "download it again"
            )
        return ids[0] + ids[1]

    def encoded(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text without special tokens around it."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids) if text else ()

    def filler(self, expansion: ExpansionFiles) -> int:
        """Return the id of the token that fills queries up: the mask token, or the one that ends texts."""
        special = read_files(self._folder).special
        texts = [expansion.token] if expansion.token else [special.get("mask"), *_MASKS, special.get("eos")]
        ids = [self._tokenizer.token_to_id(text) for text in texts if text is not None]
        found = next((token_id for token_id in ids if token_id is not None), None)
        if found is None:
            raise BadCheckpoint(f"{self._folder}: the tokenizer has no {texts[0] or 'mask token'} to expand queries by")
        return int(found)

    def divided(self, prompts: Sequence[str]) -> tuple[str, ...]:
        """Return the markers at the beginning of prompts that are in the vocabulary but not read as one token."""
        markers = []
        for prompt in prompts:
            known = [
                each for each in (prompt, *prompt.split(None, 1)[:1]) if self._tokenizer.token_to_id(each) is not None
            ]
            if known and self._tokenizer.encode(known[0], add_special_tokens=False).tokens != [known[0]]:
                markers.append(known[0])
        return tuple(markers)
