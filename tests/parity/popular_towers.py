"""Random tiny checkpoints of models with image towers, and of nomic's experts, in the layout of their rows.

Each function writes one and returns its folder, and the function that compares a service with the judge.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from models.positions.alibi import slopes
from service.embedding.requests import Text
from tests.embed_requests import embed_request
from tests.golden_cases import write_json
from tests.parity import image_models
from tests.parity.popular_layouts import gated, made, write_tokenizer
from tests.parity.test_image_tokens_live import (
    PAGE,
    GemmaJudge,
    Judge,
    Vectors,
    conversation,
    difference,
    pictures,
    png,
    unit,
)
from tests.parity.test_nomic_experts_live import written
from tests.popular_checkpoints import Row
from tests.service.registry.registry_service import Service

Compare = Callable[[Service], float]
TEXTS = ("hello world", "The stones of the harbour, and what is said of it: 12 of 30?")
SEVERAL = "multi_vector_embedding"


def rows(service: Service, inputs: list[Any], *outputs: str, **fields: Any) -> NDArray[Any]:
    """Return the vectors of inputs, one behind the other."""
    return asyncio.run(service.pipeline.embed(embed_request(inputs, None, outputs, **fields))).outputs[0].rows


def of_pages(row: Row, folder: Path) -> tuple[Path, Compare]:
    """Write a model that retrieves pages: whole, with adapters of tasks, or as an adapter of a base beside it."""
    place, picture, query, page = folder / row.name.rpartition("/")[2], pictures()[0], f"Query: {TEXTS[0]}", PAGE
    if row.family == "paligemma":
        model, projection = image_models.write_paligemma("native", place, 1)
        gemma = GemmaJudge(place, model)
        hidden = [gemma.of_query(TEXTS[0]), gemma.of_picture(picture)]
    else:
        base = place if row.kind == "jina v4" else folder / "base"
        if row.kind == "jina v4":
            model, projection, added = image_models.write_jina(place, 1)
            page = f"{PAGE.removesuffix('<|endoftext|>')}\n"
        else:
            model, projection = image_models.write(row.family, "engine", base, 1)
            added = image_models.write_adapter(place, base, model.language_model, projection)
            query += "<|endoftext|>" * 10
        with torch.no_grad():
            for module, change in added[row.route].items():
                module.weight += change
        judge = Judge(base, model)
        hidden = [judge.of_text(query), judge.of_picture(picture, page)]
    wanted = np.concatenate([unit(projection(each)) for each in hidden])

    def compare(service: Service) -> float:
        got = [rows(service, [Text(TEXTS[0])], SEVERAL, input_type="query"), rows(service, [png(picture)], SEVERAL)]
        return difference(np.concatenate(got), wanted)

    return place, compare


def of_conversations(row: Row, folder: Path) -> tuple[Path, Compare]:
    """Write a Qwen3-VL-Embedding."""
    place, picture = folder / "checkpoint", pictures()[0]
    model, _ = image_models.write("qwen3_vl", "embedding", place, 1)
    judge = Judge(place, model)
    image = conversation("<|vision_start|><|image_pad|><|vision_end|>")
    hidden = [*(judge.of_text(conversation(text)) for text in TEXTS), judge.of_picture(picture, image)]
    wanted = np.concatenate([unit(each[-1:]) for each in hidden])
    return place, lambda service: difference(rows(service, [*map(Text, TEXTS), png(picture)], normalize=True), wanted)


def of_jina_clip(row: Row, folder: Path) -> tuple[Path, Compare]:
    """Write the text tower of a jina-clip, whose config names another repository and what differs from it."""
    native, place = folder / "native", folder / "checkpoint"
    tokenizer = write_tokenizer(row, native)
    model = made(row, tokenizer)
    model.save_pretrained(native)
    write_tokenizer(row, place)
    config = json.loads((native / "config.json").read_text())
    sizes = {key: config[key] for key in SIZES}
    if row.family == "bert":
        model, tensors = gated(native), flash_names(gated(native).state_dict())
        named = {"hf_model_name_or_path": "jinaai/jina-bert-flash-implementation", "pooler_type": "mean_pooler"}
    else:
        tensors = with_one_task(native)
        model = transformers.AutoModel.from_pretrained(native).eval()
        sizes |= {"rotary_emb_base": config["rope_parameters"]["rope_theta"], "lora_rank": 2, "lora_alpha": 1}
        sizes |= {"lora_adaptations": ["retrieval.query"], "task_instructions": {"retrieval.query": "Find it: "}}
        named = {"hf_model_name_or_path": "jinaai/jina-embeddings-v3", "default_lora_task": "retrieval.query"}
    text = named | {"model_type": "jina_clip_text", "hf_model_config_kwargs": sizes, "embed_dim": sizes["hidden_size"]}
    write_json(place / "config.json", {"model_type": "jina_clip", "text_config": text, "add_projections": False})
    held = {f"text_model.transformer.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(held | {"logit_scale": torch.tensor(1.0)}, place / "model.safetensors", {"format": "pt"})
    wanted = np.concatenate([unit(mean_of(model.double(), tokenizer, text)) for text in TEXTS])
    return place, lambda service: difference(rows(service, list(map(Text, TEXTS))), wanted)


SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
SIZES += ("max_position_embeddings", "layer_norm_eps", "type_vocab_size", "pad_token_id", "hidden_act")


def mean_of(model: Any, tokenizer: Any, text: str) -> torch.Tensor:
    """Return the mean of the hidden states, [1, d]; of a BERT with distances in its scores."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    places, mask = torch.arange(ids.shape[1]), None
    if model.config.model_type == "bert":
        falling = torch.tensor(slopes(model.config.num_attention_heads))[:, None, None]
        mask = -(falling * (places - places[:, None]).abs())[None].double()
    with torch.no_grad():
        hidden: torch.Tensor = model(ids, attention_mask=mask).last_hidden_state[0]
    return hidden.mean(dim=0, keepdim=True)


def flash_names(held: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of jina's encoder of a BERT as jina-bert-flash-implementation names them."""
    tensors = {f"embeddings.{name}_embeddings.weight": held[f"embeddings.{name}_embeddings.weight"] for name in TABLES}
    tensors |= {f"emb_ln.{kind}": held[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")}
    number = 0
    while (old := f"encoder.layer.{number}.") + "mlp.wo.weight" in held:
        new = f"encoder.layers.{number}."
        for kind in ("weight", "bias"):
            parts = [held[f"{old}attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            tensors[f"{new}mixer.Wqkv.{kind}"] = torch.cat(parts)
            for name, other in FLASH.items():
                tensors[f"{new}{other}.{kind}"] = held[f"{old}{name}.{kind}"]
        tensors[f"{new}mlp.gated_layers.weight"] = held[f"{old}mlp.gated_layers.weight"]
        number += 1
    return tensors


TABLES = ("word", "token_type")
FLASH = {"attention.output.dense": "mixer.out_proj", "attention.output.LayerNorm": "norm1"}
FLASH |= {"mlp.wo": "mlp.wo", "mlp.layernorm": "norm2"}


def with_one_task(native: Path) -> dict[str, Any]:
    """Return the tensors with an adapter of one task beside each matrix, which is merged into the native file."""
    path, stored = native / "model.safetensors", {}
    held = load_file(path)
    for name, weight in held.items():
        stem = f"roberta.{name.removeprefix('roberta.').removesuffix('.weight')}"
        if not stem.endswith(("mixer.Wqkv", "mixer.out_proj", "mlp.fc1", "mlp.fc2")):
            stored[f"roberta.{name.removeprefix('roberta.')}"] = weight
            continue
        a, b = torch.randn(1, 2, weight.shape[1]) / 4, torch.randn(1, weight.shape[0], 2) / 4
        stored[f"{stem}.parametrizations.weight.original"] = weight.clone()
        stored |= {f"{stem}.parametrizations.weight.0.lora_{key}": each for key, each in (("A", a), ("B", b))}
        held[name] = weight + 0.5 * b[0] @ a[0]
    save_file(held, path, {"format": "pt"})
    return stored


def of_experts(row: Row, folder: Path) -> tuple[Path, Compare]:
    """Write nomic's mixture of experts with a tokenizer."""
    place = folder / "checkpoint"
    tokenizer = write_tokenizer(row, place)
    judge = written(1, place, vocab_size=len(tokenizer))
    means: list[Vectors] = []
    for text in TEXTS:
        hidden = judge.rows(tokenizer(f"{row.prompts['query']}{text}")["input_ids"])
        means.append(unit(torch.tensor(hidden.mean(axis=0, keepdims=True))))
    wanted = np.concatenate(means)
    return place, lambda service: difference(rows(service, list(map(Text, TEXTS)), prompt_name="query"), wanted)


MADE: dict[str, Callable[[Row, Path], tuple[Path, Compare]]] = {
    "pages": of_pages,
    "jina v4": of_pages,
    "conversation": of_conversations,
    "jina clip": of_jina_clip,
    "experts": of_experts,
}
