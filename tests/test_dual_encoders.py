"""Golden CLIP and SigLIP through the whole road: checkpoint → export of both sides → service → vectors and logits."""

import base64
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from models.artifacts import export as exporting
from models.artifacts.card import TextFilling
from models.artifacts.description import describe
from models.artifacts.export import export
from models.artifacts.int8_encoder import Int8Options
from models.errors import BadCheckpoint
from models.families import opening
from tests import hub_server
from tests.golden_cases import Case, case, cases, write_folder, write_json
from tests.served import Served, serving
from tests.vision_cases import encoded

CASES = cases("whole_dual_encoder")
each_case = pytest.mark.parametrize("golden", CASES, ids=repr)
OCTETS = "application/octet-stream"


def write(golden: Case, folder: Path) -> Path:
    """The case as a Hugging Face folder, with its tokenizer and image processor."""
    write_json(folder / "tokenizer.json", golden.params["tokenizer"])
    write_json(folder / "preprocessor_config.json", golden.params["preprocessor"])
    return write_folder(folder, golden.params["config"], golden.weights)


@pytest.fixture(scope="module", params=["onnx", "reference"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("dual")
    for golden in CASES:
        checkpoint = write(golden, folder / golden.name)
        for side in ("text", "vision"):
            export(checkpoint, folder / f"store/{golden.name}_{side}", side=side)
    with serving(folder / "store", engine=request.param, default_model=f"{CASES[0].name}_text") as running:
        yield running


@pytest.mark.parametrize("side", ["text", "vision"])
def test_the_folder_of_sentence_transformers_is_the_same_model(side: str, tmp_path: Path) -> None:
    golden = CASES[0]
    plain = export(write(golden, tmp_path / "x"), tmp_path / "plain", side=side)
    write(golden, tmp_path / "st/0_CLIPModel")
    entry = {"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}
    write_json(tmp_path / "st/modules.json", [entry])
    card = export(tmp_path / "st", tmp_path / "out", side=side)
    assert card.files == plain.files
    assert (card.outputs, card.pooling, card.modules) == (plain.outputs, plain.pooling, plain.modules)


def text(golden: Case, inputs: Any, **fields: Any) -> dict[str, Any]:
    return {"model": f"{golden.name}_text", "inputs": inputs, **fields}


def ids_of(golden: Case) -> list[dict[str, list[int]]]:
    return [{"input_ids": ids} for ids in golden.params["ids"]]


def vectors(answer: Any, count: int) -> NDArray[np.float32]:
    return np.frombuffer(answer.raise_for_status().content, np.float32).reshape(count, -1)


def images(served: Served, golden: Case, inputs: Any, accept: str = OCTETS, **fields: Any) -> Any:
    path = f"/models/{golden.name}_vision/images"
    return served.http.post(path, json={"inputs": inputs, **fields}, headers={"accept": accept})


def tensor(array: NDArray[Any]) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"pixel_values": {"dtype": "float32", "shape": array.shape, "data": data}}


def urls(golden: Case) -> list[str]:
    """The case's pictures as data URLs."""
    files = [encoded(Image.fromarray(picture)) for picture in golden.arrays["pictures"]]
    return [f"data:image/png;base64,{base64.b64encode(file).decode()}" for file in files]


def by_infinity(served: Served, golden: Case, inputs: Any, **fields: Any) -> Any:
    body = {"model": f"{golden.name}_vision", "input": inputs, "modality": "image", "encoding_format": "base64"}
    return served.http.post("/embeddings", json=body | fields)


def check(golden: Case, got: Any, name: str) -> None:
    np.testing.assert_allclose(got, golden.arrays[name], **golden.tolerance[name])


def unit(rows: NDArray[Any]) -> NDArray[Any]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@each_case
def test_token_ids_give_the_golden_text_vectors(served: Served, golden: Case) -> None:
    answer = served.post(text(golden, ids_of(golden), normalize=False), OCTETS)
    check(golden, vectors(answer, len(golden.params["ids"])), "text_vectors")


@each_case
def test_texts_give_the_vectors_of_their_ids(served: Served, golden: Case) -> None:
    """SigLIP's are filled with pad tokens, which count as tokens."""
    answer = served.post(text(golden, golden.params["texts"]), OCTETS)
    count, ids = len(golden.params["texts"]), golden.params["ids"]
    assert np.array_equal(vectors(answer, count), vectors(served.post(text(golden, ids_of(golden)), OCTETS), count))
    usage = served.post(text(golden, golden.params["texts"], outputs=["sentence_embedding"])).json()["usage"]
    assert usage == {"tokens": sum(map(len, ids))}


@each_case
def test_ids_are_computed_as_sent_without_filling(served: Served, golden: Case) -> None:
    ids = golden.params["ids"][0][:3]
    answer = served.post(text(golden, [{"input_ids": ids}], outputs=["last_hidden_state"])).raise_for_status().json()
    assert np.array(answer["outputs"]["last_hidden_state"][0]).shape[0] == len(ids)


@each_case
def test_pixels_give_the_golden_image_vectors_and_rows(served: Served, golden: Case) -> None:
    inputs = [tensor(pixels) for pixels in golden.arrays["pixel_values"]]
    check(golden, vectors(images(served, golden, inputs, normalize=False), len(inputs)), "image_vectors")
    outputs = images(served, golden, inputs, "application/json", outputs=["last_hidden_state"]).json()["outputs"]
    check(golden, np.array(outputs["last_hidden_state"], np.float32), "image_rows")


@each_case
def test_pictures_give_the_golden_image_vectors(served: Served, golden: Case) -> None:
    got = vectors(images(served, golden, urls(golden), normalize=False), 2)
    np.testing.assert_allclose(got, golden.arrays["image_vectors"], atol=1e-4, rtol=1e-4)
    alone = vectors(images(served, golden, urls(golden)[1:], normalize=False), 1)
    assert np.array_equal(alone[0], got[1])


@each_case
def test_vectors_are_of_unit_length_unless_told_otherwise(served: Served, golden: Case) -> None:
    inputs = [tensor(pixels) for pixels in golden.arrays["pixel_values"]]
    got = vectors(images(served, golden, inputs), 2)
    np.testing.assert_allclose(got, unit(golden.arrays["image_vectors"]), atol=1e-5)
    got = vectors(served.post(text(golden, ids_of(golden)), OCTETS), 4)
    np.testing.assert_allclose(got, unit(golden.arrays["text_vectors"]), atol=1e-5)
    cut = vectors(images(served, golden, inputs, dimensions=5), 2)
    np.testing.assert_allclose(cut, unit(golden.arrays["image_vectors"][:, :5]), atol=1e-5)


@each_case
def test_infinitys_image_request_gives_the_same_bits(served: Served, golden: Case) -> None:
    answer = by_infinity(served, golden, urls(golden)).raise_for_status().json()
    assert answer["model"] == f"{golden.name}_vision"
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    got = np.stack([np.frombuffer(base64.b64decode(entry["embedding"]), np.float32) for entry in answer["data"]])
    assert np.array_equal(got, vectors(images(served, golden, urls(golden)), 2))
    single = by_infinity(served, golden, urls(golden)[0], dimensions=0).raise_for_status().json()["data"]
    assert np.array_equal(np.frombuffer(base64.b64decode(single[0]["embedding"]), np.float32), got[0])
    rows = served.http.post(
        "/pooling", json={"model": f"{golden.name}_vision", "input": urls(golden), "modality": "image"}
    )
    assert np.array_equal(np.array([entry["data"] for entry in rows.json()["data"]], np.float32), got)


@each_case
def test_coheres_image_requests_give_the_same_bits(served: Served, golden: Case) -> None:
    expected = vectors(images(served, golden, urls(golden)), 2)
    body = {"model": f"{golden.name}_vision", "input_type": "image", "embedding_types": ["float", "ubinary"]}
    inputs = [{"content": [{"type": "image_url", "image_url": {"url": url}}]} for url in urls(golden)]
    for fields in ({"images": urls(golden)}, {"inputs": inputs}):
        answer = served.http.post("/v2/embed", json=body | fields).raise_for_status().json()
        assert np.array_equal(np.float32(answer["embeddings"]["float"]), expected)
        assert answer["embeddings"]["ubinary"] == np.packbits(expected > 0, axis=1).tolist()
        assert (answer["texts"], answer["meta"]["billed_units"]) == ([], {"images": 2})
    refused = served.http.post("/v2/embed", json=body | {"images": urls(golden), "embedding_types": ["int8"]})
    assert (refused.status_code, "embedding_types holds int8" in refused.json()["message"]) == (400, True)
    mixed = [*inputs, {"content": [{"type": "text", "text": "a"}]}]
    refused = served.http.post("/v2/embed", json=body | {"inputs": mixed})
    assert (refused.status_code, "texts and images" in refused.json()["message"]) == (400, True)


@each_case
def test_zero_shot_logits_are_those_of_transformers(served: Served, golden: Case) -> None:
    """Texts by /embed and pictures by infinity's request, compared by the scale and bias of the checkpoint."""
    texts = vectors(served.post(text(golden, golden.params["texts"]), OCTETS), 4)
    answer = by_infinity(served, golden, urls(golden), encoding_format="float").json()
    sent = {"text_embeds": texts.tolist(), "image_embeds": [entry["embedding"] for entry in answer["data"]]}
    for side in ("text", "vision"):
        compared = served.http.post(f"/models/{golden.name}_{side}/similarity", json=sent).raise_for_status().json()
        np.testing.assert_allclose(
            compared["logits_per_image"], golden.arrays["logits_per_image"], atol=2e-4, rtol=2e-4
        )


def test_description_states_width_and_length_of_image_vectors(served: Served) -> None:
    answer = served.http.get("/models/dual_clip_vision").raise_for_status().json()
    assert (answer["default_output"], answer["sentence_width"]) == ("image_embedding", 20)
    assert (answer["image"]["vector_width"], answer["image"]["normalize"]) == (20, True)


def test_image_request_to_a_text_model_is_refused(served: Served) -> None:
    answer = by_infinity(served, CASES[0], urls(CASES[0]), model="dual_clip_text")
    assert answer.status_code == 400
    assert "reads no images" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"truncate_prompt_tokens": 3}, "modality is image"),
        ({"add_special_tokens": False}, "modality is image"),
        ({"input": []}, "one image at least"),
        ({"input": [[1, 2]]}, "data URL"),
        ({"input": "https://example.org/cat.png"}, "addresses are not fetched"),
        ({"dimensions": 21}, "1 to 20"),
    ],
)
def test_faulty_image_request_is_told_why(served: Served, fields: dict[str, Any], said: str) -> None:
    golden = case("dual_clip")
    answer = by_infinity(served, golden, urls(golden), **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_normalize_applies_to_image_vectors_alone(served: Served) -> None:
    golden = case("dual_clip")
    answer = images(served, golden, urls(golden), outputs=["last_hidden_state"], normalize=True)
    assert answer.status_code == 422
    assert "image_embedding alone" in answer.text


def test_encoder_none_exports_the_input_layer_of_an_image_side(tmp_path: Path) -> None:
    checkpoint = write(case("dual_clip"), tmp_path / "x")
    card = export(checkpoint, tmp_path / "out", side="vision", encoder=False)
    assert card.default_output == "input_embeddings"
    assert set(card.graphs) == {"image", "image_components"}


def test_a_tower_of_unknown_blocks_says_which_are_missing(tmp_path: Path) -> None:
    golden = case("vision_beit_abs")
    folder = write_folder(tmp_path / "x", golden.params["config"] | {"model_type": "beit"}, golden.weights)
    with pytest.raises(BadCheckpoint, match=r"whole: attention with a bias by rows and columns.*--encoder none"):
        export(folder, tmp_path / "out", encoder=True)
    assert export(folder, tmp_path / "out").default_output == "input_embeddings"


@each_case
def test_a_hub_repository_gives_the_projection_too(
    golden: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write(golden, tmp_path / "x")
    with hub_server.serving(checkpoint) as hub:
        monkeypatch.setattr(exporting, "located", partial(opening.located, endpoint=hub.endpoint))
        fetched = export("org/name", tmp_path / "fetched", side="text")
    own = export(checkpoint, tmp_path / "own", side="text")
    assert fetched.modules == own.modules
    assert fetched.files["weights.safetensors"] == own.files["weights.safetensors"]


def test_texts_are_filled_with_the_tokenizers_pad_token(tmp_path: Path) -> None:
    """SigLIP2's configs leave pad_token_id out, whose default is another token of its vocabulary."""
    golden = case("dual_siglip")
    checkpoint = write(golden, tmp_path / "x")
    write_json(checkpoint / "tokenizer_config.json", {"pad_token": "<unk>", "model_max_length": 9})
    card = export(checkpoint, tmp_path / "out", side="text")
    assert card.filling == TextFilling(9, golden.params["tokenizer"]["model"]["vocab"]["<unk>"])


@each_case
def test_pooling_none_leaves_the_familys_vector_out(golden: Case, tmp_path: Path) -> None:
    card = export(write(golden, tmp_path / "x"), tmp_path / "out", side="text", pooling="none", encoder=True)
    assert (card.default_output, card.pooling, card.modules) == ("last_hidden_state", None, None)


def test_int8_encoder_of_filled_texts_keeps_the_vectors(tmp_path: Path) -> None:
    checkpoint = write(case("dual_siglip"), tmp_path / "x")
    card = export(checkpoint, tmp_path / "out", side="text", int8=Int8Options(min_cosine=0.9))
    assert card.quantized is not None
    assert card.quantized.mean_cosine > 0.99


def test_description_states_what_a_tower_gives(tmp_path: Path) -> None:
    checkpoint = write(case("dual_clip"), tmp_path / "x")
    export(checkpoint, tmp_path / "out", side="vision")
    assert "20 wide, of unit length" in describe(str(tmp_path / "out"))
    assert "AttentionPool" in describe("siglip_vision_model")
    assert "no: attention in shifted windows" in describe("swin")
