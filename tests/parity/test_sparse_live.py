"""Sparse vectors against sentence-transformers' SparseEncoder, and BGE-M3's formula in plain torch."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import Router, SparseStaticEmbedding, SpladePooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from models.artifacts.card import SPARSE
from models.artifacts.export import export
from service.embedding.requests import EmbedResult, Text
from tests.embed_requests import embed_request
from tests.parity.conftest import Ledger
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity

TOLERANCE, NEARLY_ZERO = 1e-5, 1e-6
WORDS = [f"w{number}" for number in range(35)]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
VOCABULARY = len(SPECIAL) + len(WORDS)
TEXTS = ["w1 w2 w3", "w1", "w4 w4 w4 other w9", " ".join(WORDS) * 2, "", "w30 w1 w30 w2 w8 w8 w8 w8"]
FAMILIES = {
    "bert": ("BertForMaskedLM", {"hidden_act": ("gelu", "relu")}),
    "distilbert": ("DistilBertForMaskedLM", {"activation": ("gelu", "relu")}),
    "roberta": ("RobertaForMaskedLM", {}),
    "modernbert": ("ModernBertForMaskedLM", {"decoder_bias": (True, False)}),
}
CHOICES = [(pooling, activation) for pooling in ("max", "sum") for activation in ("relu", "log1p_relu")]
CONFIGS = 12


def write_model(folder: Path, family: str, seed: int, head: str | None = None) -> Path:
    """A checkpoint of a random config with its tokenizer, as transformers writes it."""
    draw = random.Random(f"{family} {seed}")
    heads, width = draw.choice((2, 4)), draw.choice((4, 6, 8))
    changes = {key: draw.choice(values) for key, values in FAMILIES.get(family, ("", {}))[1].items()}
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": heads * width,
        "dim": heads * width,
        "num_hidden_layers": draw.choice((1, 2, 3)),
        "n_layers": draw.choice((1, 2, 3)),
        "num_attention_heads": heads,
        "n_heads": heads,
        "intermediate_size": draw.choice((16, 24)),
        "hidden_dim": draw.choice((16, 24)),
        "max_position_embeddings": 80,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "cls_token_id": 0,
        "eos_token_id": 2,
        "sep_token_id": 2,
        "tie_word_embeddings": draw.choice((True, False)),
        **changes,
    }
    config = transformers.AutoConfig.for_model(family)
    known = {key: value for key, value in sizes.items() if hasattr(config, key)}
    known = {config.attribute_map.get(key, key): value for key, value in known.items()}
    torch.manual_seed(seed)
    config = type(config)(**known)
    model = getattr(transformers, head or FAMILIES[family][0])(config).eval()
    with torch.no_grad():  # as wide as trained weights, biases too
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=1.0 / parameter.shape[1] ** 0.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(zip(("cls", "pad", "eos", "unk", "mask"), SPECIAL, strict=True)) | {"sep": "</s>", "bos": "<s>"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{key}_token": token for key, token in names.items()},
    ).save_pretrained(folder)


def splade(folder: Path, family: str, seed: int) -> Path:
    """A SparseEncoder of random pooling and activation, saved."""
    pooling, activation = CHOICES[seed % len(CHOICES)]
    transformer = Transformer(str(write_model(folder / "lm", family, seed)), transformer_task="fill-mask")
    encoder = SparseEncoder(modules=[transformer, SpladePooling(pooling, activation)], device="cpu")
    encoder.save_pretrained(str(folder / "saved"))
    return folder / "saved"


def ours(place: Path, texts: Sequence[str], **fields: Any) -> EmbedResult:
    if not (place.parent / "store").is_dir():
        export(place, place.parent / "store/tiny")
    request = embed_request([Text(text) for text in texts], **{"truncate": True} | fields)
    return asyncio.run(Service(place.parent / "store").pipeline.embed(request))


def dense(result: EmbedResult, width: int = VOCABULARY) -> NDArray[np.float32]:
    """The sparse vectors of a result as rows."""
    (output,) = (output for output in result.outputs if output.name == SPARSE)
    assert output.indices is not None
    rows = np.zeros((len(output.lengths), width), np.float32)
    rows[np.repeat(np.arange(len(rows)), output.lengths), output.indices] = output.rows[:, 0]
    start = 0
    for length in output.lengths:
        assert (np.diff(output.indices[start : start + length]) > 0).all()
        start += length
    return rows


def difference(got: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest difference; the sets of non-zeros are equal up to values below NEARLY_ZERO."""
    apart = (got != 0) != (expected != 0)
    assert np.abs(got[apart]).max(initial=0) < NEARLY_ZERO
    assert np.abs(expected[apart]).max(initial=0) < NEARLY_ZERO
    return float((np.abs(got - expected) / np.maximum(1, np.abs(expected))).max())


def theirs(encoder: SparseEncoder, texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
    rows = encoder.encode(list(texts), batch_size=3, convert_to_sparse_tensor=False, **options)
    return np.asarray(rows, np.float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_splade_vectors_are_those_of_sparse_encoder(family: str, tmp_path: Path, ledger: Ledger) -> None:
    for seed in range(CONFIGS):
        place = splade(tmp_path / str(seed), family, seed)
        expected = theirs(SparseEncoder(str(place), device="cpu"), TEXTS)
        assert 0.05 < (expected != 0).mean() < 0.999
        ledger.check("sparse", f"{family}, SPLADE", difference(dense(ours(place, TEXTS)), expected), TOLERANCE)


def test_a_bare_masked_language_model_is_splade_if_told(tmp_path: Path, ledger: Ledger) -> None:
    place = write_model(tmp_path / "lm", "bert", 3)
    export(place, tmp_path / "store/tiny", pooling="splade")
    got = difference(dense(ours(place, TEXTS)), theirs(SparseEncoder(str(place), device="cpu"), TEXTS))
    ledger.check("sparse", "bare masked LM", got, TOLERANCE)


def test_the_largest_values_are_kept_as_asked(tmp_path: Path, ledger: Ledger) -> None:
    place = splade(tmp_path, "bert", 4)
    expected = theirs(SparseEncoder(str(place), device="cpu"), TEXTS, max_active_dims=5)
    ledger.check("sparse", "max_active_dims", difference(dense(ours(place, TEXTS, max_active_dims=5)), expected), 1e-5)


def test_the_largest_values_are_kept_as_stored(tmp_path: Path, ledger: Ledger) -> None:
    place = splade(tmp_path / "made", "bert", 4)
    encoder = SparseEncoder(str(place), device="cpu", max_active_dims=5)
    encoder.save_pretrained(str(tmp_path / "saved"))
    expected = theirs(SparseEncoder(str(tmp_path / "saved"), device="cpu"), TEXTS)
    assert (expected != 0).sum(axis=1).max() == 5
    ledger.check(
        "sparse", "max_active_dims, stored", difference(dense(ours(tmp_path / "saved", TEXTS)), expected), 1e-5
    )


def table(transformer: Transformer, seed: int) -> SparseStaticEmbedding:
    weights = torch.rand(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 9
    weights[::7] = 0
    return SparseStaticEmbedding(transformer.tokenizer, weights, frozen=True)


@pytest.mark.parametrize("default", ["document", "query"])
@pytest.mark.parametrize("seed", range(4))
def test_queries_are_looked_up_and_documents_encoded(seed: int, default: str, tmp_path: Path, ledger: Ledger) -> None:
    transformer = Transformer(str(write_model(tmp_path / "lm", "distilbert", seed)), transformer_task="fill-mask")
    router = Router.for_query_document(
        [table(transformer, seed)], [transformer, SpladePooling(*CHOICES[seed])], default_route=default
    )
    SparseEncoder(modules=[router], device="cpu").save_pretrained(str(tmp_path / "saved"))
    encoder = SparseEncoder(str(tmp_path / "saved"), device="cpu")
    for kind in ("query", "document", None):
        got = dense(ours(tmp_path / "saved", TEXTS, input_type=kind))
        expected = theirs(encoder, TEXTS, **({} if kind is None else {"task": kind}))
        ledger.check("sparse", f"Router, {kind or 'default'}", difference(got, expected), TOLERANCE)


def test_a_table_alone_is_a_model(tmp_path: Path, ledger: Ledger) -> None:
    transformer = Transformer(str(write_model(tmp_path / "lm", "bert", 0)), transformer_task="fill-mask")
    SparseEncoder(modules=[table(transformer, 1)], device="cpu").save_pretrained(str(tmp_path / "saved"))
    expected = theirs(SparseEncoder(str(tmp_path / "saved"), device="cpu"), TEXTS)
    ledger.check("sparse", "table alone", difference(dense(ours(tmp_path / "saved", TEXTS)), expected), TOLERANCE)


@pytest.mark.parametrize("seed", range(CONFIGS))
def test_lexical_weights_are_those_of_the_formula(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    """FlagEmbedding's: relu(linear(hidden)), the largest of each id, none of special and unknown tokens."""
    place = write_model(tmp_path / "m3", "xlm-roberta", seed, "XLMRobertaModel")
    model = transformers.AutoModel.from_pretrained(place).eval()
    linear = torch.nn.Linear(model.config.hidden_size, 1)
    torch.save(linear.state_dict(), place / "sparse_linear.pt")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    unused = {tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    expected = np.zeros((len(TEXTS), VOCABULARY), np.float32)
    for row, text in zip(expected, TEXTS, strict=True):
        encoded = tokenizer(text, truncation=True, return_tensors="pt")
        with torch.no_grad():
            weights = torch.relu(linear(model(**encoded).last_hidden_state))[0, :, 0]
        for id_, weight in zip(encoded["input_ids"][0].tolist(), weights.tolist(), strict=True):
            if id_ not in unused:
                row[id_] = max(row[id_], weight)
    export(place, tmp_path / "store/tiny", pooling="cls")
    got = ours(place, TEXTS, outputs=("sentence_embedding", SPARSE))
    ledger.check("sparse", "BGE-M3's lexical weights", difference(dense(got), expected), TOLERANCE)
    alone = ours(place, TEXTS)  # the default output, without sparse vectors beside it
    np.testing.assert_allclose(got.outputs[0].rows, alone.outputs[0].rows, atol=TOLERANCE)
