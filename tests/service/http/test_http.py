"""REST on real sockets: errors as problem documents, formats, models, probes."""

import asyncio
import io

import numpy as np
import pytest
from safetensors.numpy import load

from tests.served import Served

JSON = {"content-type": "application/json"}
BINARY = "application/octet-stream"
# method, path, headers, body, status, code, what the detail says
REFUSALS: list[tuple[str, str, dict[str, str], bytes, int, str, str]] = [
    ("POST", "/embed", JSON, b'{"inputs": []}', 400, "empty", "send one text"),
    ("POST", "/embed", JSON, b"{", 400, "invalid_json", "the body is not JSON"),
    ("POST", "/embed", {}, b'{"inputs": "a"}', 415, "unsupported_media", "there is no content-type"),
    ("POST", "/embed", {"content-type": "text/plain"}, b"a", 415, "unsupported_media", "content-type is text/plain"),
    ("POST", "/embed", JSON | {"content-encoding": "br"}, b"a", 415, "unsupported_media", "gzip, deflate"),
    ("POST", "/embed", JSON | {"accept": "text/html"}, b'{"inputs": "a"}', 406, "not_acceptable", "application/x-npy"),
    ("POST", "/embed", JSON, b'{"inputs": "a", "model": "bort"}', 404, "unknown_model", "did you mean 'bert'"),
    ("POST", "/embed", JSON, b'{"inputs": "a", "dimension": 3}', 422, "unknown_field", 'did you mean "dimensions"'),
    ("POST", "/embed", JSON, b'{"inputs": "a", "outputs": "x"}', 422, "unknown_value", "bert has no output 'x'"),
    ("POST", "/embed", JSON, b'{"inputs": [[1], [99]]}', 422, "out_of_range", "inputs[1].input_ids[0] is 99"),
    ("POST", "/embed", JSON, b'{"inputs": [[1], [-1]]}', 422, "out_of_range", "inputs[1].input_ids[0] is -1"),
    ("POST", "/embed", JSON, b'{"inputs": [' + b'"a",' * 64 + b'"a"]}', 422, "too_many_inputs", "65 inputs"),
    ("POST", "/embed", JSON, b'"' + b"a" * 100_000 + b'"', 413, "body_too_large", "takes 100000"),
    ("GET", "/embed", {}, b"", 405, "method_not_allowed", "/embed answers POST, not GET"),
    ("POST", "/models", {}, b"", 405, "method_not_allowed", "/models answers GET, HEAD, not POST"),
    ("GET", "/embedings", {}, b"", 404, "not_found", "there is no /embedings here"),
    ("GET", "/models/bort", {}, b"", 404, "unknown_model", "did you mean 'bert'"),
    ("GET", "/models/bert/rope", {}, b"", 404, "not_found", "bert has no rope"),
    ("GET", "/models/llama/rope?start=-1", {}, b"", 422, "out_of_range", 'start is "-1"; allowed: an integer from 0'),
    ("GET", "/models/llama/rope?length=0", {}, b"", 422, "out_of_range", 'length is "0"; allowed: an integer from 1'),
    ("GET", "/models/llama/rope?lenght=1", {}, b"", 422, "unknown_field", 'did you mean "length"?'),
    ("GET", "/models/llama/rope?start=9007199254740991&length=2", {}, b"", 422, "bad_parameters", "start + length is"),
    ("GET", "/models/llama/rope?start=99999999", {}, b"", 422, "bad_parameters", "was trained on 40 positions"),
]


@pytest.mark.parametrize(("method", "path", "headers", "body", "status", "code", "detail"), REFUSALS)
def test_errors_are_problem_documents(
    served: Served, method: str, path: str, headers: dict[str, str], body: bytes, status: int, code: str, detail: str
) -> None:
    answer = served.http.request(method, path, headers=headers, content=body)
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert detail in problem["detail"]
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:inlay:problem:{code}"
    assert problem["error"] == problem["detail"]


def test_error_names_the_index_of_a_bad_input(served: Served) -> None:
    assert served.post({"inputs": [[1], [2], [99]]}).json()["index"] == 2
    assert "index" not in served.post({"inputs": []}).json()


def test_wrong_verb_gets_allow_header(served: Served) -> None:
    assert served.http.get("/embed").headers["allow"] == "POST"


def test_rejects_chunked_body_over_limit(served: Served) -> None:
    chunks = iter([b'{"inputs": "', *[b"a" * 10_000] * 20, b'"}'])
    answer = served.http.post("/embed", content=chunks, headers=JSON)
    assert answer.json()["code"] == "body_too_large"


def test_reads_chunked_body(served: Served) -> None:
    answer = served.http.post("/embed", content=iter([b'{"inputs"', b": [5, 6]", b"}"]), headers=JSON)
    assert answer.status_code == 200


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
def test_reads_json_under_all_its_media_types(served: Served, content_type: str) -> None:
    answer = served.http.post("/embed", content=b'{"inputs": [5]}', headers={"content-type": content_type})
    assert answer.status_code == 200


def test_every_format_carries_the_same_numbers(served: Served) -> None:
    body = {"inputs": [[5, 6, 7], [8]], "outputs": ["input_embeddings"]}
    nested = served.post(body).json()["outputs"]["input_embeddings"]
    rows = np.concatenate([np.array(each, np.float32) for each in nested])
    octets = served.post(body, BINARY)
    assert octets.headers["inlay-shape"] == "4,32"
    assert octets.headers["inlay-lengths"] == "3,1"
    np.testing.assert_array_equal(np.frombuffer(octets.content, np.float32).reshape(4, 32), rows)
    np.testing.assert_array_equal(np.load(io.BytesIO(served.post(body, "application/x-npy").content)), rows)
    tensors = load(served.post(body, "application/vnd.safetensors").content)
    np.testing.assert_array_equal(tensors["0/input_embeddings"], rows[:3])
    np.testing.assert_array_equal(tensors["1/input_embeddings"], rows[3:])


def test_default_answer_is_the_list_of_tei(served: Served) -> None:
    vectors = served.post({"inputs": ["a b", "hello world"]}).json()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert served.post({"inputs": "a b"}).json() == pytest.approx(np.array(vectors[:1]), abs=1e-6)


def test_models_list_describes_every_model(served: Served) -> None:
    models = {model["name"]: model for model in served.http.get("/models").json()["models"]}
    assert models["bert"]["default"]
    assert models["bert"]["pooling"] == {"mode": "mean", "normalize": True, "include_prompt": True, "dimensions": None}
    assert models["llama"]["encodings"]["ropes"]["all"]["max_position_embeddings"] > 0
    assert not models["llama"]["reads_text"]
    for name, model in models.items():
        assert served.http.get(f"/models/{name}").json() == model
        assert model["device"] == "cpu"
        assert set(model["largest_difference"]) - {"logits"} <= set(model["outputs"])
        assert set(model["flops_per_token"]) <= set(model["graphs"]) | {"head"}


@pytest.mark.parametrize("path", ["/", "/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json"])
def test_answers_probes_metrics_and_documentation(served: Served, path: str) -> None:
    assert served.http.get(path).status_code == 200


def test_counts_requests_by_route_and_status(served: Served) -> None:
    def count() -> float:
        lines = served.http.get("/metrics").text.splitlines()
        name = 'inlay_requests_total{method="/embed",protocol="http",status="422"}'
        return sum(float(line.rsplit(" ")[-1]) for line in lines if line.startswith(name))

    before = count()
    served.post({"inputs": [[99]]})
    assert count() == before + 1


def test_documentation_needs_no_other_host(served: Served) -> None:
    page = served.http.get("/docs").text
    assert "//cdn" not in page
    for asset in ("/docs/swagger-ui.js", "/docs/swagger-ui.css"):
        assert f'"{asset}' in page
        assert len(served.http.get(asset).content) > 50_000


async def test_slow_client_does_not_delay_others(served: Served) -> None:
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
    await writer.drain()
    answer = await asyncio.to_thread(served.post, {"inputs": [5]})
    writer.close()
    assert answer.status_code == 200
    assert reader is not None
