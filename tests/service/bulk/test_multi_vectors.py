"""Several vectors a text in a bulk run: a list for each text, as the service answers them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.artifacts.export import export
from service.bulk import run
from service.bulk.inputs import Columns
from service.bulk.plan import Options
from service.embedding.requests import EmbedOptions, Text
from service.settings import Settings
from tests.embed_requests import embed_request
from tests.late_interaction import TEXTS, write_bert, write_pylate
from tests.service.registry.registry_service import Service


@pytest.mark.parametrize("input_type", [None, "query"])
async def test_a_text_has_a_list_of_vectors(tmp_path: Path, input_type: Any) -> None:
    export(write_pylate(write_bert(tmp_path / "colbert")), tmp_path / "store/colbert")
    pq.write_table(pa.table({"text": [*TEXTS, None]}), tmp_path / "in.parquet")
    settings = Settings(store=tmp_path / "store", device="cpu", threads=1)
    options = Options("colbert", "1", Columns(""), EmbedOptions(truncate=True, input_type=input_type))
    folder = tmp_path / "store/colbert"
    run.run(str(tmp_path / "in.parquet"), tmp_path / "out.parquet", options, folder, settings, lambda *_: None)
    column = pq.read_table(tmp_path / "out.parquet").column("embedding").combine_chunks()
    (output,) = (
        await Service(tmp_path / "store").pipeline.embed(
            embed_request([Text(text) for text in TEXTS], truncate=True, input_type=input_type)
        )
    ).outputs
    assert column.type == pa.large_list(pa.list_(pa.float32(), 16))
    own = column.to_pylist()
    assert own[-1] is None
    assert [len(each) for each in own[:-1]] == list(output.lengths)
    assert np.array_equal(np.concatenate([np.array(each, np.float32) for each in own[:-1]]), output.rows)
