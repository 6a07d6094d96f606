"""What workers step with after communication has been settled: local optimizers by name.

Lion: the sign of an interpolated momentum, with decoupled weight decay (arXiv 2302.06675). The authors' code and its
description were read, not the paper's body. A momentum that is not finite makes its parameter NaN. In the authors' code
the sign of NaN is 0, and the coordinate stands still for ever without anybody noticing. As there, a parameter without
gradient is left alone, sign(0) = 0, and the momentum takes the raw gradient after the update has been formed.

Muon: torch's own, which orthogonalises the momentum of a matrix, beside AdamW for what is no hidden matrix (`Muon`).
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls.core import compute
from reference_impls.core.algorithm import Algorithm, OptimizerFactory, ParamGroups, option
from reference_impls.core.errors import UnsupportedError, nearest


class Lion(torch.optim.Optimizer):
    """x <- (1 - lr wd) x - lr sign(b1 m + (1 - b1) g); m <- b2 m + (1 - b2) g. State: `momentum`, zeros at first.

    params: parameters or groups as in torch.optim. lr >= 0, 0 <= betas < 1, weight_decay >= 0, else
    `UnsupportedError`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if not lr >= 0 or not all(0 <= b < 1 for b in betas) or not weight_decay >= 0:
            raise UnsupportedError(
                f"Lion wants lr >= 0, 0 <= betas < 1, weight_decay >= 0; got {lr}, {betas}, {weight_decay}"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step from the parameters' ``.grad``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            used = [param for param in group["params"] if param.grad is not None]
            for param in used:
                if not self.state[param]:
                    self.state[param]["momentum"] = torch.zeros_like(param)
            if used and compute.at_hand(used[0]):
                for param in used:
                    _step(param, param.grad, self.state[param]["momentum"], group)
            elif used:
                _step_together(
                    used, [param.grad for param in used], [self.state[p]["momentum"] for p in used], group
                )
        return loss


def _step(param: Tensor, grad: Tensor, momentum: Tensor, h: Mapping[str, Any]) -> None:
    direction = compute.empty_like(momentum)
    torch.lerp(momentum, grad, 1 - h["betas"][0], out=direction).sign_()
    if h["weight_decay"]:
        param.mul_(1 - h["lr"] * h["weight_decay"])
    param.add_(direction, alpha=-h["lr"])
    momentum.lerp_(grad, 1 - h["betas"][1])
    param.add_(momentum, alpha=0)  # 0 x NaN is NaN, which the sign has lost


def _step_together(
    params: list[Tensor], grads: list[Tensor], momenta: list[Tensor], h: Mapping[str, Any]
) -> None:
    """`_step` of all in few launches, to the same bits; the rate may be a tensor."""
    directions = torch._foreach_lerp(momenta, grads, 1 - h["betas"][0])
    torch._foreach_sign_(directions)
    torch._foreach_mul_(directions, -h["lr"])
    if h["weight_decay"]:
        torch._foreach_mul_(params, 1 - h["lr"] * h["weight_decay"])
    torch._foreach_add_(params, directions)
    torch._foreach_lerp_(momenta, grads, 1 - h["betas"][1])
    torch._foreach_add_(params, momenta, alpha=0)


MUON: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "momentum": 0.95,
        "nesterov": True,
        "ns_steps": 5,
        "adjust_lr_fn": "match_rms_adamw",
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "adamw_for": (
            "bytes", "embed", "embedding", "embeddings", "head", "positions", "table", "wpe", "wte",
        ),
    }
)  # fmt: skip
"""Hyper-parameters of `Muon` but for lr, at their defaults."""


class Muon(torch.optim.Optimizer):
    """`torch.optim.Muon` for hidden matrices and `torch.optim.AdamW` for all else, in the same groups.

    B <- m B + (1 - m) g; N = m B + (1 - m) g (`nesterov`) or B; O = N / |N|, then `ns_steps` times, in bfloat16, with A = O O^T:
    O <- 3.4445 O + (-4.775 A + 2.0315 A A) O; x <- (1 - lr wd) x - lr s O. State: Muon's ``momentum_buffer``, AdamW's own.

    A parameter of two dimensions is a hidden matrix unless a word of `adamw_for` stands in its name between dots or underscores
    (``lm_head.weight`` has the word ``head``, ``multihead.weight`` has not). The words that are there name tables of tokens and
    positions, and the output layer; a model that calls them otherwise, or numbers its layers, has to say its own.

    lr and `weight_decay` are those of both. s is 0.2 sqrt(max(rows, columns)) (``match_rms_adamw``), which gives O the size of an
    update of AdamW, or sqrt(max(1, rows / columns)) (``original``, torch's default). The first is the default here since one
    rate then serves both, and rates and decays that were tuned for AdamW serve Muon.

    Args:
        params: (name, parameter) pairs, or groups of them, as in torch.optim.
        lr: Learning rate.
        hyperparameters: Those of `MUON`, of which groups may have their own.

    Raises:
        UnsupportedError: Parameters have no names.
    """

    def __init__(self, params: Any, lr: float = 1e-3, **hyperparameters: Any) -> None:
        super().__init__(params, {"lr": lr, **MUON, **hyperparameters})
        for group in self.param_groups:
            if "param_names" not in group:
                raise UnsupportedError(
                    "muon knows tables and the output layer by their names: give (name, parameter) pairs, as "
                    "model.named_parameters() answers them"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step from the parameters' ``.grad``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parts: tuple[list[Tensor], list[Tensor]] = ([], [])
            for name, param in zip(group["param_names"], group["params"], strict=True):
                parts[param.dim() == 2 and not _named(name, tuple(group["adamw_for"]))].append(param)
            others, matrices = parts
            if matrices:
                self._step_matrices(matrices, group)
            if others:
                self._step_others(others, group)
        return loss

    def _step_matrices(self, matrices: list[Tensor], group: Mapping[str, Any]) -> None:
        own = {key: group[key] for key in ("momentum", "nesterov", "ns_steps", "adjust_lr_fn")}
        lr, decay = group["lr"], group["weight_decay"]
        if not isinstance(lr, Tensor):
            _step_on(self.state, torch.optim.Muon(matrices, lr=lr, weight_decay=decay, **own))
            return
        # a rate that nobody may read, and torch's step would: from zeros at the rate 1
        moves = {torch.zeros_like(matrix): matrix for matrix in matrices if matrix.grad is not None}
        for move, matrix in moves.items():
            move.grad = matrix.grad
        state = defaultdict(dict, {move: self.state[matrix] for move, matrix in moves.items()})
        _step_on(state, torch.optim.Muon(moves, lr=1.0, weight_decay=0.0, **own))
        for move, matrix in moves.items():
            matrix.mul_(1 - lr * decay).add_(move.mul_(lr))

    def _step_others(self, others: list[Tensor], group: Mapping[str, Any]) -> None:
        as_tensor = isinstance(group["lr"], Tensor)  # which kernels of this kind take for a number
        adamw = torch.optim.AdamW(
            others,
            0.0,
            group["betas"],
            group["eps"],
            group["weight_decay"],
            fused=as_tensor,
            capturable=as_tensor,
        )
        adamw.param_groups[0]["lr"] = group["lr"]  # its constructor would read it
        _step_on(self.state, adamw)


def _step_on(state: Any, part: torch.optim.Optimizer) -> None:
    """Step an optimizer of some of the parameters on their state, which lies elsewhere."""
    part.state = state
    part._warned_capturable_if_run_uncaptured = True
    part.step()


@functools.cache
def _named(name: str, words: tuple[str, ...]) -> bool:
    """Whether one of the words stands in a parameter's name between dots or underscores."""
    return any(re.search(rf"(?<![^._]){re.escape(word)}(?![^._])", name) for word in words)


@dataclass(frozen=True)
class LocalOptimizer:
    """How to build an optimizer from parameter groups, and the hyper-parameters that groups may carry.

    by_element: whether it treats every element by itself, so that it may step parts of a tensor.
    """

    build: OptimizerFactory
    hyperparameters: Mapping[str, Any]
    by_element: bool = True


_BY_NAME = {
    "sgd": LocalOptimizer(
        torch.optim.SGD, {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
    ),
    "adamw": LocalOptimizer(torch.optim.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}),
    "lion": LocalOptimizer(Lion, {"betas": (0.9, 0.99), "weight_decay": 0.0}),
    "muon": LocalOptimizer(Muon, MUON, by_element=False),
}


def local_optimizer(optimizer: str | OptimizerFactory) -> LocalOptimizer:
    """`sgd` (no momentum unless asked for), `adamw`, `lion`, `muon`, or a callable that takes parameter groups.

    A callable carries its own hyper-parameters; only lr is passed on to it. Raises `UnsupportedError` for a name that
    is not known.
    """
    if callable(optimizer):
        return LocalOptimizer(optimizer, {})
    if optimizer not in _BY_NAME:
        raise UnsupportedError(f"no local optimizer called {optimizer!r}{nearest(str(optimizer), _BY_NAME)}")
    return _BY_NAME[optimizer]


@dataclass(frozen=True)
class WithLocalOptimizer(Algorithm):
    """A method that steps a local optimizer with what `reduce` answers."""

    optimizer: str | OptimizerFactory = option(
        "sgd", "local optimizer: sgd, adamw, lion, muon, or a factory taking parameter groups"
    )

    def inner_optimizer(self, groups: ParamGroups) -> torch.optim.Optimizer:
        return local_optimizer(self.optimizer).build(groups)

    def hyperparameters(self) -> Mapping[str, Any]:
        return local_optimizer(self.optimizer).hyperparameters
