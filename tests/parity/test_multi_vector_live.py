"""Late interaction against sentence-transformers: vectors of queries and documents, MaxSim; BGE-M3 against torch."""

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from models.artifacts.export import export
from service.embedding.requests import Text
from service.embedding.scores import maxsim
from tests.embed_requests import embed_request
from tests.late_interaction import (
    BERT,
    DIMENSIONS,
    TEXTS,
    WORDS,
    write_bge,
    write_pylate,
    write_stanford,
    write_tokenizer,
)
from tests.parity.conftest import Ledger
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity

TOLERANCE = 1e-5
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>")
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # vocabulary; pad, unk, cls, sep, mask
    "bert": ((*BERT, *WORDS), BERT),
    "distilbert": ((*BERT, *WORDS), BERT),
    "modernbert": ((*BERT, *WORDS), BERT),
    "xlm-roberta": ((*ROBERTA, *WORDS, "<mask>"), ("<pad>", "<unk>", "<s>", "</s>", "<mask>")),
}
PREFIXES = {"bert": "bert.", "distilbert": "distilbert.", "modernbert": "model.", "xlm-roberta": "roberta."}
LAYOUTS = ("sentence-transformers", "PyLate", "Stanford")
CASES = [(kind, layout) for kind in KINDS for layout in LAYOUTS]


def write_backbone(folder: Path, kind: str, draw: random.Random) -> int:
    """A random model of transformers with its tokenizer; its width."""
    vocabulary, special = KINDS[kind]
    heads, layers = draw.choice((2, 4)), draw.choice((1, 2, 3))
    hidden = heads * draw.choice((8, 16))
    pad = vocabulary.index(special[0])
    sizes = {"vocab_size": len(vocabulary), "pad_token_id": pad, "max_position_embeddings": 64}
    if kind == "distilbert":
        sizes |= {"dim": hidden, "n_heads": heads, "n_layers": layers, "hidden_dim": 2 * hidden}
    else:
        sizes |= {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers}
        sizes["intermediate_size"] = 2 * hidden
    if kind == "modernbert":
        sizes |= {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3, "local_attention": 64}
    torch.manual_seed(draw.randrange(1 << 30))
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_tokenizer(folder, vocabulary, *special)
    return hidden


def write_model(folder: Path, kind: str, layout: str, draw: random.Random) -> Path:
    """A late-interaction model with random settings, in a library's layout."""
    hidden = write_backbone(folder, kind, draw)
    attend, length = draw.choice((True, False)), draw.choice((8, 12, 32))
    if layout == "PyLate":
        changes: dict[str, Any] = {"attend_to_expansion_tokens": attend, "query_length": length}
        if draw.random() < 0.3:
            changes["do_query_expansion"] = False
        return write_pylate(folder, hidden, **changes)
    if layout == "Stanford":
        metadata = {"query_maxlen": length, "doc_maxlen": 30, "attend_to_mask_tokens": attend}
        return write_stanford(folder, metadata | {"mask_punctuation": draw.choice((True, False))}, PREFIXES[kind])
    expansion = {"strategy": draw.choice(("fixed", "min")), "attend": attend, "length": length}
    transformer = Transformer(
        str(folder),
        document_length=draw.choice((None, 20)),
        query_expansion=draw.choice((None, expansion, expansion)),
    )
    torch.manual_seed(draw.randrange(1 << 30))
    dense = Dense(hidden, DIMENSIONS, False, torch.nn.Identity(), module_input_name="token_embeddings")
    mask = MultiVectorMask([*".,!?"], skiplist_tasks=draw.choice((None, ["query", "document"])))
    modules = [transformer, dense, mask, Normalize("token_embeddings")]
    prompts = draw.choice(({}, {"query": "query: ", "document": "a "}))
    mean = draw.choice(("maxsim", "meanmaxsim"))
    model = MultiVectorEncoder(modules=modules, prompts=prompts, similarity_fn_name=mean, device="cpu")
    model.save_pretrained(str(folder.parent / f"{folder.name}-saved"))
    return folder.parent / f"{folder.name}-saved"


def vectors(service: Service, input_type: str | None, texts: tuple[str, ...]) -> list[NDArray[np.float32]]:
    request = embed_request([Text(text) for text in texts], "tiny", truncate=True, input_type=input_type)  # type: ignore[arg-type]
    (output,) = asyncio.run(service.pipeline.embed(request)).outputs
    assert output.name == "multi_vector_embedding"
    return np.split(output.rows, np.cumsum(output.lengths)[:-1])


@pytest.mark.parametrize(("kind", "layout"), CASES)
def test_vectors_and_scores_are_sentence_transformers(kind: str, layout: str, tmp_path: Path, ledger: Ledger) -> None:
    place = write_model(tmp_path / "x", kind, layout, random.Random(f"{kind} {layout}"))
    theirs = MultiVectorEncoder(str(place), device="cpu")
    export(place, tmp_path / "store/tiny")
    service = Service(tmp_path / "store")
    encoded = {
        "query": theirs.encode_query(list(TEXTS), convert_to_numpy=True, batch_size=3),
        "document": theirs.encode_document(list(TEXTS), convert_to_numpy=True, batch_size=3),
    }
    ours: dict[str, list[NDArray[np.float32]]] = {}
    for side, expected in encoded.items():
        ours[side] = vectors(service, side, TEXTS)
        assert [own.shape for own in ours[side]] == [each.shape for each in expected]
        worst = max(float(np.abs(own - each).max()) for own, each in zip(ours[side], expected, strict=True))
        ledger.check(f"late interaction, {kind}", f"{layout}: {side}", worst, TOLERANCE)
    scores = theirs.similarity(encoded["query"], encoded["document"]).numpy()
    mean = theirs.similarity_fn_name == "meanmaxsim"
    own = np.stack([maxsim(query, ours["document"], mean) for query in ours["query"]])
    difference = float((np.abs(own - scores) / np.maximum(1, np.abs(scores))).max())
    ledger.check(f"late interaction, {kind}", f"{layout}: scores", difference, TOLERANCE)
    ranks = asyncio.run(service.rank(TEXTS[2], TEXTS, "tiny", truncate=True))
    assert np.array_equal(ranks.scores, own[2])


def test_bge_m3_gives_what_its_code_computes(tmp_path: Path, ledger: Ledger) -> None:
    hidden = write_backbone(tmp_path / "x", "xlm-roberta", random.Random(3))
    weight, bias = map(torch.from_numpy, write_bge(tmp_path / "x", hidden))
    export(tmp_path / "x", tmp_path / "store/tiny")
    names = ("sentence_embedding", "multi_vector_embedding")
    request = embed_request([Text(text) for text in TEXTS], "tiny", names, truncate=True)
    dense, several = asyncio.run(Service(tmp_path / "store").pipeline.embed(request)).outputs
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    model = transformers.AutoModel.from_pretrained(tmp_path / "x")
    read = tokenizer(list(TEXTS), padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = model(input_ids=read["input_ids"], attention_mask=read["attention_mask"]).last_hidden_state
        rows = torch.nn.functional.normalize(torch.nn.functional.linear(states[:, 1:], weight, bias), dim=-1)
        pooled = torch.nn.functional.normalize(states[:, 0], dim=-1)
    expected = torch.cat([own[: int(mask.sum()) - 1] for own, mask in zip(rows, read["attention_mask"], strict=True)])
    assert several.lengths == tuple((read["attention_mask"].sum(1) - 1).tolist())
    ledger.check("late interaction, BGE-M3", "vectors", float(np.abs(several.rows - expected.numpy()).max()), TOLERANCE)
    ledger.check("late interaction, BGE-M3", "dense", float(np.abs(dense.rows - pooled.numpy()).max()), TOLERANCE)
