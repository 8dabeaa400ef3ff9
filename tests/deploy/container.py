"""The container image, built and run for real: `make container-test`. Needs an engine; pytest does not collect it.

Prints each claim as it is shown and ends with exit code 1 at the first that is not.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from proto import embed_pb2, embed_pb2_grpc
from tests.deploy import worst_load

ROOT = Path(__file__).parents[2]
IMAGE, NEWER = "inlay:cpu", "inlay:newer"
MAX_MEGABYTES = 450
DEMO = "all-MiniLM-L6-v2"
REVISION = "0123456789abcdef"
CONTEXT = ("Dockerfile", ".dockerignore", "LICENSE", "pyproject.toml", "requirements", "deploy", "proto", "models")
DOCKER = os.environ.get("DOCKER", "docker")
CONFINED = (
    "--read-only",
    "--tmpfs=/tmp",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--pids-limit=512",
    "--cpus=2",
)
MEMORIES = ("512m", "2g")  # of containers under the worst load
IN_FLIGHT_SECONDS = 3  # of work in each batch that is under way when SIGTERM comes
STOP_SECONDS = 40  # longer than INLAY_SHUTDOWN_SECONDS


class NotShown(Exception):
    """A claim that does not hold; the message says what was seen."""


def docker(*arguments: str) -> str:
    """The standard output of one docker command; NotShown with its error output if it fails."""
    done = subprocess.run([DOCKER, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise NotShown(f"docker {' '.join(arguments[:3])} … failed: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def show(claim: str, holds: bool, seen: object) -> None:
    """Print a claim that holds; NotShown if it does not."""
    if not holds:
        raise NotShown(f"NOT SHOWN  {claim}: {seen}")
    print(f"  ok  {claim}: {seen}", flush=True)


def wait_until(what: str, seconds: float, probe: Callable[[], bool]) -> float:
    """Seconds until `probe` was true; NotShown after `seconds`."""
    start = time.monotonic()
    while not probe():
        if time.monotonic() - start > seconds:
            raise NotShown(f"NOT SHOWN  {what} within {seconds} s")
        time.sleep(0.1)
    return time.monotonic() - start


@contextmanager
def container(*command: str, memory: str = "2g", image: str = IMAGE, options: tuple[str, ...] = ()) -> Iterator[str]:
    """A confined container of the image on free loopback ports, removed afterwards with its unnamed volume."""
    ports = ("--publish=127.0.0.1::8080", "--publish=127.0.0.1::50051")
    name = docker("run", "--detach", *CONFINED, f"--memory={memory}", *ports, *options, image, *command)[:12]
    try:
        yield name
    except Exception:
        print(subprocess.run([DOCKER, "logs", name], capture_output=True, text=True).stderr[-4000:], file=sys.stderr)
        raise
    finally:
        docker("rm", "--force", "--volumes", name)


def is_healthy(name: str) -> bool:
    """Whether the health check has passed; NotShown where the container has ended."""
    status, health = docker("inspect", "--format={{.State.Status}} {{.State.Health.Status}}", name).split()
    if status != "running":
        raise NotShown(f"NOT SHOWN  the container runs: it is {status}; its log is above")
    return health == "healthy"


def address(name: str, port: int) -> str:
    """host:port where the container's port is published."""
    return docker("port", name, f"{port}/tcp").splitlines()[0]


def post(url: str, inputs: object) -> Any:
    """The decoded answer of POST /embed."""
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(f"{url}/embed", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def call(target: str, texts: list[str]) -> embed_pb2.EmbedResponse:
    """The answer of the gRPC Embed call."""
    with grpc.insecure_channel(target) as channel:
        inputs = [embed_pb2.Input(text=text) for text in texts]
        stub = embed_pb2_grpc.EmbedderStub(channel)
        answer: embed_pb2.EmbedResponse = stub.Embed(embed_pb2.EmbedRequest(inputs=inputs), timeout=120)
        return answer


def engine_runs(url: str) -> float:
    """Engine runs since the start, by the service's own counter."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("inlay_engine_run_seconds_count"))


def inside(name: str, script: str) -> str:
    """Output and exit code of a shell script in the container."""
    done = subprocess.run([DOCKER, "exec", name, "sh", "-c", script], capture_output=True, text=True)
    return f"{done.stdout.strip()} {done.returncode}".strip()


def check_image(name: str) -> None:
    """What the image holds and what its user may do."""
    show("the process runs as a user of its own", inside(name, "id -u") == "10001 0", inside(name, "id -u"))
    show("its code cannot be written", inside(name, "touch /app/x 2>/dev/null") == "1", "touch /app/x refused")
    tools = inside(name, "for tool in gcc cc g++ uv /opt/venv/bin/pip; do command -v $tool; done; ls /app")
    show(
        "no compiler, installer or test is inside",
        tools.split() == ["LICENSE", "models", "proto", "pyproject.toml", "service", "0"],
        ", ".join(tools.split()),
    )
    megabytes = int(docker("image", "inspect", "--format={{.Size}}", IMAGE)) / 1e6
    what = f"{megabytes:.0f} MB, the base and the demo model included"
    show(f"the image is below {MAX_MEGABYTES} MB", megabytes < MAX_MEGABYTES, what)
    labels = json.loads(docker("image", "inspect", "--format={{json .Config.Labels}}", IMAGE))
    known = {name.removeprefix("org.opencontainers.image."): value for name, value in labels.items()}
    show("its labels say what it is", known.get("revision") == REVISION and known["title"] == "Inlay", ", ".join(known))
    components = json.loads(inside(name, "cat /opt/inlay/sbom.cdx.json").removesuffix(" 0"))["components"]
    names = {component["name"] for component in components}
    show("it holds a bill of its packages", {"onnxruntime", "numpy", "uvloop"} <= names, f"{len(names)} components")


def check_answers(url: str, target: str) -> None:
    """The same vector over both protocols."""
    (vector,) = post(url, "hello world")
    show("POST /embed answers", len(vector) == 384, f"{len(vector)} numbers, {vector[0]:.6f} …")
    tensor = call(target, ["hello world"]).outputs[0].tensor
    (first,) = memoryview(tensor.data)[:4].cast("f")
    show(
        "gRPC Embed answers the same",
        list(tensor.shape) == [1, 384] and abs(first - vector[0]) < 1e-6,
        f"{first:.6f} …",
    )


def check_positions(name: str, url: str) -> None:
    """A picture and a graph, whose libraries want to write where they may not."""
    for form, begins in (("png", b"\x89PNG"), ("onnx", b"\x08")):
        with urllib.request.urlopen(f"{url}/positions/rope.{form}?preset=llama-3.1-8b", timeout=60) as answer:
            body = answer.read()
        show(f"GET /positions/rope.{form} answers", body.startswith(begins), f"{len(body)} bytes")
    log = subprocess.run([DOCKER, "logs", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    show("nothing complains of a folder it cannot write", "MPLCONFIGDIR" not in log, f"{len(log)} characters of log")


def long_texts(count: int) -> list[str]:
    """Different texts of about 130 tokens each."""
    return [f"{row} " + "what a transformer computes before its first block " * 14 for row in range(count)]


def long_batch(url: str) -> list[str]:
    """Texts that keep this machine busy for about IN_FLIGHT_SECONDS."""
    start = time.monotonic()
    post(url, long_texts(8))
    return long_texts(max(16, min(512, int(8 * IN_FLIGHT_SECONDS / (time.monotonic() - start)))))


def check_stop(name: str, url: str, target: str) -> None:
    """SIGTERM in the middle of two long batches."""
    batch = long_batch(url)
    before = engine_runs(url)
    with ThreadPoolExecutor() as pool:
        http, rpc = pool.submit(post, url, batch), pool.submit(call, target, batch)
        wait_until("the long batches are under way", 30, lambda: engine_runs(url) > before + 1)
        show("two long batches are in flight", not http.done() and not rpc.done(), f"{len(batch)} texts each")
        stopping: Future[str] = pool.submit(docker, "stop", f"--time={STOP_SECONDS}", name)
        start = time.monotonic()
        show(
            "the HTTP answer arrives whole",
            len(http.result()) == len(batch),
            f"{time.monotonic() - start:.1f} s later",
        )
        shape = list(rpc.result().outputs[0].tensor.shape)
        show("the gRPC answer arrives whole", shape == [len(batch), 384], f"{time.monotonic() - start:.1f} s later")
        stopping.result()
    code = docker("inspect", "--format={{.State.ExitCode}}", name)
    show("the container ends with exit code 0", code == "0", f"{time.monotonic() - start:.1f} s after SIGTERM")


def build(image: str, folder: Path, target: str = "cpu") -> None:
    """Build an image."""
    print(f"==> building {image}", flush=True)
    labels = ("--build-arg=VERSION=test", f"--build-arg=REVISION={REVISION}")
    subprocess.run(
        [DOCKER, "build", f"--target={target}", f"--tag={image}", *labels, "."],
        cwd=folder,
        check=True,
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
    )


def build_newer() -> None:
    """Build the image again from code that differs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in (*CONTEXT, "service"):
            if (ROOT / part).is_file():
                shutil.copy2(ROOT / part, folder)
            else:
                shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("store", "__pycache__"))
        with (folder / "service/app.py").open("a") as code:
            code.write("NEWER = True\n")
        build(NEWER, folder)


def layers(image: str) -> list[str]:
    """The digests of its layers."""
    found: list[str] = json.loads(docker("image", "inspect", "--format={{json .RootFS.Layers}}", image))
    return found


def models_of(name: str) -> list[str]:
    """The models that a container serves."""
    with urllib.request.urlopen(f"http://{address(name, 8080)}/models", timeout=30) as answer:
        return sorted(model["name"] for model in json.load(answer)["models"])


def check_upgrade() -> None:
    """A volume that an older image filled, and its user added to, under a newer image."""
    build_newer()
    old, new = layers(IMAGE), layers(NEWER)
    changed = sum(digest not in old for digest in new)
    show("changed code changes one layer", changed == 1, f"{changed} of {len(new)}, not that of the model")
    volume = docker("volume", "create")
    mounted = (f"--volume={volume}:/models",)
    try:
        with container(options=mounted) as name:
            inside(name, f"cp -r /opt/inlay/models/{DEMO} /models/mine")
        with container(image=NEWER, options=mounted) as name:
            wait_until("a newer container on the same volume is healthy", 60, lambda: is_healthy(name))
            show("it serves the user's model and the image's own", models_of(name) == [DEMO, "mine"], models_of(name))
            where = inside(name, f"readlink /models/{DEMO}")
            show("the volume holds a link to the image's model", where == f"/opt/inlay/models/{DEMO} 0", where)
            inside(name, 'sed -i \'s/"format": [0-9]*/"format": 1/\' /models/mine/card.json')
        command = (DOCKER, "run", "--rm", *CONFINED, *mounted, NEWER)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        said = done.stderr.strip().splitlines()[-1:]
        refused = done.returncode == 1 and "card format 1" in done.stderr and "export the model again" in done.stderr
        show("a card of another format is refused in one line that says what to do", refused, said)
    finally:
        docker("volume", "rm", volume)


def check_bulk() -> None:
    """`inlay embed` in the image that has pyarrow."""
    build("inlay:bulk", ROOT, "bulk")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "corpus.txt").write_text("hello world\nanother text\n")
        user, data = f"--user={os.getuid()}:{os.getgid()}", f"--volume={folder}:/data"
        docker("run", "--rm", *CONFINED, user, data, "inlay:bulk", "embed", "/data/corpus.txt", "/data/vectors.npy")
        size = Path(folder, "vectors.npy").stat().st_size
    show(
        "`inlay embed` writes the vectors of a corpus", size == 128 + 2 * 384 * 4, f"{size} bytes of .npy for two texts"
    )


def check_worst_load(name: str, url: str, target: str, memory: str) -> None:
    """The largest allowed requests, many at a time: each is answered or refused, and the container goes on."""
    results = worst_load.run(url, target)
    print(worst_load.table_of(results), flush=True)
    refused = sum(outcomes[status] for outcomes in results.values() for status in ("429", "RESOURCE_EXHAUSTED"))
    show(f"{memory}: requests are refused with 429", refused > 0, f"{refused} of them")
    cut = {kind: outcomes for kind, outcomes in results.items() if any(worst_load.CUT in each for each in outcomes)}
    show(f"{memory}: no request is lost", not cut, cut or "each was answered or refused")
    show(f"{memory}: it still answers", len(post(url, "hello world")[0]) == 384, "POST /embed")
    seen = docker("inspect", "--format={{.State.Status}} {{.State.OOMKilled}} {{.RestartCount}}", name)
    show(f"{memory}: not killed, not restarted", seen == "running false 0", seen)
    peak = inside(name, "grep VmHWM /proc/1/status")
    show(f"{memory}: the most memory that it took", peak.endswith(" 0"), peak.removesuffix(" 0"))


def main() -> int:
    """Build, run, ask, stop."""
    build(IMAGE, ROOT)
    print("==> running it read-only, without capabilities", flush=True)
    with container() as name:
        taken = wait_until("the container is healthy", 60, lambda: is_healthy(name))
        show("the container is healthy", True, f"after {taken:.1f} s")
        url, target = f"http://{address(name, 8080)}", address(name, 50051)
        check_image(name)
        check_answers(url, target)
        check_positions(name, url)
        check_stop(name, url, target)
    with container("serve", "--port", "9000") as name:
        wait_until("a container that serves another port is healthy", 60, lambda: is_healthy(name))
        show("its health check finds the port of its command line", True, "serve --port 9000")
    check_upgrade()
    check_bulk()
    for memory in MEMORIES:
        print(f"==> the worst allowed load on {memory}", flush=True)
        with container(memory=memory) as name:
            wait_until("the container is healthy", 60, lambda: is_healthy(name))
            check_worst_load(name, f"http://{address(name, 8080)}", address(name, 50051), memory)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (NotShown, subprocess.CalledProcessError, urllib.error.URLError, grpc.RpcError) as error:
        sys.exit(str(error))
