"""Which row of each table is the padding row: zero at initialisation, and without gradient."""

from models.positions.learned import PositionRule
from models.recipes.steps import AddPosition, Embed, Recipe

# Families whose word table has no padding row, even with a pad_token_id (transformers 5.23 builds their nn.Embedding
# without padding_idx). Every other text family has one.
WITHOUT = frozenset(
    (
        *(
            "bloom",
            "codegen",
            "ctrl",
            "falcon",
            "gpt2",
            "gpt_bigcode",
            "gpt_neo",
            "gpt_neox",
            "gptj",
            "mamba",
            "mamba2",
        ),
        *("mpt", "openai-gpt", "rwkv", "xlnet"),
        *("t5", "mt5", "umt5", "longt5", "switch_transformers"),
        *("clip", "clip_text_model", "siglip", "siglip_text_model", "siglip2_text_model"),
    )
)
FIXED = {"mpnet": 1}  # a constant in MPNetEmbeddings, independent of pad_token_id


def padding_rows(model_type: str, recipe: Recipe, position: PositionRule, pad_id: int | None) -> dict[str, int]:
    """Return the padding row of each table that has one, by the table's name.

    A learned position table has one where positions are counted from the pad id: RoBERTa and its derivatives build both
    tables with padding_idx.

    Args:
        model_type: the family.
        recipe: the steps of its input layer.
        position: how it numbers tokens.
        pad_id: padding id of the tokenizer or config; None: none.
    """
    rows: dict[str, int] = {}
    word = FIXED.get(model_type, pad_id)
    for step in recipe:
        if isinstance(step, Embed) and word is not None and model_type not in WITHOUT:
            rows[step.table] = word
        elif isinstance(step, AddPosition) and position.kind == "cumsum_non_pad" and position.pad_id is not None:
            rows[step.table] = position.pad_id
    return rows
