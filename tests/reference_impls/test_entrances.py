"""What training loops do with an optimizer of ours besides stepping it: calls on one rank alone, other settings on one rank,
odd buffers, copies of the model, forked children.
"""

from __future__ import annotations

import atexit
import copy
import io
import os
import pickle
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

from bandwise import simulate
from reference_impls import DataParallelOptimizer, SimulatedCluster, create, ddp_hook, fsdp_hook
from reference_impls.attached import attach
from reference_impls.drivers.checks import described
from reference_impls.drivers.engine import ProcessGroup
from reference_impls.errors import ExchangeError, UnknownOptionError, UnsupportedError
from reference_impls.sharded import fsdp_optimizer
from tests.reference_impls.gloo import run_ranks
from tests.reference_impls.ranks import Ranks, outcome

pytestmark = pytest.mark.gloo


def _net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def _step(model: nn.Module, optimizer: Any, rank: int, step: int) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + rank))
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


# ---- calls that communicate, on one rank alone ---------------------------------------------------------------------------

CALLS: dict[str, Callable[[Any], Any]] = {
    "averaged": lambda optimizer: optimizer.averaged().__enter__(),
    "consolidate": lambda optimizer: optimizer.consolidate(),
    "state_dict": lambda optimizer: optimizer.state_dict(),
    "without_communication": lambda optimizer: optimizer.without_communication().__enter__(),
}


def _alone(rank: int, size: int, call: str, ends: bool) -> Any:
    """Rank 1 makes the call after 9 steps, a matter of 40 for the others (ends: who then take no more)."""
    model, options = _net(), {"period": 4}
    name = "local-sgd"
    if call in ("state_dict", "without_communication"):  # they communicate where a fragment is under way
        name, options = "streaming-diloco", {"period": 4, "overlap": 3, "total_steps": 400}
    optimizer = DataParallelOptimizer(model, name, lr=0.1, timeout_s=30.0, **options)
    try:
        for step in range(40):
            if step == 9 and rank == 1:
                CALLS[call](optimizer)
                return "no error", ""
            if step == 9 and ends:
                optimizer.release()
                return "ended", ""
            _step(model, optimizer, rank, step)
    except ExchangeError as error:
        return type(error).__name__, str(error)
    return "no error", ""


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_one_rank_makes_alone_is_named_on_all(call: str) -> None:
    other, alone = run_ranks(_alone, 2, call, False, joins=False)
    assert alone[0] == "MismatchError", alone
    assert f"rank 1 is at {call}(), after 9 steps: comparing settings, but rank 0 at step" in alone[1]
    assert "make calls that communicate on all" in alone[1]
    assert other[0] == "PeerError", other
    assert "rank 1 has stopped (MismatchError" in other[1]


def test_a_call_after_another_rank_has_ended_says_so() -> None:
    _, alone = run_ranks(_alone, 2, "averaged", True, joins=False)
    assert alone[0] == "PeerError", alone
    assert "rank 0 has ended its training after 9 steps" in alone[1]


def _together(rank: int, size: int) -> Any:
    model = _net()
    optimizer = DataParallelOptimizer(model, "local-sgd", lr=0.1, period=4)
    for step in range(9):
        _step(model, optimizer, rank, step)
        with optimizer.averaged():
            mean = [p.detach().clone() for p in model.parameters()]
    return mean, optimizer.consolidate() is None


def test_on_all_ranks_such_calls_work_in_every_step(ranks: Callable[[int], Ranks]) -> None:
    first, second = ranks(2).run(_together)
    assert all(map(torch.equal, first[0], second[0]))
    assert (first[1], second[1]) == (False, True)


# ---- a method by its name, or as an object ---------------------------------------------------------------------------------

QSGD: Any = type(create("qsgd").algorithm)
OBJECTS: dict[str, Callable[[Any], Any]] = {
    "DataParallelOptimizer": lambda how: DataParallelOptimizer(_net(), how),
    "attach": lambda how: _attached(_net(), how),
    "ddp_hook": lambda how: ddp_hook(how, _net())[0],
    "fsdp_hook": lambda how: fsdp_hook(_sharded(), how, group=dist.group.WORLD),
    "fsdp_optimizer": lambda how: fsdp_optimizer(_sharded(), how, group=dist.group.WORLD),
    "SimulatedCluster": lambda how: SimulatedCluster(how, [torch.zeros(3)]),
    "simulate": lambda how: simulate(
        nn.Linear(2, 1),
        lambda model, x: model(x).sum(),
        lambda rank, n, step: torch.ones(1, 2),
        how,
        lr=0.1,
        steps=1,
    ),
    "create": create,
}


def _attached(model: nn.Module, how: Any) -> Any:
    return attach(torch.optim.SGD(model.parameters(), lr=0.1), model, how)


def _sharded() -> nn.Module:
    model = _net()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def _by_object(rank: int, size: int) -> Any:
    found = {}
    for entrance, make in OBJECTS.items():
        named, given = make("qsgd"), make(QSGD())
        equal = described(getattr(named, "method", named)) == described(getattr(given, "method", given))
        found[entrance] = equal, [outcome(partial(make, wrong)) for wrong in (QSGD, 3)]
    return found


def test_a_method_may_be_an_object_wherever_a_name_is_taken(ranks: Callable[[int], Ranks]) -> None:
    (found,) = ranks(1).run(_by_object)
    assert isinstance(found, dict), found
    for entrance, (equal, wrong) in found.items():
        assert equal, entrance
        for kind, message in wrong:
            assert kind == "UnknownAlgorithmError", (entrance, message)
            assert "a method is a name of list_algorithms(), an object of a method's class" in message
    assert create(QSGD(bits=4), momentum=0.9) == create("qsgd", bits=4, momentum=0.9)
    assert create(create("local-adamw").algorithm) == create("local-adamw")
    with pytest.raises(UnknownOptionError, match=r"qsgd: bits: give this to the object, QSGD\(\.\.\.\)"):
        create(QSGD(), bits=4)
    with pytest.raises(UnknownOptionError, match="qsgd has no option 'momentm'; did you mean 'momentum'"):
        create(QSGD(), momentm=0.9)


# ---- what must be equal is compared at construction ------------------------------------------------------------------------

DIFFERING: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "seed": ("the seed", lambda rank: {"seed": rank}),
    "bucket_bytes": ("bucket_bytes", lambda rank: {"bucket_bytes": 1024 * (1 + rank)}),
    "check": ("check", lambda rank: {"check": ("first", "off")[rank]}),
    "options": ("the method", lambda rank: {"rank": 1 + rank}),
    "seed, unchecked": ("the seed", lambda rank: {"seed": rank, "check": "off"}),
}
ENTRANCES: dict[str, Callable[..., Any]] = {
    "optimizer": lambda model, **options: DataParallelOptimizer(model, "powersgd", **options),
    "attach": lambda model, **options: attach(
        torch.optim.SGD(model.parameters(), lr=0.1), model, "powersgd", **options
    ),
    "ddp_hook": lambda model, **options: ddp_hook("powersgd", model, **options),
}


def _built_differently(rank: int, size: int, entrance: str) -> Any:
    return {
        what: outcome(partial(ENTRANCES[entrance], _net(), timeout_s=20.0, **options(rank)))
        for what, (_, options) in DIFFERING.items()
    }


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_settings_that_differ_are_named_at_construction(ranks: Callable[[int], Ranks], entrance: str) -> None:
    for result in ranks(2).run(_built_differently, entrance):
        for what, (name, _) in DIFFERING.items():
            kind, message = result[what]
            assert kind == "MismatchError", (what, message)
            assert f"construction: rank 0 has {name} = " in message


def _own_factory(rank: int, size: int) -> Any:
    """A function lies elsewhere in every process, which is no difference."""
    held = [bytearray(10**6 * rank)]
    optimizer = DataParallelOptimizer(
        _net(), "qsgd", optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1)
    )
    return optimizer.kind, len(held)


def test_an_optimizer_factory_is_no_difference(ranks: Callable[[int], Ranks]) -> None:
    assert [own[0] for own in ranks(2).run(_own_factory)] == ["step", "step"]


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


def _sent(rank: int, size: int, sync: bool) -> Any:
    model = _WithBuffers(_buffers(rank))
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, broadcast_buffers=sync)
    if sync:  # and once more, in a step
        for name, buffer in _buffers(rank + 1).items():
            setattr(model, name, buffer)
        _step(model, optimizer, rank, 0)
    return [bool((a.float() == b.float()).all()) if a.dtype.itemsize == 1 else torch.equal(a, b)
            for a, b in zip(model.buffers(), _buffers(1 if sync else 0).values(), strict=True)]  # fmt: skip


@pytest.mark.parametrize("sync", [True, False])
def test_odd_buffers_are_those_of_rank_0(ranks: Callable[[int], Ranks], sync: bool) -> None:
    names = list(_buffers(0))
    for equal in ranks(2).run(_sent, sync):
        assert dict(zip(names, equal, strict=True)) == dict.fromkeys(names, True)


def _refused(rank: int, size: int) -> Any:
    odd = {
        "sparse": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
    }
    found = {}
    for name, buffer in odd.items():
        model = _WithBuffers({name: buffer})
        found[name] = [
            outcome(partial(DataParallelOptimizer, model, "allreduce-sgd", broadcast_buffers=sync))
            for sync in (True, False)
        ]
        found[name].append(
            outcome(
                partial(
                    DataParallelOptimizer, model, "allreduce-sgd", broadcast=False, broadcast_buffers=False
                )
            )
        )
    return found


def test_buffers_that_cannot_be_sent_are_refused_by_name(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(2).run(_refused):
        for name, (synced, started, neither) in result.items():
            assert synced[0] == started[0] == UnsupportedError.__name__, (name, synced, started)
            assert repr(name) in synced[1]
            assert neither == ("no error", ""), name


def _local_error(rank: int, size: int) -> Any:
    """A collective that torch refuses on every rank."""
    model = _net()
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1)
    transport: ProcessGroup = optimizer._transport
    work = dist.all_reduce(torch.zeros(3, dtype=torch.int16), async_op=True)
    return outcome(partial(transport.await_work, work, ("all-reduce",)))


def test_an_error_of_torchs_own_is_no_lost_peer(ranks: Callable[[int], Ranks]) -> None:
    for kind, message in ranks(2).run(_local_error):
        assert kind == "RuntimeError", (kind, message)
        assert "Invalid scalar type" in message


# ---- copies of the model ---------------------------------------------------------------------------------------------------


def _copied(rank: int, size: int) -> Any:
    model = _net()
    optimizer = DataParallelOptimizer(model, "diloco", lr=0.1, period=4)
    _step(model, optimizer, rank, 0)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
        AveragedModel(model).module,
    ]
    AveragedModel(model).state_dict()
    equal = [all(map(torch.equal, model.state_dict().values(), own.state_dict().values())) for own in copies]
    shared = [next(model.parameters()).data_ptr() == next(own.parameters()).data_ptr() for own in copies]
    for step in range(1, 6):
        _step(model, optimizer, rank, step)
    return equal, shared


def test_a_model_can_be_copied_and_pickled(ranks: Callable[[int], Ranks]) -> None:
    for equal, shared in ranks(2).run(_copied):
        assert equal == [True] * 4
        assert shared == [False] * 4


# ---- forked children -------------------------------------------------------------------------------------------------------


def _forks(rank: int, size: int, entrance: str) -> Any:
    model = _net()
    if entrance == "optimizer":
        optimizer: Any = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, timeout_s=20.0)
    else:
        module = nn.parallel.DistributedDataParallel(model)
        module.register_comm_hook(*ddp_hook("qsgd", module, timeout_s=20.0))
        model, optimizer = module, torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(20):
        if step == 3 and rank == 0:
            child = os.fork()
            if child == 0:  # what an interpreter does at its end, and no more of the parent's
                atexit._run_exitfuncs()
                os._exit(0)
            os.waitpid(child, 0)
            time.sleep(2.5)  # long enough for the other rank to look for who has ended
        _step(model, optimizer, rank, step)
    return "no error"


@pytest.mark.parametrize("entrance", ["optimizer", "ddp"])
def test_the_end_of_a_forked_child_is_not_that_of_the_rank(
    ranks: Callable[[int], Ranks], entrance: str
) -> None:
    assert ranks(2).run(_forks, entrance) == ["no error", "no error"]
