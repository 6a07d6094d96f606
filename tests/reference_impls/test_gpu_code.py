"""The GPU path without a GPU: the Triton source of every compiled function. Who waits for the device: `test_gpu_steps.py`.

What is run here is the compiler's code generator; whether the codes of a GPU are those of the CPU `make gpu` measures.
"""

from __future__ import annotations

import re

import pytest
import torch

from reference_impls.core import compile_cache as programs
from reference_impls.core.compute import GPU_OPTIONS, THRESHOLD, Compiled
from reference_impls.runtime.worker import with_own_storage
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


class _OnGPU(torch.Tensor):
    is_cuda = True  # type: ignore[assignment]


def test_a_weight_that_no_kernel_may_take_for_aligned_shows_its_offset():
    flat = torch.zeros(16).as_subclass(_OnGPU)
    assert flat.data_ptr() % 16 == 0
    assert [with_own_storage(flat[i : i + 3]).storage_offset() for i in (0, 1, 4, 7)] == [0, 1, 0, 7]
    assert with_own_storage(torch.zeros(16)[1:4]).storage_offset() == 0
