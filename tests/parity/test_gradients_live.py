"""Gradients of input layers and of tied tables against autograd through live transformers models, in float64."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from models.artifacts import weights as stored
from models.artifacts.card import Card
from models.artifacts.export import export
from models.families import FAMILIES as KNOWN
from models.families.padding import padding_rows
from models.positions.learned import PositionRule, positions
from models.recipes.steps import Embed
from models.reference.gradient import Packed, SparseRows, backward
from models.tables.cross_entropy import Rule, output_side
from tests.parity.conftest import Ledger

pytestmark = pytest.mark.parity
LENGTH, ROWS, PAD = 7, 3, 3
TOLERANCE = 2e-6  # transformers' RMSNorm and scalings stay in float32 even in a float64 model
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
SIZES |= {"max_position_embeddings": 24, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2}
OWN = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 24}
D_MODEL = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
D_MODEL |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "scale_embedding": True}


@dataclass(frozen=True)
class Family:
    """One family: its transformers class, where its blocks are, and what its config needs besides SIZES."""

    model: str
    blocks: str
    types: int = 0
    runs: str = ""
    masked: bool = True
    config: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "bert": Family("BertModel", "encoder.layer", 2),
    "roberta": Family("RobertaModel", "encoder.layer", 1),
    "mpnet": Family("MPNetModel", "encoder.layer", config={"pad_token_id": 1}),
    "distilbert": Family(
        "DistilBertModel", "transformer.layer", config={"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
    ),
    "electra": Family("ElectraModel", "encoder.layer", 2, config={"embedding_size": 12}),
    "albert": Family("AlbertModel", "encoder.albert_layer_groups.0.albert_layers", 2, config={"embedding_size": 12}),
    "deberta-v2": Family(
        "DebertaV2Model",
        "encoder.layer",
        2,
        config={"type_vocab_size": 2, "position_biased_input": True, "embedding_size": 12},
    ),
    "rembert": Family("RemBertModel", "encoder.layer", 2, config={"input_embedding_size": 12}),
    "modernbert": Family("ModernBertModel", "layers", config={"global_attn_every_n_layers": 1}),
    "gpt2": Family("GPT2Model", "h", 40, config=OWN),
    "bloom": Family("BloomModel", "h", config=OWN),
    "opt": Family("OPTModel", "decoder.layers", config={"word_embed_proj_dim": 12, "ffn_dim": 24}),
    "llama": Family("LlamaModel", "layers"),
    "gemma": Family("GemmaModel", "layers", config={"head_dim": 8, "num_key_value_heads": 1}),
    "granite": Family("GraniteModel", "layers", config={"embedding_multiplier": 3.0}),
    "nanochat": Family("NanoChatModel", "layers", config={"num_key_value_heads": 2}),
    "t5": Family(
        "T5EncoderModel",
        "encoder.block",
        config={"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2},
    ),
    "bart": Family("BartModel", "encoder.layers", runs="encoder", config=D_MODEL),
    "marian": Family("MarianModel", "encoder.layers", runs="encoder", config=D_MODEL | {"decoder_start_token_id": PAD}),
    "m2m_100": Family("M2M100Model", "encoder.layers", runs="encoder", config=D_MODEL),
}


def made(family: str, seed: int, folder: Path, kind: str = "") -> Any:
    """A random float32 model on disk, and the same in float64."""
    torch.manual_seed(seed)
    row = FAMILIES[family]
    cls = getattr(transformers, kind or row.model)
    model = cls(cls.config_class(**SIZES | row.config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name or family in ("bart", "opt"):  # Marian's and M2M100's are computed
                parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.ndim > 1 else 1.0))
    model.save_pretrained(folder)
    return model.double().eval()


def batch(family: str, seed: int) -> dict[str, torch.Tensor]:
    draw, row = random.Random(f"{family} {seed}"), FAMILIES[family]
    pad = row.config.get("pad_token_id", PAD)
    ids = [[draw.choice((pad, 5, draw.randrange(4, 40))) for _ in range(LENGTH)] for _ in range(ROWS)]
    inputs = {"input_ids": torch.tensor(ids)}
    if row.masked:
        inputs["attention_mask"] = torch.tensor([[1] * (LENGTH - cut) + [0] * cut for cut in (0, 2, 3)])
    if row.types:
        inputs["token_type_ids"] = torch.tensor(
            [[draw.randrange(row.types) for _ in range(LENGTH)] for _ in range(ROWS)]
        )
    return inputs


def before_the_blocks(family: str, model: Any, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, Any]:
    """The rows the first block reads, with their history, and the model's output."""
    seen: list[torch.Tensor] = []

    def keep(_module: Any, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    base = getattr(model, model.base_model_prefix, model)
    hook = base.get_submodule(FAMILIES[family].blocks)[0].register_forward_pre_hook(keep, with_kwargs=True)
    output = model.get_submodule(FAMILIES[family].runs)(**inputs)
    hook.remove()
    return seen[0], output


def exported(folder: Path) -> tuple[Card, Any]:
    card = export(folder / "checkpoint", folder / "out")
    return card, stored.tensors(folder / "out", card)


def as_packed(card: Card, inputs: dict[str, torch.Tensor]) -> Packed:
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    ids, mask = arrays["input_ids"], arrays.get("attention_mask", np.ones_like(arrays["input_ids"]))
    types = arrays.get("token_type_ids", np.zeros_like(ids) if card.types == "zeros" else None)
    places = [positions(card.position, *row) for row in zip(ids, mask, strict=True)]
    flat = None if types is None else types.reshape(-1)
    return Packed(ids.reshape(-1), np.concatenate(places), flat, mask.reshape(-1).astype(bool))


def inlay(card: Card, weights: Any, inputs: dict[str, torch.Tensor], upstream: torch.Tensor) -> dict[str, Any]:
    """Every gradient, dense, by tensor name."""
    padding = padding_rows(card.family, card.recipe, card.position, card.pad_id)
    rows = upstream.numpy().reshape(-1, upstream.shape[-1])
    tables, parameters = backward(card.recipe, weights, as_packed(card, inputs), rows, padding)
    return {name: dense(sparse, weights[name].shape) for name, sparse in tables.items()} | parameters


def dense(sparse: SparseRows, shape: tuple[int, ...]) -> Any:
    gradient = np.zeros(shape)
    gradient[sparse.indices] = sparse.rows
    return gradient


def relative(computed: Any, expected: Any) -> float:
    assert computed.shape == expected.shape
    return float(abs(computed - expected).max() / max(1.0, abs(expected).max()))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_gradient_of_an_input_layer_is_that_of_autograd(
    family: str, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    model = made(family, seed, tmp_path / "checkpoint")
    inputs = batch(family, seed)
    rows, _ = before_the_blocks(family, model, inputs)
    upstream = torch.randn(rows.shape, dtype=torch.float64)
    card, weights = exported(tmp_path)
    computed = inlay(card, weights, inputs, upstream)
    live = dict(model.named_parameters())
    named = [name for name in computed if name in live]
    assert len(named) == len(computed), set(computed) - set(live)
    expected = torch.autograd.grad(rows, [live[name] for name in named], upstream, allow_unused=True)
    for name, gradient in zip(named, expected, strict=True):
        expected_gradient = np.zeros(live[name].shape) if gradient is None else gradient.numpy()
        ledger.check(
            family, f"gradient {name.rpartition('.')[2]}", relative(computed[name], expected_gradient), TOLERANCE
        )


TIED = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel", "granite": "GraniteForCausalLM"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", TIED)
def test_the_total_of_a_tied_table_is_that_of_autograd(
    family: str, seed: int, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "tie_word_embeddings", True)
    model = made(family, seed, tmp_path / "checkpoint", TIED[family])
    inputs = batch(family, seed) | {"labels": torch.randint(0, 40, (ROWS, LENGTH))}
    inputs["labels"][0, 3] = -100
    inputs.pop("attention_mask")
    rows, output = before_the_blocks(family, model, inputs | {"output_hidden_states": True})
    rows.retain_grad()
    output.hidden_states[-1].retain_grad()
    output.loss.backward()
    card, weights = exported(tmp_path)
    table = next(step.table for step in card.recipe if isinstance(step, Embed))
    labels = inputs.pop("labels")
    hidden = output.hidden_states[-1].detach().numpy()[:, :-1].reshape(-1, 16)  # transformers shifts labels by one
    head = card.head
    assert head is not None
    assert (head.matrix, head.tied) == (table, True)
    rule = Rule(head.before, head.after, head.cap)
    side = output_side(weights[table], hidden.astype(np.float64), labels[:, 1:].reshape(-1).numpy(), "mean", rule)
    total = side.rows(np.arange(40)) + inlay(card, weights, inputs, rows.grad)[table]
    expected = model.get_input_embeddings().weight.grad.numpy()
    ledger.check(family, "tied gradient", relative(total, expected), TOLERANCE)
    ledger.check(family, "loss", abs(side.loss - output.loss.item()), TOLERANCE)
    upstream = output.hidden_states[-1].grad.numpy()[:, :-1].reshape(-1, 16)
    ledger.check(family, "hidden gradient", relative(side.hidden_gradient, upstream), TOLERANCE)


NEEDS: dict[str, dict[str, Any]] = {  # what their config classes leave open
    "esm": {"vocab_size": 33},
    "hunyuan_v1_dense": {"head_dim": 64},
    "ministral": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64},
    "nemotron": {"num_key_value_heads": 8},
}
CLASSES = {"siglip_text_model": "SiglipTextModel", "siglip2_text_model": "Siglip2TextModel"}  # in no automatic mapping


@pytest.mark.parametrize("model_type", sorted(KNOWN.keys() & transformers.CONFIG_MAPPING.keys()))
def test_word_table_has_a_padding_row_as_in_transformers(model_type: str) -> None:
    kind = transformers.CONFIG_MAPPING[model_type]
    config = kind(**NEEDS.get(model_type, {}))
    config.pad_token_id = 7
    name = CLASSES.get(model_type)
    model_class = getattr(transformers, name) if name else transformers.MODEL_MAPPING[kind]
    with torch.device("meta"):
        model = (model_class[0] if isinstance(model_class, tuple) else model_class)(config)
    rows = padding_rows(model_type, (Embed("word"),), PositionRule("arange", 0, None), 7)
    assert rows.get("word") == model.get_input_embeddings().padding_idx
