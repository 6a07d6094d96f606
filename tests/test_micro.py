"""The asv benchmarks: their literal lists against what exists, the byte counts they report, and asv's own check."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reference_impls import info, list_algorithms
from reference_impls.core.catalogue import BUILT_IN
from suite.micro.cases import COMPRESSORS
from suite.micro.compressors import TimeAccumulate, TimeDecode, TimeEncode, TrackCompressor
from suite.micro.steps import METHODS, TimeStep, TrackStep
from tests.support import ROOT


def test_the_methods_that_are_timed_are_those_of_the_index() -> None:
    # another test of this process may have loaded a plugin file
    shipped = {name for name in list_algorithms() if info(name).family != "plugin"}
    assert set(BUILT_IN) == shipped
    assert set(METHODS) == {name for name in shipped if BUILT_IN[name].benchmarked}
    assert len(METHODS) > 40
    assert not any(name.startswith("control-") for name in METHODS)


def test_what_is_timed_does_work() -> None:
    for compressor in COMPRESSORS:
        encode, decode = TimeEncode(), TimeDecode()
        encode.setup(compressor, 4096)
        encode.case.wire.zero_()
        encode.time_encode(compressor, 4096)
        decode.setup(compressor, 4096)
        decode.case.out.zero_()
        decode.time_decode(compressor, 4096)
        assert (encode.case.wire.any(), decode.case.out.any()) == (True, True), compressor
    for method in METHODS[::8]:
        timed = TimeStep()
        timed.setup(method)
        before = timed.cluster.parameters(0)[0].clone()
        timed.time_step(method)
        assert not before.equal(timed.cluster.parameters(0)[0]), method


def test_bytes_and_residuals_are_reported_of_the_compressor() -> None:
    """A bit an element; sqrt(1 - (E|x|)^2 / E[x^2]) is 0.708 for the benchmark's vector."""
    track = TrackCompressor()
    track.setup("signs")
    assert track.track_bytes_per_element("signs") == 1 / 8
    assert track.track_residual("signs") == pytest.approx(0.708, abs=0.01)


def test_what_cannot_add_has_no_number() -> None:
    with pytest.raises(NotImplementedError, match="does not add"):
        TimeAccumulate().setup("count-sketch", 4096)


def test_a_slow_path_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    with pytest.raises(NotImplementedError, match="did not run on the compiled path"):
        TimeEncode().setup("signs", 1048576)


def test_fp32_all_reduce_sends_what_the_ring_formula_says() -> None:
    track = TrackStep()
    track.setup("allreduce-sgd")
    assert track.track_wire_bytes_per_parameter("allreduce-sgd") == 4 * 2 * (4 - 1) / 4


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
