"""The literal table of methods: every property test runs over it. Adding a method means adding a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Row:
    """One configured method and what is claimed of it.

    exact: simulated and gloo runs agree to the bit (every floating-point sum is replaced by integers, votes,
    gathers or exchanges); otherwise all but a share `flips` of the elements agree to `close` (a sign may flip where
    floating-point sums in another order end on the other side of zero). largest: world size up to which the options
    work. replicas: when parameters are equal on all ranks (after every step, or after steps of kind `average`).
    plain: local optimizer (name, hyper-parameters) that n = 1 must equal to the bit, None where one worker is not a
    plain optimizer.
    """

    id: str
    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)
    exact: bool = False
    close: float = 1e-5
    flips: float = 0.0
    largest: int = 8
    replicas: Literal["step", "average"] = "step"
    plain: tuple[str, dict[str, Any]] | None = None


STEPS = 14  # every row's options are chosen so that each of its kinds of step occurs within these

SGD = ("sgd", {"momentum": 0.9})
ROWS = (
    Row("allreduce-sgd", "allreduce-sgd", {"momentum": 0.9}, plain=SGD),
    Row("allreduce-adamw", "allreduce-adamw", plain=("adamw", {})),
    Row(
        "allreduce-lion",
        "allreduce-lion",
        {"weight_decay": 0.1},
        flips=0.05,
        plain=("lion", {"weight_decay": 0.1}),
    ),
    Row(
        "local-sgd",
        "local-sgd",
        {"period": 4, "momentum": 0.9, "total_steps": STEPS},
        replicas="average",
        plain=SGD,
    ),
    Row(
        "local-adamw",
        "local-adamw",
        {"period": 3, "total_steps": STEPS},
        replicas="average",
        plain=("adamw", {}),
    ),
    Row(
        "qsr-sgd",
        "qsr-sgd",
        {"alpha": 0.03, "h_base": 2, "momentum": 0.9, "total_steps": STEPS},
        replicas="average",
        plain=SGD,
    ),
    Row(
        "qsr-adamw",
        "qsr-adamw",
        {"alpha": 0.03, "h_base": 2, "total_steps": STEPS},
        replicas="average",
        plain=("adamw", {}),
    ),
    Row("lion-cub-1bit", "lion-cub-1bit", {"momentum_sync": "never"}, exact=True, plain=("lion", {})),
    Row(
        "lion-cub-1bit-ties-zero",
        "lion-cub-1bit",
        {"momentum_sync": "never", "tie_policy": "zero"},
        exact=True,
        plain=("lion", {}),
    ),
    Row(
        "lion-cub-1bit-hash",
        "lion-cub-1bit",
        {"momentum_sync": "never", "tie_policy": "hash"},
        exact=True,
        plain=("lion", {}),
    ),
    Row("lion-cub-1bit-periodic", "lion-cub-1bit", {"sync_every": 5}, flips=0.05, plain=("lion", {})),
    Row(
        "lion-cub-1bit-doubling",
        "lion-cub-1bit",
        {"momentum_sync": "doubling"},
        flips=0.05,
        plain=("lion", {}),
    ),
    Row(
        "lion-cub-1bit-selective",
        "lion-cub-1bit",
        {"momentum_sync": "selective", "sync_every": 3, "sync_measure_every": 7, "sync_fraction": 0.3},
        flips=0.05,
        plain=("lion", {}),
    ),
    Row("lion-cub-1bit-bf16-sync", "lion-cub-1bit", {"sync_every": 5, "sync_dtype": "bf16"}, flips=0.1),
    Row("lion-cub-pbit-l1", "lion-cub-pbit", exact=True),
    Row("lion-cub-pbit-l0", "lion-cub-pbit", {"scale": "l0"}, exact=True),
    Row("lion-cub-pbit-linf", "lion-cub-pbit", {"scale": "linf"}, exact=True),
    Row("lion-cub-pbit-4", "lion-cub-pbit", {"bits": 4}, exact=True, largest=7),
    Row("lion-cub-pbit-16", "lion-cub-pbit", {"bits": 16}, exact=True),
    Row(
        "lion-cub-pbit-periodic", "lion-cub-pbit", {"momentum_sync": "periodic", "sync_every": 4}, flips=0.05
    ),
    Row("global-qsgd-standard", "global-qsgd", {"momentum": 0.9}, exact=True),
    Row("global-qsgd-standard-16", "global-qsgd", {"bits": 16}, exact=True),
    Row("global-qsgd-standard-l2", "global-qsgd", {"norm": "l2"}),
    Row("global-qsgd-tree", "global-qsgd", {"dithering": "exponential", "form": "tree"}, exact=True),
    Row("apmsqueeze", "apmsqueeze", {"warmup_steps": 6}, close=1e-3),
    Row("apmsqueeze-shard-l1", "apmsqueeze", {"warmup_steps": 6, "scale": "shard", "norm": "l1"}, close=1e-3),
    Row("apmsqueeze-from-the-start", "apmsqueeze", {"warmup_steps": 0, "initial_variance": 1.0}, exact=True),
    Row(
        "apmsqueeze-gradient",
        "apmsqueeze",
        {"warmup_steps": 6, "compress": "gradient", "bias_correction": True},
        close=1e-3,
    ),
    Row(
        "control-no-communication",
        "control-no-communication",
        {"total_steps": STEPS},
        replicas="average",
        plain=("sgd", {}),
    ),
    Row(
        "control-one-worker",
        "control-one-worker",
        {"total_steps": STEPS},
        exact=True,
        replicas="average",
        plain=("sgd", {}),
    ),
    Row("control-random-k", "control-random-k", {"fraction": 0.1}),
    Row("control-one-rank-sign", "control-one-rank-sign", exact=True, plain=("lion", {})),
)
