"""Adding sparse vectors of k entries and keeping the k largest of the sum: the combination of gTop-k. arXiv 1901.04359.

A message is that of `codecs.sparse` with fp32 values. Entries at the same place are added (one float32 addition, the same in
both orders); of the up to 2k places that result, the k largest stay, ties to the lowest index, NaN and inf first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impls.codecs import selection
from reference_impls.codecs.sparse import Indices, pack_pairs, unpack_pairs

__all__ = ["merge"]


def merge(
    mine: Tensor, came: Tensor, numel: int, k: int, indices: Indices
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Two messages uint8 [bytes] of k entries each -> the merged message, and what it leaves out.

    Returns:
        (message, (places int64 [m], values float32 [m])): 0 <= m <= k entries that were not among the largest.
    """
    (a, x), (b, y) = (unpack_pairs(m, numel, k, indices, "fp32") for m in (mine, came))
    places, order = torch.sort(torch.cat([a, b]), stable=True)
    values = torch.cat([x, y])[order]
    twice = (places[1:] == places[:-1]).nonzero().view(-1)
    values[twice] += values[twice + 1]
    single = torch.ones_like(places, dtype=torch.bool)
    single[twice + 1] = False
    places, values = places[single], values[single]
    stay = torch.zeros_like(places, dtype=torch.bool)
    stay[selection.largest(selection.magnitude(values), k)] = True
    message = torch.zeros_like(mine)
    pack_pairs(places[stay], values[stay], numel, message, indices, "fp32")
    return message, (places[~stay], values[~stay])
