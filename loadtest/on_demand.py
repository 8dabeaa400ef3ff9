"""Models loaded on demand: how long a cold one takes to answer, and what a request beside such loads waits.

    python -m loadtest.on_demand [--loads 20] [--seconds 8] [--save]

Each load follows an unload by `keep_alive: 0`. Beside them one client asks a loaded copy of the model for a text, again
and again: first alone, then while the other is loaded again and again. The server's processor time is printed too,
since on a busy machine the time on the clock measures the others.
"""

import argparse
import contextlib
import http.client
import json
import shutil
import tempfile
import threading
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from loadtest.facts import facts, facts_line
from loadtest.processes import RESULTS, ROOT, cpu_seconds, end_on_sigterm, free_port, inlay, server, wait_for

COLD, LOADED = "cold", "loaded"
Client = http.client.HTTPConnection


def post(client: Client, path: str, body: dict[str, Any]) -> float:
    """Return the seconds of a request; raise RuntimeError unless it is answered with 200."""
    begun = perf_counter()
    client.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = client.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {content[:200]!r}")
    return perf_counter() - begun


def cold_answer(client: Client) -> float:
    """Unload the cold model; return the seconds until its next text is answered."""
    post(client, "/api/embed", {"model": COLD, "keep_alive": 0})
    return post(client, "/embed", {"model": COLD, "inputs": "hello world"})


def until(client: Client, ended: threading.Event) -> list[float]:
    """Return the seconds of each text that the loaded model answers until `ended` is set."""
    times = []
    while not ended.is_set():
        times.append(post(client, "/embed", {"model": LOADED, "inputs": "hello world"}))
    return times


def beside(port: int, seconds: float, loading: bool) -> tuple[list[float], int]:
    """Return the times of texts of the loaded model, and how often the cold one was loaded meanwhile."""
    asking, other, ended = Client("127.0.0.1", port), Client("127.0.0.1", port), threading.Event()
    times: list[float] = []
    asker = threading.Thread(target=lambda: times.extend(until(asking, ended)))
    asker.start()
    loads, begun = 0, perf_counter()
    while loading and perf_counter() - begun < seconds:
        cold_answer(other)
        loads += 1
    ended.wait(max(0.0, seconds - (perf_counter() - begun)))
    ended.set()
    asker.join()
    return times, loads


def milliseconds(times: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the longest of some times."""
    return {name: round(1e3 * value, 1) for name, value in zip(("p50", "p99", "longest"), _points(times), strict=True)}


def _points(times: list[float]) -> tuple[float, float, float]:
    return median(times), quantiles(times, n=100)[98], max(times)


def measured(port: int, pid: int, loads: int, seconds: float) -> dict[str, Any]:
    """Return what is printed and saved."""
    client = Client("127.0.0.1", port)
    post(client, "/embed", {"model": LOADED, "inputs": "hello world"})
    first = post(client, "/embed", {"model": COLD, "inputs": "hello world"})
    before = cpu_seconds(pid)
    cold = [cold_answer(client) for _ in range(loads)]
    processor = (cpu_seconds(pid) - before) / loads
    alone, _ = beside(port, seconds, loading=False)
    loaded, meanwhile = beside(port, seconds, loading=True)
    return {
        "first_ms": round(1e3 * first, 1),
        "cold_ms": milliseconds(cold),
        "processor_ms_a_load": round(1e3 * processor),
        "loaded_alone_ms": milliseconds(alone),
        "loaded_beside_loads_ms": milliseconds(loaded),
        "loads_meanwhile": meanwhile,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models/store/all-MiniLM-L6-v2", help="exported folder")
    parser.add_argument("--loads", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each part beside loads")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/on_demand.json")
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for name in (COLD, LOADED):
            shutil.copytree(options.model, Path(folder, "store", name))
        port, log = free_port(), Path(folder, "inlay.log")
        command = inlay("serve", "--store", f"{folder}/store", "--load", "on-demand", "--port", str(port))
        command += ["--grpc-port", "0", "--keep-alive", "-1", "--log-level", "warning"]
        process = stack.enter_context(server(command, stack.enter_context(log.open("wb"))))
        wait_for(process, log, port, "/health/ready")
        found = measured(port, process.pid, options.loads, options.seconds)
    print(facts_line())
    for name, value in found.items():
        print(f"{name:24} {value}")
    if options.save:
        saved = {"facts": facts(), "model": options.model.name, **found}
        (RESULTS / "on_demand.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
