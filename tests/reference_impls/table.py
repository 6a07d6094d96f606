"""The literal table of methods: every property test runs over it. Adding a method means adding a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pytest

from reference_impls.core.catalogue import BUILT_IN

Local = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One configured method and what is claimed of it.

    exact: simulated and gloo runs agree to the bit (every floating-point sum is replaced by integers, votes,
    gathers or exchanges); otherwise all but a share `flips` of the elements agree to `close` (a sign may flip where
    floating-point sums in another order end on the other side of zero). largest: world size up to which the options
    work. replicas: when parameters are equal on all ranks (after every step, after steps of kind `average`, at the end of
    `STEPS` alone, never).
    plain: local optimizer (name, hyper-parameters) that n = 1 must equal to the bit, None where one worker is not a
    plain optimizer. deaf: why one value that is not finite, on one rank, need not make all ranks' parameters not finite
    when they next agree; empty where it does.
    """

    id: str
    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)
    exact: bool = False
    close: float = 1e-5
    flips: float = 0.0
    largest: int = 8
    replicas: Literal["step", "average", "end", "never"] = "step"
    plain: Local | None = None
    deaf: str = ""


CLAIMS = {one.name for one in fields(Row)}


def row(id: str, plain: Local | None = None, **said: Any) -> Row:
    """Of the method with the longest name that the id begins with; what is no field of a row is an option of it."""
    name = max((name for name in BUILT_IN if f"{id}-".startswith(f"{name}-")), key=len)
    claims = {key: said.pop(key) for key in CLAIMS & set(said)}
    return Row(id, name, said, plain=plain, **claims)


def rounds(id: str, plain: Local | None = None, **said: Any) -> Row:
    """Replicas are equal after every average, and the last one ends the training."""
    return row(id, plain, **{"replicas": "average", **said, "total_steps": STEPS})


STEPS = 14  # every row's options are chosen so that each of its kinds of step occurs within these
SGD: Local = ("sgd", {"momentum": 0.9})
PLAIN: Local = ("sgd", {})
ADAMW: Local = ("adamw", {})
LION: Local = ("lion", {})
MUON: Local = ("muon", {})
DION2: Local = ("dion2", {})
PERIOD: dict[str, Any] = {"period": 4, "momentum": 0.9}
SMALL: dict[str, Any] = {"ratio": 0.1, "column_ratio": 0.3}  # the models of the tests are small
ZERO_ONE: dict[str, Any] = {
    "variance_steps": 6,
    "refreshes_per_gap": 2,
    "local_growth_steps": 2,
    "longest_round": 3,
}

ROWS: tuple[Row, ...] = (
    row("allreduce-sgd", SGD, momentum=0.9),
    row("allreduce-adamw", ADAMW),
    row("allreduce-bf16", SGD, momentum=0.9, close=0.01),
    row("allreduce-bf16-two-phase", PLAIN, form="two-phase", exact=True),
    row("allreduce-fp16", ADAMW, optimizer="adamw", close=0.01),
    row("allreduce-fp16-two-phase", PLAIN, form="two-phase", exact=True),
    row("allreduce-lion", ("lion", {"weight_decay": 0.1}), weight_decay=0.1, flips=0.05),
    row("allreduce-muon", MUON),
    row("allreduce-muon-original", adamw_for=["second"], adjust_lr_fn="original"),
    row("allreduce-dion2", DION2),
    row("allreduce-dion2-all", adamw_for=["second"], submatrix_fraction=1.0, ef_decay=0.8),
    row("snoo", period=4),
    row("snoo-muon", optimizer="muon", period=3, outer_momentum=0.0),
    row("lion-sign-sum", LION, exact=True),
    row("lion-sign-sum-fp32", LION, exact=True),
    row("lion-sign-gather", LION, exact=True),
    row("lion-update-mean", LION, flips=0.2),
    row(
        "lion-update-mean-synchronised",
        LION,
        dtype="fp32",
        momentum_sync="periodic",
        sync_every=5,
        flips=0.05,
    ),
    row("ef-sign-adam", ADAMW, exact=True),
    row("ef-sign-adam-warm-up", warmup_steps=4, close=0.001),
    row("lion-cub-1bit", LION, momentum_sync="never", exact=True),
    row("lion-cub-1bit-periodic", LION, sync_every=5, flips=0.05),
    row("lion-cub-1bit-doubling", LION, momentum_sync="doubling", flips=0.05),
    row(
        "lion-cub-1bit-selective",
        LION,
        momentum_sync="selective",
        sync_every=3,
        sync_measure_every=7,
        sync_fraction=0.3,
        flips=0.05,
    ),
    row("lion-cub-pbit-l1", exact=True),
    row("lion-cub-pbit-l0", scale="l0", exact=True),
    row("lion-cub-pbit-linf", scale="linf", exact=True),
    row("lion-cub-pbit-4", bits=4, exact=True, largest=7),
    row("lion-cub-pbit-16", bits=16, exact=True),
    row("lion-cub-pbit-periodic", momentum_sync="periodic", sync_every=4, flips=0.05),
    row("lion-cub-pbit-two-phase-stochastic", form="two-phase", bits=6, scale="l2-stochastic", exact=True),
    row(
        "lion-cub-pbit-two-phase-code",
        form="two-phase",
        levels="code",
        bits=5,
        scale="linf",
        shared_scale=True,
        exact=True,
    ),
    row("distributed-lion-mavo", LION, exact=True),
    row("distributed-lion-avg", LION, exact=True),
    row("distributed-lion-avg-int8", transport="int8-sum", exact=True),
    row("ef-signsgd", SGD, momentum=0.9, exact=True),
    row("ef-signsgd-bucket", PLAIN, granularity="bucket", exact=True),
    row("ef-signsgd-two-phase-l2", form="two-phase", granularity="bucket", norm="l2", exact=True),
    row("ef-signsgd-warm-up", warmup_steps=3, optimizer="adamw", close=0.001),
    row("signsgd", weight_decay=0.1, exact=True),
    row("signsgd-average", vote="average", transport="int8-sum", zero_policy="zero", exact=True),
    row("signum", momentum=0.8, exact=True),
    row("signum-average", vote="average", local_clip_norm=0.5, exact=True),
    row("global-qsgd-standard", momentum=0.9, exact=True),
    row("global-qsgd-standard-16", bits=16, exact=True),
    row("global-qsgd-standard-l2", norm="l2"),
    row("global-qsgd-tree", dithering="exponential", form="tree", exact=True),
    row("global-qsgd-sparse", sparse=True, bits=5, scale="tensor", exact=True),
    row("global-qsgd-two-phase-11", bits=11, scale="block", block_size=16, exact=True),
    row("global-qsgd-halving", dithering="exponential", norm="l2"),
    row("qsgd", SGD, momentum=0.9, exact=True),
    row("qsgd-8-linf-two-phase", PLAIN, bits=8, norm="linf", block_size=16, form="two-phase", exact=True),
    row(
        "qsgd-ternary-large-tensors",
        ADAMW,
        levels=1,
        block_size=32,
        smallest=20,
        optimizer="adamw",
        close=0.001,
    ),
    row("qsgd-16-tensor", bits=16, granularity="tensor", block_size=0, exact=True),
    row("qsgd-published", PLAIN, exact=True),
    row("qsgd-maxnorm", exact=True),
    row("qsgd-maxnorm-all-reduce", bits=6, form="all-reduce", exact=True),
    row("qsgd-maxnorm-two-grids", bits=2, fine_bits=5, scale="tensor", exact=True),
    row("terngrad", momentum=0.9, exact=True),
    row("terngrad-all-reduce", form="all-reduce", scale="bucket", exact=True),
    row("terngrad-gather", form="gather", optimizer="adamw", exact=True),
    row("terngrad-clipped", clip=1.0, exact=True),
    row("natural-compression", SGD, momentum=0.9, exact=True),
    row("natural-compression-gather", form="gather", exact=True),
    row("natural-dithering", norm="linf", bits=3, exact=True),
    row("nuqsgd", block_size=32, exact=True),
    row("nuqsgd-two-phase", form="two-phase", warmup_steps=2, close=0.001),
    row("cgx", SGD, smallest=20, momentum=0.9),
    row("cgx-everything", smallest=0, block_size=16, bits=8, exact=True),
    row(
        "cgx-nearest-gather",
        smallest=0,
        rounding="nearest",
        form="gather",
        bits=2,
        error_feedback=True,
        exact=True,
    ),
    row("cgx-small"),
    row("intsgd", momentum=0.9, close=0.001),
    row("intsgd-nearest", rounding="nearest", bits=16, warmup_steps=3, close=0.001),
    row("intsgd-from-the-start", warmup_steps=0, exact=True),
    row("intsgd-heuristic", scale="bucket", exact=True),
    row("powersgd", SGD, momentum=0.9, close=0.001),
    row("powersgd-rank-1", PLAIN, rank=1, close=0.001),
    row("powersgd-all", rank=4, min_compression_rate=0.0, optimizer="adamw", close=0.001),
    row("powersgd-cold", warm_start=False, error_feedback=False, close=0.001),
    row("powersgd-warm-up", warmup_steps=3, close=0.001),
    row(
        "dq-sgd", SGD, momentum=0.9, calibration_steps=3, target_bits=4.1, min_bits=4, max_bits=5, exact=True
    ),
    row(
        "dq-sgd-convex",
        rule="convex",
        contraction=0.7,
        total_steps=STEPS,
        factor=60.0,
        min_bits=2,
        max_bits=5,
        exact=True,
    ),
    row("adaqs", SGD, momentum=0.9, interval=2, fall=1.02, decay=0.4, min_bits=3, max_bits=4, exact=True),
    row("adaqs-warm-up", warmup_steps=3, min_bits=4, max_bits=4, optimizer="adamw"),
    row("thc", SGD, momentum=0.9, exact=True),
    row("thc-sum", form="sum", chunk=16, error_feedback=False, exact=True),
    row("thc-uniform", table="uniform", overflow=0.0002, chunk=64, optimizer="adamw", exact=True),
    row("dynamiq", SGD, momentum=0.9, exact=True),
    row("dynamiq-independent-3", bits=3.0, rounding="independent", optimizer="adamw", exact=True),
    row("sdp4bit", SGD, momentum=0.9, exact=True),
    row(
        "sdp4bit-clipped", optimizer="adamw", max_grad_norm=0.5, rotation=1, weight_block_size=16, close=0.001
    ),
    row("sdp4bit-stochastic", ADAMW, optimizer="adamw", rounding="stochastic", exact=True),
    row("sdp4bit-gradients", SGD, momentum=0.9, exact=True),
    row("sdp4bit-gradients-stochastic", PLAIN, rounding="stochastic", rotation=8, block_size=16, exact=True),
    row("loco", SGD, momentum=0.9, exact=True),
    row("loco-reset", ADAMW, beta=1.0, reset_every=5, block_size=0, optimizer="adamw", exact=True),
    row(
        "l-greco",
        SGD,
        momentum=0.9,
        rank=2,
        max_rank=4,
        choose_every=4,
        min_compression_rate=0.5,
        close=0.001,
    ),
    row(
        "l-greco-warm-up",
        rank=1,
        max_rank=3,
        choose_every=5,
        warmup_steps=3,
        min_compression_rate=0.5,
        slack=2.0,
        close=0.001,
    ),
    row("top-k", SGD, ratio=0.1, momentum=0.9, exact=True),
    row("top-k-tensor", ratio=0.2, granularity="tensor", exact=True),
    row("top-k-two-phase", ratio=0.2, form="two-phase", exact=True),
    row("top-k-all", PLAIN, ratio=1.0, error_feedback=False, exact=True),
    row("random-k", SGD, ratio=0.3, momentum=0.9),
    row("random-k-feedback", PLAIN, ratio=0.1, error_feedback=True),
    row("random-k-tensor", ratio=0.3, granularity="tensor"),
    row("gtop-k", SGD, ratio=0.1, momentum=0.9, exact=True),
    row("gtop-k-doubling", ratio=0.2, form="doubling", exact=True),
    row("gtop-k-mask", ratio=0.1, put_back="mask", exact=True),
    row("dgc", SGD, ratio=0.1, momentum=0.9, exact=True),
    row("dgc-model-clip", ratio=0.1, granularity="model", local_clip=1.0, exact=True),
    row("dgc-warm-up", ratio=0.05, warmup_steps=6, warmup_stages=2, nesterov=True, momentum=0.9, exact=True),
    row("sketched-sgd", **SMALL, flips=0.1),
    row("sketched-sgd-all", **SMALL, dense_vectors=False, momentum=0.5, flips=0.1),
    row("sketched-sgd-theory", **SMALL, flips=0.1),
    row("gs-sgd", **SMALL, exact=True),
    row("gs-sgd-tree", **SMALL, form="tree", dense_vectors=False, exact=True),
    row("apmsqueeze", warmup_steps=6, close=0.001),
    row("apmsqueeze-shard-l1", warmup_steps=6, scale="shard", norm="l1", close=0.001),
    row("apmsqueeze-from-the-start", warmup_steps=0, initial_variance=1.0, exact=True),
    row("apmsqueeze-clipped", warmup_steps=6, max_grad_norm=0.5, close=0.001),
    row("apmsqueeze-exact", warmup_steps=6, compressor="none", close=0.001),
    row("apmsqueeze-prototype", warmup_steps=0, weight_decay=0.1, exact=True),
    row("one-bit-adam", total_steps=STEPS, warmup_fraction=0.4, close=0.001),
    row("one-bit-adam-auto", freeze="auto", auto_window=3, auto_ratio=0.3, close=0.001),
    row("one-bit-adam-deepspeed", warmup_steps=6, weight_decay=0.1, close=0.001),
    rounds("zero-one-adam", **ZERO_ONE, close=0.001),
    row(
        "zero-one-adam-exact",
        **ZERO_ONE,
        total_steps=None,
        compressor="none",
        weight_decay=0.1,
        close=0.001,
        replicas="average",
    ),
    row("one-bit-lamb", warmup_steps=6, close=0.001),
    row("one-bit-lamb-decay-l1", warmup_steps=6, weight_decay=0.1, norm="l1", close=0.001),
    rounds("local-sgd", SGD, **PERIOD),
    rounds("local-adamw", ADAMW, period=3),
    rounds("local-muon", MUON, period=3, inner_state="average"),
    rounds("qsr-sgd", SGD, alpha=0.03, h_base=2, momentum=0.9),
    rounds("qsr-adamw", ADAMW, alpha=0.03, h_base=2),
    row("lag", momentum=0.9),
    row("lag-short-memory", xi=0.5, depth=2, optimizer="adamw", close=0.0001),
    rounds("linear-rule", SGD, alpha=0.05, h_base=2, momentum=0.9),
    rounds("cubic-rule", ADAMW, alpha=0.03, h_base=2, optimizer="adamw"),
    rounds("post-local-sgd", SGD, switch_step=5, period=4, momentum=0.9),
    rounds("swap", ADAMW, switch_step=12, switch_accuracy=0.8, optimizer="adamw"),
    rounds("adacomm", SGD, first_period=4, adapt_every=4, momentum=0.9),
    rounds("adacomm-paddle", first_period=4, adapt_every=2, form="paddle"),
    rounds("local-sgd-bf16", SGD, **PERIOD, carrier="bf16", close=0.001),
    rounds("local-sgd-int4", SGD, **PERIOD, carrier="int4", exact=True, close=0.001, largest=7),
    rounds("local-sgd-sign", SGD, **PERIOD, carrier="sign", exact=True, close=0.001),
    rounds("qsr-adamw-int4", ADAMW, alpha=0.03, h_base=2, carrier="int4", exact=True, largest=7),
    rounds("local-adamw-average-states", ADAMW, period=3, inner_state="average"),
    rounds("slowmo-sgd", **PERIOD),
    rounds("slowmo-sgd-sgp", base="sgp", period=5, momentum=0.9),
    rounds("slowmo-sgd-osgp", base="osgp", overlap=2, period=5, momentum=0.9),
    rounds("slowmo-sgd-no-average", **PERIOD, base="sgp", average=False, exact=True, replicas="never"),
    rounds("slowmo-adamw", period=4),
    rounds(
        "slowmo-adamw-osgp-no-average", period=4, base="osgp", average=False, exact=True, replicas="never"
    ),
    rounds("bmuf", period=4, outer_momentum=0.5),
    rounds("bmuf-nesterov", period=3),
    rounds("diloco", period=5),
    rounds("diloco-int4", period=5, carrier="int4", exact=True, largest=7),
    rounds("diloco-sgd", period=4, carrier="int8", exact=True),
    rounds("muloco", period=4),
    rounds("muloco-4bit", period=4, exact=True),
    rounds("muloco-4bit-linear", period=4, levels="linear", exact=True),
    rounds("muloco-2bit", period=3, exact=True),
    rounds("des-loc", ADAMW, period=7, first_every=2, second_every=1),
    rounds("des-loc-muon", optimizer="muon", period=2, first_every=7, second_every=0),
    rounds("sparta", ADAMW, share=0.2, replicas="end"),
    rounds("sparta-diloco", share=0.1, period=5),
    rounds("eager-diloco", period=4, replicas="end"),
    rounds("eager-diloco-bf16", period=3, carrier="bf16", close=0.001, replicas="end"),
    rounds("diloco-lion", period=4, carrier="sign", outer_momentum=0.5, exact=True),
    rounds("streaming-diloco", period=6, fragments=3, carrier="e3m0", exact=True, replicas="end"),
    rounds(
        "streaming-diloco-sequential",
        period=4,
        fragments=2,
        pattern="sequential",
        overlap=3,
        carrier="bf16",
        close=0.001,
        replicas="end",
    ),
    rounds(
        "streaming-diloco-sgd",
        period=4,
        fragments=2,
        overlap=0,
        mixing=0.0,
        carrier="int8",
        exact=True,
        replicas="end",
    ),
    rounds("sparseloco", ADAMW, period=4, k=8, chunk=32, exact=True),
    rounds("sparseloco-sgd", period=3, k=4, chunk=16, value_bits=32, outer_lr=0.7, exact=True),
    rounds("pulse-loco", period=4, exact=True),
    rounds("pulse-loco-average", ADAMW, period=3, outer="sgd", outer_lr=1.0, outer_momentum=0.0, exact=True),
    rounds("noloco", period=3, exact=True, replicas="never"),
    rounds("noloco-sgd", **PERIOD, exact=True, replicas="never"),
    row("demo", side=8, k=4, flips=0.02),
    row("dion", close=0.001),
    row("dion-rank-1", rank_fraction=0.1, adamw_for=["second"], weight_decay=0.1, close=0.001),
    row("dion-full-rank", rank_fraction=1.0, momentum=0.8, close=0.001),
    row("root-sgd", burn_in=4),
    row("root-sgd-inverse", burn_in=2, step_size="inverse", slope=0.1, exponent=1.0, weight_decay=0.1),
    row("control-no-communication", PLAIN, total_steps=STEPS, replicas="average"),
    row(
        "control-one-worker",
        PLAIN,
        total_steps=STEPS,
        exact=True,
        replicas="average",
        deaf="what the other workers learn is thrown away",
    ),
    row("control-random-k", fraction=0.1, deaf="a coordinate that is not drawn is dropped, whatever it is"),
    row("control-one-rank-sign", LION, exact=True, deaf="what the other ranks have is not listened to"),
)
"""By family: baselines, signs, quantisers, sparsifiers, frozen variances, local steps and LAG, variance reduction, controls."""

FIRST: tuple[Row, ...] = tuple({one.algorithm: one for one in reversed(ROWS)}.values())[::-1]
"""One row a method: what the fast tests look at, and tests of what lies below the methods."""

A_CLASS: tuple[Row, ...] = tuple({BUILT_IN[one.algorithm].target: one for one in reversed(FIRST)}.values())[
    ::-1
]
"""One row a class: names of one class differ in presets, whose trajectories are frozen."""

_SOME = (
    "allreduce-sgd",
    "allreduce-adamw",
    "lion-cub-1bit",
    "global-qsgd-standard",
    "powersgd",
    "top-k",
    "dgc",
    "apmsqueeze",
    "zero-one-adam",
    "local-sgd",
    "slowmo-sgd",
    "diloco",
    "streaming-diloco",
    "noloco",
    "root-sgd",
    "control-one-rank-sign",
)
SOME: tuple[Row, ...] = tuple(one for one in FIRST if one.id in _SOME)
"""Methods of every family: what the fast tests look at where drivers decide, or where a look takes long."""

OVER_GLOO: tuple[str, ...] = (
    "allreduce-bf16",
    "allreduce-fp16",
    "control-one-rank-sign",
    "dgc-warm-up",
    "dq-sgd-convex",
    "ef-sign-adam",
    "global-qsgd-halving",
    "global-qsgd-sparse",
    "lion-cub-1bit-selective",
    "noloco",
    "powersgd-warm-up",
    "root-sgd",
    "streaming-diloco-sgd",
    "zero-one-adam",
)
"""Rows that together ask real processes for all that any row asks them for: each collective on each group with each
operation and type of numbers, each kind of step, each way of averaging, what is pending over steps."""


def tiered(rows: Iterable[Row] = ROWS, fast: Sequence[Row] = FIRST) -> list[Any]:
    """Rows as parameters of a test, those that are not among `fast` in the full tests alone."""
    return [pytest.param(one, id=one.id, marks=() if one in fast else pytest.mark.full) for one in rows]
