"""One short run that holds the service against servers that compute nothing, measured in turn on the same machine.

    python -m loadtest.bench [--quick] [--only REGEX] [--save] [--peer fastapi] [--no-pin] [--python-load]

Where there are two cores, the server under load has one and the generator the other. Rounds are interleaved: in each
round every case meets every server, one at a time, and a ratio compares neighbours in time. Prints requests/s,
latencies, the server's CPU time per request, and the ratios; writes nothing but loadtest/results, and that with
--save only.
"""

import argparse
import contextlib
import http.client
import json
import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from loadtest import contestants, generators, report, workload
from loadtest.contestants import Plan, Running
from loadtest.generators import Ask, BadLoad
from loadtest.processes import ROOT, Cores, NotReady, cpu_seconds, end_on_sigterm, split_cores
from loadtest.report import Row, Sample
from proto import embed_pb2

WIDTH = 384
EMBED_RPC = "/inlay.v1.Embedder/Embed"
RAW = {"content-type": "application/json", "accept": "application/octet-stream"}
HTTP_BARS = {(16, 1): 0.70, (16, 32): 0.70, (128, 32): 0.40, (512, 32): 0.28}  # by ids and connections
GRPC_BAR = 0.70
TEXT = "a short text of some twenty words that a caller of an embedding service might well send to it every day"


@dataclass(frozen=True)
class Case:
    """One kind of request at one number of concurrent calls; its answer is `rows` rows of WIDTH float32."""

    name: str
    protocol: str
    calls: int
    rows: int
    seconds: int
    body: bytes
    target: float | None = None
    text: bool = False

    def ask(self, running: Running) -> Ask:
        """The request as that server takes it."""
        port, size = running.ports[self.protocol], self.rows * WIDTH * 4
        if self.protocol == "grpc":
            return Ask(port, EMBED_RPC, {}, self.body, size)
        return Ask(port, f"/{self.rows}" if running.plan.by_rows else "/embed", RAW, self.body, size)

    def meets(self, plan: Plan) -> bool:
        """Whether that server takes part."""
        return self.protocol in plan.protocols and (plan.reads_text or not self.text)


def cases(seconds: int) -> list[Case]:
    """The cases of a run, each measured for `seconds` a round."""
    rng = random.Random(16)
    found = []
    for count in (16, 128, 512):
        ids = workload.ids(rng, count)
        body = json.dumps({"inputs": [ids], "outputs": ["input_embeddings"]}).encode()
        found += [
            Case(f"POST /embed, {count} ids", "http", calls, count, seconds, body, HTTP_BARS.get((count, calls)))
            for calls in (1, 32)
        ]
    body = json.dumps({"inputs": TEXT}).encode()
    found += [Case("POST /embed, one text", "http", calls, 1, seconds, body, text=True) for calls in (1, 32)]
    message = embed_pb2.EmbedRequest(outputs=["input_embeddings"])
    message.inputs.add().ids.input_ids.extend(workload.ids(rng, 16))
    body = message.SerializeToString()
    return [*found, *(Case("gRPC Embed, 16 ids", "grpc", n, 16, seconds, body, GRPC_BAR) for n in (1, 32))]


def check(case: Case, running: Running) -> None:
    """One real call, answered in full: a fast refusal must never be measured. Raises BadLoad."""
    ask = case.ask(running)
    if case.protocol == "grpc":
        with grpc.insecure_channel(f"127.0.0.1:{ask.port}") as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(ask.path)
            answer = embed_pb2.EmbedResponse.FromString(call(ask.body, timeout=10))
        status, size = 200, len(answer.outputs[0].tensor.data)
    else:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", ask.port, timeout=10)) as connection:
            connection.request("POST", ask.path, ask.body, dict(ask.headers))
            response = connection.getresponse()
            status, size = response.status, len(response.read())
    if status != 200 or size != ask.answer_bytes:
        raise BadLoad(
            f"{running.plan.name} answered {case.name} with {status} and {size} bytes, not {ask.answer_bytes}"
        )


def measure(case: Case, running: Running, generator: generators.Generator, cores: Cores, seconds: int) -> Sample:
    """One server, one case, one round."""
    before = cpu_seconds(running.pid)
    load = generators.run(generator, case.ask(running), case.calls, seconds, cores)
    spent = cpu_seconds(running.pid) - before
    return Sample(load.per_second, load.p50_us, load.p99_us, spent / load.requests * 1e6)


def rounds(plan: Sequence[Case], servers: Sequence[Running], cores: Cores, count: int, force_python: bool) -> list[Row]:
    """All cases against all servers, `count` times over, after one unmeasured second for each."""
    chosen = {protocol: generators.choose(protocol, force_python) for protocol in ("http", "grpc")}
    pairs = [(case, running) for case in plan for running in servers if case.meets(running.plan)]
    samples: dict[tuple[Case, str], list[Sample]] = defaultdict(list)
    for case, running in pairs:
        check(case, running)
        if case.calls > 1:
            measure(case, running, chosen[case.protocol], cores, 1)
    for number in range(count):
        for place, (case, running) in enumerate(pairs):
            tell(f"round {number + 1} of {count}: {place + 1} of {len(pairs)}, {case.name}, {running.plan.name}")
            one = measure(case, running, chosen[case.protocol], cores, case.seconds)
            samples[case, running.plan.name].append(one)
    tell("")
    return [_row(case, chosen[case.protocol], samples) for case in plan]


def _row(case: Case, generator: generators.Generator, samples: dict[tuple[Case, str], list[Sample]]) -> Row:
    own = {name: found for (of, name), found in samples.items() if of is case}
    return Row(case.name, case.calls, generator.name, generator.limits, case.target, own)


def tell(line: str) -> None:
    """Progress, on one line of a terminal and nowhere else."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--store", type=Path, default=ROOT / "models/store", help="folder of exported models")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="a model of width 384 in that store")
    parser.add_argument("--seconds", type=int, default=3, help="of each case and server in a round")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; figures are their medians")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 s, for development")
    parser.add_argument("--only", default="", help='regular expression searched in "POST /embed, 16 ids, 32 calls"')
    parser.add_argument("--peer", choices=["fastapi"], help="measure a newcomer's server around the same .onnx beside")
    parser.add_argument("--no-pin", action="store_true", help="let servers and generators share all cores")
    parser.add_argument("--python-load", action="store_true", help="do not use wrk and h2load")
    parser.add_argument("--save", action="store_true", help="write loadtest/results/bench.json and bench.md")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 2, 2
    return options


def main() -> int:
    """Run, print, perhaps save; 0 whether or not the targets are met, 1 if something could not be measured."""
    options = arguments()
    end_on_sigterm()
    server_cores, load_cores = split_cores(pin=not options.no_pin)
    plans = [contestants.EMPTY_HTTP, contestants.EMPTY_GRPC, contestants.inlay(options.store, options.model)]
    if options.peer:
        plans.append(contestants.plain_fastapi(options.store / options.model))
    wanted = [case for case in cases(options.seconds) if re.search(options.only, f"{case.name}, {case.calls} calls")]
    try:
        with contextlib.ExitStack() as stack:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers = [stack.enter_context(contestants.started(plan, logs, server_cores)) for plan in plans]
            rows = rounds(wanted, servers, load_cores, options.rounds, options.python_load)
    except (NotReady, BadLoad) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    pinned = "one core for the server, one for the generator" if server_cores != load_cores else "all cores shared"
    print(f"{pinned}; {options.rounds} rounds; {report.facts_line()}\n")
    report.print_table(rows)
    if options.save:
        settings = {"placement": pinned, "rounds": str(options.rounds), "model": options.model}
        report.save(rows, settings, Path(__file__).parent / "results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
