"""Send a prompt to vLLM as rows of its model's word table, which Inlay computes, instead of as text.

Inlay answers `encoding_format: prompt_embeds` with base64 of a file as torch.save writes it: what the field
`prompt_embeds` of vLLM's POST /v1/completions takes. Without --vllm the request is printed, to be sent by other means.
"""

import argparse
import json
from typing import Any

import httpx

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("prompt", help="a text, or with --ids token ids such as 3,1,4")
options.add_argument("--ids", action="store_true", help="the prompt is token ids")
options.add_argument("--inlay", default="http://localhost:8080", help="address of Inlay (default: %(default)s)")
options.add_argument("--model", help="the model in Inlay (default: its default model)")
options.add_argument("--vllm", help="address of vLLM, or of another server with its /v1/completions")
options.add_argument("--vllm-model", help="the model there (default: the first of its /v1/models)")
options.add_argument("--max-tokens", type=int, default=32, help="how many tokens to generate (default: %(default)s)")
options.add_argument("--compare", action="store_true", help="send the prompt itself too, and compare what comes back")
args = options.parse_args()


def ask(address: str, route: str, body: dict[str, Any] | None = None) -> Any:
    """Return what a server answers; end with its message where it cannot be reached or refuses."""
    try:
        response = httpx.request("POST" if body else "GET", f"{address}{route}", json=body, timeout=300)
    except httpx.TransportError as failure:
        options.error(f"{address}{route}: {failure}")
    return response.json() if response.is_success else options.error(f"{address}{route}: {response.text}")


def completed(**prompt: Any) -> str:
    """Return the text with which the model goes on; temperature 0, so that equal prompts give equal texts."""
    settings = {"model": name, "max_tokens": args.max_tokens, "temperature": 0}
    return ask(args.vllm, "/v1/completions", settings | prompt)["choices"][0]["text"]


prompt = [int(each) for each in args.prompt.split(",")] if args.ids else args.prompt
rows = {"inputs": [prompt], "model": args.model, "encoding_format": "prompt_embeds"}
[embeds] = ask(args.inlay, "/embed", rows)["prompt_embeds"]
if args.vllm is None:
    settings = {"max_tokens": args.max_tokens, "temperature": 0} | (
        {"model": args.vllm_model} if args.vllm_model else {}
    )
    print(json.dumps(settings | {"prompt_embeds": embeds}))
else:
    name = args.vllm_model or ask(args.vllm, "/v1/models")["data"][0]["id"]
    text = completed(prompt_embeds=embeds)
    print(text)
    if args.compare and text != (other := completed(prompt=prompt)):
        raise SystemExit(f"the prompt itself is continued differently:\n{other}")
