"""Your optimizer, your loop, a method's exchange: `attach` around any `torch.optim` optimizer.

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with attach(optimizer, model, "streaming-diloco", total_steps=10_000) as attached:
        for x, y in batches:
            loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

Inside the block ``optimizer.step()`` is the step of a `DataParallelOptimizer` whose local optimizer is yours: the method's
exchange of gradients, your own step (with its own hooks) on what it answers, then what the method does to parameters. Buckets,
random streams, ledger and state are that driver's, so that results equal its results to the bit wherever it can build the
same optimizer. Learning rates are read from your optimizer's parameter groups.

Which methods: those with a place for a local optimizer (`takes_any_optimizer`), be they of gradients (QSGD, PowerSGD, LAG) or of
local steps (Local SGD, QSR, DiLoCo). Methods that are optimizers of their own (Lion Cub, APMSqueeze, 1-bit Adam) have no
place for yours and are refused.

Whose gradient: where the method exchanges gradients, ``.grad`` is this rank's own until the step, and an edit of it between
backward and step is refused, since in DistributedDataParallel it would act on the mean. What shall act on the mean is a step
pre-hook of your optimizer. Where every step is local and the method exchanges parameters, ``.grad`` is yours to edit.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Joinable

from reference_impls.algorithms.local_updates import LocalUpdates
from reference_impls.core.algorithm import Algorithm
from reference_impls.core.errors import UnknownOptionError, UnsupportedError, UsageError
from reference_impls.core.optimizers import WithLocalOptimizer
from reference_impls.core.registry import AnyMethod, Method, create
from reference_impls.frontends.optimizer import DataParallelOptimizer, refuse_scaler
from reference_impls.runtime.checks import Check
from reference_impls.runtime.step import Unused
from reference_impls.runtime.worker import SUPPORTED_DTYPES, bare_model, named

Parameters = nn.Module | Iterable[tuple[str, Tensor]]


# ---- which methods ---------------------------------------------------------------------------------------------------


def takes_any_optimizer(algorithm: Algorithm) -> bool:
    """Whether a method hands what it has reduced to a local optimizer, which may then be anybody's.

    Args:
        algorithm: A configured one.

    Returns:
        False for methods that move the parameters by a rule of their own.
    """
    return (
        isinstance(algorithm, WithLocalOptimizer)
        and type(algorithm).inner_optimizer is WithLocalOptimizer.inner_optimizer
    )


def _steps_on_own_gradients(algorithm: Algorithm) -> bool:
    """Whether `reduce` is declared to answer a tensor at once: it sends nothing, and a gradient never leaves its rank."""
    return algorithm.local_steps and type(algorithm).reduce.__annotations__.get("return") in (
        "Tensor",
        Tensor,
    )


def _method(algorithm: AnyMethod, options: dict[str, Any], optimizer: torch.optim.Optimizer) -> Method:
    """The method with `optimizer` in the place of its local one."""
    mine = type(optimizer).__name__
    plain = create(algorithm)
    if not takes_any_optimizer(plain.algorithm):
        raise UnsupportedError(
            f"{plain.name} is an optimizer of its own: it moves the parameters by its own rule and has no place for {mine}. "
            f"Train with DataParallelOptimizer(model, {plain.name!r}, lr=...) in its stead"
        )
    if foreign := sorted(options.keys() & {"lr", *plain.algorithm.hyperparameters()}):
        raise UnknownOptionError(
            f"{', '.join(foreign)}: give this to your {mine}, and attach() the options of the method alone"
        )
    method = create(algorithm, **options)
    yours: Any = replace(method.algorithm, optimizer=lambda groups: optimizer)  # type: ignore[call-arg]
    if isinstance(yours, LocalUpdates):  # SlowMo's rule for inner states asks whose they are
        kind = "sgd" if isinstance(optimizer, torch.optim.SGD) else yours.optimizer
        yours = replace(yours, inner_state=replace(yours, optimizer=kind).inner_policy)  # type: ignore[arg-type]
    return replace(method, algorithm=yours, hyperparameters={})


# ---- which optimizers and parameters ---------------------------------------------------------------------------------


def _refuse_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise for what cannot be stepped once, on gradients that are there, without talking to other ranks itself."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"attach() takes a torch.optim.Optimizer, got {name}")
    if isinstance(optimizer, Joinable | DataParallelOptimizer):
        raise UsageError(
            f"{name} communicates by itself: attach the plain optimizer that it stands for (torch.optim.AdamW, say)"
        )
    former = getattr(vars(optimizer).get("step"), "attached", None)
    if isinstance(former, Attached) and not former._released:
        raise UsageError(f"this {name} is attached already: leave its block (or release() it) first")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure and closure.default is closure.empty):
        raise UnsupportedError(
            f"{name} evaluates the loss several times within a step, and a method reduces one gradient a step: use an "
            "optimizer that takes one (SGD, AdamW, ...)"
        )
    for number, group in enumerate(optimizer.param_groups):
        if "lr" not in group:
            raise UnsupportedError(
                f"parameter group {number} of {name} has no lr, which methods read and ranks compare: give it one"
            )


def _named(model: Parameters) -> tuple[nn.Module | None, dict[Tensor, str]]:
    """The module, if there is one, and names of its parameters, tied ones once."""
    module = bare_model(model) if isinstance(model, nn.Module) else None
    names: dict[Tensor, str] = {}
    for name, param in named(model if module is None else module):
        if hasattr(param, "to_local"):
            raise UnsupportedError(
                f"parameter {name!r} is sharded (a DTensor): use fsdp_optimizer(model, NAME, group=..., optimizer=lambda groups: "
                "torch.optim.AdamW(groups)), group being the ranks that hold the same parts in other nodes; or fsdp_hook"
            )
        names.setdefault(param, name)
    return module, names


def _groups(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> list[dict[str, Any]]:
    """The optimizer's parameter groups with names, in its order; frozen parameters that it does not hold come to the first."""
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        for param in group["params"]:
            if param not in names:
                raise UsageError(
                    f"parameter group {number} of the optimizer has a tensor of shape {tuple(param.shape)} that is no parameter "
                    "of the model given: give the model whose parameters the optimizer was built with; for float32 masters "
                    "of a bfloat16 model give the masters, [(name, master), ...]"
                )
            if param.requires_grad and param.numel() and param.dtype not in SUPPORTED_DTYPES:
                raise UnsupportedError(
                    f"parameter {names[param]!r} is {param.dtype}: keep it in float32 under bfloat16 autocast; or let the "
                    "optimizer step float32 masters and give attach() these, [(name, master), ...], in the place of the model"
                )
        groups.append({"params": [(names[param], param) for param in group["params"]]})
    held = {param for group in optimizer.param_groups for param in group["params"]}
    others = [(name, param) for param, name in names.items() if param not in held]
    if astray := [name for name, param in others if param.requires_grad]:
        raise UsageError(
            f"{', '.join(map(repr, astray[:4]))} of the model require gradients and are not in the optimizer, so nobody would "
            "train them alike: add them to it, freeze them (requires_grad_(False)), or, if another optimizer trains them, "
            "give attach() the (name, parameter) pairs of this one alone, and each optimizer a process group (group=)"
        )
    groups[0]["params"] += others
    return groups


# ---- the block -------------------------------------------------------------------------------------------------------


class Attached(DataParallelOptimizer):
    """A method around an optimizer of yours, made by `attach`; a `DataParallelOptimizer` whose local optimizer is that one.

    Inherited are `ledger`, `state_dict` and `load_state_dict` (parameters and your optimizer's state are in it), `consolidate`,
    `no_sync`, `averaged`, `observe`, `traced`, `skip_step`, `last_grad_norm`. As a context manager it ends what is under way, and
    is released, at the end.

    Attributes:
        method: The configured method.
        ledger: This rank's bytes by step, kind and stage.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: Parameters, method: Method, **settings: Any
    ) -> None:
        self._given, names = _named(model)
        groups = _groups(optimizer, names)
        self._yours = optimizer
        self._stepping = False
        self._on_own_gradients = _steps_on_own_gradients(method.algorithm)
        super().__init__(groups, method, **settings)
        self._held = self._parameters()
        self._take_over()

    def _model_of(self, params: Any) -> tuple[nn.Module | None, Any]:
        return self._given, params

    def _brought(self) -> dict[str, Tensor]:
        """State that the optimizer has from before, by parameter: another block's, or a checkpoint's."""
        names = {view.param: view.name for bucket in self._worker.buckets for view in bucket.views}
        return {
            f"{key} of {names[param]!r}": value
            for param in sorted(names, key=names.__getitem__)
            for key, value in sorted(self._yours.state.get(param, {}).items())
            if isinstance(value, Tensor)
        }

    def _take_over(self) -> None:
        """Put this object's step in the place of the optimizer's, as torch's schedulers do with theirs."""
        optimizer, own = self._yours, vars(self._yours)
        self._before: dict[str, Any] = {
            key: own[key] for key in ("step", "_step_supports_amp_scaling") if key in own
        }
        original: Callable[..., Any] = optimizer.step

        @functools.wraps(original)
        def step(_: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            """This rank's part of the method's step, or your optimizer's own within and after it."""
            return (
                original(*args, **kwargs) if self._stepping or self._released else self.step(*args, **kwargs)
            )

        step.attached = self  # type: ignore[attr-defined]
        self._step: Any = types.MethodType(step, optimizer)
        optimizer.step = self._step  # type: ignore[method-assign]
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]  # a GradScaler calls step, where it is refused

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """What ``optimizer.step()`` does inside the block; `closure` is called once, before the exchange.

        Raises:
            UsageError: Gradients were edited, parameters were added, or a call would give wrong numbers.
            MismatchError: Ranks do different things.
            PeerError: A rank is finished, has failed or stays silent.
        """
        with self._agreement.telling_the_others():
            self._refuse_released()
            refuse_scaler(self._yours)
            if self._parameters() != self._held:
                raise UsageError(
                    "the optimizer's parameter groups are others than those that were attached (add_param_group?), and buckets "
                    "and the method's state are laid out: leave the block and attach again"
                )
        self._share_groups()  # load_state_dict of an optimizer makes new ones
        return self._whole_step(closure)

    def release(self) -> None:
        """Give optimizer and parameters back as they were; gradients are dropped. The optimizer goes on without exchange."""
        if not self._released:
            own = vars(self._yours)
            if own.get("step") is self._step:  # else a scheduler stands before it, and it passes on
                del own["step"]
            else:
                self._before.pop("step", None)
            own.pop("_step_supports_amp_scaling", None)
            own.update(self._before)
        super().release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            if any(bucket.pending for bucket in self._worker.buckets):
                self._all_at("the end of attach()")
            self._local_workers.engine.drain()
        else:
            self._agreement.leave(f"has stopped ({type(error).__name__}: {error})")
        self.release()

    def _parameters(self) -> list[list[int]]:
        return [[id(param) for param in group["params"]] for group in self._yours.param_groups]

    def _take_step(self) -> None:
        self._stepping = True
        try:
            super()._take_step()
        finally:
            self._stepping = False

    def _on_gradient(self, param: Tensor) -> None:
        if self._on_own_gradients:
            self._gradients.arrived(self._worker.buckets[self._place[param][0]])
        else:
            super()._on_gradient(param)


def attach(
    optimizer: torch.optim.Optimizer,
    model: Parameters,
    algorithm: AnyMethod,
    *,
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
    bucket_bytes: int | None = None,
    clip_norm: float | None = None,
    unused: Unused = "stay",
    check: Check = "first",
    timeout_s: float = 600.0,
    broadcast: bool = True,
    broadcast_buffers: bool = True,
    allow_empty_buckets: bool = False,
    skippable: bool = False,
    **options: Any,
) -> Attached:
    """Train with `optimizer` by a method, in your own loop: ``with attach(optimizer, model, "qsgd", bits=4) as attached:``.

    Call it on all ranks, with the model bare. It takes effect at once; the end of the block, or `Attached.release`, gives the
    optimizer back. Where a name says a local optimizer (``qsr-adamw``), yours stands in its place.

    Args:
        optimizer: Any torch optimizer that takes one gradient a step. Its parameter groups are compared between ranks.
        model: Whose parameters `optimizer` trains; or (name, parameter) pairs, then buffers are not known.
        algorithm: Name or object of a method that has a place for a local optimizer, or a `Method`; its own is not used.
        group: Process group; by default the world.
        seed: Equal on all ranks.
        bucket_bytes: Size of a bucket; by default 4 MiB on a CPU, 25 MiB on a GPU.
        clip_norm: Clip what the method hands to your optimizer by its global norm; infinity clips nothing, and
            `Attached.last_grad_norm` is there.
        unused: See `DataParallelOptimizer`.
        check: What ranks compare: ``first``, ``each`` or ``off`` (see `reference_impls.runtime.checks`).
        timeout_s: Seconds to wait for another rank (on gloo; other backends have torch's own watchdog).
        broadcast: Start from rank 0's parameters, the frozen ones among them, from its buffers, and from the state (tensors) that
            its optimizer has already.
        broadcast_buffers: Take over rank 0's buffers after every step, counted in the ledger.
        allow_empty_buckets: Whether a step may be taken in which no parameter of a bucket got a gradient on this rank.
        skippable: Whether `Attached.skip_step` may come in the place of a step (see `DataParallelOptimizer`).
        options: Of the method, see `info`; not of its local optimizer, which is yours.

    Returns:
        What the block is entered with.

    Raises:
        UnknownAlgorithmError: There is no such method.
        UnknownOptionError: The method has no such option, or it is one of an optimizer.
        UnsupportedError: The method is an optimizer of its own, the optimizer takes more than one gradient a step, or a
            parameter's dtype or placement is not served.
        UsageError: Optimizer and model do not belong together, or one of them communicates by itself.
        LayoutError: There is no parameter to train.
        MismatchError: Ranks have different models, optimizers or options.
    """
    _refuse_optimizer(optimizer)
    return Attached(
        optimizer,
        model,
        _method(algorithm, options, optimizer),
        group=group,
        seed=seed,
        bucket_bytes=bucket_bytes,
        clip_norm=clip_norm,
        unused=unused,
        check=check,
        timeout_s=timeout_s,
        broadcast=broadcast,
        broadcast_buffers=broadcast_buffers,
        allow_empty_buckets=allow_empty_buckets,
        skippable=skippable,
    )
