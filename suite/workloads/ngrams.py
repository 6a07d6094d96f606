"""How well a table of n-grams tells the next byte: what a language model has to beat before it says anything of language.

Counts of the text that a study trains on, smoothed down to single bytes and at last to all bytes alike as Witten and Bell do
(IEEE Transactions on Information Theory 37, 1991): after a context that was seen n times with t different bytes after it, a byte
that followed it c times has the probability (c + t q) / (n + t), q being that after the context without its first byte.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def ngram_bits(train: Sequence[Bytes], judged: Sequence[Bytes], order: int) -> float:
    """Bits a byte of a table of n-grams.

    Args:
        train: Texts whose n-grams are counted, uint8 [bytes] each; none reaches from one text into the next.
        judged: Texts that are told byte by byte, uint8 [bytes] each; a byte with less before it has what there is for context.
        order: Bytes of an n-gram, 1 to 3: a count of each that there could be is held.

    Returns:
        Mean over all bytes of the judged texts.
    """
    chance = np.full(sum(map(len, judged)), 1 / 256)
    for n in range(1, order + 1):
        counted = sum(np.bincount(_grams(text, n)[n - 1 :], minlength=256**n) for text in train)
        counts = np.asarray(counted).reshape(-1, 256)
        seen, kinds = counts.sum(1), np.count_nonzero(counts, axis=1)
        told = np.concatenate([_grams(text, n) for text in judged])
        whole = np.concatenate([np.arange(len(text)) >= n - 1 for text in judged])
        s, t = seen[told >> 8], kinds[told >> 8]
        smoothed = (counts.ravel()[told] + t * chance) / np.maximum(s + t, 1)
        chance = np.where(whole & (s > 0), smoothed, chance)
    return float(-np.log2(chance).mean())


def _grams(text: Bytes, n: int) -> npt.NDArray[np.int64]:
    """The n bytes up to each byte as one number, the last byte lowest; of the first n - 1 what there is."""
    found = np.zeros(len(text), dtype=np.int64)
    for back in range(min(n, len(text))):
        found[back:] += text[: len(text) - back].astype(np.int64) << (8 * back)
    return found
