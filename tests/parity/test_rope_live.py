"""RoPE as transformers computes it: random configs of every rope_type, every model_type's defaults, every preset.

transformers has no rope_type `ntk`; it is held to its definition elsewhere. Every other one is drawn here.
"""

import importlib
import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers.models
from numpy.typing import NDArray
from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from models.positions.arithmetic import Frequencies
from models.positions.rope.angles import cos_sin
from models.positions.rope.config import LayerRope, read
from models.positions.rope.conventions import CONVENTIONS
from models.positions.rope.frequencies import frequencies
from models.positions.rope.presets import PRESETS
from models.positions.rope.scalings import SCALINGS
from tests.models.positions.rope.test_config import WITHOUT_DEFAULTS
from tests.parity.conftest import Ledger

pytestmark = pytest.mark.parity
Config = dict[str, Any]
DRAWS = 80  # of each rope_type

# ---- configs ----


def numbers(rng: random.Random, rope_type: str, rotary_dim: int, longest: int) -> Config:
    """Random parameters of one scaling, without the theta."""
    factor = rng.choice([1.0, 2.0, 4.0, 8.0, 40.0, round(rng.uniform(1.0, 64.0), 3)])
    trained = rng.choice([512, 2048, 4096, longest])
    yarn: Config = {"factor": factor, "original_max_position_embeddings": trained}
    for name, values in {
        "beta_fast": [32, 32.0, 16.0, 64],
        "beta_slow": [1, 1.0, 2.0],
        "attention_factor": [1.0, 1.2, 0.7],
        "mscale": [0.707, 1.0],
        "mscale_all_dim": [0.707, 1.0],
        "truncate": [True, False],
    }.items():
        if rng.random() < 0.4:
            yarn[name] = rng.choice(values)
    long: Config = {
        "short_factor": [round(rng.uniform(1.0, 1.5), 4) for _ in range(rotary_dim // 2)],
        "long_factor": [round(rng.uniform(1.0, 60.0), 4) for _ in range(rotary_dim // 2)],
        "original_max_position_embeddings": trained,
    }
    if rng.random() < 0.5:
        long["factor"] = factor
    if rng.random() < 0.3:
        long["attention_factor"] = round(rng.uniform(0.8, 2.0), 3)
    low = round(rng.uniform(0.5, 3.0), 2)
    return {
        "default": {},
        "linear": {"factor": factor},
        "dynamic": {"factor": factor},
        "ntk_alpha": {"alpha": round(rng.uniform(1.0, 2000.0), 2)},
        "yarn": yarn,
        "longrope": long,
        "llama3": {
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": round(low + rng.uniform(0.5, 6.0), 2),
            "original_max_position_embeddings": trained,
        },
        "proportional": {"factor": factor, "partial_rotary_factor": rng.choice([0.25, 0.5, 1.0])},
    }[rope_type]


OF_TYPE: dict[str, tuple[str, ...]] = {  # families whose own code is asked for the type
    "default": (
        "llama",
        "phi",
        "cohere",
        "glm",
        "qwen2_vl_text",
        "qwen3",
        "modernbert",
        "nanochat",
        "gpt_neox",
        "stablelm",
    ),
    "linear": ("llama", "gemma3_text", "qwen2", "mistral", "phi", "cohere2"),
    "dynamic": ("llama", "qwen2", "granite"),
    "ntk_alpha": ("hunyuan_v1_dense", "hunyuan_v1_moe"),
    "yarn": ("llama", "qwen3", "gpt_oss", "deepseek_v2", "deepseek_v3", "olmo3", "glm4", "mistral4", "youtu"),
    "longrope": ("llama", "phi3", "phi4_multimodal", "minicpm3"),
    "llama3": ("llama", "exaone4", "llama4_text", "smollm3", "helium"),
    "proportional": ("llama", "gemma4_text"),
}


def drawn(rope_type: str, seed: int) -> Config:
    """A random config.json, in version 5's or version 4's spelling."""
    rng = random.Random(f"{rope_type} {seed}")
    kind = OF_TYPE[rope_type][seed % len(OF_TYPE[rope_type])]
    row = CONVENTIONS[kind]
    width, heads = rng.choice([32, 64, 96, 128]), rng.choice([1, 2, 4])
    longest = rng.choice([1024, 4096, 16384, 131072])
    data: Config = {
        "model_type": kind,
        "hidden_size": width * heads,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": 4,
        "max_position_embeddings": longest,
    }
    if row.head == "mla":
        data["qk_rope_head_dim"] = width
    elif row.head == "joined":
        data |= {"qk_nope_head_dim": width // 2, "qk_rope_head_dim": width // 2}
    elif kind not in ("phi", "phi3", "phi4_multimodal", "nanochat", "gpt_neox", "stablelm", "modernbert"):
        data["head_dim"] = width
    parameters = numbers(rng, rope_type, int(width * (row.partial or 1.0)), longest)
    if row.axes:
        parameters["mrope_section"] = [width // 8, width // 8, width // 4]
    if row.partial and row.partial < 1.0 and rng.random() < 0.5:
        parameters["partial_rotary_factor"] = row.partial
    theta = rng.choice([1e4, 5e5, 1e6, 1.2e7, round(rng.uniform(1e3, 1e7), 1)])
    return data | spelled(rng, kind, rope_type, parameters, theta)


def spelled(rng: random.Random, kind: str, rope_type: str, parameters: Config, theta: float) -> Config:
    """The same RoPE as version 5 or version 4 writes it; families with several tables get it on their full layers."""
    row = CONVENTIONS[kind]
    if row.tables:
        sliding = {"rope_type": "default", "rope_theta": 1e4}
        full = {"rope_type": rope_type, "rope_theta": theta, **parameters}
        return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}
    if rng.random() < 0.5 or kind == "mistral4":  # which came with version 5
        return {"rope_parameters": {"rope_type": rope_type, "rope_theta": theta, **parameters}}
    theta_key = "rotary_emb_base" if kind == "gpt_neox" else "rope_theta"
    if rope_type == "default" and not parameters:
        return {theta_key: theta}
    return {theta_key: theta, "rope_scaling": {rng.choice(["type", "rope_type"]): rope_type, **parameters}}


# ---- transformers ----

OWN_CLASS = {  # model_types whose module has several; else the first of a module that is no vision or audio tower's
    "evolla": "EvollaRotaryEmbedding",
    "qwen2_5_omni_text": "Qwen2_5OmniRotaryEmbedding",
    "qwen2_5_omni_talker": "Qwen2_5OmniRotaryEmbedding",
    "qwen3_omni_moe_talker_code_predictor": "Qwen3OmniMoeRotaryEmbedding",
}


def module_of(kind: str) -> Any:
    folder = CONFIG_MAPPING[kind].__module__.split(".")[-2]
    return importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")


def rotary_class(kind: str) -> Any:
    """The class that makes cos and sin for a model_type; None where it has none (GPT-J, RoFormer)."""
    module = module_of(kind)
    named = OWN_CLASS.get(kind)
    return next(
        (
            member
            for name, member in vars(module).items()
            if inspect.isclass(member)
            and member.__module__ == module.__name__
            and (name == named if named else name.endswith("RotaryEmbedding") and "Vision" not in name)
        ),
        None,
    )


def built(data: Config) -> Any:
    """The config object transformers makes of a config.json."""
    return CONFIG_MAPPING[data["model_type"]](**{key: value for key, value in data.items() if key != "model_type"})


def forward(
    rotary: Any, name: str, layer: LayerRope, positions: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """cos and sin [N, r/2] of a rotary module, whatever form it gives them in."""
    ids = torch.from_numpy(positions)[None]
    if layer.axes:
        ids = ids[None].expand(3, 1, -1)
    arguments = () if name == "all" else (name,)
    with torch.no_grad():
        cos_sin = rotary(torch.zeros(1, dtype=torch.float32), ids, *arguments)
    tables = (cos_sin.real, cos_sin.imag) if isinstance(cos_sin, torch.Tensor) else cos_sin
    cos, sin = (np.asarray(table)[0] for table in tables)
    half = layer.rope.rotary_dim // 2
    if cos.shape[-1] == half:
        return cos, sin
    paired = (cos[:, ::2] == cos[:, 1::2]).all()
    return (cos[:, ::2], sin[:, ::2]) if paired else (cos[:, :half], sin[:, :half])


def compare(what: str, data: Config, lengths: tuple[int, ...], ledger: Ledger, seed: int = 0) -> None:
    """Frequencies, attention factor, cos and sin of every table of a config, at random positions up to each length."""
    ropes = read(data)
    for name, layer in ropes.tables.items():
        for length in lengths:
            rotary = rotary_class(str(ropes.model_type))(built(data))
            if name != "all" and not hasattr(rotary, f"{name}_inv_freq"):
                continue  # no layer of this type
            rng = np.random.default_rng(seed + length)
            positions = np.unique(np.append(rng.integers(0, length, 24), [0, length - 1]))
            tables = forward(rotary, name, layer, positions)
            ours = frequencies(layer.rope, "parity", length)
            stem = "" if name == "all" else f"{name}_"
            check_frequencies(what, rotary, stem, ours, ledger)
            check_tables(what, ours, positions, tables, ledger)


def check_frequencies(what: str, rotary: Any, stem: str, ours: Frequencies, ledger: Ledger) -> None:
    theirs = getattr(rotary, f"{stem}inv_freq").numpy().astype(np.float64)
    if type(rotary).__name__.startswith("Ernie4_5_VL"):  # stored height, width, time; cos and sin put them back
        theirs = np.sort(theirs)[::-1]
    assert ours.inverse_frequency.shape == theirs.shape
    turning = theirs != 0
    assert (turning == (ours.inverse_frequency != 0)).all()
    off = np.abs(ours.inverse_frequency[turning] / theirs[turning] - 1.0)
    ledger.check(what, "inverse_frequency, relative", float(off.max()), 5e-7)
    scale = float(getattr(rotary, f"{stem}attention_scaling", 1.0))
    ledger.check(what, "attention_factor, relative", abs(ours.attention_factor / scale - 1.0), 1e-7)


def check_tables(
    what: str, ours: Frequencies, positions: NDArray[np.int64], tables: tuple[Any, Any], ledger: Ledger
) -> None:
    """Within what float32 angles can differ by, A (3e-7 + 5e-7 * angle)."""
    allowed = ours.attention_factor * (3e-7 + 5e-7 * positions[:, None] * ours.inverse_frequency)
    for name, got, table in zip(("cos", "sin"), cos_sin(ours, positions), tables, strict=True):
        assert got.dtype == np.float32
        assert got.shape == table.shape
        off = np.abs(got.astype(np.float64) - table) / allowed
        ledger.check(what, f"{name}, of tolerance", float(off.max()), 1.0)


# ---- the comparisons ----


def test_draws_every_rope_type_and_at_least_500_configs() -> None:
    theirs = {*ROPE_INIT_FUNCTIONS, "default", "ntk_alpha"}  # the last two live in the models' own modules
    assert set(OF_TYPE) == theirs & set(SCALINGS) == theirs
    assert len(OF_TYPE) * DRAWS >= 500


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("rope_type", OF_TYPE)
def test_a_random_config_rotates_as_in_transformers(rope_type: str, seed: int, ledger: Ledger) -> None:
    data = drawn(rope_type, seed)
    longest = data["max_position_embeddings"]
    compare(rope_type, data, (64, longest // 2, longest, longest + 1, 8 * longest, 1 << 20), ledger, seed)


ROWS = sorted(kind for kind in set(CONVENTIONS) - WITHOUT_DEFAULTS if kind not in ("internlm3",))  # has no code in 5.23


def defaults(kind: str) -> Config:
    condition = CONVENTIONS[kind].condition
    return {"model_type": kind} | ({condition[0]: condition[1]} if condition else {})


@pytest.mark.parametrize("kind", ROWS)
def test_empty_config_rotates_as_its_class(kind: str, ledger: Ledger) -> None:
    if rotary_class(kind) is not None:
        compare("class defaults", defaults(kind), (4096, 1 << 17), ledger)


@pytest.mark.parametrize("kind", ROWS)
def test_config_written_by_transformers_is_read_alike(kind: str) -> None:
    written = built(defaults(kind)).to_dict() | defaults(kind)
    bare, full = read({"text_config": defaults(kind)}), read(written)
    assert {name: table.rope for name, table in full.tables.items()} == {
        name: with_length(table, full.tables[name]) for name, table in bare.tables.items()
    }
    assert full.layers == bare.layers or CONVENTIONS[kind].pattern is None


def with_length(table: LayerRope, full: LayerRope) -> Any:
    """A rope with the longest position of another: a bare config only asks for it where it counts."""
    rope = table.rope
    return type(rope)(rope.theta, rope.rotary_dim, rope.rope_type, rope.parameters, rope.head_dim,
                      full.rope.max_position_embeddings)  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in ROWS if CONVENTIONS[kind].pattern])
@pytest.mark.parametrize("layers", [4, 5, 13])
def test_missing_layer_types_are_those_transformers_derives(kind: str, layers: int) -> None:
    data = defaults(kind) | {"num_hidden_layers": layers}
    types = built(data).layer_types if kind != "recurrent_gemma" else built(data).layers_block_type
    written = data | {"layer_types": list(types)}
    assert read(data).layers == read(written).layers


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_rotates_as_in_transformers(name: str, ledger: Ledger) -> None:
    data = dict(PRESETS[name].config)
    if "text_config" in data:
        data = {"model_type": f"{data['model_type']}_text"} | data["text_config"]
    if data["model_type"] == "qwen2_vl":
        data["model_type"] = "qwen2_vl_text"
    if data["model_type"] == "nomic_bert":  # published with code of its own, whose names transformers does not read
        data = {"model_type": "nomic_bert", "rope_theta": data["rotary_emb_base"], "head_dim": 64}
    if data["model_type"] in CONFIG_MAPPING and rotary_class(data["model_type"]) is not None:
        compare("presets", data, (4096, 1 << 17), ledger)
    else:
        assert data["model_type"] in ("gptj", "codegen", "internlm2", "hunyuan")


# ---- which layers rotate: tiny models whose rotation is listened to ----

TINY: dict[str, Config] = {
    "llama": {},
    "cohere2": {"sliding_window": 4},
    "exaone4": {"sliding_window": 4},
    "exaone4 without a window": {
        "model_type": "exaone4",
        "sliding_window": None,
        "layer_types": ["full_attention"] * 4,
    },
    "smollm3": {},
    "smollm3 every second": {"model_type": "smollm3", "no_rope_layer_interval": 2},
    "afmoe": {"num_experts": 2, "num_experts_per_tok": 1, "num_dense_layers": 4, "moe_intermediate_size": 8},
    "lfm2": {"full_attn_idxs": [1, 2], "conv_L_cache": 2, "block_multiple_of": 1},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4},
    "granitemoehybrid": {
        "position_embedding_type": "rope",
        "layer_types": ["full_attention"] * 4,
        "num_local_experts": 0,
        "shared_intermediate_size": 16,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
    },
}


def tiny(name: str) -> Config:
    kind = TINY[name].get("model_type", name)
    return {
        "model_type": kind,
        "vocab_size": 16,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | TINY[name]


@pytest.fixture
def listened(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Any], list[bool]]:
    """Runs a model and says which of its layers called the module's rotation."""

    def run(module: Any, model: Any) -> list[bool]:
        rotation = module.apply_rotary_pos_emb
        heard: set[int] = set()
        current = [-1]

        def note(*arguments: Any, **options: Any) -> Any:
            heard.add(current[0])
            return rotation(*arguments, **options)

        monkeypatch.setattr(module, "apply_rotary_pos_emb", note)
        for number, layer in enumerate(model.layers):
            layer.register_forward_pre_hook(lambda *_, number=number: current.__setitem__(0, number))
        with torch.no_grad():
            model(torch.arange(3, 9)[None])
        return [number in heard for number in range(len(model.layers))]

    return run


@pytest.mark.parametrize("name", TINY)
def test_the_same_layers_rotate_as_in_transformers(name: str, listened: Callable[[Any, Any], list[bool]]) -> None:
    data = tiny(name)
    config = built(data)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    assert listened(module_of(data["model_type"]), model) == [table is not None for table in read(data).layers]
