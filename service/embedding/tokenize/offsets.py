"""Where the tokens of an input lie: their places among its ids, and the characters that they cover."""

import numpy as np

from service.embedding.requests import Ids, OwnTokens
from service.embedding.tokenize.parts import Part


def own_tokens(part: Part, kept: slice, first: int, prompt: int) -> OwnTokens:
    """Return the tokens of a text without special tokens and its prompt.

    Args:
        part: the tokens of prompt and text, with their spans.
        kept: those that are read.
        first: the place of the first that is read among the ids.
        prompt: code points before the text itself; below 0 where its beginning was cut off.
    """
    assert part.spans is not None
    spans = part.spans - prompt
    # a token that begins in the prompt and ends in the text is the text's
    inside = (spans[:, 1] > 0) | (spans[:, 0] >= 0)
    starts, stops = spans[kept][inside[kept]].T
    # a tokenizer that turns pieces around would have them fall
    starts = np.minimum.accumulate(starts[::-1])[::-1]
    known = part.total == len(spans) or inside.any()  # else tokens of the prompt were cut off too
    total = part.total - int(np.count_nonzero(~inside)) if part.total is not None and known else None
    skipped = int(np.count_nonzero(inside[: kept.start]))
    rows = first + np.flatnonzero(inside[kept])
    return OwnTokens(rows, np.maximum(starts, 0), np.maximum.accumulate(stops), skipped, total)


def own_ids(sent: Ids, read: Ids, left: bool) -> OwnTokens:
    """Return the tokens of an input of token ids: every one that is read.

    Args:
        sent: the ids that the caller sent.
        read: the ids that are left after cutting.
        left: whether their end was kept.
    """
    count = len(sent.ids)
    return OwnTokens(np.arange(len(read.ids)), None, None, count - len(read.ids) if left else 0, count)
