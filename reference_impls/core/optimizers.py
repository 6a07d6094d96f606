"""What workers step with after communication has been settled: local optimizers by name.

Lion: the sign of an interpolated momentum, with decoupled weight decay (arXiv 2302.06675). The authors' code and its
description were read, not the paper's body. A momentum that is not finite makes its parameter NaN. In the authors' code
the sign of NaN is 0, and the coordinate stands still for ever without anybody noticing. As there, a parameter without
gradient is left alone, sign(0) = 0, and the momentum takes the raw gradient after the update has been formed.

Muon: torch's own, which orthogonalises the momentum of a matrix, beside AdamW for what is no hidden matrix (`Muon`). Dion2: the
same of a part of the rows or columns (`Dion2`).
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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


class ByName(torch.optim.Optimizer):
    """Hidden matrices by a rule of their own (`step_matrices`), and `torch.optim.AdamW` for all else, in the same groups.

    A parameter of two dimensions is a hidden matrix unless a word of `adamw_for` stands in its name between dots or underscores
    (``lm_head.weight`` has the word ``head``, ``multihead.weight`` has not). The words that are there name tables of tokens and
    positions, and the output layer; a model that calls them otherwise, or numbers its layers, has to say its own.

    Args:
        params: (name, parameter) pairs, or groups of them, as in torch.optim.
        defaults: Hyper-parameters of which groups may have their own: those of AdamW, `adamw_for`, and those of the rule.

    Raises:
        UnsupportedError: Parameters have no names.
    """

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        for group in self.param_groups:
            if "param_names" not in group:
                raise UnsupportedError(
                    f"{type(self).__name__.lower()} knows tables and the output layer by their names: give (name, parameter) "
                    "pairs, as model.named_parameters() answers them"
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
                parts[is_hidden_matrix(name, param.shape, tuple(group["adamw_for"]))].append(param)
            others, matrices = parts
            if matrices:
                self.step_matrices(matrices, group)
            if others:
                self._step_others(others, group)
        return loss

    def step_matrices(self, matrices: list[Tensor], group: Mapping[str, Any]) -> None:
        """Step the hidden matrices of a group; those without a gradient stay."""
        raise NotImplementedError

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


class Muon(ByName):
    """`torch.optim.Muon` for hidden matrices and `torch.optim.AdamW` for all else (`ByName`), in the same groups.

    B <- m B + (1 - m) g; N = m B + (1 - m) g (`nesterov`) or B; O = N / max(|N|, 1e-7), then `ns_steps` times, in bfloat16,
    with A = O O^T: O <- 3.4445 O + (-4.775 A + 2.0315 A A) O; x <- (1 - lr wd) x - lr s O. State: Muon's ``momentum_buffer``,
    AdamW's own.

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

    def step_matrices(self, matrices: list[Tensor], group: Mapping[str, Any]) -> None:
        """Step the hidden matrices of a group; those without a gradient stay."""
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


DION2: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "submatrix_fraction": 0.25,
        "ef_decay": 0.95,
        "ns_steps": 5,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "adamw_for": MUON["adamw_for"],
    }
)
"""Hyper-parameters of `Dion2` but for lr, at their defaults."""


class Dion2(ByName):
    """Muon on a part of the rows or columns of hidden matrices, and `torch.optim.AdamW` for all else (`ByName`). 2512.16928.

    M <- M + g; S: the ceil(fraction size) rows or columns of M, of whichever there are fewer, with the largest L1 norm; O = M[S]
    orthogonalised as by `Muon`; M[S] <- ef_decay M[S]; x <- (1 - lr wd) x; x[S] <- x[S] - lr sqrt(rows / columns) O, with rows
    and columns of the whole matrix. State: M as ``momentum_buffer``, AdamW's own. lr and `weight_decay` are those of both.

    Differences: the paper could not be read; its authors' code was. The orthogonalisation is torch's Newton-Schulz, of one triple
    of coefficients (there Polar Express by default). Of equal norms the first is taken, which is not said there; a norm that is
    not a number counts as the largest, so that all see it. The default betas are those of the authors' first Dion. Each rank
    does all the work; there ranks may share it out. A tensor of more than two dimensions is stepped by AdamW.

    Args:
        params: (name, parameter) pairs, or groups of them, as in torch.optim.
        lr: Learning rate.
        hyperparameters: Those of `DION2`, of which groups may have their own.

    Raises:
        UnsupportedError: Parameters have no names.
    """

    def __init__(self, params: Any, lr: float = 0.01, **hyperparameters: Any) -> None:
        super().__init__(params, {"lr": lr, **DION2, **hyperparameters})

    def step_matrices(self, matrices: list[Tensor], group: Mapping[str, Any]) -> None:
        """Step the hidden matrices of a group; those without a gradient stay."""
        used = [matrix for matrix in matrices if matrix.grad is not None]
        parts = [self._selected(matrix, group) for matrix in used]
        moves = [torch.zeros_like(taken) for _, _, taken in parts]
        for move, (_, _, taken) in zip(moves, parts, strict=True):
            move.grad = taken
        own = {"momentum": 0.0, "nesterov": False, "ns_steps": group["ns_steps"], "adjust_lr_fn": "original"}
        if moves:
            _step_on(defaultdict(dict), torch.optim.Muon(moves, lr=1.0, weight_decay=0.0, **own))
        for matrix, move, (axis, chosen, _) in zip(used, moves, parts, strict=True):
            rows, columns = matrix.shape
            by_torch = math.sqrt(max(1, move.shape[0] / move.shape[1]))  # by the shape of the part
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            move.mul_(group["lr"] * (math.sqrt(rows / columns) / by_torch))
            matrix.index_add_(axis, chosen, move)

    def _selected(self, matrix: Tensor, group: Mapping[str, Any]) -> tuple[int, Tensor, Tensor]:
        """Take the gradient up. Answers the axis, the chosen places along it, and what the momentum held there."""
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        momentum = state["momentum_buffer"].add_(matrix.grad)
        axis = 0 if matrix.shape[0] <= matrix.shape[1] else 1
        count = math.ceil(round(group["submatrix_fraction"] * matrix.shape[axis], 6))
        norms = momentum.abs().sum(1 - axis)
        chosen = norms.sort(descending=True, stable=True).indices[:count].sort().values
        taken = momentum.index_select(axis, chosen)
        momentum.index_copy_(axis, chosen, taken * group["ef_decay"])
        return axis, chosen, taken


def _step_on(state: Any, part: torch.optim.Optimizer) -> None:
    """Step an optimizer of some of the parameters on their state, which lies elsewhere."""
    part.state = state
    part._warned_capturable_if_run_uncaptured = True
    part.step()


def is_hidden_matrix(name: str, shape: Sequence[int], adamw_for: tuple[str, ...]) -> bool:
    """Whether a parameter has two dimensions and none of these words in its name (`ByName`)."""
    return len(shape) == 2 and not _named(name, adamw_for)


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
    "dion2": LocalOptimizer(Dion2, DION2, by_element=False),
}


def local_optimizer(optimizer: str | OptimizerFactory) -> LocalOptimizer:
    """`sgd` (no momentum unless asked for), `adamw`, `lion`, `muon`, `dion2`, or a callable that takes parameter groups.

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
        "sgd", "local optimizer: sgd, adamw, lion, muon, dion2, or a factory taking parameter groups"
    )

    def inner_optimizer(self, groups: ParamGroups) -> torch.optim.Optimizer:
        return local_optimizer(self.optimizer).build(groups)

    def hyperparameters(self) -> Mapping[str, Any]:
        return local_optimizer(self.optimizer).hyperparameters
