"""Every setting, once: an INLAY_ variable and a `serve` flag each. Reads nothing itself; __main__ does."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]


def _split(value: object) -> object:
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


class Settings(BaseSettings):
    """How this process serves. Flags win over INLAY_ variables, which win over the defaults."""

    model_config = SettingsConfigDict(env_prefix="INLAY_", frozen=True, extra="ignore", use_attribute_docstrings=True)

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
    max_request_tokens: Count = 131072
    """Tokens in one request, all inputs together."""
    max_image_pixels: Count = 40_000_000
    """Pixels of one picture, as it comes and as it is resized; checked before it is decoded."""
    max_batch_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens an encoder runs at a time, a longer single input alone; 0: 512 on CPU, 16384 on CUDA."""
    max_queue_tokens: Count = 1048576
    """Tokens waiting for one graph of a model; beyond it requests are refused with 429 / RESOURCE_EXHAUSTED."""
    table_cache_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    """Bytes of finished positional tables kept for those who ask again, half of it for one at most; 0: none."""
    auto_truncate: bool = True
    """Cut inputs that are too long where the request does not say; false refuses them."""
    shutdown_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long a stop waits for requests in flight."""
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    """Least severe log line that is written."""
