"""Builds tokenizers of the tokenizers library from vocabularies, by the rules of SentencePiece, BERT and GPT-2.

What a SentencePiece model does to a text is in its file, and is done in its order: the precompiled rules, blanks
squeezed, a blank put before it, blanks replaced by the sign that words begin with.

Source: SentencePiece 0.2 (normalizer.cc, bpe_model.cc); transformers 4.57, convert_slow_tokenizer.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from models.checkpoints.tokenizers.sentencepiece import CONTROL, NORMAL, USER_DEFINED, SentencePieces

WORD_START = "\u2581"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def word_pieces(
    vocabulary: Mapping[str, int],
    unknown: str,
    lowercase: bool,
    strip_accents: bool | None = None,
    chinese: bool = True,
) -> Any:
    """Return a WordPiece tokenizer as of BERT.

    Args:
        vocabulary: ids of words, and of their continuations after ##.
        unknown: the token of words that it does not make up.
        strip_accents: None: as lowercase.
        chinese: each Chinese character is a word.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(dict(vocabulary), unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(True, chinese, strip_accents, lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def bytes_in_pairs(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    pattern: str = GPT2,
    prefix: bool = False,
    whole: bool = False,
    trims: bool = False,
) -> Any:
    """Return a tokenizer that merges bytes, as of GPT-2.

    Args:
        vocabulary: ids of runs of bytes, each byte a printable character.
        merges: the pairs, those to merge first first.
        pattern: what is merged by itself: matches, and what lies between them.
        prefix: a blank is put before the text.
        whole: a match that is in the vocabulary is not taken apart.
        trims: blanks are not among the characters of a token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.BPE(dict(vocabulary), list(merges), ignore_merges=whole))
    if pattern == GPT2:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trims, add_prefix_space=prefix)
    return tokenizer


def sentence_pieces(model: SentencePieces, before: Sequence[Any] = ()) -> Any:
    """Return a tokenizer as SentencePiece is with a vocabulary, with its control and user-defined tokens.

    Args:
        before: normalizers of the library before those of the vocabulary.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    scores = [(text, score) for text, score, _ in model.pieces]
    if model.unigram:
        tokenizer = Tokenizer(models.Unigram(scores, model.unknown_id, model.byte_fallback))
    else:
        ids = {text: number for number, (text, _) in enumerate(scores)}
        unknown = scores[model.unknown_id][0]
        pairs = merges_of(model)
        bpe = models.BPE(ids, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback)
        tokenizer = Tokenizer(bpe)
    squeezed = [normalizers.Replace(Regex(rf"\A +|[ {WORD_START}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps = list(before)
    if model.charsmap:
        steps += [normalizers.NFKC()] if model.composes else []
        steps.append(normalizers.Precompiled(model.charsmap))
    steps += squeezed if model.squeezes else []
    steps += [normalizers.Prepend(WORD_START)] if model.prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", WORD_START)])
    if not any(WORD_START in text[1:] for text, _, kind in model.pieces if kind == NORMAL):
        tokenizer.pre_tokenizer = pre_tokenizers.Split(WORD_START, "merged_with_next")
    ends = [decoders.Strip(" ", 1, 0)] if model.prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    )
    add_tokens(
        tokenizer, [(text, kind == CONTROL) for text, _, kind in model.pieces if kind in (CONTROL, USER_DEFINED)]
    )
    return tokenizer


def merges_of(model: SentencePieces) -> list[tuple[str, str]]:
    """Return the pairs that make up pieces, those of the best score first, then those of the longest beginning.

    SentencePiece merges the leftmost of several pairs that make the same piece; the library has an order of pairs.
    """
    ids = {text: number for number, (text, _, _) in enumerate(model.pieces)}
    pairs = [
        (-score, -cut, number, text[:cut], text[cut:])
        for number, (text, score, _) in enumerate(model.pieces)
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]
    return [(left, right) for *_, left, right in sorted(pairs)]


def add_tokens(tokenizer: Any, tokens: Sequence[tuple[str, bool]]) -> None:
    """Make a tokenizer read tokens as they stand in a text; the True ones are special, which it can leave out."""
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(text, normalized=False, special=special) for text, special in tokens])


def add_template(tokenizer: Any, single: str, pair: str, tokens: Mapping[str, str]) -> None:
    """Put special tokens around texts, after what the tokenizer does already.

    Args:
        single, pair: what one text and two become: $A, $B and roles, with :1 if they are of segment 1.
        tokens: the special tokens by their roles; all those named are in the vocabulary.
    """
    from tokenizers import processors

    one, two = ([_part(part, tokens) for part in template.split()] for template in (single, pair))
    named = {text for part in one if (text := part.rpartition(":")[0]) in tokens.values()}
    template = processors.TemplateProcessing(one, two, [(text, tokenizer.token_to_id(text)) for text in sorted(named)])
    before = tokenizer.post_processor
    tokenizer.post_processor = processors.Sequence([before, template]) if before else template


def put_ends(tokenizer: Any, ends: Mapping[str, str], paired: bool = False) -> None:
    """Put a token before and behind every text.

    Args:
        ends: those that there are, of bos and eos.
        paired: two texts are joined as RoBERTa's are: by one more eos, and as one segment.
    """
    templates = ("bos $A eos", "bos $A eos eos $B eos" if paired else "bos $A eos bos:1 $B:1 eos:1")
    single, pair = (
        " ".join(part for part in template.split() if part[0] == "$" or part.partition(":")[0] in ends)
        for template in templates
    )
    add_template(tokenizer, single, pair, ends)


def _part(part: str, tokens: Mapping[str, str]) -> str:
    name, _, kind = part.partition(":")
    return f"{tokens.get(name, name)}:{kind or 0}"
