"""Where the tokens of an input lie: their places among its ids, and the characters that they cover."""

from typing import Any

import numpy as np

from service.embedding.requests import Ids, Int64s, OwnTokens


def own_tokens(whole: Any, kept: Any, prompt: int, left: bool) -> OwnTokens:
    """Return the tokens of a text without special tokens and its prompt.

    Args:
        whole: the encoding before it was cut (tokenizers.Encoding, with offsets).
        kept: the encoding that is read.
        prompt: code points of the encoded text before the text itself; below 0 where its beginning was cut off.
        left: whether the end was kept.
    """
    rows, starts, stops = _located(kept, prompt)
    count = len(rows) if kept is whole else len(_located(whole, prompt)[0])
    return OwnTokens(rows, starts, stops, count - len(rows) if left else 0, count)


def _located(encoding: Any, prompt: int) -> tuple[Int64s, Int64s, Int64s]:
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2) - prompt
    inside = np.array(encoding.special_tokens_mask, np.int64) == 0
    # a token that begins in the prompt and ends in the text is the text's
    inside &= (offsets[:, 1] > 0) | (offsets[:, 0] >= 0)
    starts, stops = offsets[inside].T
    # a tokenizer that turns pieces around would have them fall
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    return np.flatnonzero(inside), np.maximum(starts, 0), np.maximum.accumulate(stops)


def own_ids(sent: Ids, read: Ids, left: bool) -> OwnTokens:
    """Return the tokens of an input of token ids: every one that is read.

    Args:
        sent: the ids that the caller sent.
        read: the ids that are left after cutting.
        left: whether their end was kept.
    """
    count = len(sent.ids)
    return OwnTokens(np.arange(len(read.ids)), None, None, count - len(read.ids) if left else 0, count)
