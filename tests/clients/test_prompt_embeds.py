"""vLLM's own decoders, and torch, reading what is made for vLLM; sglang has no client, so its form is compared alone.

The rows are judged by what transformers fed its first block: a decoder that rotates adds nothing behind its word table
but, for Gemma, a factor, which vLLM too applies before it takes prompt_embeds (vLLM 0.33, models/gemma.py).
"""

import base64
import io
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.clients import vllm_modules
from tests.clients.conftest import DECODERS, Server
from tests.clients.judged import INPUTS, TEXTS, UNIT, furthest
from tests.golden_cases import Case, case

CLIENT = "vllm"
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("vllm") is None, reason="NOT SHOWN: vLLM has wheels for Linux alone"),
]

each_decoder = pytest.mark.parametrize("name", DECODERS)


def ids_of(golden: Case) -> list[int]:
    return [int(number) for number in golden.ids[0]]


def fed(golden: Case) -> torch.Tensor:
    """What transformers fed the first block for these ids, in the checkpoint's dtype."""
    return torch.from_numpy(golden.arrays["hidden_states"][0]).to(getattr(torch, golden.config["dtype"]))


def encoded(server: Server, name: str, encoding_format: str) -> Any:
    body = {"model": name, "inputs": [ids_of(case(DECODERS[name]))], "encoding_format": encoding_format}
    answer = httpx.post(f"{server.url}/embed", json=body, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()[encoding_format]


@each_decoder
def test_torch_loads_them_with_weights_only(decoders: Server, name: str) -> None:
    [file] = encoded(decoders, name, "prompt_embeds")
    loaded = torch.load(io.BytesIO(base64.b64decode(file, validate=True)), weights_only=True)
    expected = fed(case(DECODERS[name]))
    assert (loaded.dtype, loaded.shape) == (expected.dtype, expected.shape)
    assert torch.equal(loaded, expected)


@each_decoder
def test_the_decoder_of_its_completions_reads_prompt_embeds(decoders: Server, name: str) -> None:
    decode = vllm_modules.load("vllm.renderers.embed_utils").safe_load_prompt_embeds
    golden = case(DECODERS[name])
    width = golden.config["hidden_size"]
    model = SimpleNamespace(
        enable_prompt_embeds=True,
        hf_text_config=SimpleNamespace(),
        get_hidden_size=lambda: width,
        dtype=getattr(torch, golden.config["dtype"]),
    )
    [file] = encoded(decoders, name, "prompt_embeds")
    assert torch.equal(decode(model, file.encode()), fed(golden))


@each_decoder
def test_input_embeds_are_the_lists_sglang_takes(decoders: Server, name: str) -> None:
    [rows] = encoded(decoders, name, "input_embeds")
    expected = fed(case(DECODERS[name])).float().numpy()
    assert furthest(np.array(rows, np.float32), expected) == 0
    assert isinstance(rows[0][0], float)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # what it makes of bytes
@pytest.mark.parametrize("embed_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("endianness", ["little", "big", "native"])
def test_its_pooling_decoder_reads_bytes(server: Server, embed_dtype: str, endianness: str) -> None:
    read = vllm_modules.load("vllm.utils.serial_utils").binary2tensor
    body = {"input": INPUTS, "encoding_format": "bytes", "embed_dtype": embed_dtype, "endianness": endianness}
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body, trust_env=False)
    assert answer.status_code == 200, answer.text
    described = httpx.Response(200, content=answer.headers["metadata"]).json()["data"]
    assert [item["index"] for item in described] == [0, 1]
    for item, golden in zip(described, TEXTS, strict=True):
        assert (item["embed_dtype"], item["endianness"]) == (embed_dtype, endianness)
        part = answer.content[item["start"] : item["end"]]
        vector = read(part, tuple(item["shape"]), item["embed_dtype"], item["endianness"])
        near = {"float32": UNIT, "float16": 2e-4, "bfloat16": 2e-3}[embed_dtype]
        assert furthest(vector.float().numpy().reshape(-1), golden.unit) <= near


def test_the_decoders_are_those_of_the_wheel() -> None:
    for name in ("vllm.renderers.embed_utils", "vllm.utils.serial_utils"):
        file = vllm_modules.load(name).__file__
        assert file is not None
        assert "site-packages/vllm/" in Path(file).as_posix()
