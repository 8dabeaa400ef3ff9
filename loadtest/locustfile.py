"""What users send, over REST and gRPC: texts of real lengths, some token ids and tables, in every protocol served.

    python -m locust -f loadtest/locustfile.py --headless -u 20 -r 20 -t 30s      (from the root of the checkout)

loadtest/user_mix.py has the shares and lengths. Users think for --think seconds between requests (exponential). With
--rate 50 requests arrive at that constant rate instead, all users together, whether or not those before are answered.
--rerank 0.1 makes this share of the REST requests rerank ten documents with the server's default model for that;
--image-model NAME makes the share --images (0.05) embed a picture. --key sends an API key, --ca names the authorities
of the certificate (--host https://...).

--shape ramp, spike or soak changes the number of users over --run-time, up to --users. RestUser or GrpcUser as a last
argument runs users of one kind alone. Without --headless locust's web UI opens on port 8089; --class-picker chooses
shape and users there. --host (http://127.0.0.1:8080) and --grpc-host (127.0.0.1:50051) name the server.

Results are by route and protocol. Every answer is checked, and a wrong one is a failure, which makes the exit code 1. A
refusal that says when to come back is no failure: it is counted as type `refused`, waited for, and sent again twice.
"""

# mypy: disallow-subclassing-any=False, disallow-untyped-decorators=False
import random
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.experimental.gevent
import numpy as np
import orjson
from gevent.pool import Pool
from locust import FastHttpUser, LoadTestShape, User, events, task
from locust.exception import StopUser
from locust.util.timespan import parse_timespan

from loadtest import user_mix, user_requests
from loadtest.mixed_load_grpc import TIMEOUT_S, Stubs, texts_request
from loadtest.response_checks import (
    ENCODER_TOLERANCE,
    FirstAnswers,
    Floats,
    WrongAnswer,
    expect_ranking,
    expect_rows,
    expect_units,
    from_message,
)
from loadtest.user_requests import ROUTES, Inputs
from proto import open_inference_pb2, tei_pb2

grpc.experimental.gevent.init_gevent()

RNG = random.Random(23)
MOST_UNDER_WAY = 1000  # of one user with --rate
RETRIES = 2  # of a refused request, as OpenAI's clients
REFUSED = "refused"
REFUSALS = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
)  # the latter in the Open Inference Protocol
SOAK_SECONDS = 3600  # of a shape without --run-time
KNOWN_TEXT = "the same text must always give the same vector"
FIRST_ANSWERS = FirstAnswers()
GRPC_SHARES = {"inlay": 0.5, "oip": 0.3, "tei": 0.2}


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """Add the options of this file to locust's own."""
    parser.add_argument("--grpc-host", env_var="LOCUST_GRPC_HOST", default="127.0.0.1:50051", help="gRPC host:port")
    parser.add_argument("--model", env_var="LOCUST_MODEL", default="", help="a model; empty: the server's default")
    parser.add_argument(
        "--think", env_var="LOCUST_THINK", type=float, default=1.0, help="mean seconds between requests"
    )
    parser.add_argument(
        "--rate", env_var="LOCUST_RATE", type=float, default=0.0, help="requests a second; 0: users wait for answers"
    )
    parser.add_argument("--rerank", env_var="LOCUST_RERANK", type=float, default=0.0, help="share of reranking")
    parser.add_argument("--image-model", env_var="LOCUST_IMAGE_MODEL", default="", help="takes pictures; empty: none")
    parser.add_argument("--images", env_var="LOCUST_IMAGES", type=float, default=0.05, help="share of pictures, if any")
    parser.add_argument("--key", env_var="LOCUST_KEY", default="", is_secret=True, help="an API key")
    parser.add_argument("--ca", env_var="LOCUST_CA", default="", help="PEM file of the certificate's authorities")
    parser.add_argument(
        "--shape",
        env_var="LOCUST_SHAPE",
        choices=["", *user_mix.CURVES],
        default="",
        include_in_web_ui=False,
        help="how the number of users changes; empty: --users all the time",
    )


class Shape(LoadTestShape):
    """The users of a curve of loadtest/user_mix.py, up to --users, over --run-time."""

    abstract = True
    use_common_options = True
    curve = ""

    def tick(self) -> tuple[int, float] | None:
        """Return the users to have now and how many to start in a second; None: the run is over."""
        options = self.runner.environment.parsed_options
        seconds = parse_timespan(str(options.run_time)) if options.run_time else SOAK_SECONDS
        part = self.get_run_time() / seconds
        if part >= 1:
            return None
        users = round((options.num_users or 1) * user_mix.CURVES[self.curve](part))
        return max(1, users), float(options.spawn_rate or 1)


class Ramp(Shape):
    """Ten equal steps."""

    curve = "ramp"


class Spike(Shape):
    """A fifth of the users, and all of them in the middle."""

    curve = "spike"


class Soak(Shape):
    """Half of the users all the time."""

    curve = "soak"


@events.init.add_listener
def choose_shape(environment: Any, **_: Any) -> None:
    """Take the shape that --shape names; locust would take the first of this file."""
    name = environment.parsed_options.shape
    environment.shape_class = next((one() for one in (Ramp, Spike, Soak) if one.curve == name), None)
    if environment.shape_class:
        environment.shape_class.runner = environment.runner


def think(user: Any) -> float:
    """Return the seconds until a user's next request."""
    options = user.environment.parsed_options
    if options.rate:
        interval = (options.num_users or 1) / float(options.rate)
        due: float = max(user.due, time.perf_counter() - 1) + interval  # what is late by more is given up
        user.due = due
        return max(0.0, due - time.perf_counter())
    return RNG.expovariate(1 / options.think) if options.think else 0.0


class Arrivals:
    """The requests of one user, who with --rate does not wait for answers."""

    due = 0.0  # when the next is sent

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)  # type: ignore[call-arg]
        self.environment: Any = environment
        self.rate: float = environment.parsed_options.rate
        self.under_way = Pool(MOST_UNDER_WAY)

    def arrive(self, send: Callable[[], None]) -> None:
        """Send a request, in a greenlet of its own with --rate."""
        if not self.rate:
            send()
        elif self.under_way.free_count():
            self.under_way.spawn(send)
        else:
            full = f"{MOST_UNDER_WAY} requests are under way"
            self.environment.events.request.fire(
                request_type="not sent", name="-", response_time=0, response_length=0, exception=full, context={}
            )

    @property
    def retries(self) -> int:
        """How often a refused request is sent again; with --rate the next one comes anyway."""
        return 0 if self.rate else RETRIES


def check(kind: str, vectors: Floats, count: int) -> None:
    """Raise WrongAnswer unless the vectors are as many as the inputs and of length one, and known ones as before."""
    expect_units(vectors, count)
    if kind == KNOWN_TEXT:
        FIRST_ANSWERS.expect_same(KNOWN_TEXT, vectors, tolerance=ENCODER_TOLERANCE)


def draw() -> tuple[str, Inputs]:
    """Return the kind and the inputs of a request; one in fifty is of the known text."""
    if RNG.random() < 0.02:
        return KNOWN_TEXT, [KNOWN_TEXT]
    drawn = user_mix.draw(RNG)
    return drawn.kind, user_requests.inputs(RNG, drawn)


class RestUser(Arrivals, FastHttpUser):
    """A user of the REST routes."""

    host = "http://127.0.0.1:8080"
    weight = 4
    wait_time = think
    concurrency = MOST_UNDER_WAY

    def __init__(self, environment: Any) -> None:
        options = environment.parsed_options
        if options.ca:
            # the client names the authorities that it brings along
            self.ssl_context_factory = lambda cafile: ssl.create_default_context(cafile=options.ca)
            self.insecure = False
        if options.key:
            self.default_headers = {"authorization": f"Bearer {options.key}"}
        super().__init__(environment)

    def on_start(self) -> None:
        """Ask for the default model's name unless --model names one."""
        self.model: str = self.environment.parsed_options.model or self.default_model()

    def default_model(self) -> str:
        """Return the model of requests that name none; end this user if the server does not say."""
        with self.client.get("/info", name="/info tei", catch_response=True) as response:
            if response.status_code == 200 and (name := response.json().get("served_model_name")):
                return str(name)
            hint = "check --host, or name a model by --model"
            response.failure(f"status {response.status_code}, so no default model is known: {hint}")
        raise StopUser

    def on_stop(self) -> None:
        """Wait for the answers that are still to come."""
        self.under_way.join(TIMEOUT_S)

    @task
    def send(self) -> None:
        """Send one request of the mix."""
        drawn, options = RNG.random(), self.environment.parsed_options
        if drawn < options.rerank:
            self.arrive(self.rerank)
        elif options.image_model and drawn < options.rerank + options.images:
            self.arrive(self.embed_picture)
        else:
            self.arrive(self.embed)

    def rerank(self) -> None:
        """Rank ten documents; one query in ten is known."""
        known = RNG.random() < 0.1
        query, documents = user_requests.ranking(random.Random(1) if known else RNG)
        path, (field, read) = RNG.choice(list(user_requests.RERANKING.items()))
        body = orjson.dumps({"query": query, field: documents})

        def check_scores(content: bytes, headers: Any) -> None:
            scores = expect_ranking(read(orjson.loads(content)), len(documents))
            if known:
                FIRST_ANSWERS.expect_same(f"{path} of a known query", scores, tolerance=ENCODER_TOLERANCE)

        self.request("POST", path, f"{path} rerank", {"content-type": user_requests.JSON}, body, check_scores)

    def embed_picture(self) -> None:
        """Embed one of eight pictures, each of which must always give the same vector."""
        number = RNG.randrange(8)
        model: str = self.environment.parsed_options.image_model
        form = {"model": model, "input_type": "image", "embedding_types": ["float"]}
        body = orjson.dumps({"images": [user_requests.picture(number)], **form})

        def check_vector(content: bytes, headers: Any) -> None:
            vectors = expect_rows(np.array(orjson.loads(content)["embeddings"]["float"], np.float32), 1)
            FIRST_ANSWERS.expect_same(f"picture {number}", vectors, tolerance=ENCODER_TOLERANCE)

        headers = {"content-type": user_requests.JSON}
        self.request("POST", "/v2/embed", "/v2/embed picture", headers, body, check_vector)

    def embed(self) -> None:
        """Embed what is drawn from the mix, or fetch a table."""
        kind, inputs = draw()
        if kind == user_mix.TABLE:
            path = RNG.choice(user_requests.TABLES)
            self.request("GET", path, f"{path.partition('?')[0]} inlay", {}, None, lambda body, _: bool(body))
            return
        name = user_requests.draw_route(RNG, kind)
        route = ROUTES[name]
        body = orjson.dumps(route.document(self.model, inputs))
        headers = {"content-type": user_requests.JSON, "accept": route.accept}

        def read(content: bytes, headers: Any) -> None:
            check(kind, route.vectors(content, headers), len(inputs))

        self.request("POST", route.path.format(model=self.model), f"{route.path} {name}", headers, body, read)

    def request(
        self, method: str, path: str, name: str, headers: dict[str, str], body: bytes | None, read: Callable[..., Any]
    ) -> None:
        """Send one request; while it is refused, wait as the refusal says and send it again."""
        for _ in range(self.retries + 1):
            with self.client.request(
                method, path, name=name, headers=headers, data=body, catch_response=True
            ) as response:
                wait = self.refusal(response)
                if wait is None:
                    self.judge(response, read)
                    return
                response.request_meta["request_type"] = REFUSED
                response.success()
            time.sleep(wait)

    @staticmethod
    def refusal(response: Any) -> float | None:
        """Return the seconds that a refusal says to wait; None: it is none, or does not say."""
        if response.status_code not in (429, 503) or "retry-after" not in response.headers:
            return None
        return float(response.headers["retry-after"])

    @staticmethod
    def judge(response: Any, read: Callable[..., Any]) -> None:
        """Count a response as a success or a failure."""
        content = response.content or b""
        if response.status_code != 200:
            response.failure(f"status {response.status_code}: {content[:200]!r}")
            return
        try:
            read(content, response.headers)
        except (WrongAnswer, ValueError, KeyError, TypeError, IndexError) as wrong:
            response.failure(f"wrong answer: {wrong!r}")
        else:
            response.success()


class GrpcUser(Arrivals, User):
    """A user of the gRPC services, on a channel of their own."""

    weight = 1
    wait_time = think

    def on_start(self) -> None:
        """Open a channel that is not shared with other users."""
        self.model: str = self.environment.parsed_options.model
        options = self.environment.parsed_options
        self.stubs = Stubs(options.grpc_host, Path(options.ca).read_bytes() if options.ca else None)
        self.sent = {"timeout": TIMEOUT_S, "metadata": [("authorization", f"Bearer {options.key}")] * bool(options.key)}
        self.calls = {
            "inlay": ("inlay.v1.Embedder/Embed", self.call_inlay),
            "oip": ("inference.GRPCInferenceService/ModelInfer", self.call_oip),
            "tei": ("tei.v1.Embed/EmbedStream", self.call_tei),
        }

    def on_stop(self) -> None:
        """Wait for the answers that are still to come, and close the channel."""
        self.under_way.join(TIMEOUT_S)
        self.stubs.close()

    @task
    def send(self) -> None:
        """Send one request of the mix."""
        self.arrive(self.embed)

    def embed(self) -> None:
        """Embed what is drawn from the mix; tables and ids go over REST alone."""
        kind, inputs = draw()
        while kind in (user_mix.TABLE, user_mix.IDS):
            kind, inputs = draw()
        protocol = RNG.choices(list(GRPC_SHARES), list(GRPC_SHARES.values()))[0]
        name, call = self.calls[protocol]
        for _ in range(self.retries + 1):
            wait = self.timed(f"{name} {protocol}", kind, call, [str(text) for text in inputs])
            if wait is None:
                return
            time.sleep(wait)

    def timed(self, name: str, kind: str, call: Callable[[list[str]], Floats], texts: list[str]) -> float | None:
        """Make one call and report it; return the seconds that a refusal says to wait, or None."""
        begun, size = time.perf_counter(), 0
        failure: str | None = None
        wait: float | None = None
        try:
            vectors = call(texts)
            check(kind, vectors, len(texts))
            size = vectors.nbytes
        except grpc.RpcError as error:
            trailing: Any = error.trailing_metadata() or ()
            pushback = dict(trailing).get("grpc-retry-pushback-ms")
            if error.code() in REFUSALS and pushback:
                wait = float(pushback) / 1000
            else:
                failure = f"{error.code().name}: {error.details()}"  # its own text differs from call to call
        except (WrongAnswer, ValueError, IndexError) as error:
            failure = f"wrong answer: {error!r}"
        self.environment.events.request.fire(
            request_type="GRPC" if wait is None else REFUSED,
            name=name,
            response_time=(time.perf_counter() - begun) * 1000,
            response_length=size,
            exception=failure,
            context={},
        )
        return wait

    def call_inlay(self, texts: list[str]) -> Floats:
        """Return the vectors of texts from inlay.v1."""
        return from_message(self.stubs.embed(texts_request(texts, model=self.model), **self.sent))

    def call_oip(self, texts: list[str]) -> Floats:
        """Return the vectors of texts from the Open Inference Protocol."""
        contents = open_inference_pb2.InferTensorContents(bytes_contents=[text.encode() for text in texts])
        tensor = open_inference_pb2.ModelInferRequest.InferInputTensor
        tensors = [tensor(name="text", datatype="BYTES", shape=[len(texts)], contents=contents)]
        request = open_inference_pb2.ModelInferRequest(model_name=self.model, inputs=tensors)
        answer = self.stubs.infer(request, **self.sent)
        return np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(tuple(answer.outputs[0].shape))

    def call_tei(self, texts: list[str]) -> Floats:
        """Return the vectors of texts from tei.v1, one message a text."""
        requests = iter([tei_pb2.EmbedRequest(inputs=text, truncate=True) for text in texts])
        answers = self.stubs.tei_stream(requests, **self.sent)
        return np.array([list(answer.embeddings) for answer in answers], np.float32)
