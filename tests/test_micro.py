"""The asv benchmarks: their literal lists against what exists, the byte counts they report, and asv's own check."""

from __future__ import annotations

import json
import math
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import reference_impls.codecs
from reference_impls import info, list_algorithms
from suite.micro.cases import CODECS
from suite.micro.codecs import TimeDecode, TimeEncode, TrackCodec
from suite.micro.steps import METHODS, NOT_TIMED, TimeStep, TrackStep

ROOT = Path(__file__).resolve().parent.parent
# Modules of reference_impls.codecs that are no codec of their own but parts of others.
PARTS = {
    "block_levels", "blocks", "codec", "count_sketch", "dct", "hadamard", "lookup", "low_rank", "nibbles", "packed_integers",
    "scaled_rounding", "selection", "sums", "trits",
}  # fmt: skip
MODULES = {
    "signs": "signs",
    "standard-dithering-8bit": "dithering",
    "exponential-dithering": "exponential",
    "lion-8bit-l1": "lion_integers",
    "scaled-signs": "scaled_signs",
    "equal-levels-4bit": "uniform_levels",
    "geometric-levels-4bit": "geometric_levels",
    "natural-9bit": "natural",
    "min-max-4bit": "min_max",
    "bf16": "halves",
    "top-k-1pct": "sparse",
    "chunk-top-k": "chunk_top_k",
}
NUMEL = 16384
EXACT_BYTES = {
    "copy": 4 * NUMEL,
    "signs": NUMEL // 8,
    "standard-dithering-8bit": NUMEL + 4,
    "exponential-dithering": NUMEL + 4,
    "lion-8bit-l1": NUMEL,
    "scaled-signs": NUMEL // 8 + 4,
    "equal-levels-4bit": NUMEL // 2 + 4 * (NUMEL // 512),
    "geometric-levels-4bit": NUMEL // 2 + 4 * (NUMEL // 512),
    "natural-9bit": 9 * NUMEL // 8,
    "min-max-4bit": NUMEL // 2 + 8 * (NUMEL // 512),
    "bf16": 2 * NUMEL,
    "top-k-1pct": 163 * 4 + math.ceil(163 * 14 / 8),  # places in log2(NUMEL) = 14 bits
    "chunk-top-k": NUMEL // 4096 * (64 * (12 + 2) // 8 + 4),
}
# Relative residuals of the benchmark's vector, whose |x| is a half-normal times a uniform number in 0.05 .. 1.05.
# signs: sqrt(1 - (E|x|)^2 / E[x^2]) = sqrt(1 - (2/pi) 0.55^2 / 0.3858) = 0.708 within the sample's error.
RESIDUALS = {
    "copy": (0.0, 0.0),
    "signs": (0.70, 0.72),
    "standard-dithering-8bit": (0.02, 0.20),
    "exponential-dithering": (0.15, 0.36),
    "lion-8bit-l1": (0.20, 0.45),
    "scaled-signs": (0.70, 0.72),
    "equal-levels-4bit": (
        0.9,
        math.sqrt(math.sqrt(512) / 7),
    ),  # the bound sqrt(block) / levels on the variance
    "geometric-levels-4bit": (0.20, 0.45),
    "natural-9bit": (0.20, math.sqrt(1 / 8)),  # the bound 1/8
    "min-max-4bit": (0.10, 0.35),
    "bf16": (1e-3, 2**-8),
    "top-k-1pct": (0.85, math.sqrt(1 - 0.01)),  # the bound 1 - k/d
    "chunk-top-k": (0.85, math.sqrt(1 - 64 / 4096)),
}


def test_every_method_is_timed_or_left_out_on_purpose() -> None:
    # another test of this process may have loaded a plugin file
    shipped = [name for name in list_algorithms() if info(name).family != "plugin"]
    assert sorted(METHODS + NOT_TIMED) == shipped
    assert not set(METHODS) & set(NOT_TIMED)


def test_every_codec_has_a_case() -> None:
    modules = {module.name for module in pkgutil.iter_modules(reference_impls.codecs.__path__)}
    assert set(MODULES.values()) == modules - PARTS
    assert set(MODULES) | {"copy"} == set(CODECS)


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_and_residuals_are_what_they_should_be(codec: str) -> None:
    track = TrackCodec()
    track.setup(codec)
    assert track.track_bytes_per_element(codec) == EXACT_BYTES[codec] / NUMEL
    low, high = RESIDUALS[codec]
    assert low <= track.track_residual(codec) <= high


@pytest.mark.parametrize("codec", CODECS)
def test_timed_codecs_do_work(codec: str) -> None:
    encode = TimeEncode()
    encode.setup(codec, 4096)
    encode.case.wire.zero_()
    encode.time_encode(codec, 4096)
    assert encode.case.wire.any()
    decode = TimeDecode()
    decode.setup(codec, 4096)
    decode.case.out.zero_()
    decode.time_decode(codec, 4096)
    assert decode.case.out.any()


def test_a_slow_path_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    with pytest.raises(NotImplementedError, match="did not run on the compiled path"):
        TimeEncode().setup("signs", 1048576)


@pytest.mark.parametrize("method", METHODS)
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


def test_the_results_directory_is_the_one_that_tables_read() -> None:
    assert json.loads((ROOT / "asv.conf.json").read_text())["results_dir"] == "results/asv"
