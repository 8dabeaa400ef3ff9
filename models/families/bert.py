"""BERT's input layer and family, which many rows change: models/families/encoders.py."""

from dataclasses import replace
from typing import Any

from models.families.family import Family, norm
from models.recipes.steps import AddPosition, AddType, Embed, Recipe

WORD_TABLE = Embed("embeddings.word_embeddings.weight")
TYPE_TABLE = AddType("embeddings.token_type_embeddings.weight")
POSITION_TABLE = AddPosition("embeddings.position_embeddings.weight")
EMBEDDING_NORM = norm("embeddings.LayerNorm")
BERT_INPUT: Recipe = (WORD_TABLE, TYPE_TABLE, POSITION_TABLE, EMBEDDING_NORM)

_BERT = Family("bert.", BERT_INPUT, types="zeros", causal="is_decoder")


def like_bert(prefix: str, block: Recipe = (), **rest: Any) -> Family:
    """Return BERT's family with changes; without a block, only its input layer is exported."""
    return replace(_BERT, prefix=prefix, block=block, **rest)


def like_roberta(prefix: str, block: Recipe = (), **rest: Any) -> Family:
    """Return RoBERTa's family with changes; without a block, only its input layer is exported."""
    return like_bert(prefix, block, numbering="cumsum_non_pad", **rest)
