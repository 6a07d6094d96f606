"""Methods that are one mechanism: under these options two names train to the same bits, or to the last ones."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from reference_impls import SimulatedCluster, info
from reference_impls.algorithms.local_updates import OuterKind
from tests.reference_impls.averages import normal, normals, point
from tests.reference_impls.exchanges import flat, local_workers, train
from tests.reference_impls.local_training import advance, cluster, start
from tests.support import each

SHAPES = ((5, 7), (11,), (12, 10))
ALIGNED = ((8, 8), (16, 8), (11,))
"""Matrices that lie, and send factors, at multiples of 64 bytes: elsewhere some CPUs' products differ in the last bit."""
Shapes = tuple[tuple[int, ...], ...]
STEPS, WORKERS = 12, 4
Given = tuple[str, dict[str, Any]]

NEVER = {"momentum_sync": "never"}
GATHERED, TWO_PHASE = {"form": "gather"}, {"form": "two-phase"}
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
        ("terngrad", GATHERED),
        ("qsgd-maxnorm", {"bits": 1, "scale": "tensor"}),
    ),
    "NUQSGD without blocks is natural dithering": (("nuqsgd", {"block_size": 0}), ("natural-dithering", {})),
    "1-bit Adam is APMSqueeze with a scale a bucket": (
        ("one-bit-adam", {"warmup_steps": 5}),
        ("apmsqueeze", {"warmup_steps": 5, "scale": "shard"}),
    ),
    "L-GreCo between equal ranks is PowerSGD": (
        ("l-greco", {"rank": 2, "min_rank": 2, "max_rank": 2, "min_compression_rate": 0.5}),
        ("powersgd", {"min_compression_rate": 0.5}),
    ),
    **{
        f"{name} sends the same codes with {form}": ((name, {**own, **form}), (name, own))
        for name, own, form in (
            ("terngrad", {}, GATHERED),
            ("terngrad", {}, {"form": "all-reduce"}),
            ("lion-cub-pbit", {**NEVER, "bits": 4}, TWO_PHASE),
            ("global-qsgd", {"norm": "l2"}, TWO_PHASE),
            ("global-qsgd", {"bits": 16}, TWO_PHASE),
            ("global-qsgd", {"bits": 11, "scale": "block", "block_size": 9}, {"sparse": True}),
            ("thc", {"chunk": 64}, {"form": "sum"}),
        )
    },
}


def trained(name: str, options: dict[str, Any], shapes: Shapes = SHAPES) -> Tensor:
    members = SimulatedCluster(name, normals(shapes, 1), WORKERS, lr=0.01, seed=4, **options)
    for step in range(STEPS):
        members.step([normals(shapes, 1000 + 10 * step + rank) for rank in range(WORKERS)])
    return point(members, WORKERS - 1)


@each("what", EQUAL)
def test_two_names_are_one_training_to_the_bit(what: str) -> None:
    one, other = EQUAL[what]
    assert torch.equal(trained(*one), trained(*other))


UNCUT: list[Given] = [
    ("lion-cub-1bit", NEVER),
    ("lion-cub-pbit", NEVER),
    ("ef-signsgd", {}),
    ("global-qsgd", {"scale": "tensor"}),
    ("global-qsgd", {"scale": "tensor", "dithering": "exponential", "form": "tree"}),
    ("powersgd", {"min_compression_rate": 0.5}),
    ("dion", {}),
    ("random-k", {"granularity": "tensor"}),
    ("noloco", {"period": 3}),
    ("pulse-loco", {"period": 2}),
]


@each(("name", "options"), UNCUT)
def test_a_cut_into_buckets_changes_nothing(name: str, options: dict[str, Any]) -> None:
    """Draws count elements of the model, scales and ranks are a tensor's: buckets are only a transport matter."""
    shapes = ALIGNED if name in ("powersgd", "dion") else SHAPES
    cut = {**options, "bucket_bytes": 64}
    assert torch.equal(trained(name, options, shapes), trained(name, cut, shapes))


EXACT = {"compressor": "none"}
BY_ELEMENT: list[Given] = [
    ("allreduce-adamw", {}),
    ("apmsqueeze", {**EXACT, "warmup_steps": 4}),
    (
        "zero-one-adam",
        {**EXACT, "variance_steps": 3, "first_round": 3, "longest_round": 3, "local_growth_steps": 1},
    ),
    ("lion-cub-1bit", NEVER),
    ("distributed-lion-avg", {}),
    ("lion-update-mean", {"dtype": "fp32"}),
]


@each(("name", "options"), BY_ELEMENT)
def test_each_parameter_group_is_trained_as_if_it_were_alone(name: str, options: dict[str, Any]) -> None:
    """With a rate, a decay and betas of its own, and rates that change: the first group's are not those of all."""
    hyper: list[dict[str, Any]] = [
        {"lr": 0.05, "weight_decay": 0.0},
        {"lr": 0.01, "weight_decay": 0.7, "betas": (0.8, 0.95)},
    ]
    groups = [
        {"params": [p], "param_names": [str(i)], **h}
        for i, (p, h) in enumerate(zip(normals(SHAPES[:2], 1), hyper, strict=True))
    ]

    def ends(some: list[dict[str, Any]], first: int) -> Tensor:
        members = local_workers(name, some, 3, **options)
        for step in range(8):
            for worker in members.workers:
                for group, own in zip(worker.optimizer.param_groups, some, strict=True):
                    group["lr"] = own["lr"] / (1 + step)
            train(members, lambda rank, step=step: normal(46, seed=10 * step + rank)[first:])
        return flat(members, 1)

    whole = ends(groups, 0)
    assert torch.equal(whole[:35], ends(groups[:1], 0))
    assert torch.equal(whole[35:], ends(groups[1:], 35))


# ---- local steps, on a problem that is linear in x, in double precision -----------------------------------------------

SGD, BIT, LAST = {"momentum": 0.9}, 0.0, 1e-12
OUTER_STEP = {"outer_lr": 0.7, "outer_momentum": 0.9}
NESTEROV = {"outer": "nesterov", **OUTER_STEP}
PLAIN = {"outer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}
ONE = {"fragments": 1, "overlap": 0, "mixing": 0.0, "outer_lr": 0.7}
LOCAL: list[tuple[str, dict[str, Any], str, dict[str, Any], float]] = [
    # periodic averaging under another outer optimizer
    ("diloco-sgd", SGD, "local-sgd", {**SGD, **NESTEROV}, BIT),
    ("diloco", {}, "local-adamw", NESTEROV, BIT),
    ("diloco-sgd", {**SGD, **PLAIN}, "local-sgd", SGD, BIT),  # federated averaging
    ("muloco", {}, "local-muon", {**NESTEROV, "outer_momentum": 0.6}, BIT),
    ("bmuf", SGD, "local-sgd", {**SGD, "outer": "bmuf", "outer_momentum": 0.875}, BIT),
    ("bmuf-nesterov", SGD, "local-sgd", {**SGD, "outer": "bmuf-nesterov", "outer_momentum": 0.875}, BIT),
    ("bmuf", {"outer_momentum": 0.0}, "local-sgd", {}, LAST),
    ("slowmo-sgd", SGD, "local-sgd", {**SGD, "outer": "slowmo", "outer_momentum": 0.5, "inner_state": "reset"}, BIT),
    ("slowmo-adamw", {}, "local-adamw", {"outer": "slowmo", "outer_momentum": 0.5}, BIT),
    ("slowmo-sgd", {**SGD, "outer_momentum": 0.0, "inner_state": "keep"}, "local-sgd", SGD, LAST),
    ("slowmo-sgd", {"outer_momentum": 0.6}, "bmuf", {"outer_momentum": 0.6}, LAST),  # at constant rates
    *(("local-sgd", {**SGD, "outer": kind}, "local-sgd", SGD, LAST) for kind in get_args(OuterKind)),
    # by another rule
    ("qsr-sgd", {**SGD, "h_base": 4}, "local-sgd", SGD, BIT),
    ("qsr-adamw", {"h_base": 4}, "local-adamw", {}, BIT),
    ("linear-rule", {"alpha": 0.3}, "qsr", {"alpha": 0.3, "power": 1.0}, BIT),
    ("cubic-rule", {"alpha": 0.1}, "qsr", {"alpha": 0.1, "power": 3.0}, BIT),
    ("adacomm", {**SGD, "first_period": 4}, "local-sgd", SGD, BIT),  # before it adapts
    ("post-local-sgd", {**SGD, "switch_step": 0}, "local-sgd", SGD, BIT),
    ("swap", {**SGD, "switch_step": 0}, "local-sgd", {**SGD, "period": 24}, BIT),
    ("control-no-communication", {**SGD}, "local-sgd", {**SGD, "period": 24}, BIT),
    # by parts
    ("des-loc", {"first_every": 1, "second_every": 1}, "local-adamw", {"inner_state": "average"}, BIT),
    ("des-loc", {"first_every": 0, "second_every": 0}, "local-adamw", {}, BIT),
    ("sparta", {"share": 1.0}, "local-adamw", {"period": 1}, LAST),
    # data-parallel training
    ("post-local-sgd", {"optimizer": "adamw", "switch_step": 24}, "allreduce-adamw", {}, BIT),
    ("diloco-sgd", {**PLAIN, "period": 1}, "allreduce-sgd", {}, LAST),
    ("snoo", {"outer_lr": 1.0, "outer_momentum": 0.0}, "allreduce-adamw", {}, LAST),
    ("slowmo-sgd", {"outer_momentum": 0.8, "period": 1}, "allreduce-sgd", {"momentum": 0.8}, LAST),
    ("post-local-sgd", {**SGD, "switch_step": 5, "period": 1}, "allreduce-sgd", {**SGD}, LAST),
    *(
        ("local-sgd", {**hyper, "period": 1}, "allreduce-sgd", {**hyper}, LAST)
        for hyper in (
            {}, SGD, {**SGD, "nesterov": True}, {**SGD, "weight_decay": 0.1},
            {**SGD, "dampening": 0.5, "weight_decay": 0.1},
        )
    ),  # the update is linear in the buffers, which stay local
    # what is sent otherwise
    *(
        (f"streaming-{name}", {**ONE, "carrier": carrier}, name, {"carrier": carrier}, BIT)
        for name in ("diloco", "diloco-sgd") for carrier in ("fp32", "int8", "sign")
    ),
    *(
        ("sparseloco", {"k": 16, "chunk": 16, "value_bits": 32, "outer_lr": lr}, "diloco", {**PLAIN, "outer_lr": lr}, 1e-6)
        for lr in (1.0, 0.7)
    ),  # values travel as float32
]  # fmt: skip

ALONE: list[tuple[str, dict[str, Any], str, dict[str, Any], float]] = [
    *(
        ("snoo", {**OUTER_STEP, "optimizer": optimizer}, other, OUTER_STEP, BIT)
        for optimizer, other in (("adamw", "diloco"), ("sgd", "diloco-sgd"), ("muon", "muloco"))
    ),
    ("eager-diloco", {}, "diloco", {}, BIT),
    ("pulse-loco", {}, "diloco", {}, BIT),
]
"""Of one worker."""


def after_24_steps(name: str, size: int, options: dict[str, Any]) -> SimulatedCluster:
    """Rounds of 4 steps in a training of 24, where nothing else is said and the method takes it."""
    usual = {"period": 4, "total_steps": 24}
    known = {key: value for key, value in usual.items() if key in info(name).options}
    found = cluster(name, size, **{**known, **options})
    for step in range(24):
        found.observe(loss=1.0)
        advance(found, step, step + 1)
    return found


@each(
    ("size", "name", "options", "other", "others", "atol"),
    [(size, *own) for size, some in ((4, LOCAL), (1, ALONE)) for own in some],
)
def test_local_methods_are_one(size, name, options, other, others, atol):
    """24 steps; ``BIT``: to the bit."""
    a, b = after_24_steps(name, size, options), after_24_steps(other, size, others)
    for rank in range(size):
        torch.testing.assert_close(point(a, rank), point(b, rank), rtol=0, atol=atol)
    assert (point(a) - start()).abs().max() > 0.1
