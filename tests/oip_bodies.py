"""Bodies of the Open Inference Protocol made by hand, and its answers read, after its documents and no code of ours."""

import json
import struct
from collections.abc import Sequence
from typing import Any

import httpx
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

LENGTH = "inference-header-content-length"
DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
}


def entry(name: str, datatype: str, shape: Sequence[int], **members: Any) -> dict[str, Any]:
    """One tensor of a request."""
    return {"name": name, "datatype": datatype, "shape": list(shape), **members}


def listed(name: str, values: Any, datatype: str = "INT64") -> dict[str, Any]:
    """A tensor as a nested JSON list."""
    return entry(name, datatype, np.shape(values), data=values)


def raw_bytes(values: Any, datatype: str) -> bytes:
    """A tensor's raw bytes."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(each)) + each for each in values)
    return np.asarray(values, DTYPES[datatype]).tobytes()


def binary(tensors: Sequence[tuple[str, str, Any]], **members: Any) -> tuple[bytes, dict[str, str]]:
    """Body and headers of (name, datatype, values) as raw tensors."""
    raws = [raw_bytes(values, datatype) for _, datatype, values in tensors]
    inputs = [
        entry(name, datatype, np.shape(values), parameters={"binary_data_size": len(raw)})
        for (name, datatype, values), raw in zip(tensors, raws, strict=True)
    ]
    head = json.dumps({"inputs": inputs, **members}).encode()
    return head + b"".join(raws), {LENGTH: str(len(head))}


def arrays(answer: httpx.Response) -> dict[str, NDArray[Any]]:
    """The outputs of an answer, raw or listed."""
    assert answer.status_code == 200, answer.text
    head = int(answer.headers.get(LENGTH, len(answer.content)))
    arrays_by_name, at = {}, head
    for output in json.loads(answer.content[:head])["outputs"]:
        dtype = DTYPES[output["datatype"]]
        if "data" in output:
            flat = np.array(output["data"], dtype)
        else:
            size = output["parameters"]["binary_data_size"]
            flat = np.frombuffer(answer.content[at : at + size], dtype)
            at += size
        arrays_by_name[output["name"]] = flat.reshape(output["shape"])
    assert at == len(answer.content)
    return arrays_by_name


def infer(http: httpx.Client, tensors: Sequence[tuple[str, str, Any]], model: str = "bert", **members: Any) -> Any:
    """The outputs of raw inputs, raw."""
    parameters = {"binary_data_output": True} | members.pop("parameters", {})
    body, headers = binary(tensors, parameters=parameters, **members)
    return arrays(http.post(f"/v2/models/{model}/infer", content=body, headers=headers))
