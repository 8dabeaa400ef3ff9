"""Throughput of Inlay as a share of servers that only send constants, or beside its peers, in one run on one machine.

    python -m loadtest.bench [--quick] [--only REGEX] [--save]
    python -m loadtest.bench --peers [--quick] [--only REGEX] [--save]

Without --peers the server under load has one core and the generator another; Inlay is compared with an empty uvicorn
app that gets the same headers and sends the same bytes, and with an empty grpc.aio server. Requests have the headers
that `requests` sends, those of 16 ids also other forms, one of them with a key that a second Inlay asks for. With
--peers Inlay has its default settings and all servers share all cores with the generator; it is compared with plain
FastAPI and mosec around the same graphs.

Rounds are interleaved: in each round every case meets every server, one at a time, and a ratio compares neighbours in
time. Before it is measured, each server answers each case once in full, and the numbers of all of them must agree.
Prints requests/s, latencies, the server's processor time for a request, and the ratios; --save writes
loadtest/results/bench.md and bench.json, with --peers peers.md and peers.json. Exits with 1 if something could not be
measured, and with 0 whether or not the bars are met.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import numpy as np

from loadtest import bench_report, generators, servers, workload
from loadtest.bench_report import Row, Sample
from loadtest.facts import facts_line
from loadtest.generators import BadLoad, Generator, LoadRequest
from loadtest.processes import RESULTS, ROOT, Cores, NotReady, cpu_seconds, end_on_sigterm, split_cores
from loadtest.response_checks import Floats
from loadtest.servers import RunningServer, ServerSpec
from proto import embed_pb2

WIDTH = 384
EMBED_RPC = "/inlay.v1.Embedder/Embed"
KEY = "a-key-of-the-benchmark"
BARE = {"content-type": "application/json", "accept": "application/octet-stream"}
REQUESTS = BARE | {
    "user-agent": "python-requests/2.32.5",
    "accept-encoding": "gzip, deflate",
    "connection": "keep-alive",
}
FORMS = {
    "": REQUESTS,
    ", bare headers": BARE,
    ", headers of httpx": REQUESTS | {"user-agent": "python-httpx/0.28.1"},
    ", with id, trace and timeout": REQUESTS
    | {
        "x-request-id": "4bf92f35-77b3-4da6-a3ce-929d0e0e4736",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "inlay-timeout-ms": "30000",
    },
    ", with a key": REQUESTS | {"authorization": f"Bearer {KEY}"},
}
"""The headers that clients send, by the end of a case's name; the first are those of `requests`."""
GUARDED = ", with a key"
HTTP_BARS = {(16, 1): 0.55, (16, 32): 0.70, (128, 32): 0.40, (512, 32): 0.28}  # by ids and connections
GRPC_BAR = 0.70
TEXT = "a short text of some twenty words that a caller of an embedding service might well send to it every day"


@dataclass(frozen=True)
class Case:
    """One kind of request at one number of connections; its answer is `rows` rows of WIDTH float32.

    Attributes:
        name: without the number of connections.
        protocol: "http" or "grpc".
        connections: requests in flight, each on a connection of its own.
        rows: of the answer.
        body: the JSON document or the gRPC message.
        bar: the least share of the empty server's requests/s; None: no bar.
        is_text: the input is a text, not ids.
        form: of the headers, one of FORMS.
        others: JSON documents that are sent in turn with the first.
    """

    name: str
    protocol: str
    connections: int
    rows: int
    body: bytes
    bar: float | None = None
    is_text: bool = False
    form: str = ""
    others: tuple[bytes, ...] = ()

    @property
    def label(self) -> str:
        """Name and number of connections, in which --only searches."""
        return f"{self.name}, {self.connections} connection{'s' if self.connections > 1 else ''}"

    def request_to(self, running: RunningServer) -> LoadRequest:
        """Return the request as that server takes it."""
        port, size = running.ports[self.protocol], self.rows * WIDTH * 4
        if self.protocol == "grpc":
            return LoadRequest(port, EMBED_RPC, {}, self.body, size)
        path = running.spec.text_path if self.is_text else running.spec.ids_path.format(rows=self.rows)
        return LoadRequest(port, path or "", FORMS[self.form], self.body, size, self.others)

    def is_answered_by(self, spec: ServerSpec) -> bool:
        """Whether that server takes part."""
        if self.protocol not in spec.protocols or (self.is_text and spec.text_path is None):
            return False
        return spec.is_empty or spec.guarded == (self.form == GUARDED)


def text_case(name: str, connections: int, texts: int = 256) -> Case:
    """Return the case of one text of twenty words a request; no two in flight are equal."""
    first, *others = [json.dumps({"inputs": text}).encode() for text in workload.reordered(TEXT, texts)]
    return Case(name, "http", connections, 1, first, is_text=True, others=tuple(others))


def cases(peers: bool) -> list[Case]:
    """Return the cases of a run; the peers have no gRPC and no bars."""
    rng = random.Random(16)
    listed = []
    for count in (16, 128, 512):
        document = {"inputs": [workload.ids(rng, count)], "outputs": ["input_embeddings"]}
        for calls in (1, 32):
            bar = None if peers else HTTP_BARS.get((count, calls))
            name, body = f"POST /embed, {count} ids", json.dumps(document).encode()
            forms = FORMS if count == 16 and not peers else [""]
            listed += [Case(name + form, "http", calls, count, body, bar, form=form) for form in forms]
    listed += [text_case("POST /embed, one text", calls) for calls in (1, 32)]
    if peers:
        return listed
    message = embed_pb2.EmbedRequest(outputs=["input_embeddings"])
    message.inputs.add().ids.input_ids.extend(json.loads(listed[0].body)["inputs"][0])
    body = message.SerializeToString()
    return [*listed, *(Case("gRPC Embed, 16 ids", "grpc", calls, 16, body, GRPC_BAR) for calls in (1, 32))]


def call_once(case: Case, running: RunningServer) -> Floats:
    """Make one real call and return its numbers, float32 (rows, WIDTH).

    Raises:
        BadLoad: the status is not a success, or the answer has another size.
    """
    request = case.request_to(running)
    if case.protocol == "grpc":
        with grpc.insecure_channel(f"127.0.0.1:{request.port}") as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(request.path)
            answer = embed_pb2.EmbedResponse.FromString(call(request.body, timeout=10))
        status, data = 200, answer.outputs[0].tensor.data
    else:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", request.port, timeout=10)) as connection:
            connection.request("POST", request.path, request.body, dict(request.headers))
            response = connection.getresponse()
            status, data = response.status, response.read()
    if status != 200 or len(data) != request.response_bytes:
        size = request.response_bytes
        raise BadLoad(f"{running.spec.name} answered {case.name} with {status} and {len(data)} bytes, not {size}")
    return np.frombuffer(data, np.float32).reshape(case.rows, WIDTH)


def check_numbers(pairs: Sequence[tuple[Case, RunningServer]]) -> None:
    """Call every server once for every case and compare their numbers; an empty server must give zeros.

    Raises:
        BadLoad: an answer is wrong.
    """
    first: dict[tuple[int, bool], tuple[str, Floats]] = {}
    for case, running in pairs:
        rows = call_once(case, running)
        if running.spec.is_empty:
            name, expected = "an empty server", np.zeros_like(rows)
        else:
            name, expected = first.setdefault((case.rows, case.is_text), (running.spec.name, rows))
        difference = float(np.abs(rows - expected).max())
        if not difference <= running.spec.tolerance:
            raise BadLoad(f"{case.name}: {running.spec.name} differs from {name} by {difference:.2g}")


def measure(case: Case, running: RunningServer, generator: Generator, cores: Cores, seconds: float) -> Sample:
    """Load one server with one case, then make one more real call.

    Raises:
        BadLoad: an answer is wrong.
    """
    before = cpu_seconds(running.pid)
    load = generators.run(generator, case.request_to(running), case.connections, seconds, cores)
    spent = cpu_seconds(running.pid) - before
    call_once(case, running)
    return Sample(load.per_second, load.p50_us, load.p99_us, spent / load.requests * 1e6)


@dataclass(frozen=True)
class Run:
    """One measurement: pairs of cases and servers, the cores of the generator, seconds and rounds."""

    pairs: Sequence[tuple[Case, RunningServer]]
    load_cores: Cores
    seconds: float
    rounds: int
    fallback: bool

    def rows(self) -> list[Row]:
        """Check every answer, warm every server up for a second a case, measure all rounds."""
        check_numbers(self.pairs)
        for case, running in self.pairs:
            if case.connections > 1:
                self._measure(case, running, 1)
        samples: dict[Case, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        for number in range(self.rounds):
            for place, (case, running) in enumerate(self.pairs):
                progress(f"round {number + 1}/{self.rounds}, {place + 1}/{len(self.pairs)}: {case.label}")
                samples[case][running.spec.name].append(self._measure(case, running, self.seconds))
        progress("")
        return [self._row(case, dict(samples[case])) for case in samples]

    def _measure(self, case: Case, running: RunningServer, seconds: float) -> Sample:
        return measure(case, running, generators.choose(case.protocol, self.fallback), self.load_cores, seconds)

    def _row(self, case: Case, samples: dict[str, list[Sample]]) -> Row:
        generator = generators.choose(case.protocol, self.fallback)
        return Row(case.name, case.connections, generator.name, generator.is_ceiling, case.bar, samples)

    def generator_notes(self) -> list[str]:
        """Compare wrk and h2load with the Python generators against the empty servers."""
        notes = []
        for case, running in self.pairs:
            generator = generators.choose(case.protocol, self.fallback)
            is_chosen = running.spec.is_empty and case.rows == 16 and case.connections > 1 and not case.form
            if is_chosen and not generator.is_ceiling:
                other = generators.choose(case.protocol, fallback=True)
                speeds = [
                    measure(case, running, candidate, self.load_cores, self.seconds) for candidate in (generator, other)
                ]
                speeds_text = " and ".join(
                    f"{candidate.name} {speed.per_second:.0f}/s (server busy for {speed.busy:.0%} of a core)"
                    for candidate, speed in zip((generator, other), speeds, strict=True)
                )
                notes.append(f"Generators against the empty server, {case.label}: {speeds_text}.")
        return notes


def progress(line: str) -> None:
    """Show progress on one line of a terminal; print nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="a model of width 384 in that store")
    parser.add_argument("--seconds", type=float, default=3, help="of each case and server in a round")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; figures are their medians")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 s, for development")
    parser.add_argument("--only", default="", help='regular expression searched in "POST /embed, 16 ids, 1 connection"')
    parser.add_argument("--peers", action="store_true", help="compare with mosec and FastAPI, default settings")
    parser.add_argument("--serve", default="", help='more flags of serve, as in --serve="--threads 2"')
    parser.add_argument("--empty-reads-body", action="store_true", help="let the empty uvicorn app read the body first")
    parser.add_argument("--no-pin", action="store_true", help="let server and generator share all cores")
    parser.add_argument("--python-load", action="store_true", help="do not use wrk and h2load")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/bench.* or peers.*")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 2, 2
    return options


def compared(options: argparse.Namespace, one_core: bool) -> list[ServerSpec]:
    """Return the servers of this run."""
    folder, flags = options.store / options.model, options.serve.split()
    if options.peers:
        peers = [servers.mosec_server(folder, batching) for batching in (True, False)]
        return [servers.inlay_server(options.store, options.model, flags), servers.fastapi_server(folder), *peers]
    inlay = servers.inlay_server(options.store, options.model, [*(servers.ONE_CORE if one_core else ()), *flags])
    guarded = replace(inlay, guarded=True, protocols=("http",), env={"INLAY_API_KEYS": KEY})
    return [servers.empty_http(options.empty_reads_body), servers.empty_grpc(), inlay, guarded]


def run(options: argparse.Namespace) -> tuple[list[Row], list[str], str]:
    """Start the servers and measure; return rows, notes about the generators, and the placement."""
    server_cores, load_cores = split_cores(pin=not options.no_pin and not options.peers)
    pinned = server_cores != load_cores
    chosen_cases = [case for case in cases(options.peers) if re.search(options.only, case.label)]
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = [
            stack.enter_context(servers.started(spec, logs, server_cores))
            for spec in compared(options, pinned)
            if any(case.is_answered_by(spec) for case in chosen_cases)
        ]
        pairs = [(case, server) for case in chosen_cases for server in running if case.is_answered_by(server.spec)]
        job = Run(pairs, load_cores, options.seconds, options.rounds, options.python_load)
        rows = job.rows()
        notes = [] if options.quick else job.generator_notes()
    return rows, notes, "one core for the server, one for the generator" if pinned else "all cores shared"


def main() -> int:
    """Run, print and perhaps save."""
    options = arguments()
    end_on_sigterm()
    if not options.python_load:
        for protocol in ("http", "grpc"):
            if (generator := generators.choose(protocol)).is_ceiling:
                print(f"bench: warning: using {generator.name}, which may be the ceiling: {generators.INSTALL}")
    if options.peers and not servers.PEERS_PYTHON.exists():
        print("bench: mosec is not installed; run: make bench ARGS=--peers", file=sys.stderr)
        return 1
    before = os.getloadavg()[0]
    try:
        rows, notes, placement = run(options)
    except (NotReady, BadLoad, grpc.RpcError) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    print(f"{placement}; {options.rounds} rounds of {options.seconds:g} s; load average {before:.1f}; {facts_line()}\n")
    bench_report.print_table(rows, notes)
    if options.save:
        settings = {
            "placement": placement,
            "rounds": f"{options.rounds} of {options.seconds:g} s",
            "model": options.model,
            "load average before": f"{before:.1f}",
            "more flags of serve": options.serve or "none",
            "empty app": "reads the body" if options.empty_reads_body else "does not read the body",
        }
        bench_report.save(rows, notes, settings, RESULTS / ("peers" if options.peers else "bench"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
