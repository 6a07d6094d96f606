"""Trainings that DistributedDataParallel gets right, on real processes, beside it: loss scaling, clipping, frozen layers,
BatchNorm, uneven inputs. The method is the plain all-reduce, so parameters must be DDP's; and what cannot be DDP's is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer
from reference_impls.errors import UsageError
from tests.reference_impls.ranks import Ranks, outcome
from tests.reference_impls.states import contents

pytestmark = pytest.mark.gloo
SIZE, STEPS, WIDTH = 2, 6, 8
OURS = {"sgd": "allreduce-sgd", "adamw": "allreduce-adamw"}
BUCKETS = {"bucket_bytes": 4 * WIDTH * WIDTH}  # several, so that some leave during backward


def _theirs(name: str, params: Any, lr: float) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(params, lr=lr, momentum=0.9)
    return torch.optim.AdamW(params, lr=lr, weight_decay=0.1)


def _options(name: str) -> dict[str, Any]:
    return {"momentum": 0.9} if name == "sgd" else {"weight_decay": 0.1}


def _net(seed: int = 0, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, *([nn.BatchNorm1d(WIDTH)] if norm else []), nn.Linear(WIDTH, 3))


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(4, WIDTH, generator=generator), torch.randn(4, 3, generator=generator)
    dtype = next(model.parameters()).dtype
    return (model(x.to(dtype)) - y.to(dtype)).square().mean()


def _values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _close(results: list[Any], exact: bool = False) -> None:
    """(ours, theirs) of every rank are the same training, and all replicas are equal."""
    for result in results:
        assert result[0] != "error", result
        ours, theirs = result
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=0 if exact else 2e-6)
            assert torch.equal(value, results[0][0][name])


# ---- GradScaler --------------------------------------------------------------------------------------------------------


def _scaler(scale: float = 1000.0) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


def _scaled(rank: int, size: int, name: str, unscale: bool, overflow_at: int, clip: float | None) -> Any:
    """Trainings by ours and by DDP whose gradient on the last rank is infinite in one step; their scales after each."""
    trained, scales = [], []
    for ours in (True, False):
        model, scaler = _net(), _scaler()
        wrapped: nn.Module = model
        optimizer: torch.optim.Optimizer
        if ours:
            optimizer = DataParallelOptimizer(
                model, OURS[name], lr=0.05, scaler=scaler, clip_norm=clip, **BUCKETS, **_options(name)
            )
        else:
            wrapped = DistributedDataParallel(model)
            optimizer = _theirs(name, model.parameters(), 0.05)
        seen = []
        for step in range(STEPS):
            loss = _loss(wrapped, rank, step)
            if step == overflow_at and rank == size - 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if unscale or (clip is not None and not ours):
                scaler.unscale_(optimizer)
            if clip is not None and not ours:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            seen.append(scaler.get_scale())
        trained.append(_values(model))
        scales.append(seen)
    return trained, scales


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(
    ("unscale", "overflow_at", "clip"), [(False, -1, None), (False, 3, None), (True, 3, 0.05)]
)
def test_grad_scaler_as_with_ddp_also_where_one_rank_alone_overflows(
    name: str, unscale: bool, overflow_at: int, clip: float | None, ranks: Callable[[int], Ranks]
) -> None:
    results = ranks(SIZE).run(_scaled, name, unscale, overflow_at, clip)
    for result in results:
        assert result[0] != "error", result
        _, (ours, theirs) = result
        assert ours == theirs
        assert (ours[3] < ours[2]) == (overflow_at == 3)
    _close([result[0] for result in results])


def _scaled_lion(rank: int, size: int) -> Any:
    """Lion Cub with and without a scaler: what it encodes is the same."""
    trained = []
    for scaled in (True, False):
        model, scaler = _net(), _scaler(1024.0) if scaled else None  # powers of two do not round
        optimizer = DataParallelOptimizer(model, "lion-cub-1bit", lr=0.01, scaler=scaler, **BUCKETS)
        for step in range(STEPS):
            loss = _loss(model, rank, step)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
        trained.append(_values(model))
    return trained


def test_a_compressed_method_encodes_gradients_that_are_unscaled(ranks: Callable[[int], Ranks]) -> None:
    _close(ranks(SIZE).run(_scaled_lion), exact=True)


def _used_in_a_skipped_step(rank: int, size: int) -> Any:
    model, scaler = _net(), _scaler()
    optimizer = DataParallelOptimizer(model, "allreduce-adamw", lr=0.1, scaler=scaler)
    scaler.scale(_loss(model, rank, 0) * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    state = contents(optimizer.state_dict())
    return state["given"], state["step"]


def test_a_step_that_a_scaler_skips_makes_no_parameter_a_used_one(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(SIZE).run(_used_in_a_skipped_step) == [([], 0)] * SIZE


def _misused_scaler(rank: int, size: int) -> dict[str, Any]:
    """Ways to apply gradients that are scaled, or edited after they were unscaled."""
    found = {}
    for how in (
        "not told",
        "not told, overflow on one rank",
        "not told, unscaled",
        "step without scaler",
        "clipped",
    ):
        model, scaler = _net(), _scaler()
        optimizer = DataParallelOptimizer(
            model, "allreduce-sgd", lr=0.1, scaler=None if how.startswith("not") else scaler, **BUCKETS
        )
        before = _values(model)
        loss = _loss(model, rank, 0) * (float("inf") if "overflow" in how and rank == 1 else 1.0)
        scaler.scale(loss).backward()
        if how in ("not told, unscaled", "clipped"):
            scaler.unscale_(optimizer)
        if how == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        step = optimizer.step if how == "step without scaler" else partial(scaler.step, optimizer)
        error = outcome(step)
        found[how] = (error, all(torch.equal(v, before[k]) for k, v in _values(model).items()))
    return found


def test_scaled_gradients_are_never_applied(ranks: Callable[[int], Ranks]) -> None:
    remedies = {
        "not told": "scaler=scaler",
        "not told, overflow on one rank": "scaler=scaler",
        "not told, unscaled": "scaler=scaler",
        "step without scaler": r"scaler.step(optimizer)",
        "clipped": "clip_norm=",
    }
    for result in ranks(SIZE).run(_misused_scaler):
        assert isinstance(result, dict), result
        for how, remedy in remedies.items():
            (kind, message), untouched = result[how]
            assert (kind, untouched) == ("UsageError", True), (how, kind, message)
            assert remedy in message


# ---- edits of .grad ----------------------------------------------------------------------------------------------------

EDITS: dict[str, Callable[[nn.Module], Any]] = {
    "clip_grad_norm_": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 1e-3),
    "data.mul_": lambda m: [p.grad.data.mul_(0.5) for p in m.parameters()],
    "data.neg_ of one": lambda m: next(m.parameters()).grad.data.neg_(),
    "one element": lambda m: list(m.parameters())[2].grad.data[0, 0].mul_(1 + 1e-6),
    "assigned": lambda m: setattr(next(m.parameters()), "grad", torch.zeros(WIDTH, WIDTH)),
    "none": lambda m: setattr(next(m.parameters()), "grad", None),
}  # fmt: skip


def _edited(rank: int, size: int, set_to_none: bool) -> dict[str, Any]:
    """From the second step on gradients are edited by habit; one bucket that leaves in backward, and one that cannot."""
    found = {}
    for how, edit in EDITS.items():
        for unused in (False, True):
            model = _net()
            if unused:
                model.append(nn.Identity())
                model[-1].spare = nn.Parameter(torch.zeros(2))
            optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, **({} if unused else BUCKETS))
            error = ("no error", "")
            for step in range(2):
                _loss(model, rank, step).backward()
                if step == 1:
                    if unused:
                        del model[-1].spare  # so that the edit is of gradients that are there
                        optimizer._gradients._homes.clear()
                    before = _values(model)
                    edit(model)
                error = outcome(optimizer.step)
                optimizer.zero_grad(set_to_none=set_to_none)
            after = _values(model)
            found[f"{how}, {unused}"] = (error, all(torch.equal(before[k], v) for k, v in after.items()))
    return found


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_edited_by_habit_from_the_second_step_on_are_refused_on_every_rank(
    set_to_none: bool, ranks: Callable[[int], Ranks]
) -> None:
    for result in ranks(SIZE).run(_edited, set_to_none):
        assert isinstance(result, dict), result
        assert len(result) == 2 * len(EDITS)
        for how, ((kind, message), untouched) in result.items():
            assert (kind, untouched) == ("UsageError", True), (how, kind, message)
            assert "clip_norm=" in message


def _logged(rank: int, size: int, scaled: bool, method: str) -> Any:
    """The norm of this rank's gradient, read between backward and step by a clip that changes nothing; and without it."""
    trained = []
    for logs in (True, False):
        model, scaler = _net(), _scaler() if scaled else None
        optimizer = DataParallelOptimizer(model, method, lr=0.05, scaler=scaler, **BUCKETS)
        for step in range(STEPS):
            loss = _loss(model, rank, step)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            if logs:
                assert nn.utils.clip_grad_norm_(model.parameters(), float("inf")) > 0
            optimizer.step() if scaler is None else scaler.step(optimizer)
            if scaler is not None:
                scaler.update()
            optimizer.zero_grad()
        trained.append(_values(model))
    return trained


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("method", ["allreduce-sgd", "lion-cub-1bit"])
def test_a_norm_may_be_logged_by_a_clip_to_infinity(
    scaled: bool, method: str, ranks: Callable[[int], Ranks]
) -> None:
    _close(ranks(SIZE).run(_logged, scaled, method), exact=True)


def _norms(rank: int, size: int, clip: float) -> Any:
    """What ours says of the norm of the mean gradient, and what DDP's clipping answers; and the parameters."""
    ours, theirs = _net(), _net()
    optimizer = DataParallelOptimizer(ours, "allreduce-sgd", lr=0.05, clip_norm=clip, **BUCKETS)
    wrapped, plain = DistributedDataParallel(theirs), torch.optim.SGD(theirs.parameters(), lr=0.05)
    seen = [optimizer.last_grad_norm]
    for step in range(STEPS):
        _loss(ours, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        _loss(wrapped, rank, step).backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        plain.step()
        plain.zero_grad()
        seen.append((optimizer.last_grad_norm, expected))
    without = DataParallelOptimizer(_net(), "allreduce-sgd", lr=0.05)
    return seen, without.last_grad_norm, _values(ours), _values(theirs)


@pytest.mark.parametrize("clip", [0.05, float("inf")])
def test_the_norm_of_the_last_step_is_that_of_the_mean_before_clipping(
    clip: float, ranks: Callable[[int], Ranks]
) -> None:
    results = ranks(SIZE).run(_norms, clip)
    for (first, *norms), without, _, _ in results:
        assert first is without is None
        for ours, theirs in norms:
            assert (ours.dim(), ours.dtype) == (0, torch.float64)
            torch.testing.assert_close(ours.float(), theirs, rtol=1e-5, atol=0)
    _close([result[2:] for result in results])


# ---- frozen parameters and buffers ---------------------------------------------------------------------------------------


def _batch_norm(rank: int, size: int, sync: bool, parts: int) -> Any:
    """Buffers after every step, and at last those of ours and of DDP; two micro-batches a step where asked for."""
    trained, seen = [], []
    for ours in (True, False):
        model = _net(seed=rank, norm=True)
        wrapped: nn.Module = model
        optimizer: torch.optim.Optimizer
        if ours:
            optimizer = DataParallelOptimizer(
                model, "allreduce-sgd", lr=0.05, broadcast_buffers=sync, momentum=0.9
            )
            no_sync = optimizer.no_sync
        else:
            wrapped = DistributedDataParallel(model, broadcast_buffers=sync)
            optimizer, no_sync = _theirs("sgd", model.parameters(), 0.05), wrapped.no_sync
        for step in range(STEPS):
            for part in range(parts):
                with no_sync() if part + 1 < parts else nullcontext():
                    _loss(wrapped, rank, 10 * step + part).backward()
            if not ours:
                seen.append({k: v for k, v in _values(model).items() if "4." in k})
            optimizer.step()
            optimizer.zero_grad()
        if not ours and sync:
            wrapped(torch.zeros(2, WIDTH))  # DDP synchronises before a forward
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(seen[-1][name])
        trained.append(_values(model))
    return trained


@pytest.mark.parametrize("parts", [1, 2])
def test_batch_norms_buffers_are_those_of_rank_zero_as_with_ddp(
    parts: int, ranks: Callable[[int], Ranks]
) -> None:
    """Rank 0's buffers are DDP's on rank 0, and every rank has them."""
    first, *others = ranks(SIZE).run(_batch_norm, True, parts)
    _close([first])
    for ours, _ in others:
        assert all(torch.equal(value, first[0][name]) for name, value in ours.items())


# ---- uneven inputs -------------------------------------------------------------------------------------------------------


def _uneven(rank: int, size: int, name: str, scaled: bool) -> Any:
    """The last rank has most batches. The learning rate falls with every step that a rank takes itself."""
    trained = []
    for ours in (True, False):
        model, scaler = _net(norm=True).double(), _scaler()  # AdamW would magnify what float32 rounds
        wrapped: nn.Module = model
        optimizer: torch.optim.Optimizer
        if ours:
            optimizer = DataParallelOptimizer(
                model, OURS[name], lr=0.05, scaler=scaler if scaled else None, **BUCKETS, **_options(name)
            )
            joined: Any = optimizer
        else:
            joined = wrapped = DistributedDataParallel(model)
            optimizer = _theirs(name, model.parameters(), 0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        with Join([joined]):
            for step in range(3 + 2 * rank):
                loss = _loss(wrapped, rank, step)
                if scaled:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    loss.backward()
                    optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
        trained.append({k: v for k, v in _values(model).items() if "running" not in k and "num" not in k})
    return trained


@pytest.mark.parametrize(("name", "scaled"), [("sgd", False), ("adamw", False), ("adamw", True)])
def test_uneven_inputs_inside_join_as_with_ddp(
    name: str, scaled: bool, ranks: Callable[[int], Ranks]
) -> None:
    _close(ranks(3).run(_uneven, name, scaled))


def _uneven_compressed(rank: int, size: int, algorithm: str, options: dict[str, Any]) -> Any:
    model = _net()
    optimizer = DataParallelOptimizer(model, algorithm, lr=0.01, **BUCKETS, **options)
    with Join([optimizer]):
        for step in range(4 + rank):
            _loss(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    return _values(model), optimizer._worker.clock.step


@pytest.mark.parametrize(
    ("algorithm", "options"), [("lion-cub-1bit", {}), ("global-qsgd", {}), ("local-sgd", {"period": 3})]
)
def test_uneven_inputs_inside_join_leave_compressed_replicas_equal(
    algorithm: str, options: dict[str, Any], ranks: Callable[[int], Ranks]
) -> None:
    first, *others = ranks(3).run(_uneven_compressed, algorithm, options)
    assert first[0] != "error", first
    assert first[1] == 6  # a multiple of the period
    for values, steps in others:
        assert steps == first[1]
        assert all(torch.equal(value, first[0][name]) for name, value in values.items())


def test_a_model_wrapped_in_ddp_is_refused_by_that_name(ranks: Callable[[int], Ranks]) -> None:
    for result in ranks(SIZE).run(_wrapped):
        assert isinstance(result, dict), result
        for how, (kind, message) in result.items():
            assert kind == UsageError.__name__, (how, kind, message)
            assert "DistributedDataParallel" in message, how


def _wrapped(rank: int, size: int) -> dict[str, Any]:
    given = partial(DataParallelOptimizer, DistributedDataParallel(_net()), "allreduce-sgd")
    found = {"given": outcome(given)}
    for view in (False, True):
        bare = _net()
        model = DistributedDataParallel(bare, gradient_as_bucket_view=view)
        optimizer = DataParallelOptimizer(bare.named_parameters(), "allreduce-sgd", **BUCKETS)

        def train(optimizer: DataParallelOptimizer = optimizer, model: nn.Module = model) -> None:
            for step in range(2):
                _loss(model, rank, step).backward()
                optimizer.step()
                optimizer.zero_grad()

        found[f"wrapped, {view}"] = outcome(train)
    return found
