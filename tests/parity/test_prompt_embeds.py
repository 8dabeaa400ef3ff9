"""What prompt_embeds hold, judged by torch and transformers: files torch.load reads, rows a model takes for its ids."""

import asyncio
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from models.artifacts.export import export
from service.embedding.pipeline import EmbeddingPipeline
from service.embedding.requests import Ids
from service.observability.metrics import Metrics
from service.protocols.inlay import pooled_bytes
from service.protocols.inlay import prompt_embeds as precomputed
from service.protocols.inlay.prompt_embeds import torch_file
from service.registry.registry import open_registry
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.parity.conftest import Ledger
from tests.parity.tiny_models import FSMT_NEEDS, TINY, Sample, sample

pytestmark = pytest.mark.parity
DTYPES = {np.float32: torch.float32, np.float16: torch.float16, ml_dtypes.bfloat16: torch.bfloat16}
FLOAT8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
SEEDS = range(3)
NO_INPUTS_EMBEDS = ("clip_text_model", "siglip_text_model", "siglip2_text_model", "speech_to_text")  # in 5.23
TAKEN_BY_VLLM_ALONE = ("falcon_h1",)  # whose forward scales inputs_embeds there, and ids alone in transformers


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (700, 33)])
def test_torch_reads_the_file_with_weights_only(kind: Any, shape: tuple[int, int], mmap: bool, tmp_path: Path) -> None:
    rows = np.random.default_rng(2).standard_normal(shape).astype(kind)
    (tmp_path / "rows.pt").write_bytes(torch_file(rows))
    loaded = torch.load(tmp_path / "rows.pt", weights_only=True, mmap=mmap)
    assert (loaded.dtype, tuple(loaded.shape), loaded.is_contiguous()) == (DTYPES[kind], shape, True)
    np.testing.assert_array_equal(loaded.float().numpy(), rows.astype(np.float32))


@pytest.mark.parametrize("kind", DTYPES)
def test_torch_would_have_written_the_same_tensor(kind: Any) -> None:
    rows = np.random.default_rng(3).standard_normal((4, 6)).astype(kind)
    theirs = io.BytesIO()
    torch.save(torch.from_numpy(rows.astype(np.float32)).to(DTYPES[kind]), theirs)
    ours = torch.load(io.BytesIO(torch_file(rows)), weights_only=True)
    assert torch.equal(ours, torch.load(io.BytesIO(theirs.getvalue()), weights_only=True))


@pytest.mark.parametrize("embed_dtype", FLOAT8)
def test_eight_bits_are_rounded_as_torch_rounds(embed_dtype: str) -> None:
    rows = np.random.default_rng(4).uniform(-1, 1, (400, 257)).astype(np.float32)
    rows[0, :4] = 0, 2**-9, 2**-10, 3 * 2**-11
    theirs = torch.from_numpy(rows).to(FLOAT8[embed_dtype]).view(torch.uint8).numpy()
    np.testing.assert_array_equal(pooled_bytes.narrowed(rows, embed_dtype).view(np.uint8), theirs)


class _Enough(Exception):
    """Raised once the rows before block 0 are recorded."""


def before_block_0(made: Sample, **fed: Any) -> Any:
    """The rows the first block gets."""
    seen: list[Any] = []

    def keep(_module: Any, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else next(kwargs[key] for key in ("hidden_states", "query") if key in kwargs))
        raise _Enough

    tiny = TINY[made.family]
    if made.family == "fsmt decoder":
        fed |= {"encoder_hidden_states": torch.zeros(1, 1, made.model.config.d_model)} | dict.fromkeys(FSMT_NEEDS)
    if made.family.startswith("fsmt"):
        fed = {"input_ids": None} | fed
    hook = made.model.get_submodule(tiny.blocks)[0].register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad(), suppress(_Enough):
        made.model.get_submodule(tiny.runs)(**fed)
    hook.remove()
    return seen[0].float().numpy()


def handed_over(folder: Path, store: Path, side: str | None, ids: Any) -> Any:
    export(folder, store / "tiny", side=side)
    registry = open_registry(Settings(store=store, device="cpu", threads=1), Metrics())
    pipeline, card = EmbeddingPipeline(registry, Settings()), registry.get(None).card
    request = precomputed.rows_request(card, embed_request([Ids(ids)], dtype="float32"), "prompt_embeds", True)
    return asyncio.run(pipeline.embed(request)).outputs[0].rows


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", [name for name in TINY if name not in NO_INPUTS_EMBEDS])
def test_model_computes_the_same_from_rows_and_ids(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    made = sample(family, seed, tmp_path / "checkpoint")
    words = made.model.get_input_embeddings().num_embeddings
    pad = made.model.config.pad_token_id
    ids = np.array([each for each in range(words) if each != pad][:7], np.int64)  # from rows no pad can be told
    rows = handed_over(made.folder, tmp_path / "store", TINY[family].side, ids)
    inputs_embeds = torch.from_numpy(rows)[None].to(made.model.dtype)
    if family in TAKEN_BY_VLLM_ALONE:
        computed, expected = (
            inputs_embeds.float().numpy(),
            made.model.get_input_embeddings()(torch.from_numpy(ids)[None]),
        )
        expected = expected.detach().float().numpy()
    else:
        computed = before_block_0(made, inputs_embeds=inputs_embeds.clone())
        expected = before_block_0(made, input_ids=torch.from_numpy(ids)[None])
    if family == "longformer":  # which pads to whole windows
        computed, expected = computed[:, : len(ids)], expected[:, : len(ids)]
    ledger.check(family, "handed over", float(np.abs(computed - expected).max() / max(1, np.abs(expected).max())), 1e-6)
