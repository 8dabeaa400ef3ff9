"""Every setting, once: an INLAY_ variable and a `serve` flag each. Reads nothing itself; __main__ does."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]
OTEL_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def _split(value: object) -> object:
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _split_keys(value: object) -> object:
    found = _split(value)
    if value and not found:
        raise ValueError("commas and spaces are no key: write KEY or NAME:KEY, or unset it to be open to all")
    return found


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split_keys)]
SECRET = ("api_keys",)
"""Settings that nothing shows."""


class Settings(BaseSettings):
    """How this process serves. Flags win over INLAY_ variables, which win over the defaults."""

    model_config = SettingsConfigDict(
        env_prefix="INLAY_", frozen=True, extra="ignore", use_attribute_docstrings=True, validate_by_name=True
    )

    host: str = "127.0.0.1"
    """Address that REST and gRPC listen on; 0.0.0.0 for all."""
    port: Port = 8080
    """REST port; 0 takes a free one."""
    grpc_port: Port = 50051
    """gRPC port; 0 takes a free one."""
    store: Path = Path("models/store")
    """Folder of exported models, one subfolder each."""
    models: Names = ()
    """Names of the models to load, separated by commas; empty: all in the store."""
    default_model: str | None = None
    """Model that answers requests naming none; unset: the only one loaded."""
    watch_store: Annotated[float, Field(ge=0)] = 0.0
    """Seconds between looks at the store for models that came, were exchanged or went; 0: it is read at the start."""
    model_control: Literal["none", "explicit"] = "none"
    """explicit: clients of the Open Inference Protocol may load and unload models of the store; none: nobody may."""
    shared_memory: bool = False
    """Clients of the Open Inference Protocol may lend shared memory of this machine, whose every region they reach."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes CUDA where it really works and says which it got; cuda fails where it does not."""
    engine: Literal["onnx", "reference"] = "onnx"
    """onnx: ONNX Runtime; reference: numpy float64, slow, for checking."""
    workers: Count = 1
    """Processes sharing both ports and the mapped tables."""
    threads: Annotated[int, Field(ge=0)] = 0
    """ONNX Runtime threads a process; 0: the cores this container may use, divided by the workers."""
    max_inputs: Count = 1024
    """Inputs in one request."""
    max_body_bytes: Count = 16 * 1024 * 1024
    """Bytes in one request's body or gRPC message."""
    max_receiving_bytes: Count = 256 * 1024 * 1024
    """Bytes of bodies that are still coming, all together; beyond it large ones are refused, with Retry-After."""
    max_input_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens in one input, where that is less than the model reads; longer ones as beyond its own limit. 0: that."""
    max_request_tokens: Count = 131072
    """Tokens in one request, all inputs together."""
    max_request_characters: Count = 2 * 1024 * 1024
    """Characters of text in one request, all inputs together; checked before they are tokenised."""
    max_image_pixels: Count = 40_000_000
    """Pixels of one picture, as it comes and as it is resized; checked before it is decoded."""
    max_batch_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens an encoder runs at a time, a longer single input alone; 0: 512 on CPU, 16384 on CUDA."""
    gpu_memory_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of CUDA memory for the working values of one graph, beside its weights; 0: what there is."""
    max_queue_tokens: Count = 1048576
    """Tokens waiting for one graph of a model; beyond it requests are refused with 429 / RESOURCE_EXHAUSTED."""
    max_queue_seconds: Annotated[float, Field(gt=0)] = 2.0
    """How long others may delay a request, by the measured drain rate; beyond it requests are refused."""
    max_concurrent_requests: Count = 1024
    """Requests being served at a time by one process; beyond it they are refused, with Retry-After."""
    max_answer_bytes: Count = 512 * 1024 * 1024
    """Bytes of token rows in one answer."""
    max_table_bytes: Count = 64 * 1024 * 1024 * 1024
    """Bytes of one positional table, which is streamed as it is computed."""
    stuck_seconds: Annotated[float, Field(gt=0)] = 60.0
    """A run that takes longer is given up: its callers are told, later ones go on."""
    table_cache_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    """Bytes of finished positional tables kept for those who ask again, half of it for one at most; 0: none."""
    auto_truncate: bool = True
    """Cut inputs that are too long where the request does not say; false refuses them."""
    api_keys: Secrets = ()
    """Keys that open this service, separated by commas, each KEY or NAME:KEY; none, and no file: it is open to all."""
    api_keys_file: Path | None = None
    """More keys, one a line, each [NAME:]KEY [concurrent=N] [rate=PER_SECOND]; read again when it changes."""
    key_max_concurrent_requests: Count | None = None
    """Requests of one key being served at a time by one process, a gRPC stream being one; unset: any number."""
    key_max_requests_per_second: Annotated[float, Field(gt=0)] | None = None
    """Requests of one key in a second to one process; unset: any number."""
    tls_cert: Path | None = None
    """Certificate with its chain, PEM: REST and gRPC speak TLS; read again when it changes."""
    tls_key: Path | None = None
    """Its private key, PEM, without a password."""
    tls_client_ca: Path | None = None
    """Authorities, PEM, one of which must have signed what callers show (mutual TLS); unset: callers show nothing."""
    cors_origins: Names = ()
    """Origins whose pages may call from a browser, separated by commas, or *; empty: none."""
    compression: Literal["asked", "always", "never"] = "asked"
    """asked: vectors only where Accept-Encoding shows a will, not a client's habit; always: where it allows; never."""
    client_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long a client may hold up its request or its answer, at under 4 KiB a second, before it is cut off."""
    idle_seconds: Annotated[float, Field(gt=0)] = 75.0
    """How long an HTTP connection may wait for its next request; longer than a proxy in front keeps it."""
    shutdown_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long a stop waits for requests in flight."""
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    """Least severe log line that is written."""
    log_format: Literal["text", "json"] = "text"
    """json: one object a line."""
    log_inputs: bool = False
    """Write messages of exceptions to the log, which may quote what callers sent."""
    access_log: bool = False
    """One log line for each request."""
    otlp_endpoint: str | None = Field(
        None, pattern="^(https?://.+)?$", validation_alias=AliasChoices("INLAY_OTLP_ENDPOINT", OTEL_ENDPOINT)
    )
    """OTLP/HTTP collector that traces go to, e.g. http://collector:4318; OTEL_EXPORTER_OTLP_ENDPOINT does too."""
    trace_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of requests that are traced, of those whose callers did not decide it."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """No two settings ask for what cannot be had together."""
        if self.port and self.port == self.grpc_port:
            raise ValueError(f"INLAY_PORT and INLAY_GRPC_PORT are both {self.port}: give each its own")
        if self.shared_memory and self.workers > 1:
            raise ValueError(
                "INLAY_SHARED_MEMORY=true, which registers regions with one process, does not go with "
                f"INLAY_WORKERS={self.workers}: set INLAY_WORKERS=1 or INLAY_SHARED_MEMORY=false"
            )
        return self
