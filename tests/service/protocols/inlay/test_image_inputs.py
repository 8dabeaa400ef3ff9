"""Images beside texts: the same vectors alone and among others, their price before they are decoded, every error."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.artifacts.export import export
from models.errors import BadCheckpoint
from service.embedding.scores import maxsim
from tests.golden_cases import write_tiny_bert
from tests.page_models import VECTOR, page, write_jina, write_pages, write_paligemma
from tests.served import Served, serving

AROUND = 5 + 19 + 5  # tokens around an image: "user\n", "Describe the image." and five special ones
SIZES = {(32, 24): 12, (16, 60): 16, (40, 40): 25}  # of a page -> its tokens, one for 8 x 8 pixels


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pages")
    export(write_pages(folder / "pages"), folder / "store/pages")
    export(write_pages(folder / "single", seed=1), folder / "store/single", pooling="lasttoken")
    export(write_paligemma(folder / "colpali"), folder / "store/colpali")
    export(write_jina(folder / "jina", ("retrieval", "text-matching")), folder / "store/jina", route="retrieval")
    export(write_tiny_bert(folder / "bert", pooling="mean"), folder / "store/bert")
    with serving(folder / "store", default_model="pages", max_request_tokens=200, max_inputs=8) as running:
        yield running


def image(size: tuple[int, int], seed: int = 0, **options: Any) -> dict[str, str]:
    return {"image": url(page(*size, seed, **options))}


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def vectors(served: Served, inputs: Any, **fields: Any) -> list[NDArray[np.float32]]:
    answer = served.post({"inputs": inputs, **fields}).raise_for_status().json()
    return [np.array(each, np.float32) for each in answer]


def refused(served: Served, path: str, body: dict[str, Any]) -> tuple[int, str]:
    answer = served.http.post(path, json=body)
    return answer.status_code, answer.json().get("detail") or str(answer.json())


def test_an_image_has_a_vector_for_each_of_its_tokens(served: Served) -> None:
    got = vectors(served, [image(size) for size in SIZES])
    assert [each.shape for each in got] == [(AROUND + tokens, VECTOR) for tokens in SIZES.values()]
    assert all(np.allclose(np.linalg.norm(each, axis=1), 1, atol=1e-6) for each in got)


@pytest.mark.parametrize("model", ["pages", "colpali", "jina"])
def test_images_and_texts_have_the_same_bits_in_a_batch(model: str, served: Served) -> None:
    inputs = ["some text", image((32, 24)), "x", image((40, 40), 1), [1, 2, 3], image((16, 60), 2)]
    together = vectors(served, inputs, model=model)
    for alone, among in zip(inputs, together, strict=True):
        assert vectors(served, [alone], model=model)[0].tobytes() == among.tobytes()


def test_colpali_reads_every_image_in_one_size(served: Served) -> None:
    behind = len("Describe the image.\n") + 1  # <bos>
    got = vectors(served, [image(size) for size in SIZES], model="colpali")
    assert [each.shape for each in got] == [(16 + behind, VECTOR)] * len(SIZES)
    query = vectors(served, "hello", model="colpali", input_type="query")[0]
    assert query.shape == (len("Question: hello\n") + 1 + 10, VECTOR)
    assert vectors(served, "hello", model="colpali", input_type="document")[0].shape == (6, VECTOR)


def test_a_pad_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = write_paligemma(tmp_path / "colpali")
    (folder / "tokenizer_config.json").write_text('{"pad_token": "<fill>"}')
    with pytest.raises(BadCheckpoint, match="'<fill>', its pad token, stands around pages, and is no token"):
        export(folder, tmp_path / "out")


def test_paligemma_2_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_paligemma(tmp_path / "colpali", model_type="gemma2")
    with pytest.raises(BadCheckpoint, match="use_bidirectional_attention True; of 'gemma2' only False is computed"):
        export(folder, tmp_path / "out")


def test_jinas_vector_of_an_image_is_a_mean_between_vision_tokens(served: Served) -> None:
    inputs, outputs = [image((32, 24))], ["last_hidden_state", "multi_vector_embedding", "sentence_embedding"]
    answer = served.post({"inputs": inputs, "model": "jina", "outputs": outputs}).raise_for_status().json()["outputs"]
    hidden, several, vector = (np.array(answer[name][0], np.float32) for name in outputs)
    before, behind = 1 + len("user\n"), len("Describe the image.\n") + 1
    assert hidden.shape == (before + 1 + 12 + 1 + behind, 32)
    assert several.shape == (len(hidden), VECTOR)
    mean = hidden[before:-behind].mean(axis=0)
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=1e-5, atol=1e-6)


def test_the_id_of_image_tokens_in_a_text_is_a_token_like_others(served: Served) -> None:
    marked = "<|vision_start|><|image_pad|><|vision_end|>"
    before = vectors(served, [image((32, 24))])[0]
    text, among, ids = vectors(served, [marked, image((32, 24)), [261, 261, 261]])
    assert (text.shape, ids.shape) == ((3, VECTOR), (3, VECTOR))
    assert among.tobytes() == before.tobytes()


def test_queries_end_with_ten_tokens(served: Served) -> None:
    assert vectors(served, "hello", input_type="query")[0].shape == (len("Query: hello") + 10, VECTOR)
    assert vectors(served, "hello", input_type="document")[0].shape == (5, VECTOR)


def test_a_turned_photograph_is_read_upright(served: Served) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    (turned,) = vectors(served, [image((32, 24), kind="PNG", exif=exif)])
    (upright,) = vectors(served, [image((24, 32))])
    assert turned.shape == upright.shape
    assert turned.tobytes() != vectors(served, [image((32, 24))])[0].tobytes()


def test_a_form_holds_images_texts_and_options(served: Served) -> None:
    files: list[Any] = [("inputs", ("a.png", page(32, 24), "image/png")), ("inputs", (None, "some text"))]
    files += [("model", (None, "single")), ("dimensions", (None, "4")), ("normalize", (None, "true"))]
    answer = served.http.post("/embed", files=files).raise_for_status().json()
    sent = [image((32, 24)), "some text"]
    wanted = vectors(served, sent, model="single", dimensions=4, normalize=True)
    assert np.array(answer, np.float32).tobytes() == np.stack(wanted).tobytes()


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("multipart/form-data", b"", "names no boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\na", "does not end with its boundary"),
        ("multipart/form-data; boundary=x", b"--x--", "inputs is empty"),
        ("multipart/form-data; boundary=x", b'--x\r\ncontent-disposition: form-data; name="y"\r\n\r\n1\r\n--x--', "y"),
    ],
)
def test_what_is_no_form_is_refused(kind: str, body: bytes, says: str, served: Served) -> None:
    answer = served.http.post("/embed", content=body, headers={"content-type": kind})
    assert answer.status_code in (400, 422)
    assert says in answer.json()["detail"]


def test_rerank_scores_images_by_maxsim(served: Served) -> None:
    documents = [image((32, 24)), "a text", image((40, 40), 1), {"text": "another"}]
    body = {"query": "what?", "documents": documents, "return_documents": False}
    answer = served.http.post("/rerank", json=body).raise_for_status().json()
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    query = vectors(served, "what?", input_type="query")[0]
    of_documents = vectors(served, [documents[0], "a text", documents[2], "another"], input_type="document")
    wanted = maxsim(query, of_documents, False)
    assert [scores[number] for number in range(4)] == pytest.approx(wanted.tolist(), rel=1e-5, abs=1e-5)


def test_openais_routes_take_images(served: Served) -> None:
    body = {"model": "single", "input": ["a text", image((32, 24)), {"text": "b"}]}
    data = served.http.post("/v1/embeddings", json=body).raise_for_status().json()["data"]
    (alone,) = vectors(served, [image((32, 24))], model="single")
    assert [len(each["embedding"]) for each in data] == [32, 32, 32]
    assert np.array(data[1]["embedding"], np.float32).tobytes() == alone.tobytes()
    by_modality = {"model": "single", "input": [image((32, 24))["image"]], "modality": "image"}
    again = served.http.post("/v1/embeddings", json=by_modality).raise_for_status().json()["data"]
    assert again[0]["embedding"] == data[1]["embedding"]
    pooled = served.http.post("/pooling", json={"model": "pages", "input": [image((32, 24))]}).raise_for_status()
    assert np.shape(pooled.json()["data"][0]["data"]) == (AROUND + 12, VECTOR)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([{"image": url(b"no picture")}], "inputs[0] is not an image"),
        (["a", image((402, 2))], "one side is more than 200 times the other"),
        ([{"image": url(page(32, 24)[:200])}], "is damaged or cut short"),
        ([{"image": 5}], "inputs[0].image is 5"),
        ([{"image": url(page(8, 8)), "text": "a"}], 'inputs[0] has a field "text"'),
        ([{"image": "https://example.org/a.png"}], "addresses are not fetched"),
        ([{"image": "ftp://example.org/a.png"}], "addresses are not fetched"),
        ([image((40, 40))] * 4, "216 tokens"),
    ],
)
def test_what_is_no_image_is_refused(inputs: list[Any], says: str, served: Served) -> None:
    status, message = refused(served, "/embed", {"inputs": inputs})
    assert status in (413, 422)
    assert says in message


def test_other_models_and_options_refuse_images(served: Served) -> None:
    of_text = refused(served, "/embed", {"inputs": [image((8, 8))], "model": "bert"})
    assert of_text == (422, "inputs[0] is an image; bert reads text and token ids")
    spans = refused(served, "/embed", {"inputs": [image((8, 8))], "model": "single", "chunking": {"size": 5}})
    assert spans == (422, "inputs[0] is an image; spans are of texts and token ids")


def test_an_image_is_priced_before_it_is_decoded(served: Served) -> None:
    """Its pixels are damaged: of a picture that would be too much, only the header is read."""
    size = (40, 40)
    damaged = page(*size, kind="PNG")[:60]
    status, message = refused(served, "/embed", {"inputs": [{"image": url(damaged)}] * 4})
    assert (status, "tokens" in message) == (422, True)
    assert "damaged" in refused(served, "/embed", {"inputs": [{"image": url(damaged)}]})[1]
