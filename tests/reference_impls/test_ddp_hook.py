"""A method as communication hook of DistributedDataParallel: the training of our own optimizer, to the bit, whatever DDP's
buckets are; and what is refused. Two processes each.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer, create, ddp_hook, list_algorithms
from reference_impls.core.errors import UnknownOptionError, UnsupportedError, UsageError
from reference_impls.frontends.hooks import only_reduces
from tests.reference_impls.averages import normal
from tests.reference_impls.exchanges import local_workers
from tests.reference_impls.frontends import loss, named_values
from tests.reference_impls.gloo import Ranks, outcome
from tests.support import each

STEPS, WIDTH = 5, 24
OURS = {"seed": 3, "bucket_bytes": 4 * WIDTH * WIDTH}
METHODS: dict[str, dict[str, Any]] = {
    "allreduce": {},
    "qsgd": {"form": "two-phase", "error_feedback": True},
    "top-k": {"ratio": 0.1, "warmup_steps": 2},
    "powersgd": {"rank": 2},
    "dq-sgd": {"total_steps": STEPS},
}


class Crooked(nn.Module):
    """Layers used in another order than they are defined in; one of them never, one of them only where asked for."""

    def __init__(self, whole: bool = False) -> None:
        """whole: all that is trained is used; DDP then builds its buckets again after the first step."""
        super().__init__()
        torch.manual_seed(1)
        self.last = nn.Linear(WIDTH, 3)
        self.unused = nn.Linear(5, 5)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.sometimes = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)
        self.whole = whole
        self.unused.requires_grad_(not whole)

    def forward(self, x: Tensor, use: bool = True) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.last(x + self.sometimes(x) if use else x)


_loss = partial(loss, widths=(WIDTH, 3))


def _optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _wrapped(model: nn.Module, **options: Any) -> DistributedDataParallel:
    whole = getattr(model, "whole", False)
    return DistributedDataParallel(model, find_unused_parameters=not whole, bucket_cap_mb=0.002, **options)


def _steps(ddp: nn.Module, optimizer: torch.optim.Optimizer, rank: int, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        model = getattr(ddp, "module", ddp)
        _loss(ddp, rank, step, use=bool(model.whole or rank or step % 2)).backward()
        optimizer.step()


# ---- the same training as our own optimizer ----------------------------------------------------------------------------


def _beside_ours(rank, size, name, options, whole=True, view=False):
    """Parameters and bytes of our optimizer and of the hook, and of each of DDP's buckets whether it is a step's last."""
    mine = Crooked(whole)
    ours = DataParallelOptimizer(mine, name, lr=0.1, optimizer="sgd", momentum=0.9, **OURS, **options)
    _steps(mine, ours, rank, 0, STEPS)

    theirs = Crooked(whole)
    ddp = _wrapped(theirs, gradient_as_bucket_view=view)
    state, hook = ddp_hook(name, ddp, **OURS, **options)
    seen: list[bool] = []

    def noted(state: Any, bucket: Any) -> Any:
        seen.append(bucket.is_last())
        return hook(state, bucket)

    noted.__annotations__.clear()  # torch takes them for classes, not for strings
    ddp.register_comm_hook(state, noted)
    _steps(ddp, _optimizer_of(theirs), rank, 0, STEPS)
    rows = [[row for row in ledger.rows() if row["kind"] != "unused"] for ledger in (_own(ours), _own(state))]
    ours.release()
    return named_values(mine), named_values(theirs), rows, seen


def _own(holder: Any) -> Any:
    (ledger,) = holder.ledger._ledgers.values()
    return ledger


def _same_training(results: list[Any]) -> None:
    for result in results:
        ours, theirs, (own_rows, hook_rows), _ = result
        assert own_rows == hook_rows
        assert sum(row["wire_bytes"] for row in hook_rows) > 0
        for key, value in theirs.items():
            assert torch.equal(value, ours[key]), (key, (value - ours[key]).abs().max())
            assert torch.equal(value, results[0][1][key])
        start = named_values(Crooked())
        assert not torch.equal(theirs["first.weight"], start["first.weight"])
        assert torch.equal(theirs["unused.weight"], start["unused.weight"])


@pytest.mark.gloo
@pytest.mark.parametrize("name", METHODS)
def test_the_hook_trains_as_our_optimizer_does_to_the_bit(name: str, ranks: Callable[[int], Ranks]) -> None:
    """DDP has several buckets, and others from the second step on."""
    results = ranks(2).run(_beside_ours, name, METHODS[name])
    _same_training(results)
    for *_, seen in results:
        assert seen[0]  # one bucket of all parameters, in the order of their definition
        assert sum(seen) == STEPS
        assert len(seen) >= 1 + 3 * (STEPS - 1)


@pytest.mark.gloo
def test_so_it_does_where_ranks_leave_layers_out(ranks: Callable[[int], Ranks]) -> None:
    """A layer that one rank uses in every other step, and one that none uses: it stays as it is."""
    _same_training(ranks(2).run(_beside_ours, "powersgd", METHODS["powersgd"], False, True))


# ---- other trainings that DDP knows --------------------------------------------------------------------------------------


def _beside_ddp(rank: int, size: int) -> Any:
    return {what: _both(rank, what) for what in ("accumulated", "clipped", "frozen", "bf16")}


def _both(rank: int, what: str) -> Any:
    """DDP alone, and DDP with the uncompressed method as its hook."""
    trained = []
    for hooked in (False, True):
        model = Crooked()
        if what == "bf16":
            model = model.bfloat16()
        elif what == "frozen":
            model.first.requires_grad_(False)
        ddp, optimizer = _wrapped(model), _optimizer_of(model)
        if hooked:
            state, hook = ddp_hook("allreduce", ddp)
            ddp.register_comm_hook(state, hook)
        for step in range(4):
            optimizer.zero_grad()
            if what == "accumulated":
                with ddp.no_sync():
                    _loss(ddp, rank, 50 + step).backward()
            if what == "bf16":
                x = torch.ones(2, WIDTH, dtype=torch.bfloat16) * (rank + step)
                ddp(x).square().mean().backward()
            else:
                _loss(ddp, rank, step).backward()
            if what == "clipped":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        trained.append(named_values(model))
    return trained


@pytest.mark.gloo
def test_the_uncompressed_hook_is_ddp(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(2).run(_beside_ddp):
        for what, (alone, hooked) in result.items():
            for key, value in alone.items():  # DDP divides before it adds, we after
                atol = 2e-2 if what == "bf16" else 1e-6
                torch.testing.assert_close(hooked[key], value, rtol=0, atol=atol)


# ---- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lion-cub-1bit", "qsr-adamw", "diloco", "lag", "root-sgd"])
def test_a_method_that_does_more_than_reduce_is_refused_with_what_to_do(name: str) -> None:
    options = {"total_steps": 10} if name == "qsr-adamw" else {}
    with pytest.raises(UnsupportedError, match=rf"DataParallelOptimizer\(model, '{name}', lr=\.\.\.\)"):
        ddp_hook(name, nn.Linear(2, 2), **options)


def test_options_of_an_optimizer_are_refused() -> None:
    for options in ({"optimizer": "adamw"}, {"momentum": 0.9}):
        with pytest.raises(UnknownOptionError, match="the optimizer is yours"):
            ddp_hook("qsgd", nn.Linear(2, 2), **options)


class _Blind:
    """Stands for parameters that a reduction must not look at, but for what a buffer like them needs."""

    def __init__(self, hidden: Tensor) -> None:
        self.dtype, self.device, self.shape = hidden.dtype, hidden.device, hidden.shape

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"parameters are read: {name}")


REDUCES = [
    name for name in list_algorithms() if name not in ("control-no-communication", "control-one-worker")
]


@each("name", REDUCES)
def test_what_a_hook_takes_reads_gradients_alone(name: str) -> None:
    """The rule by which methods are admitted, held against every one of them: parameters out of sight, a learning rate of NaN."""
    required = {"total_steps": 100} if name == "dq-sgd" else {}
    if not only_reduces(create(name, **required).algorithm):
        assert name not in METHODS
        return
    group = {"params": [torch.zeros(12, 9), torch.zeros(7)], "param_names": ["a", "b"], "lr": float("nan")}
    members = local_workers(name, [group], 2, **required)
    for rank, worker in enumerate(members.workers):
        worker.buckets[0].grads.copy_(normal(115, seed=rank))
        worker.buckets[0].params = _Blind(worker.buckets[0].params)  # type: ignore[assignment]
    kinds = members.engine.run([worker.algorithm.plan(worker.train_state) for worker in members.workers])
    for worker in members.workers:
        worker.train_state.kind = kinds[0]
    results = members.engine.run([worker.algorithm.reduce(worker.buckets[0]) for worker in members.workers])
    for worker, result in zip(members.workers, results, strict=True):
        worker.algorithm.update(worker.buckets[0], result)
        worker.algorithm.remember(worker.buckets, [result])
    first, second = (worker.buckets[0].grads for worker in members.workers)
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()


def _strangers(rank: int, size: int) -> Any:
    """DDP reduces what the hook was not told of; and leaves out what it was told of."""
    told = Crooked()
    told.first.requires_grad_(False)
    state, hook = ddp_hook("global-qsgd", told, **OURS)
    told.first.requires_grad_(True)
    more = _wrapped(told)
    more.register_comm_hook(state, hook)

    ignoring = Crooked()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(ignoring, ["first.weight"])
    state, hook = ddp_hook("global-qsgd", ignoring, **OURS)
    fewer = _wrapped(ignoring)
    fewer.register_comm_hook(state, hook)
    found = [outcome(lambda d=d: _loss(d, rank, 0).backward()) for d in (more, fewer)]
    return [*found, outcome(state.state_dict)]


@pytest.mark.gloo
def test_parameters_that_ddp_and_hook_do_not_share_are_named(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(2).run(_strangers):
        more, fewer, saved = result
        assert "frozen as it is trained" in more[1]
        assert "first.weight" in fewer[1]
        assert "requires_grad_(False)" in fewer[1]
        assert saved[0] == "UsageError"


@pytest.mark.gloo
def test_a_state_is_saved_by_its_state_dict(one_rank: None) -> None:
    with pytest.raises(UsageError, match=r"save its state_dict\(\)"):
        pickle.dumps(ddp_hook("qsgd", Crooked())[0])


def test_without_a_process_group_the_error_says_so() -> None:
    assert not dist.is_initialized()
    with pytest.raises(UsageError, match="init_process_group"):
        ddp_hook("qsgd", nn.Linear(2, 2))
