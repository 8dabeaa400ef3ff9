"""Whole models as llama.cpp's converter writes them to GGUF, against transformers.

Names come from the gguf package's own map; what the converter changes (rows, sums, transposition) is written down here
from its source, apart from the code that undoes it.
"""

import random
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from models.artifacts.export import export
from tests.gguf_files import write_gguf
from tests.parity.block_configs import CONFIGS
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import CLASSES, TOLERANCE, Encoder, expected, relative

pytestmark = pytest.mark.parity
LENGTHS = (1, 12, 65, 130)
Array = NDArray[np.float32]
ARCHITECTURES = {
    **{
        name: name for name in ("bert", "distilbert", "qwen2", "qwen3", "llama", "arcee", "granite", "smollm3", "gemma")
    },
    **{name: name for name in ("gemma2", "olmo2", "phi3", "gpt2", "starcoder2", "stablelm", "cohere2", "bloom")},
    **{name: name for name in ("exaone4", "glm4", "ernie4_5", "eurobert")},
    "distilbert": "bert",
    "gemma3_text": "gemma3",
    "gpt_neox": "gptneox",
    "cohere": "command-r",
    "phi": "phi2",
    "nomic_bert": "nomic-bert",
    "jina_embeddings_v3": "jina-bert-v3",
    "modernbert": "modern-bert",
    "t5": "t5encoder",
    "umt5": "t5",
}
FIXED: dict[str, dict[str, Any]] = {  # what a GGUF of the family does not say
    "bert": {"hidden_act": "gelu"},
    "jina_embeddings_v3": {"hidden_act": "gelu"},
    "gpt_neox": {"hidden_act": "gelu"},
    "gpt2": {"activation_function": "gelu_new"},
    "modernbert": {"global_attn_every_n_layers": 3},
    "starcoder2": {"sliding_window": None, "hidden_act": "gelu_pytorch_tanh"},
    "qwen2": {"use_sliding_window": False},
    "stablelm": {"use_parallel_residual": False, "qk_layernorm": False},  # files with attn_q_norm are refused
    "gemma3_text": {"use_bidirectional_attention": False},
    "smollm3": {"no_rope_layer_interval": 4},
    "ernie4_5": {"head_dim": 16},
    "t5": {"relative_attention_max_distance": 128},
    "umt5": {"relative_attention_max_distance": 128},
}
PAIRED = ("llama", "arcee", "granite", "smollm3")
SCORES_BY_HEAD = ("gemma2", "gemma3_text")  # query_pre_attn_scalar is head_dim, but for the largest


def model_of(family: str, seed: int) -> Any:
    draw = random.Random(f"gguf {family} {seed}")
    torch.manual_seed(draw.randrange(1 << 30))
    data = CONFIGS[family](draw) | FIXED.get(family, {})
    if family in SCORES_BY_HEAD:
        data["query_pre_attn_scalar"] = data["head_dim"]
    if family in ("t5", "umt5"):
        data["feed_forward_proj"] = draw.choice(("relu", "gated-gelu"))
    config = transformers.CONFIG_MAPPING[family](**data)
    config.use_cache = False
    if family in CLASSES:
        config._attn_implementation = "eager"
        model = getattr(transformers, CLASSES[family])(config).eval()
    else:
        model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.ndim == 1:
                near = 1.0 if "norm" in name.lower() and name.endswith("weight") and "gemma" not in family else 0.0
                parameter.copy_(near + 0.3 * noise)
            else:
                narrow = 0.25 if name.endswith("SelfAttention.q.weight") else 0.7
                parameter.copy_(noise if "embed" in name else narrow * noise / parameter.shape[-1] ** 0.5)
    return model


def pairs(rows: Array, heads: int) -> Array:
    """LlamaModel.permute of the converter."""
    split = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def joined(rows: Array, heads: int) -> Array:
    """What the converter makes of a projection that holds query, key and value of a head after another."""
    split = rows.reshape(heads, 3, -1, *rows.shape[1:])
    return np.concatenate([split[:, part].reshape(-1, *rows.shape[1:]) for part in range(3)])


def converted(family: str, name: str, array: Array, config: Any) -> Array:
    heads = getattr(config, "num_attention_heads", 1)
    if family in PAIRED and (found := re.search(r"\.([qk])_proj\.", name)):
        return pairs(array, heads if found[1] == "q" else config.num_key_value_heads)
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return array + np.float32(1)
    if family in ("gpt_neox", "bloom") and ".query_key_value." in name:
        return joined(array, heads)
    if family == "gpt2" and re.search(r"\.(c_attn|c_proj|c_fc)\.weight", name):
        return array.T
    return array


PUBLISHED = {  # transformers' own names of nomic_bert and jina_embeddings_v3 -> those of the published files
    r"layers\.(\d+)\.self_attn\.o_proj": r"encoder.layers.\1.attn.out_proj",
    r"layers\.(\d+)\.mlp\.fc(\d)": r"encoder.layers.\1.mlp.fc\2",
    r"layers\.(\d+)\.mlp\.up_proj": r"encoder.layers.\1.mlp.fc11",
    r"layers\.(\d+)\.mlp\.gate_proj": r"encoder.layers.\1.mlp.fc12",
    r"layers\.(\d+)\.mlp\.down_proj": r"encoder.layers.\1.mlp.fc2",
    r"layers\.(\d+)\.post_attention_layernorm": r"encoder.layers.\1.norm1",
    r"layers\.(\d+)\.post_mlp_layernorm": r"encoder.layers.\1.norm2",
    r"embeddings\.LayerNorm": "emb_ln",
}


def published(family: str, state: dict[str, Array]) -> dict[str, Array]:
    """The tensors as the files hold them that the converter reads."""
    if family not in ("nomic_bert", "jina_embeddings_v3"):
        return state
    named: dict[str, Array] = {}
    for name, array in state.items():
        for pattern, new in PUBLISHED.items():
            name = re.sub(f"^{pattern}", new, name)
        named[name] = array
    for layer in {match[1] for name in state if (match := re.match(r"layers\.(\d+)\.", name))}:
        for kind in ("weight", "bias"):
            own = [named.pop(f"layers.{layer}.self_attn.{letter}_proj.{kind}", None) for letter in "qkv"]
            if own[0] is not None:
                named[f"encoder.layers.{layer}.attn.Wqkv.{kind}"] = np.concatenate(own)
    return named


PREFIXES = ("", "model.", "transformer.", "gpt_neox.")


def write(family: str, model: Any, path: Path, extra: dict[str, Any] | None = None) -> Path:
    architecture, config = ARCHITECTURES[family], model.config
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, 64)
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    tensors: dict[str, Any] = {}
    for name, array in published(family, state).items():
        if name == "encoder.embed_tokens.weight" or name.startswith("pooler."):  # T5's tied table; not for embeddings
            continue
        spelled = (names.get_name(prefix + name, try_suffixes=(".weight", ".bias")) for prefix in PREFIXES)
        new = next(filter(None, spelled), None)
        assert new, name
        tensors[new] = np.ascontiguousarray(converted(family, name, array, config))
    return write_gguf(path, architecture, metadata(family, config) | (extra or {}), tensors)


def metadata(family: str, config: Any) -> dict[str, Any]:
    """What the converter writes of a config."""
    sizes = {
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "context_length": "max_position_embeddings",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "attention.scale": "attention_multiplier",
        "residual_scale": "residual_multiplier",
        "embedding_scale": "embedding_multiplier",
        "use_parallel_residual": "use_parallel_residual",
        "attention.relative_buckets_count": "relative_attention_num_buckets",
    }
    own: dict[str, Any] = {key: getattr(config, name, None) for key, name in sizes.items()}
    for name in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"):
        own.setdefault("attention.layer_norm_epsilon", getattr(config, name, None))
        if own["attention.layer_norm_epsilon"] is None:
            del own["attention.layer_norm_epsilon"]
    own["attention.layer_norm_rms_epsilon"] = getattr(config, "rms_norm_eps", None)
    if family in ("bert", "distilbert"):
        own.setdefault("attention.layer_norm_epsilon", 1e-12)
    if family in ("t5", "umt5"):
        own |= {"feed_forward_length": config.d_ff, "attention.key_length": config.d_kv, "context_length": 512}
    if family == "modernbert":
        own |= {"attention.sliding_window": config.local_attention, "attention.sliding_window_pattern": 3}
        own["hidden_activation"] = config.hidden_activation
    if family == "exaone4":
        own["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config.layer_types]
    if family == "granite":
        del own["attention.key_length"]
    if family == "distilbert":
        own["feed_forward_length"] = config.hidden_dim
    if family == "gpt2":
        own["feed_forward_length"] = config.n_inner or 4 * config.n_embd
    rope = getattr(config, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    own["rope.freq_base"] = full.get("rope_theta")
    own["rope.freq_base_swa"] = rope.get("sliding_attention", {}).get("rope_theta")
    if share := full.get("partial_rotary_factor"):
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        own["rope.dimension_count"] = int(share * head)
    if family == "phi3":
        own["attention.sliding_window"] = own["attention.sliding_window"] or 0
    floats = ("rope.freq_base", "rope.freq_base_swa", "attn_logit_softcapping")
    return {key: float(value) if key in floats else value for key, value in own.items() if value is not None}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_whole_gguf_gives_the_rows_of_transformers(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model = model_of(family, seed)
    card = export(write(family, model, tmp_path / "x.gguf"), tmp_path / "out", encoder=True)
    model, encoder, draw = model.double(), Encoder(tmp_path / "out", card), np.random.default_rng(seed)
    for length in LENGTHS:
        ids = draw.integers(3, model.config.vocab_size, length)
        (rows,) = encoder.rows([ids])
        ledger.check(family, "gguf", relative(rows, expected(model, ids)), TOLERANCE)


def check(what: str, model: Any, path: Path, ledger: Ledger, tolerance: float = TOLERANCE) -> None:
    card = export(path, path.parent / "out", encoder=True)
    model, encoder, draw = model.double(), Encoder(path.parent / "out", card), np.random.default_rng(3)
    for length in LENGTHS:
        ids = draw.integers(3, model.config.vocab_size, length)
        ledger.check(what, "gguf", relative(encoder.rows([ids])[0], expected(model, ids)), tolerance)


def held(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}


def custom(family: str, **data: Any) -> Any:
    torch.manual_seed(7)
    sizes = {"vocab_size": 60, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
             "intermediate_size": 96, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}  # fmt: skip
    if family == "modernbert":
        del sizes["num_key_value_heads"]
    config = transformers.CONFIG_MAPPING[family](**sizes | data)
    config.use_cache = False
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    return model


def test_scores_of_the_largest_gemma_2_have_another_factor(tmp_path: Path, ledger: Ledger) -> None:
    """llama.cpp goes by the number of layers: 46 are those of 27 B."""
    model = custom("gemma2", num_hidden_layers=46, head_dim=8, query_pre_attn_scalar=16, sliding_window=16)
    check("gemma2, 46 layers", model, write("gemma2", model, tmp_path / "x.gguf"), ledger)


def test_embedding_gemma_attends_to_both_sides(tmp_path: Path, ledger: Ledger) -> None:
    sizes = {"num_hidden_layers": 7, "head_dim": 16, "query_pre_attn_scalar": 16}
    model = custom("gemma3_text", use_bidirectional_attention=True, sliding_window=32, **sizes)
    tensors = held(write("gemma3_text", model, tmp_path / "x.gguf"))
    own = metadata("gemma3_text", model.config) | {"attention.sliding_window": 32}  # transformers halves its own
    check("gemma-embedding", model, write_gguf(tmp_path / "y.gguf", "gemma-embedding", own, tensors), ledger)


def test_a_gemma_3_without_a_window_rotates_alike_in_all_layers(tmp_path: Path, ledger: Ledger) -> None:
    sizes = {"num_hidden_layers": 3, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 1024}
    model = custom("gemma3_text", layer_types=["full_attention"] * 3, **sizes)
    tensors = held(write("gemma3_text", model, tmp_path / "x.gguf"))
    own = {key: value for key, value in metadata("gemma3_text", model.config).items() if "sliding" not in key}
    check("gemma3, no window", model, write_gguf(tmp_path / "y.gguf", "gemma3", own, tensors), ledger)


def test_phi3_switches_to_its_long_factors(tmp_path: Path, ledger: Ledger) -> None:
    factors = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    model = custom("phi3", num_hidden_layers=2, rope_parameters=rope, max_position_embeddings=512,
                   original_max_position_embeddings=64)  # fmt: skip
    extra = {
        "rope.scaling.original_context_length": 64,
        "rope.scaling.attn_factor": float((1 + np.log(8) / np.log(64)) ** 0.5),
    }
    tensors = held(write("phi3", model, tmp_path / "x.gguf"))
    tensors |= {
        f"rope_factors_{name}.weight": np.array(factors[f"{name}_factor"], np.float32) for name in ("short", "long")
    }
    check(
        "phi3, longrope",
        model,
        write_gguf(tmp_path / "y.gguf", "phi3", metadata("phi3", model.config) | extra, tensors),
        ledger,
    )


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("family", ["llama", "phi3", "modernbert"])
def test_quantized_tensors_are_divided_and_ordered(family: str, kind: str, tmp_path: Path, ledger: Ledger) -> None:
    """The model gets the values that the gguf package makes of the file."""
    row = gguf.GGMLQuantizationType[kind]
    model = custom(family, num_hidden_layers=2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.tensor(gguf.dequantize(gguf.quantize(parameter.numpy(), row), row)))
    written = gguf.GGUFReader(write(family, model, tmp_path / "x.gguf"))
    tensors: dict[str, Any] = {
        tensor.name: (kind, tensor.data.copy()) if len(tensor.shape) > 1 else tensor.data for tensor in written.tensors
    }
    path = write_gguf(tmp_path / "y.gguf", ARCHITECTURES[family], metadata(family, model.config), tensors)
    check(f"{family} {kind}", model, path, ledger)
