"""One rank's whole model: flat buffers, shards, clock, inner optimizer and declared state.

The worker owns the flat buffers. Parameters are re-pointed into one of them at construction (and checked at every
step, since ``model.to()`` and ``load_state_dict(assign=True)`` undo that in silence); gradients are gathered into the
other. Phases are answered as exchanges: drivers carry them out (`reference_impls.drivers.local_workers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import Algorithm, Clock, ParamGroups, Shard, View
from reference_impls.collectives import Group, Pending
from reference_impls.drivers import slots
from reference_impls.drivers.probes import Probes
from reference_impls.errors import LayoutError, UsageError
from reference_impls.layout import Place, canonical, cut, flat_view, with_own_storage
from reference_impls.registry import Bounds, Declared

STATE_VERSION = 2
EVERY_RANK: Final = (
    "All ranks must save: each a file of its own, or together by torch.distributed.checkpoint, or, of an optimizer, what "
    "consolidate() answers"
)
"""What to do where the states of other ranks are lost."""
_BUCKET_BYTES: Final = Declared("bucket_bytes", (int,), Bounds(ge=1), "size of a bucket of gradients")


class Worker:
    """The part of a data-parallel training that one rank holds.

    groups: parameter groups with `params`, `param_names` and hyper-parameters (lr, ...). storage: optional pair of
    1-D tensors (parameters, gradients) with as many elements as the model, for models of a single dtype; the worker
    then lives in them. Initial parameters are taken over from the groups' tensors.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        groups: ParamGroups,
        *,
        rank: int,
        size: int,
        seed: int = 0,
        bucket_bytes: int = 4 << 20,
        storage: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        bucket_bytes = _BUCKET_BYTES.checked(type(algorithm).__name__, bucket_bytes)
        self.algorithm = algorithm
        self.clock = Clock(Group("world", rank, size), seed=seed)
        algorithm.check(self.clock.world)
        places = canonical(groups)
        self.clock.device = places[0].param.device
        runs = cut(places, bucket_bytes if algorithm.scope == "bucket" else None)
        self.shards = [self._shard(i, len(runs), run, storage) for i, run in enumerate(runs)]
        self._grad_views = [[flat_view(s.grads, v.part.start, v.param) for v in s.views] for s in self.shards]
        self.probes = Probes(self.shards, algorithm.probes)
        self.optimizer = algorithm.inner_optimizer(groups)
        self.unused: tuple[str, ...] | None = None
        """Had no gradient on any rank when ranks last agreed; None: they have not yet."""
        self.given: set[str] | None = set() if storage is None else None
        """Had one on this rank since then; None: nobody counts (they come in the storage, or count as zeros)."""

    def _shard(
        self, index: int, count: int, run: Sequence[Place], storage: tuple[Tensor, Tensor] | None
    ) -> Shard:
        start, stop = run[0].start, run[-1].stop
        like = run[0].param
        if storage is None:
            params = torch.empty(stop - start, dtype=like.dtype, device=like.device)
            grads = torch.zeros_like(params)
        else:
            params, grads = storage[0][start:stop], storage[1][start:stop]
            if params.numel() != stop - start or params.dtype != like.dtype:
                raise LayoutError(
                    f"the storage given has {storage[0].numel()} elements of {storage[0].dtype}; the model needs at "
                    f"least {stop} of {like.dtype}"
                )
        views = []
        with torch.no_grad():
            for place in run:
                part = slice(place.start - start, place.stop - start)
                home = flat_view(params, part.start, place.param)
                home.copy_(place.param)
                place.param.data = with_own_storage(home)
                views.append(View(place.name, place.param, part, place.group, place.start))
        shard = Shard(
            index, params, grads, tuple(views), self.clock, lambda: self.optimizer.param_groups, start, count,
            lambda param: self.optimizer.state.get(param, {}),
        )  # fmt: skip
        slots.allocate(shard, self.algorithm.slots)
        return shard

    # ---- gradients -------------------------------------------------------------------------------------------------

    def gather_gradients(self, shard: Shard, gradients: Sequence[Tensor | None], counts: bool = True) -> None:
        """Copy one gradient a parameter into the shard's flat buffer; a missing one counts as zeros.

        counts: whether the step is taken, so that these parameters have had a gradient.
        """
        if counts and self.given is not None and self.unused != ():
            self.given |= {v.name for v, g in zip(shard.views, gradients, strict=True) if g is not None}
        targets, sources = [], []
        for target, gradient in zip(self._grad_views[shard.index], gradients, strict=True):
            if gradient is None:
                target.zero_()
            elif gradient.data_ptr() != target.data_ptr():
                if gradient.is_sparse:
                    raise LayoutError(
                        "sparse gradients are not supported; build the embedding with sparse=False"
                    )
                targets.append(target)
                sources.append(gradient)
        if targets:
            torch._foreach_copy_(targets, sources)

    def scatter_gradients(self, shard: Shard, targets: Sequence[Tensor]) -> None:
        """Copy the shard's flat buffer out, one gradient a parameter: the inverse of `gather_gradients`."""
        torch._foreach_copy_(list(targets), self._grad_views[shard.index])

    def gathered_aside(self, shard: Shard) -> Tensor:
        """The gradients of `shard`'s parameters as they are now, in a buffer beside that of the shard; Tensor[d]."""
        flat = buffers.empty_like(shard.grads)
        targets = [flat_view(flat, view.part.start, view.param) for view in shard.views]
        for view, target in zip(shard.views, targets, strict=True):
            if view.param.grad is None:
                target.zero_()
        pairs = [
            (t, v.param.grad) for t, v in zip(targets, shard.views, strict=True) if v.param.grad is not None
        ]
        if pairs:
            torch._foreach_copy_([target for target, _ in pairs], [gradient for _, gradient in pairs])
        return flat

    def step_optimizer(self) -> None:
        """Step the inner optimizer on the flat gradients, where what was never used has none.

        ``.grad`` is afterwards what it was before, and never the flat buffer.
        """
        held, stay = [view.param.grad for shard in self.shards for view in shard.views], self.never_used
        for shard, views in zip(self.shards, self._grad_views, strict=True):
            for view, gradient in zip(shard.views, views, strict=True):
                view.param.grad = None if view.name in stay else gradient
        self.optimizer.step()
        for view, own in zip((view for shard in self.shards for view in shard.views), held, strict=True):
            view.param.grad = own

    @property
    def never_used(self) -> frozenset[str]:
        """The parameters that have had no gradient: on any rank when ranks last agreed, nor on this one since."""
        if self.given is None or self.unused == ():
            return frozenset()
        known = self.unused
        names = [view.name for shard in self.shards for view in shard.views] if known is None else known
        return frozenset(names) - self.given

    def check_home(self) -> None:
        """Raise `UsageError` if a parameter has left the flat buffer."""
        for shard in self.shards:
            base, width = shard.params.data_ptr(), shard.params.element_size()
            for view in shard.views:
                if view.param.data_ptr() != base + view.part.start * width:
                    raise UsageError(
                        f"parameter {view.name!r} no longer lives in the optimizer's buffer: after model.to(), "
                        "model.double() or load_state_dict(assign=True) build the optimizer anew"
                    )

    def release(self) -> None:
        """Give every parameter (and gradient) memory of its own again; the worker is of no use afterwards."""
        for shard in self.shards:
            for view in shard.views:
                view.param.data = view.param.data.clone(memory_format=torch.preserve_format)
                view.param.grad = None

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What this rank must save to go on to the bit; independent of the bucket size. Tensors are copies."""
        pending = {
            f"{shard.index}:{name}": copied(waiting.result)
            for shard in self.shards
            for name, waiting in shard.pending.items()
        }
        return {
            "version": STATE_VERSION,
            "world_size": self.clock.world.size,
            "rank": self.clock.world.rank,
            "seed": self.clock.seed,
            "step": self.clock.step,
            "counters": dict(self.clock.counters),
            "observed": dict(self.clock.observed),
            "unused": None if self.unused is None else list(self.unused),
            "given": None if self.given is None else sorted(self.given),
            "slots": slots.save(self.shards, self.algorithm.slots),
            "pending": pending,
            "parameters": {v.name: v.param.detach().clone() for s in self.shards for v in s.views},
            "optimizer": copied(self.optimizer.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave on the same rank of a run with the same world size; of any where ranks keep nothing
        of their own.

        Raises `LayoutError` where the checkpoint does not fit; nothing has been changed then.
        """
        world = self.clock.world
        if state["version"] != STATE_VERSION:
            raise LayoutError(
                f"checkpoint has state version {state['version']}, this code reads {STATE_VERSION}"
            )
        if (state["rank"], state["world_size"]) != (world.rank, world.size):
            self._refuse_of_another_rank(state)
        own = {v.name: v.param for s in self.shards for v in s.views}
        for name in own.keys() | state["parameters"].keys():
            if (
                name not in own
                or name not in state["parameters"]
                or own[name].shape != state["parameters"][name].shape
            ):
                raise LayoutError(
                    f"parameter {name!r} differs between checkpoint and model (missing, or another shape)"
                )
        self._check_groups(state["optimizer"]["param_groups"])
        copies = slots.load(self.shards, self.algorithm.slots, state["slots"])
        with torch.no_grad():
            for target, source in copies:
                target.copy_(source)
            for name, param in own.items():
                param.copy_(state["parameters"][name])
        for shard in self.shards:
            shard.pending = {
                key.split(":", 1)[1]: Pending.completed(copied(result, shard.params.device))
                for key, result in state["pending"].items()
                if key.split(":", 1)[0] == str(shard.index)
            }
        inner = copied(state["optimizer"])  # torch would go on in these very tensors
        for group in inner["param_groups"]:
            group.pop(
                "param_names", None
            )  # else torch takes them over, those of the model as it was wrapped then
        self.optimizer.load_state_dict(inner)
        self.clock.seed, self.clock.step = state["seed"], state["step"]
        self.clock.counters.clear()
        self.clock.counters.update(state["counters"])
        self.clock.observed.update(state.get("observed", {}))
        unused = state.get("unused")
        if self.given is not None:
            self.unused, self.given = None if unused is None else tuple(unused), set(state.get("given") or ())

    def _refuse_of_another_rank(self, state: Mapping[str, Any]) -> None:
        """Raise `LayoutError` unless all that the method keeps is the same on all ranks."""
        world = self.clock.world
        if self.kept_by_rank:
            raise LayoutError(
                f"checkpoint is of rank {state['rank']} of {state['world_size']}, this is rank {world.rank} of {world.size}, and "
                f"every rank has its own {', '.join(self.kept_by_rank)}: load what this rank saved among as many. {EVERY_RANK}"
            )

    @property
    def kept_by_rank(self) -> list[str]:
        """What every rank keeps for itself, in words; empty where the state of one resumes all."""
        own = sorted(f"slot {name!r}" for name, s in self.algorithm.slots.items() if s.kind != "replicated")
        local = ["parameters and the local optimizer's state, between rounds"]
        return own + local if self.algorithm.local_steps else own

    def _check_groups(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Raise `LayoutError` where the parameter groups are of another local optimizer, or are others."""
        if len(saved) != len(self.optimizer.param_groups):
            raise LayoutError(
                f"checkpoint has {len(saved)} parameter groups, the model {len(self.optimizer.param_groups)}"
            )
        missing = sorted(set(self.algorithm.hyperparameters()) - set(saved[0]))
        if missing:
            raise LayoutError(
                f"checkpoint has no {', '.join(missing)}: it is of another local optimizer than this one"
            )


def copied(value: Any, device: torch.device | str | None = None) -> Any:
    """Dicts, lists and tuples anew, and their tensors as copies, or on `device`, where one that is there stays itself."""
    if isinstance(value, Tensor):
        return value.clone() if device is None else value.to(device)
    if isinstance(value, dict):
        return {k: copied(v, device) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(v, device) for v in value)
    return value
