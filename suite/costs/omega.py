"""omega, measured: how many times slower a byte of codes is added than a byte of floats. Global-QSGD's model, arXiv 2305.18627.

Standard dithering adds integers as they are; exponential dithering adds powers of two, with rounding at random. Both are timed
in turns with an fp32 addition in place, of as many elements, in buffers that are ready.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from reference_impls.codecs import exponential
from reference_impls.randomness import Key
from suite.analysis.tables import Row
from suite.costs.papers import GLOBAL_QSGD_OMEGA, GlobalQSGD
from suite.micro.pairs import in_turns

NUMEL: Final = 25_000_000
THREADS: Final = 2
PAIRS: Final = 20
BUDGET_S: Final = 10.0
FLOAT_BYTES: Final = 4


def omega_rows(threads: int, numel: int = NUMEL, budget_s: float = BUDGET_S) -> list[Row]:
    """Rows of the table `costs-omega`: both ditherings."""
    held = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return [_row(name, add, numel, budget_s) for name, add in _additions(numel).items()]
    finally:
        torch.set_num_threads(held)


def _additions(numel: int) -> dict[str, Callable[[], object]]:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-3, 4, (numel,), dtype=torch.int8, generator=generator) for _ in range(2))
    codes = [torch.randint(1, 60, (numel,), dtype=torch.uint8, generator=generator) for _ in range(2)]
    key = Key.of(seed=0, step=0, stage="omega", rank=0)
    return {
        "standard": lambda: torch.add(a, b, out=a),
        "exponential": lambda: exponential.add(codes[0], codes[1], key, codes[0]),
    }


def _row(name: str, add: Callable[[], object], numel: int, budget_s: float) -> Row:
    x, y = torch.zeros(numel), torch.zeros(numel)
    found = in_turns(lambda: x.add_(y), add, budget_s=budget_s, least=PAIRS)
    ratios = sorted(FLOAT_BYTES / ratio for ratio in found.ratios())
    middle = ratios[len(ratios) // 2]
    gamma = FLOAT_BYTES * numel / found.control_seconds()
    model = GlobalQSGD(1.0, gamma, middle)
    return {
        "dithering": name,
        "n": found.n,
        "omega": middle,
        "omega_q1": ratios[len(ratios) // 4],
        "omega_q3": ratios[3 * len(ratios) // 4],
        "paper": GLOBAL_QSGD_OMEGA[name],
        "gamma": gamma,
        "break_even": None if model.break_even == float("inf") else model.break_even,
    }
