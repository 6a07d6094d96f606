"""Methods that are one mechanism: under these options two names train to the same bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from tests.support import each

SHAPES = ((5, 7), (11,), (12, 10))
STEPS, WORKERS = 24, 4
Given = tuple[str, dict[str, Any]]

NEVER = {"momentum_sync": "never"}
EQUAL: dict[str, tuple[Given, Given]] = {
    "1-bit Lion Cub without synchronisation is majority-vote Lion": (
        ("lion-cub-1bit", NEVER),
        ("distributed-lion-mavo", {}),
    ),
    "Signum is Lion by majority with equal betas": (
        ("signum", {"momentum": 0.8}),
        ("distributed-lion-mavo", {"betas": (0.8, 0.8)}),
    ),
    "signSGD is Lion by majority without memory": (
        ("signsgd", {}),
        ("distributed-lion-mavo", {"betas": (0.0, 0.0)}),
    ),
    "D-Signum is Lion by average with equal betas": (
        ("signum", {"vote": "average", "momentum": 0.8}),
        ("distributed-lion-avg", {"betas": (0.8, 0.8)}),
    ),
    "TernGrad is Global-QSGD at one level": (
        ("terngrad", {"form": "all-reduce", "scale": "bucket"}),
        ("global-qsgd", {"bits": 4}),
    ),
    "QSGD-MaxNorm is Global-QSGD at equal levels": (
        ("qsgd-maxnorm", {"bits": 1, "form": "all-reduce"}),
        ("global-qsgd", {"bits": 4}),
    ),
    "TernGrad is QSGD-MaxNorm at one level, in any transport": (
        ("terngrad", {"form": "gather-base3"}),
        ("qsgd-maxnorm", {"bits": 1, "scale": "tensor"}),
    ),
    "NUQSGD without blocks is natural dithering": (("nuqsgd", {"block_size": 0}), ("natural-dithering", {})),
    "1-bit Adam is APMSqueeze with a scale a shard": (
        ("one-bit-adam", {"warmup_steps": 5}),
        ("apmsqueeze", {"warmup_steps": 5, "scale": "shard"}),
    ),
    "L-GreCo between equal ranks is PowerSGD": (
        ("l-greco", {"rank": 2, "min_rank": 2, "max_rank": 2, "min_compression_rate": 0.5}),
        ("powersgd", {"min_compression_rate": 0.5}),
    ),
}


def trained(name: str, options: dict[str, Any]) -> list[Tensor]:
    start = torch.Generator().manual_seed(1)
    members = SimulatedCluster(
        name, [torch.randn(s, generator=start) for s in SHAPES], WORKERS, lr=0.01, seed=4, **options
    )
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 + step)
        members.step([[torch.randn(s, generator=generator) for s in SHAPES] for _ in range(WORKERS)])
    return members.parameters(WORKERS - 1)


@each("what", EQUAL)
def test_two_names_are_one_training_to_the_bit(what: str) -> None:
    one, other = EQUAL[what]
    for ours, theirs in zip(trained(*one), trained(*other), strict=True):
        assert torch.equal(ours, theirs)
