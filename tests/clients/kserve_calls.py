"""KServe's clients in a process of their own: `python -m tests.clients.kserve_calls HOST:PORT GRPC MODEL` prints JSON.

They and Triton's bring two files that define the package `inference`, which one process cannot hold. Judges nothing.
"""

import asyncio
import json
import sys
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from tests.clients.judged import INPUTS
from tests.clients.triton_cases import POOLED, padded


def of_ids(model: str, binary: bool, **parameters: Any) -> InferRequest:
    tensors = [InferInput(name, list(array.shape), "INT64") for name, array in padded().items()]
    for tensor, array in zip(tensors, padded().values(), strict=True):
        tensor.set_data_from_numpy(array, binary_data=binary)
    requested = [RequestedOutput(POOLED, {"binary_data": binary})]
    return InferRequest(model, tensors, request_outputs=requested, request_id="seven", parameters=parameters or None)


def of_texts(model: str, binary: bool) -> InferRequest:
    tensor = InferInput("text", [len(INPUTS), 1], "BYTES")
    array = np.array([[text.encode()] for text in INPUTS], np.object_)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model, [tensor])


def values(answer: Any) -> list[list[float]]:
    [output] = answer.outputs
    assert output.name == POOLED
    rows: list[list[float]] = output.as_numpy().tolist()
    return rows


async def over_rest(host: str, model: str) -> dict[str, Any]:
    url = f"http://{host}"
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        facts: dict[str, Any] = {
            "live": await client.is_server_live(url),
            "ready": await client.is_server_ready(url),
            "model ready": await client.is_model_ready(url, model),
            "another ready": await client.is_model_ready(url, "no such model"),
        }
        for binary in (False, True):
            answer = await client.infer(url, of_ids(model, binary), model_name=model)
            facts[f"ids, binary {binary}"] = values(answer)
            facts["id"] = answer.id
            facts[f"texts, binary {binary}"] = values(
                await client.infer(url, of_texts(model, binary), model_name=model)
            )
        try:
            await client.infer(url, of_ids("none", binary=True), model_name="none")
        except httpx.HTTPStatusError as error:
            facts["refused"] = str(error)
    return facts


async def over_grpc(address: str, model: str) -> dict[str, Any]:
    async with InferenceGRPCClient(address) as client:
        facts: dict[str, Any] = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model ready": await client.is_model_ready(model),
        }
        for binary in (False, True):  # typed contents, raw contents
            answer = await client.infer(of_ids(model, binary))
            facts[f"ids, binary {binary}"] = values(answer)
            facts["id"] = answer.id
            facts[f"texts, binary {binary}"] = values(await client.infer(of_texts(model, binary)))
        try:
            await client.infer(of_ids("none", binary=True))
        except grpc.aio.AioRpcError as error:
            facts["refused"] = f"{error.code().name} {error.details()}"
    return facts


if __name__ == "__main__":
    _, host, address, model = sys.argv
    print(json.dumps({"REST": asyncio.run(over_rest(host, model)), "gRPC": asyncio.run(over_grpc(address, model))}))
