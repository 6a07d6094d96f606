"""The GPU path without a GPU: the Triton source of every compiled function, and compressors that never wait for the device.

What is run here is the compiler's code generator; that the codes on a GPU are those of the CPU has not been measured.
"""

from __future__ import annotations

import re

import pytest
import torch

from reference_impls.algorithms import intsgd, lion_integers
from reference_impls.compressors import dithering, lookup, packing, signs
from reference_impls.compressors.levels import GeometricLevels, MinMax, Natural, UniformLevels
from reference_impls.core import compile_cache as programs
from reference_impls.core.compute import GPU_OPTIONS, THRESHOLD, Compiled, Key
from tests.reference_impls.compressors.test_compiled import FUNCTIONS
from tests.reference_impls.triton_source import (
    compile_kernels,
    divides_by_a_number,
    open_source,
    triton_source,
)

# More than one pass over the vector: draws that rows share are made once.
PASSES = {"lookup.encode": 2}

# A quotient by a number is a product with its reciprocal on a GPU, compiled or not: an ulp next to the CPU's.
DIVIDES_BY_A_NUMBER = {"lookup.encode"}


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    monkeypatch.setenv("BANDWISE_COMPILE", "0")


@pytest.fixture
def calls(request, monkeypatch):
    """What `request.param` calls of compiled functions of large tensors: name and variant -> function, arguments."""
    found = {}
    run = Compiled.__call__

    def note(self, *args):
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if tensors and tensors[0].numel() >= THRESHOLD:
            if self._fixed:
                programs.fix_rows(args)
            found.setdefault((self.name, self._variant(args)), (self.eager, args))
        return run(self, *args)

    monkeypatch.setattr(Compiled, "__call__", note)
    request.param()
    return found


def kernels(source):
    return re.findall(r"async_compile\.triton\('\w+', '''(.*?)'''", source, re.DOTALL)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(
            work,
            id=work.__name__,
            marks=() if work.__name__ in ("four_bits", "table_indices") else pytest.mark.full,
        )
        for work in FUNCTIONS
    ],
    indirect=True,
)
def test_each_function_is_one_kernel_that_rounds_as_the_cpu_does(calls):
    assert calls
    for (name, _), (function, args) in calls.items():
        assert divides_by_a_number(function, args) == (name in DIVIDES_BY_A_NUMBER), name
        source = triton_source(function, args, GPU_OPTIONS)
        launches = source.partition("async_compile.wait")[2].partition("def get_args")[0]
        assert len(re.findall(r"\.run\(", launches)) == len(kernels(source)) == PASSES.get(name, 1), name
        assert not re.search(r"extern_kernels|torch\.ops|\.item\(|cpu", launches), name
        for kernel in kernels(source):
            assert "'enable_fp_fusion': False" in kernel, name
            assert "'disable_ftz': True" in kernel, name
            assert not re.search(r"tmp\d+ / ", kernel), name  # IEEE quotients are div_rn
            assert not re.search(r"libdevice\.(fma|exp|log|pow|rsqrt|tanh)|fdividef", kernel), name


@pytest.mark.parametrize("calls", FUNCTIONS, ids=lambda work: work.__name__, indirect=True)
def test_triton_takes_each_function_with_what_a_training_leaves_open(calls, tmp_path):
    """A kernel can be generated that Triton refuses: one that reads as a float what an open integer has made one of 64 bits."""
    pytest.importorskip("triton", reason="only builds of torch for GPUs bring Triton")
    for (name, _), (function, args) in calls.items():
        assert compile_kernels(open_source(function, args, GPU_OPTIONS), tmp_path) > 0, name


def test_the_options_are_what_forbids_fusion():
    """What is asserted above is not so by default."""
    x = torch.ones(100)
    plain, ours = (
        triton_source(lambda a, b: a / b * a + b, (x, x), options) for options in ({}, GPU_OPTIONS)
    )
    assert "'enable_fp_fusion': True" in plain
    assert "div_rn" not in plain
    assert "'enable_fp_fusion': False" in ours
    assert "div_rn" in ours


class Device:
    """A compressor's work on tensors of a device that can compute nothing and tell nothing: waiting for it is an error."""

    def __init__(self, numel=1000):
        self.x = torch.empty(2, numel, device="meta")
        self.numel = numel
        self.key = Key.of(seed=1, step=2, stage="meta")

    def empty(self, *shape, dtype=torch.uint8):
        return torch.empty(*shape, dtype=dtype, device="meta")


def compressor(made):
    def work(on):
        wire = on.empty(2, made.wire_bytes(on.numel))
        made.encode(on.x, on.key, wire)
        made.decode(wire, torch.empty_like(on.x))

    return work


def bits(on):
    wire = on.empty(2, signs.wire_bytes(on.numel))
    signs.pack_signs(on.x, wire, zero=True)
    signs.pack(on.x > 0, wire)
    signs.unpack(wire, on.empty(2, on.numel, dtype=torch.bool))
    signs.unpack_signs(wire, torch.empty_like(on.x))
    signs.count_votes(wire, on.empty(on.numel, dtype=torch.int32))
    signs.decode_accumulate(wire, on.x[:, 0], on.x[0])
    signs.positive(on.x, on.key)


def integers(on):
    values = on.empty(2, on.numel, dtype=torch.int32)
    wire = on.empty(2, packing.wire_bytes(on.numel, 7))
    packing.pack(values, 7, wire)
    packing.unpack(wire, 7, values)
    packing.add_up(wire, 7, values[0])
    for size, pack, unpack in (
        (packing.nibble_bytes, packing.pack_nibbles, packing.unpack_nibbles),
        (packing.trit_bytes, packing.pack_trits, packing.unpack_trits),
    ):
        wire = on.empty(2, size(on.numel))
        pack(values, wire)
        unpack(wire, values)


def levels(on):
    scale = on.x.abs().amax()
    codes = on.empty(2, on.numel, dtype=torch.int8)
    dithering.encode(on.x, scale, 31, on.key, codes)
    dithering.decode(codes, scale, 31, 2, torch.empty_like(on.x))
    wire = on.empty(2, on.numel)
    dithering.encode_powers(on.x, scale, 1, on.key, wire)
    dithering.add_powers(wire, wire, on.key, wire)
    dithering.decode_powers(wire, scale, 1, 2, torch.empty_like(on.x))
    for rounding in ("stochastic", "nearest"):
        factor, sums = scale.reshape(1), on.empty(2, on.numel, dtype=torch.int32)
        intsgd.encode(on.x, factor, 31, rounding, on.key, sums)


def votes(on):
    codes = on.empty(2, on.numel, dtype=torch.int8)
    for kind in lion_integers.SCALES:
        lion_integers.encode(on.x, [slice(0, 400), slice(400, on.numel)], kind, 31, codes, key=on.key)


def table(on):
    found = on.empty(2, on.numel, dtype=torch.int32)
    lookup.table("published", 4, 30, 1 / 32).encode(on.x, on.key, found)


COMPRESSORS = {
    "bits": bits,
    "integers": integers,
    "levels": levels,
    "votes": votes,
    "table": table,
    "uniform levels": compressor(UniformLevels(7, "l2", 500)),
    "uniform levels of one block": compressor(UniformLevels(7, "linf", 0)),
    "geometric levels": compressor(GeometricLevels(7, "linf", 500)),
    "natural": compressor(Natural()),
    "min-max": compressor(MinMax(3, 500)),
    "min-max, nearest": compressor(MinMax(3, 0, "nearest")),
}


@pytest.mark.parametrize("work", COMPRESSORS)
def test_nothing_waits_for_the_device(work):
    COMPRESSORS[work](Device())


def test_waiting_would_be_seen():
    on = Device()
    for wait in (
        lambda: on.x.sum().item(),
        lambda: bool((on.x > 0).any()),
        lambda: on.x.cpu(),
        lambda: on.x.nonzero(),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)):
            wait()
