"""`attach`: a torch optimizer with a method around it trains as the driver that builds the same optimizer does, to the bit;
what of a user's loop works inside, and what is refused. Two processes where ranks matter.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from reference_impls import DataParallelOptimizer, create, list_algorithms
from reference_impls.core.registry import registry
from reference_impls.frontends.attached import Attached, attach, takes_any_optimizer
from tests.reference_impls.frontends import loss
from tests.reference_impls.gloo import Ranks, told
from tests.reference_impls.states import equal

STEPS, WIDTH, LR = 5, 8, 0.05
BUCKET = {"bucket_bytes": 4 * 2 * WIDTH * WIDTH, "seed": 3}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "qsgd": ("adamw", {"bits": 4, "error_feedback": True}),
    "powersgd": ("sgd", {"rank": 2}),
    "local-adamw": ("adamw", {"period": 2, "inner_state": "average"}),
    "slowmo-sgd": ("sgd", {"period": 2}),
    "streaming-diloco": ("adamw", {"period": 3, "fragments": 2, "overlap": 1}),
}  # of gradients, with learning rates and moves read; of local steps, with states, outer steps and pending exchanges
HYPER: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9}, "adamw": {}}


class Net(nn.Module):
    """A tied weight, a frozen layer, one that is never used, an empty parameter, a buffer."""

    def __init__(self, pieces: str = "") -> None:
        """pieces: run the middle under activation checkpointing, `True` or `False` for use_reentrant."""
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.head = nn.Linear(WIDTH, 3)
        self.pieces = pieces

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.tanh(self.first(x)))
        if not self.pieces:
            return self.head(self.middle(x))
        return self.head(checkpoint(self.middle, x, use_reentrant=self.pieces == "True"))

    def middle(self, x: Tensor) -> Tensor:
        return torch.tanh(self.tied(self.frozen(x)))


_loss = functools.partial(loss, widths=(WIDTH, 3))


def _yours(kind: str, params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=LR, momentum=0.9) if kind == "sgd" else torch.optim.AdamW(params, lr=LR)


def _loop(model: Any, optimizer: Any, driver: Any, rank: int, parts: str = "", clip: str = "") -> None:
    """parts: of two micro-batches a step, who is asked for no_sync(), both or the driver. clip: "between" or "in a hook"."""
    attached = isinstance(driver, Attached)
    schedule = LambdaLR(optimizer, lambda step: 0.8**step)

    def cut(*_: Any) -> None:
        clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 0.1)

    if attached and clip == "in a hook":
        optimizer.register_step_pre_hook(cut)
    for step in range(STEPS):
        if parts:
            with driver.no_sync() if parts == "both" or not attached else nullcontext():
                (_loss(model, rank, 50 + step) / 2).backward()
        (_loss(model, rank, step) / (2 if parts else 1)).backward()
        if attached and clip == "between":
            cut()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def _driver(model: Any, method: str, options: dict[str, Any], **settings: Any) -> DataParallelOptimizer:
    kind = METHODS[method][0]
    own = {} if "optimizer" in registry.entry(method).preset else {"optimizer": kind}
    return DataParallelOptimizer(
        model, method, lr=LR, allow_empty_buckets=True, **BUCKET, **settings, **own, **options, **HYPER[kind]
    )


def _attached(model: nn.Module, method: str, options: dict[str, Any], **settings: Any) -> Attached:
    optimizer = _yours(METHODS[method][0], [p for p in model.parameters() if p.requires_grad])
    return attach(optimizer, model, method, allow_empty_buckets=True, **BUCKET, **settings, **options)


def _outcome(model: Any, driver: DataParallelOptimizer) -> dict[str, Any]:
    assert torch.equal(model.frozen.weight, Net().frozen.weight)  # rank 0's
    ledger = driver.ledger.frame().to_dict("list")
    return {**{k: v.detach().clone() for k, v in model.state_dict().items()}, "ledger": ledger}


def _near(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(torch.allclose(v, b[k], atol=1e-6) for k, v in a.items() if isinstance(v, Tensor))


def _trained(rank, how, method, loop=_loop, pieces="", **settings):
    """Train one `Net` by the driver or attached to a torch optimizer; what came out."""
    model = Net(pieces)
    if rank:
        with torch.no_grad():
            model.first.weight.add_(1.0)  # rank 0's count
            model.frozen.weight.add_(1.0)
            model.norm.running_mean.add_(1.0)
    options = METHODS[method][1]
    if how == "driver":
        driver = _driver(model, method, options, **settings)
        loop(model, driver, driver, rank)
        found = _outcome(model, driver)
        driver.release()
        return found
    with _attached(model, method, options, **settings) as attached:
        mean = model.norm.running_mean
        assert mean is not None
        assert not mean.any()  # rank 0's, before a step could bring it
        loop(model, attached._yours, attached, rank)
        return _outcome(model, attached)


# ---- the same training as the driver's -----------------------------------------------------------------------------------


def _every_method(rank: int, size: int) -> dict[str, bool]:
    return {name: equal(*(_trained(rank, how, name) for how in ("driver", "attach"))) for name in METHODS}


@pytest.mark.gloo
def test_training_is_the_drivers_to_the_bit_with_the_same_bytes(ranks: Callable[[int], Ranks]) -> None:
    for found in ranks(2).run(_every_method):
        assert found == dict.fromkeys(METHODS, True)


# ---- what of a loop works ------------------------------------------------------------------------------------------------


def _two_optimizers(rank: int) -> bool:
    """A model whose head has an optimizer and a method of its own: each of the two as if it were alone."""
    model = Net()
    parts = [
        [(k, p) for k, p in model.named_parameters() if p.requires_grad and k.startswith("head") is head]
        for head in (False, True)
    ]
    groups = [dist.new_group([0, 1]) for _ in parts]
    optimizers = [
        _yours(kind, [p for _, p in part]) for kind, part in zip(("sgd", "adamw"), parts, strict=True)
    ]
    both = [
        attach(own, part, method, group=group, allow_empty_buckets=True)
        for own, part, method, group in zip(optimizers, parts, ("powersgd", "qsgd"), groups, strict=True)
    ]
    for step in range(STEPS):
        _loss(model, rank, step).backward()
        for own in optimizers:
            own.step()
            own.zero_grad()
    values = torch.cat([p.detach().reshape(-1) for part in parts for _, p in part])
    rows = [torch.empty_like(values) for _ in range(2)]
    dist.all_gather(rows, values)
    sent = [set(own.ledger.frame()["stage"]) for own in both]
    for own in both:
        own.release()
    return torch.equal(*rows) and sent[0] != sent[1]


def _groups_and_loading(rank: int) -> bool:
    """Two parameter groups with rates of their own, and an optimizer whose state is loaded within the block."""
    ends = []
    for how in ("driver", "attach"):
        model = Net()
        trained = [(k, p) for k, p in model.named_parameters() if p.requires_grad]
        groups = [{"params": trained[:2], "lr": 0.1}, {"params": trained[2:], "lr": 0.01}]
        common = {"allow_empty_buckets": True, **BUCKET}
        if how == "driver":
            # named groups, as without the model itself: the driver knows no buffers
            optimizer: Any = DataParallelOptimizer(groups, "qsgd", momentum=0.9, **common)
            driver = optimizer
        else:
            bare = [{**g, "params": [p for _, p in g["params"]]} for g in groups]
            optimizer = torch.optim.SGD(bare, lr=1.0, momentum=0.9)
            driver = attach(optimizer, trained, "qsgd", **common)
        for step in range(STEPS):
            _loss(model, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            if how == "attach":
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
        ends.append(_outcome(model, driver))
        driver.release()
    return equal(*ends)


def _works(rank: int, size: int) -> dict[str, bool]:
    def both(method: str, clip_norm: float | None = None, **how: str) -> list[dict[str, Any]]:
        loop = functools.partial(_loop, **how)
        return [
            _trained(rank, "driver", method, loop, clip_norm=clip_norm),
            _trained(rank, "attach", method, loop),
        ]

    plain = {method: _trained(rank, "attach", method) for method in ("qsgd", "local-adamw")}
    return {
        "accumulation": equal(*both("qsgd", parts="both")),
        "accumulation of local steps": equal(*both("local-adamw", parts="the driver")),
        "clipping in a hook": _near(*both("powersgd", 0.1, clip="in a hook")),
        "clipping of local steps": _near(*both("local-adamw", 0.1, clip="between")),
        "reentrant checkpointing": all(
            equal(plain[method], _trained(rank, "attach", method, pieces="True")) for method in plain
        ),
        "two optimizers": _two_optimizers(rank),
        "groups and loading": _groups_and_loading(rank),
    }


@pytest.mark.gloo
def test_what_a_loop_does_besides_works(ranks: Callable[[int], Ranks]) -> None:
    for found in ranks(2).run(_works):
        assert [name for name, same in found.items() if not same] == []


def _brought(rank: int, size: int) -> tuple[list[Tensor], str]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    for _ in range(rank + 1):
        _step(model, optimizer, rank)
    with attach(optimizer, model, "allreduce", bucket_bytes=16):
        for _ in range(2):
            _step(model, optimizer, rank)
        held = [x for p in model.parameters() for x in (p.detach(), *optimizer.state[p].values())]
    if rank:
        optimizer.state.clear()
    return held, told(lambda: attach(optimizer, model, "allreduce"))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    model(torch.full((1, 3), 1.0 + rank)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.gloo
def test_a_block_begins_with_the_state_of_rank_0_too(ranks: Callable[[int], Ranks]) -> None:
    """It may come of steps that each rank took by itself, or of a block of local ones."""
    (first, said), (second, _) = ranks(2).run(_brought)
    assert all(map(torch.equal, first, second))
    assert "MismatchError" in said
    assert "exp_avg of 'bias'" in said


# ---- on one rank: torch.compile, schedulers, giving back; and refusals that no rank waits for ------------------------------


@pytest.mark.gloo
def test_the_optimizer_is_given_back_with_its_schedulers(one_rank: None) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    before = LambdaLR(optimizer, lambda step: 0.5**step)
    own = optimizer.step
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a step that is not counted, or was replaced
        with attach(optimizer, model, "qsgd", allow_empty_buckets=True):
            _loss(model, 0, 0).backward()
            optimizer.step()
            before.step()
        assert optimizer.step is own
        assert not hasattr(optimizer, "_step_supports_amp_scaling")
        plain = torch.optim.SGD(model.parameters(), lr=LR)
        with attach(plain, model, "qsgd", allow_empty_buckets=True):
            after = LambdaLR(plain, lambda step: 0.5**step)  # wraps the step that the block leaves
            _loss(model, 0, 0).backward()
            plain.step()
            after.step()
        held = model.head.weight.detach().clone()
        _loss(model, 0, 0).backward()
        plain.step()
    assert not torch.equal(held, model.head.weight)
    assert plain.param_groups[0]["lr"] == LR / 2
    with attach(plain, model, "qsgd") as again:  # a former block does not count
        assert again.kind == "step"


@pytest.mark.gloo
def test_the_hooks_of_a_step_run_once_a_step(one_rank: None) -> None:
    DataParallelOptimizer(
        nn.Linear(3, 2), "qsgd"
    ).release()  # torch ties hooks to the step of a class, once there is one of it
    model, calls = nn.Linear(3, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    with attach(optimizer, model, "qsgd") as attached:
        attached.register_step_post_hook(lambda *_: calls.append(1))
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert len(calls) == 1


def test_every_method_is_taken_or_refused_by_name() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    taken = {name for name in list_algorithms() if takes_any_optimizer(create(name).algorithm)}
    assert {*METHODS, "diloco", "post-local-sgd", "qsr-adamw", "bmuf", "adacomm"} <= taken
    refused = set(list_algorithms()) - taken
    assert {"lion-cub-1bit", "apmsqueeze", "zero-one-adam", "dgc", "signum", "root-sgd"} <= refused
    for name in refused:
        message = told(lambda name=name: attach(optimizer, model, name))  # type: ignore[misc]
        assert message.startswith("UnsupportedError")
        assert f"DataParallelOptimizer(model, {name!r}" in message


class _Closures(torch.optim.SGD):
    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        return closure()


def test_optimizers_and_models_that_cannot_be_attached() -> None:
    model = nn.Linear(3, 2)
    sgd = functools.partial(torch.optim.SGD, lr=LR)
    mine = sgd(model.parameters())
    bare = sgd(model.parameters())
    del bare.param_groups[0]["lr"]
    half = nn.Linear(3, 2).bfloat16()
    two = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapped)
    refusals: dict[str, Callable[[], Any]] = {
        "takes a torch.optim.Optimizer": lambda: attach(model, model, "qsgd"),  # type: ignore[arg-type]
        "evaluates the loss several times": lambda: attach(
            torch.optim.LBFGS(model.parameters()), model, "qsgd"
        ),
        "_Closures evaluates the loss": lambda: attach(_Closures(model.parameters(), lr=LR), model, "qsgd"),
        "has no lr": lambda: attach(bare, model, "qsgd"),
        "give this to your SGD": lambda: attach(mine, model, "qsgd", momentum=0.9),
        "no parameter of the model given": lambda: attach(mine, nn.Linear(3, 2), "qsgd"),
        "'0.weight', '0.bias' of the model require": lambda: attach(sgd(two[1].parameters()), two, "qsgd"),
        "float32 masters": lambda: attach(sgd(half.parameters()), half, "qsgd"),
        "ddp_hook": lambda: attach(mine, wrapped, "qsgd"),
        "as model.named_parameters()": lambda: attach(mine, model.parameters(), "qsgd"),  # type: ignore[arg-type]
    }
    for words, action in refusals.items():
        assert words in told(action)


def _refused(rank: int, size: int) -> tuple[dict[str, str], str]:
    """Words that should be in what is said, and are not; and what the failure of one rank is to all."""

    def broken(loop: Callable[..., Any]) -> str:
        return told(lambda: _trained(rank, "attach", "qsgd", loop))

    def edited(model, optimizer, driver, rank):
        _loss(model, rank, 0).backward()
        clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 0.1)
        optimizer.step()

    def grown(model, optimizer, driver, rank):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        _loss(model, rank, 0).backward()
        optimizer.step()

    def again(model, optimizer, driver, rank):
        attach(optimizer, model, "qsgd")

    def failing(model, optimizer, driver, rank):
        if rank:
            raise KeyError("no such file")
        _loop(model, optimizer, driver, rank)

    expected = {
        "a step pre-hook of your optimizer": broken(edited),
        "leave the block and attach again": broken(grown),
        "attached already": broken(again),
    }
    return {words: said for words, said in expected.items() if words not in said}, broken(failing)


@pytest.mark.gloo
def test_what_a_loop_may_not_do_is_refused_with_what_to_do(ranks: Callable[[int], Ranks]) -> None:
    (_, first), (_, second) = found = ranks(2).run(_refused)
    assert [unsaid for unsaid, _ in found] == [{}, {}]
    assert "rank 1 has stopped (KeyError: 'no such file')" in first
    assert second.startswith("KeyError")
