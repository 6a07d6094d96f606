"""`digits-mlp`: a 64-512-512-10 ReLU network (301,066 parameters) on real 8x8 digits. The fast default
workload.
"""

from __future__ import annotations

import dataclasses

import torch.nn.functional as F
from torch import Tensor, nn

from suite.workloads.base import Workload
from suite.workloads.digits import CLASSES, EXAMPLES, PIXELS, DigitsTask, digits_task

WIDTH = 512


class MLP(nn.Sequential):
    """`MLP()(images [..., 64])` gives logits [..., 10]; `MLP()(images, labels)` gives their mean cross
    entropy.
    """

    def __init__(self) -> None:
        layers = [
            nn.Linear(PIXELS, WIDTH, device="meta"),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH, device="meta"),
            nn.ReLU(),
            nn.Linear(WIDTH, CLASSES, device="meta"),
        ]
        super().__init__(*layers)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = images
        for layer in self:
            logits = layer(logits)
        return logits if labels is None else F.cross_entropy(logits, labels)


@dataclasses.dataclass(frozen=True)
class DigitsMLP(Workload):
    """Cross entropy on digits; accuracy in percent on 540 held-out images, NLL beside it."""

    name = "digits-mlp"
    version = 1
    summary = "64-512-512-10 ReLU network (0.30 M parameters) on scikit-learn's real 8x8 digits"
    metric = "accuracy"
    unit = "points"
    direction = "higher"
    margin = 0.3  # less than half of what the weakest control lost i.i.d.: 0.74 points [0.20, 1.28], n = 12 (digits)
    shared_examples = EXAMPLES
    batch_size = 32
    shardings = ("iid", "by-class")

    def build(self) -> nn.Module:
        return MLP()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> DigitsTask:
        return digits_task(self, seed, world_size, sharding, batch_size)
