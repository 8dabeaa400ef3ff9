"""Load generators: wrk and h2load where they are installed, else lean Python ones in a process of their own.

A Python generator shares its speed with what it measures: where `limits` is true, requests/s may be the generator's
own ceiling, and only the server's CPU time per request can be trusted.
"""

import base64
import json
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.processes import ROOT, Cores, python, running_on
from loadtest.workload import percentile

WRK_SCRIPT = """
wrk.method = "POST"
wrk.body = [==[%s]==]
%s
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %%d %%d %%d %%d %%d %%d\\n", summary.requests, summary.duration, summary.bytes,
    latency:percentile(50), latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
"""


class BadLoad(Exception):
    """A generator that failed or met wrong answers."""


@dataclass(frozen=True)
class Ask:
    """One request, sent again and again: POST `body` to a loopback port; for gRPC `body` is the message.

    answer_bytes   the least a right answer holds; a shorter one is a failure (h2load does not read grpc-status)
    """

    port: int
    path: str
    headers: Mapping[str, str]
    body: bytes
    answer_bytes: int


@dataclass(frozen=True)
class Load:
    """What a generator saw: requests answered, over how long, and the median and 99th percentile of their latency."""

    requests: int
    seconds: float
    p50_us: float
    p99_us: float

    @property
    def per_second(self) -> float:
        """Requests answered in a second."""
        return self.requests / self.seconds


@dataclass(frozen=True)
class Generator:
    """A way to load one protocol; `limits`: its own speed may be the ceiling."""

    name: str
    limits: bool


WRK = Generator("wrk", limits=False)
H2LOAD = Generator("h2load", limits=False)
PYTHON_HTTP = Generator("python asyncio", limits=True)
PYTHON_GRPC = Generator("python grpc.aio", limits=True)


def choose(protocol: str, force_python: bool = False) -> Generator:
    """The best generator on this machine for "http" or "grpc"."""
    if protocol == "http":
        return WRK if shutil.which("wrk") and not force_python else PYTHON_HTTP
    return H2LOAD if shutil.which("h2load") and not force_python else PYTHON_GRPC


def run(generator: Generator, ask: Ask, calls: int, seconds: float, cores: Cores) -> Load:
    """Keep `calls` requests under way for `seconds`: HTTP on as many connections, gRPC on the streams of one.

    raises   BadLoad if any was not answered with success
    """
    with running_on(cores):
        if generator is WRK:
            return _wrk(ask, calls, seconds)
        if generator is H2LOAD:
            return _h2load(ask, calls, seconds)
        return _python("loadtest.raw_http" if generator is PYTHON_HTTP else "loadtest.raw_grpc", ask, calls, seconds)


def _wrk(ask: Ask, calls: int, seconds: float) -> Load:
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in ask.headers.items())
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(WRK_SCRIPT % (ask.body.decode(), headers))
        script.flush()
        # wrk takes whole seconds only; a longer run is steadier, so round up.
        command = ["wrk", "-t1", f"-c{calls}", f"-d{max(1, -int(-seconds // 1))}s", "-s", script.name]
        output = printed([*command, f"http://127.0.0.1:{ask.port}{ask.path}"], seconds)
    found = re.search(r"RESULT" + 6 * r" (\d+)", output)
    if not found:
        raise BadLoad(f"wrk printed no result:\n{output[-1000:]}")
    requests, duration, size, p50, p99, failures = map(int, found.groups())
    if failures or not requests or size < requests * ask.answer_bytes:
        raise BadLoad(f"{failures} of {requests} requests to {ask.path} failed:\n{output[-1000:]}")
    return Load(requests, duration / 1e6, p50, p99)


def _h2load(ask: Ask, calls: int, seconds: float) -> Load:
    # A gRPC message on the wire: one byte "not compressed", four bytes length, the message.
    frame = struct.pack(">BI", 0, len(ask.body)) + ask.body
    with tempfile.TemporaryDirectory() as folder:
        data, log = Path(folder, "frame"), Path(folder, "log")
        data.write_bytes(frame)
        command = ["h2load", "-t1", f"-c{calls}", "-m1", "-D", f"{seconds:g}", f"--data={data}", f"--log-file={log}"]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        output = printed([*command, f"http://127.0.0.1:{ask.port}{ask.path}"], seconds)
        rows = [line.split("\t") for line in log.read_text().splitlines()]
    # Calls cut off by the end of the run are no failures; a status other than 200 or an answer without data is.
    wrong = [row[1] for row in rows if row[1] != "200"]
    size = re.search(r"\((\d+)\) data", output)
    if wrong or not rows or not size or int(size[1]) < len(rows) * ask.answer_bytes:
        raise BadLoad(f"{len(wrong)} of {len(rows)} calls to {ask.path} failed:\n{output[-1000:]}")
    micros = sorted(float(row[2]) for row in rows)
    ends = [int(row[0]) + int(row[2]) for row in rows]
    lasted = (max(ends) - min(int(row[0]) for row in rows)) / 1e6
    return Load(len(rows), lasted, percentile(micros, 0.5), percentile(micros, 0.99))


def _python(module: str, ask: Ask, calls: int, seconds: float) -> Load:
    order = {**asdict(ask), "body": base64.b64encode(ask.body).decode(), "calls": calls, "seconds": seconds}
    return Load(**json.loads(printed(python("-m", module), seconds, json.dumps(order))))


def printed(command: list[str], seconds: float, given: str = "") -> str:
    """What a generator prints that is given `seconds` and a little more; raises BadLoad where it fails."""
    limit = seconds + 20
    try:
        done = subprocess.run(
            command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BadLoad(f"{' '.join(command[:3])} did not end within {limit:.0f} s") from error
    if done.returncode:
        raise BadLoad(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
