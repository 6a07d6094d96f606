"""How fast the codecs are here: in one process, in turns with a memory copy, or with the code one would write without us.

`codec_rows` are the rows of `rates-codecs`: all codecs on one vector. `against_rows` are those of `rates-against`, on the same
vector: ``plain torch`` of the Count-Sketch computes the same table by the hashes as they are defined, in 64-bit integers, and
`index_add_`; ``hashes kept`` has them ready, 12 bytes a coordinate and row, and uses `bincount`, as the authors' code
does. torch's PowerSGD hook runs as in a process group of one, whole: error feedback, both products, orthonormalisation,
two all-reduces of one rank and what is rebuilt; ours is the same reducer that trains, with the same parts.
"""

from __future__ import annotations

import contextlib
import fnmatch
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls import compilation
from reference_impls.algorithm import Clock, Shard, View
from reference_impls.algorithms.powersgd import PowerSGD
from reference_impls.codecs import count_sketch
from reference_impls.codecs.selection import kept
from reference_impls.collectives import Group
from reference_impls.drivers.engine import Engine
from reference_impls.drivers.ledger import Ledger
from reference_impls.drivers.lockstep import Lockstep
from suite.analysis.tables import Row
from suite.micro import tables
from suite.micro.benchmarks.cases import CODECS, RANK, VERBS, Case, CountSketch, LowRank, build, gradient
from suite.micro.benchmarks.memory import large_bytes
from suite.micro.pairs import ENOUGH, Run, in_turns, nothing, verdict

# All codecs beside a memory copy


FEWEST: Final = 6
"""Pairs of what has no bar; with no time to spend, of anything."""

NUMEL: Final = 25_000_000
THREADS: Final = 2
BUDGET_S: Final = 0.6
"""Seconds for the pairs of one operation, unless as many as are needed take longer."""


class ThroughputError(ValueError):
    """What was asked for cannot be measured; the message says why."""


def chosen_cases(only: str | None) -> list[str]:
    """Cases whose name matches a glob, the control left out.

    Args:
        only: The glob; None: all.

    Returns:
        Names, in the order of the table of cases.

    Raises:
        ThroughputError: No case matches.
    """
    matching = [name for name in CODECS if name != "copy" and fnmatch.fnmatchcase(name, only or "*")]
    if not matching:
        raise ThroughputError(f"no case matches {only!r}; there are {', '.join(CODECS[1:])}")
    return matching


def operations(case: Case) -> list[tuple[str, Callable[[], None]]]:
    """What a case can do, in the order in which it has to be done first."""
    return [(verb, getattr(case, verb)) for verb in VERBS if verb in case.verbs]


def path_taken() -> str:
    """How the compiled functions ran since `compilation.reset_paths`, in one word."""
    ran = {way for calls in compilation.paths().values() for way in calls}
    return "torch" if not ran else ran.pop() if len(ran) == 1 else "mixed"


def relative_error(x: torch.Tensor, restored: torch.Tensor) -> float:
    """||x - restored|| / ||x||; piece by piece, since in float64 all of it would need a lot of memory."""
    lost = total = 0.0
    for a, b in zip(torch.split(x, 1 << 20), torch.split(restored, 1 << 20), strict=True):
        lost += float((a.double() - b.double()).square().sum())
        total += float(a.double().square().sum())
    return float((lost / total) ** 0.5)


def codec_rows(
    numel: int = NUMEL,
    threads: int = THREADS,
    only: str | None = None,
    show: Callable[[str], None] = lambda line: None,
    budget_s: float | None = None,
) -> list[Row]:
    """Measure all codecs on one vector. One case is in memory at a time, beside the control.

    Args:
        numel: float32 elements of the vector.
        threads: Threads that compute.
        only: A glob of cases; None: all.
        show: Called with what is measured next.
        budget_s: Seconds for the pairs of one operation; default `BUDGET_S`.

    Returns:
        Rows of `rates-codecs`.

    Raises:
        ThroughputError: No case matches.
    """
    copy = build("copy", numel, threads)
    rows: list[Row] = []
    for name in chosen_cases(only):
        show(name)
        rows += _case_rows(
            name, build(name, numel, threads), copy, threads, BUDGET_S if budget_s is None else budget_s
        )
    return rows


def _case_rows(name: str, case: Case, copy: Case, threads: int, budget_s: float) -> list[Row]:
    numel = case.x.numel()
    doing = operations(case)
    first = {operation: _first_call(run) for operation, run in doing}
    error = relative_error(case.x, case.restore())
    rows: list[Row] = []
    for operation, run in doing:
        compilation.reset_paths()
        run()
        way = path_taken()
        allocated = large_bytes(run)
        bar = tables.CODEC_BARS.get((name, operation))
        least = ENOUGH if bar is not None and budget_s else FEWEST
        pairs = in_turns(copy.encode, run, budget_s=budget_s, least=least)
        touched = case.touched(operation)
        cells = pairs.ratio_cells("rate")
        rows.append(
            {
                "case": name, "operation": operation, "numel": numel, "threads": threads, "n": pairs.n,
                "seconds": pairs.seconds(), "copy_s": pairs.control_seconds(), **cells,
                "limit": copy.touched("encode") / touched, "touched": touched, "sent": case.sent_bytes() / numel,
                "error": error, "path": way, "allocated": allocated, "first_s": first[operation],
                "bar": bar, "met": verdict(cells, "rate", pairs.n, bar),
            }
        )  # fmt: skip
    return rows


def _first_call(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def cases_in_order(rows: Sequence[Row]) -> list[str]:
    """The cases of rows, in the order of the table of cases."""
    there = {row["case"] for row in rows}
    return [name for name in CODECS if name in there]


# Ours beside what one would write without us


AGAINST_BUDGET_S: Final = 5.0
_PRIME: Final = (1 << 31) - 1
_ENDED: Final[list[Any]] = []  # process groups that have ended


def _hash(sketch: count_sketch.CountSketch, row: int, numel: int) -> tuple[Tensor, Tensor]:
    """(columns int64, signs float32) of one row, as the definition has them."""
    a = count_sketch.coefficients(sketch.seed, row)
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
    """Measure all comparisons.

    Args:
        numel: float32 elements of the vector.
        threads: Threads that compute.
        show: Called with what is compared next.
        budget_s: Seconds for the pairs of one comparison; default `AGAINST_BUDGET_S`.

    Returns:
        Rows of `rates-against`.
    """
    torch.set_num_threads(threads)
    rows: list[Row] = []
    for compare in (_top_k, _sketch, _sketch_kept, _power_sgd):
        with compare(numel) as (case, operation, other, ours, theirs, prepared):
            show(f"{case} against {other}")
            bar = tables.AGAINST_BARS.get((case, other))
            seconds = AGAINST_BUDGET_S if budget_s is None else budget_s
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
    grads, other = x.clone(), x.clone()
    ours = _our_power_sgd(grads, shape, case.start.clone())
    with process_group_of_one() as group:
        state = PowerSGDState(
            group, matrix_approximation_rank=RANK, start_powerSGD_iter=2, min_compression_rate=1
        )
        bucket: Any = BucketOfOne(other, shape)
        for _ in range(2):  # the steps in which the hook does not compress yet
            powerSGD_hook(state, bucket).wait()

        def theirs() -> Tensor:
            return powerSGD_hook(state, bucket).wait()

        prepared = (lambda: grads.copy_(x)), (lambda: other.copy_(x))
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
