"""Any method across the nodes of a model that FSDP2 shards within them, also one whose update belongs to its communication.

    mesh = init_device_mesh(device, (nodes, ranks_a_node), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    optimizer = fsdp_optimizer(model, "lion-cub-1bit", lr=1e-4, group=mesh["replicate"].get_group())

Within a node FSDP2 gathers parameters and scatters gradients as ever. Across nodes each rank trains its own parts of the
parameters with the ranks that hold the same parts, by a `DataParallelOptimizer` of its own: at the step it reads
``p.grad.to_local()``, and what it answers is written back into the parameters. An optimizer of yours, one that goes by the
element, steps these parts too: ``optimizer=lambda groups: torch.optim.RAdam(groups)`` where a method has a local one.

What is the same as unsharded: a method that treats every element by itself gives the same bits as on whole parameters. One
that has a scale or chooses elements for each bucket (`bucket_bytes`) does so for each bucket of a part: sound, and not the
same numbers. Methods that look at whole tensors or at the whole model (PowerSGD, LAMB, LAG, Muon, Dion) are refused, since ranks
of a node would decide differently; so is clipping by a norm, which would be that of a part.

Communication begins at the step, not in backward. The parts are a copy of the local parameters: 4 bytes an element more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from reference_impls.core.errors import LayoutError, UnsupportedError, UsageError
from reference_impls.core.optimizers import WithLocalOptimizer, local_optimizer
from reference_impls.core.registry import AnyMethod, Method, create
from reference_impls.frontends.optimizer import DataParallelOptimizer
from reference_impls.runtime.checkpoints import packed
from reference_impls.runtime.checks import Check
from reference_impls.runtime.engine import STREAMS, refuse_meshes
from reference_impls.runtime.step import Unused
from reference_impls.runtime.worker import named


def _refuse_whole(method: Method) -> None:
    """Raise `UnsupportedError` for a method that has to see more than this rank's parts."""
    own = method.algorithm
    tensors = any(spec.shape is not None for spec in own.state.values())
    if own.scope == "model" or own.plans_from_data or tensors:
        raise UnsupportedError(
            f"{method.name} decides by whole tensors or by the whole model, of which a rank holds a part under FSDP: choose a "
            "method that goes by the element or the bucket (lion-cub-1bit, one-bit-adam, qsr-adamw, diloco, ...); the hook "
            "(fsdp_hook) takes powersgd on parts; or train without FSDP"
        )
    if isinstance(own, WithLocalOptimizer) and not local_optimizer(own.optimizer).by_element:
        raise UnsupportedError(
            f"{method.name} steps {own.optimizer} on whole matrices, of which a rank holds a part under FSDP: choose adamw, "
            "lion or sgd; or train without FSDP"
        )
    if own.reference_points:
        raise UnsupportedError(
            f"{method.name} wants gradients at further points, for which FSDP would have to gather them: train without FSDP"
        )
    if own.clipping and getattr(own, own.clipping) is not None:
        raise UnsupportedError(
            f"{method.name}: {own.clipping} would clip by the norm of a part; clip before the step by "
            "torch.nn.utils.clip_grad_norm_(model.parameters(), ...), which knows all parts of a node"
        )


def _reshard(model: nn.Module) -> None:
    """Free whole parameters: those of the root stay gathered after a forward without backward."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


class _Parts:
    """This rank's parts of a sharded model: plain tensors beside the model's own, by name."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup | None) -> None:
        if group is None:
            raise UsageError(
                'give group=, the ranks that hold the same parts in other nodes: mesh["replicate"].get_group()'
            )
        self._model, pairs = model, named(model)
        self.whole: dict[str, Any] = {name: param for name, param in pairs if param.requires_grad}
        self.frozen = {
            name: param.to_local() if hasattr(param, "to_local") else param
            for name, param in pairs
            if not param.requires_grad
        }
        if not self.whole:
            raise LayoutError("there is no parameter to train: no parameter of the model requires a gradient")
        if unborn := [name for name, param in pairs if param.is_meta]:
            raise UsageError(f"parameter {unborn[0]!r} lies on the meta device: materialise the model first")
        for name, param in self.whole.items():
            if not hasattr(param, "to_local"):
                raise UnsupportedError(
                    f"parameter {name!r} is not sharded, so its gradient stays each rank's own within a node: call fully_shard "
                    "on the model itself too (and on nothing with ignored_params), or freeze it"
                )
        ranks = refuse_meshes(self.whole.items(), group)
        self.place = ranks.index(dist.get_rank())
        """Of this rank in its node."""
        self.plain = {
            name: nn.Parameter(param.to_local().detach().clone()) for name, param in self.whole.items()
        }

    @torch.no_grad()
    def pull(self) -> None:
        """Parameters and gradients of the model into the parts."""
        for name, part in self.plain.items():
            param = self.whole[name]
            part.copy_(param.to_local())
            part.requires_grad_(param.requires_grad)
            part.grad = None if param.grad is None else param.grad.to_local()

    @torch.no_grad()
    def push(self) -> None:
        """The parts into the model's parameters, of which none stays gathered: the next forward would see what they were."""
        for name, part in self.plain.items():
            self.whole[name].to_local().copy_(part)
            part.grad = None
        _reshard(self._model)

    def zero_grad(self, set_to_none: bool) -> None:
        """Of the model's parameters."""
        for name, part in self.plain.items():
            param, part.grad = self.whole[name], None
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.to_local().zero_()


class _Shown(MutableMapping[str, Any]):
    """A group of parts as users see it: its parameters are the model's, whose gradients can be clipped, say."""

    def __init__(self, group: dict[str, Any], params: list[Any]) -> None:
        self._group, self._params = group, params

    def __getitem__(self, key: str) -> Any:
        return self._params if key == "params" else self._group[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._group[key] = value

    def __delitem__(self, key: str) -> None:
        del self._group[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._group)

    def __len__(self) -> int:
        return len(self._group)


class PartsOptimizer(DataParallelOptimizer):
    """A `DataParallelOptimizer` of plain parts, which are read from a sharded model before a step and written back after it.

    Made by `fsdp_optimizer`.

    Attributes:
        method: The configured method.
        ledger: This rank's bytes across nodes.
    """

    def __init__(self, parts: _Parts, method: Method, lr: float, seed: int, **settings: Any) -> None:
        self._parts = parts
        self._place_in_node = parts.place
        super().__init__(parts.plain.items(), method, lr, seed=seed + parts.place * STREAMS, **settings)
        self._parts.push()  # what rank 0 of the group gave

    def _share_groups(self) -> None:
        whole = {part: self._parts.whole[name] for name, part in self._parts.plain.items()}
        self.param_groups = [
            _Shown(group, [whole[part] for part in group["params"]])  # type: ignore[misc]
            for group in self._worker.optimizer.param_groups
        ]

    def _brought(self) -> dict[str, Tensor]:
        return {f"frozen {name!r}": part for name, part in self._parts.frozen.items() if part.numel()}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on the model's gradients. With `closure`, it is called first to compute them.

        Raises:
            UsageError: No gradient is there, or a call would give wrong numbers.
            MismatchError: Ranks do different things.
            PeerError: A rank is finished, has failed, has died or hangs; it is named.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad(), self._agreement.telling_the_others():
                loss = closure()
        with self._on_the_model():
            for bucket in self._worker.buckets:
                if any(view.param.grad is not None for view in bucket.views):
                    self._gradients.arrived(bucket)
            self._whole_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Of the model's parameters."""
        self._parts.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """See `DataParallelOptimizer`; the model's parameters as they are now are in it."""
        with self._on_the_model():
            return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """See `DataParallelOptimizer`: what ranks with the same place in other nodes saved, each its own."""
        with self._on_the_model():
            super().load_state_dict(state_dict)

    def consolidate(self) -> dict[str, Any] | None:
        """The states of all ranks of all nodes in one dict, on rank 0; call it on all ranks, between steps.

        Returns:
            On the first rank of the first node a dict that `load_state_dict` takes on every rank, None on the others.
        """
        with self._on_the_model():
            found = super().consolidate()
        if found is None:  # another node's
            return None
        local, place = self.method.algorithm.local_steps, self._parts.place
        own = {
            key: leaf
            for state in found["workers"]
            for key, leaf in packed(state, local=local, place=place).items()
        }
        mesh = next(iter(self._parts.whole.values())).device_mesh
        places: list[Any] | None = [None] * mesh.size() if place == 0 else None
        dist.gather_object(own, places, group=mesh.get_group(), group_dst=0)
        if places is None:
            return None
        leaves = {key: leaf for at in places for key, leaf in at.items()}
        return {"state": {}, "param_groups": [{"params": [], **leaves}]}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """See `DataParallelOptimizer`; the model's parameters are the mean over nodes inside."""
        with self._on_the_model(), super().averaged():
            self._parts.push()
            yield

    @contextmanager
    def without_communication(self) -> Iterator[None]:
        """See `DataParallelOptimizer`; nothing goes across nodes inside."""
        with self._on_the_model(), super().without_communication():
            yield

    @contextmanager
    def _on_the_model(self) -> Iterator[None]:
        """The parts begin as what the model holds, and at the end it holds what they are, be it by an exception."""
        self._parts.pull()
        try:
            yield
        finally:
            self._parts.push()


def fsdp_optimizer(
    model: nn.Module,
    algorithm: AnyMethod,
    lr: float = 1e-3,
    *,
    group: dist.ProcessGroup,
    seed: int = 0,
    bucket_bytes: int | None = None,
    unused: Unused = "stay",
    check: Check = "first",
    timeout_s: float = 600.0,
    broadcast: bool = True,
    allow_empty_buckets: bool = False,
    skippable: bool = False,
    **options: Any,
) -> PartsOptimizer:
    """A method as the optimizer of a model that FSDP2 shards within nodes; what is sent goes across nodes alone.

    Call it on all ranks, after `fully_shard` on the **1-D** mesh of the ranks of a node, on the model itself too.

    Args:
        model: Sharded by `fully_shard`.
        algorithm: Name or object of a method, or a configured `Method`.
        lr: Learning rate.
        group: The ranks that hold the same parts of the model, one a node.
        seed: Equal on all ranks.
        bucket_bytes: Size of a bucket of parts; by default 4 MiB on a CPU, 25 MiB on a GPU.
        unused: See `DataParallelOptimizer`.
        check: What ranks compare: ``first``, ``each`` or ``off`` (see `reference_impls.runtime.checks`).
        timeout_s: Seconds to wait for another rank (on gloo; other backends have torch's own watchdog).
        broadcast: Start all nodes from the parameters of the first.
        allow_empty_buckets: See `DataParallelOptimizer`.
        skippable: Whether `skip_step` may come in the place of a step, on all ranks of all nodes.
        options: Of the method and its local optimizer, see `info`.

    Returns:
        An optimizer with `ledger`, `state_dict`, `load_state_dict` and `averaged`; every rank saves its own state.

    Raises:
        UnknownAlgorithmError: There is no such method.
        UnknownOptionError: The method has no such option.
        UnsupportedError: The method looks at whole tensors or the whole model, or the model is not on one 1-D mesh within a node.
        UsageError: A call would give wrong numbers.
        LayoutError: No parameter requires gradients.
        MismatchError: Ranks have different models, methods, options or places.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"give the model itself, not a {type(model).__name__} of parameters, which do not say how they are sharded; for "
            "hyper-parameters by group give the method a local optimizer that makes them: optimizer=lambda groups: ..."
        )
    method = create(algorithm, **options)
    _refuse_whole(method)
    _reshard(model)
    if not any(hasattr(p, "to_local") for p in model.parameters()):
        raise UsageError(
            "the model is not sharded: train it with DataParallelOptimizer, or call fully_shard first"
        )
    return PartsOptimizer(
        _Parts(model, group),
        method,
        lr,
        seed,
        group=group,
        bucket_bytes=bucket_bytes,
        unused=unused,
        check=check,
        timeout_s=timeout_s,
        broadcast=broadcast,
        allow_empty_buckets=allow_empty_buckets,
        skippable=skippable,
    )
