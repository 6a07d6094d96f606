"""Ours beside the code that one would write without us, in turns and on the same vector: the rows of `rates-against`.

``plain torch`` of the Count-Sketch computes the same table by the hashes as they are defined, in 64-bit integers, and
`index_add_`; ``hashes kept`` has them ready, 12 bytes a coordinate and row, and uses `bincount`, as the authors' code
does. torch's PowerSGD hook runs as in a process group of one, whole: error feedback, both products, orthonormalisation,
two all-reduces of one rank and what is rebuilt; ours is the same reducer that trains, with the same parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls.algorithm import Clock, Shard, View
from reference_impls.algorithms.powersgd import PowerSGD
from reference_impls.codecs import count_sketch
from reference_impls.codecs.selection import kept
from reference_impls.collectives import Group
from reference_impls.drivers.engine import Engine
from reference_impls.drivers.ledger import Ledger
from reference_impls.drivers.lockstep import Lockstep
from suite.analysis.tables import Row
from suite.micro.cases import build, gradient
from suite.micro.sparse_cases import RANK, CountSketch, LowRank
from suite.rates import bars
from suite.rates.codecs import FEWEST, NUMEL, THREADS
from suite.rates.pairs import ENOUGH, Run, in_turns, nothing, verdict

__all__ = ["BucketOfOne", "against_rows", "kept_hashes", "plain_sketch", "sketch_by_kept_hashes"]

BUDGET_S: Final = 5.0
_PRIME: Final = (1 << 31) - 1
_ENDED: Final[list[Any]] = []  # process groups that have ended


def _hash(sketch: count_sketch.CountSketch, row: int, numel: int) -> tuple[Tensor, Tensor]:
    """(columns int64, signs float32) of one row, as the definition has them."""
    a = count_sketch._coefficients(sketch.seed, row)
    j = torch.arange(numel)
    value = (((a[3] * j + a[2]) % _PRIME * j + a[1]) % _PRIME * j + a[0]) % _PRIME
    return (value >> 1) * sketch.columns >> 30, (value & 1).mul_(2).sub_(1).to(torch.float32)


def plain_sketch(sketch: count_sketch.CountSketch, x: Tensor) -> Tensor:
    """The table of `x`, float32 [rows, columns]."""
    table = torch.zeros(sketch.rows, sketch.columns)
    for row in range(sketch.rows):
        columns, signs = _hash(sketch, row, x.numel())
        table[row].index_add_(0, columns, x * signs)
    return table


def kept_hashes(sketch: count_sketch.CountSketch, numel: int) -> list[tuple[Tensor, Tensor]]:
    """The hashes of every row."""
    return [_hash(sketch, row, numel) for row in range(sketch.rows)]


def sketch_by_kept_hashes(hashes: list[tuple[Tensor, Tensor]], columns: int, x: Tensor) -> Tensor:
    """The table of `x` from hashes that are there."""
    return torch.stack(
        [torch.bincount(where, weights=x * signs, minlength=columns) for where, signs in hashes]
    )


@dataclass
class BucketOfOne:
    """What torch's hook asks of a bucket of DDP, with one matrix in it."""

    flat: Tensor
    shape: tuple[int, int]
    parameter: Tensor = field(default_factory=lambda: torch.zeros(0))

    def buffer(self) -> Tensor:
        return self.flat

    def set_buffer(self, flat: Tensor) -> None:
        self.flat = flat

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def gradients(self) -> list[Tensor]:
        return [self.flat.view(self.shape)]

    def parameters(self) -> list[Tensor]:
        return [self.parameter]


def against_rows(
    numel: int = NUMEL,
    threads: int = THREADS,
    show: Callable[[str], None] = lambda line: None,
    budget_s: float | None = None,
) -> list[Row]:
    """Measure all comparisons."""
    torch.set_num_threads(threads)
    rows: list[Row] = []
    for compare in (_top_k, _sketch, _sketch_kept, _power_sgd):
        with compare(numel) as (case, operation, other, ours, theirs, prepared):
            show(f"{case} against {other}")
            bar = bars.AGAINST.get((case, other))
            seconds = BUDGET_S if budget_s is None else budget_s
            pairs = in_turns(
                theirs, ours, budget_s=seconds, least=ENOUGH if bar is not None and seconds else FEWEST,
                prepare_control=prepared[1], prepare_own=prepared[0],
            )  # fmt: skip
        cells = pairs.ratio_cells("ratio")
        rows.append(
            {
                "case": case, "operation": operation, "other": other, "numel": numel, "threads": threads,
                "n": pairs.n, "seconds": pairs.seconds(), "other_s": pairs.control_seconds(), **cells,
                "bar": bar, "met": verdict(cells, "ratio", pairs.n, bar),
            }
        )  # fmt: skip
    return rows


Comparison = tuple[str, str, str, Run, Run, tuple[Run, Run]]
_READY: Final = (nothing, nothing)


@contextlib.contextmanager
def _top_k(numel: int) -> Iterator[Comparison]:
    case = build("top-k-1pct", numel, torch.get_num_threads())
    k = kept(0.01, numel)
    yield (
        "top-k-1pct",
        "encode",
        "torch.topk of abs",
        case.encode,
        lambda: torch.topk(case.x.abs(), k),
        _READY,
    )


@contextlib.contextmanager
def _sketch(numel: int) -> Iterator[Comparison]:
    case = build("count-sketch", numel, torch.get_num_threads())
    assert isinstance(case, CountSketch)
    yield (
        "count-sketch",
        "encode",
        "plain torch",
        case.encode,
        lambda: plain_sketch(case.codec, case.x),
        _READY,
    )


@contextlib.contextmanager
def _sketch_kept(numel: int) -> Iterator[Comparison]:
    case = build("count-sketch", numel, torch.get_num_threads())
    assert isinstance(case, CountSketch)
    hashes = kept_hashes(case.codec, numel)

    def theirs() -> Tensor:
        return sketch_by_kept_hashes(hashes, case.codec.columns, case.x)

    yield "count-sketch", "encode", "hashes kept", case.encode, theirs, _READY


@contextlib.contextmanager
def _power_sgd(numel: int) -> Iterator[Comparison]:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    case = build("low-rank-4", numel, torch.get_num_threads())
    assert isinstance(case, LowRank)
    x, shape = gradient(numel), (case.matrix.shape[0], case.matrix.shape[1])
    own, other = x.clone(), x.clone()
    ours = _our_power_sgd(own, shape, case.start.clone())
    with process_group_of_one() as group:
        state = PowerSGDState(
            group, matrix_approximation_rank=RANK, start_powerSGD_iter=2, min_compression_rate=1
        )
        bucket: Any = BucketOfOne(other, shape)
        for _ in range(2):  # the steps in which the hook does not compress yet
            powerSGD_hook(state, bucket).wait()

        def theirs() -> Tensor:
            return powerSGD_hook(state, bucket).wait()

        prepared = (lambda: own.copy_(x)), (lambda: other.copy_(x))
        yield "low-rank-4", "step", "torch's powerSGD_hook", ours, theirs, prepared


def _our_power_sgd(grads: Tensor, shape: tuple[int, int], q: Tensor) -> Run:
    """A step of the reducer for one rank: error feedback on, started from the last Q, as it is by default."""
    world = Group("world", 0, 1)
    view = View("weight", torch.zeros(1).expand(shape), slice(0, grads.numel()), 0, 0)
    shard = Shard(0, grads, grads, (view,), Clock(world, seed=0, step=0), lambda: [{}], 0)
    shard.state = {"q": {"weight": q}, "error": {"weight": torch.zeros_like(grads)}}
    method, engine = PowerSGD(rank=len(q), min_compression_rate=0.0), Engine(Lockstep(1), [Ledger(0)])
    return lambda: engine.run([method.low_rank_mean(shard)])


@contextlib.contextmanager
def process_group_of_one() -> Iterator[Any]:
    """gloo with one rank, which ends with the block. The process may not have a process group yet."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    # Callbacks of the hook hold the group, too: were the last one gone in a thread of the group, it would wait for itself.
    _ENDED.append(dist.group.WORLD)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
