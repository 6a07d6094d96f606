"""What simulated training takes on a GPU: gradients of the workers of 8 runs in one call, and the methods' own steps: `make gpu`.

The model is `code-gpt`; every arm has a group of its own. Blocks of gradients alone (drawing, forward, backward, losses) and of
whole steps are timed in turns, and pair by pair *own* is what a whole step takes longer: the methods' work. *TFLOP/s*: six times
the parameters, tables included, times the bytes of all workers, over the seconds of gradients; products of attention are not
counted. *Share*: own over the whole step. Compiling and the first steps are not timed. A row is written as soon as it is
measured, and what the table holds of this device and these versions is not measured again.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch

from suite.gpu.tables import code_of, held, met, place_of, quartiles, say, seconds, today, versions, write
from suite.runs.spec import Rate, RunSpec, resolve_algorithm, resolve_workload
from suite.training.train import LOSSES_EVERY, Group

BLOCK: Final = 8
"""Steps of a block, and of a round of DiLoCo: each block holds an average."""
ROUNDS: Final = 9
"""Blocks of either kind, in turns."""
WARM: Final = LOSSES_EVERY + 1
ARMS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "allreduce-adamw": {},
        "diloco": {"period": BLOCK},
        "lion-cub-1bit": {},
        "powersgd": {"optimizer": "adamw", "rank": 4},
    }
)
BARS: Final[Mapping[str, float]] = MappingProxyType({"0.9m": 50.0, "3.3m": 90.0})
"""Sizes, with TFLOP/s that an H100 or H200 must reach."""
SHARE: Final = 0.25
"""What the methods' own steps may take of a step."""
COLUMNS: Final = (
    "size", "arm", "runs", "workers", "batch", "context", "parameters", "blocks", "gradients_s", "gradients_q1",
    "gradients_q3", "own_s", "own_q1", "own_q3", "tflops", "bar", "met", "share", "share_bar", "share_met", "memory_gb",
    "ready_s", "device", "torch", "triton", "date",
)  # fmt: skip


class Shape(NamedTuple):
    """Of a group: 32 workers with 2,048 bytes each."""

    runs: int = 8
    workers: int = 4
    batch: int = 16


def _group(size: str, arm: str, shape: Shape, device: torch.device) -> Group:
    steps = 1 << 20  # never reached
    specs = [
        RunSpec.of(
            algorithm=resolve_algorithm(arm, ARMS[arm], shape.workers, steps),
            workload=resolve_workload("code-gpt", {"size": size}, "iid"),
            sharding="iid",
            world_size=shape.workers,
            steps=steps,
            batch_size=shape.batch,
            lr=Rate("constant", 1e-4, 0.0, 0),
            seed=seed,
            backend="simulated",
            bucket_bytes=25 << 20,
        )
        for seed in range(shape.runs)
    ]
    return Group(specs, {}, device.type, mixed=True)


def timed(
    size: str,
    arm: str,
    device: torch.device,
    shape: Shape = Shape(),  # noqa: B008 - it is immutable
    block: int = BLOCK,
    rounds: int = ROUNDS,
    warm: int = WARM,
) -> dict[str, object]:
    """Time one arm at one size.

    Args:
        size: Of `code-gpt`.
        arm: One of `ARMS`.
        device: Where.
        shape: Of the group.
        block: Steps of a block.
        rounds: Blocks of either kind, at least 2.
        warm: Whole steps before.

    Returns:
        A row by `COLUMNS`, without device, versions and date.

    Raises:
        RuntimeError: A run has ended, by divergence or a fault.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    begun = time.perf_counter()
    group = _group(size, arm, shape, device)

    def whole(step: int) -> None:
        group.compute(step)
        group.advance(step)

    seconds(map(whole, range(warm)), device)
    ready = time.perf_counter() - begun
    gradients, own = [], []
    for first in range(warm, warm + block * rounds, block):
        gc.collect()
        taken = range(first, first + block)
        gradients.append(seconds(map(group.compute, taken), device))
        group.look()
        own.append(seconds(map(whole, taken), device) - gradients[-1])
    if ended := [member.recorder.status for member in group.members if member.recorder.status]:
        raise RuntimeError(f"{arm} at {size}: a run has ended: {ended[0].reason}")
    middle, own_middle = statistics.median(gradients), statistics.median(own)
    parameters, context = group.elements, group.batch[0].shape[-1]
    tokens = shape.runs * shape.workers * shape.batch * context
    rate, share = 6 * parameters * tokens / middle / 1e12, own_middle / (middle + own_middle)
    bar = BARS.get(size)
    return {
        **shape._asdict(),
        "size": size,
        "arm": arm,
        "context": context,
        "parameters": parameters,
        "blocks": rounds,
        **quartiles("gradients_s", "gradients", gradients),
        **quartiles("own_s", "own", own),
        "tflops": f"{rate:.4g}",
        "bar": "" if bar is None else bar,
        "met": met(None if bar is None else rate >= bar),
        "share": f"{share:.3g}",
        "share_bar": SHARE,
        "share_met": met(share <= SHARE),
        "memory_gb": f"{torch.cuda.max_memory_allocated(device) / 1e9:.3g}" if device.type == "cuda" else "",
        "ready_s": f"{ready:.1f}",
        "date": today(),
    }


def measure(
    table: Path,
    row: Callable[[str, str], Mapping[str, object]],
    facts: Mapping[str, str],
    budget_s: float = 480.0,
) -> bool:
    """Append to the table what it does not hold yet.

    Args:
        table: The CSV file.
        row: What times an arm at a size, given size and arm.
        facts: Device and versions.
        budget_s: Seconds after which no further row is begun.

    Returns:
        Whether all has been measured.
    """
    end = time.monotonic() + budget_s
    known = {(row["size"], row["arm"]) for row in held(table, facts)}
    for size, arm in ((size, arm) for size in BARS for arm in ARMS if (size, arm) not in known):
        if time.monotonic() > end:
            return False
        found = {**row(size, arm), **facts}
        write(table, [*held(table, facts), found], COLUMNS)
        say(
            f"{size} {arm:16} {found['tflops']:>6} TFLOP/s, bar {found['bar']} {found['met']}; own {found['own_s']} s a step, "
            f"{found['share']} of it, {found['share_met']}; {found['memory_gb']} GB; ready in {found['ready_s']} s"
        )
    return True


def main() -> int:
    table, device = place_of("simulation", __doc__), torch.device("cuda")
    return code_of(measure(table, lambda size, arm: timed(size, arm, device), versions()))


if __name__ == "__main__":
    raise SystemExit(main())
