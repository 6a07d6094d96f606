"""Methods inside torch's own wrappers: hooks for DistributedDataParallel and for the outer group of FSDP2.

    state, hook = ddp_hook("global-qsgd", model)
    ddp.register_comm_hook(state, hook)

    state = fsdp_hook(model, "qsgd", group=replicate_group)    # sharded by fully_shard within nodes, on a 1-D mesh

Loop, optimizer, clipping and schedule stay the user's. A hook answers the mean gradient, so it can carry what only reduces
gradients (`only_reduces`); methods that go on from parameters, learning rates or states of their own optimizer are
refused, and belong to `DataParallelOptimizer`.

DDP: its buckets are delivery alone. They are one order in the first step and another from the second on, so gradients are
sorted into buckets of ours, the ones that `DataParallelOptimizer` would have (canonical order, `bucket_bytes`), and leave
in its order as soon as they are whole: state, random streams and results are those of that optimizer, to the bit, whatever
DDP's buckets are. Gradients of 16 bits are reduced in float32.

FSDP2: what a rank holds of a module after the reduce-scatter within the node is one bucket, reduced over the ranks that
hold the same part in other nodes; parameters in it have the shape of that part, with the zeros that pad it. Each module
counts its own steps: one for each reduction.

Gradients that are not finite (an overflow under GradScaler, say): infinity comes out on every rank, as the mean would be, so
that all skip the step, and the method's state stays as it was before it: under DDP of the whole model, under FSDP2 of the module.
What a method keeps of gradients (error feedback) stays in units of the scale that they had: where a GradScaler changes its scale,
take a method without, or bfloat16 autocast.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # its stubs do not name it

from reference_impls.core import compute
from reference_impls.core.algorithm import Algorithm, Bucket
from reference_impls.core.collectives import KEPT_STEPS, Ledger, Ledgers
from reference_impls.core.errors import LayoutError, UnknownOptionError, UnsupportedError, UsageError
from reference_impls.core.optimizers import WithLocalOptimizer
from reference_impls.core.registry import AnyMethod, Method, create
from reference_impls.runtime.checkpoints import packed, unpacked
from reference_impls.runtime.checks import Check, Settings, described
from reference_impls.runtime.engine import STREAMS, Engine, ProcessGroupBackend, refuse_meshes
from reference_impls.runtime.step import LocalWorkers
from reference_impls.runtime.worker import Worker, bare_name, named, unwrapped

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_KEPT: Final = ("version", "world_size", "rank", "seed", "step", "counters", "slots")
"""What a hook saves of a worker's state: all but parameters and optimizer, which are the user's."""


# ---- which methods ---------------------------------------------------------------------------------------------------


def only_reduces(algorithm: Algorithm) -> bool:
    """Whether a method does nothing but reduce gradients, from these and its declared state alone.

    Args:
        algorithm: A configured one.

    Returns:
        True if any optimizer may step on what its `reduce` answers.
    """
    cls = type(algorithm)
    silent = (
        cls.synchronize is Algorithm.synchronize
        and not algorithm.local_steps
        and not algorithm.reference_points
    )
    return isinstance(algorithm, WithLocalOptimizer) and algorithm.reduces_gradient and silent


class _Untouched(torch.optim.Optimizer):
    """Stands for the user's optimizer: holds parameter groups and does nothing. A method that read lr would get NaN."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": float("nan")})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Nothing: the gradients go back to where they came from."""


def _reduction(algorithm: AnyMethod, options: Mapping[str, Any]) -> Method:
    """The method with nobody's optimizer; refuses what is none of a hook's business."""
    method = create(algorithm, **options)
    if not only_reduces(method.algorithm):
        raise UnsupportedError(
            f"{method.name} does more than reduce gradients (it has an update rule, local steps or momenta of its own, or "
            "reads parameters and learning rates), so a communication hook cannot carry it: train the bare model, "
            f"without DistributedDataParallel or FSDP, with DataParallelOptimizer(model, {method.name!r}, lr=...)"
        )
    foreign = sorted(options.keys() & {"optimizer", *method.algorithm.hyperparameters()})
    if foreign:
        raise UnknownOptionError(
            f"{', '.join(foreign)}: under a hook the optimizer is yours; give this to it, and the hook the options of "
            f"{method.name} alone"
        )
    return replace(method, algorithm=replace(method.algorithm, optimizer=_Untouched), hyperparameters={})  # type: ignore[call-arg]


# ---- what both hooks share -------------------------------------------------------------------------------------------


class _Hook:
    """A worker whose gradients come from elsewhere and go back there, and the ranks of `group` that it reduces them with.

    units: (name, a tensor like the gradient); none shares a bucket with another. settings: what ranks must have in common too.
    """

    def __init__(
        self,
        method: Method,
        units: Sequence[Sequence[tuple[str, Tensor]]],
        group: dist.ProcessGroup | None,
        settings: Settings,
        *,
        seed: int,
        stream: int = 0,
        bucket_bytes: int | None,
        check: Check,
        timeout_s: float,
    ) -> None:
        self.method = method
        self._undo: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._backend = backend = ProcessGroupBackend(group)
        groups, flat = _stand_ins(units)
        self._worker = Worker(
            method.algorithm,
            groups,
            rank=backend.ranks[0],
            size=backend.size,
            seed=seed + stream,
            bucket_bytes=bucket_bytes,
            storage=(flat, flat),  # gradients alone: who reduces has nothing to do with parameters
        )
        self._shapes = {view.name: list(view.param.shape) for s in self._worker.buckets for view in s.views}
        self._own_ledger = Ledger(backend.ranks[0], KEPT_STEPS)
        self.ledger = Ledgers([self._own_ledger])
        self._engine = Engine(backend, [self._own_ledger])
        backend.begin(check, timeout_s, flat.device)
        self._agreement = backend.agreement
        common = {
            **settings,
            "the method": f"{method.name} {described(method.algorithm)}",
            "check": check,
            "the seed": seed,
            "bucket_bytes": self._worker.bucket_bytes,
            **{f"the gradient {name!r}": str(shape) for name, shape in self._shapes.items()},
        }
        self._agreement.compare_by_collective(common, always=True)

    def __reduce__(self) -> Any:
        raise UsageError(
            "a hook belongs to a process group and is not pickled or copied: save its state_dict()"
        )

    @property
    def kind(self) -> str:
        """Kind of the reduction done last, or under way."""
        return self._worker.train_state.kind

    def release(self) -> None:
        """Tell the other ranks that this one takes no further part."""
        self._backend.end()

    def _saved(self) -> dict[str, Any]:
        return packed(self._flat_state(), local=False, place=self._place_in_node)

    _place_in_node: int | None = None
    """Set where ranks at other places of a node hold other parts of the model."""

    def _flat_state(self) -> dict[str, Any]:
        state = self._worker.state_dict()
        return {**{key: state[key] for key in _KEPT}, "shapes": self._shapes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` answered on the same rank of as many.

        Raises:
            LayoutError: It does not fit; nothing has been changed then.
        """
        rank = self._worker.train_state.world.rank
        self._load(unpacked(state, "a communication hook", rank=rank, place=self._place_in_node))

    def _load(self, state: Mapping[str, Any]) -> None:
        for name in sorted(self._shapes.keys() | state["shapes"].keys()):
            here, there = (list(x[name]) if name in x else None for x in (self._shapes, state["shapes"]))
            if here != there:
                raise LayoutError(
                    f"gradient {name!r}: the checkpoint has shape {there}, the model {here}; load it into the model, cut "
                    "over as many ranks, that it was saved from"
                )
        whole = self._worker.state_dict()
        self._worker.load_state_dict({**whole, **{key: state[key] for key in _KEPT}})

    def _begins(self, bucket: Bucket) -> None:
        """Keep the state of `bucket` until its reduction is known to be finite, and let no value that is not stay behind in it.

        A method that sends a part of its values might send the finite ones, and keep an infinity in its residual.
        """
        state = [
            x for slot in bucket.state.values() for x in (slot.values() if isinstance(slot, dict) else [slot])
        ]
        self._undo[bucket.index] = [(x, compute.empty_like(x).copy_(x)) for x in state]
        if not state:
            return
        finite = _finite(bucket.grads)
        if finite.is_cuda:
            bucket.grads.mul_(torch.where(finite, 1.0, math.nan))
        elif not finite:
            bucket.grads.fill_(math.nan)

    def _keep_finite(self, buckets: Sequence[Bucket]) -> Tensor:
        """What lies in the gradients of `buckets` is the answer to all ranks: unless it is finite, take the state back.

        Returns:
            bool [], on the device of the gradients.
        """
        finite: Tensor = torch.stack([_finite(bucket.grads) for bucket in buckets]).all()
        if finite.is_cuda or not finite:
            for bucket in buckets:
                torch.nan_to_num_(bucket.grads, nan=math.inf, posinf=math.inf, neginf=-math.inf)
                for now, before in self._undo[bucket.index]:
                    torch.where(finite, now, before, out=now)
        self._undo.clear()
        return finite

    def _ends(self, steps: int) -> None:
        """A reduction that all ranks have carried out is complete; settings are those of the construction."""
        self._agreement.end_step(steps, self._engine.launched, dict)


def _stand_ins(units: Sequence[Sequence[tuple[str, Tensor]]]) -> tuple[list[dict[str, Any]], Tensor]:
    """A group a unit, of tensors with the shapes, strides and names of the gradients; and the buffer that will hold all."""
    likes = [(name, like) for unit in units for name, like in unit if like.numel()]
    if not likes:
        raise LayoutError("there is no gradient to reduce: no parameter of the model requires one")
    name, first = likes[0]
    for other, like in likes:
        if not like.is_floating_point():
            raise UnsupportedError(f"parameter {other!r} is {like.dtype}; only real gradients are reduced")
        if (like.device, _wide(like)) != (first.device, _wide(first)):
            raise UnsupportedError(
                f"{name!r} is {first.dtype} on {first.device}, {other!r} {like.dtype} on {like.device}: a hook reduces "
                "gradients of one device, in float32 or in float64 and not in both"
            )
    groups = [
        {
            "params": [torch.empty_strided(p.shape, p.stride(), dtype=_wide(p), device=p.device) for _, p in unit],
            "param_names": [name for name, _ in unit],
        }
        for unit in units
    ]  # fmt: skip
    total = sum(like.numel() for _, like in likes)
    return groups, torch.zeros(total, dtype=_wide(first), device=first.device)


def _finite(x: Tensor) -> Tensor:
    """Whether all of x, [d], is finite: bool [], where x is."""
    if not x.is_cuda and (
        quick := x.sum().isfinite()
    ):  # the sum of what is finite may be too large, and no sum hides the rest
        return quick
    least, largest = torch.aminmax(x)
    return least.isfinite() & largest.isfinite()


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# ---- DistributedDataParallel -----------------------------------------------------------------------------------------


class DDPHook(_Hook):
    """State of the communication hook of a `DistributedDataParallel`, made by `ddp_hook`.

    Attributes:
        method: The configured method.
        ledger: This rank's bytes since it was attached, by step, kind and stage; what DDP sends on its own (buffers, which
            parameters were used) is not in it.
    """

    def __init__(
        self, method: Method, model: nn.Module, group: dist.ProcessGroup | None, **settings: Any
    ) -> None:
        bare, ddp = unwrapped(model)
        if group is None and ddp is not None:
            group = ddp.process_group
        trained = [(name, p) for name, p in named(bare) if p.requires_grad]
        if parted := [name for name, p in trained if hasattr(p, "to_local")]:
            raise UnsupportedError(
                f"parameter {parted[0]!r} is sharded (a DTensor), and DistributedDataParallel does not reduce parts: use "
                "fsdp_hook(model, NAME, group=...) after fully_shard on the 1-D mesh of a node"
            )
        super().__init__(method, [trained], group, {}, **settings)
        self._local_workers = LocalWorkers([self._worker], self._engine)
        self._names = {param: name for name, param in trained if param.numel()}
        self._begin_anew()

    def state_dict(self) -> dict[str, Any]:
        """What this rank must save to go on to the bit: error feedback and other state by parameter name, step, counters.

        Where a method keeps nothing by rank, rank 0's resumes every rank; else every rank saves its own.

        Raises:
            UsageError: A backward is under way, or has broken off.
        """
        if self._local_workers.under_way:
            raise UsageError("a backward is under way, or has broken off: save after it, before the next one")
        return self._saved()

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Take a bucket of DDP's over; what is whole by now leaves, and with the last bucket all come back."""
        flat = bucket.buffer()
        if flat.layout != torch.strided:
            raise UnsupportedError("sparse gradients are not reduced; build the embedding with sparse=False")
        with torch.no_grad(), self._agreement.telling_the_others():
            if not self._local_workers.planned:
                self._agreement.begin_step(self._worker.train_state.step, "plan")
                self._local_workers.plan()
                self._agreement.begin_step(self._worker.train_state.step, self._worker.train_state.kind)
            for param, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if param.numel():
                    self._arrived[self._name(param)] = gradient
            self._submit_whole()
            on_gpu: list[Any] | None = [flat.device] if flat.is_cuda else None
            future: torch.futures.Future[Tensor] = torch.futures.Future(devices=on_gpu)
            self._waiting.append((future, flat))
            if bucket.is_last():
                self._give_back()
        return future

    def _name(self, param: Tensor) -> str:
        if param not in self._names:
            raise UsageError(
                f"DDP reduces a parameter of shape {tuple(param.shape)} that was not among those of the model given, or did "
                "not require gradients then: call ddp_hook with the model that DDP wraps, frozen as it is trained"
            )
        return self._names[param]

    def _submit_whole(self) -> None:
        """Launch buckets of ours in their one order, last first, as far as they are whole."""
        buckets, workers = self._worker.buckets, self._local_workers
        while workers.launched < workers.buckets:
            following = buckets[workers.buckets - 1 - workers.launched]
            if any(view.name not in self._arrived for view in following.views):
                return
            self._worker.gather_gradients(following, [self._arrived[v.name] for v in following.views])
            self._begins(following)
            workers.submit_next()

    def _give_back(self) -> None:
        """Finish all reductions, and write what they answer over what DDP gave."""
        absent = [v.name for s in self._worker.buckets for v in s.views if v.name not in self._arrived]
        if absent:
            raise UsageError(
                f"DDP does not reduce {', '.join(absent[:4])}: freeze what is not trained (requires_grad_(False)) before "
                "DistributedDataParallel and ddp_hook, instead of having DDP ignore it"
            )
        counters = self._worker.train_state.counters
        planned = dict(counters)
        self._local_workers.complete()
        finite = self._keep_finite(self._worker.buckets)
        if counters != planned and not finite:
            counters.clear()
            counters.update(planned)
        self._ends(self._worker.train_state.step)
        for bucket in self._worker.buckets:
            self._worker.scatter_gradients(bucket, [self._arrived[v.name] for v in bucket.views])
        for future, flat in self._waiting:
            future.set_result(flat)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._arrived: dict[str, Tensor] = {}
        self._waiting: list[tuple[torch.futures.Future[Tensor], Tensor]] = []


def _reduce_bucket(state: DDPHook, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook of `ddp_hook`."""
    return state._reduce(bucket)


# torch looks at annotations, and takes them for classes, not for strings
_reduce_bucket.__annotations__.update(typing.get_type_hints(_reduce_bucket))


def ddp_hook(
    algorithm: AnyMethod,
    model: nn.Module,
    *,
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
    bucket_bytes: int | None = None,
    check: Check = "first",
    timeout_s: float = 600.0,
    **options: Any,
) -> tuple[DDPHook, Callable[[DDPHook, GradBucket], torch.futures.Future[Tensor]]]:
    """A method as communication hook of `DistributedDataParallel`: ``ddp.register_comm_hook(state, hook)``.

    Call it on all ranks, since they compare what they are asked for. Results equal those of `DataParallelOptimizer` with the
    same method, `seed`, `bucket_bytes` and optimizer, to the bit.

    Args:
        algorithm: Name or object of a method that reduces gradients, or a configured `Method`.
        model: The model, bare or already in its `DistributedDataParallel`.
        group: Process group, by default that of the wrapper, or the world.
        seed: Equal on all ranks.
        bucket_bytes: Size of a bucket of the method's, in bytes of float32, by default 4 MiB on a CPU and 25 MiB on a GPU; DDP's
            own buckets only deliver.
        check: What ranks compare: ``first``, ``each`` or ``off`` (see `reference_impls.runtime.checks`).
        timeout_s: Seconds to wait for another rank (on gloo; other backends have torch's own watchdog).
        options: Of the method, see `info`; not of its optimizer, which is the user's.

    Returns:
        The state, with `ledger`, `state_dict` and `load_state_dict`; and the hook.

    Raises:
        UnknownAlgorithmError: There is no such method.
        UnknownOptionError: The method has no such option, or it is one of an optimizer.
        UnsupportedError: The method does more than reduce gradients, or the request cannot be served.
        LayoutError: No parameter requires gradients.
        MismatchError: Ranks have different models, methods or options.
    """
    state = DDPHook(
        _reduction(algorithm, options),
        model,
        group,
        seed=seed,
        bucket_bytes=bucket_bytes,
        check=check,
        timeout_s=timeout_s,
    )
    return state, _reduce_bucket


# ---- FSDP2 -----------------------------------------------------------------------------------------------------------


@dataclass
class _Module:
    """What of a module this rank holds, reduced together. `params`: torch's FSDPParamGroup.

    calls: reductions so far. elements: of a whole gradient. partial: sum of what was scattered and not yet reduced.
    """

    name: str
    params: Any
    elements: int
    calls: int = 0
    partial: Tensor | None = None


class FSDPHook(_Hook):
    """The reductions across nodes of a model that is sharded within nodes, made by `fsdp_hook`.

    Attributes:
        method: The configured method.
        ledger: This rank's bytes across nodes; a step is a reduction of a module, counted by module.
    """

    def __init__(self, method: Method, model: nn.Module, group: dist.ProcessGroup, **settings: Any) -> None:
        found = _param_groups(model)
        prefix = {module: f"{name}." if name else "" for name, module in model.named_modules()}
        trained = ((_name_of(p, prefix), p.sharded_param) for _, _, own in found for p in _trained(own))
        refuse_meshes(trained, group)
        units = [[(_name_of(p, prefix), _local_like(p)) for p in _trained(own)] for _, _, own in found]
        self._modules = [
            _Module(bare_name(name) or "the model", own, sum(like.numel() for _, like in unit))
            for (name, _, own), unit in zip(found, units, strict=True)
        ]
        place = self._place_in_node = int(found[0][2].mesh_info.shard_mesh_rank)
        common = {"the place within its node": place, "parameters that add up to": _fingerprint(model)}
        super().__init__(
            method,
            units,
            group,
            common,
            stream=place * STREAMS,
            bucket_bytes=2**62,
            **settings,
        )
        if len(self._worker.buckets) != len(self._modules):
            raise UnsupportedError("a hook reduces modules of one dtype on one device")
        for index, (_, module, _) in enumerate(found):
            module.set_all_reduce_hook(partial(self._reduce, index))

    def state_dict(self) -> dict[str, Any]:
        """What this rank must save to go on to the bit: state by parameter name, reductions by module. Every rank its own.

        Raises:
            UsageError: Gradients were scattered and not yet reduced.
        """
        if any(own.partial is not None for own in self._modules):
            raise UsageError("micro-batches wait for their reduction: save after the last backward of a step")
        return self._saved()

    def _flat_state(self) -> dict[str, Any]:
        return {**super()._flat_state(), "calls": {own.name: own.calls for own in self._modules}}

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        for own in self._modules:
            own.calls = int(state["calls"][own.name])

    @torch.no_grad()
    def _reduce(self, index: int, reduce_output: Tensor) -> None:
        """Replace one module's scattered gradient by its mean over nodes, in place."""
        own, bucket, train_state = self._modules[index], self._worker.buckets[index], self._worker.train_state
        with self._agreement.telling_the_others():
            if reduce_output.numel() != own.elements:
                raise UsageError(
                    f"{own.name}: {reduce_output.numel()} of {own.elements} elements have a gradient, and which ones the hook "
                    "is not told: give all of them one, or let those without count as zeros by "
                    "model.set_reduce_scatter_unused_params(True), which torch has from 2.13 on"
                )
            if reduce_output.is_cuda:  # made on one stream, used on this one
                reduce_output.record_stream(torch.cuda.current_stream())
            if not own.params.all_reduce_grads:
                own.partial = (
                    reduce_output.clone() if own.partial is None else own.partial.add_(reduce_output)
                )
                reduce_output.zero_()  # adds nothing to the gradient until the sum of micro-batches is reduced
                return
            if own.partial is not None:
                reduce_output.add_(own.partial)
                own.partial = None
            train_state.step = self._own_ledger.step = own.calls
            algorithm = self._worker.algorithm
            kind = algorithm.plan(train_state)
            assert isinstance(kind, str)  # who asks others before planning is refused at construction
            train_state.kind = self._own_ledger.kind = kind
            self._agreement.begin_step(own.calls, f"{own.name}: {train_state.kind}")
            bucket.grads.copy_(reduce_output)
            self._begins(bucket)
            (mean,) = self._engine.run([algorithm.reduce(bucket)])
            algorithm.update(bucket, mean)
            self._keep_finite([bucket])
            reduce_output.copy_(bucket.grads)
            own.calls += 1
            self._ends(own.calls)


def fsdp_hook(
    model: nn.Module,
    algorithm: AnyMethod,
    *,
    group: dist.ProcessGroup,
    seed: int = 0,
    check: Check = "first",
    timeout_s: float = 600.0,
    **options: Any,
) -> FSDPHook:
    """A method as the reduction across nodes of an FSDP2 model; it registers itself on every FSDP module.

    Shard every module that is to be a unit by ``fully_shard(module, mesh=...)`` on the **1-D** mesh of the ranks of a node,
    start all nodes from equal parameters, and call this on all ranks. Micro-batches: ``set_requires_gradient_sync(False)``
    and ``set_requires_all_reduce(False)`` hold as with native HSDP; without them each backward is a reduction.

    Args:
        model: Sharded by `fully_shard`.
        algorithm: Name or object of a method that reduces gradients, or a configured `Method`; ``allreduce`` is native HSDP to
            the bit, ``allreduce-bf16`` that with ``reduce_dtype=torch.bfloat16``.
        group: The ranks that hold the same part of the model, one a node.
        seed: Equal on all ranks.
        check: What ranks compare: ``first``, ``each`` or ``off`` (see `reference_impls.runtime.checks`).
        timeout_s: Seconds to wait for another rank (on gloo; other backends have torch's own watchdog).
        options: Of the method, see `info`; not of its optimizer, which is the user's.

    Returns:
        An object with `ledger`, `state_dict` and `load_state_dict`.

    Raises:
        UnknownAlgorithmError: There is no such method.
        UnknownOptionError: The method has no such option, or it is one of an optimizer.
        UnsupportedError: The method does more than reduce gradients or looks at the whole model at once; a mesh is 2-D (HSDP,
            tensor parallelism); or parameters lie on several.
        UsageError: No module is sharded, or one has a hook already.
        MismatchError: Ranks have different models, methods, options or parameters.
    """
    method = _reduction(algorithm, options)
    whole = type(method.algorithm).remember is not Algorithm.remember or method.algorithm.plans_from_data
    if whole or method.algorithm.scope == "model":
        raise UnsupportedError(
            f"{method.name} decides by the gradient of the whole model, and FSDP shows one module at a time: choose a method "
            "that decides by the bucket (qsgd, global-qsgd, powersgd, ...), or train without FSDP by ddp_hook"
        )
    return FSDPHook(method, model, group, seed=seed, check=check, timeout_s=timeout_s)


def _param_groups(model: nn.Module) -> list[tuple[str, FSDPModule, Any]]:
    """(name, module, torch's FSDPParamGroup) of all FSDP modules with parameters to train, in the model's order.

    What of a module is reduced together, and on which mesh, torch says in attributes of its own; a module had one group, or
    none, before torch 2.12.
    """
    from torch.distributed.fsdp import FSDPModule  # here, since it takes most of a second

    found: list[tuple[str, FSDPModule, Any]] = []
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        state = module._get_fsdp_state()
        groups = (
            state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
        )
        if len(groups) > 1:
            raise UnsupportedError(
                f"{name!r} has parameters on several meshes (shard_placement_fn), and torch has one hook for all of them: "
                "shard these parts of it as modules of their own"
            )
        for own in groups:
            if own is None or not _trained(own) or any(own is other for _, _, other in found):
                continue  # frozen; or sharded together with an earlier module
            if own._is_hsdp or not hasattr(own.mesh_info, "shard_mesh_rank"):
                raise UnsupportedError(
                    f"{name or 'the model'} lies on a mesh that replicates, where torch all-reduces in full precision before "
                    'any hook: call fully_shard(module, mesh=mesh["shard"]) with the 1-D mesh of a node, and give '
                    'fsdp_hook group=mesh["replicate"].get_group()'
                )
            if own._all_reduce_hook is not None:
                raise UsageError(f"{name or 'the model'} has an all-reduce hook already; a module takes one")
            found.append((name, module, own))
    if not found:
        raise UsageError(
            "no module of the model is sharded: call fully_shard on its layers and on the model first, then fsdp_hook"
        )
    return found


def _trained(own: Any) -> list[Any]:
    """torch's FSDPParam of all parameters of a group that get gradients."""
    return [p for p in own.fsdp_params if p.sharded_param.requires_grad]


def _name_of(param: Any, prefix: Mapping[nn.Module, str]) -> str:
    return bare_name(f"{prefix[param._module_info.module]}{param._module_info.param_name}")


def _local_like(param: Any) -> Tensor:
    """A tensor of one element's memory with the shape, dtype and device of this rank's part of the gradient."""
    one = torch.empty(1, dtype=param.sharded_param.dtype, device=param.device)
    return one.expand(param.padded_sharded_param_size)


def _fingerprint(model: nn.Module) -> str:
    """Nodes that start from different parameters, frozen or not, never meet; those still on the meta device say nothing."""
    parts = [p.detach().to_local() for p in model.parameters() if hasattr(p, "to_local")]  # type: ignore[attr-defined]
    if any(part.is_meta for part in parts):
        return "not known yet"
    return repr(float(sum(float(part.double().sum()) for part in parts)))
