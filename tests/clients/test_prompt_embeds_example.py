"""docs/examples/prompt_embeds.py: its request, read by vLLM's own decoder and compared with the word table."""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.clients import vllm_modules
from tests.clients.conftest import DECODERS, Server
from tests.clients.test_prompt_embeds import fed, ids_of
from tests.docs import completions_server
from tests.docs.example_scripts import run
from tests.golden_cases import case

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("vllm") is None, reason="NOT SHOWN: vLLM has wheels for Linux alone"),
]


@pytest.mark.parametrize("name", DECODERS)
def test_vllms_decoder_reads_what_the_script_sends(decoders: Server, name: str, tmp_path: Path) -> None:
    decode = vllm_modules.load("vllm.renderers.embed_utils").safe_load_prompt_embeds
    golden = case(DECODERS[name])
    model = SimpleNamespace(
        enable_prompt_embeds=True,
        hf_text_config=SimpleNamespace(),
        get_hidden_size=lambda: golden.config["hidden_size"],
        dtype=getattr(torch, golden.config["dtype"]),
    )
    read: list[torch.Tensor] = []

    def complete(body: dict[str, Any]) -> str:
        read.append(decode(model, body["prompt_embeds"].encode()))
        return "read"

    words = ["--ids", ",".join(map(str, ids_of(golden))), "--inlay", decoders.url, "--model", name]
    with completions_server.serving(complete) as vllm:
        done = run("prompt_embeds.py", *words, "--vllm", vllm, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
    assert torch.equal(read[0], fed(golden))
