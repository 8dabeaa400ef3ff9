"""Tiny random models of pages in the layouts of ColQwen2.5, ColPali and jina-embeddings-v4, written without torch."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from tests.golden_cases import write_json

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
WIDTH, TOWER, HEADS, LAYERS, DEPTH, VECTOR = 32, 16, 2, 2, 2, 8
INNER, TOWER_INNER, PATCH = 24, 20, 4
MOST_PIXELS = 1600


def write_tokenizer(folder: Path, special: tuple[str, ...] = SPECIAL) -> Tokenizer:
    """A tokenizer.json of bytes and special tokens alone."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "Qwen2TokenizerFast", "pad_token": special[0]})
    return tokenizer


def write_pages(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write the checkpoint; `changes` are of config.json."""
    folder.mkdir(parents=True)
    tokenizer = write_tokenizer(folder)
    text = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    }
    vision = {
        "depth": DEPTH,
        "hidden_size": TOWER,
        "intermediate_size": TOWER_INNER,
        "num_heads": HEADS,
        "out_hidden_size": WIDTH,
        "patch_size": PATCH,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    config = {"model_type": "qwen2_5_vl", "architectures": ["ColQwen2_5"], "vision_config": vision, **text}
    write_json(folder / "config.json", config | {"image_token_id": tokenizer.token_to_id("<|image_pad|>")} | changes)
    pictures = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": PATCH, "image_mean": 0.5}
    pictures |= {"image_std": 0.5, "min_pixels": 64, "max_pixels": MOST_PIXELS}
    write_json(folder / "preprocessor_config.json", pictures)
    save_file(_tensors(tokenizer.get_vocab_size(), np.random.default_rng(seed)), folder / "model.safetensors")
    return folder


def write_jina(folder: Path, tasks: tuple[str, ...]) -> Path:
    """Write a jina-embeddings-v4, whose adapters change the queries of its first layer and the projection."""
    place = write_pages(folder, seed=2, task_names=list(tasks)) / "model.safetensors"
    renamed = {
        name.replace("custom_text_proj", "multi_vector_projector"): held for name, held in load_file(place).items()
    }
    save_file(renamed, place)
    draw, stored = np.random.default_rng(3), {}
    for module, outputs in (
        ("model.language_model.layers.0.self_attn.q_proj", WIDTH),
        ("multi_vector_projector", VECTOR),
    ):
        for task in tasks:
            for key, shape in (("A", (2, WIDTH)), ("B", (outputs, 2))):
                name = f"base_model.model.{module}.lora_{key}.{task}.weight"
                stored[name] = draw.normal(0, 0.3, shape).astype(np.float32)
    (folder / "adapters").mkdir()
    save_file(stored, folder / "adapters/adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "base_model_name_or_path": "x"}
    write_json(folder / "adapters/adapter_config.json", config)
    return folder


def write_paligemma(folder: Path, **changes: Any) -> Path:
    """Write a ColPali of colpali-engine: an image is 16 tokens; `changes` are of text_config."""
    folder.mkdir(parents=True)
    tokenizer = write_tokenizer(folder, ("<pad>", "<bos>", "<image>"))
    size = tokenizer.get_vocab_size()
    text = {"model_type": "gemma", "vocab_size": size, "hidden_size": WIDTH, "intermediate_size": INNER}
    text |= {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": 16}
    vision = {"model_type": "siglip_vision_model", "hidden_size": TOWER, "intermediate_size": TOWER_INNER}
    vision |= {"num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "image_size": 16, "patch_size": PATCH}
    config = {"model_type": "paligemma", "image_token_index": tokenizer.token_to_id("<image>")}
    write_json(folder / "config.json", config | {"text_config": text | changes, "vision_config": vision})
    pictures = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 16, "width": 16}}
    write_json(folder / "preprocessor_config.json", pictures)
    shapes: dict[str, tuple[int, ...]] = {
        "language_model.model.embed_tokens.weight": (size, WIDTH),
        "language_model.model.norm.weight": (WIDTH,),
        "vision_tower.vision_model.embeddings.patch_embedding.weight": (TOWER, 3, PATCH, PATCH),
        "vision_tower.vision_model.embeddings.patch_embedding.bias": (TOWER,),
        "vision_tower.vision_model.embeddings.position_embedding.weight": (16, TOWER),
        **_norm("vision_tower.vision_model.post_layernorm"),
        **_linear("multi_modal_projector.linear", WIDTH, TOWER),
        **_linear("custom_text_proj", VECTOR, WIDTH),
    }
    for layer in range(LAYERS):
        stem = f"language_model.model.layers.{layer}"
        shapes |= {f"{stem}.self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in ("q", "o")}
        shapes |= {f"{stem}.self_attn.{name}_proj.weight": (WIDTH // HEADS, WIDTH) for name in ("k", "v")}
        shapes |= {f"{stem}.mlp.{name}_proj.weight": (INNER, WIDTH) for name in ("gate", "up")}
        shapes[f"{stem}.mlp.down_proj.weight"] = (WIDTH, INNER)
        shapes |= {f"{stem}.{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
    for block in range(DEPTH):
        stem = f"vision_tower.vision_model.encoder.layers.{block}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{stem}.self_attn.{name}", TOWER, TOWER)
        shapes |= _linear(f"{stem}.mlp.fc1", TOWER_INNER, TOWER) | _linear(f"{stem}.mlp.fc2", TOWER, TOWER_INNER)
        shapes |= _norm(f"{stem}.layer_norm1") | _norm(f"{stem}.layer_norm2")
    draw = np.random.default_rng(4)
    tensors = {name: draw.normal(0, np.prod(shape[1:]) ** -0.5 / 3, shape) for name, shape in shapes.items()}
    save_file(
        {name if "custom" in name else f"model.{name}": held.astype(np.float32) for name, held in tensors.items()},
        folder / "model.safetensors",
    )
    return folder


def _tensors(vocabulary: int, draw: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Every tensor by the names of the first files, whose text model has no prefix of its own."""
    key = WIDTH // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, WIDTH),
        "visual.patch_embed.proj.weight": (TOWER, 3, 2, PATCH, PATCH),
        **_linear("visual.merger.mlp.0", 4 * TOWER, 4 * TOWER),
        **_linear("visual.merger.mlp.2", WIDTH, 4 * TOWER),
        **_linear("custom_text_proj", VECTOR, WIDTH),
    }
    norms = ["model.norm.weight", "visual.merger.ln_q.weight"]
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}"
        shapes |= _linear(f"{stem}.self_attn.q_proj", WIDTH, WIDTH) | _linear(f"{stem}.self_attn.k_proj", key, WIDTH)
        shapes |= _linear(f"{stem}.self_attn.v_proj", key, WIDTH)
        shapes[f"{stem}.self_attn.o_proj.weight"] = (WIDTH, WIDTH)
        shapes |= {f"{stem}.mlp.{name}_proj.weight": (INNER, WIDTH) for name in ("gate", "up")}
        shapes[f"{stem}.mlp.down_proj.weight"] = (WIDTH, INNER)
        norms += [f"{stem}.input_layernorm.weight", f"{stem}.post_attention_layernorm.weight"]
    for block in range(DEPTH):
        stem = f"visual.blocks.{block}"
        shapes |= _linear(f"{stem}.attn.qkv", 3 * TOWER, TOWER) | _linear(f"{stem}.attn.proj", TOWER, TOWER)
        for name in ("gate", "up"):
            shapes |= _linear(f"{stem}.mlp.{name}_proj", TOWER_INNER, TOWER)
        shapes |= _linear(f"{stem}.mlp.down_proj", TOWER, TOWER_INNER)
        norms += [f"{stem}.norm1.weight", f"{stem}.norm2.weight"]
    tensors = {name: draw.normal(0, np.prod(shape[1:]) ** -0.5, shape) for name, shape in shapes.items()}
    tensors |= {name: draw.normal(1, 0.1, TOWER if "visual" in name else WIDTH) for name in norms}
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def _linear(stem: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{stem}.weight": (outputs, inputs), f"{stem}.bias": (outputs,)}


def _norm(stem: str) -> dict[str, tuple[int, ...]]:
    return {f"{stem}.weight": (TOWER,), f"{stem}.bias": (TOWER,)}


def page(height: int, width: int, seed: int = 0, kind: str = "PNG", **options: Any) -> bytes:
    """A file of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()
