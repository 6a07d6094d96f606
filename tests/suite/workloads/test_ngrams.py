"""Tables of n-grams, by hand and by the formula."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from suite.workloads.python_text import ngram_bits


def letters(words: str) -> np.ndarray:
    return np.frombuffer(words.encode(), dtype=np.uint8)


def test_single_bytes_by_hand() -> None:
    """a three times and b once are two kinds: (3 + 2 / 256) / 6, (1 + 2 / 256) / 6, and (2 / 256) / 6 of what was never seen."""
    by_hand = [(3 + 2 / 256) / 6, (1 + 2 / 256) / 6, 2 / 256 / 6]
    wanted = -sum(math.log2(one) for one in by_hand) / 3
    assert ngram_bits([letters("aaab")], [letters("abc")], 1) == pytest.approx(wanted)


def test_pairs_by_hand() -> None:
    """After a: b twice, one kind. The first byte has no context, and no pair reaches from one text into the next."""
    train = [letters("ab"), letters("ab")]
    one = (2 + 2 / 256) / 6
    wanted = -(math.log2(one) + math.log2((2 + one) / 3)) / 2
    assert ngram_bits(train, [letters("ab")], 2) == pytest.approx(wanted)
    assert ngram_bits(train, [letters("ba")], 2) == pytest.approx(-math.log2(one)), "b was never followed"


def by_the_formula(text: bytes, judged: bytes) -> float:
    """Witten-Bell by dictionaries, byte by byte."""
    counts = [Counter(text[i : i + n + 1] for i in range(len(text) - n)) for n in range(3)]

    def share(history: bytes, byte: int) -> float:
        lower = share(history[1:], byte) if history else 1 / 256
        seen = [count for gram, count in counts[len(history)].items() if gram[:-1] == history]
        if not seen:
            return lower
        own = counts[len(history)][history + bytes([byte])]
        return (own + len(seen) * lower) / (sum(seen) + len(seen))

    bits = [-math.log2(share(judged[max(0, i - 2) : i], judged[i])) for i in range(len(judged))]
    return sum(bits) / len(bits)


def test_trigrams_by_the_formula() -> None:
    text, judged = "def f(x): return f(x) + x", "def g(y): return g(x)"
    found = ngram_bits([letters(text)], [letters(judged)], 3)
    assert found == pytest.approx(by_the_formula(text.encode(), judged.encode()), rel=1e-12)
