"""Listwise rerankers against code written to jina-reranker-v3's published modelling file, on random checkpoints."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from models.artifacts.export import export
from models.recipes.listwise import Listwise
from tests.parity.block_configs import CONFIGS
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import randomise
from tests.parity.test_rerankers_live import WORDS, tokenizer
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity
MARKS = ("<|embed_token|>", "<|rerank_token|>")
PROMPT = Listwise(*MARKS, ())  # tests/service/embedding/test_listwise.py judges its text
LONGEST = 5000


def written(folder: Path, seed: int) -> tuple[Any, Any, Any]:
    """Write a random checkpoint as jinaai/jina-reranker-v3 is published; return its decoder, projector, tokenizer."""
    fast = tokenizer()
    fast.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    fast.model_max_length = LONGEST
    config = CONFIGS["qwen3"](random.Random(f"listwise {seed}"))
    config |= {"vocab_size": len(fast), "pad_token_id": fast.pad_token_id, "max_position_embeddings": LONGEST}
    torch.manual_seed(seed)
    model: Any = transformers.Qwen3Model(transformers.Qwen3Config(**config))
    model.eval()
    randomise(model, "qwen3")
    width = model.config.hidden_size
    projector = torch.nn.Sequential(
        torch.nn.Linear(width, width // 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(width // 2, 24, bias=False)
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    tensors = {f"model.{name}": each for name, each in load_file(folder / "model.safetensors").items()}
    tensors |= {f"projector.{name}": each.detach() for name, each in projector.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    own = {"architectures": ["JinaForRanking"], "auto_map": {"AutoModel": "modeling.JinaForRanking"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    return model, projector, fast


@torch.no_grad()
def judged(folder: Path, seed: int, query: str, blocks: list[list[str]], told: str | None = None) -> np.ndarray:
    """The scores of documents, block by block."""
    model, projector, fast = written(folder, seed)
    queries: list[Any] = []
    documents: list[Any] = []
    weights: list[Any] = []
    for block in blocks:
        ids = fast([PROMPT.text(query, block, told)], return_tensors="pt").input_ids
        hidden = model(ids).last_hidden_state[0]
        mark, end = fast.convert_tokens_to_ids(list(MARKS))
        found, asked = projector(hidden[ids[0] == mark]), projector(hidden[ids[0] == end])
        cosines = torch.nn.functional.cosine_similarity(found, asked.expand_as(found), dim=-1)
        queries, documents = [*queries, asked], [*documents, found]
        weights.append(((1 + cosines) / 2).max())
    share = torch.stack(weights) / sum(weights)
    mean = (torch.cat(queries) * share[:, None]).sum(0, keepdim=True)
    found = torch.cat(documents)
    return np.asarray(torch.nn.functional.cosine_similarity(found, mean.expand_as(found), dim=-1))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("count", "told"), [(9, None), (1, "Find stones"), (130, None)], ids=["few", "told", "blocks"])
def test_listwise_rerankers_score_as_published(
    count: int, told: str | None, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    draw = random.Random(seed)
    query = " ".join(draw.choices(WORDS, k=6))
    documents = [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(count - 1)] + [""]
    blocks = [documents[start : start + 125] for start in range(0, count, 125)]
    wanted = judged(tmp_path / "own", seed, query, blocks, told)
    export(tmp_path / "own", tmp_path / "store/own")
    sent = [text + MARKS[0] for text in documents]  # which the published code removes
    got = asyncio.run(Service(tmp_path / "store").rank(query, sent, instruction=told)).scores
    ledger.check("qwen3", "listwise score", float(np.abs(got - wanted).max()), 1e-5)


def test_a_list_is_divided_where_the_model_has_no_more_room(tmp_path: Path) -> None:
    query, documents = "the stone", [" ".join(WORDS * 12)] * 30
    wanted = judged(tmp_path / "own", 1, query, [documents])
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "own")
    whole = len(fast(PROMPT.text(query, documents)).input_ids)
    assert whole > LONGEST
    export(tmp_path / "own", tmp_path / "store/own")
    ranks = asyncio.run(Service(tmp_path / "store").rank(query, documents))
    assert ranks.result.outputs[0].lengths is not None
    assert len(ranks.result.outputs[0].lengths) > 1
    count = ranks.result.outputs[0].lengths[0] - 1
    blocks = [documents[start : start + count] for start in range(0, len(documents), count)]
    np.testing.assert_allclose(ranks.scores, judged(tmp_path / "own", 1, query, blocks), atol=1e-5)
    assert len(wanted) == len(documents)
