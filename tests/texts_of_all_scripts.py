"""Texts of all scripts, drawn at random: every one is the same for the same number, whatever Unicode Python knows."""

import random
from collections.abc import Callable

SEED = 34
RANGES = (
    *((0x20, 0x7E), (0xA1, 0xFF), (0x100, 0x24F), (0x1E00, 0x1EFF), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x556)),
    *((0x5D0, 0x5EA), (0x621, 0x64A), (0x710, 0x72F), (0x904, 0x939), (0x985, 0x9B9), (0xA05, 0xA39), (0xB85, 0xBB9)),
    *((0xC05, 0xC39), (0xD05, 0xD39), (0xE01, 0xE30), (0xE81, 0xEAE), (0xF40, 0xF6C), (0x1000, 0x102A)),
    *((0x10D0, 0x10F0), (0x1200, 0x1248), (0x13A0, 0x13F5), (0x1780, 0x17B3), (0x1820, 0x1877), (0x3041, 0x3096)),
    *((0x30A1, 0x30FA), (0x4E00, 0x4FFF), (0x3400, 0x3440), (0xAC00, 0xAE00), (0x1100, 0x1112), (0xF900, 0xF9FF)),
    *((0x20000, 0x20100), (0x10400, 0x1044F), (0x1D400, 0x1D4FF), (0x12000, 0x12030)),
)
MARKS = (*range(0x300, 0x330), 0x301, 0x308, 0x93E, 0x94D, 0x5B0, 0x64B, 0x3099, 0xE31, 0x20D0)
EMOJI = ("😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣", "\U0001fae0", "☺", "⁉️")
SPACES = (" ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "▁")
CONTROLS = (
    "\x00",
    "\x01",
    "\x1f",
    "\x7f",
    "\x85",
    "\ufeff",
    "\ufffd",
    "\u200e",
    "\u00ad",
    "\u200d",
    "\ue000",
    "\uffff",
)
SIGNS = (
    *"!?.,;:'\"()[]{}<>@#$%^&*-_=+/\\|`~",
    "``",
    "''",
    "’",
    "“",
    "”",
    "…",
    "—",
    "。",
    "、",
    "！",
    "€",
    "°",
    "½",
    "ﬁ",
)
WORDS = (
    *("the", "The", "quick", "Fox", "don't", "it's", "we'll", "I'M", "U.S.A.", "naïve", "café", "Straße", "ÜBER"),
    *("1,234.56", "2024", "9,", "3,5,", "10,000,", "x86_64", "foo_bar", "https://example.org/a?b=c&d=1", "C++"),
    *("Привет", "мир", "Ελληνικά", "שלום", "مرحبا", "नमस्ते", "สวัสดี", "你好世界", "東京都", "こんにちは", "カタカナ"),
    *("ﾊﾝｶｸ", "한국어", "Ｆｕｌｌ", "ⅷ", "①", "ǅ", "İstanbul", "ıI", "ẞ", "Å", "Å", "e\u0301", "ﷺ", "Tiếng", "Việt"),
)


def texts(count: int, seed: int = SEED) -> list[str]:
    """Return `count` texts: words, runs of one script, blanks of all kinds, marks, emoji, control characters."""
    draw = random.Random(seed)
    fixed = ["", " ", "a", "  a  b ", "\n", "\t a\n", "a" * 120, "▁", " ▁ a", "é" * 30, "9,9,", "a\x00b"]
    return [*fixed, *(_text(draw) for _ in range(count - len(fixed)))]


def _text(draw: random.Random) -> str:
    parts: list[str] = []
    for _ in range(draw.choice((1, 2, 3, 5, 8, 13))):
        parts.append(draw.choice(_KINDS)(draw))
        parts.append(draw.choice(SPACES) if draw.random() < 0.7 else "")
    return "".join(parts)


def _run(draw: random.Random) -> str:
    """Return letters of one script, some with combining marks."""
    first, last = draw.choice(RANGES)
    letters = [chr(draw.randint(first, last)) for _ in range(draw.randint(1, 9))]
    return "".join(letter + (chr(draw.choice(MARKS)) if draw.random() < 0.1 else "") for letter in letters)


def _anything(draw: random.Random) -> str:
    """Return characters of the whole of Unicode, surrogates apart."""
    return "".join(chr(draw.choice((draw.randint(1, 0xD7FF), draw.randint(0xE000, 0x2FFFF)))) for _ in range(3))


_KINDS: tuple[Callable[[random.Random], str], ...] = (
    *[lambda draw: draw.choice(WORDS)] * 6,
    *[_run] * 5,
    _anything,
    lambda draw: draw.choice(SIGNS) * draw.randint(1, 3),
    lambda draw: draw.choice(EMOJI),
    lambda draw: draw.choice(CONTROLS),
    lambda draw: str(draw.randint(0, 99999)) + draw.choice(",.%") * draw.randint(0, 1),
    lambda draw: draw.choice(WORDS).upper() + draw.choice(WORDS),
)
