"""How fast every compressor is on a GPU, beside a copy there, and whether its bits are those of the CPU: `make gpu`.

The cases are those of the CPU's table (`suite.micro.cases`), with their tensors, the words of their keys included, on
the device. *Rate*: seconds of `Tensor.copy_` of as many float32 into a ready buffer, the mean of the copy's before and after,
over those of the operation, by the device's events, pair by pair. *Bits*: message, decoded and accumulated numbers of a
shorter vector equal those of the plain torch source on the CPU. A row is written as soon as it is measured, and what the
table holds of this device and these versions is not measured again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from reference_impls.compressors.sparse import kept
from reference_impls.core import compute
from reference_impls.core.compute import Key
from suite.gpu.tables import code_of, held, met, place_of, quartiles, say, today, versions, write
from suite.micro.cases import COMPRESSORS, VERBS, Case, build

NUMEL: Final = 100_000_000
SHORT: Final = 1_000_003  # where bits are compared: no multiple of anything, and long enough to be compiled
PAIRS: Final = 25
BUDGET_S: Final = 540.0
"""After which no further case is begun."""
WARM: Final = 3

_SIGNS, _LEVELS, _OTHERS = (1.4, 1.3, 0.85), (1.2, 1.0, 0.8), 0.8

BARS: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        **{("signs", verb): bar for verb, bar in zip(VERBS, _SIGNS, strict=True)},
        **{
            (f"equal-levels-{bits}bit-given", verb): bar
            for bits in (4, 8)
            for verb, bar in zip(VERBS, _LEVELS, strict=True)
        },
        **{
            (case, verb): _OTHERS
            for case in (
                "exponential-dithering",
                "natural-9bit",
                "ternary-2bit",
                "min-max-4bit",
            )
            for verb in ("encode", "decode")
        },
        ("top-k-1pct", "encode"): 0.35,
        **{(case, verb): 0.5 for case in ("hadamard", "thc-4bit") for verb in ("encode", "decode")},
        **{("count-sketch", verb): 0.1 for verb in ("encode", "decode")},
    }
)
"""Rates that an H100 or H200 must reach at `NUMEL`."""

OTHERS: Final = MappingProxyType(
    {"torch.topk": lambda case: torch.topk(case.x.abs(), kept(0.01, case.x.numel()), sorted=False)}
)
"""What one would write without us, on the vector of the case `copy`; no bar."""

COLUMNS: Final = (
    "case", "operation", "numel", "n", "seconds", "copy_s", "rate", "rate_q1", "rate_q3", "bar", "met", "bits", "path",
    "first_s", "device", "torch", "triton", "date",
)  # fmt: skip
_ROUNDED: Final = ("count-sketch", "low-rank-4")
"""Cases whose sums have no fixed order on a GPU, or whose products the library's: they are compared within rounding."""


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Nothing is compiled, as for what is computed once on the CPU."""
    before = os.environ.get("BANDWISE_COMPILE")
    os.environ["BANDWISE_COMPILE"] = "0"
    try:
        yield
    finally:
        os.environ.pop("BANDWISE_COMPILE") if before is None else os.environ.update(BANDWISE_COMPILE=before)


def on_device(case: Case, device: torch.device) -> Case:
    """The case itself, its tensors and its key moved."""
    for name, value in vars(case).items():
        if isinstance(value, Tensor):
            setattr(case, name, value.to(device))
        elif isinstance(value, Key):
            setattr(case, name, Key(value.words.to(device)))
    return case


def _built(name: str, device: torch.device) -> Case:
    with uncompiled():
        return on_device(build(name, NUMEL, os.cpu_count() or 1), device)


def results(case: Case) -> Iterator[Tensor]:
    """What every operation of a case leaves."""
    case.encode()
    yield case.wire.clone()
    case.decode()
    yield case.out.clone()
    if "accumulate" in case.verbs:
        case.accumulate()
        yield case.out.clone()


def bits(name: str, device: torch.device) -> str:
    """equal, close (where sums have no fixed order) or the operation that differs first and in how many elements."""
    with uncompiled():
        expected = list(results(build(name, SHORT, os.cpu_count() or 1)))
        case = on_device(build(name, SHORT, os.cpu_count() or 1), device)
    found = [own.cpu() for own in results(case)]
    for verb, own, other in zip(VERBS, found, expected, strict=False):
        if not own.view(torch.uint8).equal(other.view(torch.uint8)):
            if name in _ROUNDED and torch.allclose(own, other, rtol=1e-4, atol=1e-4):
                return "close"
            differing = int((own.view(torch.uint8) != other.view(torch.uint8)).sum())
            return f"{verb}: {differing} of {own.view(torch.uint8).numel()} bytes differ"
    return "equal"


def pairs(copy: Callable[[], object], own: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Seconds of both by the device's events, in turns: the mean of the copy's before and after, and the operation's."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * PAIRS + 2)]  # type: ignore[no-untyped-call]
    for _ in range(WARM):
        own()
        copy()
    torch.cuda.synchronize()
    for i in range(PAIRS):
        marks[2 * i].record()
        copy()
        marks[2 * i + 1].record()
        own()
    marks[-2].record()
    copy()
    marks[-1].record()
    torch.cuda.synchronize()
    gaps = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]
    copies, owns = gaps[0::2], gaps[1::2]
    return [(a + b) / 2 for a, b in itertools.pairwise(copies)], owns


def _row(name: str, verb: str, copy: Case, run: Callable[[], object]) -> dict[str, object]:
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    compute.reset_paths()
    run()
    ran = {way for calls in compute.paths().values() for way in calls}
    copies, owns = pairs(copy.encode, run)
    rates = [a / b for a, b in zip(copies, owns, strict=True)]
    bar = BARS.get((name, verb))
    return {
        "case": name,
        "operation": verb,
        "numel": NUMEL,
        "n": PAIRS,
        "seconds": f"{statistics.median(owns):.6g}",
        "copy_s": f"{statistics.median(copies):.6g}",
        **quartiles("rate", "rate", rates, 4),
        "bar": "" if bar is None else bar,
        "met": met(None if bar is None else statistics.median(rates) >= bar),
        "path": "+".join(sorted(ran)) or "torch",
        "first_s": f"{first:.2f}",
        "date": today(),
    }


def measure(path: Path) -> bool:
    """Append to a table what it does not hold yet; whether all has been measured."""
    device = torch.device("cuda")
    end = time.monotonic() + BUDGET_S
    facts = versions()
    known = {row["case"] for row in held(path, facts)}
    wanted = [name for name in (*COMPRESSORS[1:], *OTHERS) if name not in known]
    same = {name: "" if name in OTHERS else bits(name, device) for name in wanted}
    copy = _built("copy", device)
    for name in wanted:
        if time.monotonic() > end:
            return False
        if name in OTHERS:
            rows = [_row(name, "encode", copy, functools.partial(OTHERS[name], copy))]
        else:
            case = _built(name, device)
            rows = [_row(name, verb, copy, getattr(case, verb)) for verb in VERBS if verb in case.verbs]
            del case
        found = [{**row, **facts, "bits": same[name]} for row in rows]
        write(path, [*held(path, facts), *found], COLUMNS)
        for row in rows:
            say(
                f"{name:28} {row['operation']:10} {row['rate']:>8} [{row['rate_q1']}, {row['rate_q3']}] "
                f"bar {row['bar'] or '-':<4} {row['met']:3} {row['path']} bits {same[name]}; first {row['first_s']} s"
            )
    return True


def main() -> int:
    whole = measure(place_of("codecs", __doc__))
    for name, reason in compute.failures().items():
        say(f"not compiled: {name}: {reason}")
    return code_of(whole)


if __name__ == "__main__":
    raise SystemExit(main())
