"""The hundred most used checkpoints in their published layout, of random weights: served as outside judges compute."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from torch import nn

from models.artifacts.export import export
from models.artifacts.known_rerankers import QWEN3
from models.errors import ModelError
from models.positions.alibi import slopes
from service.embedding.requests import Text
from tests.embed_requests import embed_request
from tests.parity import popular_towers
from tests.parity.conftest import Ledger
from tests.parity.popular_layouts import LONGEST, gated, write
from tests.parity.test_blocks_live import relative
from tests.parity.test_published_blocks_live import NvEmbed
from tests.parity.test_rerankers_live import BGE, CARDS, pairs_of
from tests.popular_checkpoints import ROWS, Row
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity
TOLERANCE = 2e-5
TEXTS = [
    "hello world",
    "a",
    "The stones of the harbour, and what is said of it: 12 of 30?",
    "the market and a tree " * 30,
]
QUERY = "what is said of the harbour"


def ours(service: Service, output: str, texts: list[str], **fields: Any) -> list[Any]:
    """Return the rows of each text."""
    request = embed_request([Text(text) for text in texts], None, (output,), truncate=True, **fields)
    (found,) = [each for each in asyncio.run(service.pipeline.embed(request)).outputs if each.name == output]
    if found.indices is not None:
        return [(found.indices, found.rows)]
    return list(np.split(found.rows, np.cumsum(found.lengths)[:-1]))


def as_sentences(row: Row, native: Path, service: Service) -> float:
    theirs = SentenceTransformer(str(native), device="cpu")
    if row.kind == "bare":
        theirs[1].pooling_mode = row.pooling
    if row.kind == "instructor":
        theirs.set_pooling_include_prompt(False)  # as sentence-transformers does for its hub id
    worst = 0.0
    for prompt in (None, *row.prompts):
        got = np.concatenate(ours(service, "sentence_embedding", TEXTS, prompt_name=prompt))
        wanted = theirs.encode(TEXTS, batch_size=1, prompt_name=prompt)
        worst = max(worst, relative(got, wanted))
    return worst


def as_pairs(row: Row, native: Path, service: Service) -> float:
    wanted = CrossEncoder(str(native), device="cpu").predict([(QUERY, text) for text in TEXTS], batch_size=1)
    return relative(asyncio.run(service.rank(QUERY, TEXTS, truncate=True)).scores, wanted)


def as_classes(row: Row, native: Path, service: Service) -> float:
    of_tokens = row.kind == "tokens"
    kind = (
        transformers.AutoModelForTokenClassification if of_tokens else transformers.AutoModelForSequenceClassification
    )
    model, tokenizer = kind.from_pretrained(native).eval(), transformers.AutoTokenizer.from_pretrained(native)
    worst = 0.0
    for text, got in zip(
        TEXTS, ours(service, "token_class_logits" if of_tokens else "class_logits", TEXTS), strict=True
    ):
        with torch.no_grad():
            wanted = model(**tokenizer(text, return_tensors="pt", truncation=True)).logits[0]
        worst = max(worst, relative(got if of_tokens else got[0], wanted.numpy()))
    return worst


def as_sparse(row: Row, native: Path, service: Service) -> float:
    theirs = SparseEncoder(str(native), device="cpu").encode(TEXTS, convert_to_sparse_tensor=False, batch_size=1)
    request = embed_request([Text(text) for text in TEXTS], None, ("sparse_embedding",), truncate=True)
    (found,) = asyncio.run(service.pipeline.embed(request)).outputs
    rows = np.zeros(theirs.shape, np.float32)
    assert found.indices is not None
    rows[np.repeat(np.arange(len(rows)), found.lengths), found.indices] = found.rows[:, 0]
    return relative(rows, np.asarray(theirs))


def as_late_interaction(row: Row, native: Path, service: Service) -> float:
    theirs = MultiVectorEncoder(str(native), device="cpu")
    worst = 0.0
    for kind, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        got = ours(service, "multi_vector_embedding", TEXTS, input_type=kind)
        for mine, wanted in zip(got, encode(TEXTS, convert_to_numpy=True, batch_size=1), strict=True):
            worst = max(worst, relative(mine, wanted))
    return worst


def as_dual(row: Row, native: Path, service: Service) -> float:
    model = transformers.AutoModel.from_pretrained(native).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(native)
    padding: Any = "max_length" if row.kind == "siglip" else False  # SigLIP reads the pad ids
    worst = 0.0
    for text, got in zip(TEXTS, ours(service, "sentence_embedding", TEXTS), strict=True):
        read = tokenizer(text, return_tensors="pt", truncation=True, padding=padding)["input_ids"]
        with torch.no_grad():
            wanted = torch.nn.functional.normalize(model.get_text_features(read).pooler_output[0], dim=0)
        worst = max(worst, relative(got[0], wanted.numpy()))
    return worst


def as_dpr(row: Row, native: Path, service: Service) -> float:
    model, tokenizer = (
        transformers.AutoModel.from_pretrained(native).eval(),
        transformers.AutoTokenizer.from_pretrained(native),
    )
    worst = 0.0
    for text, got in zip(TEXTS, ours(service, "sentence_embedding", TEXTS), strict=True):
        with torch.no_grad():
            wanted = model(**tokenizer(text, return_tensors="pt", truncation=True)).pooler_output[0]
        worst = max(worst, relative(got[0], wanted.numpy()))
    return worst


def of_qwen3(tokenizer: Any, query: str, document: str) -> list[int]:
    """Return the ids of a pair as the card of Qwen3-Reranker joins them."""
    start = QWEN3.before_instruction.removesuffix("<Instruct>: ")
    pair = f"<Instruct>: {QWEN3.instruction}\n<Query>: {query}\n<Document>: {document}"
    return [each for part in (start, pair, QWEN3.ending) for each in tokenizer.encode(part)]


def of_minicpm(tokenizer: Any, query: str, document: str) -> list[int]:
    """Return the ids of a pair as FlagEmbedding joins those of its parts."""
    parts = (f"A: {query}", "\n", f"B: {document}", "\n", BGE)
    ids = [each for part in parts for each in tokenizer.encode(part, add_special_tokens=False)]
    return [tokenizer.bos_token_id, *ids]


def as_causal(row: Row, native: Path, service: Service) -> float:
    query, documents = pairs_of(random.Random(1), 8, 20)
    documents = documents[row.family == "minicpm" :]  # blanks at the end of a part, as of "B: ", may join those behind
    got = asyncio.run(service.rank(query, documents, truncate=True)).scores
    assert np.ptp(got) > 1e-3
    ids_of, score = of_qwen3, lambda logits, ids: logits[ids["yes"]] - logits[ids["no"]]
    if row.family == "minicpm":
        ids_of, score = of_minicpm, lambda logits, ids: logits[0]
    elif row.family != "qwen3":
        _, ids_of, score = CARDS["mxbai-rerank-v2" if row.family == "qwen2" else "bge-reranker-v2-gemma"]
    model = transformers.AutoModelForCausalLM.from_pretrained(native).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(native)
    wanted = []
    for document in documents:
        with torch.no_grad():
            logits = model(torch.tensor([ids_of(tokenizer, query, document)])).logits[0, -1].double()
        wanted.append(float(torch.sigmoid(score(logits, tokenizer.get_vocab()))))
    return relative(got, np.array(wanted))


def as_jina(row: Row, native: Path, service: Service) -> float:
    model, tokenizer = gated(native).double(), transformers.AutoTokenizer.from_pretrained(native)
    worst = 0.0
    for text, got in zip(TEXTS, ours(service, "sentence_embedding", TEXTS), strict=True):
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=LONGEST - 10)["input_ids"]
        places = torch.arange(ids.shape[1])
        falling = (
            torch.tensor(slopes(model.config.num_attention_heads))[:, None, None] * (places - places[:, None]).abs()
        )
        with torch.no_grad():
            rows = model(ids, attention_mask=-falling[None].double()).last_hidden_state[0]
        worst = max(worst, relative(got[0], rows.mean(dim=0).numpy()))
    return worst


def as_latents(row: Row, native: Path, service: Service) -> float:
    model, tokenizer = NvEmbed.read(native), transformers.AutoTokenizer.from_pretrained(native)
    (prompt,) = row.prompts.values()
    worst = 0.0
    for name in (None, *row.prompts):
        skipped = len(tokenizer(prompt)["input_ids"]) - 1 if name else 0
        for text, got in zip(TEXTS, ours(service, "sentence_embedding", TEXTS, prompt_name=name), strict=True):
            ids = tokenizer((prompt if name else "") + text, truncation=True, max_length=LONGEST - 10)["input_ids"]
            assert ids[-1] == tokenizer.eos_token_id
            with torch.no_grad():
                rows = model(torch.tensor(ids))[skipped:]
            worst = max(worst, relative(got[0], nn.functional.normalize(rows.mean(dim=0), dim=0).numpy()))
    return worst


JUDGES: dict[str, Callable[[Row, Path, Service], float]] = {
    "sentence": as_sentences,
    "bare": as_sentences,
    "dpr": as_dpr,
    "pair": as_pairs,
    "classes": as_classes,
    "tokens": as_classes,
    "sparse": as_sparse,
    "stanford": as_late_interaction,
    "sparse modules": as_sparse,
    "sparse router": as_sparse,
    "pylate": as_late_interaction,
    "clip": as_dual,
    "clip folder": as_dual,
    "siglip": as_dual,
    "causal": as_causal,
    "static": as_sentences,
    "jina": as_jina,
    "instructor": as_sentences,
    "words": as_sentences,
    "latents": as_latents,
}


def options(row: Row) -> dict[str, Any]:
    """Return the flags of `inlay export` that the row's files do not make needless."""
    if row.kind == "bare":
        return {"pooling": row.pooling}
    if row.kind in ("clip", "clip folder", "siglip", "jina clip"):
        return {"side": "text"}
    if row.kind == "conversation":
        return {"pooling": "lasttoken"}
    if row.route:
        return {"route": row.route}
    return {"pooling": "splade"} if row.kind == "sparse" else {}


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_served_as_the_judge_computes_or_refused(row: Row, tmp_path: Path, ledger: Ledger) -> None:
    if row.kind in popular_towers.MADE:
        folder, compare = popular_towers.MADE[row.kind](row, tmp_path)
    else:
        native, folder = write(row, tmp_path)
        compare = partial(JUDGES[row.kind], row, native)
    if row.refused:
        with pytest.raises(ModelError) as caught:
            export(folder, tmp_path / "store/x", **options(row))
        assert row.refused in str(caught.value)
        return
    export(folder, tmp_path / "store/x", **options(row))
    ledger.check("published", row.name, compare(Service(tmp_path / "store")), TOLERANCE)
