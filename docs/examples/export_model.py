"""Compare what Inlay serves of a checkpoint with what transformers computes from the same files.

Needs torch and transformers. Exits with 1 where a number differs by more than 1e-4 of the largest one.
"""

import argparse

import httpx
import numpy as np
import torch
from transformers import AutoModel

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("checkpoint", help="the folder that `inlay export` read, or a hub id")
options.add_argument("--inlay", default="http://localhost:8080", help="address of Inlay (default: %(default)s)")
options.add_argument("--model", help="the model's name in Inlay (default: its default model)")
options.add_argument("--tokens", type=int, default=16, help="length of the sequence (default: %(default)s)")
args = options.parse_args()


def served(output: str) -> np.ndarray:
    """Return one output of Inlay for the token ids, float32 (tokens, width)."""
    body = {"inputs": [ids], "model": args.model, "outputs": [output]}
    response = httpx.post(f"{args.inlay}/embed", json=body, headers={"accept": "application/octet-stream"}, timeout=300)
    if response.is_error:
        options.error(f"Inlay: {response.json()['error']}")
    return np.frombuffer(response.content, np.float32).reshape(len(ids), -1)


models = httpx.get(f"{args.inlay}/models", timeout=300).json()["models"]
card = next((each for each in models if each["name"] == args.model or (args.model is None and each["default"])), None)
if card is None:
    options.error(f"no model {args.model or 'by default'}; --model takes {', '.join(each['name'] for each in models)}")

model = AutoModel.from_pretrained(args.checkpoint, dtype=torch.float32).eval()
if hasattr(model, "get_encoder") and model.config.is_encoder_decoder:
    options.error("of a model with two sides compare one: this script runs models with one")
ids = torch.randint(card["vocab_size"], (args.tokens,), generator=torch.Generator().manual_seed(0)).tolist()
with torch.inference_mode():
    states = model(torch.tensor([ids]), output_hidden_states=True)

computed = {"input_embeddings": states.hidden_states[0], "last_hidden_state": states.last_hidden_state}
differences = []
for output in [name for name in computed if name in card["outputs"]]:
    expected = computed[output][0].numpy()
    differences.append(float(np.abs(served(output) - expected).max() / np.abs(expected).max()))
    print(f"{output:<18} {list(expected.shape)}  largest difference {differences[-1]:.1e} of the largest value")
if not differences:
    options.error(f"{card['name']} has none of the outputs compared: {', '.join(computed)}")
raise SystemExit(not np.max(differences) <= 1e-4)  # 1 for NaN too
