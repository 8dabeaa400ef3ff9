"""Callers of every kind at once, over HTTP and gRPC: texts and ids of mixed lengths, alone and in batches.

    python -m locust -f loadtest/locustfile.py --headless -u 20 -r 20 -t 30s      (from the root of the checkout)

Every answer is checked; a wrong one counts as a failure, and failures make the exit code 1. --host
(http://127.0.0.1:8080) and --grpc-host or LOCUST_GRPC_HOST (127.0.0.1:50051) say where. --tags ids grpc picks tasks
that carry any of these: http grpc, ids text, bytes json, single batch stream, known. Shows that a mixed load is
answered rightly; for ceilings see loadtest.bench.
"""

# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import grpc.experimental.gevent
import orjson
from locust import FastHttpUser, User, between, events, tag, task

from loadtest import workload
from loadtest.response_checks import (
    ENCODER_TOLERANCE,
    Floats,
    Memory,
    WrongAnswer,
    expect_rows,
    expect_units,
    from_bytes,
    from_json,
    from_message,
)
from proto import embed_pb2, embed_pb2_grpc

grpc.experimental.gevent.init_gevent()

LAYER = "input_embeddings"
RAW, JSON = "application/octet-stream", "application/json"
LARGEST_BATCH = 8
KNOWN_IDS = [101, 7592, 2088, 102]
KNOWN_TEXT = "The same text must always give the same vector."
MEMORY = Memory()
RNG = random.Random(23)
Check = Callable[[Floats], object]
PAUSE = between(0, 0.05)  # seconds between a user's requests


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """Options of this file beside locust's own."""
    parser.add_argument("--grpc-host", env_var="LOCUST_GRPC_HOST", default="127.0.0.1:50051", help="gRPC host:port")
    parser.add_argument("--model", env_var="LOCUST_MODEL", default="", help="a model; empty: the server's default")


@events.init.add_listener
def drop_idle_users(environment: Any, **_: Any) -> None:
    """Leave out users that --tags or --exclude-tags leave without a task: locust would fail to start them."""
    options = environment.parsed_options
    wanted, unwanted = set(options.tags or ()), set(options.exclude_tags or ())

    def stays(one: Any) -> bool:
        own: set[str] = one.locust_tag_set
        return (not wanted or bool(own & wanted)) and not own & unwanted

    environment.user_classes[:] = [user for user in environment.user_classes if any(map(stays, user.tasks))]


def some(one: Callable[[random.Random], Any]) -> list[Any]:
    """A batch of 2 to LARGEST_BATCH inputs."""
    return [one(RNG) for _ in range(RNG.randint(2, LARGEST_BATCH))]


class HttpCaller(FastHttpUser):
    """Posts to /embed."""

    host = "http://127.0.0.1:8080"
    wait_time = PAUSE

    def ask(self, name: str, accept: str, inputs: Any, output: str | None, check: Check) -> None:
        """One request, its answer decoded and checked."""
        asked = {"inputs": inputs, "outputs": output and [output], "model": self.environment.parsed_options.model}
        body = orjson.dumps({key: value for key, value in asked.items() if value}).decode()
        headers = {"content-type": JSON, "accept": accept}
        with self.client.post("/embed", data=body, headers=headers, name=name, catch_response=True) as response:
            content = response.content or b""
            if response.status_code != 200:
                response.failure(f"status {response.status_code}: {content[:200]!r}")
                return
            try:
                check(from_bytes(content, response.headers) if accept == RAW else from_json(content, output))
            except (WrongAnswer, ValueError, KeyError, TypeError) as wrong:
                response.failure(f"wrong answer: {wrong!r}")

    @tag("http", "ids", "bytes", "single")
    @task(4)
    def ids_bytes(self) -> None:
        """One list of ids, raw floats back."""
        ids = workload.mixed_ids(RNG)
        self.ask("http ids, bytes", RAW, [ids], LAYER, partial(expect_rows, count=len(ids)))

    @tag("http", "ids", "json", "batch")
    @task(1)
    def ids_json(self) -> None:
        """Some lists of ids, JSON back."""
        batch = some(workload.mixed_ids)
        self.ask("http ids batch, json", JSON, batch, LAYER, partial(expect_rows, count=sum(map(len, batch))))

    @tag("http", "text", "bytes", "batch")
    @task(1)
    def texts_bytes(self) -> None:
        """Some texts, raw pooled vectors back."""
        batch = some(workload.mixed_text)
        self.ask("http text batch, bytes", RAW, batch, None, partial(expect_units, count=len(batch)))

    @tag("http", "text", "json", "single")
    @task(3)
    def text_json(self) -> None:
        """One text, TEI's bare list back."""
        self.ask("http text, json", JSON, workload.mixed_text(RNG), None, partial(expect_units, count=1))

    @tag("http", "ids", "bytes", "single", "known")
    @task(1)
    def known_ids(self) -> None:
        """The same ids give the same bits, whoever their neighbours are."""
        self.ask("http known ids", RAW, [KNOWN_IDS], LAYER, partial(MEMORY.expect_same, "ids"))

    @tag("http", "text", "json", "single", "known")
    @task(1)
    def known_text(self) -> None:
        """The same text gives the same vector, within what a batch may change."""
        self.ask(
            "http known text", JSON, KNOWN_TEXT, None, partial(MEMORY.expect_same, "text", tolerance=ENCODER_TOLERANCE)
        )


def ids_request(batch: Sequence[Sequence[int]], model: str) -> embed_pb2.EmbedRequest:
    """Input embeddings of some lists of ids."""
    inputs = [embed_pb2.Input(ids=embed_pb2.TokenIds(input_ids=ids)) for ids in batch]
    return embed_pb2.EmbedRequest(inputs=inputs, outputs=[LAYER], model=model)


def text_request(batch: Sequence[str], model: str) -> embed_pb2.EmbedRequest:
    """Pooled vectors of some texts."""
    return embed_pb2.EmbedRequest(inputs=[embed_pb2.Input(text=text) for text in batch], model=model)


class GrpcCaller(User):
    """Calls inlay.v1.Embedder on a channel of its own."""

    wait_time = PAUSE

    def on_start(self) -> None:
        """Open the channel; users must not share a connection."""
        self.model: str = self.environment.parsed_options.model
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(self.environment.parsed_options.grpc_host, options)
        self.stub = embed_pb2_grpc.EmbedderStub(self.channel)

    def on_stop(self) -> None:
        """Close the channel."""
        self.channel.close()

    def timed(self, name: str, call: Callable[[], int]) -> None:
        """Report one call, which gives the bytes of its answers, to locust."""
        begun, size, failure = time.perf_counter(), 0, None
        try:
            size = call()
        except grpc.RpcError as error:
            failure = f"{error.code().name}: {error.details()}"  # its own text differs from call to call
        except (WrongAnswer, ValueError, IndexError) as error:
            failure = f"wrong answer: {error!r}"
        taken_ms = (time.perf_counter() - begun) * 1000
        self.environment.events.request.fire(
            request_type="GRPC", name=name, response_time=taken_ms, response_length=size, exception=failure, context={}
        )

    def ask(self, name: str, request: embed_pb2.EmbedRequest, check: Check) -> None:
        """One unary call, its answer checked."""

        def call() -> int:
            answer: embed_pb2.EmbedResponse = self.stub.Embed(request, timeout=60)
            check(from_message(answer))
            return answer.ByteSize()

        self.timed(name, call)

    @tag("grpc", "ids", "single")
    @task(4)
    def ids(self) -> None:
        """One list of ids."""
        ids = workload.mixed_ids(RNG)
        self.ask("grpc ids", ids_request([ids], self.model), partial(expect_rows, count=len(ids)))

    @tag("grpc", "ids", "batch")
    @task(1)
    def ids_batch(self) -> None:
        """Some lists of ids."""
        batch = some(workload.mixed_ids)
        check = partial(expect_rows, count=sum(map(len, batch)))
        self.ask("grpc ids batch", ids_request(batch, self.model), check)

    @tag("grpc", "text", "single")
    @task(3)
    def text(self) -> None:
        """One text."""
        self.ask("grpc text", text_request([workload.mixed_text(RNG)], self.model), partial(expect_units, count=1))

    @tag("grpc", "text", "batch")
    @task(1)
    def texts(self) -> None:
        """Some texts."""
        batch = some(workload.mixed_text)
        self.ask("grpc text batch", text_request(batch, self.model), partial(expect_units, count=len(batch)))

    @tag("grpc", "ids", "stream")
    @task(1)
    def stream(self) -> None:
        """Many requests on one stream; answers must come in their order, which their lengths betray."""
        batch = some(workload.mixed_ids)

        def call() -> int:
            size = 0
            answers: Iterator[embed_pb2.EmbedStreamResponse]
            answers = self.stub.EmbedStream(iter([ids_request([ids], self.model) for ids in batch]), timeout=60)
            for ids, answer in zip(batch, answers, strict=True):
                expect_rows(from_message(answer.response), len(ids))
                size += answer.ByteSize()
            return size

        self.timed("grpc stream of ids", call)

    @tag("grpc", "ids", "single", "known")
    @task(1)
    def known_ids(self) -> None:
        """The bits that HTTP gives, too."""
        self.ask("grpc known ids", ids_request([KNOWN_IDS], self.model), partial(MEMORY.expect_same, "ids"))

    @tag("grpc", "text", "single", "known")
    @task(1)
    def known_text(self) -> None:
        """The vector that HTTP gives, too."""
        same = partial(MEMORY.expect_same, "text", tolerance=ENCODER_TOLERANCE)
        self.ask("grpc known text", text_request([KNOWN_TEXT], self.model), same)
