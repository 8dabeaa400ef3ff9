"""Builds the tokenizer of a GGUF header's vocabulary: WordPiece, pairs of bytes, SentencePiece of both kinds.

Pairs of bytes are merged within matches of a pattern that the header only names; PATTERNS has those of embedding
models. Where the header leaves a switch out, it is as llama.cpp has it.

Source: llama.cpp's llama-vocab.cpp and convert_hf_to_gguf.py; the patterns are those of the models' tokenizer.json.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from models.checkpoints.tokenizers import building
from models.checkpoints.tokenizers.sentencepiece import CONTROL, USER_DEFINED, SentencePieces
from models.errors import BadCheckpoint

_LLAMA3 = building.QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_LIKE_ROBERTA = ("roberta-bpe", "jina-v2-code", "jina-v1-en")
_ROLES = ("bos", "eos", "cls", "seperator", "unknown", "padding", "mask")  # spelled as the format spells them


class Pattern(NamedTuple):
    """How a header that names a pattern is read.

    Args:
        text: the pattern.
        composes: characters and their marks become one first (NFC).
        whole: matches in the vocabulary are not taken apart.
        begins: texts get the bos token unless the header says.
    """

    text: str
    composes: bool = False
    whole: bool = False
    begins: bool = False


PATTERNS: dict[str, Pattern] = {
    **dict.fromkeys(
        ("gpt-2", "jina-de", "jina-es", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es", "mpt", "phi-2"),
        Pattern(building.GPT2),
    ),
    "roberta-bpe": Pattern(building.GPT2),
    "modern-bert": Pattern(building.GPT2, composes=True),
    "olmo": Pattern(building.GPT2, composes=True),
    **dict.fromkeys(("qwen2", "f2llmv2"), Pattern(building.QWEN2, composes=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "lfm2"), Pattern(_LLAMA3, whole=True, begins=True)),
}


def build(metadata: Mapping[str, Any]) -> Any | None:
    """Return the tokenizer of a header; None: it has no vocabulary, or one whose rules are not known.

    Raises:
        BadCheckpoint: the vocabulary contradicts itself.
    """
    held = {
        name.removeprefix("tokenizer.ggml."): value
        for name, value in metadata.items()
        if name.startswith("tokenizer.ggml.")
    }
    tokens, kinds = held.get("tokens"), held.get("token_type")
    make = {"bert": _word_piece, "gpt2": _bytes, "llama": _pieces, "t5": _pieces}.get(str(held.get("model")))
    if make is None or not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return None
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        kinds = [0] * len(tokens)
    special = {role: tokens[number] for role in _ROLES if (number := _id(held, role, len(tokens))) is not None}
    try:
        return make(held, tokens, kinds, special)
    except Exception as error:  # the library raises bare Exception
        raise BadCheckpoint(
            f"the header's vocabulary ({held['model']}) makes no tokenizer: {error}; put the model's tokenizer.json "
            "beside the file"
        ) from error


def _id(held: Mapping[str, Any], role: str, count: int) -> int | None:
    number = held.get(f"{role}_token_id")
    return number if isinstance(number, int) and 0 <= number < count else None


def _bytes(held: Mapping[str, Any], tokens: list[str], kinds: list[int], special: Mapping[str, str]) -> Any | None:
    from tokenizers import normalizers

    pattern, merges = PATTERNS.get(str(held.get("pre"))), held.get("merges")
    if pattern is None or not isinstance(merges, list) or len(set(tokens)) != len(tokens):
        return None
    pairs = [(left, right) for left, _, right in (str(merge).partition(" ") for merge in merges)]
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = building.bytes_in_pairs(
        ids, pairs, pattern.text, bool(held.get("add_space_prefix", False)), pattern.whole
    )
    if pattern.composes:
        tokenizer.normalizer = normalizers.NFC()
    named = [
        (token, kind == CONTROL) for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, USER_DEFINED)
    ]
    building.add_tokens(tokenizer, named)
    building.put_ends(tokenizer, _ends(held, special, pattern.begins, False), paired=held["pre"] in _LIKE_ROBERTA)
    return tokenizer


def _pieces(held: Mapping[str, Any], tokens: list[str], kinds: list[int], special: Mapping[str, str]) -> Any | None:
    scores, unigram = held.get("scores"), held["model"] == "t5"
    if not isinstance(scores, list) or len(scores) != len(tokens) or (not unigram and len(set(tokens)) != len(tokens)):
        return None
    charsmap = held.get("precompiled_charsmap") or []
    unknown_id = _id(held, "unknown", len(tokens))
    model = SentencePieces(
        tuple(zip(tokens, map(float, scores), kinds, strict=True)),
        unigram,
        unknown_id if unknown_id is not None else 2 if unigram else 0,
        "<0x00>" in tokens,
        bytes(value & 0xFF for value in charsmap),
        bool(charsmap),
        bool(held.get("add_space_prefix", True)),
        bool(held.get("remove_extra_whitespaces", False)),
    )
    tokenizer = building.sentence_pieces(model)
    building.put_ends(tokenizer, _ends(held, special, not unigram, unigram), paired=unigram and "bos" in special)
    return tokenizer


def _ends(held: Mapping[str, Any], special: Mapping[str, str], begins: bool, ends: bool) -> dict[str, str]:
    """Return the tokens around texts by the header's switches; `begins`, `ends`: where it leaves them out."""
    switches = {"bos": held.get("add_bos_token", begins), "eos": held.get("add_eos_token", ends)}
    return {role: special[role] for role, switch in switches.items() if switch and role in special}


def _word_piece(held: Mapping[str, Any], tokens: list[str], kinds: list[int], special: Mapping[str, str]) -> Any | None:
    """Return the tokenizer of a WordPiece vocabulary, of which the header does not say whether letters are lowered."""
    words = [_word(token, kind == CONTROL) for token, kind in zip(tokens, kinds, strict=True)]
    roles = {role: words[tokens.index(token)] for role, token in special.items()}
    roles.setdefault("cls", roles.get("bos", ""))
    if len(set(words)) != len(words) or not all(roles.get(role) for role in ("cls", "seperator", "unknown")):
        return None
    named = {role: word for role, word in roles.items() if role not in ("bos", "eos")}
    cased = any(word != word.lower() for word in words if word not in named.values() and not word.startswith("["))
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = building.word_pieces(ids, named["unknown"], not cased)
    building.add_tokens(tokenizer, [(word, True) for word in dict.fromkeys(named.values())])
    building.add_template(
        tokenizer, "cls $A sep", "cls $A sep $B:1 sep:1", {"cls": named["cls"], "sep": named["seperator"]}
    )
    return tokenizer


def _word(token: str, control: bool) -> str:
    """Return a token as in vocab.txt: the converter marks where words begin, vocab.txt where they continue."""
    if control or (token.startswith("[") and token.endswith("]")):
        return token
    if token.startswith(building.WORD_START) and token != building.WORD_START:
        return token.removeprefix(building.WORD_START)
    return "##" + token
