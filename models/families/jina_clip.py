"""The config of jina-clip's text tower, which config.json gives as another repository's with changes.

Source: modeling_clip.py and hf_model.py, the code beside jina-clip v1 and v2. The sizes of both repositories are
recalled; the shapes of the tensors are checked against them.
"""

from collections.abc import Mapping
from typing import Any

from models.errors import BadCheckpoint

OUTER = "jina_clip"
NO_INSTRUCTION = "default"  # the prompt of requests that name none: the usual adapter comes without its instruction
_REPOSITORIES: dict[str, dict[str, Any]] = {
    "jinaai/jina-bert-flash-implementation": {
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "vocab_size": 30528,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    },
    "jinaai/jina-embeddings-v3": {
        "model_type": "xlm-roberta",
        "position_embedding_type": "rotary",
        "rotary_emb_base": 20000.0,
        "vocab_size": 250002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 8194,
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    },
}


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text tower's config as its own repository would have it.

    Args:
        config: config.json of a jina-clip.

    Raises:
        BadCheckpoint: it names another repository, or steps behind the blocks other than the mean.
    """
    outer = config.get("text_config")
    outer = outer if isinstance(outer, Mapping) else {}
    name, changes = outer.get("hf_model_name_or_path"), outer.get("hf_model_config_kwargs") or {}
    if name not in _REPOSITORIES or not isinstance(changes, Mapping):
        raise BadCheckpoint(
            f"config.json says hf_model_name_or_path {name!r} in text_config; the sizes of "
            f"{' and '.join(_REPOSITORIES)} are known; --side vision exports the image tower"
        )
    row = _REPOSITORIES[name]
    pooler = outer.get("pooler_type") or ("cls_pooler" if row["model_type"] == "bert" else "mean_pooler")
    if pooler != "mean_pooler" or outer.get("proj_type") or config.get("add_projections"):
        raise BadCheckpoint(
            f"config.json says pooler_type {pooler!r}, proj_type {outer.get('proj_type')!r} and add_projections "
            f"{config.get('add_projections')!r}; mean_pooler without projections is computed"
        )
    tasks = {"default_task": outer.get("default_lora_task"), "default_prompt": outer.get("default_instruction_task")}
    return {**row, **changes, **tasks}
