"""One rank's whole model: where its parameters live, flat buffers, buckets, `TrainState`, inner optimizer and declared state.

The worker owns the flat buffers. Parameters are re-pointed into one of them at construction (and checked at every
step, since ``model.to()`` and ``load_state_dict(assign=True)`` undo that in silence); gradients are gathered into the
other. Phases are answered as exchanges: drivers carry them out (`reference_impls.runtime.step`).

Canonical order of a model's elements = (device, dtype, parameter group, place in the group). Every bucket is a contiguous range
of it. Random streams and checkpoints refer to elements by this order and to parameters by name, never by bucket, so that neither
depends on bucket size. State of whole buckets is saved as (parameter name, first element, values), state per tensor as
parameter name -> values.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reference_impls.core import compute
from reference_impls.core.algorithm import Algorithm, Bucket, ParamGroups, StateSpec, TrainState, View
from reference_impls.core.collectives import Group, Pending
from reference_impls.core.errors import LayoutError, UnsupportedError, UsageError
from reference_impls.core.options import Bounds, Declared

# ---- where parameters live --------------------------------------------------------------------------------------------


SUPPORTED_DTYPES = (torch.float32, torch.float64)
SMALL_SHARE = 16
"""A bucket smaller than this part of a bucket takes the next parameter along, however large that is."""

_WRAPPERS: Final = ("_orig_mod", "_checkpoint_wrapped_module")
"""Where `torch.compile` and torch's ``checkpoint_wrapper`` keep the module that they wrap."""


_FSDP1: Final = (
    "the model is wrapped in FullyShardedDataParallel (FSDP1), of whose parameters each rank holds another part: shard it by "
    "fully_shard (FSDP2) and use fsdp_optimizer or fsdp_hook, or give the bare model"
)


def bare_name(name: str) -> str:
    """The name that a parameter, buffer or module has without `torch.compile` and ``checkpoint_wrapper`` around any part."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def unwrapped(model: nn.Module) -> tuple[nn.Module, DistributedDataParallel | None]:
    """The model within what wraps all of it, in any order; and the `DistributedDataParallel`, if that is among it."""
    ddp: DistributedDataParallel | None = None
    inner: nn.Module | None = model
    while inner is not None:
        model = inner
        if isinstance(model, DistributedDataParallel):
            ddp = model
        keys = ("module",) if model is ddp else _WRAPPERS
        inner = next((own for key in keys if (own := model._modules.get(key)) is not None), None)
    return model, ddp


def bare_model(model: nn.Module) -> nn.Module:
    """`unwrapped`, for whoever communicates by itself.

    Raises:
        UsageError: The model is in a `DistributedDataParallel`.
        UnsupportedError: A part of it is in a `FullyShardedDataParallel`.
    """
    bare, ddp = unwrapped(model)
    if ddp is not None:
        raise UsageError(
            "the model is wrapped in DistributedDataParallel, which averages the gradients a second time: give and train the "
            "bare model (model.module), or use ddp_hook"
        )
    fsdp = sys.modules.get("torch.distributed.fsdp")  # else nothing is wrapped in it
    if fsdp is not None and any(isinstance(part, fsdp.FullyShardedDataParallel) for part in bare.modules()):
        raise UnsupportedError(_FSDP1)
    return bare


def named(params: nn.Module | Iterable[Any]) -> list[tuple[str, Tensor]]:
    """Parameters under their bare names, by which state is kept and random streams are drawn: the same at every entrance.

    Args:
        params: A model, or the (name, parameter) pairs of one.

    Returns:
        Pairs in the order given.

    Raises:
        LayoutError: These are no pairs.
        UnsupportedError: One is a flat parameter of `FullyShardedDataParallel`.
    """
    pairs = list(params.named_parameters() if isinstance(params, nn.Module) else params)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise LayoutError(
            "give the model itself, or (name, parameter) pairs, as model.named_parameters() does"
        )
    if any(getattr(param, "_is_flat_param", False) for _, param in pairs):
        raise UnsupportedError(_FSDP1)
    return [(bare_name(name), param) for name, param in pairs]


def canonical(groups: Sequence[Mapping[str, Any]]) -> list[View]:
    """All parameters in canonical order, as parts of the whole model.

    groups: parameter groups as in torch.optim, with `params` and `param_names`. Raises `LayoutError` for missing or
    repeated names and repeated or overlapping parameters (empty tensors are passed over), `UnsupportedError` for dtypes
    other than float32 and float64.
    """
    found: list[tuple[str, str, int, str, Tensor]] = []
    for number, group in enumerate(groups):
        if "param_names" not in group:
            raise LayoutError(
                "parameters need names, since state is kept and random streams are drawn by name: pass "
                "model.named_parameters(), or groups with `params` given as (name, parameter) pairs"
            )
        for name, param in zip(group["param_names"], group["params"], strict=True):
            if param.dtype not in SUPPORTED_DTYPES:
                raise UnsupportedError(
                    f"parameter {name!r} is {param.dtype}; keep parameters in float32 (bfloat16 autocast is fine)"
                )
            if (kept := getattr(param, "grad_dtype", None) or param.dtype) != param.dtype:  # torch >= 2.13
                raise UnsupportedError(
                    f"parameter {name!r} has gradients in {kept}: leave its grad_dtype as it is"
                )
            if param.numel() == 0:
                continue  # nothing to train, nothing to send
            found.append((str(param.device), str(param.dtype), number, name, param))
    _refuse_repeats([name for *_, name, _ in found], [param for *_, param in found])
    found.sort(key=lambda item: item[:3])
    views, start = [], 0
    for _, _, number, name, param in found:
        views.append(View(name, param, slice(start, start + param.numel()), number, start))
        start = views[-1].stop
    if not views:
        raise LayoutError("there is no parameter to train; pass model.named_parameters()")
    return views


def cut(views: Sequence[View], bucket_bytes: int | None) -> list[list[View]]:
    """Consecutive runs of parameters, one a bucket.

    A run never mixes devices or dtypes. With `bucket_bytes` it also ends at a change of parameter group and before it
    would exceed that size, unless it is still smaller than a sixteenth of it: between large weights a bias would else
    be a bucket of its own, and collectives have a price each. None puts everything into one bucket.
    """
    runs: list[list[View]] = []
    size = 0
    for view in views:
        nbytes = view.param.nbytes
        if runs:
            last = runs[-1][-1]
            same_memory = (last.param.device, last.param.dtype) == (view.param.device, view.param.dtype)
            fits = bucket_bytes is None or (
                last.group == view.group
                and (size + nbytes <= bucket_bytes or size < bucket_bytes // SMALL_SHARE)
            )
            if same_memory and fits:
                runs[-1].append(view)
                size += nbytes
                continue
            if bucket_bytes is None:
                raise UnsupportedError(
                    f"this method sees the whole model as one vector, but {last.name!r} and {view.name!r} differ in "
                    "device or dtype; keep all parameters in one dtype on one device"
                )
        runs.append([view])
        size = nbytes
    return runs


def flat_view(flat: Tensor, offset: int, like: Tensor) -> Tensor:
    """The part of `flat` at `offset` with the shape of `like`, row after row: elsewhere a flat slice is taken for a matrix.

    The order within a row may be that of `like` (channels-last, say), if that is dense; a transposed weight is laid out anew.
    """
    piece = flat[offset : offset + like.numel()]
    by_rows = like.is_contiguous() or (_is_dense(like) and like.stride(0) == max(like.stride()))
    return (
        piece.as_strided(like.shape, like.stride(), piece.storage_offset())
        if by_rows
        else piece.view(like.shape)
    )


def with_own_storage(view: Tensor) -> Tensor:
    """The same memory as a tensor whose storage ends where it ends, so that saving it does not write what lies around it.

    Args:
        view: Part of a larger storage, dense; as `flat_view` answers it.

    Returns:
        Tensor of the same shape, strides and memory, which it keeps alive. `view` itself on the meta device, where there is none,
        and on a GPU at an address that is no multiple of 16 bytes, which `torch.compile` knows by the offset in the storage.
    """
    if view.is_meta or (view.is_cuda and view.data_ptr() % 16):
        return view
    width = view.element_size()
    start = view.storage_offset() * width
    storage = view.untyped_storage()[start : start + view.numel() * width]
    return torch.empty(0, dtype=view.dtype, device=view.device).set_(storage, 0, view.shape, view.stride())


def _is_dense(x: Tensor) -> bool:
    """Whether the strides of `x` walk over each of its elements exactly once (a permutation of a contiguous tensor)."""
    expected = 1
    for stride, length in sorted(zip(x.stride(), x.shape, strict=True)):
        if length > 1:
            if stride != expected:
                return False
            expected *= length
    return True


def _refuse_repeats(names: Sequence[str], params: Sequence[Tensor]) -> None:
    seen_names: set[str] = set()
    seen_params: dict[int, str] = {}
    for name, param in zip(names, params, strict=True):
        if name in seen_names:
            raise LayoutError(f"two parameters are called {name!r}; names must be unique")
        if id(param) in seen_params:
            raise LayoutError(
                f"{name!r} is the same tensor as {seen_params[id(param)]!r}; list a tied weight once"
            )
        seen_names.add(name)
        seen_params[id(param)] = name
    dense = [(name, p) for name, p in zip(names, params, strict=True) if not p.is_meta and _is_dense(p)]
    parts = sorted((str(p.device), p.data_ptr(), p.data_ptr() + p.nbytes, name) for name, p in dense)
    for (device, _, stop, first), (other, start, _, second) in pairwise(parts):
        if device == other and start < stop:
            raise LayoutError(
                f"{second!r} shares memory with {first!r} and is another tensor, so that they would be trained apart: tie "
                "weights by assigning the Parameter itself (second.weight = first.weight), and list it once"
            )


# ---- declared state ---------------------------------------------------------------------------------------------------


Copies = list[tuple[Tensor, Tensor]]
"""(part of the state, what it becomes)."""


def _allocate(bucket: Bucket, specs: Mapping[str, StateSpec]) -> None:
    """Give `bucket` the state that a method declares, at its starting values."""
    for name, spec in specs.items():
        if spec.shape is not None:
            shapes = {view.name: spec.shape(view, bucket.world) for view in bucket.views}
            bucket.state[name] = {
                own: _full(shape, spec, bucket) for own, shape in shapes.items() if shape is not None
            }
        else:
            part = bucket.chunk() if spec.kind == "owned" else slice(0, bucket.d)
            bucket.state[name] = _full((part.stop - part.start,), spec, bucket)


def _full(shape: tuple[int, ...], spec: StateSpec, bucket: Bucket) -> Tensor:
    return torch.full(shape, spec.init, dtype=spec.dtype or bucket.params.dtype, device=bucket.params.device)


def _saved_state(buckets: Sequence[Bucket], specs: Mapping[str, StateSpec]) -> dict[str, dict[str, Any]]:
    """The state of all buckets, as copies."""
    saved: dict[str, dict[str, Any]] = {}
    for name, spec in specs.items():
        if spec.shape is not None:
            values = {own: x.clone() for bucket in buckets for own, x in bucket.state[name].items()}
            saved[name] = {"kind": spec.kind, "tensors": values}
            continue
        entries: list[tuple[str, int, Tensor]] = []
        for bucket in buckets:
            base = bucket.chunk().start if spec.kind == "owned" else 0
            entries += _by_parameter(bucket, bucket.state[name], base)
        saved[name] = {"kind": spec.kind, "entries": entries}
    return saved


def _state_copies(
    buckets: Sequence[Bucket], specs: Mapping[str, StateSpec], saved: Mapping[str, Mapping[str, Any]]
) -> Copies:
    """What must be copied where to take over what `_saved_state` gave; nothing is written here.

    Raises `LayoutError` where it does not fit.
    """
    if set(saved) != set(specs):
        raise LayoutError(f"checkpoint has state {sorted(saved)}, the method has {sorted(specs)}")
    copies: Copies = []
    for name, spec in specs.items():
        if (spec.shape is not None) != ("tensors" in saved[name]):
            raise LayoutError(
                f"state {name!r} is kept per tensor by one of checkpoint and method and per bucket by the other: "
                "the checkpoint was written by another version of the method"
            )
        if spec.shape is not None:
            copies += _per_tensor(name, buckets, saved[name]["tensors"])
            continue
        for bucket in buckets:
            base = bucket.chunk().start if spec.kind == "owned" else 0
            copies += _of_bucket(bucket, bucket.state[name], base, saved[name]["entries"])
    return copies


def _per_tensor(name: str, buckets: Sequence[Bucket], saved: Mapping[str, Tensor]) -> Copies:
    own: dict[str, Tensor] = {key: x for bucket in buckets for key, x in bucket.state[name].items()}
    for key in sorted(own.keys() | saved.keys()):
        there, here = (tuple(x[key].shape) if key in x else "none" for x in (saved, own))
        if there != here:
            raise LayoutError(
                f"state {name!r} of parameter {key!r}: checkpoint holds {there}, the method wants {here}; resume with "
                "the options and the number of workers that it was written with"
            )
    return [(x, saved[key]) for key, x in own.items()]


def _by_parameter(bucket: Bucket, values: Tensor, base: int) -> list[tuple[str, int, Tensor]]:
    """(parameter name, first element, values) for the elements base.. of the bucket that `values` holds."""
    found = []
    for view in bucket.views:
        first, last = max(view.part.start, base), min(view.part.stop, base + values.numel())
        if first < last:
            found.append((view.name, first - view.part.start, values[first - base : last - base].clone()))
    return found


def _of_bucket(
    bucket: Bucket, values: Tensor, base: int, entries: Sequence[tuple[str, int, Tensor]]
) -> Copies:
    """The inverse of `_by_parameter`, for any cut of the same elements into buckets."""
    places = {view.name: view.part.start for view in bucket.views}
    copies: Copies = []
    for name, first, piece in entries:
        if name not in places:
            continue
        begin = places[name] + first - base
        low, high = max(begin, 0), min(begin + piece.numel(), values.numel())
        if low < high:
            copies.append((values[low:high], piece[low - begin : high - begin]))
    filled = sum(target.numel() for target, _ in copies)
    if filled != values.numel():
        raise LayoutError(
            f"checkpoint holds {filled} of the {values.numel()} elements of state that this rank keeps for bucket "
            f"{bucket.index}: it was written with another bucket size; load it with that one"
        )
    return copies


# ---- the worker -------------------------------------------------------------------------------------------------------


STATE_VERSION = 3
EVERY_RANK: Final = (
    "All ranks must save: each a file of its own, or together by torch.distributed.checkpoint, or, of an optimizer, what "
    "consolidate() answers"
)
"""What to do where the states of other ranks are lost."""
_BUCKET_BYTES: Final = Declared("bucket_bytes", (int,), Bounds(ge=1), "size of a bucket of gradients")


class Worker:
    """The part of a data-parallel training that one rank holds.

    groups: parameter groups with `params`, `param_names` and hyper-parameters (lr, ...). bucket_bytes: None is 4 MiB on a CPU
    and 25 MiB on a GPU, where every bucket costs launches. storage: optional pair of
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
        bucket_bytes: int | None = None,
        storage: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.train_state = TrainState(Group("world", rank, size), seed=seed)
        algorithm.check(self.train_state.world)
        own, rules = type(algorithm), ("update", "synchronize", "inner_optimizer")
        if all(getattr(own, rule) is getattr(Algorithm, rule) for rule in rules):
            raise UnsupportedError(
                f"{own.__name__} changes no parameter: write `update`, or `inner_optimizer` with the optimizer to be stepped"
            )
        views = canonical(groups)
        self.train_state.device = views[0].param.device
        if bucket_bytes is None:
            bucket_bytes = (4 if self.train_state.device.type == "cpu" else 25) << 20
        self.bucket_bytes = _BUCKET_BYTES.checked(type(algorithm).__name__, bucket_bytes)
        runs = cut(views, self.bucket_bytes if algorithm.scope == "bucket" else None)
        self.buckets = [self._bucket(i, len(runs), run, storage) for i, run in enumerate(runs)]
        self._grad_views = [_parts(bucket, bucket.grads) for bucket in self.buckets]
        self.optimizer = algorithm.inner_optimizer(groups)
        self.unused: tuple[str, ...] | None = None
        """Had no gradient on any rank when ranks last agreed; None: they have not yet."""
        self.given: set[str] | None = set() if storage is None else None
        """Had one on this rank since then; None: nobody counts (they come in the storage, or count as zeros)."""

    def _bucket(
        self, index: int, count: int, run: Sequence[View], storage: tuple[Tensor, Tensor] | None
    ) -> Bucket:
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
            for view in run:
                home = flat_view(params, view.start - start, view.param)
                home.copy_(view.param)
                view.param.data = with_own_storage(home)
                views.append(replace(view, part=slice(view.start - start, view.stop - start)))
        bucket = Bucket(
            index, params, grads, tuple(views), self.train_state, lambda: self.optimizer.param_groups, start, count,
            lambda param: self.optimizer.state.get(param, {}), lambda: self.never_used,
        )  # fmt: skip
        _allocate(bucket, self.algorithm.state)
        bucket.gradients = {name: torch.zeros_like(grads) for name in self.algorithm.reference_points}
        return bucket

    # ---- gradients -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def gather_gradients(
        self, bucket: Bucket, gradients: Sequence[Tensor | None], counts: bool = True
    ) -> None:
        """Copy one gradient a parameter into the bucket's flat buffer; a missing one counts as zeros.

        counts: whether the step is taken, so that these parameters have had a gradient.
        """
        _copy_gradients(bucket, self._grad_views[bucket.index], gradients)
        if counts and self.given is not None and self.unused != ():
            self.given |= {v.name for v, g in zip(bucket.views, gradients, strict=True) if g is not None}

    def scatter_gradients(self, bucket: Bucket, targets: Sequence[Tensor]) -> None:
        """Copy the bucket's flat buffer out, one gradient a parameter: the inverse of `gather_gradients`."""
        torch._foreach_copy_(list(targets), self._grad_views[bucket.index])

    @torch.no_grad()
    def gathered_aside(self, bucket: Bucket) -> Tensor:
        """The gradients of `bucket`'s parameters as they are now, in a buffer beside that of the bucket; Tensor[d]."""
        flat = compute.empty_like(bucket.grads)
        _copy_gradients(bucket, _parts(bucket, flat), [view.param.grad for view in bucket.views])
        return flat

    def reference_point(self, name: str) -> dict[str, Tensor]:
        """Parameter name -> its value at a reference point (`Algorithm.reference_points`); views of the state."""
        return {
            view.name: part
            for bucket in self.buckets
            for view, part in zip(bucket.views, _parts(bucket, bucket.state[name]), strict=True)
        }

    @torch.no_grad()
    def gather_at(self, name: str, gradients: Mapping[str, Tensor | None]) -> None:
        """Copy the gradients at a reference point, by parameter name, into the flat buffers; a missing one counts as zeros."""
        for bucket in self.buckets:
            targets, own = _parts(bucket, bucket.gradients[name]), [gradients[v.name] for v in bucket.views]
            _copy_gradients(bucket, targets, own, f" at reference point {name!r}")

    @contextmanager
    def parameters_kept(self) -> Iterator[None]:
        """Whatever parameters become inside, afterwards they are what they were, to the bit."""
        held = [bucket.params.clone() for bucket in self.buckets]
        try:
            yield
        finally:
            with torch.no_grad():
                for bucket, values in zip(self.buckets, held, strict=True):
                    bucket.params.copy_(values)

    def step_optimizer(self) -> None:
        """Step the inner optimizer on the flat gradients, where what was never used has none."""
        with self.flat_gradients():
            self.optimizer.step()

    @contextmanager
    def flat_gradients(self) -> Iterator[None]:
        """``.grad`` of what was ever used is part of the flat buffer inside, and afterwards what it was before."""
        held, stay = [view.param.grad for bucket in self.buckets for view in bucket.views], self.never_used
        for bucket, views in zip(self.buckets, self._grad_views, strict=True):
            for view, gradient in zip(bucket.views, views, strict=True):
                view.param.grad = None if view.name in stay else gradient
        yield
        for view, own in zip((view for bucket in self.buckets for view in bucket.views), held, strict=True):
            view.param.grad = own

    @property
    def never_used(self) -> frozenset[str]:
        """The parameters that have had no gradient: on any rank when ranks last agreed, nor on this one since."""
        if self.given is None or self.unused == ():
            return frozenset()
        known = self.unused
        names = [view.name for bucket in self.buckets for view in bucket.views] if known is None else known
        return frozenset(names) - self.given

    def staying(self) -> Iterator[Tensor]:
        """What a step must leave where it is: parameters never used, and state like them where ranks agree that they are not."""
        agreed, names = self.unused or (), self.never_used
        for bucket in self.buckets if names or agreed else ():
            for view in bucket.views:
                if view.name in names:
                    yield view.param
                if view.name in agreed:
                    yield from (bucket.state[slot][view.part] for slot in self.algorithm.like_parameters)

    def check_home(self) -> None:
        """Raise `UsageError` if a parameter has left the flat buffer."""
        for bucket in self.buckets:
            base, width = bucket.params.data_ptr(), bucket.params.element_size()
            for view in bucket.views:
                if view.param.data_ptr() != base + view.part.start * width:
                    raise UsageError(
                        f"parameter {view.name!r} no longer lives in the optimizer's buffer: if another optimizer was built on "
                        "the model since, release() this one, which something still holds (a scheduler?); after model.to(), "
                        "model.double() or load_state_dict(assign=True) release() it and build the optimizer anew"
                    )

    def release(self) -> None:
        """Give every parameter (and gradient) memory of its own again; the worker is of no use afterwards."""
        for bucket in self.buckets:
            for view in bucket.views:
                view.param.data = view.param.data.clone(memory_format=torch.preserve_format)
                view.param.grad = None

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What this rank must save to go on to the bit. Tensors are copies. It depends on the bucket size only where an exchange
        of a bucket is under way."""
        pending = {
            f"{bucket.index}:{name}": copied(waiting.result)
            for bucket in self.buckets
            for name, waiting in bucket.pending.items()
        }
        inner = copied(self.optimizer.state_dict())
        for group, names in zip(inner["param_groups"], self._order, strict=True):
            group["param_names"] = names
        return {
            "version": STATE_VERSION,
            "world_size": self.train_state.world.size,
            "rank": self.train_state.world.rank,
            "kept_by": self._kept_by,
            "seed": self.train_state.seed,
            "step": self.train_state.step,
            "counters": dict(self.train_state.counters),
            "observed": dict(self.train_state.observed),
            "unused": None if self.unused is None else list(self.unused),
            "given": None if self.given is None else sorted(self.given),
            "slots": _saved_state(self.buckets, self.algorithm.state),
            "pending": pending,
            "cut": self._cut,
            "parameters": {v.name: v.param.detach().clone() for s in self.buckets for v in s.views},
            "optimizer": inner,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave on the same rank of a run with the same world size; of any where ranks keep nothing
        of their own.

        Raises `LayoutError` where the checkpoint does not fit; nothing has been changed then.
        """
        world = self.train_state.world
        if state["version"] != STATE_VERSION:
            raise LayoutError(
                f"checkpoint has state version {state['version']}, this code reads {STATE_VERSION}"
            )
        if self.kept_by_rank and (state["rank"], state["world_size"]) != (world.rank, world.size):
            raise LayoutError(
                f"checkpoint is of rank {state['rank']} of {state['world_size']}, this is rank {world.rank} of {world.size}, and "
                f"every rank has its own {', '.join(self.kept_by_rank)}: load what this rank saved among as many. {EVERY_RANK}"
            )
        own = {v.name: v.param for s in self.buckets for v in s.views}
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
        for what, own_kind in self._kept_by.items():
            if (theirs := state["kept_by"].get(what, own_kind)) != own_kind:  # else slots tell
                raise LayoutError(
                    f"checkpoint is of {what} {theirs}, this is {own_kind}, to which what it kept means something else: "
                    "load the model's parameters alone"
                )
        if state["pending"] and state["cut"] != self._cut:
            raise LayoutError(
                "checkpoint holds exchanges that are under way, of buckets that are cut elsewhere: load it with the "
                "bucket_bytes that it was written with"
            )
        copies = _state_copies(self.buckets, self.algorithm.state, state["slots"])
        with torch.no_grad():
            for target, source in copies:
                target.copy_(source)
            for name, param in own.items():
                param.copy_(state["parameters"][name])
        for bucket in self.buckets:
            bucket.pending = {
                key.split(":", 1)[1]: Pending(result=copied(result, bucket.params.device), done=True)
                for key, result in state["pending"].items()
                if key.split(":", 1)[0] == str(bucket.index)
            }
        inner = copied(state["optimizer"])  # torch would go on in these very tensors
        for group in inner["param_groups"]:
            group.pop(
                "param_names", None
            )  # else torch takes them over, those of the model as it was wrapped then
        self.optimizer.load_state_dict(inner)
        self.train_state.seed, self.train_state.step = state["seed"], state["step"]
        self.train_state.counters.clear()
        self.train_state.counters.update(state["counters"])
        self.train_state.observed.update(state["observed"])
        unused = state["unused"]
        if self.given is not None:
            self.unused, self.given = None if unused is None else tuple(unused), set(state["given"] or ())

    @property
    def _kept_by(self) -> dict[str, str]:
        """Whose numbers a checkpoint holds, as far as slots and hyper-parameters of equal names do not tell."""
        own, kept = self.algorithm, {"the local optimizer": type(self.optimizer).__name__}
        if own.state:
            options = ", ".join(f"{name}={getattr(own, name)!r}" for name in own.options_of_state)
            kept["the method"] = type(own).__name__ + (f"({options})" if options else "")
        return kept

    @property
    def _cut(self) -> list[int]:
        """Where buckets begin in the model."""
        return [bucket.start for bucket in self.buckets]

    @property
    def _order(self) -> list[list[str]]:
        """Names of the inner optimizer's parameters by group, in the order by which it saves moments; "" for an untrained one."""
        names = {view.param: view.name for bucket in self.buckets for view in bucket.views}
        return [[names.get(param, "") for param in group["params"]] for group in self.optimizer.param_groups]

    @property
    def kept_by_rank(self) -> list[str]:
        """What every rank keeps for itself, in words; empty where the state of one resumes all."""
        own = sorted(f"state {name!r}" for name, s in self.algorithm.state.items() if s.kind != "replicated")
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
        known = {name for names in self._order for name in names}
        for number, (group, here) in enumerate(zip(saved, self._order, strict=True)):
            if len(group["params"]) != len(here):
                raise LayoutError(
                    f"parameter group {number} has {len(group['params'])} parameters in the checkpoint, {len(here)} in the "
                    "optimizer: cut groups as they were when it was written"
                )
            there = map(bare_name, group["param_names"])
            for saved_name, name in zip(there, here, strict=True):
                if saved_name != name and saved_name in known:
                    raise LayoutError(
                        f"parameter group {number} has {saved_name!r} in the checkpoint where the optimizer has {name!r}, and "
                        "moments are saved in this order: give parameters in the order in which they were when it was written"
                    )


def _parts(bucket: Bucket, flat: Tensor) -> list[Tensor]:
    """What each parameter of `bucket` has of `flat`, [d], in its shape."""
    return [flat_view(flat, view.part.start, view.param) for view in bucket.views]


def _copy_gradients(
    bucket: Bucket, targets: Sequence[Tensor], gradients: Sequence[Tensor | None], where: str = ""
) -> None:
    """Write gradients into `targets`, a missing one as zeros. Raises `LayoutError` for one that is sparse or of another shape."""
    pairs = []
    for view, target, gradient in zip(bucket.views, targets, gradients, strict=True):
        if gradient is None:
            target.zero_()
        elif gradient.is_sparse:
            raise LayoutError("sparse gradients are not supported; build the embedding with sparse=False")
        elif gradient.shape != target.shape:
            raise LayoutError(
                f"gradient of {view.name!r}{where} has shape {tuple(gradient.shape)}, the parameter {tuple(target.shape)}"
            )
        elif gradient.data_ptr() != target.data_ptr():
            pairs.append((target, gradient))
    if pairs:
        torch._foreach_copy_([target for target, _ in pairs], [gradient for _, gradient in pairs])


def copied(value: Any, device: torch.device | str | None = None) -> Any:
    """Dicts, lists and tuples anew, and their tensors as copies, or on `device`, where one that is there stays itself."""
    if isinstance(value, Tensor):
        return value.clone() if device is None else value.to(device)
    if isinstance(value, dict):
        return {k: copied(v, device) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(v, device) for v in value)
    return value
