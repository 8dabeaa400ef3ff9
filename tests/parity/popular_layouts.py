"""Random tiny checkpoints in the layout of each row of tests/popular_checkpoints.py.

Each is written twice: as the libraries write it themselves, for the judge, and as it is published, for Inlay.
"""

import json
import random
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from sentence_transformers.sparse_encoder.modules import Router, SparseStaticEmbedding, SpladePooling, Transformer
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tests.golden_cases import write_json
from tests.late_interaction import write_chain, write_pylate, write_stanford
from tests.parity.block_configs import CONFIGS
from tests.parity.test_adapters_live import LINEAR
from tests.parity.test_adapters_live import NAMES as TASKS
from tests.parity.test_blocks_live import randomise
from tests.parity.test_dual_encoders_live import randomize
from tests.parity.test_published_blocks_live import nv_embed
from tests.parity.test_published_layouts import NOMIC_KEYS, Gated
from tests.parity.test_rerankers_live import tokenizer as of_byte_pairs
from tests.popular_checkpoints import Row
from tests.tokenizer_files import CASES, write_case

LONGEST, LABELS = 60, 3
HEADS = {
    "pair": "AutoModelForSequenceClassification",
    "classes": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
    "sparse": "AutoModelForMaskedLM",
    "sparse modules": "AutoModelForMaskedLM",
    "sparse router": "AutoModelForMaskedLM",
    "causal": "AutoModelForCausalLM",
}
OF_TRANSFORMERS = {"minicpm": "granite"}  # classes that compute the same
ENDED = ("qwen3", "gemma2", "gemma3_text")
CLIP_FOLDER = "0_CLIPModel"
MODULES = "sentence_transformers.models."
MODES = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
VISION = {"patch_size": 4, "image_size": 12, "num_channels": 3}


def write(row: Row, folder: Path) -> tuple[Path, Path]:
    """Write both; return the judge's folder and the published one."""
    native, published = folder / "native", folder / row.name.rpartition("/")[2]
    if row.kind == "static":
        return native, write_static(row, native, published)
    if row.kind == "words":
        return native, write_words(native, published)
    vocabulary = write_tokenizer(row, native)
    model = made(row, vocabulary)
    model.save_pretrained(native)
    if row.kind in ("sentence", "jina", "instructor", "latents"):
        write_modules(row, native, model.config.hidden_size)
    if row.kind.startswith("sparse "):
        write_sparse(row, native)
    if row.kind == "pylate":
        write_pylate(native, model.config.hidden_size)
    if row.kind == "stanford":
        write_stanford(native, {"query_maxlen": 16, "doc_maxlen": LONGEST}, f"{row.family}.")
    shutil.copytree(native, published)
    if row.heads:
        for name, rows in (("sparse_linear.pt", 1), ("colbert_linear.pt", model.config.hidden_size)):
            torch.save(torch.nn.Linear(model.config.hidden_size, rows).state_dict(), published / name)
    if row.eos:
        end_texts(native, published, by_tokenizer=row.kind != "latents")
    if row.family == "minicpm":
        begin_texts(native, published)
    if row.kind == "jina":
        write_gated(native, published)
    if row.kind == "sparse router":  # as sentence-transformers writes it; it has no config.json at its top
        return native, published
    if row.family == "minicpm":
        write_layerwise(published, model.config.num_hidden_layers)
    if row.family == "jina_embeddings_v3":
        write_tasks(published)
    write_config(row, published)
    write_weights(row.weights, published)
    if row.kind == "clip folder":
        published.rename(folder / CLIP_FOLDER)
        published.mkdir()
        (folder / CLIP_FOLDER).rename(published / CLIP_FOLDER)
        module = {"idx": 0, "name": "0", "path": CLIP_FOLDER, "type": f"{MODULES}CLIPModel"}
        write_json(published / "modules.json", [module])
    return native, published


def write_static(row: Row, native: Path, published: Path) -> Path:
    """Write a table of vectors as sentence-transformers does, or as Model2Vec does."""
    write_case(native / "tokenizer", CASES[row.tokenizer])
    loaded = transformers.AutoTokenizer.from_pretrained(native / "tokenizer")
    loaded.backend_tokenizer.no_truncation()
    table = torch.randn((len(loaded), 16), generator=torch.Generator().manual_seed(len(row.name)))
    embedding = StaticEmbedding(loaded.backend_tokenizer, embedding_weights=table.numpy())
    of_model2vec = row.family == "model2vec"
    SentenceTransformer(modules=[embedding, Normalize()] if of_model2vec else [embedding]).save(str(native))
    if not of_model2vec:
        return native
    published.mkdir()
    loaded.backend_tokenizer.save(str(published / "tokenizer.json"))
    save_file({"embeddings": table}, published / "model.safetensors")
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True, "hidden_dim": 16}
    write_json(published / "config.json", config | {"seq_length": 1_000_000, "apply_zipf": True, "apply_pca": 16})
    kinds = {".": f"{MODULES}StaticEmbedding", "1_Normalize": f"{MODULES}Normalize"}
    write_chain(published, kinds)
    return published


def write_layerwise(published: Path, layers: int) -> None:
    """Put a head of one row behind each layer but the first, as FlagEmbedding's code names them."""
    tensors = load_file(published / "model.safetensors")
    last = tensors.pop("lm_head.weight")[:1].clone()
    heads = {f"lm_head.{number}.linear_head.weight": last * (number + 2 - layers) for number in range(layers)}
    save_file(tensors | heads, published / "model.safetensors", {"format": "pt"})


def write_tasks(published: Path) -> None:
    """Put adapters of five tasks beside the matrices, as jina's files hold them; a request without a task has none."""
    path, stored = published / "model.safetensors", {}
    for name, weight in load_file(path).items():
        stem = f"roberta.{name.removeprefix('roberta.').removesuffix('.weight')}"
        if not stem.endswith(LINEAR):
            stored[f"roberta.{name.removeprefix('roberta.')}"] = weight
            continue
        stored[f"{stem}.parametrizations.weight.original"] = weight
        stored[f"{stem}.parametrizations.weight.0.lora_A"] = torch.randn(len(TASKS), 2, weight.shape[1])
        stored[f"{stem}.parametrizations.weight.0.lora_B"] = torch.randn(len(TASKS), weight.shape[0], 2)
    save_file(stored, path, {"format": "pt"})


def write_words(native: Path, published: Path) -> Path:
    """Write vectors of words as sentence-transformers does; as it is published, in files of torch.save."""
    words = ["PADDING_TOKEN", ",", "hello", "world", "stones", "harbour", "market", "tree", "said", "12", "30"]
    table = np.random.default_rng(1).normal(size=(len(words), 16)).astype(np.float32)
    modules = [WordEmbeddings(WhitespaceTokenizer(words), table), Pooling(16)]
    SentenceTransformer(modules=modules).save(str(native))
    shutil.copytree(native, published)
    first = published / "0_WordEmbeddings"
    first.mkdir()
    for name in ("wordembedding_config.json", "whitespacetokenizer_config.json", "model.safetensors"):
        (published / name).rename(first / name)
    write_weights("bin", first)
    write_chain(published, {first.name: f"{MODULES}WordEmbeddings", "1_Pooling": f"{MODULES}Pooling"})
    return published


def write_sparse(row: Row, folder: Path) -> None:
    """Write what sentence-transformers saves beside a masked language model: the model, or a table for queries too."""
    transformer = Transformer(str(folder), transformer_task="fill-mask")
    modules: list[Any] = [transformer, SpladePooling()]
    if row.kind == "sparse router":
        weights = torch.rand(len(transformer.tokenizer), generator=torch.Generator().manual_seed(1))
        queries = SparseStaticEmbedding(transformer.tokenizer, weights, frozen=True)
        modules = [Router.for_query_document([queries], modules, default_route="document")]
    encoder = SparseEncoder(modules=modules, device="cpu")
    shutil.rmtree(folder)
    encoder.save_pretrained(str(folder))


def gated(folder: Path) -> Any:
    """Return jina's encoder of a BERT: its feed-forward modules replaced, its positions zero."""
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager")
    torch.manual_seed(1)
    for layer in model.encoder.layer:
        layer.mlp = Gated(model.config.hidden_size, model.config.intermediate_size, torch.nn.functional.gelu)
        layer.feed_forward_chunk = layer.mlp.forward
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.zero_()
    return model.eval()


def write_gated(native: Path, published: Path) -> None:
    """Write the tensors of `gated`, by the names of jina's published code, and the modules beside them."""
    unused = re.compile(r"position|\.intermediate\.|pooler|layer\.\d+\.output\.")
    held = gated(native).state_dict().items()
    tensors = {name: tensor.contiguous() for name, tensor in held if not unused.search(name)}
    save_file(tensors, published / "model.safetensors")


def write_tokenizer(row: Row, folder: Path) -> Any:
    """Write the files of a tokenizer; return it."""
    if row.tokenizer == "bytes":
        fast = of_byte_pairs(pairs=row.family == "modernbert")
        if row.kind == "sentence" and row.family in ENDED:
            end = fast.eos_token, fast.eos_token_id
            fast.backend_tokenizer.post_processor = TemplateProcessing(f"$A {end[0]}", special_tokens=[end])
        fast.model_max_length = 2000 if row.kind == "causal" else LONGEST
        fast.save_pretrained(folder)
        return fast
    write_case(folder, CASES[row.tokenizer])
    if row.kind in ("stanford", "pylate"):
        with (folder / "vocab.txt").open("a", encoding="utf-8") as file:
            file.write("[unused0]\n[unused1]\n")
    path = folder / "tokenizer_config.json"
    held = {"pad_token": "<unk>"} if row.tokenizer == "mistral" else {}
    held |= json.loads(path.read_text()) | {"model_max_length": 2000 if row.kind == "causal" else LONGEST}
    write_json(path, held)
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    if row.tokenizer_json:
        loaded.save_pretrained(folder)
        write_json(path, json.loads(path.read_text()) | held)
    return loaded


def end_texts(native: Path, published: Path, by_tokenizer: bool) -> None:
    """Let the template of the judge's tokenizer.json end texts, and tokenizer_config.json alone that of the other.

    Unless `by_tokenizer`, the other's files of the tokenizer do not end texts.
    """
    config = json.loads((native / "tokenizer_config.json").read_text())
    names = [config["bos_token"]] if config.get("add_bos_token") else []
    for folder in (native, published):
        path = folder / "tokenizer.json"
        library = Tokenizer.from_file(str(path))
        ends = [config["eos_token"]] if folder == native else []
        special = [(name, library.token_to_id(name)) for name in (*names, *ends)]
        library.post_processor = TemplateProcessing(" ".join((*names, "$A", *ends)), special_tokens=special)
        library.save(str(path))
    write_json(published / "tokenizer_config.json", config | {"add_eos_token": by_tokenizer})
    plain = {key: value for key, value in config.items() if not key.startswith("add_")}
    write_json(native / "tokenizer_config.json", plain | {"tokenizer_class": "PreTrainedTokenizerFast"})


def begin_texts(native: Path, published: Path) -> None:
    """Let both tokenizers begin each part of a text with a blank, as those of Llama's first classes do."""
    for folder in (native, published):
        path = folder / "tokenizer.json"
        data = json.loads(path.read_text())
        data["normalizer"]["normalizers"].insert(0, {"type": "Prepend", "prepend": "\u2581"})
        write_json(path, data)
        path = folder / "tokenizer_config.json"
        kept = {key: value for key, value in json.loads(path.read_text()).items() if not key.startswith("add_")}
        write_json(path, kept | {"tokenizer_class": "PreTrainedTokenizerFast"})


def made(row: Row, tokenizer: Any) -> Any:
    """Return a random model of the row's class and vocabulary."""
    draw = random.Random(row.name)
    torch.manual_seed(draw.randrange(1 << 30))
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if row.kind == "latents":
        return nv_embed(draw, **sizes, eos_token_id=tokenizer.eos_token_id)
    if row.family in ("clip", "siglip"):
        return made_dual(row.family, sizes | {"eos_token_id": tokenizer.eos_token_id})
    config = (
        CONFIGS.get(OF_TRANSFORMERS.get(row.family, row.family), CONFIGS["bert"])(draw)
        | sizes
        | {"max_position_embeddings": 600}
        | dict(row.config)
    )
    if row.family in ("t5", "bart", "distilbert"):
        config["eos_token_id"] = tokenizer.eos_token_id
    if row.kind in HEADS:
        config["num_labels"] = 1 if row.kind == "pair" else LABELS
    config = transformers.CONFIG_MAPPING[OF_TRANSFORMERS.get(row.family, row.family)](**config)
    kind = getattr(transformers, HEADS.get(row.kind, "AutoModel"))
    kind = transformers.T5EncoderModel if row.family == "t5" else kind
    model = (kind(config) if row.family == "t5" else kind.from_config(config)).eval()
    randomise(model, row.family)
    if row.kind == "causal":  # scores that are neither 0 nor 1
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(1.0 if row.family == "minicpm" else 0.1)
    return model


def made_dual(family: str, sizes: Mapping[str, Any]) -> Any:
    """Return a random CLIP or SigLIP."""
    blocks = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 48}
    text = {**blocks, **sizes, "max_position_embeddings": LONGEST}
    config = transformers.CONFIG_MAPPING[family](text_config=text, vision_config=blocks | VISION)
    config.projection_dim = 16
    model = transformers.AutoModel.from_config(config).eval()
    randomize(model)
    return model


def write_modules(row: Row, folder: Path, width: int) -> None:
    """Write what sentence-transformers reads beside the transformer."""
    kinds = ["Transformer", "Pooling", *(module.split()[0] for module in row.behind)]
    places = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    named = [
        {"idx": number, "name": str(number), "path": place, "type": MODULES + kind}
        for number, (place, kind) in enumerate(zip(places, kinds, strict=True))
    ]
    write_json(folder / "modules.json", named)
    modes = {f"pooling_mode_{key}": mode == row.pooling for mode, key in MODES.items()}
    included = {} if row.kind != "latents" else {"include_prompt": False}
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **modes, **included})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": LONGEST - 10, "do_lower_case": False})
    settings = {"prompts": dict(row.prompts), "default_prompt_name": None}
    write_json(folder / "config_sentence_transformers.json", settings)
    for place, module in zip(places[2:], row.behind, strict=True):
        (folder / place).mkdir()
        if module.startswith("Dense"):
            write_dense(folder / place, width, module.split()[1], row.weights)


def write_dense(folder: Path, width: int, activation: str, weights: str) -> None:
    """Write a Dense module."""
    bias = activation == "Tanh"
    layer = torch.nn.Linear(width, width, bias)
    tensors = {f"linear.{name}": parameter.detach() for name, parameter in layer.named_parameters()}
    place = "linear.Identity" if activation == "Identity" else f"activation.{activation}"
    config = {"in_features": width, "out_features": width, "bias": bias}
    write_json(folder / "config.json", config | {"activation_function": f"torch.nn.modules.{place}"})
    if weights == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")


def write_weights(weights: str, folder: Path) -> None:
    """Turn model.safetensors into the published files of weights."""
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    if weights in ("bin", "both"):
        torch.save(tensors, folder / "pytorch_model.bin")
    if weights == "bin":
        whole.unlink()
    if weights == "shards":
        names = sorted(tensors)
        halves = (names[: len(names) // 2], names[len(names) // 2 :])
        places = {}
        for number, half in enumerate(halves, 1):
            file = f"model-{number:05}-of-00002.safetensors"
            save_file({name: tensors[name] for name in half}, folder / file, {"format": "pt"})
            places |= dict.fromkeys(half, file)
        write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})
        whole.unlink()


def write_config(row: Row, folder: Path) -> None:
    """Spell config.json as the published one: older keys, and the names of code published beside it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["torch_dtype"] = config.pop("dtype", "float32")
    config = PUBLISHED.get("jina" if row.kind == "jina" else row.family, older)(config) | dict(row.published)
    write_json(path, {key: value for key, value in config.items() if value is not None})


def older(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with rotation's base as files before transformers 5 have it."""
    rope = config.pop("rope_parameters", None)
    if rope and "full_attention" in rope:
        names = ("rope_theta", "rope_local_base_freq")
        names = ("global_rope_theta", "local_rope_theta") if config["model_type"] == "modernbert" else names
        rope = {
            name: rope[kind]["rope_theta"]
            for name, kind in zip(names, ("full_attention", "sliding_attention"), strict=True)
        }
        return config | rope
    return config | ({"rope_theta": rope["rope_theta"]} if rope else {})


def of_nomic(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of nomic's published code."""
    theta = config.pop("rope_parameters")["rope_theta"]
    renamed = {
        NOMIC_KEYS.get(key, key): value for key, value in config.items() if key not in ("hidden_act", "head_dim")
    }
    renamed |= {"activation_function": "swiglu", "rotary_emb_base": theta, "rotary_emb_fraction": 1.0}
    renamed |= {"prenorm": False, "qkv_proj_bias": False, "rotary_emb_interleaved": False}
    return renamed | {"auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}}


def of_gte(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of Alibaba's published code."""
    config = older(config) | {"model_type": "new", "position_embedding_type": "rope"}
    if "architectures" in config:
        config["architectures"] = [name.replace("Gte", "New") for name in config["architectures"]]
    return config | {"auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}}


def of_jina(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of jina's published code."""
    config |= {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "architectures": ["JinaBertModel"]}
    return config | {"auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}}


def of_minicpm(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of MiniCPM's published code."""
    config, layers = older(config), config["num_hidden_layers"]
    scales = {
        name: config.pop(f"{key}_multiplier") for name, key in (("scale_emb", "embedding"), ("scale_depth", "residual"))
    }
    scales["scale_depth"] *= layers**0.5
    scales["dim_model_base"] = config["hidden_size"] / config.pop("logits_scaling")
    layout = {"head_type": "simple", "head_multi": True, "start_layer": 1}
    named = {"model_type": "minicpm", "architectures": ["LayerWiseMiniCPMForCausalLM"]}
    return {key: value for key, value in config.items() if key != "attention_multiplier"} | scales | layout | named


def of_jina_v3(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of jina's published code with adapters."""
    config |= {"rotary_emb_base": config.pop("rope_parameters")["rope_theta"], "lora_adaptations": list(TASKS)}
    return config | {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "lora_rank": 2, "lora_alpha": 1}


PUBLISHED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "nomic_bert": of_nomic,
    "gte": of_gte,
    "jina": of_jina,
    "minicpm": of_minicpm,
    "jina_embeddings_v3": of_jina_v3,
}
