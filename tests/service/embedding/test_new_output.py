"""The output that docs/design/extend.md adds as an example, built from that page and served over HTTP."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from models.artifacts.export import export
from service.embedding.outputs import plan
from tests.golden_cases import write_tiny_bert
from tests.served import serving

PAGE = Path(__file__).parents[3] / "docs/design/extend.md"
TEXTS = ["hello world", "a b c"]


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's file, with its row in KINDS."""
    (code,) = re.findall(r"norms\.py there:.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path / "norms.py"
    file.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("norms", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "norms", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(plan, "KINDS", (module.VectorNorm, *plan.KINDS))


@pytest.mark.usefixtures("added")
def test_a_new_output_is_one_file_and_one_row(tmp_path: Path) -> None:
    export(write_tiny_bert(tmp_path / "checkpoint", pooling="mean"), tmp_path / "store/tiny")
    with serving(tmp_path / "store", vector_cache_bytes=1 << 20) as served:
        body = {"inputs": TEXTS, "normalize": False, "outputs": "sentence_embedding"}
        vectors = served.post(body).raise_for_status().json()["outputs"]["sentence_embedding"]
        for _ in range(2):  # the second time from the vector cache
            answer = served.post({"inputs": TEXTS, "outputs": "vector_norm"}).raise_for_status().json()
            norms = np.array(answer["outputs"]["vector_norm"])
            np.testing.assert_allclose(norms[:, 0], np.linalg.norm(vectors, axis=1), rtol=1e-6, atol=1e-6)
