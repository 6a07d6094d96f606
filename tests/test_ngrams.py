"""Tables of n-grams by hand, and those of the text that language studies train on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from docs.ngrams import ngram_bits


def text(words: str) -> np.ndarray:
    return np.frombuffer(words.encode(), dtype=np.uint8)


def test_single_bytes_by_hand() -> None:
    """a three times and b once are two kinds: (3 + 2 / 256) / 6, (1 + 2 / 256) / 6, and (2 / 256) / 6 of what was never seen."""
    by_hand = [(3 + 2 / 256) / 6, (1 + 2 / 256) / 6, 2 / 256 / 6]
    wanted = -sum(math.log2(one) for one in by_hand) / 3
    assert ngram_bits([text("aaab")], [text("abc")], 1) == pytest.approx(wanted)


def test_pairs_by_hand() -> None:
    """After a: b twice, one kind. The first byte has no context, and no pair reaches from one text into the next."""
    train = [text("ab"), text("ab")]
    one = (2 + 2 / 256) / 6
    wanted = -(math.log2(one) + math.log2((2 + one) / 3)) / 2
    assert ngram_bits(train, [text("ab")], 2) == pytest.approx(wanted)
    assert ngram_bits(train, [text("ba")], 2) == pytest.approx(-math.log2(one)), "b was never followed"
