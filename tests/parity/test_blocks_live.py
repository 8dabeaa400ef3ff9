"""Whole encoders of random small models, written by transformers, against what it computes: rows and pooled vectors."""

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from models.artifacts.comparison import Session
from models.artifacts.export import export
from models.families import FAMILIES
from models.families.config import Config
from models.families.encoder_decoders import ENCODER_DECODERS
from models.positions.learned import positions
from models.recipes.extra_inputs import extra_values
from tests.parity.block_configs import CONFIGS, PUBLISHED
from tests.parity.conftest import Ledger

pytestmark = pytest.mark.parity
SEEDS = range(12)
LENGTHS = (1, 2, 3, 12, 13, 63, 64, 65, 130, 256, 257, 300, 512)
TOLERANCE = 1e-5
SINGLE = ("xglm",)  # its class cannot compute in float64
CLASSES = {
    "t5": "T5EncoderModel",
    "mt5": "MT5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "siglip_text_model": "SiglipTextModel",
    "siglip2_text_model": "Siglip2TextModel",
}


def made(family: str, seed: int, folder: Path) -> Any:
    """Return a random model in float32, eager, after writing it."""
    draw = random.Random(f"blocks {family} {seed}")
    torch.manual_seed(draw.randrange(1 << 30))
    config = transformers.CONFIG_MAPPING[family](**CONFIGS[family](draw))
    config.use_cache = False
    kind = getattr(transformers, CLASSES[family]) if family in CLASSES else None
    if kind:
        config._attn_implementation = "eager"
        model = kind(config).eval()
    else:
        eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
        model = transformers.AutoModel.from_config(config, **eager).eval()
    randomise(model, family)
    model.save_pretrained(folder)
    if family in ENCODER_DECODERS and not kind:
        config, model = model.config, model.get_encoder()
        model.config = config  # FSMT's encoder has none
    return model if family in SINGLE else model.double()  # so that differences are Inlay's own


def randomise(model: Any, family: str) -> None:
    """Give a model weights of usual sizes, none of them the ones that it starts with."""
    added_to_one = family == "nemotron" or ("gemma" in family and family != "embedding_gemma2_text")
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if family == "esm" and name.endswith("inv_freq"):
                buffer.copy_(buffer.half())  # as published files have it
            if name.endswith("layer_scalar"):
                buffer.copy_(0.5 + torch.rand_like(buffer))
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:  # RoFormer's sinusoids are computed, not learned
                continue
            noise = torch.randn_like(parameter)
            if parameter.ndim == 1:
                near = 1.0 if "norm" in name.lower() and name.endswith("weight") and not added_to_one else 0.0
                parameter.copy_(near + 0.3 * noise)
            else:
                narrow = 0.25 if name.endswith("SelfAttention.q.weight") else 0.7  # T5 does not scale its scores
                parameter.copy_(noise if "embed" in name else narrow * noise / parameter.shape[-1] ** 0.5)


def words(model: Any) -> int:
    """Return how many ids the model reads."""
    return int(getattr(model.config, "src_vocab_size", model.config.vocab_size))


class NoCaches(transformers.EncoderDecoderCache):
    """A cache that has none for any layer: with pre_norm FlauBERT asks for each layer's, which fails without this."""

    def __getitem__(self, layer: int) -> None:
        return None


def expected(model: Any, ids: Any, mask: Any = None) -> Any:
    """Return last_hidden_state of one sequence."""
    mask = torch.ones(1, len(ids), dtype=torch.long) if mask is None else torch.tensor(mask)[None]
    own = [transformers.DynamicCache(), transformers.DynamicCache()]
    more: dict[str, Any] = {"cache": NoCaches(*own)} if getattr(model.config, "pre_norm", False) else {}
    if model.config.model_type == "lfm2":
        more["use_cache"] = False  # a cache of convolutions alone fails
    with torch.no_grad():
        return model(torch.tensor(ids)[None], attention_mask=mask, **more).last_hidden_state[0].numpy()


class Encoder:
    """The graph of a whole encoder."""

    def __init__(self, folder: Path, card: Any) -> None:
        self.card, self.session = card, Session(folder / "encoder.onnx")

    def rows(
        self, sequences: list[Any], masks: list[Any] | None = None, extras: dict[str, Any] | None = None
    ) -> list[Any]:
        """Return the rows of each sequence of one batch."""
        lengths = np.array([len(ids) for ids in sequences])
        ids = np.concatenate(sequences)
        masks = masks or [np.ones(length, bool) for length in lengths]
        numbers = [
            positions(self.card.position, own, mask.astype(np.int64))
            for own, mask in zip(sequences, masks, strict=True)
        ]
        feeds = {"ids": ids, "mask": np.concatenate(masks), "lengths": lengths, "types": np.zeros_like(ids)}
        feeds["positions"] = np.concatenate(numbers)
        feeds |= {
            extra.name: np.concatenate(
                [
                    extra_values(extra, own, own_mask.astype(np.int64), None)
                    for own, own_mask in zip(sequences, masks, strict=True)
                ]
            )
            for extra in self.card.extras
        } | (extras or {})
        needed = {name: feeds[name] for name in self.card.graphs["encoder"].inputs}
        hidden = self.session.run(needed, ["last_hidden_state"])["last_hidden_state"]
        return np.split(hidden, np.cumsum(lengths)[:-1])


def relative(got: Any, wanted: Any) -> float:
    assert got.shape == wanted.shape
    return float(np.abs(got.astype(np.float64) - wanted).max() / max(1.0, np.abs(wanted).max()))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_whole_model_gives_the_rows_of_transformers(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model = made(family, seed, tmp_path / "checkpoint")
    single = copy.deepcopy(model).float()
    card = export(tmp_path / "checkpoint", tmp_path / "out", encoder=True)
    encoder, draw = Encoder(tmp_path / "out", card), np.random.default_rng(seed)
    sequences = [draw.integers(3, words(model), length) for length in LENGTHS]
    order = draw.permutation(len(sequences))
    mixed = dict(zip(order, encoder.rows([sequences[place] for place in order]), strict=True))
    for place, ids in enumerate(sequences):
        (alone,) = encoder.rows([ids])
        wanted = expected(model, ids)
        tolerance = TOLERANCE
        if relative(alone, wanted) > TOLERANCE:  # then transformers' own float32 has to be as far
            tolerance = max(TOLERANCE, 3 * relative(expected(single, ids), wanted))
        ledger.check(family, "last_hidden_state", relative(alone, wanted), tolerance)
        ledger.check(family, "mean", relative(alone.mean(axis=0), wanted.mean(axis=0)), TOLERANCE)
        assert np.array_equal(alone, mixed[place]), f"{len(ids)} tokens get other bits in a batch"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", CONFIGS)
def test_masked_rows_are_not_attended_to(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model = made(family, seed, tmp_path / "checkpoint")
    card = export(tmp_path / "checkpoint", tmp_path / "out", encoder=True)
    encoder, draw = Encoder(tmp_path / "out", card), np.random.default_rng(seed)
    sequences = [draw.integers(3, words(model), length) for length in (8, 40, 300)]
    masks = [draw.random(len(ids)) < 0.7 for ids in sequences]
    for mask in masks:
        mask[0] = True
        # BLOOM in transformers counts distances over what is attended to; Inlay over tokens. Causal XLM attends to
        # masked tokens behind which others are not masked.
        if family == "bloom" or getattr(model.config, "causal", False):
            mask[:] = np.arange(len(mask)) < len(mask) - 3
    for ids, mask, got in zip(sequences, masks, encoder.rows(sequences, masks), strict=True):
        wanted = expected(model.float(), ids, mask.astype(int))
        (alone,) = encoder.rows([ids], [mask])
        assert np.array_equal(alone, got)
        ledger.check(family, "masked", relative(got[mask], wanted[mask]), TOLERANCE)


SIZES = {"num_attention_heads": 2, "hidden_size": 32, "num_hidden_layers": 2}
RESOLVED = {"num_key_value_heads": 2, "intermediate_size": 128, "attention_multiplier": 0.25}  # where none is given
SEEN = ("num_key_value_heads", "intermediate_size", "hidden_act", "sliding_window", "rms_norm_eps", "layer_norm_eps")
SEEN += ("norm_epsilon", "attention_bias", "mlp_bias", "use_bias", "use_qkv_bias", "use_qk_norm", "qk_layernorm")
SEEN += ("use_parallel_residual", "use_sliding_window", "max_window_layers", "attention_multiplier")
SEEN += ("residual_multiplier", "query_pre_attn_scalar", "attn_logit_softcapping")


@pytest.mark.parametrize("family", [name for name in CONFIGS if FAMILIES[name].causal is True])
def test_omitted_keys_mean_what_the_config_class_says(family: str) -> None:
    row = FAMILIES[family]
    more = {"attention_types": [[["global", "local"], 1]]} if family == "gpt_neo" else {}  # of as many layers
    theirs = transformers.CONFIG_MAPPING[family](**SIZES, **more)
    ours = Config(SIZES, row.defaults, row.names)
    wanted = {key: getattr(theirs, row.names.get(key, key), None) for key in SEEN}
    got = {key: ours.get(key) for key in SEEN}
    got |= {key: value for key, value in RESOLVED.items() if got[key] is None and wanted[key] is not None}
    assert got == wanted


def test_every_whole_family_is_here() -> None:
    whole = {name for name, row in FAMILIES.items() if row.block}
    assert whole == set(CONFIGS) | PUBLISHED
