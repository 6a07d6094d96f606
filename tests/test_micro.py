"""The asv benchmarks: their literal lists against what exists, the byte counts they report, and asv's own check."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from reference_impls import info, list_algorithms
from reference_impls.core.catalogue import BUILT_IN
from suite.micro.cases import COMPRESSORS, build
from suite.micro.compressors import TimeAccumulate, TimeDecode, TimeEncode, TrackCompressor
from suite.micro.steps import METHODS, TimeStep, TrackStep

ROOT = Path(__file__).resolve().parent.parent


def sampled(names: Iterable[str]) -> list[Any]:
    """Names as parameters of a test: every eighth in the fast tests, all in the full ones."""
    return [pytest.param(name, marks=pytest.mark.full if i % 8 else ()) for i, name in enumerate(names)]


NUMEL = 16384
EXACT_BYTES = {
    "copy": 4 * NUMEL,
    "signs": NUMEL // 8,
    "standard-dithering-4bit": NUMEL // 2 + 4,
    "standard-dithering-4bit-global": NUMEL // 2 + 4,
    "standard-dithering-8bit": NUMEL + 4,
    "standard-dithering-8bit-global": NUMEL + 4,
    "exponential-dithering": NUMEL + 4,
    "lion-8bit-l1": NUMEL,
    "scaled-signs": NUMEL // 8 + 4,
    "equal-levels-4bit": NUMEL // 2 + 4 * (NUMEL // 512),
    "equal-levels-4bit-given": NUMEL // 2 + 4,
    "equal-levels-4bit-global": NUMEL // 2 + 4,
    "equal-levels-8bit-given": NUMEL + 4,
    "equal-levels-8bit-global": NUMEL + 4,
    "equal-levels-4bit-linf": NUMEL // 2 + 4 * (NUMEL // 512),
    "equal-levels-8bit": NUMEL + 4 * (NUMEL // 512),
    "geometric-levels-4bit": NUMEL // 2 + 4 * (NUMEL // 512),
    "natural-9bit": 9 * NUMEL // 8,
    "ternary-2bit": NUMEL // 4 + 4,
    "ternary-trits": math.ceil(NUMEL / 5) + 4,
    "scaled-rounding-8bit": NUMEL,
    "thc-4bit": NUMEL // 2,
    "hadamard": 4 * NUMEL,
    "min-max-4bit": NUMEL // 2 + 8 * (NUMEL // 512),
    "bf16": 2 * NUMEL,
    "fp16": 2 * NUMEL,
    "top-k-1pct": 163 * 4 + math.ceil(163 * 14 / 8),  # places in log2(NUMEL) = 14 bits
    "chunk-top-k": NUMEL // 4096 * (64 * (12 + 2) // 8 + 4),
    "count-sketch": 4 * 5 * math.ceil(0.009 * NUMEL),
    "low-rank-4": 4 * 4 * (128 + 128),
}
# Relative residuals of the benchmark's vector, whose |x| is a half-normal times a uniform number in 0.05 .. 1.05.
# signs: sqrt(1 - (E|x|)^2 / E[x^2]) = sqrt(1 - (2/pi) 0.55^2 / 0.3858) = 0.708 within the sample's error.
RESIDUALS = {
    "copy": (0.0, 0.0),
    "signs": (0.70, 0.72),
    "standard-dithering-4bit": (0.2, 0.5),
    "standard-dithering-4bit-global": (0.2, 0.5),
    "standard-dithering-8bit": (0.02, 0.20),
    "standard-dithering-8bit-global": (0.02, 0.20),
    "exponential-dithering": (0.15, 0.36),
    "lion-8bit-l1": (0.20, 0.45),
    "scaled-signs": (0.70, 0.72),
    "equal-levels-4bit": (
        0.9,
        math.sqrt(math.sqrt(512) / 7),
    ),  # the bound sqrt(block) / levels on the variance
    "equal-levels-4bit-given": (0.2, 0.5),
    "equal-levels-4bit-global": (0.2, 0.5),
    "equal-levels-8bit-given": (0.01, 0.05),
    "equal-levels-8bit-global": (0.01, 0.05),
    "equal-levels-4bit-linf": (0.15, 0.35),
    "equal-levels-8bit": (0.05, math.sqrt(512) / 127),  # the other bound
    "geometric-levels-4bit": (0.20, 0.45),
    "natural-9bit": (0.20, math.sqrt(1 / 8)),  # the bound 1/8
    "ternary-2bit": (1.5, 2.5),  # sqrt(max|x| E|x| / E x^2 - 1)
    "ternary-trits": (1.5, 2.5),
    "scaled-rounding-8bit": (0.03, 0.10),
    "thc-4bit": (0.10, 0.35),
    "hadamard": (0.0, 1e-5),
    "min-max-4bit": (0.10, 0.35),
    "bf16": (1e-3, 2**-8),
    "fp16": (1e-4, 2**-11),
    "top-k-1pct": (0.85, math.sqrt(1 - 0.01)),  # the bound 1 - k/d
    "chunk-top-k": (0.85, math.sqrt(1 - 64 / 4096)),
    "count-sketch": (
        3.0,
        1 / math.sqrt(0.009),
    ),  # below that of a single row; far above 1: it is for heavy coordinates
    "low-rank-4": (0.85, 1.0),
}


def test_the_methods_that_are_timed_are_those_of_the_index() -> None:
    # another test of this process may have loaded a plugin file
    shipped = {name for name in list_algorithms() if info(name).family != "plugin"}
    assert set(BUILT_IN) == shipped
    assert set(METHODS) == {name for name in shipped if BUILT_IN[name].benchmarked}
    assert len(METHODS) > 40
    assert not any(name.startswith("control-") for name in METHODS)


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_bytes_and_residuals_are_what_they_should_be(compressor: str) -> None:
    track = TrackCompressor()
    track.setup(compressor)
    assert track.track_bytes_per_element(compressor) == EXACT_BYTES[compressor] / NUMEL
    low, high = RESIDUALS[compressor]
    assert low <= track.track_residual(compressor) <= high


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_timed_codecs_do_work(compressor: str) -> None:
    encode = TimeEncode()
    encode.setup(compressor, 4096)
    encode.case.wire.zero_()
    encode.time_encode(compressor, 4096)
    assert encode.case.wire.any()
    decode = TimeDecode()
    decode.setup(compressor, 4096)
    decode.case.out.zero_()
    decode.time_decode(compressor, 4096)
    assert decode.case.out.any()


@pytest.mark.parametrize(
    "compressor", [compressor for compressor in COMPRESSORS if "accumulate" in build(compressor, 32).verbs]
)
def test_adding_is_decoding_and_an_addition(compressor: str) -> None:
    timed = TimeAccumulate()
    timed.setup(compressor, 4096)
    case = timed.case
    case.encode()
    case.decode()
    once = case.out * case.scales if compressor == "signs" else case.out.clone()
    case.out.fill_(3.0)
    timed.time_accumulate(compressor, 4096)
    torch.testing.assert_close(case.out, once + 3.0)


def test_what_cannot_add_has_no_number() -> None:
    with pytest.raises(NotImplementedError, match="does not add"):
        TimeAccumulate().setup("count-sketch", 4096)


def test_a_slow_path_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    with pytest.raises(NotImplementedError, match="did not run on the compiled path"):
        TimeEncode().setup("signs", 1048576)


@pytest.mark.parametrize("method", sampled(METHODS))
def test_timed_methods_step(method: str) -> None:
    timed = TimeStep()
    timed.setup(method)
    before = timed.cluster.parameters(0)[0].clone()
    timed.time_step(method)
    assert not before.equal(timed.cluster.parameters(0)[0])


def test_fp32_all_reduce_sends_what_the_ring_formula_says() -> None:
    track = TrackStep()
    track.setup("allreduce-sgd")
    assert track.track_wire_bytes_per_parameter("allreduce-sgd") == 4 * 2 * (4 - 1) / 4


def test_unknown_at_this_commit_is_not_available_instead_of_failed() -> None:
    with pytest.raises(NotImplementedError, match="at this commit"):
        TimeStep().setup("a-method-of-tomorrow")


@pytest.mark.full
def test_asv_finds_no_problem(tmp_path: Path) -> None:
    asv = [sys.executable, "-m", "asv"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    checked = subprocess.run(
        [*asv, "check", "--python=same"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "No problems found" in checked.stdout
