"""What speed must reach, with the source of each number in one place: tables, guards and the document read it here.

Rates of a codec are over a memory copy (2 threads, 25 million elements, buffers owned by the caller).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["AGAINST", "CODECS", "COLD_S", "WARM_S"]

_GIVEN, _FOUND, _ADDED, _OTHERS = 0.6, 0.4, 1.0, 0.4

CODECS: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("signs", "encode"): 1.4,
        ("signs", "accumulate"): 1.0,
        ("standard-dithering-4bit", "encode"): _GIVEN,
        ("standard-dithering-8bit", "encode"): _GIVEN,
        ("standard-dithering-4bit-global", "encode"): _FOUND,
        ("standard-dithering-8bit-global", "encode"): _FOUND,
        ("equal-levels-4bit-given", "encode"): _GIVEN,
        ("equal-levels-8bit-given", "encode"): _GIVEN,
        ("equal-levels-4bit-global", "encode"): _FOUND,
        ("equal-levels-8bit-global", "encode"): _FOUND,
        ("equal-levels-4bit-global", "accumulate"): _ADDED,
        ("equal-levels-8bit-global", "accumulate"): _ADDED,
        ("equal-levels-4bit", "encode"): _FOUND,
        ("equal-levels-4bit-linf", "encode"): _FOUND,
        ("equal-levels-8bit", "encode"): _FOUND,
        ("equal-levels-4bit", "accumulate"): _ADDED,
        ("equal-levels-8bit", "accumulate"): _ADDED,
        **{
            (case, operation): _OTHERS
            for case in (
                "exponential-dithering",
                "natural-9bit",
                "ternary-2bit",
                "ternary-trits",
                "bf16",
                "min-max-4bit",
            )
            for operation in ("encode", "decode")
        },
    }
)
"""(case, operation) -> least rate over a copy."""

AGAINST: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("top-k-1pct", "torch.topk of abs"): 5.0,
        ("count-sketch", "plain torch"): 3.0,
        ("low-rank-4", "torch's powerSGD_hook"): 1.0,
    }
)
"""(case, what it is compared with) -> least ratio of the other's seconds over ours."""

WARM_S: Final = 5.0
"""Seconds that the first calls of all codecs may take where the cache on disk is warm."""

COLD_S: Final = 90.0
"""The same with an empty cache."""
