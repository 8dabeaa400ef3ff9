"""Mixed load over HTTP and gRPC: texts and ids of mixed lengths, alone and in batches.

    python -m locust -f loadtest/locustfile.py --headless -u 20 -r 20 -t 30s      (from the root of the checkout)

Every answer is checked; a wrong one counts as a failure, and failures make the exit code 1. --host
(http://127.0.0.1:8080) and --grpc-host or LOCUST_GRPC_HOST (127.0.0.1:50051) name the server. --tags ids grpc picks
tasks that carry any of these: http grpc, ids text, bytes json, single batch stream, known. It checks that a mixed load
gets right answers; loadtest.bench measures throughput.
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
    FirstAnswers,
    Floats,
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
FIRST_ANSWERS = FirstAnswers()
RNG = random.Random(23)
Check = Callable[[Floats], object]
PAUSE = between(0, 0.05)  # seconds between a user's requests


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """Add the options of this file to locust's own."""
    parser.add_argument("--grpc-host", env_var="LOCUST_GRPC_HOST", default="127.0.0.1:50051", help="gRPC host:port")
    parser.add_argument("--model", env_var="LOCUST_MODEL", default="", help="a model; empty: the server's default")


@events.init.add_listener
def drop_idle_users(environment: Any, **_: Any) -> None:
    """Remove user classes that --tags or --exclude-tags leave without a task; locust would fail to start them."""
    options = environment.parsed_options
    included, excluded = set(options.tags or ()), set(options.exclude_tags or ())

    def has_tasks(one: Any) -> bool:
        own: set[str] = one.locust_tag_set
        return (not included or bool(own & included)) and not own & excluded

    environment.user_classes[:] = [user for user in environment.user_classes if any(map(has_tasks, user.tasks))]


def batch_of(draw: Callable[[random.Random], Any]) -> list[Any]:
    """Return a batch of 2 to LARGEST_BATCH inputs."""
    return [draw(RNG) for _ in range(RNG.randint(2, LARGEST_BATCH))]


class HttpCaller(FastHttpUser):
    """A user who posts to /embed."""

    host = "http://127.0.0.1:8080"
    wait_time = PAUSE

    def embed(self, name: str, accept: str, inputs: Any, output: str | None, check: Check) -> None:
        """Send one request, decode and check the response."""
        document = {"inputs": inputs, "outputs": output and [output], "model": self.environment.parsed_options.model}
        body = orjson.dumps({key: value for key, value in document.items() if value}).decode()
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
        """Send one list of ids for raw floats."""
        ids = workload.mixed_ids(RNG)
        self.embed("http ids, bytes", RAW, [ids], LAYER, partial(expect_rows, count=len(ids)))

    @tag("http", "ids", "json", "batch")
    @task(1)
    def ids_json(self) -> None:
        """Send several lists of ids for JSON."""
        batch = batch_of(workload.mixed_ids)
        self.embed("http ids batch, json", JSON, batch, LAYER, partial(expect_rows, count=sum(map(len, batch))))

    @tag("http", "text", "bytes", "batch")
    @task(1)
    def texts_bytes(self) -> None:
        """Send several texts for raw pooled vectors."""
        batch = batch_of(workload.mixed_text)
        self.embed("http text batch, bytes", RAW, batch, None, partial(expect_units, count=len(batch)))

    @tag("http", "text", "json", "single")
    @task(3)
    def text_json(self) -> None:
        """Send one text for TEI's bare list."""
        self.embed("http text, json", JSON, workload.mixed_text(RNG), None, partial(expect_units, count=1))

    @tag("http", "ids", "bytes", "single", "known")
    @task(1)
    def known_ids(self) -> None:
        """Check that the same ids give the same bits in any batch."""
        self.embed("http known ids", RAW, [KNOWN_IDS], LAYER, partial(FIRST_ANSWERS.expect_same, "ids"))

    @tag("http", "text", "json", "single", "known")
    @task(1)
    def known_text(self) -> None:
        """Check that the same text gives the same vector, within ENCODER_TOLERANCE."""
        self.embed(
            "http known text",
            JSON,
            KNOWN_TEXT,
            None,
            partial(FIRST_ANSWERS.expect_same, "text", tolerance=ENCODER_TOLERANCE),
        )


def ids_request(batch: Sequence[Sequence[int]], model: str) -> embed_pb2.EmbedRequest:
    """Return a request for the input embeddings of several lists of ids."""
    inputs = [embed_pb2.Input(ids=embed_pb2.TokenIds(input_ids=ids)) for ids in batch]
    return embed_pb2.EmbedRequest(inputs=inputs, outputs=[LAYER], model=model)


def text_request(batch: Sequence[str], model: str) -> embed_pb2.EmbedRequest:
    """Return a request for the pooled vectors of several texts."""
    return embed_pb2.EmbedRequest(inputs=[embed_pb2.Input(text=text) for text in batch], model=model)


class GrpcCaller(User):
    """A user who calls inlay.v1.Embedder on a channel of their own."""

    wait_time = PAUSE

    def on_start(self) -> None:
        """Open a channel that is not shared with other users."""
        self.model: str = self.environment.parsed_options.model
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.insecure_channel(self.environment.parsed_options.grpc_host, options)
        self.stub = embed_pb2_grpc.EmbedderStub(self.channel)

    def on_stop(self) -> None:
        """Close the channel."""
        self.channel.close()

    def timed(self, name: str, call: Callable[[], int]) -> None:
        """Report one call to locust; `call` returns the bytes of its responses."""
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

    def embed(self, name: str, request: embed_pb2.EmbedRequest, check: Check) -> None:
        """Make one unary call and check the response."""

        def call() -> int:
            answer: embed_pb2.EmbedResponse = self.stub.Embed(request, timeout=60)
            check(from_message(answer))
            return answer.ByteSize()

        self.timed(name, call)

    @tag("grpc", "ids", "single")
    @task(4)
    def ids(self) -> None:
        """Send one list of ids."""
        ids = workload.mixed_ids(RNG)
        self.embed("grpc ids", ids_request([ids], self.model), partial(expect_rows, count=len(ids)))

    @tag("grpc", "ids", "batch")
    @task(1)
    def ids_batch(self) -> None:
        """Send several lists of ids."""
        batch = batch_of(workload.mixed_ids)
        check = partial(expect_rows, count=sum(map(len, batch)))
        self.embed("grpc ids batch", ids_request(batch, self.model), check)

    @tag("grpc", "text", "single")
    @task(3)
    def text(self) -> None:
        """Send one text."""
        self.embed("grpc text", text_request([workload.mixed_text(RNG)], self.model), partial(expect_units, count=1))

    @tag("grpc", "text", "batch")
    @task(1)
    def texts(self) -> None:
        """Send several texts."""
        batch = batch_of(workload.mixed_text)
        self.embed("grpc text batch", text_request(batch, self.model), partial(expect_units, count=len(batch)))

    @tag("grpc", "ids", "stream")
    @task(1)
    def stream(self) -> None:
        """Send several requests on one stream; their different lengths show whether answers come in order."""
        batch = batch_of(workload.mixed_ids)

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
        """Check that the same ids give the same bits as over HTTP."""
        self.embed("grpc known ids", ids_request([KNOWN_IDS], self.model), partial(FIRST_ANSWERS.expect_same, "ids"))

    @tag("grpc", "text", "single", "known")
    @task(1)
    def known_text(self) -> None:
        """Check that the same text gives the same vector as over HTTP."""
        same = partial(FIRST_ANSWERS.expect_same, "text", tolerance=ENCODER_TOLERANCE)
        self.embed("grpc known text", text_request([KNOWN_TEXT], self.model), same)
