"""Load generators: wrk for HTTP and h2load for gRPC where they are installed, otherwise small Python ones.

A Python generator shares its speed with what it measures: where `is_ceiling` is true, requests/s may be the generator's
own limit, and only the server's processor time for a request can be trusted.
"""

import base64
import json
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtest.processes import ROOT, Cores, python, running_on
from loadtest.workload import percentile

INSTALL = "apt-get install wrk nghttp2-client"
HEAD_BYTES = 4096  # the most that status line and headers of one response take
WRK_SCRIPT = """
wrk.method = "POST"
local bodies, sent = {%s}, 0
wrk.body = bodies[1]
%s
if #bodies > 1 then
  function request()
    sent = sent + 1
    return wrk.format(nil, nil, nil, bodies[sent %% #bodies + 1])
  end
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %%d %%d %%d %%d %%d %%d\\n", summary.requests, summary.duration, summary.bytes,
    latency:percentile(50), latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
"""


class BadLoad(Exception):
    """A generator failed, or a server's answers were wrong."""


@dataclass(frozen=True)
class LoadRequest:
    """One request, or one after the other of several, that a generator sends again and again: POST to a loopback port.

    Attributes:
        port: of the server.
        path: of the route, or of the gRPC method.
        headers: of HTTP; empty for gRPC.
        body: of HTTP, or the gRPC message.
        response_bytes: bytes of float data in a right answer. A smaller answer is a failure; wrk and h2load count
            headers too, so with them an answer must be smaller by more than these.
        others: of HTTP: bodies that are sent in turn with the first.
    """

    port: int
    path: str
    headers: Mapping[str, str]
    body: bytes
    response_bytes: int
    others: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class LoadResult:
    """Requests answered, in how many seconds, and the median and 99th percentile of their latency."""

    requests: int
    seconds: float
    p50_us: float
    p99_us: float

    @classmethod
    def of(cls, latencies_us: Iterable[float], seconds: float) -> "LoadResult":
        """Return the result of requests with these latencies, in microseconds."""
        ordered = sorted(latencies_us)
        return cls(len(ordered), seconds, percentile(ordered, 0.5), percentile(ordered, 0.99))

    @property
    def per_second(self) -> float:
        """Requests answered in a second."""
        return self.requests / self.seconds


@dataclass(frozen=True)
class Generator:
    """A program that loads one protocol; `is_ceiling`: its own speed may be what is measured."""

    name: str
    is_ceiling: bool


WRK = Generator("wrk", is_ceiling=False)
H2LOAD = Generator("h2load", is_ceiling=False)
PYTHON_HTTP = Generator("python asyncio", is_ceiling=True)
PYTHON_GRPC = Generator("python grpc.aio", is_ceiling=True)


def choose(protocol: str, fallback: bool = False) -> Generator:
    """Return the best generator on this machine.

    Args:
        protocol: "http" or "grpc".
        fallback: take the Python one although wrk or h2load is installed.
    """
    if protocol == "http":
        return WRK if shutil.which("wrk") and not fallback else PYTHON_HTTP
    return H2LOAD if shutil.which("h2load") and not fallback else PYTHON_GRPC


def run(generator: Generator, request: LoadRequest, calls: int, seconds: float, cores: Cores) -> LoadResult:
    """Keep `calls` requests in flight for `seconds`, each on a connection of its own.

    The Python gRPC generator is the exception: its calls are streams of one connection.

    Raises:
        BadLoad: an answer was not a success, or held too few bytes.
    """
    with running_on(cores):
        if generator is WRK:
            return _wrk(request, calls, seconds)
        if generator is H2LOAD:
            return _h2load(request, calls, seconds)
        module = "loadtest.http_generator" if generator is PYTHON_HTTP else "loadtest.grpc_generator"
        bodies = [base64.b64encode(body).decode() for body in (request.body, *request.others)]
        order = {**asdict(request), "body": bodies[0], "others": bodies[1:], "calls": calls, "seconds": seconds}
        return LoadResult(**json.loads(output_of(python("-m", module), seconds, json.dumps(order))))


def _wrk(request: LoadRequest, calls: int, seconds: float) -> LoadResult:
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in request.headers.items())
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        bodies = ",".join(f"[==[{body.decode()}]==]" for body in (request.body, *request.others))
        script.write(WRK_SCRIPT % (bodies, headers))
        script.flush()
        # wrk takes whole seconds only; a longer run is steadier, so round up. A peer's slow answer is no failure.
        flags = ["-t1", f"-c{calls}", f"-d{max(1, -int(-seconds // 1))}s", "--timeout", "10s"]
        command = ["wrk", *flags, "-s", script.name]
        output = output_of([*command, f"http://127.0.0.1:{request.port}{request.path}"], seconds)
    match = re.search(r"RESULT" + 6 * r" (\d+)", output)
    if not match:
        raise BadLoad(f"wrk printed no result:\n{output[-1000:]}")
    requests, duration, size, p50, p99, failures = map(int, match.groups())
    # wrk counts statuses above 399 as errors; any other wrong answer shows in the bytes. Answers cut off by the end of
    # the run are in the bytes and not in the requests.
    least, most = requests * request.response_bytes, (requests + calls) * (request.response_bytes + HEAD_BYTES)
    if failures or not requests or not least <= size <= most:
        raise BadLoad(
            f"{failures} of {requests} requests to {request.path} failed; {size} bytes came where {least} to {most} "
            f"were due:\n{output[-1000:]}"
        )
    return LoadResult(requests, duration / 1e6, p50, p99)


def _h2load(request: LoadRequest, calls: int, seconds: float) -> LoadResult:
    # A gRPC message on the wire: one byte "not compressed", four bytes length, the message.
    frame = struct.pack(">BI", 0, len(request.body)) + request.body
    with tempfile.TemporaryDirectory() as folder:
        data, log = Path(folder, "frame"), Path(folder, "log")
        data.write_bytes(frame)
        command = [
            "h2load",
            "-t1",
            f"-c{calls}",
            "-m1",
            "-D",
            f"{seconds * 1000:.0f}ms",
            f"--data={data}",
            f"--log-file={log}",
        ]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        output = output_of([*command, f"http://127.0.0.1:{request.port}{request.path}"], seconds)
        rows = [line.split("\t") for line in log.read_text().splitlines()]
    # The log holds a row for each finished call. h2load does not read grpc-status: a failed call has HTTP status 200
    # and no data, so the bytes tell.
    wrong = [row[1] for row in rows if row[1] != "200"]
    size = re.search(r"\((\d+)\) data", output)
    if wrong or not rows or not size or int(size[1]) < len(rows) * request.response_bytes:
        raise BadLoad(f"{len(wrong)} of {len(rows)} calls to {request.path} failed:\n{output[-1000:]}")
    ends = [int(row[0]) + int(row[2]) for row in rows]
    lasted = (max(ends) - min(int(row[0]) for row in rows)) / 1e6
    return LoadResult.of((float(row[2]) for row in rows), lasted)


def output_of(command: list[str], seconds: float, standard_input: str = "") -> str:
    """Return what a generator prints.

    Args:
        command: program and arguments.
        seconds: how long it is to run; it is ended 20 seconds later.
        standard_input: what it reads from its standard input.

    Raises:
        BadLoad: it failed or did not end.
    """
    limit = seconds + 20
    try:
        done = subprocess.run(
            command, cwd=ROOT, input=standard_input, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BadLoad(f"{' '.join(command[:3])} did not end within {limit:.0f} s") from error
    if done.returncode:
        raise BadLoad(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
