"""Compiled equals eager to the bit, says that it ran, and falls back aloud. All compressor compilation is tested here."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from reference_impls.algorithms import intsgd, lion_integers
from reference_impls.compressors import dithering, lookup, packing, signs
from reference_impls.compressors.levels import GeometricLevels, MinMax, Natural, UniformLevels
from reference_impls.core import compute
from reference_impls.core.compute import THRESHOLD, Compiled, Key, PathRecord

D = 70_001  # above the threshold, odd, no multiple of 32
N = 3


def numbers(*shape, seed=0):
    """Normal numbers with zeros of both signs, subnormal and large ones among them."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    for at, value in enumerate((0.0, -0.0, 1e-40, -1e-40, 1e-30, 3.0, -3.0)):
        x[..., at::1009] = value
    return x


def key(rank=0):
    return Key.of(seed=1, step=2, stage="compiled", rank=rank, start=7)


def packed_bits():
    wire = torch.empty(N, signs.wire_bytes(D), dtype=torch.uint8)
    signs.pack(numbers(N, D) > 0.2, wire)
    back = torch.empty(D, dtype=torch.bool)
    signs.unpack(wire[1], back)
    return [wire, back]


def bit_votes():
    wire = torch.empty(N, signs.wire_bytes(D), dtype=torch.uint8)
    signs.pack(numbers(N, D) > 0.2, wire)
    positive = torch.empty_like(wire[0])
    signs.pack_signs(numbers(D), positive, zero=True)
    values = torch.empty(D)
    signs.unpack_signs(wire[0], values)
    votes = torch.empty(D, dtype=torch.int32)
    signs.count_votes(wire, votes)
    total = numbers(D, seed=1)
    signs.decode_accumulate(wire, torch.tensor([0.3, 1e6, math.pi]), total)
    return [wire, positive, values, votes, total]


def four_bits():
    counters = torch.randint(
        0, 16, (2 * D + 1,), generator=torch.Generator().manual_seed(3), dtype=torch.int8
    )
    wire = torch.empty(packing.nibble_bytes(2 * D + 1), dtype=torch.uint8)
    packing.pack_nibbles(counters, wire)
    back = torch.empty_like(counters)
    packing.unpack_nibbles(wire, back)
    return [wire, back]


def any_width():
    values = torch.randint(0, 128, (N, D), generator=torch.Generator().manual_seed(4), dtype=torch.int32)
    wire = torch.empty(N, packing.wire_bytes(D, 7), dtype=torch.uint8)
    packing.pack(values, 7, wire)
    back = torch.empty_like(values)
    packing.unpack(wire, 7, back)
    total = torch.empty(D, dtype=torch.int32)
    packing.add_up(wire, 7, total)
    return [wire, back, total]


def standard_dithering():
    x = numbers(D)
    scale = x.abs().max()
    codes = torch.empty(D, dtype=torch.int8)
    dithering.encode(x, scale, 31, key(), codes)
    wide = torch.empty(D, dtype=torch.int16)
    dithering.encode(x, scale.expand(D).clone(), 8191, key(), wide)
    poisoned = torch.empty(D, dtype=torch.int8)
    x[5] = math.nan
    dithering.encode(x, torch.tensor(math.inf), 31, key(), poisoned)
    results = [codes, wide, poisoned]
    for source, top in ((codes, scale), (poisoned, torch.tensor(math.inf))):
        out = torch.empty(D)
        dithering.decode(source, top, 31, 4, out)
        results.append(out.nan_to_num(nan=-7.0))
    return results


def exponential_dithering():
    x = numbers(D)
    scale = x.abs().max()
    one, two, total = (torch.empty(D, dtype=torch.uint8) for _ in range(3))
    dithering.encode_powers(x, scale, 2, key(0), one)
    dithering.encode_powers(numbers(D, seed=5) * 0.2, scale, 2, key(1), two)
    dithering.add_powers(one, two, key(2), total)
    in_place = one.clone()
    dithering.add_powers(in_place, two, key(2), in_place)
    assert torch.equal(in_place, total)
    out = torch.empty(D)
    dithering.decode_powers(total, scale, 2, 4, out)
    return [one, two, total, out]


def levels():
    x, results = numbers(D), []
    for compressor in (
        UniformLevels(7, "l2", 500),
        GeometricLevels(7, "linf", 500),
        Natural(),
        MinMax(3, 500),
        MinMax(3, 0, "nearest"),
    ):
        wire = torch.empty(compressor.wire_bytes(D), dtype=torch.uint8)
        compressor.encode(x, key(), wire)
        out = torch.empty(D)
        compressor.decode(wire, out)
        results += [wire, out]
    return results


def rounded():
    x = numbers(D)
    results = []
    for rounding in ("stochastic", "nearest"):
        codes = torch.empty(D, dtype=torch.int32)
        results += [intsgd.encode(x, torch.tensor([20.0]), 31, rounding, key(), codes), codes]
    return results


def lion_votes():
    u = numbers(D)
    codes = torch.empty(D, dtype=torch.int8)
    flag = lion_integers.encode(u, [slice(0, D)], "l1", 31, codes)
    u[3] = math.nan
    flagged = torch.empty(D, dtype=torch.int8)
    return [codes, flag, flagged, lion_integers.encode(u, [slice(0, D)], "l1", 31, flagged)]


def table_indices():
    z = torch.randn(N, D, generator=torch.Generator().manual_seed(0)) * 2
    z[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    found = torch.empty(N, D, dtype=torch.int32)
    lookup.table("published", 4, 30, 1 / 32).encode(z, Key.of(seed=1, step=2, stage="table", rank=0), found)
    return [found]


FUNCTIONS = {
    packed_bits: {"signs.pack_words", "signs.unpack_words"},
    bit_votes: {"signs.pack_words", "signs.pack_positive", "signs.unpack_signs", "signs.unpack_words", "signs.add_row",
                "signs.count_words"},
    four_bits: {"packing.join_nibbles", "packing.split_nibbles"},
    any_width: {"packing.pack_tiles", "packing.unpack_tiles"},
    standard_dithering: {"dithering.encode", "dithering.decode"},
    exponential_dithering: {"dithering.encode_powers", "dithering.add_powers", "dithering.decode_powers"},
    levels: {"blocks.encode_tiles", "blocks.make_codes", "blocks.decode_tiles", "sums.maxima",
             "levels.ends", "packing.pack_tiles", "packing.unpack_tiles"},
    rounded: {"intsgd.stochastic", "intsgd.nearest"},
    lion_votes: {"lion_integers.quantise", "sums.fold"},
    table_indices: {"lookup.encode"},
}  # fmt: skip


# Eager calls, too, beside the large ones: of what is left of a vector behind its blocks, of the sums of its blocks.
SMALL = {levels: {"levels.ends"}, lion_votes: {"sums.fold_lanes"}}


@pytest.mark.parametrize(
    "work",
    [pytest.param(f, id=f.__name__, marks=() if f is packed_bits else pytest.mark.full) for f in FUNCTIONS],
)
@pytest.mark.compiled
def test_compiled_equals_eager(work, monkeypatch):
    compute.reset_paths()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fast = work()
    ran = compute.paths()
    assert {name for name, calls in ran.items() if calls.get("compiled")} == FUNCTIONS[work]
    assert {name for name, calls in ran.items() if "eager" in calls} == SMALL.get(work, set())
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    compute.reset_paths()
    slow = work()
    assert all(set(calls) == {"eager"} for calls in compute.paths().values())
    for a, b in zip(fast, slow, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.compiled
def test_subnormal_numbers_survive_in_this_process():
    """Compiled libraries built with fast-math flags are known to switch them off for the whole process."""
    packing.pack_nibbles(
        torch.zeros(2 * THRESHOLD + 2, dtype=torch.int32), torch.empty(THRESHOLD + 1, dtype=torch.uint8)
    )
    tiny = torch.tensor([1e-40])
    assert (tiny + tiny).item() > tiny.item() > 0


def double(x):
    return x * 2


def test_small_tensors_and_the_switch_run_eagerly(monkeypatch):
    record = PathRecord()
    function = Compiled(double, threshold=8, record=record)
    assert function.name == "test_compiled.double"
    assert function.eager is double
    assert function(torch.ones(7)).tolist() == [2.0] * 7
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    function(torch.ones(8))
    assert record.paths() == {"test_compiled.double": {"eager": 2}}


def test_without_a_compiler_it_runs_eagerly(monkeypatch):
    monkeypatch.delenv("BANDWISE_COMPILE", raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler-anywhere")
    compute._compiles_for_cpu.cache_clear()
    record = PathRecord()
    function = Compiled(double, threshold=8, record=record)
    with pytest.warns(
        RuntimeWarning, match=r"no C\+\+ compiler \(no-such-compiler-anywhere\).*several times slower"
    ):
        function(torch.ones(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(torch.ones(8))  # said once
    assert record.paths() == {"test_compiled.double": {"eager": 2}}
    assert record.failures() == {}


@pytest.mark.compiled
def test_a_failed_compilation_is_told_once_and_recorded():
    def unfit(x):
        torch._dynamo.graph_break()
        return x * 2

    record = PathRecord()
    function = Compiled(unfit, threshold=8, record=record)
    with pytest.warns(RuntimeWarning, match="could not be compiled and runs eagerly") as caught:
        assert function(torch.ones(8)).tolist() == [2.0] * 8
    assert len([w for w in caught if w.category is RuntimeWarning]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function(torch.ones(9))
    assert record.paths() == {"test_compiled.unfit": {"eager": 2}}
    assert list(record.failures()) == ["test_compiled.unfit"]


@pytest.mark.compiled
def test_a_gpu_without_what_keeps_the_codes_runs_eagerly(monkeypatch):
    """As on a torch that knows other options: codes are never those of other arithmetic, and nothing is raised."""
    monkeypatch.setitem(compute.GPU_OPTIONS, "eager_numerics.of_another_torch", True)
    # of a tensor without memory, in the place of a GPU's
    monkeypatch.setattr(compute, "_possible", lambda tensor: True)
    record = PathRecord()
    function = Compiled(double, threshold=8, record=record)
    reason = r"test_compiled\.double could not be compiled and runs eagerly.*has no eager_numerics\.of_another_torch"
    with pytest.warns(RuntimeWarning, match=reason):
        assert function(torch.ones(8, device="meta")).device.type == "meta"
    assert record.paths() == {"test_compiled.double": {"eager": 1}}
