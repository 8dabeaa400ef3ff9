"""Why the blocks of some model types are not computed: they need a step that recipes/steps.py lacks.

Source: transformers 5.23 (the modeling module of each family).
"""

from models.families.family import Family

CROSS_ATTENTION = "an encoder's output is attended to"
_EXPERTS = "mixture of experts"
_SPARSE = "sparse attention"
_LATENT = "keys and values of a latent vector"
_STATE_SPACE = "state-space layers"

UNCOVERED: dict[str, str] = {
    "led": _SPARSE,
    "longt5": _SPARSE,
    "xmod": "adapters chosen by language",
    "funnel": "sequences that grow shorter between blocks",
    "xlnet": "relative positions in every score (Transformer-XL)",
    "glm4_moe": _EXPERTS,
    "hunyuan_v1_moe": _EXPERTS,
    "nllb-moe": _EXPERTS,
    "switch_transformers": _EXPERTS,
    "qwen3_vl_moe_text": _EXPERTS,
    "gpt_oss": f"{_EXPERTS}, attention sinks",
    "llama4_text": f"{_EXPERTS}, attention in chunks",
    "afmoe": f"{_EXPERTS}, gated attention",
    "deepseek_v2": f"{_EXPERTS}, {_LATENT}",
    "deepseek_v3": f"{_EXPERTS}, {_LATENT}",
    "minimax": f"{_EXPERTS}, linear attention",
    "jamba": f"{_EXPERTS}, {_STATE_SPACE}",
    "falcon_h1": _STATE_SPACE,
    "mamba": _STATE_SPACE,
    "mamba2": _STATE_SPACE,
    "recurrent_gemma": "recurrent layers",
    "minicpm3": _LATENT,
    "gemma3n_text": "several streams of hidden states (AltUp)",
    "gemma4_text": "embeddings of its own in every layer",
    "apertus": "an activation with learned parameters (xIELU)",
}


def uncovered(model_type: str, family: Family) -> str | None:
    """Return why no block of a family is computed, in a short phrase; None if `family.block` describes them."""
    if family.side == "decoder":
        return CROSS_ATTENTION
    if family.block:
        return None
    return UNCOVERED.get(model_type, "its blocks are not known")  # of an unknown model_type, under --assume
