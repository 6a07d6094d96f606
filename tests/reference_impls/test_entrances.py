"""What training loops do with an optimizer of ours besides stepping it: calls on one rank alone, other settings on one rank,
odd buffers, copies of the model, forked children.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer, ddp_hook
from reference_impls.core.errors import ExchangeError, UnsupportedError
from tests.reference_impls.frontends import loss, net
from tests.reference_impls.gloo import Ranks, outcome, run_ranks

pytestmark = pytest.mark.gloo


def _step(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    loss(model, rank, step).backward()
    optimizer.step()
    optimizer.zero_grad()


# ---- calls that communicate, on one rank alone ---------------------------------------------------------------------------

UNDER_WAY = {"period": 4, "overlap": 3, "total_steps": 400}
CALLS: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "averaged": ("local-sgd", {"period": 4}, lambda optimizer: optimizer.averaged().__enter__()),
    "state_dict": ("streaming-diloco", UNDER_WAY, lambda optimizer: optimizer.state_dict()),
}
"""With a method of which it communicates."""


def _alone(rank: int, size: int, call: str) -> Any:
    """Rank 1 makes the call after 9 steps, a matter of 40 for the others."""
    model, (name, options, make) = net(), CALLS[call]
    optimizer = DataParallelOptimizer(model, name, lr=0.1, timeout_s=8.0, **options)
    try:
        for step in range(40):
            if step == 9 and rank == 1:
                make(optimizer)
                return "no error", ""
            _step(model, optimizer, rank, step)
    except ExchangeError as error:
        return type(error).__name__, str(error)
    return "no error", ""


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_one_rank_makes_alone_is_named_on_all(call: str) -> None:
    other, alone = run_ranks(_alone, 2, call, joins=False)
    assert alone[0] == "MismatchError", alone
    assert f"rank 1 is at {call}(), after 9 steps: comparing settings, but rank 0 at step" in alone[1]
    assert "make calls that communicate on all" in alone[1]
    assert other[0] == "PeerError", other
    assert "rank 1 has stopped (MismatchError" in other[1]


# ---- what must be equal is compared at construction ------------------------------------------------------------------------

DIFFERING: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "seed": ("the seed", lambda rank: {"seed": rank}),
    "bucket_bytes": ("bucket_bytes", lambda rank: {"bucket_bytes": 1024 * (1 + rank)}),
    "check": ("check", lambda rank: {"check": ("first", "off")[rank]}),
    "options": ("the method", lambda rank: {"rank": 1 + rank}),
    "skippable": ("skippable", lambda rank: {"skippable": rank == 0}),
    "seed, unchecked": ("the seed", lambda rank: {"seed": rank, "check": "off"}),
    "a factory": ("", lambda rank: {"optimizer": lambda groups: torch.optim.SGD(groups, lr=0.1)}),
}
ENTRANCES: dict[str, Callable[..., Any]] = {
    "optimizer": lambda model, **options: DataParallelOptimizer(model, "powersgd", **options),
    "ddp_hook": lambda model, **options: ddp_hook("powersgd", model, **options),
}


def _built_differently(rank: int, size: int) -> Any:
    return {
        (entrance, what): outcome(partial(make, net(), timeout_s=20.0, **options(rank)))
        for entrance, make in ENTRANCES.items()
        for what, (_, options) in DIFFERING.items()
        if entrance == "optimizer" or what not in ("a factory", "skippable")
    }


def test_settings_that_differ_are_named_at_construction(ranks: Callable[[int], Ranks]) -> None:
    """A function lies elsewhere in every process, which is no difference."""
    for result in ranks(2).run(_built_differently):
        for what, (kind, message) in result.items():
            name = DIFFERING[what[1]][0]
            assert kind == ("MismatchError" if name else "no error"), (what, message)
            if not name:
                continue
            assert f"construction: rank 0 has {name} = " in message


# ---- buffers that are not plain --------------------------------------------------------------------------------------------


def _buffers(rank: int) -> dict[str, Tensor]:
    own = torch.full((3, 2), float(rank + 1))
    return {
        "expanded": own[:1].expand(3, 2),
        "overlapping": own.flatten().as_strided((3, 2), (1, 1)),
        "of one element": own[0, 0].expand(4),
        "transposed": (own * torch.arange(6.0).view(3, 2)).T,
        "conjugate": torch.complex(own, own).conj(),
        "negative": torch.complex(own, own).conj().imag,
        "float8": own.to(torch.float8_e4m3fn),
        "uint16": own.to(torch.uint16),
        "bool": own > 1,
        "scalar": torch.tensor(rank),
        "bf16": own.to(torch.bfloat16),
    }


class _WithBuffers(nn.Module):
    def __init__(self, buffers: dict[str, Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def _sent(rank: int, size: int, in_a_step: bool) -> Any:
    model = _WithBuffers(_buffers(rank))
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1)
    if in_a_step:
        for name, buffer in _buffers(rank + 1).items():
            setattr(model, name, buffer)
        _step(model, optimizer, rank, 0)
    return [bool((a.float() == b.float()).all()) if a.dtype.itemsize == 1 else torch.equal(a, b)
            for a, b in zip(model.buffers(), _buffers(1 if in_a_step else 0).values(), strict=True)]  # fmt: skip


@pytest.mark.parametrize("in_a_step", [True, False])
def test_odd_buffers_are_those_of_rank_0(ranks: Callable[[int], Ranks], in_a_step: bool) -> None:
    names = list(_buffers(0))
    for equal in ranks(2).run(_sent, in_a_step):
        assert dict(zip(names, equal, strict=True)) == dict.fromkeys(names, True)


def _refused(rank: int, size: int) -> Any:
    found = {}
    for name, buffer in {"sparse": torch.eye(3).to_sparse(), "csr": torch.eye(3).to_sparse_csr()}.items():
        build = partial(DataParallelOptimizer, _WithBuffers({name: buffer}), "allreduce-sgd")
        ways = (
            {"broadcast_buffers": True},
            {"broadcast_buffers": False},
            {"broadcast": False, "broadcast_buffers": False},
        )
        found[name] = [outcome(partial(build, **way)) for way in ways]
    return found


def test_buffers_that_cannot_be_sent_are_refused_by_name(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(2).run(_refused):
        for name, (synced, started, neither) in result.items():
            assert synced[0] == started[0] == UnsupportedError.__name__, (name, synced, started)
            assert repr(name) in synced[1]
            assert neither == ("no error", ""), name


def _local_error(rank: int, size: int) -> Any:
    """A collective that torch refuses on every rank."""
    model = net()
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1)
    work = dist.all_reduce(torch.zeros(3, dtype=torch.int16), async_op=True)
    return outcome(partial(optimizer._agreement.await_work, work, ("all-reduce",)))


def test_an_error_of_torchs_own_is_no_lost_peer(ranks: Callable[[int], Ranks]) -> None:
    for kind, message in ranks(2).run(_local_error):
        assert kind == "RuntimeError", (kind, message)
        assert "Invalid scalar type" in message


# ---- forked children -------------------------------------------------------------------------------------------------------


def _forks(rank: int, size: int) -> Any:
    model = net()
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, timeout_s=8.0)
    for step in range(20):
        if step == 3 and rank == 0:
            child = os.fork()
            if child == 0:  # what an interpreter does at its end, and no more of the parent's
                atexit._run_exitfuncs()
                os._exit(0)
            os.waitpid(child, 0)
            time.sleep(1.2)  # long enough for the other rank to look for who has ended
        _step(model, optimizer, rank, step)
    return "no error"


def test_the_end_of_a_forked_child_is_not_that_of_the_rank(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).run(_forks) == ["no error", "no error"]
