"""The transport that sends nothing answers in the shapes and dtypes of the real one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_impls.collectives import AllGather, AllReduce, AllToAll, Collective, SendRecv
from reference_impls.drivers.lockstep import Lockstep
from reference_impls.drivers.null import NullTransport


def requests(name: str, size: int, dtype: torch.dtype) -> list[Collective]:
    """One request a rank; every rank has data of its own, in buffers of 2 `size` elements."""
    buffers = [torch.arange(2 * size).to(dtype) + rank for rank in range(size)]
    if name == "all-reduce":
        return [AllReduce(x, "s") for x in buffers]
    if name == "maximum":
        return [AllReduce(x, "s", op="max") for x in buffers]
    if name == "all-gather":
        return [AllGather(x, "s") for x in buffers]
    if name == "all-to-all":
        return [AllToAll(x, "s") for x in buffers]
    if name == "shift":
        return [SendRecv(x, "s", to=(r + 1) % size, source=(r - 1) % size) for r, x in enumerate(buffers)]
    return [  # up a tree: rank 0 hears, the last rank speaks, the others are silent
        SendRecv(x, "s", to=0 if r == size - 1 else None, source=size - 1 if r == 0 else None)
        for r, x in enumerate(buffers)
    ]


@pytest.mark.parametrize("name", ["all-reduce", "maximum", "all-gather", "all-to-all", "shift", "tree"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.uint8])
@pytest.mark.parametrize("size", [2, 3])
def test_answers_look_like_real_ones(name: str, dtype: torch.dtype, size: int) -> None:
    real = Lockstep(size)
    null = NullTransport(real)
    assert list(null.ranks) == list(real.ranks)
    assert null.size == real.size
    answers = real.wait(real.launch(requests(name, size, dtype)))
    local = null.wait(null.launch(requests(name, size, dtype)))
    assert len(answers) == len(local) == size
    for expected, found in zip(answers, local, strict=True):
        assert (found is None) == (expected is None)
        if expected is not None:
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert found.is_contiguous()


def answer(request: Collective, size: int = 3) -> Tensor | None:
    return NullTransport(Lockstep(size)).launch([request])[0]


def test_answers_are_this_ranks_own_values() -> None:
    x = torch.arange(6.0)
    assert answer(AllReduce(x, "s")) is x
    assert torch.equal(x, torch.arange(6.0))
    assert torch.equal(answer(AllGather(x, "s")), torch.stack([x, x, x]))
    assert torch.equal(answer(AllToAll(x, "s")), x.view(3, 2))
    assert torch.equal(answer(SendRecv(x, "s", to=None, source=2)), x)
    assert answer(SendRecv(x, "s", to=1, source=None)) is None


@pytest.mark.parametrize(
    "request_", [AllGather(torch.ones(3), "s"), AllToAll(torch.ones(3), "s"), SendRecv(torch.ones(3), "s", to=1, source=1)]
)  # fmt: skip
def test_answers_other_than_a_sums_can_be_written_into(request_: Collective) -> None:
    """A method may do as it likes with what it received; its own buffer is not touched by that."""
    answer(request_).fill_(7)
    assert torch.equal(request_.buffer, torch.ones(3))
