"""Checks that compute a claim's number from the implementations, the schedules and the codecs: no training, no clock.

A check is a function of keyword arguments, the conditions that the claim names, and answers numbers by name. It never sees
the claim's thresholds, so it cannot answer what is wanted of it. What a method was written to do (its bits, its special cases)
no check can contradict: unit tests hold it, and `docs/claim-studies.md` names them.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls import SimulatedCluster, wire
from reference_impls.algorithm import Clock, Cost
from reference_impls.codecs import dithering
from reference_impls.codecs import exponential as powers
from reference_impls.codecs.natural import Natural
from reference_impls.collectives import Group
from reference_impls.registry import create
from reference_impls.schedules import QSR, LearningRate, sync_steps

# ---- bounds that papers prove, held against what codecs and methods do, and papers' own models with the papers' settings


def qsgd_lemma(*, dims: list[int], levels: list[int], vectors: int = 8, draws: int = 256) -> dict[str, float]:
    """QSGD's lemma 3.1 under 2-norms: worst of variance over min(d/s^2, sqrt(d)/s) |v|^2, and of expected non-zeros over
    s (s + sqrt(d)). Both are at most 1. Expectations are exact to 1 / `draws` of a probability; vectors have heavy tails."""
    source, variance, nonzeros = torch.Generator().manual_seed(0), 0.0, 0.0
    grid = (torch.arange(draws) + 0.5) / draws
    for d in dims:
        for s in levels:
            for _ in range(vectors):
                normal = torch.randn(2, d, generator=source)
                v = normal[0] * torch.exp(normal[1])
                norm = v.norm()
                codes = dithering.rounded(v[:, None], norm, s, grid).double()
                values = codes * float(norm) / s
                error = float((values - v[:, None].double()).square().mean(1).sum())
                variance = max(variance, error / (min(d / s**2, math.sqrt(d) / s) * float(norm) ** 2))
                nonzeros = max(
                    nonzeros, float((codes != 0).double().mean(1).sum()) / (s * (s + math.sqrt(d)))
                )
    return {"variance_over_bound": variance, "nonzeros_over_bound": nonzeros}


def error_by_workers(
    *, algorithm: str, sizes: list[int], options: dict[str, Any] | None = None, d: int = 4000
) -> dict[str, float]:
    """Squared error of one exchange of identical normal gradients over their squared norm: least and most over n. Of independent
    codes it falls as 1 / n."""
    x = torch.randn(d, generator=torch.Generator().manual_seed(0))
    found = []
    for n in sizes:
        cluster = SimulatedCluster(algorithm, [torch.zeros(d)], n, lr=1.0, **(options or {}))
        cluster.step([[x]] * n)
        error = cluster.parameters(0)[0] + x
        found.append(float(error.square().sum() / x.square().sum()))
    return {"least": min(found), "most": max(found)}


def error_ratio(
    *, of: dict[str, Any], over: dict[str, Any], n: int, d: int = 4000, draws: int = 8
) -> dict[str, float]:
    """Squared error of the mean of one method over that of another, each given by algorithm and options, on normal gradients
    that differ between workers; of the sums over `draws` seeds."""
    return {"ratio": _error(of, n, d, draws) / _error(over, n, d, draws)}


def _error(method: dict[str, Any], n: int, d: int, draws: int) -> float:
    total = 0.0
    for seed in range(draws):
        x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
        options = method.get("options", {})
        cluster = SimulatedCluster(method["algorithm"], [torch.zeros(d)], n, lr=1.0, seed=seed, **options)
        cluster.step([[row] for row in x])
        total += float((cluster.parameters(0)[0] + x.mean(0)).square().sum())
    return total


def equal_levels(*, workers: list[int], d: int = 4000, levels: int = 1) -> dict[str, float]:
    """Global-QSGD against QSGD at equal levels under 2-norms, workers' vectors of equal norm on average: expected non-zeros a
    worker of QSGD over Global-QSGD's, and variance of the mean the other way round, each over sqrt(n), least and most."""
    source, fewer, worse = torch.Generator().manual_seed(0), [], []
    for n in workers:
        x = torch.randn(n, d, generator=source).double().abs()
        own, shared = x / x.norm(dim=1, keepdim=True) * levels, x / x.norm() * levels
        fewer.append(float(own.clamp(max=1).sum() / shared.clamp(max=1).sum()) / math.sqrt(n))

        def variance(z: torch.Tensor, scale: torch.Tensor) -> float:
            part = z - z.floor()
            return float((part * (1 - part) * scale**2).sum())

        worse.append(variance(shared, x.norm()) / variance(own, x.norm(dim=1, keepdim=True)) / math.sqrt(n))
    return {
        "least_fewer_over_root": min(fewer),
        "most_fewer_over_root": max(fewer),
        "least_worse_over_root": min(worse),
        "most_worse_over_root": max(worse),
    }


def last_iterate(
    *, runs: int = 400, steps: int = 2000, burn_in: int = 40, rate: float = 0.25
) -> dict[str, float]:
    """ROOT-SGD on a quadratic: T Cov(theta_T) over A^-1 A^-1, least and most of five coordinates;
    noise of covariance 1, curvatures 0.5 to 2.

    The runs are the rows of one parameter: nothing mixes them.
    """
    curvature = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    own = SimulatedCluster(
        "root-sgd", [torch.zeros(runs, 5, dtype=torch.float64)], 1, lr=rate, burn_in=burn_in
    )
    source = torch.Generator().manual_seed(11)
    for _ in range(steps):
        noise = torch.randn(runs, 5, generator=source, dtype=torch.float64)
        probes = {p: [[own.probe_parameters(0, p)[0] * curvature + noise]] for p in own.probes}
        own.step([[own.parameters(0)[0] * curvature + noise]], probes=probes)
    ratio = steps * own.parameters(0)[0].square().mean(0) * curvature**2
    return {"least": float(ratio.min()), "most": float(ratio.max())}


def break_even(*, dithering: str, gamma: float = 2e12, beta: float | None = None) -> dict[str, float]:
    """Global-QSGD's model of an all-reduce on a tree, latency left out (arXiv 2305.18627, section 5): a round takes 2 S / beta +
    S / gamma seconds in fp32, 2 S / (4 beta) + omega S / (4 gamma) in codes of 8 bits; gamma: bytes a second that the paper's
    A100 adds, omega: how much slower it adds codes.

    Gigabytes a second of a link below which codes pay, and the speedup of communication at `beta`.
    """
    omega, ratio = {"standard": 1.0, "exponential": 79.0}[dithering], 4.0
    below = 2 * (ratio - 1) * gamma / (omega - ratio) / 1e9 if omega > ratio else math.inf
    if beta is None:
        return {"gigabytes_a_second": below}
    speedup = ratio * (2 / beta + 1 / gamma) / (2 / beta + omega / gamma)
    return {"gigabytes_a_second": below, "speedup": speedup}


def warm_up_cap(*, share: float, speedup: float = math.inf, wanted: float = 10.0) -> dict[str, float]:
    """Most that a training can gain whose first `share` of the steps is uncompressed, and the longest warm-up, in percent,
    with which the whole is `wanted` times as fast."""
    step = 1 / speedup
    longest = (1 / wanted - step) / (1 - step)
    return {
        "cap": 1 / (share + (1 - share) * step) if share else speedup,
        "longest_warm_up": 100 * longest if longest >= 0 else math.nan,
    }


def savings(*, ratio: float, others: list[float]) -> dict[str, float]:
    """Percent that a method sends less than others, from how many times fewer bits each sends than fp32."""
    found = [100 * (1 - other / ratio) for other in others]
    return {"least": min(found), "most": max(found)}


# ---- quantisers by enumeration: expectations over all draws of a grid on which the probabilities are exact

_GRID = 256
_JOINT = 4
"""Most ranks whose joint draws are enumerated; beyond, expectations add up rank by rank."""


def standard(*, bits: int = 8, workers: list[int]) -> dict[str, float]:
    """Standard dithering: largest bias of one rank's code, in levels, and of the decoded mean of n ranks over all joint draws,
    in the scale.

    Numbers are multiples of 1 / 256 of the scale, so that fp32 holds their multiples by s levels exactly, and draws are those of
    1 / 256: a probability is a number of draws.
    """
    alone, together = 0.0, 0.0
    draws, scale = torch.arange(_GRID, dtype=torch.float32) / _GRID, torch.tensor(1.0)
    x = torch.arange(-_GRID, _GRID + 1, dtype=torch.float32)[:, None] / _GRID
    for n in workers:
        s = dithering.levels(bits, n)
        codes = dithering.rounded(x, scale, s, draws).double()
        alone = max(alone, float((codes.mean(-1, keepdim=True) - s * x.double()).abs().max()))
        if n <= _JOINT:
            together = max(together, _joint(n, s))
    return {"bias_of_a_code": alone, "bias_of_the_mean": together}


def _joint(n: int, s: int) -> float:
    """Ranks with quarters of the scale, all 4^n joint draws."""
    values = torch.tensor([0.75, -0.25, 0.5, -1.0][:n])
    scale, draws = torch.tensor(1.0), torch.arange(4) / 4
    codes = [dithering.rounded(v.expand(4), scale, s, draws) for v in values]
    sums = torch.stack([sum(choice, torch.tensor(0)) for choice in itertools.product(*codes)]).to(torch.int32)
    mean = torch.empty(len(sums))
    dithering.decode(sums, scale, s, n, mean)
    return abs(float(mean.double().mean()) - float(values.double().mean()))


def _value(codes: Tensor) -> Tensor:
    """Magnitudes with signs, in units of the normaliser, as float64."""
    c = codes.int() & 127
    magnitude = torch.where(c == 0, 0.0, torch.exp2(-c.double()))
    return torch.where(codes.int() > 127, -magnitude, magnitude)


def exponential(*, largest: int = 40, apart: int = 10) -> dict[str, float]:
    """Exponential dithering's addition of two codes, over all exponents 2 .. largest, both signs, and all tosses of `apart`
    bits: largest relative bias of the sum, and largest second moment over the square (9/8 is natural compression's)."""
    words, bias, moment = torch.arange(1 << apart, dtype=torch.int32), 0.0, 0.0
    for a, b, sign in itertools.product(range(2, largest), range(2, largest), (0, 128)):
        if abs(a - b) > apart:
            continue
        one, other = torch.tensor([a], dtype=torch.uint8), torch.tensor([b | sign], dtype=torch.uint8)
        exact = float(_value(one) + _value(other))
        found = _value(powers.add_with(one.expand(len(words)), other.expand(len(words)), words))
        if exact == 0:
            bias = max(bias, float(found.abs().max()))
            continue
        bias = max(bias, abs(float(found.mean()) / exact - 1))
        moment = max(moment, float(found.square().mean()) / exact**2)
    return {"bias": bias, "second_moment": moment}


def headroom(*, bits: int, workers: list[int]) -> dict[str, float]:
    """All ranks at plus or at minus the maximum: by how much the largest sum of standard dithering's codes goes beyond the
    integer (0: nowhere), and the smallest code that a balanced sum of exponential dithering's reaches (1: no overflow)."""
    excess, smallest = -float("inf"), 127
    for n in workers:
        s = dithering.levels(bits, n)
        codes = dithering.rounded(torch.tensor([1.0, -1.0]), torch.tensor(1.0), s, torch.zeros(2))
        excess = max(excess, float((codes * n).abs().max()) - ((1 << (bits - 1)) - 1))
        smallest = min(smallest, _balanced(n))
    return {"largest_excess": excess, "smallest_code": smallest}


def _balanced(n: int) -> int:
    """Exponent that n ranks at the maximum reach when they are added pair by pair."""
    room = (n - 1).bit_length()
    level = [torch.tensor([1 + room], dtype=torch.uint8)] * n
    word = torch.zeros(1, dtype=torch.int32)  # every toss succeeds: the largest sum there can be
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [powers.add_with(pair[0], pair[1], word) if len(pair) == 2 else pair[0] for pair in pairs]
    return int(level[0])


def natural(*, mantissa_bits: int = 8) -> dict[str, float]:
    """Natural compression over all mantissas of so many bits and all draws: relative bias, and largest relative variance."""
    codec, step = Natural(), 1 << (23 - mantissa_bits)
    mantissas = torch.arange(1 << mantissa_bits, dtype=torch.int32) * step
    draws = torch.arange(1 << mantissa_bits, dtype=torch.int32) * step
    x = (mantissas | (127 << 23))[:, None].expand(-1, len(draws))
    got = codec.value(codec.code(x, (), lambda: draws), ()).double()
    exact = x[:, :1].contiguous().view(torch.float32).double()
    return {
        "bias": float((got.mean(-1, keepdim=True) / exact - 1).abs().max()),
        "relative_variance": float(((got - exact) / exact).square().mean(-1).max()),
    }


# ---- how often methods synchronise, counted step by step from their own schedules


def qsr(
    *,
    total: int,
    warmup: int,
    peak: float,
    alpha: float,
    h_base: int,
    lowest: float = 1e-6,
    schedule: str = "cosine",
    power: float = 2.0,
) -> dict[str, float]:
    """The quadratic rule over a whole schedule: synchronisations, their share of the steps in percent, and the longest round. In
    the warm-up H is h_base."""
    rate = LearningRate(schedule, peak=peak, min=lowest, warmup=warmup, total=total)
    steps = sync_steps(QSR(alpha, h_base, power=power, warmup=warmup, total=total), rate, total)
    return {
        "synchronisations": len(steps),
        "volume": 100 * len(steps) / total,
        "longest_round": max(b - a for a, b in zip([0, *steps], steps, strict=False)),
    }


def zero_one_adam(
    *, steps: int, variance_steps: int, growth_steps: int, warm_up: int, n: int = 64
) -> dict[str, float]:
    """0/1 Adam against 1-bit Adam with `warm_up` full steps and against fp16: volume and rounds, in percent less and in times.

    Bytes of a step are those the methods declare for a million parameters and n workers; full steps travel as fp16.
    """
    kinds = _kinds(
        "zero-one-adam",
        steps,
        8,
        total_steps=steps,
        variance_steps=variance_steps,
        local_growth_steps=growth_steps,
    )
    matrix = shapes_of("matrix")
    half = _sent("allreduce-fp16", n, "step", matrix)
    coded = _sent("zero-one-adam", n, "average", matrix, total_steps=steps)
    volume = kinds["variance"] * half + (kinds["gradient"] + kinds["average"]) * coded
    one_bit = warm_up * half + (steps - warm_up) * coded
    return {
        "less_volume": 100 * (1 - volume / one_bit),
        "less_rounds": 100 * kinds["local"] / steps,
        "times_less_than_fp16": steps * half / volume,
    }


def _kinds(name: str, steps: int, n: int, **options: Any) -> Counter[str]:
    algorithm = create(name, **options).algorithm
    world, found = Group("world", 0, n), Counter[str]()
    counters: dict[str, int | float] = {}
    for step in range(steps):
        found[str(algorithm.plan(Clock(world, step=step, counters=counters)))] += 1
    return found


# ---- Streaming DiLoCo's simulation: which bandwidth keeps a given share of the time for computing. arXiv 2501.18512, appendix
#
# A step is a chain of layers: forward, then backward from the last layer to the first. A layer's part of the message is ready
# when its backward is, and parts go over the link one after the other while the backward goes on. What has not arrived
# `overlap` steps after the step has ended is waited for. Inner steps that send nothing take the computing time alone.
#
# Our choices: a third of a step is forward; a parameter is 16 bits on the link in one direction (two replicas: half a model out
# and half in, twice); layers are equal, embeddings are not counted.

FORWARD: Final = 1 / 3


def bandwidth(
    *,
    parameters: float,
    layers: int,
    step_s: float,
    utilisation: list[float],
    period: int = 1,
    fragment_layers: int = 0,
    overlap: int = 0,
    bits: float = 16.0,
) -> dict[str, tuple[float, ...]]:
    """Gbit/s for each share of the time (percent) that is computing. period 1: data parallel; fragment_layers 0: everything
    meets at once, as in DiLoCo."""
    return {
        "gbit_a_second": tuple(
            _needed(parameters * bits, layers, step_s, share / 100, period, fragment_layers, overlap) / 1e9
            for share in utilisation
        )
    }


def _needed(
    message: float, layers: int, step_s: float, share: float, period: int, fragment_layers: int, overlap: int
) -> float:
    """Bits a second, by bisection: waiting falls as the link gets faster."""
    low, high = 1.0, 1e15
    for _ in range(200):
        middle = (low * high) ** 0.5
        computing = period * step_s
        waited = _waited(message, layers, step_s, middle, fragment_layers, overlap)
        low, high = (low, middle) if computing / (computing + waited) >= share else (middle, high)
    return high


def _waited(
    message: float, layers: int, step_s: float, rate: float, fragment_layers: int, overlap: int
) -> float:
    """Seconds of waiting in a period, over all its meetings."""
    if not fragment_layers:
        return _exposed(range(layers), message, layers, step_s, rate, overlap)
    count = layers // fragment_layers
    fragments = [range(first, layers, count) for first in range(count)]  # strided
    return sum(_exposed(one, message, layers, step_s, rate, overlap) for one in fragments)


def _exposed(
    sent: Sequence[int], message: float, layers: int, step_s: float, rate: float, overlap: int
) -> float:
    """Seconds between the end of the step (or of `overlap` steps later) and the arrival of the last layer sent."""
    backward = (1 - FORWARD) * step_s / layers
    arrived = 0.0
    for layer in sorted(sent, reverse=True):
        ready = FORWARD * step_s + (layers - layer) * backward
        arrived = max(arrived, ready) + message / layers / rate
    return max(0.0, arrived - (1 + overlap) * step_s)


# ---- bits on the wire, as methods declare them (`Algorithm.wire_bytes`); tests hold that to what the ledger counts

Shapes = list[tuple[int, ...]]


def low_rank_volume(*, model: str, ranks: list[int], n: int = 2) -> dict[str, tuple[float, ...]]:
    """A ring of fp32 over what PowerSGD sends for a model, every matrix compressed, for each rank."""
    shapes = shapes_of(model)
    full = wire.all_reduce(4 * wire.elements(shapes), n)
    sent = (_sent("powersgd", n, "compressed", shapes, rank=rank, min_compression_rate=0.0) for rank in ranks)
    return {"times_less": tuple(full / one for one in sent)}


def ratio(
    *,
    of: dict[str, Any],
    over: dict[str, Any],
    n: int | list[int],
    model: str | Sequence[Any] = "matrix",
) -> dict[str, float]:
    """Bytes of one method over those of another, each given by algorithm, kind, options and `per` (steps that one such step
    stands for). With several n the least and the most."""
    shapes = shapes_of(model)
    sizes = n if isinstance(n, list) else [n]
    found = [_per_step(of, size, shapes) / _per_step(over, size, shapes) for size in sizes]
    return {"ratio": found[0], "least": min(found), "most": max(found)}


def volume_with_warm_up(
    *, algorithm: str, warm_up: float, n: int, uncompressed: str = "allreduce-fp16"
) -> dict[str, float]:
    """Traffic of an uncompressed training over that of one whose first share `warm_up` of the steps is uncompressed."""
    shapes = shapes_of("matrix")
    full = _sent(uncompressed, n, "step", shapes)
    coded = _sent(algorithm, n, "compressed", shapes, warmup_steps=1)
    return {"times_less": full / (warm_up * full + (1 - warm_up) * coded), "step": full / coded}


def _per_step(one: dict[str, Any], n: int, shapes: list[tuple[int, ...]]) -> float:
    options = one.get("options", {})
    return _sent(one["algorithm"], n, one.get("kind", "step"), shapes, **options) / float(one.get("per", 1))


def _sent(algorithm: str, n: int, kind: str, shapes: Sequence[Sequence[int]], /, **options: Any) -> float:
    costs = create(algorithm, **options).algorithm.wire_bytes(shapes, n)
    if kind not in costs:
        raise KindError(f"{algorithm} has no step of the kind {kind!r}: there are {', '.join(costs)}")
    return _number(costs[kind])


class KindError(ValueError):
    """The method has no step of that kind."""


def _number(cost: Cost) -> float:
    """The most, where data decide."""
    return float(cost[1] if isinstance(cost, tuple) else cost)


class ShapeError(ValueError):
    """No such model."""


def shapes_of(model: str | Sequence[Any]) -> Shapes:
    """`matrix` (1000 x 1000), `resnet18-cifar`, or shapes as they are given."""
    if not isinstance(model, str):
        return [tuple(int(side) for side in shape) for shape in model]
    if model == "matrix":
        return [(1000, 1000)]
    if model == "resnet18-cifar":
        return _resnet18()
    raise ShapeError(f"no model is called {model!r}: give matrix, resnet18-cifar or a list of shapes")


def _resnet18() -> Shapes:
    """ResNet-18 with a first convolution of 3 x 3, as for images of 32 x 32 in ten classes."""
    found: Shapes = [(64, 3, 3, 3), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            found += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if block == 0 and before != width:
                found += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*found, (10, before), (10,)]


# ---- the checks by name

Numbers = Mapping[str, float | tuple[float, ...]]
"""What a check answers; a tuple where the claim is about a whole column of a table."""

CHECKS: Final[Mapping[str, Callable[..., Numbers]]] = MappingProxyType(
    {
        "break-even": break_even,
        "covariance-of-the-last-iterate": last_iterate,
        "dq-sgd-savings": savings,
        "equal-levels": equal_levels,
        "error-by-workers": error_by_workers,
        "error-ratio": error_ratio,
        "exponential-dithering": exponential,
        "integer-headroom": headroom,
        "low-rank-volume": low_rank_volume,
        "natural-compression": natural,
        "qsgd-lemma": qsgd_lemma,
        "qsr-schedule": qsr,
        "ratio-of-traffic": ratio,
        "standard-dithering": standard,
        "streaming-bandwidth": bandwidth,
        "volume-with-warm-up": volume_with_warm_up,
        "warm-up-cap": warm_up_cap,
        "zero-one-adam": zero_one_adam,
    }
)


def parameters_of(check: str) -> dict[str, bool] | None:
    """Options of a check -> whether it needs them; None for an unknown check."""
    if check not in CHECKS:
        return None
    found = inspect.signature(CHECKS[check]).parameters
    return {name: one.default is inspect.Parameter.empty for name, one in found.items()}


def run(check: str, options: Mapping[str, Any]) -> Numbers:
    """The numbers of a check."""
    return CHECKS[check](**options)
