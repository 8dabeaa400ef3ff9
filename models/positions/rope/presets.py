"""PRESETS: the RoPE of well-known public models, as the keys of their config.json.

Only the keys that determine the rotation are kept, as the model was published with them. `source` names the repository
of the config.json, or the transformers class whose defaults they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULTS = "the defaults of transformers 5.23"


@dataclass(frozen=True, slots=True)
class Preset:
    """One public configuration.

    Attributes:
        name: lower case, words joined by hyphens.
        config: a fragment of config.json that config.read accepts.
        title: the model's usual name.
        source: where the values come from.
    """

    name: str
    config: Mapping[str, Any]
    title: str
    source: str


def _preset(name: str, title: str, repository: str, model_type: str, sizes: str, /, **config: Any) -> Preset:
    """A Preset; `sizes` is hidden x heads x layers, then @ and max_position_embeddings where the file gives it."""
    shape, _, longest = sizes.partition("@")
    hidden, heads, layers = (int(part) for part in shape.split("x"))
    written = {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers}
    if longest:
        written["max_position_embeddings"] = int(longest)
    source = repository if repository.startswith(DEFAULTS) else f"config.json of {repository}"
    return Preset(name, {"model_type": model_type, **written, **config}, title, source)


def _llama3(factor: float, low: float = 1.0, high: float = 4.0) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": 8192,
    }


def _deepseek(factor: float, mscale: float, trained: int = 4096) -> dict[str, Any]:
    return {
        "type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": trained,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }


_GPT_OSS_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}
_OLMO3_YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "attention_factor": 1.2079441541679836,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_QWEN_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
_CARD = ", with the rope_scaling its model card gives for long texts"

_ROWS = (
    _preset("llama-2-7b", "Llama 2 7B", "meta-llama/Llama-2-7b-hf", "llama", "4096x32x32@4096"),
    _preset("llama-2-70b", "Llama 2 70B", "meta-llama/Llama-2-70b-hf", "llama", "8192x64x80@4096"),
    _preset(
        "code-llama-7b", "Code Llama 7B", "codellama/CodeLlama-7b-hf", "llama", "4096x32x32@16384", rope_theta=1000000
    ),
    _preset("llama-3-8b", "Llama 3 8B", "meta-llama/Meta-Llama-3-8B", "llama", "4096x32x32@8192", rope_theta=500000.0),
    _preset(
        "llama-3.1-8b",
        "Llama 3.1 8B",
        "meta-llama/Llama-3.1-8B",
        "llama",
        "4096x32x32@131072",
        rope_theta=500000.0,
        rope_scaling=_llama3(8.0),
    ),
    _preset(
        "llama-3.2-1b",
        "Llama 3.2 1B",
        "meta-llama/Llama-3.2-1B",
        "llama",
        "2048x32x16@131072",
        head_dim=64,
        rope_theta=500000.0,
        rope_scaling=_llama3(32.0),
    ),
    _preset(
        "llama-3.2-3b",
        "Llama 3.2 3B",
        "meta-llama/Llama-3.2-3B",
        "llama",
        "3072x24x28@131072",
        head_dim=128,
        rope_theta=500000.0,
        rope_scaling=_llama3(32.0),
    ),
    _preset(
        "llama-3.3-70b",
        "Llama 3.3 70B Instruct",
        "meta-llama/Llama-3.3-70B-Instruct",
        "llama",
        "8192x64x80@131072",
        rope_theta=500000.0,
        rope_scaling=_llama3(8.0),
    ),
    _preset(
        "llama-4-scout",
        "Llama 4 Scout 17B-16E",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct (text_config)",
        "llama4_text",
        "5120x40x48@10485760",
        head_dim=128,
        rope_theta=500000.0,
        rope_scaling=_llama3(16.0, 1.0, 1.0),
        no_rope_layers=[],
    ),
    _preset(
        "llama-4-maverick",
        "Llama 4 Maverick 17B-128E",
        "meta-llama/Llama-4-Maverick-17B-128E (text_config)",
        "llama4_text",
        "5120x40x48@1048576",
        head_dim=128,
        rope_theta=500000.0,
        rope_scaling=None,
        no_rope_layers=[],
    ),
    _preset(
        "vicuna-7b-v1.5-16k",
        "Vicuna 7B v1.5 16k",
        "lmsys/vicuna-7b-v1.5-16k",
        "llama",
        "4096x32x32@4096",
        rope_scaling={"factor": 4.0, "type": "linear"},
    ),
    _preset(
        "deepseek-coder-6.7b",
        "DeepSeek Coder 6.7B",
        "deepseek-ai/deepseek-coder-6.7b-base",
        "llama",
        "4096x32x32@16384",
        rope_theta=100000,
        rope_scaling={"factor": 4.0, "type": "linear"},
    ),
    _preset(
        "yarn-llama-2-7b-64k",
        "YaRN Llama 2 7B 64k",
        "NousResearch/Yarn-Llama-2-7b-64k",
        "llama",
        "4096x32x32@65536",
        rope_scaling={"factor": 16.0, "original_max_position_embeddings": 4096, "type": "yarn", "finetuned": True},
    ),
    _preset("tinyllama-1.1b", "TinyLlama 1.1B", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "llama", "2048x32x22@2048"),
    _preset("yi-6b", "Yi 6B", "01-ai/Yi-6B", "llama", "4096x32x32@4096", rope_theta=5000000.0),
    _preset(
        "smollm2-1.7b", "SmolLM2 1.7B", "HuggingFaceTB/SmolLM2-1.7B", "llama", "2048x32x24@8192", rope_theta=130000
    ),
    _preset(
        "smollm3-3b",
        "SmolLM3 3B",
        "HuggingFaceTB/SmolLM3-3B",
        "smollm3",
        "2048x16x36@65536",
        rope_theta=5000000.0,
        rope_scaling=None,
        no_rope_layer_interval=4,
    ),
    _preset(
        "mistral-7b-v0.1",
        "Mistral 7B v0.1",
        "mistralai/Mistral-7B-v0.1",
        "mistral",
        "4096x32x32@32768",
        rope_theta=10000.0,
    ),
    _preset(
        "mistral-7b-v0.3",
        "Mistral 7B v0.3",
        "mistralai/Mistral-7B-v0.3",
        "mistral",
        "4096x32x32@32768",
        rope_theta=1000000.0,
    ),
    _preset(
        "mixtral-8x7b",
        "Mixtral 8x7B",
        "mistralai/Mixtral-8x7B-v0.1",
        "mixtral",
        "4096x32x32@32768",
        rope_theta=1000000.0,
    ),
    _preset("qwen2-7b", "Qwen2 7B", "Qwen/Qwen2-7B", "qwen2", "3584x28x28@131072", rope_theta=1000000.0),
    _preset("qwen2.5-7b", "Qwen2.5 7B", "Qwen/Qwen2.5-7B", "qwen2", "3584x28x28@131072", rope_theta=1000000.0),
    _preset(
        "qwen2.5-7b-yarn-128k",
        "Qwen2.5 7B Instruct, YaRN to 128k",
        f"Qwen/Qwen2.5-7B-Instruct{_CARD}",
        "qwen2",
        "3584x28x28@32768",
        rope_theta=1000000.0,
        rope_scaling=_QWEN_YARN,
    ),
    _preset("qwen3-8b", "Qwen3 8B", "Qwen/Qwen3-8B", "qwen3", "4096x32x36@40960", head_dim=128, rope_theta=1000000),
    _preset(
        "qwen3-8b-yarn-128k",
        "Qwen3 8B, YaRN to 128k",
        f"Qwen/Qwen3-8B{_CARD}",
        "qwen3",
        "4096x32x36@40960",
        head_dim=128,
        rope_theta=1000000,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ),
    _preset(
        "qwen3-30b-a3b",
        "Qwen3 30B-A3B",
        "Qwen/Qwen3-30B-A3B",
        "qwen3_moe",
        "2048x32x48@40960",
        head_dim=128,
        rope_theta=1000000.0,
    ),
    _preset(
        "qwen3-next-80b-a3b",
        "Qwen3-Next 80B-A3B",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "qwen3_next",
        "2048x16x48@262144",
        head_dim=256,
        partial_rotary_factor=0.25,
        rope_theta=10000000,
        full_attention_interval=4,
    ),
    _preset(
        "qwen2-vl-7b",
        "Qwen2-VL 7B",
        "Qwen/Qwen2-VL-7B-Instruct",
        "qwen2_vl",
        "3584x28x28@32768",
        rope_theta=1000000.0,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
    ),
    _preset(
        "qwen3-vl-8b",
        "Qwen3-VL 8B",
        "Qwen/Qwen3-VL-8B-Instruct (text_config)",
        "qwen3_vl_text",
        "4096x32x36@262144",
        head_dim=128,
        rope_theta=5000000,
        rope_scaling={"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    ),
    _preset("gemma-7b", "Gemma 7B", "google/gemma-7b", "gemma", "3072x16x28@8192", head_dim=256, rope_theta=10000.0),
    _preset(
        "gemma-2-9b", "Gemma 2 9B", "google/gemma-2-9b", "gemma2", "3584x16x42@8192", head_dim=256, rope_theta=10000.0
    ),
    _preset(
        "gemma-3-1b",
        "Gemma 3 1B",
        "google/gemma-3-1b-it",
        "gemma3_text",
        "1152x4x26@32768",
        head_dim=256,
        rope_theta=1000000,
        rope_local_base_freq=10000,
        rope_scaling=None,
        sliding_window_pattern=6,
    ),
    Preset(
        "gemma-3-4b",
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            },
        },
        "Gemma 3 4B",
        "config.json of google/gemma-3-4b-it; what it leaves out is " + DEFAULTS + " Gemma3TextConfig",
    ),
    _preset(
        "embeddinggemma-300m",
        "EmbeddingGemma 300M",
        "google/embeddinggemma-300m",
        "gemma3_text",
        "768x3x24@2048",
        head_dim=256,
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
        rope_scaling=None,
        _sliding_window_pattern=6,
    ),
    Preset(
        "gemma-4", {"model_type": "gemma4_text", "num_hidden_layers": 30}, "Gemma 4", f"{DEFAULTS} Gemma4TextConfig"
    ),
    _preset("phi-1.5", "Phi-1.5", "microsoft/phi-1_5", "phi", "2048x32x24@2048", partial_rotary_factor=0.5),
    _preset("phi-2", "Phi-2", "microsoft/phi-2", "phi", "2560x32x32@2048", partial_rotary_factor=0.4),
    _preset(
        "phi-3-mini-4k",
        "Phi-3 Mini 4k",
        "microsoft/Phi-3-mini-4k-instruct",
        "phi3",
        "3072x32x32@4096",
        rope_theta=10000.0,
        original_max_position_embeddings=4096,
        rope_scaling=None,
    ),
    _preset("phi-4", "Phi-4", "microsoft/phi-4", "phi3", "5120x40x40@16384", rope_theta=250000, rope_scaling=None),
    _preset(
        "deepseek-v2-lite",
        "DeepSeek-V2 Lite",
        "deepseek-ai/DeepSeek-V2-Lite",
        "deepseek_v2",
        "2048x16x27@163840",
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        rope_theta=10000,
        rope_scaling=_deepseek(40, 0.707),
    ),
    _preset(
        "deepseek-v3",
        "DeepSeek-V3",
        "deepseek-ai/DeepSeek-V3",
        "deepseek_v3",
        "7168x128x61@163840",
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        rope_theta=10000,
        rope_scaling=_deepseek(40, 1.0),
    ),
    _preset(
        "gpt-oss-20b",
        "gpt-oss 20B",
        "openai/gpt-oss-20b",
        "gpt_oss",
        "2880x64x24@131072",
        head_dim=64,
        rope_theta=150000,
        rope_scaling=_GPT_OSS_YARN,
    ),
    _preset(
        "gpt-oss-120b",
        "gpt-oss 120B",
        "openai/gpt-oss-120b and the defaults of transformers 5.23 GptOssConfig",
        "gpt_oss",
        "2880x64x36@131072",
        head_dim=64,
        rope_theta=150000,
        rope_scaling=_GPT_OSS_YARN,
    ),
    _preset(
        "glm-4-9b",
        "GLM-4 9B (0414)",
        "zai-org/GLM-4-9B-0414",
        "glm4",
        "4096x32x40@32768",
        head_dim=128,
        partial_rotary_factor=0.5,
        rope_theta=10000.0,
    ),
    _preset(
        "glm-4.5",
        "GLM-4.5",
        "zai-org/GLM-4.5",
        "glm4_moe",
        "5120x96x92@131072",
        head_dim=128,
        partial_rotary_factor=0.5,
        rope_theta=1000000,
    ),
    _preset(
        "command-r", "Command R v01", "CohereLabs/c4ai-command-r-v01", "cohere", "8192x64x40@8192", rope_theta=8000000.0
    ),
    _preset(
        "command-r7b",
        "Command R7B",
        "CohereLabs/c4ai-command-r7b-12-2024",
        "cohere2",
        "4096x32x32@8192",
        rope_theta=50000,
        sliding_window=4096,
        sliding_window_pattern=4,
    ),
    _preset(
        "gpt-neox-20b",
        "GPT-NeoX 20B",
        "EleutherAI/gpt-neox-20b",
        "gpt_neox",
        "6144x64x44@2048",
        rotary_emb_base=10000,
        rotary_pct=0.25,
    ),
    _preset(
        "pythia-6.9b",
        "Pythia 6.9B",
        "EleutherAI/pythia-6.9b",
        "gpt_neox",
        "4096x32x32@2048",
        rotary_emb_base=10000,
        rotary_pct=0.25,
    ),
    Preset(
        "gpt-j-6b",
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64},
        "GPT-J 6B",
        "config.json of EleutherAI/gpt-j-6b",
    ),
    Preset(
        "codegen-350m",
        {"model_type": "codegen", "n_embd": 1024, "n_head": 16, "n_layer": 20, "n_positions": 2048, "rotary_dim": 32},
        "CodeGen 350M",
        "config.json of Salesforce/codegen-350M-mono",
    ),
    _preset("falcon-7b", "Falcon 7B", "tiiuae/falcon-7b", "falcon", "4544x71x32", alibi=False),
    _preset(
        "stablelm-3b-4e1t",
        "StableLM 3B 4E1T",
        "stabilityai/stablelm-3b-4e1t",
        "stablelm",
        "2560x32x32@4096",
        partial_rotary_factor=0.25,
        rope_theta=10000,
    ),
    _preset("olmo-2-7b", "OLMo 2 7B", "allenai/OLMo-2-1124-7B", "olmo2", "4096x32x32@4096", rope_theta=500000),
    _preset(
        "olmo-3-7b",
        "Olmo 3 7B Instruct",
        "allenai/Olmo-3-7B-Instruct",
        "olmo3",
        "4096x32x32@65536",
        rope_theta=500000,
        rope_scaling=_OLMO3_YARN,
    ),
    _preset(
        "granite-3.1-8b",
        "Granite 3.1 8B",
        "ibm-granite/granite-3.1-8b-instruct",
        "granite",
        "4096x32x40@131072",
        rope_theta=5000000.0,
    ),
    _preset(
        "internlm2.5-7b",
        "InternLM2.5 7B Chat",
        "internlm/internlm2_5-7b-chat",
        "internlm2",
        "4096x32x32@32768",
        rope_theta=1000000,
        rope_scaling={"type": "dynamic", "factor": 2.0},
    ),
    _preset(
        "hunyuan-large",
        "Hunyuan Large",
        "tencent/Tencent-Hunyuan-Large",
        "hunyuan",
        "6400x80x64@131072",
        rope_theta=10000.0,
        rope_scaling={"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    ),
    _preset(
        "minimax-m2",
        "MiniMax M2",
        "MiniMaxAI/MiniMax-M2",
        "minimax_m2",
        "3072x48x62@196608",
        head_dim=128,
        rotary_dim=64,
        rope_theta=5000000,
    ),
    _preset(
        "apertus-8b",
        "Apertus 8B",
        f"{DEFAULTS} ApertusConfig",
        "apertus",
        "4096x32x32@65536",
        rope_parameters={"rope_theta": 12000000.0, **_llama3(8.0)},
    ),
    _preset(
        "bitnet-2b-4t",
        "BitNet b1.58 2B4T",
        "microsoft/bitnet-b1.58-2B-4T",
        "bitnet",
        "2560x20x30@4096",
        rope_theta=500000.0,
    ),
    _preset(
        "ernie-4.5-0.3b",
        "ERNIE 4.5 0.3B",
        "baidu/ERNIE-4.5-0.3B-PT and the defaults of transformers 5.23 Ernie4_5Config",
        "ernie4_5",
        "1024x16x18@131072",
        head_dim=128,
        rope_theta=500000.0,
    ),
    _preset(
        "helium-1",
        "Helium 1",
        f"{DEFAULTS} HeliumConfig",
        "helium",
        "2560x20x24@4096",
        head_dim=128,
        rope_theta=100000.0,
    ),
    _preset(
        "recurrentgemma-2b", "RecurrentGemma 2B", f"{DEFAULTS} RecurrentGemmaConfig", "recurrent_gemma", "2560x10x26"
    ),
    _preset("nanochat", "nanochat", f"{DEFAULTS} NanoChatConfig", "nanochat", "768x6x12@2048"),
    _preset(
        "modernbert-base",
        "ModernBERT base",
        "answerdotai/ModernBERT-base",
        "modernbert",
        "768x12x22@8192",
        global_rope_theta=160000.0,
        local_rope_theta=10000.0,
        global_attn_every_n_layers=3,
    ),
    Preset(
        "nomic-embed-text-v1.5",
        {
            "model_type": "nomic_bert",
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
        },
        "nomic-embed-text v1.5",
        "config.json of nomic-ai/nomic-embed-text-v1.5",
    ),
    _preset(
        "jina-embeddings-v3",
        "jina-embeddings v3",
        f"{DEFAULTS} JinaEmbeddingsV3Config",
        "jina_embeddings_v3",
        "1024x16x24@8194",
        rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
    ),
)
PRESETS: dict[str, Preset] = {row.name: row for row in _ROWS}
