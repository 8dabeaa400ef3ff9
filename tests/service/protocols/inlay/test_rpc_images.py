"""Images over gRPC: the bits of POST /models/{name}/images, its limits, and its errors."""

import base64
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from proto import embed_pb2 as pb
from tests.golden_cases import case, write_json, write_tiny_bert
from tests.served import Served, serving
from tests.vision_cases import encoded, picture, write_seen

PROCESSOR = {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}
PICTURE = encoded(picture(20, 30))
PIXELS = np.random.default_rng(1).normal(size=(2, 3, 24, 24)).astype(np.float32)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`vit` reads pictures, `qwen` flattened patches, `bert` text."""
    folder = tmp_path_factory.mktemp("pictures")
    write_seen(case("vision_vit"), folder / "vit")
    write_json(folder / "vit/preprocessor_config.json", PROCESSOR)
    write_seen(case("vision_qwen2_vl_patch"), folder / "qwen")
    write_tiny_bert(folder / "bert")
    for name in ("vit", "qwen", "bert"):
        export(folder / name, folder / "store" / name, side={"qwen": "vision"}.get(name))
    with serving(folder / "store", default_model="vit", max_inputs=4, max_image_pixels=6000) as running:
        yield running


def tensor(array: NDArray[np.float32]) -> pb.Tensor:
    return pb.Tensor(dtype=pb.FLOAT32, shape=array.shape, data=array.tobytes())


def sent(array: NDArray[np.float32]) -> dict[str, Any]:
    return {"dtype": "float32", "shape": array.shape, "data": base64.b64encode(array.tobytes()).decode()}


PATCHES = case("vision_qwen2_vl_patch").arrays["pixel_values"].astype(np.float32)
GRID = [2, len(PATCHES) // 2]
CASES: list[tuple[str, list[pb.Image], list[Any]]] = [
    ("vit", [pb.Image(picture=PICTURE)], [base64.b64encode(PICTURE).decode()]),
    ("vit", [pb.Image(pixel_values=tensor(PIXELS[0]))], [{"pixel_values": sent(PIXELS[0])}]),
    ("vit", [pb.Image(pixel_values=tensor(PIXELS))], [{"pixel_values": sent(PIXELS)}]),
    (
        "vit",
        [pb.Image(picture=PICTURE), pb.Image(pixel_values=tensor(PIXELS[1]))],
        [base64.b64encode(PICTURE).decode(), {"pixel_values": sent(PIXELS[1])}],
    ),
    ("qwen", [pb.Image(pixel_values=tensor(PATCHES), grid=GRID)], [{"pixel_values": sent(PATCHES), "grid": GRID}]),
]


@pytest.mark.parametrize(("model", "images", "inputs"), CASES)
@pytest.mark.parametrize("dtype", [pb.DTYPE_UNSPECIFIED, pb.FLOAT16])
def test_grpc_and_http_give_the_same_bits(
    served: Served, model: str, images: list[pb.Image], inputs: list[Any], dtype: Any
) -> None:
    answer = served.stub.Images(pb.ImagesRequest(model=model, inputs=images, dtype=dtype))
    body = {"inputs": inputs, "dtype": "float16" if dtype else "float32"}
    rest = served.http.post(f"/models/{model}/images", json=body, headers={"accept": "application/octet-stream"})
    (output,) = answer.outputs
    assert output.tensor.data == rest.raise_for_status().content
    assert rest.headers["inlay-shape"] == ",".join(map(str, output.tensor.shape))
    assert rest.headers["inlay-lengths"] == ",".join(map(str, output.lengths))
    assert answer.model == model


def test_names_its_outputs(served: Served) -> None:
    card = served.http.get("/models/vit").json()
    names = card["outputs"]
    answer = served.stub.Images(pb.ImagesRequest(inputs=[pb.Image(picture=PICTURE)], outputs=names))
    assert [output.name for output in answer.outputs] == names


ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"model": "vat"}, "NOT_FOUND", "unknown_model", "did you mean 'vit'"),
    ({"model": "bert", "inputs": [pb.Image(picture=PICTURE)]}, "INVALID_ARGUMENT", "bad_request", "reads no images"),
    ({}, "INVALID_ARGUMENT", "empty", "inputs is empty"),
    ({"inputs": [pb.Image()]}, "INVALID_ARGUMENT", "missing_field", "inputs[0] has no image"),
    ({"inputs": [pb.Image(picture=b"abc")]}, "INVALID_ARGUMENT", "bad_input", "inputs[0]"),
    (
        {"inputs": [pb.Image(picture=PICTURE)] * 5},
        "INVALID_ARGUMENT",
        "too_many_inputs",
        "5 images; this server takes 4",
    ),
    (
        {"inputs": [pb.Image(pixel_values=pb.Tensor(shape=[3], data=b"1"))]},
        "INVALID_ARGUMENT",
        "wrong_type",
        "inputs[0].pixel_values cannot be read: data has 1 bytes",
    ),
    (
        {"inputs": [pb.Image(pixel_values=tensor(PIXELS[0, :2]))]},
        "INVALID_ARGUMENT",
        "wrong_shape",
        "inputs[0].pixel_values is [2, 24, 24]",
    ),
    ({"inputs": [pb.Image(picture=PICTURE)], "outputs": ["x"]}, "INVALID_ARGUMENT", "unknown_value", "no output 'x'"),
    ({"inputs": [pb.Image(picture=PICTURE)], "dtype": pb.FLOAT64}, "INVALID_ARGUMENT", "unknown_value", "dtype is"),
    ({"inputs": [pb.Image(picture=PICTURE)], "dimensions": 0}, "INVALID_ARGUMENT", "out_of_range", "dimensions is 0"),
    (
        {"model": "qwen", "inputs": [pb.Image(pixel_values=tensor(PATCHES), grid=[1, 2, 3])]},
        "INVALID_ARGUMENT",
        "wrong_type",
        "inputs[0].grid is a list of 3",
    ),
    (
        {"inputs": [pb.Image(picture=encoded(picture(100, 100)))]},
        "INVALID_ARGUMENT",
        "bad_input",
        "6000",
    ),
]


@pytest.mark.parametrize(("fields", "status", "code", "said"), ERRORS)
def test_errors_have_a_status_and_a_code(
    served: Served, fields: dict[str, Any], status: str, code: str, said: str
) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        served.stub.Images(pb.ImagesRequest(**fields))
    metadata = {each.key: each.value for each in refusal.value.trailing_metadata()}
    assert (refusal.value.code().name, metadata["inlay-code"]) == (status, code), refusal.value.details()
    assert said in refusal.value.details()
