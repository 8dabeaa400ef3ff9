"""POST /models/{name}/images: every way an image comes, the same rows each time, and every error."""

import base64
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load

from models.artifacts.export import export
from tests.golden_cases import case, write_json, write_tiny_bert
from tests.served import Served, serving
from tests.vision_cases import encoded, picture, pixels_of, write_seen

MEAN, STD = np.array([0.5, 0.4, 0.3], np.float32), np.array([0.2, 0.3, 0.4], np.float32)
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 24, "width": 24},
    "resample": 3,
    "image_mean": MEAN.tolist(),
    "image_std": STD.tolist(),
}
MOST_PIXELS = 6000
ORIENTATION = 0x0112
OCTETS = "application/octet-stream"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`vit` has a preprocessor, `deit` has none, `qwen` takes patches, `whisper` audio features, `bert` text."""
    folder = tmp_path_factory.mktemp("pictures")
    golden = {"vit": "vision_vit", "deit": "vision_deit", "whisper": "input_whisper_encoder"}
    for name, source in {**golden, "qwen": "vision_qwen2_vl_patch"}.items():
        write_seen(case(source), folder / name)
    write_json(folder / "vit/preprocessor_config.json", PROCESSOR)
    patches = {"patch_size": 4, "min_pixels": 64, "max_pixels": 1024, "image_mean": 0.5, "image_std": 0.5}
    write_json(folder / "qwen/preprocessor_config.json", patches)
    write_tiny_bert(folder / "bert")
    sides = {"qwen": "vision", "whisper": "encoder"}
    for name in (*golden, "qwen", "bert"):
        export(folder / name, folder / "store" / name, side=sides.get(name))
    limits = {"max_body_bytes": 2**20, "max_inputs": 8, "max_image_pixels": MOST_PIXELS, "max_request_tokens": 100}
    with serving(folder / "store", default_model="bert", **limits) as running:
        yield running


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def post(
    served: Served, inputs: Any, name: str = "vit", accept: str = "application/octet-stream", **fields: Any
) -> Any:
    body = {"inputs": inputs, **fields}
    return served.http.post(f"/models/{name}/images", json=body, headers={"accept": accept})


def rows(answer: Any) -> NDArray[np.float32]:
    return np.frombuffer(answer.raise_for_status().content, np.float32).reshape(-1, 24)


def tensor(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": "float32", "shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


def expected_pixels(image: Image.Image) -> NDArray[np.float32]:
    """By hand: bicubic to 24x24, values to 0..1, mean and deviation of each channel."""
    small = np.asarray(image.convert("RGB").resize((24, 24), Image.Resampling.BICUBIC))
    return ((small / np.float32(255) - MEAN) / STD).transpose(2, 0, 1).astype(np.float32)


def problem(answer: Any, status: int, code: str) -> str:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    return str(problem["detail"])


def test_picture_gives_the_rows_of_its_pixels(served: Served) -> None:
    image = picture(40, 33)
    got = rows(post(served, [{"image": url(encoded(image))}]))
    assert got.shape == (17, 24)
    np.testing.assert_allclose(got, rows(post(served, {"pixel_values": tensor(expected_pixels(image))})), atol=1e-4)


def ways(data: bytes) -> dict[str, dict[str, Any]]:
    text = base64.b64encode(data).decode()
    broken = "\n".join(text[start : start + 76] for start in range(0, len(text), 76))
    return {
        "a data URL": {"json": {"inputs": [{"image": url(data)}]}},
        "a data URL alone": {"json": {"inputs": url(data)}},
        "bare base64": {"json": {"inputs": [text]}},
        "base64 in lines": {"json": {"inputs": {"image": broken}}},
        "a file": {"content": data, "headers": {"content-type": "image/png"}},
    }


@pytest.mark.parametrize("way", ways(b""))
def test_every_form_of_a_picture_gives_the_same_bytes(served: Served, way: str) -> None:
    data = encoded(picture(40, 33))
    sent = ways(data)[way]
    sent["headers"] = {"accept": "application/octet-stream"} | sent.get("headers", {})
    answer = served.http.post("/models/vit/images", **sent)
    assert answer.raise_for_status().content == post(served, url(data)).raise_for_status().content


@pytest.mark.parametrize("form", ["PNG", "WEBP", "JPEG"])
def test_reads_every_file_format(served: Served, form: str) -> None:
    image = picture(40, 33)
    options: dict[str, Any] = {"lossless": True} if form == "WEBP" else {"quality": 95} if form == "JPEG" else {}
    data = encoded(image, form, **options)
    decoded = Image.open(io.BytesIO(data)).convert("RGB")
    got = rows(post(served, {"image": url(data)}))
    np.testing.assert_allclose(got, rows(post(served, {"pixel_values": tensor(expected_pixels(decoded))})), atol=1e-4)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_reads_every_8_bit_mode_with_transparency_on_white(served: Served, mode: str) -> None:
    source = picture(30, 20, "RGBA" if mode in ("LA", "RGBA") else "L" if mode == "1" else "RGB").convert(mode)
    alpha = np.asarray(source.convert("RGBA"), np.float64)
    flat = alpha[..., :3] * (alpha[..., 3:] / 255) + 255 * (1 - alpha[..., 3:] / 255)
    opaque = Image.fromarray(np.round(flat).astype(np.uint8))
    got = rows(post(served, {"image": url(encoded(source))}))
    one_step = rows(post(served, {"pixel_values": tensor(expected_pixels(opaque))}))
    np.testing.assert_allclose(
        got, one_step, atol=0.6 if mode in ("LA", "RGBA") else 1e-4
    )  # a step of 1/255 on rounding


def test_turns_pictures_upright(served: Served) -> None:
    image = picture(40, 33)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    lying = encoded(image.transpose(Image.Transpose.ROTATE_90), "PNG", exif=exif)
    assert post(served, url(lying)).content == post(served, url(encoded(image))).content


def test_reads_images_of_several_sizes(served: Served) -> None:
    pixels = [np.random.default_rng(n).normal(0, 1, (3, 6 * n, 12)).astype(np.float32) for n in (1, 3, 1)]
    together = post(served, [{"pixel_values": tensor(each)} for each in pixels])
    alone = [post(served, {"pixel_values": tensor(each)}).raise_for_status().content for each in pixels]
    assert together.raise_for_status().content == b"".join(alone)
    assert together.headers["inlay-lengths"] == "3,7,3"


def test_splits_a_stack_into_images(served: Served) -> None:
    stack = np.random.default_rng(1).normal(0, 1, (2, 3, 12, 12)).astype(np.float32)
    together = post(served, {"pixel_values": tensor(stack)}).raise_for_status()
    assert together.headers["inlay-lengths"] == "5,5"
    assert together.content == post(served, [{"pixel_values": tensor(each)} for each in stack]).content


def test_json_names_the_requested_outputs(served: Served) -> None:
    answer = post(served, url(encoded(picture())), accept="application/json", outputs="patch_embeddings").json()
    assert answer["usage"] == {"tokens": 16}
    assert np.array(answer["outputs"]["patch_embeddings"]).shape == (1, 16, 24)
    bare = post(served, url(encoded(picture())), accept="application/json").json()
    assert np.array(bare).shape == (1, 17, 24)


def test_other_dtypes_are_rounded_rows(served: Served) -> None:
    image = url(encoded(picture()))
    halves = np.frombuffer(post(served, image, dtype="float16").raise_for_status().content, np.float16)
    np.testing.assert_array_equal(halves, rows(post(served, image)).astype(np.float16).ravel())
    assert post(served, image, dtype="bfloat16").headers["inlay-dtype"] == "bfloat16"


def test_reads_options_of_a_file_in_the_query(served: Served) -> None:
    headers = {"content-type": "image/png", "accept": "application/vnd.safetensors"}
    path = "/models/vit/images?outputs=patch_embeddings,position_embeddings"
    answer = served.http.post(path, content=encoded(picture()), headers=headers).raise_for_status()
    assert {name: value.shape for name, value in load(answer.content).items()} == {
        "0/patch_embeddings": (16, 24),
        "0/position_embeddings": (17, 24),
    }


def test_cuts_patches_as_the_model_reads_them(served: Served) -> None:
    """16x24 pixels, multiples of 8: 4x6 patches, in blocks of 2x2, the picture repeated as a second frame."""
    image = picture(16, 24)
    pixels = (pixels_of(image).transpose(2, 0, 1) / 255 - 0.5) / 0.5
    patches = [
        np.stack([pixels[:, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4]] * 2, axis=1).ravel()
        for top in (0, 2)
        for left in (0, 2, 4)
        for y, x in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1))
    ]
    got = rows(post(served, url(encoded(image)), "qwen"))
    by_hand = tensor(np.stack(patches).astype(np.float32))
    np.testing.assert_allclose(got, rows(post(served, {"pixel_values": by_hand}, "qwen")), atol=1e-4)


def test_model_summary_describes_image_inputs(served: Served) -> None:
    seen = served.http.get("/models/vit").json()["image"]
    assert (seen["feed"], seen["width"], seen["patch"], seen["reads_pictures"]) == ("pixels", 3, 6, True)
    assert served.http.get("/models/deit").json()["image"]["reads_pictures"] is False
    assert served.http.get("/models/whisper").json()["image"]["frames"] == 24
    assert served.http.get("/models/bert").json()["image"] is None


def test_reads_the_first_picture_of_a_phone_photo(served: Served) -> None:
    first, second = picture(40, 33), picture(40, 33, seed=9)
    photo = encoded(first, "MPO", save_all=True, append_images=[second])
    assert post(served, url(photo)).content == post(served, url(encoded(first, "JPEG"))).raise_for_status().content


def animated() -> bytes:
    file = io.BytesIO()
    frames = [picture(seed=seed) for seed in range(3)]
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:])
    return file.getvalue()


def bomb() -> bytes:
    """A PNG whose header says 30000 x 30000 pixels."""
    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def sixteen_bits() -> bytes:
    return encoded(Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30)))


PNG = encoded(picture())
BAD_PICTURES: dict[str, tuple[bytes, str]] = {
    "no image": (b"hello world", "is not an image: send a JPEG, PNG or WebP file"),
    "nothing": (b"", "is not an image"),
    "an image of another format": (encoded(picture(), "BMP"), "is not an image"),
    "a GIF": (encoded(picture(), "GIF"), "is not an image"),
    "a picture cut short": (PNG[: len(PNG) // 2], "is damaged or cut short"),
    "a JPEG cut short": (encoded(picture(), "JPEG")[:-200], "is damaged or cut short"),
    "a picture with a broken middle": (PNG[:60] + b"\0" * 20 + PNG[80:], "is damaged or cut short"),
    "an animation": (animated(), "is animated, 3 frames"),
    "too many pixels": (encoded(picture(80, 90)), r"has 90x80 pixels; this server takes 6000: send it smaller"),
    "a bomb": (bomb(), "has 30000x30000 pixels; this server takes 6000"),
    "sixteen bits": (sixteen_bits(), "is of mode I;16; send 8 bits a channel"),
}


@pytest.mark.parametrize("name", BAD_PICTURES)
def test_rejects_bad_pictures_by_index(served: Served, name: str) -> None:
    data, message = BAD_PICTURES[name]
    answer = post(served, [url(PNG), {"image": url(data)}])
    error = problem(answer, 422, "bad_input")
    assert error.startswith("inputs[1]")
    assert message in error
    assert answer.json()["index"] == 1


def zeros(*shape: int) -> dict[str, Any]:
    return {"pixel_values": tensor(np.zeros(shape, np.float32))}


BAD_INPUTS: dict[str, tuple[str, Any, str]] = {
    "an address": ("vit", "https://example.com/cat.png", "addresses are not fetched"),
    "a file's address": ("vit", {"image": "file:///etc/passwd"}, "addresses are not fetched"),
    "no base64": ("vit", {"image": "not base64!"}, "inputs[0].image is not base64"),
    "a data URL without base64": ("vit", "data:image/svg+xml,<svg/>", "a data URL is data:image/png;base64"),
    "a number": ("vit", [url(PNG), 7], "inputs[1] is 7; an image is"),
    "an unknown field": ("vit", {"img": url(PNG)}, 'inputs[0].img is not known here; did you mean "image"?'),
    "two images in one": ("vit", {"image": url(PNG)} | zeros(3, 6, 6), "has image and pixel_values"),
    "an empty object": ("vit", {}, "has no image; send one of image, pixel_values"),
    "an image that is a list": ("vit", {"image": [1]}, "inputs[0].image is a list of 1"),
    "one channel": ("vit", zeros(1, 24, 24), "pixel_values is [1, 24, 24]; send [3, height, width]"),
    "channels last": ("vit", zeros(24, 24, 3), "send [3, height, width]"),
    "two dimensions": ("vit", zeros(24, 24), "send [3, height, width]"),
    "less than a patch": ("vit", zeros(3, 5, 24), "each side must hold a patch of 6 pixels"),
    "a number that is none": ("vit", {"pixel_values": [[["x"]]]}, "only numbers"),
    "lists of several lengths": ("vit", {"pixel_values": [[1.0], [1.0, 2.0]]}, "different lengths"),
    "a tensor cut short": (
        "vit",
        {"pixel_values": {"dtype": "float32", "shape": [3, 6, 6], "data": "AAAA"}},
        "data has 3 bytes",
    ),
    "another patch width": ("qwen", zeros(4, 95), "send flattened patches [patches, 96]"),
    "another spectrogram": (
        "whisper",
        {"input_features": tensor(np.zeros((8, 20), np.float32))},
        "input_features is [8, 20]; send [8, 24]",
    ),
}
CODES = {
    "a number": "wrong_type",
    "an unknown field": "unknown_field",
    "two images in one": "conflicting_fields",
    "an empty object": "missing_field",
    "an image that is a list": "wrong_type",
    "one channel": "wrong_shape",
    "channels last": "wrong_shape",
    "two dimensions": "wrong_shape",
    "less than a patch": "wrong_shape",
    "another patch width": "wrong_shape",
    "another spectrogram": "wrong_shape",
}
"""The code of each, where it is finer than bad_input."""


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_rejects_bad_inputs_with_what_is_allowed(served: Served, name: str) -> None:
    model, inputs, message = BAD_INPUTS[name]
    assert message in problem(post(served, inputs, model), 422, CODES.get(name, "bad_input"))


def test_bounds_images_and_patches(served: Served) -> None:
    assert "9 images; this server takes 8" in problem(post(served, [url(PNG)] * 9), 422, "too_many_inputs")
    many = problem(post(served, [url(PNG)] * 8), 422, "too_large")
    assert "inputs[0] to inputs[6] make 112 patches; this server takes 100" in many
    problem(post(served, [url(b"x" * 2**20)]), 413, "body_too_large")
    problem(post(served, []), 400, "empty")
    body = b'{"inputs":[' + b"[]," * 2**18 + b"[]]}"
    lists = served.http.post("/models/vit/images", content=body, headers={"content-type": "application/json"})
    assert "262147 lists and objects" in problem(lists, 422, "too_large")


def test_rejects_pictures_that_resize_too_large(served: Served) -> None:
    answer = post(served, url(encoded(Image.new("RGB", (2, 900)))), "qwen")
    assert "one side is more than 200 times the other" in problem(answer, 422, "bad_input")


def test_rejects_models_without_image_inputs(served: Served) -> None:
    assert "bert is a bert, which reads no images" in problem(post(served, url(PNG), "bert"), 422, "bad_request")
    assert "without a preprocessor_config.json" in problem(post(served, url(PNG), "deit"), 422, "bad_request")
    assert "send input_features" in problem(post(served, url(PNG), "whisper"), 422, "bad_request")
    problem(post(served, url(PNG), "vut"), 404, "unknown_model")
    text = served.post({"model": "vit", "inputs": "hello"})
    assert "POST to /models/vit/images" in problem(text, 424, "wrong_model_kind")


BAD_BODIES: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "another type": (
        {"content": b"x", "headers": {"content-type": "text/plain"}},
        415,
        "unsupported_media",
        "this path reads application/json, image/jpeg",
    ),
    "no JSON": ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "invalid_json", "not JSON"),
    "a misspelt field": ({"json": {"inputs": url(PNG), "output": "x"}}, 422, "unknown_field", 'mean "outputs"'),
    "an output it has not": (
        {"json": {"inputs": url(PNG), "outputs": "last_hidden_state"}},
        422,
        "unknown_value",
        "vit has no output 'last_hidden_state'; it has input_embeddings, patch_embeddings",
    ),
    "another dtype": ({"json": {"inputs": url(PNG), "dtype": "int8"}}, 422, "unknown_value", "dtype is"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_rejects_bad_bodies(served: Served, name: str) -> None:
    sent, status, code, message = BAD_BODIES[name]
    assert message in problem(served.http.post("/models/vit/images", **sent), status, code)


def test_rejects_similarity_of_models_without_it(served: Served) -> None:
    body = {"text_embeds": [[1.0]], "image_embeds": [[1.0]]}
    assert "without a logit_scale" in problem(served.http.post("/models/vit/similarity", json=body), 404, "not_found")


def test_concurrent_requests_do_not_mix_patches(served: Served, tmp_path: Path) -> None:
    """What one caller sends beside another's, in threads, gives what it gives alone."""
    from concurrent.futures import ThreadPoolExecutor

    images = [url(encoded(picture(20 + seed, 25, seed=seed))) for seed in range(12)]
    alone = [post(served, image).raise_for_status().content for image in images]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda image: post(served, image).content, images)) == alone


def test_serves_the_rotary_table_of_a_vision_tower(served: Served) -> None:
    """Qwen2-VL's own, in blocks of 2x2, is the table of its numbers."""
    own = served.http.get("/models/qwen/axial", params={"grid": "4x6"}).raise_for_status().json()
    parameters = {"kind": "qwen2_vl", "head_dim": 12, "grid": "4x6", "arithmetic": "parity"}
    assert own["cos"] == served.http.get("/positions/axial", params=parameters).raise_for_status().json()["cos"]
    assert served.http.get("/models/vit/axial", params={"grid": "4x6"}).status_code == 404
