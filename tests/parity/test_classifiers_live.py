"""Classification heads of random small models against transformers' own classes, through the embedding pipeline."""

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.artifacts.export import export
from models.families.classifiers import CLASSIFIERS
from models.positions.alibi import slopes
from service.embedding.requests import Ids
from tests.embed_requests import embed_request
from tests.parity.block_configs import CONFIGS, LONGEST
from tests.parity.conftest import Ledger
from tests.parity.test_blocks_live import NoCaches, randomise, relative
from tests.parity.test_published_layouts import Gated
from tests.service.registry.registry_service import Service

pytestmark = pytest.mark.parity
SEEDS = range(12)
TOLERANCE = 1e-5
PUBLISHED = ("jina_bert", "xlm_roberta_flash")  # transformers has no class of that name
SEQUENCE = [name for name, spec in CLASSIFIERS.items() if spec.layers and name not in PUBLISHED]
TOKENS = [name for name, spec in CLASSIFIERS.items() if spec.tokens and name not in PUBLISHED]
_MODERN: dict[str, tuple[Any, ...]] = {
    "classifier_pooling": ("cls", "mean"),
    "classifier_activation": ("gelu", "relu", "gelu_new", "tanh", "silu"),
    "classifier_bias": (True, False),
    "norm_bias": (True, False),
}
# rows that see masked tokens alone are not numbers in transformers, and XLM pools masked tokens
UNMASKED = ("sliding_window", "local_attention", "layer_types", "attention_types", "summary_type")
_DEBERTA = {"pooler_hidden_act": ("gelu", "tanh", "relu", "gelu_new")}
_XLM = {"summary_type": ("first", "last", "mean"), "summary_activation": (None, "tanh")}
_BART = {"decoder_layers": (1, 2, 3), "decoder_attention_heads": (1, 2, 4), "decoder_ffn_dim": (16, 48)}
OWN: dict[str, dict[str, tuple[Any, ...]]] = {  # keys of heads, and the values that are drawn
    "modernbert": _MODERN,
    "modernbert-decoder": {key: values for key, values in _MODERN.items() if key != "classifier_pooling"},
    "ultrabert": {"classifier_pooling": ("cls", "mean")},
    "eurobert": {"classifier_pooling": ("bos", "mean", "late")},
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA,
    "roformer": {"hidden_act": ("gelu", "relu", "gelu_new", "silu", "quick_gelu")},
    "xlm": _XLM,
    "flaubert": _XLM,
    "bart": _BART,
    "mvp": _BART,
}


def made(family: str, seed: int, folder: Path, kind: str = "SequenceClassification") -> Any:
    """Return a random model with a classification head, eager and in float64, after writing it in float32."""
    draw = random.Random(f"classifiers {family} {seed} {kind}")
    torch.manual_seed(draw.randrange(1 << 30))
    drawn = CONFIGS[family](draw) | {key: draw.choice(values) for key, values in OWN.get(family, {}).items()}
    config = transformers.CONFIG_MAPPING[family](**drawn, num_labels=draw.choice((1, 2, 5)))
    config.use_cache = False
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    auto = getattr(transformers, f"AutoModelFor{kind}")
    model = auto.from_config(config, **({} if family in ("t5", "mt5", "umt5") else eager)).eval()
    randomise(model, family)
    model.save_pretrained(folder)
    return model.double()


def sequences(model: Any, draw: random.Random, typed: bool) -> list[Ids]:
    """Return random texts and pairs of several lengths, one with a mask, some with pad ids at their ends."""
    words, pad = model.config.vocab_size, model.config.pad_token_id
    unmasked = any(getattr(model.config, key, None) for key in UNMASKED)
    barred = getattr(model.config, "mask_token_id", None)  # a text of this alone is no number in ESM
    made = []
    for number, length in enumerate((1, 2, draw.randint(3, 12), draw.randint(13, 70), draw.randint(71, LONGEST - 10))):
        ids = np.array([draw.randrange(2, words) for _ in range(length)], np.int64)
        ids[ids == barred] = 2
        if pad is not None and number == 2:
            ids[-1] = pad
        mask = np.ones(length, np.int64)
        if number == 3 and not unmasked and pad is not None:  # without a pad id its class takes a masked last token
            mask[-3:] = 0
        if model.config.is_encoder_decoder:  # its class reads the last EOS
            ids[ids == 2] = 3
            ids[mask.sum() - 1] = 2
        types = (np.arange(length) > draw.randrange(length)).astype(np.int64) if typed else None
        made.append(Ids(ids, mask, types))
    return made


def expected(model: Any, sequence: Ids) -> Any:
    fed = {"input_ids": torch.tensor(sequence.ids)[None], "attention_mask": torch.tensor(sequence.mask)[None]}
    if sequence.types is not None:
        fed["token_type_ids"] = torch.tensor(sequence.types)[None]
    if getattr(model.config, "pre_norm", False):  # FlauBERT's class asks for each layer's cache then
        fed["cache"] = NoCaches(transformers.DynamicCache(), transformers.DynamicCache())
    with torch.no_grad():
        return model(**fed).logits[0].numpy()


def logits(service: Service, inputs: list[Ids], output: str) -> list[Any]:
    result = asyncio.run(service.pipeline.embed(embed_request(inputs, "own", (output,))))
    (own,) = result.outputs
    return np.split(own.rows, np.cumsum(own.lengths)[:-1])


def compare(family: str, seed: int, tmp_path: Path, ledger: Ledger, kind: str) -> None:
    model = made(family, seed, tmp_path / "checkpoint", kind)
    card = export(tmp_path / "checkpoint", tmp_path / "store/own")
    assert card.classifier is not None, card.no_classifier_reason
    draw = random.Random(f"sequences {family} {seed}")
    typed = card.types == "zeros" and card.type_rows > 1
    inputs = sequences(model, draw, typed)
    output = "class_logits" if kind == "SequenceClassification" else "token_class_logits"
    got = logits(Service(tmp_path / "store"), inputs, output)
    for own, sequence in zip(got, inputs, strict=True):
        wanted = expected(model, sequence)
        attended = sequence.mask == 1
        if output == "class_logits":
            assert own.shape == (1, model.config.num_labels)
            ledger.check(family, output, relative(own[0], wanted), TOLERANCE)
        else:
            assert len(own) == len(sequence.ids)
            ledger.check(family, output, relative(own[attended], wanted[attended]), TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", SEQUENCE)
def test_texts_have_the_logits_of_transformers(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    compare(family, seed, tmp_path, ledger, "SequenceClassification")


@pytest.mark.parametrize("seed", SEEDS[:4])
@pytest.mark.parametrize("family", TOKENS)
def test_tokens_have_the_logits_of_transformers(family: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    compare(family, seed, tmp_path, ledger, "TokenClassification")


FLASH = (  # names of transformers' XLM-R, and of the published code that jina-reranker-v2 comes with
    ("embeddings.LayerNorm", "emb_ln"),
    ("encoder.layer.", "encoder.layers."),
    ("attention.output.dense", "mixer.out_proj"),
    ("attention.output.LayerNorm", "norm1"),
    ("intermediate.dense", "mlp.fc1"),
    (".output.dense", ".mlp.fc2"),
    (".output.LayerNorm", ".norm2"),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_xlm_roberta_of_published_code(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    model = made("xlm-roberta", seed, tmp_path / "checkpoint")
    held = load_file(tmp_path / "checkpoint/model.safetensors")
    tensors = {}
    for name, tensor in held.items():
        if match := re.fullmatch(r"(.*)\.attention\.self\.query\.(\w+)", name):
            stem, kind = match.groups()
            parts = [held[f"{stem}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            tensors[f"{stem}.mixer.Wqkv.{kind}"] = torch.cat(parts)
        elif ".attention.self." not in name:
            tensors[name] = tensor
    for theirs, published in FLASH:
        tensors = {name.replace(theirs, published): tensor for name, tensor in tensors.items()}
    tensors = {name.replace("encoder.layer.", "encoder.layers."): tensor for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "checkpoint/model.safetensors")
    card = export(tmp_path / "checkpoint", tmp_path / "store/own")
    assert card.family == "xlm_roberta_flash"
    inputs = sequences(model, random.Random(seed), card.type_rows > 1)
    for own, sequence in zip(logits(Service(tmp_path / "store"), inputs, "class_logits"), inputs, strict=True):
        difference = relative(own[0], expected(model, sequence))
        ledger.check("xlm-roberta, published", "class_logits", difference, TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_jina_v2_of_published_code(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    """BERT with ALiBi as an additive mask, and gated feed-forward modules (jina-reranker-v1)."""
    draw = random.Random(f"jina classifier {seed}")
    sizes = CONFIGS["bert"](draw) | {"hidden_act": "gelu", "layer_norm_eps": 1e-12}
    torch.manual_seed(seed)
    config = transformers.BertConfig(**sizes, num_labels=draw.choice((1, 2, 5)), attn_implementation="eager")
    model = transformers.BertForSequenceClassification(config).eval()
    for layer in model.bert.encoder.layer:
        layer.mlp = Gated(sizes["hidden_size"], sizes["intermediate_size"], torch.nn.functional.gelu)
        layer.feed_forward_chunk = layer.mlp.forward
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight.zero_()
    unused = re.compile(r"position|\.intermediate\.|layer\.\d+\.output\.")
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if not unused.search(name)}
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    changes: dict[str, Any] = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "model_type": "bert"}
    changes |= {"architectures": ["JinaBertForSequenceClassification"], "id2label": config.id2label}
    (folder / "config.json").write_text(json.dumps(sizes | changes))
    card = export(folder, tmp_path / "store/own")
    assert card.family == "jina_bert"
    inputs = [Ids(each.ids, None, each.types) for each in sequences(model, draw, card.type_rows > 1)]
    model = model.double()
    for own, sequence in zip(logits(Service(tmp_path / "store"), inputs, "class_logits"), inputs, strict=True):
        places = torch.arange(len(sequence.ids))
        falling = torch.tensor(slopes(sizes["num_attention_heads"]))[:, None, None] * (places - places[:, None]).abs()
        types = None if sequence.types is None else torch.tensor(sequence.types)[None]
        with torch.no_grad():
            mask = -falling[None].double()
            wanted = model(torch.tensor(sequence.ids)[None], attention_mask=mask, token_type_ids=types).logits[0]
        ledger.check("jina v2, published", "class_logits", relative(own[0], wanted.numpy()), TOLERANCE)
