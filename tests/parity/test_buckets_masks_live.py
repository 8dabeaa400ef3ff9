"""Relative buckets, biases and masks of random parameters, beside those that transformers computes right now."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DebertaV2Config, DynamicCache, LlamaConfig, LongT5Config, T5Config, UMT5Config, masking_utils
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DebertaV2Encoder,
    DisentangledSelfAttention,
    build_relative_position,
    make_log_bucket_position,
)
from transformers.models.longt5.modeling_longt5 import LongT5LocalAttention
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.umt5.modeling_umt5 import UMT5Attention

from models.positions.buckets import LogScale, deberta_bucket, t5_bucket, tabulate_deberta, tabulate_t5
from models.positions.masks import tabulate as tabulate_mask
from models.positions.table import Table, rounded
from tests.parity.conftest import Ledger

pytestmark = pytest.mark.parity
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
EDGE = 1e-6  # how near a step of the logarithm torch's float32 logarithm may decide otherwise


def check_buckets(got: Any, expected: Any, distance: Any, scale: LogScale, ledger: Ledger, what: str) -> None:
    """Equal, but for distances within float32's reach of a step, where the neighbouring bucket will do."""
    apart = got != expected
    assert (np.abs(got - expected)[apart] == 1).all()
    steps = np.log(distance[apart] / scale.start) / np.log(scale.end / scale.start) * scale.steps
    away = np.abs(steps - np.rint(steps)) / steps
    ledger.check(what, "distance of a stray from an edge", float(away.max(initial=0.0)), EDGE)


@pytest.mark.parametrize("seed", range(40))
def test_t5_and_mpnet_buckets_of_random_sizes(seed: int, ledger: Ledger) -> None:
    random = np.random.default_rng(seed)
    for _ in range(10):
        bidirectional = bool(random.integers(2))
        num_buckets = int(random.integers(2, 65)) * 2
        side = num_buckets // (1 + bidirectional)
        max_distance = int(random.integers(side // 2 + 1, 3000))
        relative = np.arange(-max_distance - 9, max_distance + 10)
        parameters: dict[str, Any] = {"num_buckets": num_buckets, "max_distance": max_distance}
        positions_tensor = torch.from_numpy(relative)
        others = [T5Attention._relative_position_bucket(positions_tensor, bidirectional, **parameters)]
        umt5 = SimpleNamespace(
            relative_attention_num_buckets=num_buckets,
            relative_attention_max_distance=max_distance,
            is_decoder=not bidirectional,
        )
        others.append(UMT5Attention._relative_position_bucket(umt5, positions_tensor))
        others.append(LongT5LocalAttention._relative_position_bucket(positions_tensor, bidirectional, **parameters))
        if bidirectional:
            others.append(MPNetEncoder.relative_position_bucket(positions_tensor, **parameters))
        got = t5_bucket(relative, bidirectional=bidirectional, **parameters, arithmetic="parity")
        scale = LogScale(side // 2, max_distance, side - side // 2)
        for expected in others:
            check_buckets(got, expected.numpy(), np.abs(relative), scale, ledger, "t5")


@pytest.mark.parametrize("seed", range(40))
def test_deberta_buckets_of_random_sizes(seed: int, ledger: Ledger) -> None:
    random = np.random.default_rng(seed)
    for _ in range(10):
        buckets = int(random.integers(4, 520))
        reach = int(random.integers(buckets // 2 + 2, 3000))
        relative = np.arange(-2 * reach, 2 * reach + 1)
        expected = make_log_bucket_position(torch.from_numpy(relative), buckets, reach).long().numpy()
        got = deberta_bucket(relative, position_buckets=buckets, max_relative_positions=reach, arithmetic="parity")
        scale = LogScale(buckets // 2, reach - 1, buckets // 2 - 1)
        check_buckets(got, expected, np.abs(relative), scale, ledger, "deberta")


PUBLISHED = ((32, 128, True), (32, 128, False), (32, 256, True), (64, 128, True), (320, 800, True), (320, 800, False))


@pytest.mark.parametrize(("num_buckets", "max_distance", "bidirectional"), PUBLISHED)
def test_published_t5_buckets_match_in_both_arithmetics(
    num_buckets: int, max_distance: int, bidirectional: bool
) -> None:
    relative = np.arange(-40_000, 40_001)
    expected = T5Attention._relative_position_bucket(
        torch.from_numpy(relative), bidirectional, num_buckets, max_distance
    )
    parameters: dict[str, Any] = {"num_buckets": num_buckets, "max_distance": max_distance}
    for arithmetic in ("exact", "parity"):
        got = t5_bucket(relative, bidirectional=bidirectional, **parameters, arithmetic=arithmetic)
        np.testing.assert_array_equal(got, expected.numpy())


@pytest.mark.parametrize(("buckets", "reach"), [(256, 512), (32, 128)])
def test_published_deberta_buckets_agree_in_both_arithmetics(buckets: int, reach: int) -> None:
    relative = np.arange(-5000, 5001)
    expected = make_log_bucket_position(torch.from_numpy(relative), buckets, reach).long().numpy()
    for arithmetic in ("exact", "parity"):
        got = deberta_bucket(relative, position_buckets=buckets, max_relative_positions=reach, arithmetic=arithmetic)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", ["t5", "umt5", "longt5"])
@pytest.mark.parametrize("seed", range(10))
def test_learned_bias_matches_the_attention_layer(kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    decoder = kind != "longt5" and bool(random.integers(2))
    sizes: dict[str, Any] = {"d_model": 8, "d_kv": 4, "num_heads": int(random.integers(1, 6)), "is_decoder": decoder}
    config, layer = {
        "t5": (T5Config, T5Attention),
        "umt5": (UMT5Config, UMT5Attention),
        "longt5": (LongT5Config, LongT5LocalAttention),
    }[kind]
    torch.manual_seed(seed)
    attention = layer(config(**sizes), has_relative_attention_bias=True)
    torch.nn.init.normal_(attention.relative_attention_bias.weight)
    queries, past = int(random.integers(1, 30)), int(random.integers(0, 200)) * decoder
    keys = past + queries
    with torch.no_grad():
        if kind == "longt5":  # a block looks at itself and at the blocks before and after it
            past, keys = queries, 3 * queries
            expected = attention.compute_bias(queries)[0]
        else:
            expected = attention.compute_bias(queries, keys, past_seen_tokens=past)
    weights = attention.relative_attention_bias.weight.detach().numpy()
    table = tabulate_t5(queries, keys, past=past, bidirectional=not decoder, weights=weights, arithmetic="parity")
    np.testing.assert_array_equal(table.outputs["bias"].whole(), expected.numpy())


@pytest.mark.parametrize("seed", range(10))
def test_deberta_attention_reads_the_rows_the_table_names(seed: int, ledger: Ledger) -> None:
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    length, buckets = int(random.integers(2, 70)), int(random.choice([-1, 8, 16, 32]))
    reach = int(random.choice([-1, 40, 64]))
    config = DebertaV2Config(
        hidden_size=12,
        num_attention_heads=1,
        num_hidden_layers=1,
        intermediate_size=8,
        relative_attention=True,
        position_buckets=buckets,
        max_relative_positions=reach,
        max_position_embeddings=48,
        norm_rel_ebd="layer_norm",
        pos_att_type=["c2p", "p2c"],
        share_att_key=True,
    )
    encoder, attention = DebertaV2Encoder(config).eval(), DisentangledSelfAttention(config).eval()
    torch.nn.init.normal_(encoder.rel_embeddings.weight, 1.0, 2.0)
    torch.nn.init.normal_(encoder.LayerNorm.weight)
    torch.nn.init.normal_(encoder.LayerNorm.bias)
    table = tabulate_deberta(
        length,
        position_buckets=buckets,
        max_relative_positions=reach,
        max_position_embeddings=48,
        weights=encoder.rel_embeddings.weight.detach().numpy(),
        norm=(encoder.LayerNorm.weight.detach().numpy(), encoder.LayerNorm.bias.detach().numpy()),
        norm_eps=config.layer_norm_eps,
        arithmetic="parity",
    )
    query, key = torch.randn(2, 1, length, 12)
    with torch.no_grad():
        relative = build_relative_position(query, key, buckets, table.facts["max_relative_positions"])
        rows = encoder.get_rel_embedding()
        expected = attention.disentangled_attention_bias(query, key, relative, rows, 3).numpy()[0]
        keys, queries = attention.key_proj(rows).numpy(), attention.query_proj(rows).numpy()
    whole = {name: output.whole() for name, output in table.outputs.items()}
    np.testing.assert_array_equal(whole["bucket"], relative.numpy()[0])
    difference = np.abs(whole["rel_embeddings"] - rows.numpy()).max() / np.abs(rows.numpy()).max()
    ledger.check("deberta", "rel_embeddings", float(difference), 1e-6)
    c2p = np.take_along_axis(query[0].numpy() @ keys.T, whole["c2p"], axis=1)
    p2c = np.take_along_axis(key[0].numpy() @ queries.T, whole["p2c"], axis=1).T
    difference = np.abs((c2p + p2c) / np.sqrt(12 * 3) - expected).max() / max(1.0, np.abs(expected).max())
    ledger.check("deberta", "c2p + p2c scores", float(difference), 1e-5)


def filled_cache(batch: int, past: int) -> DynamicCache | None:
    """A cache that has seen `past` tokens; None for none."""
    if past == 0:
        return None
    cache = DynamicCache()
    cache.update(torch.zeros(batch, 1, past, 2), torch.zeros(batch, 1, past, 2), 0)
    return cache


CREATE = {
    "causal": ("create_causal_mask", {}),
    "sliding": ("create_sliding_window_causal_mask", {"window": "sliding_window"}),
    "chunked": ("create_chunked_causal_mask", {"chunk": "attention_chunk_size"}),
    "bidirectional": ("create_bidirectional_mask", {}),
    "bidirectional_sliding": ("create_bidirectional_sliding_window_mask", {"window": "sliding_window"}),
}


def padding(random: Any, batch: int, keys: int) -> Any:
    """Rows padded on the left, on the right, with holes, or not at all."""
    mask = np.ones((batch, keys), np.int64)
    for row in mask:
        pads, side = int(random.integers(0, keys)), int(random.integers(4))
        if side == 0:
            row[:pads] = 0
        elif side == 1:
            row[keys - pads :] = 0
        elif side == 2:
            row[:] = random.integers(0, 2, keys)
    return mask


def packing(random: Any, batch: int, keys: int) -> Any:
    """Rows of several sequences; the first row has at least two, for transformers else sees no packing at all."""
    rows = []
    for number in range(batch):
        cuts = np.unique(random.integers(1, keys, 1 if number == 0 else random.integers(0, 4)))
        rows.append(np.concatenate([np.arange(len(part)) for part in np.split(np.arange(keys), cuts)]))
    return np.stack(rows)


def compare(kind: str, random: Any, dtype: str, packed: bool) -> Table:
    function, sizes = CREATE[kind]
    batch, queries = int(random.integers(1, 4)), int(random.integers(2, 40))
    past = 0 if packed else int(random.integers(0, 30)) * int(random.integers(2))
    chosen = {name: int(random.integers(1, 30)) for name in sizes}
    config = LlamaConfig(attn_implementation="eager")
    for name, theirs in sizes.items():
        setattr(config, theirs, chosen[name])
    rows = {"position_ids": packing(random, batch, queries)} if packed else {}
    if not packed:
        rows["attention_mask"] = padding(random, batch, past + queries)
    tensors = {name: torch.from_numpy(array) for name, array in rows.items()}
    expected = getattr(masking_utils, function)(
        config=config,
        inputs_embeds=torch.zeros(batch, queries, 2, dtype=DTYPES[dtype]),
        attention_mask=tensors.get("attention_mask"),
        past_key_values=filled_cache(batch, past),
        position_ids=tensors.get("position_ids"),
        **({"allow_is_bidirectional_skip": False} if "bidirectional" in kind else {}),
    )
    table = tabulate_mask(
        queries, past + queries, past=past, causal="bidirectional" not in kind, **chosen, **rows, dtype=dtype
    )
    got = rounded(table.outputs["mask"].whole(), dtype).astype(np.float64)
    np.testing.assert_array_equal(got, expected.to(torch.float64).numpy())
    assert expected.dtype == DTYPES[dtype]
    return table


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", CREATE)
def test_masks_of_random_sizes_and_caches_are_bitwise_equal(kind: str, dtype: str) -> None:
    random = np.random.default_rng(list(CREATE).index(kind))
    for _ in range(60):
        compare(kind, random, dtype, packed=False)


@pytest.mark.parametrize("kind", ["causal", "sliding", "chunked"])
def test_masks_of_packed_rows_are_bit_for_bit_equal(kind: str) -> None:
    random = np.random.default_rng(list(CREATE).index(kind))
    for _ in range(100):
        compare(kind, random, "float32", packed=True)
