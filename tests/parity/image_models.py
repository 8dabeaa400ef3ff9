"""Random tiny models that read images among their tokens, in the layouts in which they are published."""

import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
SPECIAL_OF_GEMMA = ("<pad>", "<eos>", "<bos>", "<image>")
JINA_TASKS = ("retrieval", "text-matching", "code")
WIDTH = 16  # of a vector of a token
CLASSES = {
    "qwen2_vl": ("Qwen2VLConfig", "Qwen2VLModel"),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", "Qwen2_5_VLModel"),
    "qwen3_vl": ("Qwen3VLConfig", "Qwen3VLModel"),
}
PICTURES = {
    "qwen2_vl": {"patch_size": 14, "min_pixels": 56 * 56, "max_pixels": 200 * 200},
    "qwen2_5_vl": {"patch_size": 14, "size": {"shortest_edge": 56 * 56, "longest_edge": 230 * 230}},
    "qwen3_vl": {"patch_size": 16, "size": {"shortest_edge": 64 * 64, "longest_edge": 230 * 230}},
}
HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def write_tokenizer(folder: Path, special: tuple[str, ...] = SPECIAL) -> Tokenizer:
    """A tokenizer.json of bytes and special tokens alone, whose pad and end token come first and second or third."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "Qwen2TokenizerFast", "pad_token": SPECIAL[0], "eos_token": "<|im_end|>"}
    if special == SPECIAL_OF_GEMMA:
        config = {"tokenizer_class": "GemmaTokenizerFast", "add_bos_token": False, "bos_token": "<bos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def config_of(family: str, tokenizer: Tokenizer, draw: random.Random) -> Any:
    """Random sizes."""
    heads, layers, width = draw.choice((2, 4)), draw.choice((3, 4)), 16 * draw.choice((1, 2))
    text: dict[str, Any] = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": heads * width,
        "intermediate_size": 40,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice((1, heads)),
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [width // 2 - 2 * (width // 6), width // 6, width // 6],
        },
    }
    depth, tower_heads = 4, draw.choice((1, 2))
    vision: dict[str, Any] = {
        "depth": depth,
        "num_heads": tower_heads,
        "patch_size": PICTURES[family]["patch_size"],
        "spatial_merge_size": 2,
    }
    tower = tower_heads * 8 * draw.choice((1, 2))
    if family == "qwen2_vl":
        vision |= {"embed_dim": tower, "hidden_size": heads * width, "mlp_ratio": draw.choice((2, 4))}
    else:
        vision |= {"hidden_size": tower, "out_hidden_size": heads * width, "intermediate_size": 24}
    if family == "qwen2_5_vl":
        vision |= {"fullatt_block_indexes": [draw.choice((0, 1)), 3], "window_size": draw.choice((56, 84))}
    if family == "qwen3_vl":
        text |= {"head_dim": width}
        vision |= {"deepstack_visual_indexes": draw.choice(([0, 2], [1], [])), "num_position_embeddings": 36}
    ids = {"image_token_id": tokenizer.token_to_id("<|image_pad|>")}
    ids |= {f"vision_{side}_token_id": tokenizer.token_to_id(f"<|vision_{side}|>") for side in ("start", "end")}
    return getattr(transformers, CLASSES[family][0])(text_config=text, vision_config=vision, **ids)


def write_jina(folder: Path, seed: int) -> tuple[Any, Any, dict[str, dict[Any, torch.Tensor]]]:
    """Write a jina-embeddings-v4; return the model, the projection, and what each task adds to the weight of a module.

    The names of its adapters have the prefix that its class has since its weights were written.
    """
    model, projection = write("qwen2_5_vl", "engine", folder, seed)
    path = folder / "model.safetensors"
    held = load_file(path)
    names = {name: name.replace("language_model.", "model.") for name in held}
    names |= {name: name.replace("custom_text_proj", "multi_vector_projector") for name in held if "custom" in name}
    save_file({names[name]: tensor for name, tensor in held.items()}, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["JinaEmbeddingsV4Model"], "auto_map": {"AutoModel": "modeling_jina_embeddings_v4.X"}}
    (folder / "config.json").write_text(json.dumps(config | {"task_names": list(JINA_TASKS)}))
    modules = {f"model.language_model.{name}": each for name, each in model.language_model.named_modules()}
    linear = {name: each for name, each in modules.items() if isinstance(each, torch.nn.Linear)}
    linear["multi_vector_projector"] = projection
    added = write_lora(folder / "adapters", folder, linear, JINA_TASKS)
    return model, projection, added


def write_adapter(folder: Path, base: Path, decoder: Any, projection: Any) -> dict[str, dict[Any, torch.Tensor]]:
    """Write an adapter of a model that colpali-engine trained; return what it adds to the weight of a module."""
    linear = {f"model.{name}": each for name, each in decoder.named_modules() if isinstance(each, torch.nn.Linear)}
    added = write_lora(folder, base, linear | {"custom_text_proj": projection}, ("",))
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (folder / name).write_text((base / name).read_text())
    return added


def write_lora(
    folder: Path, base: Path, linear: dict[str, Any], tasks: tuple[str, ...]
) -> dict[str, dict[Any, torch.Tensor]]:
    """Write adapters of modules, for each task; return what each adds to the weight of a module."""
    stored: dict[str, torch.Tensor] = {}
    added: dict[str, dict[Any, torch.Tensor]] = {}
    for task in tasks:
        for name, module in linear.items():
            a, b = torch.randn(2, module.in_features) / 4, torch.randn(module.out_features, 2) / 4
            ending = f".{task}.weight" if task else ".weight"
            stored |= {f"base_model.model.{name}.lora_{key}{ending}": each for key, each in (("A", a), ("B", b))}
            added.setdefault(task, {})[module] = 0.5 * b @ a
    folder.mkdir()
    save_file(stored, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 1, "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return added


def write_paligemma(layout: str, folder: Path, seed: int) -> tuple[Any, Any]:
    """Write a ColPali; return the model of transformers and the projection.

    layout    engine: as vidore/colpali-v1.2-merged; native: ColPaliForRetrieval
    """
    draw = random.Random(seed)
    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    tokenizer = write_tokenizer(folder, SPECIAL_OF_GEMMA)
    heads, layers = draw.choice((2, 4)), draw.choice((2, 3))
    text = {"model_type": "gemma", "vocab_size": tokenizer.get_vocab_size(), "hidden_size": heads * 16}
    text |= {"intermediate_size": 40, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": 16}
    text |= {"num_key_value_heads": draw.choice((1, heads)), "max_position_embeddings": 4096}
    vision = {"model_type": "siglip_vision_model", "hidden_size": 24, "intermediate_size": 32, "vision_use_head": False}
    vision |= {"num_hidden_layers": draw.choice((1, 3)), "num_attention_heads": 2, "image_size": 56, "patch_size": 14}
    config = transformers.PaliGemmaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=tokenizer.token_to_id("<image>"),
        projection_dim=heads * 16,
    )
    pictures = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 56, "width": 56}, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures | HALVES | {"image_seq_length": 16}))
    whole = transformers.ColPaliForRetrieval(transformers.ColPaliConfig(vlm_config=config, embedding_dim=WIDTH)).eval()
    randomise(whole)
    whole.save_pretrained(folder)
    path = folder / "config.json"
    data = json.loads(path.read_text())
    del data["vlm_config"]["text_config"]["use_bidirectional_attention"]  # no published file has it
    if layout == "engine":
        data = data["vlm_config"] | {"architectures": ["ColPali"]}
        names = {"vlm.vision_tower.": "model.vision_tower.vision_model.", "vlm.": "model."}
        names |= {"embedding_proj_layer.": "custom_text_proj."}
        tensors = load_file(folder / "model.safetensors")
        for old, new in names.items():
            tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path.write_text(json.dumps(data))
    return whole.vlm, whole.embedding_proj_layer


def randomise(model: torch.nn.Module) -> None:
    """Draw every parameter, so that none is 0 or 1 throughout."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
            else:
                parameter.copy_(parameter.round() + 0.2 * torch.randn_like(parameter))


def write(family: str, layout: str, folder: Path, seed: int) -> tuple[Any, Any]:
    """Write a checkpoint; return the model of transformers and, of pages, the projection.

    layout    engine: as colpali-engine merges it; native: ColQwen2ForRetrieval; embedding: a model of single vectors
    """
    draw = random.Random(seed)
    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    tokenizer = write_tokenizer(folder)
    config = config_of(family, tokenizer, draw)
    pictures = {"image_processor_type": "Qwen2VLImageProcessor", "merge_size": 2, "temporal_patch_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures | HALVES | PICTURES[family]))
    if layout == "native":
        whole = transformers.ColQwen2ForRetrieval(transformers.ColQwen2Config(vlm_config=config, embedding_dim=WIDTH))
        randomise(whole)
        whole.save_pretrained(folder)
        return whole.vlm.eval(), whole.embedding_proj_layer
    model = getattr(transformers, CLASSES[family][1])(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    if layout == "embedding":
        return model, None
    projection = torch.nn.Linear(config.text_config.hidden_size, WIDTH)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"custom_text_proj.{name}": value.data.clone() for name, value in projection.named_parameters()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return model, projection
