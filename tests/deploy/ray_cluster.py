"""Ray Serve on a cluster of three nodes on this machine: `make deploy-test-ray`; pytest does not collect it.

Each node is a raylet of its own with one logical core; proxies run on the head alone, since the nodes share this
machine's ports. Prints each claim as it is shown and ends with exit code 1 at the first that is not; --save writes
tests/deploy/ray_results.md.
"""

import argparse
import csv
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import grpc
import httpx
import yaml

from loadtest import generators
from loadtest.processes import ROOT, cpu_seconds, free_port, inlay, process_tree, python, server, wait_for
from proto.embed_pb2_grpc import EmbedderStub
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from proto.tei_pb2_grpc import EmbedStub
from tests.deploy.container import NotShown, show, wait_until
from tests.roads import EITHER, TEXT_ALONE, Roads

STORE = ROOT / "models/store"
MODEL = "all-MiniLM-L6-v2"
TEXT, IDS = "The quick brown fox jumps over the lazy dog.", [101, 1996, 4248, 2829, 4419, 102]
TABLE = "/positions/rope?head_dim=128&length=20000"  # 10 MB, streamed
REPLICAS = 3
USERS = 24  # of locust, each with one request at a time
SHARED = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # a busy machine starts a process in more than the usual 5 s
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}
PROXIES: dict[str, dict[str, str]] = {
    "Serve's own proxy": {},
    "HAProxy": {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response"},
}
START_SECONDS, SCALE_SECONDS = 180.0, 240.0
AFTER_SECONDS = 45  # of load on the two replicas that are left
WORKED_SECONDS = 3  # of processor time, before the node with the replica is killed
RESULTS = ROOT / "tests/deploy/ray_results.md"
HEADING = """# Ray Serve on three nodes
`make deploy-test-ray ARGS="--full --save"` (`tests/deploy/ray_cluster.py`): three raylets on a machine with 2 cores
that other work used too, so speeds are ratios: medians, with the least and the largest. Load is that of
`loadtest/locustfile.py`, every answer checked; proxies run on the head, and the node that is killed has a replica and
no proxy."""


class Cluster:
    """Three raylets, and Serve on them.

    Args:
        folder: for logs, configurations and Ray's own files.
        variables: of the proxies.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT), "INLAY_STORE": str(STORE)}
        self.environment.setdefault("INLAY_DEFAULT_MODEL", MODEL)  # whatever else the store holds
        self.http, self.grpc = free_port(), free_port()
        self.address = f"127.0.0.1:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start_node(self, name: str, *arguments: str) -> None:
        """Start a raylet, which lasts as long as the command."""
        shared = ("--num-cpus=1", "--disable-usage-stats", "--object-store-memory=100000000", "--block")
        agent = ("--dashboard-agent-listen-port", str(free_port()))
        command = [str(Path(sys.executable).with_name("ray")), "start", *arguments, *shared, *agent]
        with (self.folder / f"{name}.log").open("wb") as log:
            node = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self.nodes.append(node)
        # one after the other: two that start together may take the same names, and one then gives up
        started = self.folder / f"{name}.log"
        wait_until(f"{name} starts", START_SECONDS, lambda: "Ray runtime started" in started.read_text())

    def deploy(self, **changes: Any) -> None:
        """Give Serve deploy/ray/serve.yaml with this machine's ports, short delays and `changes` of its args."""
        config = yaml.safe_load((ROOT / "deploy/ray/serve.yaml").read_text())
        config["proxy_location"] = "HeadOnly"
        config["http_options"]["port"] = self.http
        config["grpc_options"]["port"] = self.grpc
        config["applications"][0]["args"] = changes
        scaling = config["applications"][0]["deployments"][0]["autoscaling_config"]
        scaling |= {"upscale_delay_s": 2, "downscale_delay_s": 10, "look_back_period_s": 11}
        file = self.folder / "serve.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [str(Path(sys.executable).with_name("serve")), "run", "--non-blocking", str(file)]
        environment = self.environment | {"RAY_ADDRESS": self.address}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
        if done.returncode:
            raise NotShown(f"serve run failed: {done.stderr[-3000:]}")

    def status(self) -> dict[str, Any]:
        """The states of replicas, by their number."""
        from ray import serve

        application = serve.status().applications.get("inlay")
        states = application.deployments["Inlay"].replica_states if application and application.deployments else {}
        return {str(getattr(state, "value", state)): count for state, count in states.items()}

    def serving(self) -> list[int]:
        """The process ids of proxy actors, of which HAProxy is a child, and of replicas."""
        tree = [pid for node in self.nodes for pid in process_tree(node.pid)]
        return [pid for pid in tree if any(word in command_of(pid) for word in ("Proxy", "ServeReplica"))]

    def running(self) -> int:
        """Replicas that serve."""
        return int(self.status().get("RUNNING", 0))


@contextmanager
def cluster(folder: Path, variables: Mapping[str, str]) -> Iterator[Cluster]:
    """A cluster that serves one replica."""
    import ray

    made = Cluster(folder, variables)
    port = made.address.partition(":")[2]
    try:
        made.start_node("head", "--head", f"--port={port}", "--include-dashboard=false")
        for number in range(1, REPLICAS):
            made.start_node(f"node{number}", f"--address={made.address}")
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        wait_until("all nodes are up", START_SECONDS, lambda: sum(node["Alive"] for node in ray.nodes()) == REPLICAS)
        made.deploy()
        wait_until("Serve answers", START_SECONDS, lambda: answers(made.http))
        yield made
    except BaseException:
        for log in folder.glob("*.log"):
            print(f"---- {log.name}\n{log.read_text(errors='replace')[-1500:]}", file=sys.stderr)
        raise
    finally:
        ray.shutdown()
        for node in made.nodes:
            kill(node)


def kill(node: subprocess.Popen[bytes]) -> None:
    """Kill every process of a node at once."""
    for process in reversed(process_tree(node.pid)):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    node.wait()


def answers(port: int) -> bool:
    """Whether a service is ready."""
    with suppress(OSError):
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=10).status == 200)
    return False


@contextmanager
def alone(folder: Path) -> Iterator[tuple[int, int, int]]:
    """The HTTP port, gRPC port and process id of `inlay serve` in one process with one thread."""
    http, rpc = free_port(), free_port()
    flags = ("--port", str(http), "--grpc-port", str(rpc), "--store", str(STORE), "--threads", "1")
    log = folder / "alone.log"
    with log.open("wb") as output, server(inlay("serve", *flags), output) as process:
        wait_for(process, log, http, "/health/ready", START_SECONDS)
        yield http, rpc, process.pid


def vectors(http: int, rpc: int) -> dict[str, bytes]:
    """What every protocol and format gives for a text and for token ids, and a streamed table."""
    given: dict[str, bytes] = {}
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{http}", timeout=60) as client,
        grpc.insecure_channel(f"127.0.0.1:{rpc}") as channel,
    ):
        roads = Roads(MODEL, client, EmbedderStub(channel), GRPCInferenceServiceStub(channel), EmbedStub(channel))
        for name, road in EITHER.items():
            given |= {f"{name}, text": road(roads, TEXT).tobytes(), f"{name}, ids": road(roads, IDS).tobytes()}
        given |= {name: road(roads, TEXT).tobytes() for name, road in TEXT_ALONE.items()}
        given["table"] = client.get(TABLE, headers={"accept": "application/octet-stream"}).content
        for coding in ("gzip", "zstd"):
            headers = {"accept": "application/octet-stream", "accept-encoding": coding}
            with client.stream("GET", TABLE, headers=headers) as answer:
                given[f"table, {coding}"] = b"".join(answer.iter_raw())
                assert answer.headers["content-encoding"] == coding
        given["no model"] = client.post("/embed", json={"inputs": TEXT, "model": "none"}).content
    return given


def throughput(port: int, seconds: float, calls: int, pids: Callable[[], list[int]]) -> tuple[float, float]:
    """Texts of one size embedded in a second, and the seconds of processor time of each.

    Args:
        pids: returns the processes whose time counts.
    """
    body = json.dumps({"inputs": TEXT}).encode()
    headers = {"content-type": "application/json", "accept": "application/octet-stream"}
    request = generators.LoadRequest(port, "/embed", headers, body, 384 * 4)
    before = sum(map(cpu_seconds, pids()))
    done = generators.run(generators.choose("http"), request, calls, seconds, frozenset(os.sched_getaffinity(0)))
    return done.per_second, (sum(map(cpu_seconds, pids())) - before) / done.requests


class Locust:
    """loadtest/locustfile.py in a process of its own, for some seconds or until `finish`."""

    def __init__(self, made: Cluster, users: int, seconds: float) -> None:
        command = python("-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--json", "--only-summary")
        command += ["-u", str(users), "-r", str(users), "-t", f"{seconds:.0f}s", "--stop-timeout", "60", "--think", "0"]
        command += ["--host", f"http://127.0.0.1:{made.http}", "--grpc-host", f"127.0.0.1:{made.grpc}"]
        command += ["--csv", str(made.folder / "locust")]
        self._folder = made.folder
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def finish(self, within: float | None = None) -> tuple[int, int, dict[str, int]]:
        """Requests sent, requests failed, and failures by their message.

        Args:
            within: end it after so many seconds; None: once its time is over.
        """
        if within is not None:
            time.sleep(within)
            self._process.terminate()
        output, _ = self._process.communicate()
        rows = [row for row in json.loads(output) if row["method"] != "refused"]  # these are sent again
        file = self._folder / "locust_failures.csv"
        with file.open(newline="") as lines:
            errors = list(csv.DictReader(lines))
        failures = {f"{row['Name']}: {row['Error']}"[:160]: int(row["Occurrences"]) for row in errors}
        return sum(row["num_requests"] for row in rows), sum(row["num_failures"] for row in rows), failures


Report = Callable[[str, bool, object], None]


def check_answers(made: Cluster, expected: Mapping[str, bytes], report: Report) -> None:
    """Every protocol gives through Serve the bits that one process gives."""
    given = vectors(made.http, made.grpc)
    different = [name for name in expected if given[name] != expected[name]]
    report("answers have the bits of one process", not different, different or f"{len(expected)} forms of them")


def check_cost(made: Cluster, port: int, pid: int, rounds: int, seconds: float, report: Report) -> None:
    """What one replica behind Serve needs, as multiples of what one process alone needs."""
    for calls in (1, 16):
        speeds, times = [], []
        for _ in range(rounds):
            own, own_time = throughput(port, seconds, calls, lambda: [pid])
            through, through_time = throughput(made.http, seconds, calls, made.serving)
            speeds.append(own / through)
            times.append(through_time / own_time)
        named = {"requests/s, one process alone / one replica behind Serve": speeds}
        named["processor time of a request, one replica behind Serve / one process alone"] = times
        for what, ratios in named.items():
            seen = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
            report(f"{what}, {calls} at a time", True, seen)


def check_scaling(made: Cluster, report: Report) -> None:
    """From one replica to three under load, and back."""
    load = Locust(made, USERS, 60)
    up = wait_until("three replicas serve", SCALE_SECONDS, lambda: made.running() == REPLICAS)
    sent, failed, failures = load.finish()
    report("1 to 3 replicas under load: failed requests", not failed, failures or f"0 of {sent}; 3 after {up:.0f} s")
    down = wait_until("one replica is left", SCALE_SECONDS, lambda: made.status() == {"RUNNING": 1})
    report("3 to 1 replicas without load", True, f"after {down:.0f} s")


def check_upgrade(made: Cluster, report: Report) -> None:
    """New settings under load: every replica is replaced."""
    load = Locust(made, USERS, 75)
    wait_until("three replicas serve", SCALE_SECONDS, lambda: made.running() == REPLICAS)
    before = replicas(made)
    made.deploy(max_inputs=512)
    wait_until("all replicas are new", SCALE_SECONDS, lambda: not before & replicas(made) and made.running() >= 1)
    sent, failed, failures = load.finish()
    report("rolling upgrade under load: failed requests", not failed, failures or f"0 of {sent}")


def replicas(made: Cluster) -> set[int]:
    """The process ids of replicas."""
    return {pid for node in made.nodes for pid in process_tree(node.pid) if "ServeReplica" in command_of(pid)}


def command_of(pid: int) -> str:
    """The command line of a process; empty once it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def check_killed_node(made: Cluster, allowed: int, report: Report) -> None:
    """A node with a replica is killed under load."""
    load = Locust(made, USERS, 3 * SCALE_SECONDS)  # it is ended once it has seen enough
    wait_until("three replicas serve", SCALE_SECONDS, lambda: made.running() == REPLICAS)
    victim = made.nodes[-1]
    [replica] = [pid for pid in process_tree(victim.pid) if "ServeReplica" in command_of(pid)]
    idle = cpu_seconds(replica)
    wait_until("the replica there has worked", SCALE_SECONDS, lambda: cpu_seconds(replica) > idle + WORKED_SECONDS)
    kill(victim)
    sent, failed, failures = load.finish(within=AFTER_SECONDS)
    report("a node killed under load: failed in all, at most one a user", failed <= USERS, f"{failed} of {sent}")
    single = {text: count for text, count in failures.items() if "Stream" not in text}  # no proxy sends a stream again
    claim = f"a node killed under load: failed requests that are no streams, at most {allowed}"
    report(claim, sum(single.values()) <= allowed, single or "0")


def run(variables: Mapping[str, str], full: bool) -> list[str]:
    """Show everything behind one kind of proxy; return the rows of a table."""
    rows: list[str] = []

    def report(claim: str, holds: bool, seen: object) -> None:
        show(claim, holds, seen)
        rows.append(f"| {claim} | {seen} |")

    with tempfile.TemporaryDirectory(prefix="inlay-ray-") as name:
        folder = Path(name)
        with alone(folder) as (http, rpc, pid), cluster(folder, variables) as made:
            check_answers(made, vectors(http, rpc), report)
            check_cost(made, http, pid, 5 if full else 3, 6 if full else 3, report)
            if variables and full:
                check_scaling(made, report)
                check_upgrade(made, report)
            check_killed_node(made, 0 if variables else USERS, report)
    return rows


def main() -> int:
    """Print each claim as it is shown; raise NotShown at the first that is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="scaling and an upgrade too, and cost in longer runs")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args()
    os.environ.update(SHARED)
    lines = [HEADING]
    for title, variables in PROXIES.items():
        print(title, flush=True)
        with get_context("spawn").Pool(1) as process:  # Serve's client keeps to the first cluster of its process
            rows = process.apply(run, (variables, options.full))
        lines += [f"\n## {title}", "| shown | seen |", "|---|---|", *rows]
    if options.save:
        RESULTS.write_text("\n".join([*lines, ""]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotShown as fault:
        print(fault, file=sys.stderr)
        sys.exit(1)
