"""Facts about the machine and the software of a measurement. They hold no host name, user or path."""

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

PACKAGES = (
    *("uvicorn", "uvloop", "httptools", "starlette", "fastapi", "pydantic", "grpcio", "protobuf"),
    *("orjson", "numpy", "onnxruntime", "onnxruntime-gpu", "tokenizers"),
)

MATRIX_FLAGS = ("amx_", "avx2", "avx512", "avx_vnni", "fma")


def facts() -> dict[str, str]:
    """Return date, cores, processor, memory, kernel, Python and library versions, in reading order."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def flags() -> str:
    """Return the processor's instruction sets that matrix products use."""
    known = _field("/proc/cpuinfo", "flags").split()
    return " ".join(sorted(flag for flag in known if flag.startswith(MATRIX_FLAGS))) or "none"


def facts_line() -> str:
    """Return the facts that matter most, on one line."""
    return ", ".join(f"{key} {value}" for key, value in facts().items() if key in ("cores", "processor", "python"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _field(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
