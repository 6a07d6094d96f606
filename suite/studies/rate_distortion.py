"""Rate against distortion: what a mean over workers costs in bits and loses in precision, on gradients of training.

    python -m suite.studies.rate_distortion          # results/tables/{rate-distortion,equal-levels}.csv

Gradients come from three stages of a training (`suite.studies.gradients`), each seed a training of its own; the first n of
them serve n workers. One exchange of each method, without memory: error feedback has nothing to feed back yet, and
PowerSGD starts from a random matrix, so that both look worse here than in training, where biased codes catch up.

`equal_levels` is the claim of sqrt(n) (Global-QSGD, arXiv 2305.18627) with both halves: at equal s = 1 and with 2-norms,
the norm over all workers leaves sqrt(n) fewer non-zeros a worker than each worker's own, and an error sqrt(n) times
larger. The same arguments give the same bytes.

Only the first tensors are taken, as many as fit `ELEMENTS` (one bucket), so that all takes minutes: the first weight matrix
of `digits-mlp`, and the embeddings of `byte-mlm`, where half of the coordinates are 0 on all workers (bytes that the text
does not have). `--elements` takes more, for more patience.

What theory says that an unbiased code's mean may lose at most: codes of n workers that are independent and gathered have
theta = n x squared error of the mean / sum of the workers' squared norms of at most omega, where E |Q(v) - v|^2 <= omega
|v|^2 for one vector. Codes that share a norm, sum on the way or round twice obey no such bound, and nothing is said of them.

- QSGD, lemma 3.1 (arXiv 1610.02132): omega = min(d / s^2, sqrt(d) / s), s levels of the 2-norm of blocks of d.
- Natural dithering (arXiv 1905.10988), whose levels are NUQSGD's here: omega = 1/8 + c min(1, c), c = sqrt(d) 2^(1 - s),
  s powers of two of the 2-norm of blocks of d.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls.algorithms.qsgd import QSGD, GeometricQSGD
from reference_impls.codecs import dithering
from reference_impls.codecs.uniform_levels import UniformLevels
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key
from reference_impls.registry import create
from suite.analysis.columns import Table, described
from suite.analysis.statistics import mean_interval
from suite.analysis.tables import Row, table_path, write_table
from suite.studies.gradients import Captured, Quantiser, capture, first_tensors, mean_by, wire_bits

_CELL: Final = (
    *described(
        "text",
        workload="whose training the gradients come from",
        stage="start, middle or end of that training",
    ),
    *described("int", world_size="workers"),
)
_SEEDS: Final = described("int", n="seeds: trainings whose gradients were taken")

RATE_DISTORTION: Final = Table(
    "rate-distortion",
    (
        *_CELL,
        *described("text", quantiser="label of a method with options", algorithm="registry name"),
        *described("flag", unbiased="the expectation of the mean is the mean"),
        *described("float", wire_bits="bits that a rank sends for each coordinate, mean over ranks"),
        *_SEEDS,
        *described(
            "float",
            error="squared error of the mean over the squared norm of the mean; mean over seeds",
            error_low="95 % t interval of it",
            error_high="its upper end",
            theta="n times the squared error over the sum of the workers' squared norms; mean over seeds",
            theta_low="95 % t interval of it",
            theta_high="its upper end",
        ),
    ),
    keys=4,
)

EQUAL_LEVELS: Final = Table(
    "equal-levels",
    (
        *_CELL,
        *described("int", levels="s, of both codes"),
        *_SEEDS,
        *described(
            "float",
            nonzeros="non-zero codes of QSGD over those of Global-QSGD, a worker; mean over seeds",
            nonzeros_low="95 % t interval of it",
            nonzeros_high="its upper end",
            error="squared error of Global-QSGD's mean over QSGD's; mean over seeds",
            error_low="95 % t interval of it",
            error_high="its upper end",
        ),
    ),
    keys=4,
)


def interval_cells(name: str, values: Sequence[float]) -> Row:
    """The three cells of a mean over seeds: `name`, and the ends of its interval."""
    found = mean_interval(values)
    return {name: found.estimate, f"{name}_low": found.low, f"{name}_high": found.high}


def uniform_omega(levels: int, block: int) -> float:
    """QSGD's, of one block under its 2-norm."""
    return min(block / levels**2, math.sqrt(block) / levels)


def geometric_omega(levels: int, block: int) -> float:
    """Natural dithering's."""
    rest = math.sqrt(block) * 2.0 ** (1 - levels)
    return 1 / 8 + rest * min(1.0, rest)


def theta_bound(algorithm: str, options: Mapping[str, Any]) -> float | None:
    """The bound of a configured method; None where its paper proves none in this form."""
    method = create(algorithm, **options).algorithm
    if (
        not isinstance(method, QSGD)
        or method.norm != "l2"
        or not method.block_size
        or method.form != "gather"
    ):
        return None
    levels = method.levels or 2 ** (method.bits - 1) - 1
    return (geometric_omega if isinstance(method, GeometricQSGD) else uniform_omega)(
        levels, method.block_size
    )


WORKLOADS: Final = ("digits-mlp", "byte-mlm")
SIZES: Final = (2, 4, 8, 16, 64)
SEEDS: Final = 6
EQUAL_SIZES: Final = (4, 16, 64)
ELEMENTS: Final = 1 << 15

QUANTISERS: Final = (
    Quantiser("bf16", "allreduce-bf16"),
    Quantiser("standard-4", "global-qsgd", {"bits": 4}),
    Quantiser("standard-8", "global-qsgd", {"bits": 8}),
    Quantiser("standard-8-block", "global-qsgd", {"bits": 8, "scale": "block"}),
    Quantiser("standard-16", "global-qsgd", {"bits": 16}),
    Quantiser("exponential-8", "global-qsgd", {"dithering": "exponential"}),
    Quantiser("exponential-8-tree", "global-qsgd", {"dithering": "exponential", "form": "tree"}),
    Quantiser("intsgd-8", "intsgd-heuristic"),
    Quantiser("qsgd-maxnorm-3", "qsgd-maxnorm", {"bits": 3}, quicker="all-reduce"),
    Quantiser("terngrad", "terngrad", quicker="all-reduce"),
    Quantiser("thc-4", "thc"),
    Quantiser("natural-9", "natural-compression"),
    Quantiser("qsgd-4-two-phase", "qsgd", {"bits": 4, "form": "two-phase"}),
    Quantiser("cgx-4", "cgx"),
    Quantiser("qsgd-2", "qsgd", {"bits": 2}),
    Quantiser("qsgd-4", "qsgd", {"bits": 4}),
    Quantiser("qsgd-8", "qsgd", {"bits": 8}),
    Quantiser("qsgd-8-linf", "qsgd", {"bits": 8, "norm": "linf", "block_size": 0}),
    Quantiser("qsgd-published-8", "qsgd-published"),
    Quantiser("natural-dithering-4", "natural-dithering"),
    Quantiser("nuqsgd-4", "nuqsgd"),
    Quantiser("sign-1", "ef-signsgd", {"granularity": "bucket"}),
    Quantiser("top-k-1%", "top-k", {"ratio": 0.01}),
    Quantiser("random-k-1%", "random-k", {"ratio": 0.01}),
    Quantiser("powersgd-2", "powersgd", {"rank": 2}),
)


def errors(estimate: Tensor, rows: Tensor) -> tuple[float, float]:
    """(error, theta) of an estimate of the mean of `rows`; see the columns."""
    exact = rows.double().mean(0)
    wrong = float((estimate.double() - exact).square().sum())
    return wrong / float(exact.square().sum()), len(rows) * wrong / float(rows.double().square().sum())


def equal_levels(rows: Tensor, seed: int, levels: int = 1) -> tuple[float, float]:
    """(non-zeros of QSGD over Global-QSGD's, squared error of Global-QSGD over QSGD's), both with 2-norms."""
    exact, n = rows.double().mean(0), len(rows)
    separate, joint = UniformLevels(levels=levels, norm="l2", block_size=0), rows.double().norm().float()
    codes, out = torch.empty(rows.shape[1], dtype=torch.int16), torch.empty(rows.shape[1])
    message = torch.empty(separate.wire_bytes(rows.shape[1]), dtype=torch.uint8)
    sums, counts = torch.zeros(2, rows.shape[1], dtype=torch.float64), [0, 0]
    for rank, row in enumerate(rows):
        key = Key.of(seed=seed, step=0, stage="gradient", rank=rank)
        separate.encode(row, key, message.zero_())
        separate.decode(message, out)
        counts[0] += int(out.count_nonzero())
        sums[0] += out
        dithering.encode(row, joint, levels, key, codes)
        counts[1] += int(codes.count_nonzero())
        sums[1] += codes * (joint.double() / levels)
    wrong = (sums / n - exact).square().sum(1)
    return counts[0] / counts[1], float(wrong[1] / wrong[0])


def tables(
    workloads: Iterable[str] = WORKLOADS,
    sizes: Sequence[int] = SIZES,
    seeds: int = SEEDS,
    elements: int = ELEMENTS,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[list[Row], list[Row]]:
    """Rows of both tables. A method that cannot serve n workers has no row there."""
    rate, equal = [], []
    for workload in workloads:
        measured: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
        ratios: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        shapes: Mapping[str, tuple[int, ...]] = {}
        for seed in range(seeds):
            for whole in capture(workload, workers=max(sizes), seed=seed):
                part = first_tensors(whole, elements)
                shapes = part.shapes
                _measure(part, sizes, seed, measured)
                for n in EQUAL_SIZES:
                    if n <= max(sizes):
                        ratios[part.stage, n].append(equal_levels(part.gradients[:n], seed))
                report(f"{workload}, seed {seed}, {part.stage}")
        rate += [_rate_row(workload, key, values, shapes) for key, values in measured.items()]
        equal += [
            {
                "workload": workload, "stage": stage, "world_size": n, "levels": 1, "n": len(values),
                **interval_cells("nonzeros", [a for a, _ in values]), **interval_cells("error", [b for _, b in values]),
            }
            for (stage, n), values in ratios.items()
        ]  # fmt: skip
    return rate, equal


def _measure(
    part: Captured,
    sizes: Sequence[int],
    seed: int,
    measured: dict[tuple[str, int, str], list[tuple[float, float]]],
) -> None:
    for n in sizes:
        rows = part.gradients[:n]
        for quantiser in QUANTISERS:
            try:
                estimate = mean_by(quantiser, rows, part.shapes, seed)
            except UnsupportedError:
                continue
            measured[part.stage, n, quantiser.label].append(errors(estimate, rows))


def _rate_row(
    workload: str,
    key: tuple[str, int, str],
    values: Sequence[tuple[float, float]],
    shapes: Mapping[str, tuple[int, ...]],
) -> Row:
    stage, n, label = key
    quantiser = next(q for q in QUANTISERS if q.label == label)
    unbiased = create(quantiser.algorithm, **quantiser.options).algorithm.traits().unbiased
    return {
        "workload": workload, "stage": stage, "world_size": n, "quantiser": label,
        "algorithm": quantiser.algorithm, "unbiased": unbiased, "wire_bits": wire_bits(quantiser, shapes, n),
        "n": len(values), **interval_cells("error", [e for e, _ in values]),
        **interval_cells("theta", [t for _, t in values]),
    }  # fmt: skip


def main() -> None:
    """Measure and write both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parents[2] / "results")
    parser.add_argument(
        "--elements", type=int, default=ELEMENTS, help="of the first tensors (default: %(default)s)"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)  # as in training: bits do not depend on the machine's cores
    rate, equal = tables(elements=given.elements, report=say)
    for table, rows in ((RATE_DISTORTION, rate), (EQUAL_LEVELS, equal)):
        say(str(write_table(table_path(given.results, table), table, rows)))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
