"""Late chunking against transformers and sentence-transformers: token states of the whole text, pooled span by span.

The procedure is that of Günther et al. 2024 (arXiv:2409.04701) and jina-ai/late-chunking, in plain torch.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from models.artifacts.export import export
from service.embedding.pooling import SPAN_POOLINGS
from service.embedding.requests import Chunking, EmbedResult, Spans, Text
from service.protocols.openai.embeddings import late_chunked
from tests.embed_requests import embed_request
from tests.golden_cases import write_json, write_sentence_files
from tests.parity.block_configs import CONFIGS
from tests.parity.conftest import Ledger
from tests.sentence_chains import NORMALIZE, dense, write_chain
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity
TOLERANCE = 1e-5
VOCABULARY = 400
SENTENCES = [
    "Berlin is the capital of Germany.",
    "It has 3.8 million inhabitants, unbelievably many.",
    "Die Stadt hat Seen, Wälder und Flüsse 🌳🌊 — naïve été.",
    "東京は 日本の首都です。",
]
TEXT = " ".join(SENTENCES)
PROMPT = "query: "


def _word_piece(special: tuple[str, str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=["[PAD]", "[UNK]", *special])
    tokenizer.train_from_iterator([PROMPT, *SENTENCES[:3]], trainer)  # the Japanese one is [UNK]
    return tokenizer


def _byte_level(special: tuple[str, str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=list(special), initial_alphabet=alphabet)
    tokenizer.train_from_iterator([PROMPT, *SENTENCES], trainer)
    return tokenizer


def _unigram(special: tuple[str, str]) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=["<unk>", *special], unk_token="<unk>")
    tokenizer.train_from_iterator([PROMPT, *SENTENCES], trainer)
    return tokenizer


Make = Callable[[tuple[str, str]], Tokenizer]
FAMILIES: dict[str, tuple[Make, str]] = {
    "bert": (_word_piece, "[CLS] $A [SEP]"),
    "distilbert": (_word_piece, "[CLS] $A [SEP]"),
    "mpnet": (_word_piece, "[CLS] $A [SEP]"),
    "roberta": (_byte_level, "[CLS] $A [SEP]"),
    "modernbert": (_byte_level, "[CLS] $A [SEP]"),
    "xlm-roberta": (_unigram, "[CLS] $A [SEP]"),
    "t5": (_unigram, "$A [SEP]"),
    "gemma3_text": (_unigram, "[CLS] $A"),
    "qwen3": (_byte_level, "$A [SEP]"),
    "llama": (_byte_level, "$A"),
}
"""Family → what makes its tokenizer, and where its special tokens are."""


def write(family: str, pooling: str, folder: Path) -> tuple[Any, Any]:
    """Write a random model as sentence-transformers has it; return it in float64, and its tokenizer."""
    draw = random.Random(f"late chunking {family}")
    torch.manual_seed(draw.randrange(1 << 30))
    config = transformers.CONFIG_MAPPING[family](**CONFIGS[family](draw) | {"vocab_size": VOCABULARY})
    kind = transformers.T5EncoderModel if family == "t5" else transformers.AutoModel
    model = (kind(config) if family == "t5" else kind.from_config(config, attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                noise = torch.randn_like(parameter)
                parameter.copy_(noise if "embed" in name else 0.5 * noise / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    make, template = FAMILIES[family]
    tokenizer = make(("[CLS]", "[SEP]"))
    names = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=names)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_sentence_files(folder, pooling, max_tokens=500)
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 1, "pooling_mode": pooling})
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": PROMPT}})
    return model.double(), transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def states(model: Any, tokenizer: Any, text: str) -> tuple[Any, Any]:
    """The last hidden states of a text [1, n, d], and the offsets of its tokens [n, 2]."""
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    with torch.no_grad():
        hidden = model(torch.tensor([encoded["input_ids"]])).last_hidden_state
    offsets = torch.tensor(encoded["offset_mapping"])
    offsets[torch.tensor(encoded["special_tokens_mask"]) == 1] = -1
    return hidden, offsets


def expected(mode: str, hidden: Any, counted: Any) -> Any:
    """The unit vector of the tokens that are counted, by sentence-transformers' Pooling."""
    features = {"token_embeddings": hidden, "attention_mask": counted[None].long()}
    pooled = Pooling(hidden.shape[-1], mode)(features)["sentence_embedding"][0]
    return torch.nn.functional.normalize(pooled, dim=0).numpy()


def run(store: Path, **fields: Any) -> EmbedResult:
    return asyncio.run(Service(store).pipeline.embed(embed_request(**fields)))


def spans_of(texts: list[str]) -> Any:
    stops = np.cumsum([len(text) + 1 for text in texts]) - 1
    return np.stack([stops - [len(text) for text in texts], stops], axis=1)


@pytest.mark.parametrize("mode", SPAN_POOLINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_spans_are_pooled_token_states_of_transformers(family: str, mode: str, tmp_path: Path, ledger: Ledger) -> None:
    model, tokenizer = write(family, mode, tmp_path / "x")
    export(tmp_path / "x", tmp_path / "store/x", encoder=True)
    rng = np.random.default_rng(len(family))
    cuts = np.sort(rng.choice(len(TEXT) - 30, (6, 1))) + np.array([0, 30])
    bounds = np.concatenate([spans_of(SENTENCES), [[0, len(TEXT)]], cuts])
    for prompt in ("", PROMPT):
        name = "query" if prompt else None
        result = run(tmp_path / "store", inputs=[Text(TEXT)], spans=Spans(bounds, (len(bounds),)), prompt_name=name)
        hidden, offsets = states(model, tokenizer, prompt + TEXT)
        offsets = offsets - len(prompt)
        for vector, (start, stop) in zip(result.outputs[0].rows, bounds.tolist(), strict=True):
            counted = (offsets[:, 0] < stop) & (offsets[:, 1] > start)
            ledger.check(family, f"spans, {mode}", abs(vector - expected(mode, hidden, counted)).max(), TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_of_tokens_are_means_of_their_states(family: str, tmp_path: Path, ledger: Ledger) -> None:
    model, tokenizer = write(family, "mean", tmp_path / "x")
    export(tmp_path / "x", tmp_path / "store/x", encoder=True)
    result = run(tmp_path / "store", inputs=[Text(TEXT), Text(SENTENCES[1])], spans=Chunking(8, 3))
    start = 0
    for text, chunks in zip((TEXT, SENTENCES[1]), result.chunks, strict=True):
        hidden, offsets = states(model, tokenizer, text)
        own = torch.nonzero(offsets[:, 1] >= 0)[:, 0]
        firsts = range(0, len(own) - 3, 5)
        assert chunks.tokens.tolist() == [[first, min(first + 8, len(own))] for first in firsts]
        for number, (first, end) in enumerate(chunks.tokens.tolist()):
            mean = torch.nn.functional.normalize(hidden[0, own[first:end]].mean(dim=0), dim=0).numpy()
            ledger.check(family, "chunks", abs(result.outputs[0].rows[start + number] - mean).max(), TOLERANCE)
            assert chunks.characters is not None
            assert chunks.characters[number].tolist() == [int(offsets[own[first], 0]), int(offsets[own[end - 1], 1])]
        start += len(chunks.rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_joined_texts_are_pooled_as_jina_does(family: str, tmp_path: Path, ledger: Ledger) -> None:
    """Of jina-ai/late-chunking: joined by spaces, [CLS] counts in the first chunk and [SEP] in the last."""
    model, tokenizer = write(family, "mean", tmp_path / "x")
    export(tmp_path / "x", tmp_path / "store/x", encoder=True)
    request = late_chunked(embed_request([Text(text) for text in SENTENCES]))
    vectors = asyncio.run(Service(tmp_path / "store").pipeline.embed(request)).outputs[0].rows
    hidden, offsets = states(model, tokenizer, TEXT)
    places = []
    for start, stop in spans_of(SENTENCES).tolist():
        inside = torch.nonzero((offsets[:, 0] < stop) & (offsets[:, 1] > start))[:, 0]
        places.append([int(inside[0]), int(inside[-1]) + 1])
    places[0][0], places[-1][1] = 0, hidden.shape[1]
    for vector, (first, end) in zip(vectors, places, strict=True):
        pooled = hidden[0, first:end].sum(dim=0) / (end - first)
        wanted = torch.nn.functional.normalize(pooled, dim=0).numpy()
        ledger.check(family, "late_chunking", abs(vector - wanted).max(), TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_chunk_has_the_same_bits_beside_other_inputs(family: str, tmp_path: Path) -> None:
    write(family, "mean", tmp_path / "x")
    export(tmp_path / "x", tmp_path / "store/x", encoder=True)
    alone = run(tmp_path / "store", inputs=[Text(TEXT)], spans=Chunking(7)).outputs[0].rows
    others = [Text(text * 3) for text in SENTENCES]
    beside = run(tmp_path / "store", inputs=[*others, Text(TEXT), *others], spans=Chunking(7))
    counts = beside.outputs[0].lengths
    start = sum(counts[: len(others)])
    assert np.array_equal(beside.outputs[0].rows[start : start + len(alone)], alone)


def test_modules_run_behind_each_span(tmp_path: Path, ledger: Ledger) -> None:
    place = write_chain(tmp_path / "x", "mean", dense(32, 24), NORMALIZE, truncate_dim=16)
    theirs = SentenceTransformer(str(place), device="cpu")
    export(place, tmp_path / "store/x")
    text = "hello world abc de f, a b c"
    bounds = np.array([[0, 5], [6, 20], [0, len(text)], [22, 23]])
    (output,) = run(tmp_path / "store", inputs=[Text(text)], spans=Spans(bounds, (len(bounds),))).outputs
    hidden = theirs.encode(text, output_value="token_embeddings")
    offsets = np.array(theirs.tokenizer(text, return_offsets_mapping=True)["offset_mapping"])
    for vector, (start, stop) in zip(output.rows, bounds.tolist(), strict=True):
        counted = (offsets[:, 0] < stop) & (offsets[:, 1] > start)
        features = {"sentence_embedding": hidden[torch.tensor(counted)].mean(dim=0)[None]}
        for module in list(theirs)[2:]:
            features = module(features)
        wanted = features["sentence_embedding"][0, :16].detach().numpy()
        ledger.check("modules", "spans", abs(vector - wanted).max(), TOLERANCE)
