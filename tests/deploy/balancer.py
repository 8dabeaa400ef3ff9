"""HAProxy before three real servers under load: `make deploy-test-haproxy`. Needs haproxy; pytest does not collect it.

Restarts every server in turn, kills one after the other with SIGKILL, restarts them with a drain delay, and counts what
each request came to.
`python -m tests.deploy.balancer [--save FILE] [flags of inlay serve ...]` ends with exit code 1 if a request failed.
"""

import argparse
import csv
import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc

from proto import embed_pb2, embed_pb2_grpc

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "deploy/haproxy/haproxy.cfg"
STORE, MODEL = ROOT / "models/store", "all-MiniLM-L6-v2"
SERVERS = ("a", "b", "c")
CLIENTS = {"POST /embed": 4, "POST /v2/models/NAME/infer": 2, "gRPC Embed": 4}
TEXTS = [f"{number} " + "the answer of a server does not depend on which " * (number % 8 + 1) for number in range(32)]
PAUSE_SECONDS = 0.02  # of a client between two requests
PHASE_SECONDS = 3.0  # of load before and after what is done to a server
PATIENCE_SECONDS = 90.0
ANSWERED, REFUSED = "answered", "refused"


@dataclass
class Server:
    """A server on ports of its own, which it keeps over restarts."""

    name: str
    port: int
    grpc_port: int
    flags: tuple[str, ...]
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it; it answers some seconds later."""
        ports = ("--port", str(self.port), "--grpc-port", str(self.grpc_port))
        models = ("--store", str(STORE), "--models", MODEL)
        command = [sys.executable, str(Path(sys.executable).with_name("inlay")), "serve", *ports, *models]
        with self.log.open("ab") as log:
            flags = ("--threads", "1", "--device", "cpu", *self.flags)
            self.process = subprocess.Popen([*command, *flags], cwd=ROOT, stdout=log, stderr=log)

    def end(self, number: int) -> int:
        """Send a signal; return the exit code."""
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@dataclass
class Balancer:
    """HAProxy: where it answers, and what it counts."""

    port: int
    grpc_port: int
    socket: Path

    def rows(self) -> list[dict[str, str]]:
        """The rows of its statistics."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            connection.sendall(b"show stat\n")
            text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        return list(csv.DictReader(io.StringIO(text.removeprefix("# "))))

    def is_up(self, name: str) -> bool:
        """Whether requests go to a server."""
        return all(row["status"] == "UP" for row in self.rows() if row["svname"] == name)

    def repeated(self) -> int:
        """Connections and requests that were tried again, on the same or another server."""
        rows = [row for row in self.rows() if row["svname"] == "BACKEND"]
        return sum(int(row["wretr"]) + int(row["wredis"]) for row in rows)


@dataclass
class Load:
    """Clients that send until they are stopped; what their requests came to, by phase and kind."""

    balancer: Balancer
    expected: dict[str, list[object]] = field(default_factory=dict)
    phase: str = ""
    counts: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, phase: str, kind: str, outcome: str) -> None:
        """Enter the outcome of one request, by the phase in which it was sent."""
        with self.lock:
            self.counts.setdefault((phase, kind), Counter())[outcome] += 1

    def client(self, kind: str, first: int) -> None:
        """Send one request after the other."""
        with ExitStack() as stack:
            send = stack.enter_context(SENDERS[kind](self.balancer))
            for number in range(first, sys.maxsize):
                if self.stopped.is_set():
                    return
                phase, index = self.phase, number % len(TEXTS)
                outcome, answer = send(TEXTS[index])
                if outcome == ANSWERED and answer != self.expected[kind][index]:
                    outcome = "another answer"
                self.count(phase, kind, outcome)
                time.sleep(PAUSE_SECONDS if outcome == ANSWERED else 0.2)


Sent = tuple[str, object]
"""ANSWERED with the answer, REFUSED, or a failure in words."""


def post(connection: http.client.HTTPConnection, path: str, body: object) -> Sent:
    """Send one request over a connection that is kept, or opened again."""
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    except (http.client.HTTPException, OSError) as error:
        connection.close()
        return type(error).__name__, None
    if response.status in (429, 503) and response.headers["retry-after"]:
        return REFUSED, None
    return (ANSWERED, answer) if response.status == 200 else (f"status {response.status}", None)


@contextmanager
def embed(balancer: Balancer) -> Iterator[Callable[[str], Sent]]:
    """Our own route."""
    connection = http.client.HTTPConnection("127.0.0.1", balancer.port, timeout=PATIENCE_SECONDS)
    yield lambda text: post(connection, "/embed", {"inputs": text})
    connection.close()


@contextmanager
def infer(balancer: Balancer) -> Iterator[Callable[[str], Sent]]:
    """The Open Inference Protocol."""
    connection = http.client.HTTPConnection("127.0.0.1", balancer.port, timeout=PATIENCE_SECONDS)

    def send(text: str) -> Sent:
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
        outcome, answer = post(connection, f"/v2/models/{MODEL}/infer", {"inputs": [tensor]})
        return outcome, json.loads(answer)["outputs"] if isinstance(answer, bytes) else None

    yield send
    connection.close()


@contextmanager
def call(balancer: Balancer) -> Iterator[Callable[[str], Sent]]:
    """A channel of its own, which repeats nothing itself."""
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{balancer.grpc_port}", options) as channel:
        stub = embed_pb2_grpc.EmbedderStub(channel)

        def send(text: str) -> Sent:
            request = embed_pb2.EmbedRequest(inputs=[embed_pb2.Input(text=text)])
            try:
                answer = stub.Embed(request, timeout=PATIENCE_SECONDS)
            except grpc.RpcError as error:
                code: str = error.code().name
                return (REFUSED if code == "RESOURCE_EXHAUSTED" else f"{code}: {error.details()}"), None
            return ANSWERED, answer.outputs[0].tensor.data

        yield send


SENDERS = dict(zip(CLIENTS, (embed, infer, call), strict=True))


def wait_until(what: str, look: Callable[[], bool]) -> float:
    """Seconds until something was so; ends the program where it does not come to be."""
    start = time.monotonic()
    while time.monotonic() - start < PATIENCE_SECONDS:
        with suppress(OSError):
            if look():
                return time.monotonic() - start
        time.sleep(0.05)
    raise SystemExit(f"NOT SHOWN  {what} within {PATIENCE_SECONDS:g} s")


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def backends(servers: list[Server]) -> str:
    """The file of haproxy.cfg that names the servers."""
    lines = ["backend rest from http", *(f"  server {each.name} 127.0.0.1:{each.port} check" for each in servers)]
    lines += ["backend oip from oip"]
    lines += [f"  server {each.name} 127.0.0.1:{each.port} track rest/{each.name}" for each in servers]
    lines += ["backend grpc from calls"]
    lines += [f"  server {each.name} 127.0.0.1:{each.grpc_port} proto h2 track rest/{each.name}" for each in servers]
    return "\n".join([*lines, ""])


def haproxy() -> str:
    """The path of the program."""
    program = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
    if program is None:
        raise SystemExit("haproxy is not installed: on Debian, apt-get install haproxy")
    return program


@contextmanager
def running(folder: Path, flags: tuple[str, ...]) -> Iterator[tuple[Balancer, list[Server]]]:
    """HAProxy before three servers, all of which answer."""
    port, grpc_port, *ports = free_ports(2 + 2 * len(SERVERS))
    servers = [Server(name, ports.pop(), ports.pop(), flags, folder / f"{name}.log") for name in SERVERS]
    (folder / "servers.cfg").write_text(f"global\n  stats socket {folder}/stats\n{backends(servers)}")
    bind = {"BIND": f"127.0.0.1:{port}", "GRPC_BIND": f"127.0.0.1:{grpc_port}"}
    for server in servers:
        server.start()
    with (folder / "haproxy.log").open("wb") as log:
        command = [haproxy(), "-db", "-f", str(CONFIG), "-f", str(folder / "servers.cfg")]
        proxy = subprocess.Popen(command, env={**os.environ, **bind}, stdout=log, stderr=log)
    balancer = Balancer(port, grpc_port, folder / "stats")
    try:
        for server in servers:
            wait_until(f"HAProxy sees server {server.name}", partial(balancer.is_up, server.name))
        yield balancer, servers
    finally:
        for process in [proxy, *(server.process for server in servers)]:
            if process and process.poll() is None:
                process.kill()
                process.wait()


def restart(server: Server, balancer: Balancer) -> None:
    """Stop a server as a supervisor does, and wait until its successor serves."""
    start = time.monotonic()
    code = server.end(signal.SIGTERM)
    stopped = time.monotonic() - start
    server.start()
    wait_until(f"server {server.name} is back", lambda: answers(server) and balancer.is_up(server.name))
    print(f"  {server.name}: ended with {code} after {stopped:.1f} s, back after {time.monotonic() - start:.1f} s")
    if code:
        raise SystemExit(f"NOT SHOWN  a stopped server ends with exit code 0: {code}")


def kill(server: Server, balancer: Balancer) -> None:
    """Kill a server, go on without it for a while, and start it again."""
    server.end(signal.SIGKILL)
    time.sleep(PHASE_SECONDS)
    server.start()
    wait_until(f"server {server.name} is back", lambda: answers(server) and balancer.is_up(server.name))
    print(f"  {server.name}: killed and back")


def answers(server: Server) -> bool:
    """Whether a server itself says that it is ready."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health/ready", timeout=5) as response:
        return bool(response.status == 200)


def answers_of_one(server: Server) -> dict[str, list[object]]:
    """What one server answers to every text, asked directly, by kind of request."""
    direct = Balancer(server.port, server.grpc_port, Path())
    expected = {}
    for kind, sender in SENDERS.items():
        with sender(direct) as send:
            expected[kind] = [send(text)[1] for text in TEXTS]
    return expected


PHASES: dict[str, tuple[tuple[str, ...], Callable[[Server, Balancer], None]]] = {
    "each stopped and started again": ((), restart),
    "each killed with SIGKILL and started again": (("--drain-delay", "3"), kill),
    "each stopped and started again, with a drain delay of 3 s": ((), restart),
}
"""What is done to one server after the other, and more flags of those that are started meanwhile."""


def measure(folder: Path, flags: tuple[str, ...]) -> tuple[str, bool]:
    """Do everything; return the table of what was seen, and whether no request failed."""
    lines = ["| requests | sent | answered | refused | failed |", "|---|--:|--:|--:|---|"]
    with running(folder, flags) as (balancer, servers):
        load = Load(balancer, answers_of_one(servers[0]))
        threads = [
            threading.Thread(target=load.client, args=(kind, 7 * number))
            for kind, count in CLIENTS.items()
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            for phase, (more_flags, act) in PHASES.items():
                print(f"==> {phase}", flush=True)
                load.phase, before = phase, balancer.repeated()
                time.sleep(PHASE_SECONDS)
                for server in servers:
                    server.flags += more_flags
                    act(server, balancer)
                    time.sleep(PHASE_SECONDS)
                lines += [f"| **{phase}**: {balancer.repeated() - before} tries repeated by HAProxy | | | | |"]
                lines += [row(phase, kind, load) for kind in CLIENTS]
        finally:
            load.stopped.set()
            for thread in threads:
                thread.join()
        return "\n".join(lines), not any(set(counts) - {ANSWERED, REFUSED} for counts in load.counts.values())


def row(phase: str, kind: str, load: Load) -> str:
    """A row of the table."""
    with load.lock:
        counts = Counter(load.counts[phase, kind])
    failed = [f"{count} ({what})" for what, count in counts.items() if what not in (ANSWERED, REFUSED)]
    return f"| {kind} | {counts.total()} | {counts[ANSWERED]} | {counts[REFUSED]} | {', '.join(failed) or 0} |"


ABOUT = """# HAProxy before three servers, under load
`make deploy-test-haproxy ARGS="{arguments}"`: {version} with
`deploy/haproxy/haproxy.cfg` before three `inlay serve` of the demo model with one thread each, {clients} clients that
send one request after the other, on two cores shared with other work. A request is *answered* if it got 200 (OK), bit
for bit what one server answers that is asked alone, *refused* if it got 429 or 503 with `Retry-After`
(RESOURCE_EXHAUSTED), and *failed* otherwise. The clients themselves repeat nothing.

"""


def main() -> int:
    """Measure, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, metavar="FILE", help="file of Markdown to write")
    arguments, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        table, whole = measure(Path(folder), tuple(flags))
    print(table)
    if arguments.save:
        version = subprocess.run([haproxy(), "-v"], capture_output=True, text=True).stdout.split(" 20")[0].strip()
        about = ABOUT.format(arguments=" ".join(sys.argv[1:]), version=version, clients=sum(CLIENTS.values()))
        arguments.save.write_text(f"{about}{table}\n")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
