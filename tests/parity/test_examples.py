"""The examples of the documentation beside torch and transformers, which stand in for vLLM's engine."""

import base64
import io
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from models.artifacts.export import export
from models.artifacts.random_checkpoint import create
from tests.docs import completions_server
from tests.docs.example_scripts import EXAMPLES, run
from tests.golden_cases import write_json
from tests.served import Served, serving

pytestmark = pytest.mark.parity
IDS = [3, 1, 41, 5, 9, 26]
NEW_TOKENS = 8
SIZES = {
    "gpt2": {"n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0},
    "llama": {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64},
}


@pytest.fixture(scope="module", params=SIZES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small decoder whose output head is its word table; a wide initialisation, so that prompts matter."""
    folder = tmp_path_factory.mktemp(request.param)
    tied = {"model_type": request.param, "tie_word_embeddings": True, **SIZES[request.param]}
    write_json(folder / "config.json", tied)
    create(folder / "model", config=folder / "config.json", whole=True, vocab_size=96, hidden_size=32, std=0.3, seed=4)
    return folder / "model"


@pytest.fixture(scope="module")
def decoder(checkpoint: Path) -> Iterator[Served]:
    export(checkpoint, checkpoint.parent / "store/decoder", encoder="float32")
    with serving(checkpoint.parent / "store") as running:
        yield running


@pytest.fixture(scope="module")
def causal(checkpoint: Path) -> Any:
    """The same model in transformers."""
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def url(served: Served) -> str:
    return "http://{}:{}".format(*served.address)


def loaded(file: str) -> torch.Tensor:
    """The tensor of the field, read as vLLM reads it: base64 with validation, torch.load of weights alone."""
    tensor = torch.load(io.BytesIO(base64.b64decode(file, validate=True)), weights_only=True, map_location="cpu")
    assert tensor.ndim == 2
    assert tensor.is_floating_point()
    return tensor


def engine(model: Any, seen: list[torch.Tensor]) -> Callable[[dict[str, Any]], str]:
    """What vLLM's engine does, by transformers: greedy continuation of rows or of ids; the text is the new ids."""

    def complete(body: dict[str, Any]) -> str:
        if "prompt_embeds" in body:
            seen.append(loaded(body["prompt_embeds"]))
            rows = seen[-1][None]
        else:
            rows = model.get_input_embeddings()(torch.tensor([body["prompt"]]))
        ids: list[int] = []
        with torch.inference_mode():
            for _ in range(body["max_tokens"]):
                ids.append(int(model(inputs_embeds=rows).logits[0, -1].argmax()))
                rows = torch.cat([rows, model.get_input_embeddings()(torch.tensor([ids[-1:]]))], dim=1)
        return str(ids)

    return complete


def test_completions_of_rows_are_those_of_ids(decoder: Served, causal: Any, tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []
    with completions_server.serving(engine(causal, seen)) as vllm:
        words = ["--ids", ",".join(map(str, IDS)), "--vllm", vllm, "--compare", "--max-tokens", NEW_TOKENS]
        done = run("prompt_embeds.py", *words, "--inlay", url(decoder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with torch.inference_mode():
        of_rows = causal(inputs_embeds=seen[0][None]).logits
        of_ids = causal(input_ids=torch.tensor([IDS])).logits
    assert float((of_rows - of_ids).abs().max()) <= 1e-5 * float(of_ids.abs().max())


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Any, str]]:
    """Runs export_model.py in this process, which has torch already; gives its exit status and what it printed."""

    def call(*words: object) -> tuple[Any, str]:
        monkeypatch.setattr("sys.argv", ["export_model.py", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / "export_model.py"), run_name="__main__")
        return ended.value.code, capsys.readouterr().out

    return call


def test_export_compares_equal_to_transformers(decoder: Served, checkpoint: Path, compared: Any) -> None:
    status, printed = compared(checkpoint, "--inlay", url(decoder))
    assert not status
    assert [line.split()[0] for line in printed.splitlines()] == ["input_embeddings", "last_hidden_state"]


def test_export_of_other_weights_compares_unequal(
    decoder: Served, checkpoint: Path, compared: Any, tmp_path: Path
) -> None:
    create(tmp_path / "other", config=checkpoint / "config.json", whole=True, std=0.3, seed=5)
    status, printed = compared(tmp_path / "other", "--inlay", url(decoder))
    assert (bool(status), len(printed.splitlines())) == (True, 2)
