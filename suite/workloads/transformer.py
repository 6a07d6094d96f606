"""The pre-norm transformer block that `code-gpt` and `byte-mlm` share, in operations that batch well.

Attention is written out as two products and a softmax: torch's fused kernel has no batching rule on CPU, so
that `torch.func.vmap` would loop over the rows, and one definition serves simulated and real workers alike.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention on [..., tokens, width]; `causal` hides later tokens."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width, device="meta")
        self.out = nn.Linear(width, width, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if self.causal:
            tokens = x.shape[-2]
            later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        mixed = scores.softmax(dim=-1) @ value
        result: Tensor = self.out(mixed.transpose(-3, -2).flatten(-2))
        return result


class Block(nn.Module):
    """Attention and a two-layer GELU network, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, hidden: int, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, device="meta")
        self.attention = Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width, device="meta")
        self.expand = nn.Linear(width, hidden, device="meta")
        self.contract = nn.Linear(hidden, width, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        hidden = F.gelu(self.expand(self.norm2(x)), approximate="tanh")
        result: Tensor = x + self.contract(hidden)
        return result
