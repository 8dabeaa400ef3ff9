"""GGUF: the format and its blocks against the gguf package, its models against transformers.

Names of tensors are made by that package's own map, metadata as llama.cpp's converter writes it, numbers are golden.
"""

import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.artifacts.export import export
from models.checkpoints import gguf_blocks, safetensors, sentence_modules, sentence_transformers
from models.checkpoints.checkpoint import read_tensors
from models.checkpoints.gguf import read_gguf
from models.errors import BadCheckpoint
from models.families import FAMILIES, gguf_tensors, opening
from models.families.gguf_config import ARCHITECTURES
from models.recipes.steps import Attention, layers
from tests.gguf_files import random_blocks, write_gguf
from tests.golden_cases import Case, case, tiny_bert, write_json, write_tokenizer
from tests.minilm_golden import checkpoint
from tests.models.graphs.test_recipes import packed, run

Weights = dict[str, NDArray[Any]]
TABLE = "token_embd.weight"
KINDS = gguf_blocks.QUANTIZED


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_quantized_tensor_equal_gguf_package(kind: str) -> None:
    blocks = random_blocks(kind, 30, 512)
    rows = gguf_blocks.QuantizedTensor(blocks.reshape(-1), kind, (30, 512))
    whole = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(np.asarray(rows), whole)
    assert (rows.shape, rows.dtype, len(rows), rows.nbytes, rows.ndim) == (
        whole.shape,
        whole.dtype,
        30,
        whole.nbytes,
        2,
    )
    for index in (slice(3, 9), slice(0, 0), slice(25, 99), np.array([4, 4, 29])):
        np.testing.assert_array_equal(rows[index], whole[index])
    np.testing.assert_array_equal(rows[7], whole[7])


def test_non_finite_scale_gives_non_finite_values() -> None:
    blocks = random_blocks("Q6_K", 1, 512)
    blocks[0, 208:210] = np.array([np.inf], np.float16).view(np.uint8)
    blocks[0, 418:420] = np.array([np.nan], np.float16).view(np.uint8)
    assert not np.isfinite(gguf_blocks.QuantizedTensor(blocks, "Q6_K", (1, 512))[:]).any()


def test_missing_gguf_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "x.gguf", "llama", {}, {"a": np.ones(4, np.float32)})
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(BadCheckpoint, match=r"need gguf, .* pip install 'inlay\[export\]'"):
        read_gguf(path)


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_reads_file_like_gguf_package(alignment: int, tmp_path: Path) -> None:
    tensors = {
        TABLE: ("Q4_K", random_blocks("Q4_K", 5, 512)),
        "a": np.arange(7, dtype=np.float32),
        "b": np.arange(12, dtype=np.float16).reshape(3, 4),
        "c": ("BF16", np.arange(8, dtype=np.float32).reshape(2, 4)),
        "d": np.arange(24, dtype=np.int32).reshape(2, 3, 4),
    }
    metadata = {"block_count": 3, "rope.freq_base": 5e5, "tokenizer.ggml.tokens": ["a", "ß"], "causal": False,
                "attention.head_count": [4, 4, 4]}  # fmt: skip
    path = write_gguf(tmp_path / "x.gguf", "llama", metadata, tensors, alignment)
    header, expected = read_gguf(path), gguf.GGUFReader(path)
    assert list(header.tensors) == [tensor.name for tensor in expected.tensors]
    for tensor in expected.tensors:
        mine = header.tensors[tensor.name]
        assert (mine.offset, mine.bytes) == (tensor.data_offset, tensor.n_bytes)
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert (mine.stored or mine.dtype) == tensor.tensor_type.name
    kept = {key: field.contents() for key, field in expected.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata == kept


# ---- models: golden checkpoints as the converter would write them

ARCHITECTURE_OF = {
    "gpt_neox": "gptneox",
    "mixtral": "llama",
    "modernbert": "modern-bert",
    "nomic_bert": "nomic-bert",
    "roberta": "bert",
    "distilbert": "bert",
    "deepseek_v3": "deepseek2",
    "hunyuan_v1_dense": "hunyuan-dense",
}
CASES = ("bert", "bloom", "deepseek_v3", "distilbert", "falcon", "gemma", "gemma_bf16", "gpt2", "gpt_neox",
         "hunyuan_v1_dense", "llama", "llama_tied", "modernbert", "mpt", "nomic_bert", "olmo2", "phi3", "qwen3",
         "smollm3", "t5_encoder")  # fmt: skip


def first(config: dict[str, Any], *names: str, otherwise: Any = None) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), otherwise)


def metadata_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return what convert_hf_to_gguf.py writes of a config, as far as these cases need it."""
    heads = first(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    hidden = first(config, "hidden_size", "n_embd", "d_model", "dim", "n_embed")
    rope = config.get("rope_parameters") or {}
    head = first(config, "head_dim", otherwise=hidden // heads)
    rotated = config.get("qk_rope_head_dim") or int(head * first(rope, "partial_rotary_factor", otherwise=1.0))
    eps = first(config, "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rms_norm_eps", otherwise=1e-12)
    return {
        "embedding_length": hidden,
        "block_count": first(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "context_length": first(config, "max_position_embeddings", "n_positions", "max_seq_len", otherwise=512),
        "attention.head_count": heads,
        "attention.key_length": head,
        "attention.layer_norm_epsilon": eps,
        "rope.freq_base": float(first(rope, "rope_theta", otherwise=first(config, "rope_theta", otherwise=1e4))),
        "rope.dimension_count": rotated,
        **(
            {"tokenizer.ggml.padding_token_id": config["pad_token_id"]}
            if (config.get("pad_token_id") or -1) >= 0
            else {}
        ),
    }


def as_gguf(golden: Case, path: Path) -> Path:
    """Write a golden checkpoint under GGUF's tensor names, without tensors that have none."""
    kind = golden.config["model_type"]
    architecture = ARCHITECTURE_OF.get(kind, kind)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, 8)
    weights = {}
    for name, array in golden.weights.items():
        inner = name.partition(".")[2]  # the converter strips the prefix of some families
        gguf_names = [names.get_name(each, try_suffixes=(".weight", ".bias")) for each in (name, inner)]
        for new in filter(None, gguf_names):
            weights[new] = array if golden.params["dtype"] != "bfloat16" else ("BF16", array)
    extra: dict[str, Any] = {"expert_gating_func": 2} if kind == "deepseek_v3" else {}
    if kind == "mpt":
        extra = {"attention.max_alibi_bias": 8.0}
    return write_gguf(path, architecture, metadata_of(golden.config) | extra, weights)


@pytest.mark.parametrize("name", CASES)
def test_gguf_input_layer_equals_transformers(name: str, tmp_path: Path) -> None:
    golden = case(f"input_{name}")
    card = export(as_gguf(golden, tmp_path / "x.gguf"), tmp_path / "out")
    feeds = packed(golden, card)
    graph = "embedding_typed" if card.types == "optional" and "token_type_ids" in golden.arrays else "embedding"
    embeddings = run(tmp_path / "out", card, graph, feeds)["input_embeddings"]
    expected = golden.arrays["hidden_states"].reshape(embeddings.shape)
    np.testing.assert_allclose(embeddings, expected, **golden.tolerance["hidden_states"])


def test_gguf_roberta_numbers_positions_from_zero(tmp_path: Path) -> None:
    golden = case("input_roberta")
    first_row = golden.config["pad_token_id"] + 1
    cut = {
        name: array[first_row:] if "position_embeddings" in name else array for name, array in golden.weights.items()
    }
    arrays = golden.arrays | {f"w:{name}": array for name, array in cut.items()}
    path = as_gguf(Case(golden.name, golden.kind, golden.params, golden.tolerance, arrays), tmp_path / "x.gguf")
    card = export(path, tmp_path / "out")
    feeds = packed(golden, card)
    kept = golden.arrays["attention_mask"].reshape(-1).astype(bool)
    embeddings = run(tmp_path / "out", card, "embedding", feeds)["input_embeddings"]
    expected = golden.arrays["hidden_states"].reshape(embeddings.shape)
    rows = [
        row for row in range(len(kept)) if kept[row] and golden.arrays["attention_mask"].reshape(-1)[: row + 1].all()
    ]
    assert rows
    np.testing.assert_allclose(embeddings[rows], expected[rows], **golden.tolerance["hidden_states"])


def test_gguf_encoder_is_exported_with_its_blocks(tmp_path: Path) -> None:
    card = export(write_gguf(tmp_path / "x.gguf", "bert", BERT, bert_tensors()), tmp_path / "out")
    assert "encoder" in card.graphs
    written = safetensors.tensors_of(tmp_path / "out/weights.safetensors")
    for name, array in tiny_bert(2).items():
        np.testing.assert_array_equal(written[name], array)


def llama_blocks() -> Weights:
    random = np.random.default_rng(2)
    sizes = {"attn_q": 512, "attn_k": 512, "attn_v": 512, "attn_output": 512, "ffn_up": 64, "ffn_gate": 64}
    blocks = {f"blk.0.{name}.weight": random.normal(0, 0.05, (rows, 512)) for name, rows in sizes.items()}
    blocks |= {f"blk.0.{name}.weight": np.ones(512) for name in ("attn_norm", "ffn_norm")}
    blocks |= {"blk.0.ffn_down.weight": random.normal(0, 0.1, (512, 64)), "output_norm.weight": np.ones(512)}
    return {name: own.astype(np.float32) for name, own in ({TABLE: random.normal(size=(20, 512))} | blocks).items()}


def test_rows_of_queries_and_keys_lie_in_order_again(tmp_path: Path) -> None:
    """llama.cpp lays row i + 64 of a head of 128 behind row i: LlamaModel.permute of its converter."""
    held = llama_blocks()
    path = write_gguf(tmp_path / "x.gguf", "llama", LLAMA | {"feed_forward_length": 64}, held)
    export(path, tmp_path / "out", encoder=True)
    written = safetensors.tensors_of(tmp_path / "out/weights.safetensors")
    for name in "qk":
        file = held[f"blk.0.attn_{name}.weight"].reshape(4, 128, 512)
        own = written[f"layers.0.self_attn.{name}_proj.weight"].reshape(4, 128, 512)
        np.testing.assert_array_equal(own[:, :64], file[:, ::2])
        np.testing.assert_array_equal(own[:, 64:], file[:, 1::2])
    np.testing.assert_array_equal(written["layers.0.self_attn.v_proj.weight"], held["blk.0.attn_v.weight"])


@pytest.mark.parametrize("causal", [True, False])
def test_a_gguf_says_whether_its_decoder_is_causal(causal: bool, tmp_path: Path) -> None:
    metadata = LLAMA | {"feed_forward_length": 64, "attention.causal": causal}
    card = export(write_gguf(tmp_path / "x.gguf", "llama", metadata, llama_blocks()), tmp_path / "out", encoder=True)
    assert [step.right for step in layers(card.encoder) if isinstance(step, Attention)] == [0 if causal else None]


def test_norms_of_gemma_lose_the_one_that_files_add(tmp_path: Path) -> None:
    held = {"blk.0.attn_norm.weight": np.linspace(0.5, 3, 512, dtype=np.float32), TABLE: np.ones((20, 512), np.float32)}
    with opening.opened(write_gguf(tmp_path / "x.gguf", "gemma", LLAMA, held)) as opened:
        norm = read_tensors(opened, ["layers.0.input_layernorm.weight"])["layers.0.input_layernorm.weight"]
    np.testing.assert_array_equal(norm[:] + np.float32(1), held["blk.0.attn_norm.weight"])


UNREADABLE: dict[str, tuple[str, dict[str, Any], Weights, str]] = {
    "experts": ("llama", {"expert_count": 8}, {}, "llama.expert_count is 8: mixture of experts"),
    "another tensor": (
        "llama",
        {},
        {"blk.0.attn_q_norm.weight": np.ones(128, np.float32)},
        "the file's 'blk.0.attn_q_norm.weight' is not read",
    ),
    "a projection of tokens": (
        "llama",
        {},
        {"dense_2.weight": np.ones((8, 512), np.float32)},
        "the file's 'dense_2.weight' is not read",
    ),
    "a factor of the scores": ("llama", {"attention.scale": 0.5}, {}, "the file has llama.attention.scale, which"),
    "prediction layers": ("glm4", {"nextn_predict_layers": 1}, {}, "the file has glm4.nextn_predict_layers"),
    "three axes": ("glm4", {"rope.dimension_sections": [8, 12, 12, 0]}, {}, "glm4.rope.dimension_sections"),
    "OLMo 3": ("olmo2", {"attention.sliding_window": 64}, {}, "does not say how the layers of an OLMo 3"),
    "an architecture": ("gptj", {}, {}, "how llama.cpp stores the blocks of 'gptj' is not known here"),
    "no pairs": (
        "llama",
        {"attention.head_count": 512},
        {},
        "'blk.0.attn_q.weight' has 512 rows, which are no pairs of 512 heads",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_blocks_that_cannot_be_read_are_refused(name: str, tmp_path: Path) -> None:
    architecture, metadata, more, fault = UNREADABLE[name]
    tensors = llama_blocks() | more
    path = write_gguf(tmp_path / "x.gguf", architecture, LLAMA | {"feed_forward_length": 64} | metadata, tensors)
    with pytest.raises(BadCheckpoint, match=re.escape(fault)):
        export(path, tmp_path / "out", encoder=True)
    if name != "no pairs":
        assert fault in (export(path, tmp_path / "alone").no_blocks_reason or "")


LLAMA = {"embedding_length": 512, "block_count": 1, "attention.head_count": 4, "context_length": 4096}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K"])
def test_quantized_table_is_exported_as_values(kind: str, tmp_path: Path) -> None:
    blocks = random_blocks(kind, 50, 512)
    path = write_gguf(tmp_path / "x.gguf", "llama", LLAMA, {TABLE: (kind, blocks)})
    card = export(path, tmp_path / "out")
    written = safetensors.tensors_of(tmp_path / "out/weights.safetensors")["embed_tokens.weight"]
    np.testing.assert_array_equal(written, gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind]))
    assert (card.vocab_size, card.hidden_size, card.dtype, card.source) == (50, 512, "float32", "x.gguf")


@pytest.mark.parametrize(("kind", "dtype"), [("F16", np.float16), ("BF16", ml_dtypes.bfloat16)])
def test_half_precision_table_keeps_dtype(kind: str, dtype: Any, tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(20, 512)).astype(np.float32)
    export(write_gguf(tmp_path / "x.gguf", "llama", LLAMA, {TABLE: (kind, values)}), tmp_path / "out")
    written = safetensors.tensors_of(tmp_path / "out/weights.safetensors")["embed_tokens.weight"]
    np.testing.assert_array_equal(written, values.astype(dtype))


def test_large_quantized_table_is_never_whole_in_memory(tmp_path: Path) -> None:
    rows, width = 32_000, 1024
    blocks = np.zeros((rows, width // 256 * 144), np.uint8)
    path = write_gguf(tmp_path / "x.gguf", "llama", LLAMA | {"embedding_length": width}, {TABLE: ("Q4_K", blocks)})
    with opening.opened(path) as opened:
        table = read_tensors(opened, ["embed_tokens.weight"])["embed_tokens.weight"]
        tracemalloc.start()
        total = sum(len(chunk) for _, chunk in safetensors.row_chunks(table))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert total == rows
    assert peak < 5 * safetensors.CHUNK_BYTES < table.nbytes


# ---- RoPE


def rope_card(tmp_path: Path, architecture: str, metadata: dict[str, Any], tensors: Weights | None = None) -> Any:
    table = {TABLE: np.ones((8, metadata["embedding_length"]), np.float32)}
    return export(write_gguf(tmp_path / "x.gguf", architecture, metadata, table | (tensors or {})), tmp_path / "out")


def llama3_factors(theta: float, dim: int, factor: float) -> NDArray[np.float32]:
    """Return rope_freqs as LlamaModel.generate_extra_tensors of llama.cpp's converter computes it."""
    frequencies = 1.0 / (theta ** (np.arange(0, dim, 2, dtype=np.float32) / dim))
    low, high, context = 1.0, 4.0, 8192
    factors = []
    for frequency in frequencies:
        wavelength = 2 * np.pi / frequency
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


ROPE = {"embedding_length": 512, "block_count": 1, "attention.head_count": 4, "context_length": 131072,
        "rope.dimension_count": 128, "rope.freq_base": 5e5}  # fmt: skip


def test_recognizes_llama3_factors(tmp_path: Path) -> None:
    golden = case("rope_llama3_f8_31")
    factors = llama3_factors(5e5, 128, 8.0)
    rope = rope_card(tmp_path, "llama", ROPE, {"rope_freqs.weight": factors}).encodings.ropes["all"]
    assert rope.rope.rope_type == "llama3"
    np.testing.assert_allclose(rope.inverse_frequency, golden.arrays["inv_freq"], rtol=3e-7, atol=3e-13)


def test_other_factors_divide_each_channel(tmp_path: Path) -> None:
    factors = np.linspace(1, 3, 64, dtype=np.float32)
    rope = rope_card(tmp_path, "llama", ROPE, {"rope_freqs.weight": factors}).encodings.ropes["all"]
    expected = 5e5 ** (-np.arange(64) / 64) / factors
    np.testing.assert_allclose(rope.inverse_frequency, expected, rtol=1e-6, atol=1e-12)
    assert rope.attention_factor == 1


def test_reads_longrope_lists_and_attention_factor(tmp_path: Path) -> None:
    golden = case("rope_longrope_phi3mini128k")
    parameters = golden.params["config"]["rope_parameters"] if "config" in golden.params else golden.params
    parameters = parameters.get("rope_parameters", parameters)
    short, long = (np.array(parameters[f"{name}_factor"], np.float32) for name in ("short", "long"))
    metadata = ROPE | {"embedding_length": 8 * 2 * len(short), "attention.head_count": 8, "rope.freq_base": 1e4,
                       "rope.dimension_count": 2 * len(short), "rope.scaling.original_context_length": 4096,
                       "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(32) / np.log(4096)))}  # fmt: skip
    tensors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    rope = rope_card(tmp_path, "phi3", metadata, tensors).encodings.ropes["all"]
    np.testing.assert_allclose(
        rope.inverse_frequency, 1e4 ** (-np.arange(len(short)) / len(short)) / short, rtol=1e-6, atol=1e-12
    )
    assert rope.attention_factor == pytest.approx(np.sqrt(1 + np.log(32) / np.log(4096)), rel=1e-6)


def test_reads_linear_and_yarn_scalings(tmp_path: Path) -> None:
    linear = ROPE | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    rope = rope_card(tmp_path / "a", "llama", linear).encodings.ropes["all"]
    np.testing.assert_allclose(rope.inverse_frequency, 5e5 ** (-np.arange(64) / 64) / 4, rtol=1e-6, atol=1e-12)
    yarn = ROPE | {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32768,
    }
    rope = rope_card(tmp_path / "b", "qwen2", yarn).encodings.ropes["all"]
    assert dict(rope.rope.parameters)["original_max_position_embeddings"] == 32768
    assert rope.attention_factor == pytest.approx(0.1 * np.log(4) + 1)


def test_reads_mrope_sections(tmp_path: Path) -> None:
    metadata = ROPE | {"rope.dimension_sections": [8, 28, 28, 0]}
    rope = rope_card(tmp_path, "qwen2vl", metadata).encodings.ropes["all"]
    assert rope.sections == (8, 28, 28)


def test_gemma3_has_rope_table_per_layer_type(tmp_path: Path) -> None:
    metadata = ROPE | {"rope.freq_base": 1e6, "attention.key_length": 128, "attention.sliding_window": 512,
                       "block_count": 6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}  # fmt: skip
    ropes = rope_card(tmp_path, "gemma3", metadata).encodings.ropes
    plain = np.arange(64) / 64
    np.testing.assert_allclose(ropes["full_attention"].inverse_frequency, 1e6**-plain / 8, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(ropes["sliding_attention"].inverse_frequency, 1e4**-plain, rtol=1e-6, atol=1e-12)


def test_partial_rotary_factor_gives_exact_channels() -> None:
    from models.checkpoints.gguf_rope import _share

    assert all(int(head * _share(part, head)) == part for head in range(2, 257) for part in range(2, head + 1))


# ---- names


def test_every_architecture_exists_in_llama_cpp() -> None:
    assert set(ARCHITECTURES) <= set(gguf.MODEL_ARCH_NAMES.values())


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_tensor_names_equal_gguf_package(architecture: str) -> None:
    row = ARCHITECTURES[architecture]
    family = FAMILIES[row.model_type]
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    held = {gguf.TENSOR_NAMES[tensor].split(".")[0] for tensor in gguf.MODEL_TENSORS[number]}
    names = gguf.get_tensor_name_map(number, 2)
    tensor_names = gguf_tensors.input_names(family, row.head)
    if row.whole and not family.stored:  # else the names of joined tensors are the file's alone
        tensor_names |= gguf_tensors.block_names(family, 2, row.prefix)
    assert TABLE in tensor_names
    for theirs, ours in tensor_names.items():
        if theirs.split(".")[0] in held and (theirs != "token_types.weight" or family.types == "zeros"):
            spelled = [names.get_name(each + ours, try_suffixes=(".weight", ".bias")) for each in (family.prefix, "")]
            assert theirs in spelled, (ours, spelled)


def test_rejects_unknown_architecture_and_lists_known(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "wavtokenizer-dec", {}, {TABLE: np.ones((2, 32), np.float32)})
    with pytest.raises(BadCheckpoint, match=r"x\.gguf has general.architecture 'wavtokenizer-dec'; known are apertus"):
        export(path, tmp_path / "out")


# ---- files beside the model

BERT = {"embedding_length": 32, "block_count": 2, "attention.head_count": 4, "feed_forward_length": 64,
        "attention.layer_norm_epsilon": 1e-12}  # fmt: skip
TEXTS = ("Hello, world!", "Ünïcödé façade — naïve", "unaffordable 12345 tokenizations", "日本 [MASK] ok", "", "x" * 300)


def bert_tensors() -> dict[str, Any]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, 2)
    return {names.get_name(name, try_suffixes=(".weight", ".bias")): array for name, array in tiny_bert(2).items()}


def vocabulary(words: list[str], special: dict[str, str]) -> dict[str, Any]:
    """Return the metadata that BertModel.set_vocab of llama.cpp's converter writes for a vocab.txt."""
    kinds = [3 if word in special.values() else 1 for word in words]
    tokens = [
        word if kind == 3 else word[2:] if word.startswith("##") else "\u2581" + word
        for word, kind in zip(words, kinds, strict=True)
    ]
    ids = {f"tokenizer.ggml.{key}_token_id": words.index(word) for key, word in special.items()}
    return {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds} | ids


def test_wordpiece_vocabulary_restores_tokenizer(tmp_path: Path) -> None:
    original = Tokenizer.from_file(str(checkpoint() / "tokenizer.json"))
    original.no_truncation()
    original.no_padding()
    words = [original.id_to_token(number) for number in range(original.get_vocab_size())]
    special = {"cls": "[CLS]", "seperator": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]", "mask": "[MASK]"}
    path = write_gguf(tmp_path / "x.gguf", "bert", BERT | vocabulary(words, special), bert_tensors())
    with opening.located(path) as place:
        made = Tokenizer.from_file(str(place.folder / "tokenizer.json"))
    for text in TEXTS:
        assert made.encode(text).ids == original.encode(text).ids


def test_pooling_is_read_and_vectors_are_normalized(tmp_path: Path) -> None:
    card = export(write_gguf(tmp_path / "x.gguf", "bert", BERT | {"pooling_type": 1}, bert_tensors()), tmp_path / "out")
    assert card.pooling is not None
    assert (card.pooling.mode, card.pooling.normalize, card.tokenizer) == ("mean", True, None)


def test_projections_behind_the_pooling_become_modules(tmp_path: Path) -> None:
    """As the converter writes EmbeddingGemma's with --sentence-transformers-dense-modules."""
    weights = [np.random.default_rng(3).normal(size=size).astype(np.float32) for size in ((64, 32), (32, 64))]
    tensors = {TABLE: np.ones((8, 32), np.float32), "dense_2.weight": weights[0], "dense_3.weight": weights[1]}
    metadata = {"embedding_length": 32, "attention.head_count": 2, "pooling_type": 1}
    with opening.located(write_gguf(tmp_path / "x.gguf", "gemma-embedding", metadata, tensors)) as place:
        kinds = [kind for kind, _ in sentence_transformers.modules(place.folder)]
        found = sentence_modules.read_modules(place.folder, 32)
        assert kinds == ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
        assert (found.inner, found.width) == (32, 32)
        read = safetensors.read(found.tensors.values())
        np.testing.assert_array_equal(read["modules.2_Dense.linear.weight"], weights[0])
        np.testing.assert_array_equal(read["modules.3_Dense.linear.weight"], weights[1])


def test_embedded_tokenizer_json_is_kept(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "embedded.json")
    whole = (tmp_path / "embedded.json").read_text()
    path = write_gguf(tmp_path / "x.gguf", "bert", BERT | {"tokenizer.huggingface.json": whole}, bert_tensors())
    export(path, tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").read_text() == whole


def test_tokenizer_json_beside_the_file_wins(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    write_json(tmp_path / "tokenizer_config.json", {"truncation_side": "left"})
    path = write_gguf(tmp_path / "x.gguf", "bert", BERT | {"tokenizer.huggingface.json": "{}"}, bert_tensors())
    assert export(path, tmp_path / "out").cut_side == "left"
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_other_vocabularies_give_no_tokenizer(tmp_path: Path) -> None:
    metadata = LLAMA | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]}
    path = write_gguf(tmp_path / "x.gguf", "llama", metadata, {TABLE: np.ones((8, 512), np.float32)})
    assert export(path, tmp_path / "out").tokenizer is None


# ---- parts


def test_reads_split_model_from_first_part(tmp_path: Path) -> None:
    table, norm = np.ones((8, 512), np.float32), np.full(512, 2, np.float32)
    for number, tensors in enumerate(({TABLE: table}, {"output_norm.weight": norm})):
        split = {"split.count": 2, "split.no": number}
        write_gguf(tmp_path / f"x-{number + 1:05}-of-00002.gguf", "llama", LLAMA | split, tensors)
    with opening.opened(tmp_path / "x-00001-of-00002.gguf") as opened:
        read = read_tensors(opened, ["embed_tokens.weight", "norm.weight"])
    np.testing.assert_array_equal(read["norm.weight"], norm)
    with pytest.raises(BadCheckpoint, match="give the first of them"):
        read_gguf(tmp_path / "x-00002-of-00002.gguf")
    (tmp_path / "x-00002-of-00002.gguf").unlink()
    with pytest.raises(BadCheckpoint, match=r"x-00002-of-00002\.gguf is not beside it"):
        read_gguf(tmp_path / "x-00001-of-00002.gguf")
