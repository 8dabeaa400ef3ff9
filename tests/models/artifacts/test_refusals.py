"""What `inlay export` refuses: the message names the file, the line or key, and what would help."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.artifacts.export import export
from models.errors import ModelError
from tests.golden_cases import write_tiny_bert
from tests.late_interaction import write_pylate

Spoil = Callable[[Path], None]
CHAIN = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]


def config(**changes: Any) -> Spoil:
    """Change keys of config.json, one on a line; None takes a key out."""

    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        values = json.loads(path.read_text(encoding="utf-8")) | changes
        kept = {key: value for key, value in values.items() if value is not None}
        path.write_text(json.dumps(kept, indent=1), encoding="utf-8")

    return spoil


def written(name: str, value: Any, *gone: str) -> Spoil:
    """Write a file of JSON, text or bytes, and take others away."""

    def spoil(folder: Path) -> None:
        for other in gone:
            (folder / other).unlink()
        if isinstance(value, bytes):
            (folder / name).write_bytes(value)
        else:
            (folder / name).write_text(value if isinstance(value, str) else json.dumps(value, indent=1))

    return spoil


def without(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / name
        (shutil.rmtree if path.is_dir() else Path.unlink)(path)

    return spoil


def no_tokenizer(
    class_name: str, file: str, content: bytes, more: Mapping[str, bytes] | None = None, **values: Any
) -> Spoil:
    def spoil(folder: Path) -> None:
        for name, held in {file: content, **(more or {})}.items():
            (folder / name).write_bytes(held)
        written("tokenizer_config.json", {"tokenizer_class": class_name} | values, "tokenizer.json")(folder)

    return spoil


def chained(place: str, width: int | None = 32, **values: Any) -> Spoil:
    """Add a Dense with these values behind the pooling; width: of its weight, None: it has none."""

    def spoil(folder: Path) -> None:
        written("modules.json", [*CHAIN, {"path": place, "type": "x.Dense"}])(folder)
        (folder / place).mkdir()
        if width is not None:
            save_file({"linear.weight": np.zeros((4, width), np.float32)}, folder / place / "model.safetensors")
        written(f"{place}/config.json", values)(folder)

    return spoil


def late(name: str, **values: Any) -> Spoil:
    """Write what PyLate writes, with other values in one file."""

    def spoil(folder: Path) -> None:
        write_pylate(folder)
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=1))

    return spoil


ROWS: Mapping[str, tuple[Spoil, str, str]] = {  # by what is wrong: how, the place in the message, and what would help
    "unknown model type": (config(model_type="bertx"), r"x/config.json:\d+: model_type 'bertx'", "`inlay adopt`"),
    "no model type": (config(model_type=None), "x/config.json names no model_type", "add it"),
    "unknown activation": (config(hidden_act="wild"), r"x/config.json:\d+ says hidden_act 'wild'", "one of gelu"),
    "a width in words": (config(hidden_size="a"), r"x/config.json:\d+ says hidden_size 'a'", "a whole number"),
    "another position": (
        config(position_embedding_type="odd"),
        r"x/config.json:\d+ says position_embedding_type 'odd'",
        "only 'absolute' is computed",
    ),
    "too many layers": (config(num_hidden_layers=5), "x holds no tensor 'encoder.layer.2", "download config.json and"),
    "quantised weights": (
        config(num_hidden_layers=5, quantization_config={"quant_method": "gptq"}),
        r"x/config.json:\d+ says quantization_config, gptq",
        "before it was quantised, or its GGUF",
    ),
    "another width": (config(hidden_size=40), "x: 'encoder.layer.0.attention.self.query.weight' has", "download both"),
    "no config": (without("config.json"), "x/config.json is missing", "give the folder"),
    "config that is not JSON": (written("config.json", "{\n 'a"), "x/config.json is not JSON", "line 2 column 2"),
    "no weights": (without("model.safetensors"), "x holds neither model.safetensors nor", "download one"),
    "weights of TensorFlow": (
        written("tf_model.h5", b"1", "model.safetensors"),
        "weights as tf_model.h5",
        "convert it once",
    ),
    "a pickle": (written("pytorch_model.bin", b"\x80\x04\x95\n", "model.safetensors"), "x/pytorch_model.bin", "again"),
    "torch before 1.6": (
        written("pytorch_model.bin", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "model.safetensors"),
        "x/pytorch_model.bin",
        r"torch.save\(torch.load",
    ),
    "half a file": (written("model.safetensors", b"12345678901234"), "x/model.safetensors is not", "download it again"),
    "a missing shard": (
        written("model.safetensors.index.json", {"weight_map": {"a": "model-1.safetensors"}}, "model.safetensors"),
        r"x/model.safetensors.index.json:3 names 'model-1",
        "download it",
    ),
    "another pooling": (
        written("1_Pooling/config.json", {"pooling_mode": "attention"}),
        "x/1_Pooling/config.json pools by",
        "--pooling MODE",
    ),
    "no file of a module": (without("1_Pooling"), "x/1_Pooling/config.json is missing", "give the folder"),
    "an unknown module": (
        written("modules.json", [*CHAIN, {"path": "2_Own", "type": "mine.Own"}]),
        "x/modules.json.* chains Transformer, Pooling, Own",
        "--pooling none",
    ),
    "modules that are no list": (written("modules.json", {"a": 1}), "x/modules.json is not a list", "save the model"),
    "a prompt that is no text": (
        written("config_sentence_transformers.json", {"prompts": {"a": 1}}),
        "x/config_sentence_transformers.json:2: prompts",
        "object of texts",
    ),
    "a prompt without a text": (
        written("config_sentence_transformers.json", {"prompts": {"a": "x"}, "default_prompt_name": "b"}),
        "x/config_sentence_transformers.json:5: default_prompt_name",
        "name one of them: a",
    ),
    "an unknown tokenizer class": (
        no_tokenizer("MyTokenizer", "vocab.txt", b"a\n"),
        "x has vocab.txt and no tokenizer.json, and tokenizer_class is 'MyTokenizer'",
        "built are BertTokenizer",
    ),
    "a tokenizer that is none": (written("tokenizer.json", {}), "x/tokenizer.json is not a tokenizer", "Model missing"),
    "no SentencePiece model": (no_tokenizer("T5Tokenizer", "spiece.model", b"x"), "x/spiece.model is not", "again"),
    "half a vocabulary": (no_tokenizer("RobertaTokenizer", "vocab.json", b"{}"), "no merges.txt", "download it too"),
    "a side that is none": (
        written("tokenizer_config.json", {"truncation_side": "middle"}),
        "x/tokenizer_config.json cuts texts at 'middle'",
        "write right or left",
    ),
    "a reranker that is not known": (
        config(architectures=["JinaVLForRanking"]),
        r"published as JinaVLForRanking \(.*x/config.json:\d+\)",
        "--pooling none exports it without them",
    ),
    "a class without its head": (
        config(architectures=["BertForSequenceClassification"]),
        r"x/config.json:\d+\).* holds no pooler.dense.weight",
        "--pooling none exports it without them",
    ),
    "a class that is not known": (
        config(model_type="xmod", architectures=["XmodForSequenceClassification"]),
        r"published as XmodForSequenceClassification \(.*x/config.json:\d+\)",
        "--pooling none exports it without them",
    ),
    "blocks that are not computed": (
        config(model_type="xmod"),
        r"x/config.json:\d+: model_type 'xmod'\) pools token vectors.* adapters chosen by language",
        "export that with --pooling none",
    ),
    "a value that changes the blocks": (
        config(is_decoder=True),
        r"x/config.json:\d+ says is_decoder true",
        "export that with --pooling none",
    ),
    "heads that do not divide": (
        config(num_attention_heads=5),
        r"x/config.json:\d+ says num_attention_heads 5",
        "a number that divides",
    ),
    "a tensor of the pooling's modules": (
        chained("2_Dense", in_features=31),
        r"x/2_Dense/config.json:\d+: in_fea",
        "32",
    ),
    "an activation of a module": (
        chained("2_Dense", in_features=32, out_features=4, bias=False, activation_function="own.Wild"),
        r"x/2_Dense/config.json:\d+: activation_function 'own.Wild'",
        "torch.nn's",
    ),
    "a bias in words": (
        chained("2_Dense", in_features=32, out_features=4, bias="a"),
        r"x/2_Dense/config.json:\d+: bias is 'a'",
        "true or false",
    ),
    "a module of another shape": (
        chained("2_Dense", in_features=32, out_features=5, bias=False),
        "x/2_Dense: 'linear.weight' has shape",
        "download them again",
    ),
    "a module without weights": (
        chained("2_Dense", None),
        "x/2_Dense",
        "download",
    ),
    "a module of another folder": (
        written("modules.json", [*CHAIN, {"path": "../y", "type": "x.Dense"}]),
        "x/modules.json names the folder '../y'",
        "download them again",
    ),
    "a path in another language": (written("tokenizer_config.json", "{'a': 1}"), "tokenizer_config.json is", "again"),
    "an added token that is none": (
        written("tokenizer_config.json", {"add_eos_token": True, "eos_token": "<end>"}),
        r"x/tokenizer_config.json:\d+ says add_eos_token, and '<end>'",
        "download them again",
    ),
    "a switch in words": (
        written("tokenizer_config.json", {"do_lower_case": "yes"}),
        r"x/tokenizer_config.json:\d+: do_lower_case is 'yes'",
        "true or false",
    ),
    "added tokens that are no list": (
        no_tokenizer("BertTokenizer", "vocab.txt", b"[UNK]\n", added_tokens_decoder=[1]),
        "x/tokenizer_config.json does not list added tokens",
        "download them again",
    ),
    "merges that are no pairs": (
        no_tokenizer("GPT2Tokenizer", "merges.txt", b"a b c d\n", more={"vocab.json": b'{"a": 0}'}),
        "x/merges.txt: 'a b c d' is no pair",
        "download them again",
    ),
    "pad_token_id null": (
        config(model_type="roberta", pad_token_id="a"),
        r"x/config.json:\d+ says pad_token_id 'a'",
        "must be",
    ),
    "an index without a map": (
        written("model.safetensors.index.json", {"a": 1}, "model.safetensors"),
        "x/model.safetensors.index.json has no weight_map",
        "download them again",
    ),
    "a shard of another folder": (
        written("model.safetensors.index.json", {"weight_map": {"a": "../b"}}, "model.safetensors"),
        "x/model.safetensors.index.json names the shard '../b'",
        "download them again",
    ),
    "a length of a late model": (
        late("config_sentence_transformers.json", document_length=-1),
        r"x/config_sentence_transformers.json:\d+: document_length is '-1'",
        "a whole number",
    ),
    "an expansion of a late model": (
        late("sentence_bert_config.json", query_expansion={"strategy": "x"}),
        "query_expansion is",
        "fixed or min",
    ),
    "words of a late model": (
        late("config_sentence_transformers.json", skiplist_words="a"),
        "x/config_sentence_transformers.json: 'a' is no list of texts",
        "download them again",
    ),
    "layers of another number": (
        config(model_type="roberta", layer_types=["full_attention"]),
        r"x/config.json:\d+ has 1 layer_types, but 2 layers",
        "write one for each",
    ),
}
# of bare checkpoints: these are published for scores
NO_VECTORS = ("a reranker that is not known", "a class without its head", "a class that is not known")


@pytest.mark.parametrize("what", ROWS)
def test_a_refusal_names_the_place_and_what_would_help(what: str, tmp_path: Path) -> None:
    spoil, place, remedy = ROWS[what]
    spoil(write_tiny_bert(tmp_path / "x", pooling=None if what in NO_VECTORS else "mean"))
    with pytest.raises(ModelError, match=place) as caught:
        export(tmp_path / "x", tmp_path / "out")
    assert re.search(remedy, str(caught.value)), str(caught.value)
    assert not (tmp_path / "out").exists()
