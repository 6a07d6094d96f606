"""Layers for one worker, or for many at once: parameters [rows, ...] of `rows` workers, and what they are given likewise.

`torch.func.vmap` makes the same of any model, but beneath `torch.func` there is no fused attention with a backward pass. A model
of these layers needs no transform: its loss is then [rows], and the gradient of their sum is every worker's own. With the
parameters of one worker a layer is torch's own, to the bit. A workload of such a model says so (`Workload.stacks`).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """`nn.Linear`: weight [out, in] on [..., in], or [rows, out, in] on [rows, ..., in]."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return super().forward(x)
        product = torch.bmm(x.flatten(1, -2), self.weight.mT)
        # the bias apart: compiled, it joins what comes next
        if self.bias is not None:
            product = product + self.bias.unsqueeze(1).to(product.dtype)
        return product.view(*x.shape[:-1], -1)


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last dimension: weight [width] on [..., width], or [rows, width] on [rows, ..., width]."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return super().forward(x)
        shape = (len(x), *[1] * (x.dim() - 2), -1)
        normal = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return normal * self.weight.view(shape) + self.bias.view(shape)


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` over the last dimension, in float32: weight [width] on [..., width], or [rows, width] on [rows, ...]."""

    def forward(self, x: Tensor) -> Tensor:
        normal = F.rms_norm(x.float(), self.normalized_shape, eps=self.eps)
        return normal * (
            self.weight if self.weight.dim() == 1 else self.weight.view(len(x), *[1] * (x.dim() - 2), -1)
        )


def embedding(tokens: Tensor, table: Tensor) -> Tensor:
    """`F.embedding` of tokens [...] in a table [size, width], or of [rows, ...] in [rows, size, width]."""
    if table.dim() == 2:
        return F.embedding(tokens, table)
    rows, size, _ = table.shape
    first = size * torch.arange(rows, device=tokens.device).view(rows, *[1] * (tokens.dim() - 1))
    return F.embedding(tokens + first, table.flatten(0, 1))


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """What each of `tokens` takes of all, or, if `causal`, of those up to it.

    Args:
        query: [batch, heads, tokens, width], or [rows, batch, heads, tokens, width]; so are key and value.
        key: Likewise.
        value: Likewise.
        causal: Whether later tokens are hidden.

    Returns:
        Of query's shape. For one worker it is written out as two products and a softmax, since torch's fused kernel has no
        batching rule on CPUs, so that `torch.func.vmap` would loop over the rows; for many it is that kernel on a GPU, and on a
        CPU, where two products of small matrices in bfloat16 are several times faster, these.
    """
    if query.dim() == 5:
        if query.is_cuda:
            flat = [part.flatten(0, 1) for part in (query, key, value)]
            mixed = F.scaled_dot_product_attention(flat[0], flat[1], flat[2], is_causal=causal)
        else:
            flat = [part.flatten(0, 2) for part in (query, key, value)]
            tokens = query.shape[-2]
            hidden = torch.full((tokens, tokens), -math.inf if causal else 0.0, dtype=query.dtype).triu(1)
            scores = torch.baddbmm(
                hidden.expand(len(flat[0]), -1, -1), flat[0], flat[1].mT, alpha=query.shape[-1] ** -0.5
            )
            mixed = scores.softmax(dim=-1) @ flat[2]
        return mixed.view_as(query)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if causal:
        tokens = query.shape[-2]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(dim=-1) @ value


def mean_cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Mean cross entropy in nats, in float32 whatever the logits are.

    Args:
        logits: [batch, tokens, classes], or [rows, batch, tokens, classes].
        wanted: Classes, int64, of the logits' shape without the last dimension.

    Returns:
        A scalar, or [rows].
    """
    flat, classes = logits.flatten(0, -2).float(), wanted.flatten()
    if logits.dim() == 3:
        return F.cross_entropy(flat, classes)
    return F.cross_entropy(flat, classes, reduction="none").view(len(wanted), -1).mean(1)
