"""How fast compressors are beside a memory copy, and beside what torch offers, in one process: `python -m pytest tests/bench`.

A bar is what a quiet machine should reach. Half of it must be reached on any: `LENIENT`. The ratio is of the shortest of
`ROUNDS` calls of both, in turns; pytest-benchmark's table shows ours, and `--benchmark-json FILE` has every ratio beside its bar.
Seconds are compared with nothing: what changed from commit to commit is asv's question.
"""

from __future__ import annotations

import timeit
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from reference_impls.algorithms.powersgd import PowerSGD
from reference_impls.compressors import count_sketch
from reference_impls.compressors.sparse import kept
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, TrainState, View
from reference_impls.core.collectives import Group, Ledger
from reference_impls.runtime.engine import Engine, SimulatedBackend
from suite.micro.cases import COMPRESSORS, RANK, VERBS, build
from tests.bench.memory import large_bytes
from tests.support import require_compiler

pytestmark = pytest.mark.compiled
NUMEL = 1 << 22
ROUNDS = 15
LENIENT = 2.0
"""Guards fail below the bar over this."""

BARS = {
    (case, verb): bar
    for bar, verbs, cases in (
        (1.4, "encode", "signs"),
        (
            1.0,
            "accumulate",
            "signs equal-levels-4bit-global equal-levels-8bit-global equal-levels-4bit equal-levels-8bit",
        ),
        # scales are given
        (
            0.6,
            "encode",
            "standard-dithering-4bit standard-dithering-8bit equal-levels-4bit-given equal-levels-8bit-given",
        ),
        # scales are found
        (
            0.4,
            "encode",
            "standard-dithering-4bit-global standard-dithering-8bit-global equal-levels-4bit-global",
        ),
        (
            0.4,
            "encode",
            "equal-levels-8bit-global equal-levels-4bit equal-levels-4bit-linf equal-levels-8bit",
        ),
        (
            0.4,
            "encode decode",
            "exponential-dithering natural-9bit ternary-2bit bf16 min-max-4bit",
        ),
    )
    for case in cases.split()
    for verb in verbs.split()
}
"""(case, verb) -> least rate, in units of that of `Tensor.copy_` of as many float32 into a ready buffer."""
TOP_K_BAR, SKETCH_BAR, POWER_SGD_BAR = 5.0, 3.0, 1.0
"""Least seconds of the other over ours."""

STILL_ALLOCATE = ("top-k-1pct",)
"""Compressors that allocate at this length: 1 % of it is too short to be packed by compiled code. A name goes once its test
passes."""


def hold(benchmark, ours, other, bar, rounds=ROUNDS):
    """Time both in turns, and assert that `other` takes at least half of `bar` times as long as ours."""
    others: list[float] = []
    benchmark.pedantic(
        ours,
        setup=lambda: others.append(timeit.timeit(other, number=1)),  # before each round, not in its time
        rounds=rounds,
        warmup_rounds=1,
    )
    if benchmark.enabled:
        ratio = min(others) / benchmark.stats.stats.min
        benchmark.extra_info.update(ratio=ratio, bar=bar)
        assert ratio >= bar / LENIENT


@pytest.fixture(autouse=True)
def _compiled_on_one_thread() -> Iterator[None]:
    require_compiler()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.full
@pytest.mark.benchmark(group="codecs")
@pytest.mark.parametrize(("compressor", "verb"), BARS)
def test_not_slow(benchmark: Any, compressor: str, verb: str) -> None:
    case = build(compressor, NUMEL)
    run = getattr(case, verb)
    case.encode()
    run()  # compiled here, not in what is timed
    compute.reset_paths()
    run()
    ran = {way for calls in compute.paths().values() for way in calls}
    assert ran <= {"compiled"}, compute.paths()  # nothing: the compressor is torch's own
    assert compute.failures() == {}
    hold(benchmark, run, build("copy", NUMEL).encode, BARS[compressor, verb])


def _as_it_is(compressor: str) -> Any:
    missed = pytest.mark.xfail(reason="allocates in its steady state", raises=AssertionError)
    return pytest.param(compressor, marks=(missed,) if compressor in STILL_ALLOCATE else ())


@pytest.mark.full
@pytest.mark.parametrize("compressor", [_as_it_is(compressor) for compressor in COMPRESSORS])
def test_nothing_is_allocated_once_it_is_warm(compressor: str) -> None:
    case = build(compressor, NUMEL)
    doing = [getattr(case, verb) for verb in VERBS if verb in case.verbs]
    for _ in range(2):
        for run in doing:
            run()
    assert [large_bytes(run) for run in doing] == [0] * len(doing)


@pytest.mark.full
@pytest.mark.benchmark(group="beside torch")
def test_top_k_beats_torch(benchmark: Any) -> None:
    case = build("top-k-1pct", NUMEL)
    k = kept(0.01, NUMEL)
    case.encode()
    hold(benchmark, case.encode, lambda: torch.topk(case.x.abs(), k), TOP_K_BAR, rounds=5)


def plain_sketch(sketch: count_sketch.CountSketch, x: Tensor) -> Tensor:
    """The table of `x` by the hashes as they are defined, in 64-bit integers, and `index_add_`: float32 [rows, columns]."""
    prime, j = (1 << 31) - 1, torch.arange(x.numel())
    table = torch.zeros(sketch.rows, sketch.columns)
    for row in range(sketch.rows):
        a = count_sketch.coefficients(sketch.seed, row)
        value = (((a[3] * j + a[2]) % prime * j + a[1]) % prime * j + a[0]) % prime
        table[row].index_add_(0, (value >> 1) * sketch.columns >> 30, x * ((value & 1) * 2 - 1))
    return table


@pytest.mark.full
@pytest.mark.benchmark(group="beside torch")
def test_the_sketch_beats_plain_torch(benchmark: Any) -> None:
    case = build("count-sketch", NUMEL)
    case.encode()
    torch.testing.assert_close(plain_sketch(case.compressor, case.x), case.wire, rtol=1e-3, atol=1e-2)
    hold(benchmark, case.encode, lambda: plain_sketch(case.compressor, case.x), SKETCH_BAR, rounds=3)


@pytest.fixture(scope="module")
def group_of_one() -> Iterator[Any]:
    """A gloo group of one rank, kept to the end: callbacks of torch's hook hold it, and it cannot end in a thread of its own."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    yield group
    dist.destroy_process_group()


@pytest.mark.full
@pytest.mark.benchmark(group="beside torch")
def test_power_sgd_is_not_slower_than_torchs_hook(benchmark: Any, group_of_one: Any) -> None:
    """A step on one matrix, whole: error feedback, both products, orthonormalisation, what is rebuilt."""
    case = build("low-rank-4", NUMEL)
    grads, theirs, shape = case.x.clone(), case.x.clone(), case.matrix.shape
    view = View("weight", torch.zeros(1).expand(shape), slice(0, NUMEL), 0, 0)
    bucket = Bucket(
        0, grads, grads, (view,), TrainState(Group("world", 0, 1), seed=0, step=0), lambda: [{}], 0
    )
    bucket.state = {"q": {"weight": case.start.clone()}, "error": {"weight": torch.zeros(NUMEL)}}
    method, engine = PowerSGD(rank=RANK, min_compression_rate=0.0), Engine(SimulatedBackend(1), [Ledger(0)])

    state = PowerSGDState(
        group_of_one, matrix_approximation_rank=RANK, start_powerSGD_iter=2, min_compression_rate=1
    )
    parameter = torch.zeros(0)
    bucket: Any = SimpleNamespace(
        buffer=lambda: theirs, index=lambda: 0, is_last=lambda: True, gradients=lambda: [theirs.view(shape)],
        parameters=lambda: [parameter],
    )  # fmt: skip
    for _ in range(2):  # the steps in which the hook does not compress yet
        powerSGD_hook(state, bucket).wait()
    hold(
        benchmark,
        lambda: engine.run([method.low_rank_mean(bucket)]),
        lambda: powerSGD_hook(state, bucket).wait(),
        POWER_SGD_BAR,
    )
