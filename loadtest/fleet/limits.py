"""What saturates first as a fleet grows, and what a million tokens cost; figures are measured or stated assumptions."""

from collections.abc import Mapping
from typing import Any

from loadtest.fleet.service_times import ServiceTimes
from loadtest.processes import RESULTS

ASSUMED = {
    "EUR per core and hour": 0.04,
    "share of capacity used": 0.6,
    "Gbit/s of the balancer's network card": 10.0,
    "Gbit/s of the registry or volume that models come from": 10.0,
    "GiB of memory of a node": 64.0,
    "cores of a node": 32.0,
    "GB of the image": 0.63,
    "head bytes of a request and its answer": 700.0,
}
BYTES_A_TOKEN = 5.0  # of a word of the mix with its space, in a JSON body
COSTED = (("a query of 10 tokens", 12), ("64 tokens", 64), ("a passage of 128 tokens", 128), ("256 tokens", 256))
BATCH_TOKENS = 512
GB, GIB, GBIT = 1e9, 2**30, 1e9 / 8


def bytes_a_request(measured: Mapping[str, Any], tokens: float, texts: float) -> dict[str, float]:
    """Return the bytes that one request of the mix and its answer take on the wire, by the answer's form."""
    ten = measured["transfer_bytes"]["ten passages of 130 tokens"]
    heads = ASSUMED["head bytes of a request and its answer"]
    return {
        name.partition(", ")[2]: heads + tokens * BYTES_A_TOKEN + texts * size / 10
        for name, size in ten.items()
        if name != "request"
    }


def limits(measured: Mapping[str, Any], simulated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what each shared part bears, in one-core replicas at full load."""
    rate = simulated["capacity_a_core"]["requests_a_second"]
    sizes = bytes_a_request(measured, simulated["mean_tokens"], simulated["mean_texts"])
    memory, link = measured["memory_bytes"], ASSUMED["Gbit/s of the balancer's network card"] * GBIT
    rows = [
        _row(f"network at the balancer, answers as {name}", link / size / rate, f"{size / 1000:.1f} kB a request")
        for name, size in sizes.items()
    ]
    if measured["balancer_seconds"]:
        micros = measured["balancer_seconds"] * 1e6
        rows.append(_row("one core of HAProxy, texts", 1e6 / micros / rate, f"{micros:.0f} µs a request, measured"))
        ids = ids_a_second()
        rows.append(
            _row("one core of HAProxy, token ids", 1e6 / micros / ids, f"{ids:.0f} requests/s a core: bench.md")
        )
    private = memory["private of a worker"]
    fit = (ASSUMED["GiB of memory of a node"] * GIB - memory["model files"]) / private
    rows.append(_row("memory of a node", fit, f"{private / 1e6:.0f} MB a worker, tables shared in the page cache"))
    return rows


def _row(part: str, replicas: float, why: str) -> dict[str, Any]:
    return {"part": part, "replicas": round(replicas, 1) if replicas < 10 else round(replicas), "why": why}


def ids_a_second() -> float:
    """Return the requests a second of one core for the input rows of 16 token ids, from loadtest/results/bench.md."""
    text = (RESULTS / "bench.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if "| POST /embed, 16 ids | 32 | inlay |" in line)
    return float(row.split("|")[4])


def loading(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how long it takes until new replicas serve, by number of replicas on nodes that lack image and model."""
    link = ASSUMED["Gbit/s of the registry or volume that models come from"] * GBIT
    size = ASSUMED["GB of the image"] * GB + measured["memory_bytes"]["model files"]
    rows = []
    for replicas in (1, 10, 100, 1000):
        nodes = -(-replicas // int(ASSUMED["cores of a node"]))
        fetched = nodes * size / link
        rows.append(
            {
                "replicas": replicas,
                "nodes": nodes,
                "fetch_seconds": round(fetched, 1),
                "start_seconds": measured["start_seconds"]["cold"],
            }
        )
    return rows


def costs(times: ServiceTimes, simulated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return tokens a second of a core and EUR for a million tokens, for texts of one length in full batches."""
    rows = []
    for name, tokens in COSTED:
        count = max(1, BATCH_TOKENS // tokens)
        one = [tokens]
        seconds = times.batch_seconds(one * count) + count * times.request_seconds(one)
        rows.append(_cost(name, count * tokens / seconds, tokens))
    per_core = simulated["capacity_a_core"]["tokens_a_second"]
    return [*rows, _cost("the users' mix, a request", per_core, simulated["mean_tokens"])]


def _cost(name: str, tokens_a_second: float, tokens: float) -> dict[str, Any]:
    used = tokens_a_second * ASSUMED["share of capacity used"] * 3600
    million = ASSUMED["EUR per core and hour"] / used * 1e6
    return {
        "text": name,
        "tokens_a_second": round(tokens_a_second),
        "eur_a_million_tokens": round(million, 5),
        "eur_a_million_texts": round(million * tokens, 2),
    }
