"""Cost as work grows, beside what theory says: the rows of `rates-scaling`.

*Elements*: time is proportional to d; the line goes through the measurement at ten million. *Bits*: the least that any
code can take, the copy's seconds times the bytes that must be touched over the copy's. *Workers*, all of them simulated
in one process: what is averaged piece by piece costs each worker the same however many there are, so a step takes c n;
the line goes through n = 8. What everybody gathers, everybody decodes n times, so a step takes a n + b n^2; the curve goes
through n = 4 and n = 16, and the others are predictions.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from reference_impls import SimulatedCluster, buffers
from reference_impls.codecs import packed_integers
from reference_impls.codecs.uniform_levels import UniformLevels
from reference_impls.randomness import Key
from suite.analysis.tables import Row
from suite.micro.benchmarks.cases import ByProtocol, Case, build, gradient
from suite.micro.benchmarks.memory import peak_bytes
from suite.micro.pairs import Run, quartiles, reading, repetitions
from suite.micro.throughput import THREADS

__all__ = ["ELEMENTS", "GATHERED", "METHODS", "WORKERS", "scaling_rows"]

ELEMENTS: Final = (
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
)
CASES: Final = (
    ("copy", ("encode",)),
    ("signs", ("encode", "accumulate")),
    ("standard-dithering-8bit", ("encode",)),
    ("equal-levels-4bit", ("encode", "accumulate")),
    ("top-k-1pct", ("encode",)),
)
BITS: Final = tuple(range(1, 17))
BITS_NUMEL: Final = 10_000_000
WORKERS: Final = (2, 4, 8, 16, 32, 64)
SHAPE: Final = (512, 512)
METHODS: Final[Mapping[str, Mapping[str, Any]]] = {
    "allreduce-sgd": {},
    "global-qsgd": {},
    "lion-cub-1bit": {},
    "powersgd": {},
    "ef-signsgd": {},
    "qsgd": {},
}
GATHERED: Final = ("ef-signsgd", "qsgd")
"""Of these methods, those whose messages everybody gathers."""

MOST_BYTES: Final = 4 << 30
_ANCHOR_ELEMENTS: Final = 10_000_000
_ANCHOR_WORKERS: Final = 8
_ANCHORS_GATHERED: Final = (4, 16)
_READINGS: Final = 9
_BUDGET_S: Final = 1.0


def scaling_rows(
    threads: int = THREADS,
    show: Callable[[str], None] = lambda line: None,
    *,
    elements: tuple[int, ...] = ELEMENTS,
    bits: tuple[int, ...] = BITS,
    bits_numel: int = BITS_NUMEL,
    workers: tuple[int, ...] = WORKERS,
) -> list[Row]:
    """Measure all three. What would need more than 4 GiB is left out.

    Args:
        threads: Threads that compute.
        show: Called with what is measured next.
        elements: Lengths of the vector.
        bits: Widths of packed integers and of equal levels.
        bits_numel: Elements of the vector that is packed.
        workers: Numbers of simulated workers.

    Returns:
        Rows of `rates-scaling`.
    """
    torch.set_num_threads(threads)
    rows: list[Row] = []
    for numel in elements:
        show(f"{numel} elements")
        rows += _element_rows(numel, threads)
    _line(rows, "elements", _ANCHOR_ELEMENTS)
    show("bits")
    rows += _bit_rows(bits, bits_numel, threads)
    for method in METHODS:
        show(f"workers, {method}")
        method_rows = [_worker_row(method, n, threads) for n in workers]
        if method in GATHERED:
            _curve(method_rows)
        else:
            _line(method_rows, "workers", _ANCHOR_WORKERS)
        rows += method_rows
    return rows


def _row(against: str, subject: str, operation: str, value: int, numel: int, threads: int, run: Run) -> Row:
    times = repetitions(run)
    once = reading(run, times)
    count = max(3, min(_READINGS, int(_BUDGET_S / max(once * times, 1e-9))))
    q1, q2, q3 = quartiles([reading(run, times) for _ in range(count)])
    return {
        "against": against, "subject": subject, "operation": operation, "value": value, "numel": numel,
        "threads": threads, "n": count, "seconds": q2, "seconds_q1": q1, "seconds_q3": q3, "theory": None,
        "anchor": False,
    }  # fmt: skip


def _element_rows(numel: int, threads: int) -> Iterator[Row]:
    for name, verbs in CASES:
        gc.collect()
        buffers.release()
        if _needed(name, numel, threads) > MOST_BYTES:
            continue
        case = build(name, numel, threads)
        for verb in ("encode", "decode", "accumulate"):
            if verb in verbs:
                yield _row("elements", name, verb, numel, numel, threads, getattr(case, verb))
            elif verb in case.verbs:
                getattr(case, verb)()
    gradient.cache_clear()


def _needed(name: str, numel: int, threads: int) -> float:
    """Bytes that a case of so many elements will need, told from one of a hundredth of them."""
    part = max(numel // 100, 1)
    if part < 1 << 17:
        return 0.0
    held = buffers.held_bytes()

    def whole() -> list[Case]:
        case = build(name, part, threads)
        for verb in case.verbs:
            getattr(case, verb)()
        return [case]

    gradient.cache_clear()
    peak = peak_bytes(whole) + buffers.held_bytes() - held
    gradient.cache_clear()
    return peak * numel / part


def _bit_rows(bits: tuple[int, ...], numel: int, threads: int) -> list[Row]:
    """Packing of integers, and equal levels as a codec of so many bits."""
    copy = build("copy", numel, threads)
    least = _row("bits", "copy", "encode", 32, numel, threads, copy.encode)
    a_byte = float(least["seconds"] or 0.0) / copy.touched("encode")
    rows = [{**least, "theory": least["seconds"], "anchor": True}]
    values, out = torch.zeros(numel, dtype=torch.int32), torch.zeros(numel, dtype=torch.int32)
    for width in bits:
        values.copy_(Key.of(seed=0, step=0, stage="micro", rank=0).bits(numel) & ((1 << width) - 1))
        wire = torch.zeros(packed_integers.wire_bytes(numel, width), dtype=torch.uint8)
        packing = _Packing(values, out, wire, width)
        for operation, run, touched in (
            ("encode", packing.pack, 4 + 2 * width / 8),
            ("decode", packing.unpack, 8 + width / 8),
        ):
            row = _row("bits", "packing", operation, width, numel, threads, run)
            rows.append({**row, "theory": touched * a_byte})
        if width > 1:
            case = EqualLevels(numel, width)
            for operation in ("encode", "accumulate"):
                row = _row("bits", "equal-levels", operation, width, numel, threads, getattr(case, operation))
                rows.append({**row, "theory": case.touched(operation) * a_byte})
    return rows


class _Packing:
    def __init__(self, values: torch.Tensor, out: torch.Tensor, wire: torch.Tensor, width: int) -> None:
        self.values, self.out, self.wire, self.width = values, out, wire, width

    def pack(self) -> None:
        packed_integers.pack(self.values, self.width, self.wire)

    def unpack(self) -> None:
        packed_integers.unpack(self.wire, self.width, self.out)


class EqualLevels(ByProtocol):
    """As many levels as fit the bits."""

    def __init__(self, numel: int, bits: int) -> None:
        super().__init__(numel, "uniform_levels", UniformLevels.__name__, levels=(1 << (bits - 1)) - 1)
        self.encode()


def _worker_row(method: str, n: int, threads: int) -> Row:
    gc.collect()
    buffers.release()
    numel = SHAPE[0] * SHAPE[1]
    params = [gradient(numel).reshape(SHAPE).clone()]
    cluster = SimulatedCluster(method, params=params, world_size=n, lr=1e-3, seed=0, **METHODS[method])
    grads = [[params[0] * (1 + rank / 7)] for rank in range(n)]

    def step() -> None:
        cluster.step(grads)

    step()
    return _row("workers", method, "step", n, numel, threads, step)


def _line(rows: list[Row], against: str, anchor: int) -> None:
    """Fill in proportionality, through the row whose value is `anchor`; nothing where there is none."""
    for row in rows:
        through = [
            other for other in rows
            if other["against"] == against == row["against"] and other["value"] == anchor
            and (other["subject"], other["operation"]) == (row["subject"], row["operation"])
        ]  # fmt: skip
        if through:
            row["theory"] = _number(through[0]["seconds"]) * _number(row["value"]) / anchor
            row["anchor"] = row["value"] == anchor


def _curve(rows: list[Row]) -> None:
    """Fill in a n + b n^2 through the rows of two numbers of workers."""
    seconds = {row["value"]: _number(row["seconds"]) for row in rows}
    if not all(n in seconds for n in _ANCHORS_GATHERED):
        return
    low, high = _ANCHORS_GATHERED
    b = (seconds[high] / high - seconds[low] / low) / (high - low)
    a = seconds[low] / low - b * low
    for row in rows:
        n = _number(row["value"])
        row["theory"] = a * n + b * n * n
        row["anchor"] = row["value"] in _ANCHORS_GATHERED


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
