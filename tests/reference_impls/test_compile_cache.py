"""Programs on disk: found again without compiling, one for all sizes, of no harm when they are broken or stale."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from reference_impls.core import compile_cache as programs
from reference_impls.core import compute
from reference_impls.core.compute import Compiled, Key, PathRecord

pytestmark = pytest.mark.compiled


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "_folder", lambda: tmp_path)


def rounded(x, scale, count, words, out):
    """As the compressors do: numbers that change from call to call, a stream, a result in place."""
    low = (x / scale * count).floor()
    out.copy_(low.to(torch.int32) + (words[0:1] & 1))


def shifted(x, up, out):
    out.copy_(x + 1 if up else x - 1)


def of_package(function):
    """The function as if it were one of the package's own, which are kept."""
    function.__module__ = "reference_impls.compressors.test"
    return Compiled(function, threshold=8, record=PathRecord())


def made(function):
    return sum(len(kind._programs) for kind in function._fast.values())


def words(step):
    return Key.of(seed=1, step=step, stage="programs").words


def test_one_program_for_all_sizes_numbers_and_places():
    function = of_package(rounded)
    memory = torch.randn(1 << 21)
    for call, (size, count) in enumerate(
        [(65536, 31), (65537, 7), (100_003, 8191), (1 << 20, 2), (64, 3), (9, 127)]
    ):
        x = memory[call : call + size]  # a view, at another place each time
        out = torch.empty(size, dtype=torch.int32)
        scale = x.abs().max()
        function(x, scale, count, words(call), out)
        again = torch.empty_like(out)
        rounded(x, scale, count, words(call), again)
        assert torch.equal(out, again)
    assert made(function) == 1
    assert not compute.failures().get(function.name)


def test_one_piece_of_memory_as_two_arguments():
    function = of_package(shifted)
    x = torch.arange(100.0)
    function(x, True, torch.empty(100))
    function(x, True, x)
    function(x[:], True, x[:])
    assert torch.equal(x, torch.arange(100.0) + 2)
    assert made(function) == 2


def test_a_broken_file_is_compiled_anew(tmp_path):
    x, out = torch.randn(100), torch.empty(100)
    of_package(shifted)(x, True, out)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    out.zero_()
    of_package(shifted)(x, True, out)
    assert torch.equal(out, x + 1)


def test_its_name_stands_for_the_sources(monkeypatch, tmp_path):
    x, out = torch.randn(100), torch.empty(100)
    of_package(shifted)(x, True, out)
    monkeypatch.setattr(programs, "_sources", lambda: "other sources")
    of_package(shifted)(x, True, out)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_sources_are_those_of_the_whole_package(monkeypatch):
    read, of = Path.read_bytes, programs._sources.__wrapped__
    before = of()
    for folder in ("core", "compressors", "aggregators", "algorithms", "kernels"):
        monkeypatch.setattr(
            Path,
            "read_bytes",
            lambda path, own=folder: read(path) + path.parent.name.encode() * (path.parent.name == own),
        )
        assert of() != before, folder


def test_who_holds_the_lock_for_ever_is_told(monkeypatch):
    def locked(*args, **kwargs):
        raise TimeoutError("The file lock 'x.lock' could not be acquired.")

    record = PathRecord()
    function = Compiled(shifted, threshold=8, record=record)
    monkeypatch.setattr("torch._dynamo.aot_compile.aot_compile_fullgraph", locked)
    warning = r"another process has been compiling.*x\.lock.*if it is stopped, end it"
    out = torch.empty(100)
    with pytest.warns(RuntimeWarning, match=warning):
        function(torch.zeros(100), True, out)
    assert torch.equal(out, torch.ones(100))


def test_more_kinds_than_the_compiler_takes_run_eagerly():
    def multiplied(x, factor):
        return x * factor

    record = PathRecord()
    function = Compiled(multiplied, threshold=8, record=record)
    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [float(function(torch.ones(8), factor)[7]) for factor in (1.5, 2.5, 3.5, 1.5)]
    assert found == [1.5, 2.5, 3.5, 1.5]
    assert record.paths() == {"test_compile_cache.multiplied": {"compiled": 2, "eager": 2}}


def test_integers_that_a_function_holds_are_compiled_in():
    """Torch 2.11 and 2.12 cannot compile a shift by an integer that is left open."""

    def made_for(bits):
        def placed(x, out):
            out.copy_((x << bits) | 1)

        return Compiled(placed, threshold=8, record=PathRecord())

    for bits in (3, 5):
        function = made_for(bits)
        for size in (100, 101):
            x, out = torch.arange(size, dtype=torch.int32), torch.empty(size, dtype=torch.int32)
            function(x, out)
            assert torch.equal(out, x * 2**bits + 1)
        assert function._record.paths() == {"test_compile_cache.placed": {"compiled": 2}}
        assert made(function) == 1


def test_the_first_compilation_is_announced_and_a_kept_program_is_loaded_in_silence(caplog):
    for _ in range(2):
        programs._say_that_it_takes_long.cache_clear()  # as in another process
        x, out = torch.randn(100), torch.empty(100)
        of_package(shifted)(x, True, out)
        assert torch.equal(out, x + 1)
        announced = [r.message for r in caplog.records if "BANDWISE_COMPILE=0" in r.message]
        assert len(announced) == 1, "nothing is compiled again"
