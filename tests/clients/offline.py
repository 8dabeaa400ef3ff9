"""Variables with which clients ask nothing of the network but the server: no reports, no prices, no vocabularies."""

from pathlib import Path

OFFLINE = {
    "AGNO_TELEMETRY": "false",
    "ANONYMIZED_TELEMETRY": "False",
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MEM0_TELEMETRY": "False",
}


def offline(environment: Path) -> dict[str, str]:
    """Return the variables for the clients of a virtual environment.

    LiteLLM's wheel holds tiktoken's file of cl100k_base under the name that tiktoken looks for in its cache.
    """
    [encodings] = environment.glob("lib/python3.*/site-packages/litellm/litellm_core_utils/tokenizers")
    return OFFLINE | {"TIKTOKEN_CACHE_DIR": str(encodings)}
