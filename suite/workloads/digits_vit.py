"""`digits-vit`: a small vision transformer on real 8x8 digits. LayerNorm, attention, learned positions."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.workloads.base import Workload
from suite.workloads.digits import CLASSES, EXAMPLES, DigitsTask, digits_task
from suite.workloads.transformer import Block

SIDE, PATCH = 8, 2
PATCHES = (SIDE // PATCH) ** 2
WIDTH, LAYERS, HEADS, HIDDEN = 64, 4, 4, 128


class ViT(nn.Module):
    """`ViT()(images [batch, 64])` gives logits [batch, 10]; with labels [batch], their mean cross entropy.

    The 16 patches of 2x2 pixels are tokens; the class is read off the mean of the last layer's tokens.
    """

    initial_sd = 1.0
    """About as wide as embedded patches: narrow positions are learnt late (0.02: 93.5 %, 1.0: 97.4 % on a seed)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, WIDTH, device="meta")
        self.positions = nn.Parameter(torch.empty(PATCHES, WIDTH, device="meta"))
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS, HIDDEN) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, device="meta")
        self.head = nn.Linear(WIDTH, CLASSES, device="meta")

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        grid = images.reshape(-1, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
        patches = grid.transpose(2, 3).reshape(-1, PATCHES, PATCH * PATCH)
        tokens = self.blocks(self.embed(patches) + self.positions)
        logits: Tensor = self.head(self.norm(tokens).mean(dim=-2))
        return logits if labels is None else F.cross_entropy(logits, labels)


@dataclasses.dataclass(frozen=True)
class DigitsViT(Workload):
    """Cross entropy on digits; accuracy in percent on 540 held-out images, NLL beside it."""

    name = "digits-vit"
    version = 1
    summary = "vision transformer, 4 layers of width 64 (0.14 M parameters), on the same digits"
    metric = "accuracy"
    unit = "points"
    direction = "higher"
    margin = 0.4
    shared_examples = EXAMPLES
    batch_size = 32
    shardings = ("iid", "by-class")

    def build(self) -> nn.Module:
        return ViT()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> DigitsTask:
        return digits_task(self, seed, world_size, sharding, batch_size)
