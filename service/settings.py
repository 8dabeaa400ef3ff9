"""Every setting of the service: an `INLAY_` variable and an option of `inlay serve` each.

A field's docstring describes it: the first paragraph in `inlay serve --help`, all of it in `inlay settings` and on the
page of settings of the documentation.
"""

import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

ROOT = Path(__file__).parents[1]
MIB = 2**20
OWN_BYTES = 192 * MIB  # of a worker with the demo model, before the first request
CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]
UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
OTEL_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTEL_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"


def _split(value: object) -> Any:
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _check_gpus(names: tuple[str, ...]) -> tuple[str, ...]:
    if names != ("all",) and not (names and all(name.isdecimal() for name in names)):
        raise ValueError("it takes numbers of GPUs, separated by commas, or the one word all")
    return names


def _split_keys(value: object) -> object:
    keys = _split(value)
    if value and not keys:
        raise ValueError("it holds commas and spaces but no key: write KEY or NAME:KEY, or unset it to serve everybody")
    return keys


def _check_aliases(aliases: tuple[str, ...]) -> tuple[str, ...]:
    for alias in aliases:
        if not all(part.strip() for part in alias.rpartition("=")):
            raise ValueError(f"it holds {alias[:40]!r}: write ALIAS=NAME")
    return aliases


def duration_seconds(value: object) -> Any:
    """Return the seconds of 300, 5m or 1h30m, as Ollama reads them (api/types.go); infinity if they are negative."""
    if isinstance(value, str):
        match = re.fullmatch(r"(-?)(?:(\d+(?:\.\d+)?)|((?:\d+(?:\.\d+)?(?:ms|s|m|h))+))", value.strip())
        if match is None:
            raise ValueError(f"{value[:40]!r} is no duration: write seconds, 5m or 1h30m; -1: for ever")
        parts = [(match[2], "s")] if match[2] else re.findall(r"([\d.]+)([a-z]+)", match[3])
        value = (-1 if match[1] else 1) * sum([float(number) * UNITS[unit] for number, unit in parts])
    return math.inf if isinstance(value, int | float) and value < 0 else value


def _seconds_by_model(text: str) -> dict[str, float]:
    """Return the seconds of 5m,minilm=1h by the model's name; those of all other models by the empty name."""
    pairs = [each.rpartition("=")[::2] for each in _split(text)]
    if len(dict(pairs)) < len(pairs):
        raise ValueError("it names a model twice, or holds two durations without a model")
    return {"": 300.0} | {name.strip(): duration_seconds(duration) for name, duration in pairs}


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Durations = Annotated[str, AfterValidator(lambda text: _seconds_by_model(text) and text)]
Gpus = Annotated[Names, AfterValidator(_check_gpus)]
Aliases = Annotated[Names, AfterValidator(_check_aliases)]
Signals = Annotated[tuple[Literal["traces", "metrics", "logs"], ...], NoDecode, BeforeValidator(_split)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split_keys)]
SECRET = ("api_keys",)
"""Settings whose values are never shown."""


def default_store() -> Path:
    """Return the store where none is named: models/store of this code's checkout, else inlay/models of the user's data.

    The path is absolute, so that every command finds the same models wherever it is started.

    Source: platformdirs.user_data_dir has the same folders of data.
    """
    if (ROOT / "pyproject.toml").is_file():
        return ROOT / "models/store"
    if data := os.environ.get("XDG_DATA_HOME", "").strip():
        return Path(data).absolute() / "inlay/models"
    folder = "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    return Path.home() / folder / "inlay/models"


def available_memory(cgroup: Path = CGROUP, groups: Path = OWN_CGROUPS) -> int:
    """Return the bytes of memory that this process may use: the smallest limit of the machine and its cgroups."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_memory_limits(cgroup, groups)])


def _memory_limits(cgroup: Path, groups: Path) -> Iterator[int]:
    """Yield the memory limits of this process's cgroups and their parents, versions 2 and 1.

    In a container the path in /proc may be the host's, and what is mounted the container's own part of it.
    """
    lines = groups.read_text().splitlines() if groups.exists() else []
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    versions = ((cgroup, "memory.max", ""), (cgroup / "memory", "memory.limit_in_bytes", "memory"))
    for root, file, controllers in versions:
        path = Path(paths.get(controllers, "/"))
        for folder in (path, *path.parents):
            try:
                yield int((root / folder.relative_to("/") / file).read_text())
            except (OSError, ValueError):  # no such folder, or "max"
                continue


def _memory_share(part: int, most: int | None = None) -> Any:
    """Return a field whose default is a share of the memory of each worker, at most `most`."""

    def share(values: dict[str, Any]) -> int:
        memory: int = available_memory() // values.get("workers", 1)
        part_bytes = max(memory - OWN_BYTES, memory // 4) // part
        return part_bytes if most is None else min(part_bytes, most)

    return Field(default_factory=share)


class Settings(BaseSettings):
    """How the service runs. Options win over INLAY_ variables, which win over the defaults."""

    model_config = SettingsConfigDict(
        env_prefix="INLAY_", frozen=True, extra="ignore", use_attribute_docstrings=True, validate_by_name=True
    )

    host: str = "127.0.0.1"
    """Address that REST and gRPC listen on; 0.0.0.0 for all."""
    port: Port = 8080
    """REST port; 0 takes a free one."""
    grpc_port: Port = 50051
    """gRPC port; 0 takes a free one."""
    management_port: Port | None = None
    """Port of its own for probes, /metrics and loading models, 0: a free one; unset: the REST port has them.

    `/health*`, `/ping`, `/metrics` and `/v2/repository` are then 404 on the REST port, and UNIMPLEMENTED over gRPC. The
    port answers while models load, and asks for no client certificate.
    """
    workers: Count = 1
    """Worker processes; they share both ports and the mapped tables."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of each worker for encoders, in runs of one thread, or for a text alone; 0: its share of the cores.

    The share is the container's cores divided by the workers. Each thread runs a batch of its own; a text alone runs on
    all of them.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where it works, else CPU, and the log says which; cuda: refuse to start without it."""
    gpu_dtype: Literal["float32", "float16", "bfloat16", "auto"] = "float32"
    """Of an encoder's products on CUDA; auto: the first of float16, bfloat16, float32 that comes close to the CPU's.

    Close is a cosine of at least 0.9999 over 16 texts, measured when a model is loaded. A type that is named is refused
    below 0.99.
    """
    gpus: Gpus = ("0",)
    """Numbers of the GPUs that encoders run on, separated by commas, or `all`."""
    engine: Literal["onnx", "openvino", "auto", "reference"] = "onnx"
    """onnx; openvino: encoders in bfloat16; auto: that where it is known to be faster; reference: float64, slow."""
    web: bool = True
    """Serve the web page at / to browsers; false: GET / answers in JSON alone."""
    docs_url: str | None = Field(None, pattern="^(https?://.+)?$")
    """Address of the site that `make docs` builds, where you publish it: the web page links it as its guides."""
    compression: Literal["asked", "always", "never"] = "asked"
    """asked: compress vectors only if Accept-Encoding names or prefers one coding; always: if it allows; never.

    Numbers hardly shrink, so vectors are compressed where the header names a single coding or prefers one by its
    q-value. Other documents are compressed as Accept-Encoding allows.
    """
    client_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a client may send or read at less than 4 KiB a second before it is disconnected."""
    idle_seconds: Annotated[float, Field(gt=0)] = 75.0
    """Seconds that an idle HTTP connection is kept open; choose more than a proxy in front keeps it."""
    drain_delay: Annotated[float, Field(ge=0)] = 0.0
    """Seconds after SIGTERM in which probes fail and requests are still served, until balancers have noticed.

    A second signal ends the delay.
    """
    shutdown_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a stop waits for requests in flight.

    It follows INLAY_DRAIN_DELAY. A container's grace period must be longer than both together and 7 s.
    """

    store: Path = Field(default_factory=default_store)
    """Folder of exported models, one subfolder each; unset: models/store of a checkout, else one in the user's data.

    That is $XDG_DATA_HOME/inlay/models, by default ~/.local/share/inlay/models, and on macOS
    ~/Library/Application Support/inlay/models.
    """
    models: Names = ()
    """Names of the models to load from the store, separated by commas; empty: all of them."""
    default_model: Names = ()
    """Models of requests that name none: the first; unset: the first of INLAY_MODELS, else the only one loaded.

    The first `--model` of `inlay serve` comes before INLAY_MODELS. A route that needs a reranker, a classifier, sparse
    vectors or a reader of images takes the first of that kind among these and INLAY_MODELS, else the only one loaded.
    """
    aliases: Aliases = ()
    """Further names of models, each ALIAS=NAME, separated by commas; aliases may hold slashes.

    A model also answers to the aliases in its card, to the hub id that it was exported from and to that id's last part.
    Its own name wins over those of others, and a name that two models would answer to is refused.
    """
    pooling: str | None = None
    """How models given as checkpoints pool: a sentence-transformers mode, splade or none; unset: as their files say."""
    adapters: Names = ()
    """LoRA adapters beside the only model given as a checkpoint, each NAME=FOLDER_OR_HUB_ID, separated by commas.

    Requests choose one by the model's name with :NAME behind it, or as the task NAME.
    """
    default_prompt: str | None = None
    """Text before texts of requests that name no prompt, of every model with sentence vectors."""
    default_prompt_name: str | None = None
    """The model's prompt that requests get which name none; unset: the default of its files."""
    load: Literal["start", "on-demand"] = "start"
    """start: load all models at the start; on-demand: each by its first request, within INLAY_MODEL_MEMORY_BYTES.

    On demand, requests for a model wait while it is loaded; those for loaded models are served meanwhile.
    """
    model_memory_bytes: Count = _memory_share(2)
    """Bytes of the files of models that are loaded on demand at a time, in each worker; unset: 1/2 of the memory.

    For another the least recently used is unloaded, unless it is pinned or in use.
    """
    keep_alive: Durations = "5m"
    """How long a model that is loaded on demand stays after its last request: 300, 5m, 1h30m; -1: until memory is
    needed; 0: no longer than its requests.

    `5m,minilm=1h,large=0` says it for models by their names and for all others. Requests to /api/embed may say
    otherwise, by Ollama's field of this name.
    """
    pinned_models: Names = ()
    """Models that INLAY_LOAD=on-demand loads at the start and never unloads, separated by commas."""
    watch_store: Annotated[float, Field(ge=0)] = 0.0
    """Seconds between checks of the store for new, changed and removed models; 0: read it at the start only."""
    verify: Literal["changed", "always", "off"] = "changed"
    """changed: check the sha256 of a model's files unless they are as they were when last checked; always; off.

    Size, modification time and inode tell whether a file has changed. `inlay check` always reads the files, unless this
    is off.
    """
    model_control: Literal["none", "explicit"] = "none"
    """explicit: Open Inference Protocol clients may load and unload models of the store, in all workers."""
    auto_truncate: bool = True
    """Truncate inputs that are too long when the request does not say; false: reject them."""
    strict_fields: bool = False
    """Refuse unknown fields in bodies of other people's protocols too; false: ignore them and name them in a header.

    The header is `inlay-ignored-fields`. A field that is spelt nearly as a known one is always refused.
    """
    empty_inputs: Literal["refuse", "vector"] = "refuse"
    """What /v1/embeddings does with an empty text: refuse the request, as OpenAI, or embed the special tokens alone."""
    openai_token_ids: str = "model"
    """Whose token ids /v1/embeddings takes: model, refuse, or an encoding of tiktoken, such as cl100k_base.

    Ids of an encoding are turned back into text, as LangChain's OpenAI class needs; the header `inlay-token-ids` says
    whose they were taken for. It needs tiktoken (an extra) and the encoding's file, in TIKTOKEN_CACHE_DIR or fetched at
    the start.
    """
    table_cache_bytes: Annotated[int, Field(ge=0)] = _memory_share(16, 256 * MIB)
    """Bytes of computed positional tables kept in memory, a table at most half; unset: 1/16 of it, up to 256 MiB.

    Larger tables are streamed and not kept.
    """
    vector_cache_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of pooled vectors kept in memory by each worker, to answer texts that come again; 0: none are."""

    max_inputs: Count = 2048  # as many as OpenAI takes, and its clients send
    """Inputs in one request."""
    max_body_bytes: Count = 16 * 1024 * 1024
    """Bytes of one request body or gRPC message."""
    max_receiving_bytes: Count = _memory_share(16, 256 * MIB)
    """Bytes of all bodies held at a time, above it large ones get 429; unset: 1/16 of the memory, up to 256 MiB.

    That is, of bodies being received or worked on. gRPC messages above it wait for their turn.
    """
    max_input_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens in one input, where that is less than the model's own limit; 0: the model's limit.

    Longer inputs are truncated or rejected, as the request or INLAY_AUTO_TRUNCATE says.
    """
    max_request_tokens: Count = 524288
    """Tokens in one request, all inputs together."""
    max_request_characters: Count = _memory_share(384, 2 * MIB)
    """Characters of text in one request, all inputs together; unset: 1/384 of the memory's bytes, up to 2 Mi.

    It is checked before tokenization, which reads of each text what its model can.
    """
    max_image_pixels: Count = _memory_share(80, 40_000_000)
    """Pixels of one image, as sent and as resized; unset: 1/80 of the memory's bytes, up to 40 million."""
    image_hosts: Names = ()
    """Hosts from which pictures are fetched that requests name by address; none: addresses are refused.

    Separated by commas; `*.example.org` stands for all below, a port is named if it is not the usual one. Addresses of
    private networks are never asked, redirects lead to these hosts alone, and a picture has INLAY_MAX_BODY_BYTES and 10
    seconds.
    """
    max_batch_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens in one encoder batch, where a longer input runs alone; 0: 512 on CPU, 1024 in OpenVINO, 16384 on CUDA.

    Padding counts.
    """
    gpu_memory_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of CUDA memory for one graph's intermediate values, beside its weights; 0: no limit.

    It is ONNX Runtime's `gpu_mem_limit`.
    """
    prepacked_bytes: Annotated[int, Field(ge=0)] = 1 << 30
    """Bytes that the copy of a model's graph may take beside it, packed for this processor; 0: none is kept.

    It is made at the first load, in the model's folder if that may be written to. Later loads take half the time, and
    workers share its pages.
    """
    max_queue_tokens: Count = 1048576
    """Tokens waiting for one graph of a model; above it requests get 429 / RESOURCE_EXHAUSTED."""
    max_queue_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a request without a deadline may wait for others: 429 where more are expected, 504 after them.

    Short requests are refused sooner. A request has twice the time of its own work besides, and bulk has no limit once
    it is queued. gRPC callers get RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED.
    """
    bulk_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of a model's time that bulk requests get while others wait; they get all that others leave.

    Bulk is `inlay-priority: bulk` (header, gRPC metadata), OpenAI's `service_tier: flex`, `priority`, a key, a path.
    """
    bulk_paths: Names = ()
    """Paths whose requests are bulk unless they say otherwise: /v1/embeddings, /inlay.v1.Embedder/EmbedStream, ..."""
    max_concurrent_requests: Count = 1024
    """Requests served at a time by one worker; above it requests get 429 with Retry-After.

    A request counts until its response begins to be sent. gRPC accepts twice as many calls, and as many streams, before
    it reads their messages; above that callers get RESOURCE_EXHAUSTED.
    """
    max_answer_bytes: Count = _memory_share(9, 512 * MIB)
    """Bytes of float32 vectors in one response; unset: 1/9 of the memory, up to 512 MiB."""
    max_answering_bytes: Count = _memory_share(4)
    """Bytes of all vectors and texts being computed and sent, above it requests get 429; unset: 1/4 of the memory.

    It bounds what slow readers hold, and the working memory of texts being tokenized, images being decoded and large
    gRPC messages.
    """
    max_streaming_bytes: Count = _memory_share(16)
    """Bytes of memory for all tables being sent, above it requests for tables get 429; unset: 1/16 of the memory.

    However slowly their clients read.
    """
    max_table_bytes: Count = 64 * 1024 * 1024 * 1024
    """Bytes of one positional table, which is streamed as it is computed."""
    heavy_processes: Annotated[int, Field(ge=0)] = 1
    """Processes of each worker for work whose cost is not known before it is done, such as reading large bodies.

    They start when they are needed and end when they were not for a minute. 0: the same work in threads of the worker,
    without limits of its own, where memory is too small for another process.
    """
    heavy_memory_bytes: Count = _memory_share(5, 640 * MIB)
    """Bytes that such a process may allocate for a request, above it 413; unset: 1/5 of the memory, up to 640 MiB."""
    heavy_seconds: Annotated[float, Field(gt=0)] = 20.0
    """Seconds of the processor that such a process may take for one request, above it the request gets 503."""
    stuck_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Seconds after which a run counts as stuck: its callers get an error, later requests go on.

    The error is `engine_failure`, 424.
    """

    api_keys: Secrets = ()
    """API keys, separated by commas, each KEY or NAME:KEY; empty and no file: no key is needed."""
    api_keys_file: Path | None = None
    """File of more keys, one a line, each KEY or NAME:KEY, then concurrent=N, rate=PER_SECOND; read when it changes."""
    key_max_concurrent_requests: Count | None = None
    """Requests of one key served at a time by one worker, a gRPC stream counting as one; unset: no limit.

    A line of INLAY_API_KEYS_FILE may set another limit for its key.
    """
    key_max_requests_per_second: Annotated[float, Field(gt=0)] | None = None
    """Requests a second of one key to one worker; unset: no limit.

    A line of INLAY_API_KEYS_FILE may set another limit for its key.
    """
    key_metrics: Annotated[int, Field(ge=0)] = 20
    """Keys whose requests, seconds, tokens and refusals /metrics shows by model; all further ones are the key `other`.

    The first of INLAY_API_KEYS, then of INLAY_API_KEYS_FILE. 0: nothing is counted by key. /metrics needs no key and
    names them: INLAY_MANAGEMENT_PORT keeps it apart.
    """
    tls_cert: Path | None = None
    """Certificate chain, PEM: REST and gRPC speak TLS; read again when it changes."""
    tls_key: Path | None = None
    """Private key of the certificate, PEM, without a password."""
    tls_client_ca: Path | None = None
    """Certificate authorities, PEM, that must have signed the callers' certificates (mutual TLS).

    REST then needs TLS 1.3. The file is read again when it changes.
    """
    cors_origins: Names = ()
    """Origins whose pages may call from a browser, separated by commas, or *; empty: none.

    Any request header is allowed. Pages of other origins cannot load or unload models either.
    """
    allowed_hosts: Names = ()
    """Names and addresses, without ports, that a request's Host may have, separated by commas; empty: any.

    Other requests get 403, but for probes, /metrics and /docs. It keeps web pages out that reach a server without keys
    by a name of their own (DNS rebinding).
    """

    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    """Least severe log line that is written: critical, error, warning, info or debug."""
    log_format: Literal["text", "json"] = "text"
    """json: one JSON object a line."""
    log_inputs: bool = False
    """Write the messages of exceptions to the log, which may quote what callers sent."""
    access_log: bool = False
    """Write one log line for each request."""
    otlp_endpoint: str | None = Field(
        None, pattern="^(https?://.+)?$", validation_alias=AliasChoices("INLAY_OTLP_ENDPOINT", OTEL_ENDPOINT)
    )
    """OTLP/HTTP collector to send to, e.g. http://collector:4318; OTEL_EXPORTER_OTLP_ENDPOINT works too."""
    otlp_signals: Signals = ()
    """What the collector gets, separated by commas, of traces, metrics and logs; unset: traces.

    Or what OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER and OTEL_LOGS_EXPORTER say: otlp, or none. The standard's other
    variables apply as well: of endpoints, headers, certificates, timeouts, the resource and the interval of metrics.
    """
    trace_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of requests that are traced, of those whose callers did not decide it."""

    @property
    def signals(self) -> Sequence[str]:
        """What the collector gets, if there is one."""
        sent = {signal: os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "") for signal in ("metrics", "logs")}
        sent["traces"] = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
        return self.otlp_signals or [signal for signal, exporters in sent.items() if "otlp" in _split(exporters)]

    @property
    def metric_export_seconds(self) -> float:
        """Seconds between the metrics that the collector gets."""
        return float(os.environ.get(OTEL_INTERVAL) or 60_000) / 1000

    def otlp_url(self, signal: str) -> str:
        """Return the address that a signal is sent to."""
        own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
        return own or f"{(self.otlp_endpoint or '').rstrip('/')}/v1/{signal}"

    @property
    def keep_seconds(self) -> dict[str, float]:
        """Seconds that a model is kept by its name; those of all other models by the empty name."""
        return _seconds_by_model(self.keep_alive)

    @property
    def model_of_alias(self) -> dict[str, str]:
        """The models' own names by the aliases that these settings give them."""
        pairs = [alias.rpartition("=")[::2] for alias in self.aliases]
        return {alias.strip(): name.strip() for alias, name in pairs}

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        """Reject settings that contradict each other."""
        ports = {
            "INLAY_PORT": self.port,
            "INLAY_GRPC_PORT": self.grpc_port,
            "INLAY_MANAGEMENT_PORT": self.management_port,
        }
        for (name, port), (other, same) in combinations(ports.items(), 2):
            if port and port == same:
                raise ValueError(f"{name} and {other} are both {port}: give each its own")
        if self.default_prompt is not None and self.default_prompt_name is not None:
            raise ValueError("INLAY_DEFAULT_PROMPT and INLAY_DEFAULT_PROMPT_NAME are both set: set one")
        interval = os.environ.get(OTEL_INTERVAL) or "1"
        if not re.fullmatch("0*[1-9][0-9]{,11}", interval):
            raise ValueError(f"{OTEL_INTERVAL} is {interval[:40]!r}; allowed: milliseconds, a whole number from 1")
        if self.pinned_models and self.load == "start":
            raise ValueError("INLAY_PINNED_MODELS needs INLAY_LOAD=on-demand: without it no model is ever unloaded")
        keys = self.api_keys or self.api_keys_file
        if self.management_port is not None and self.model_control == "explicit" and self.tls_client_ca and not keys:
            raise ValueError(
                "INLAY_MANAGEMENT_PORT asks for no client certificate, since probes have none, so with "
                "INLAY_MODEL_CONTROL=explicit anyone who reaches it could load models: set INLAY_API_KEYS"
            )
        return self


SECTIONS = {
    "host": "Listen and run",
    "store": "Models",
    "max_inputs": "Limits",
    "api_keys": "Security",
    "log_level": "Observability",
}
"""The heading before a setting, in the order of the fields."""
