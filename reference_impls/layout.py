"""Where parameters live: the canonical order of a model's elements and its cut into shards.

Canonical order = (device, dtype, parameter group, place in the group). Every shard is a contiguous range of it. Random
streams and checkpoints refer to elements by this order and to parameters by name, never by shard, so that neither
depends on bucket size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reference_impls.errors import LayoutError, UnsupportedError, UsageError

SUPPORTED_DTYPES = (torch.float32, torch.float64)
SMALL_SHARE = 16
"""A shard smaller than this part of a bucket takes the next parameter along, however large that is."""

_WRAPPERS: Final = ("_orig_mod", "_checkpoint_wrapped_module")
"""Where `torch.compile` and torch's ``checkpoint_wrapper`` keep the module that they wrap."""


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
    """
    bare, ddp = unwrapped(model)
    if ddp is not None:
        raise UsageError(
            "the model is wrapped in DistributedDataParallel, which averages the gradients a second time: give and train the "
            "bare model (model.module), or use ddp_hook"
        )
    return bare


def named(params: nn.Module | Iterable[Any]) -> list[tuple[str, Tensor]]:
    """Parameters under their bare names, by which state is kept and random streams are drawn: the same at every entrance.

    Args:
        params: A model, or the (name, parameter) pairs of one.

    Returns:
        Pairs in the order given.

    Raises:
        LayoutError: These are no pairs.
    """
    pairs = list(params.named_parameters() if isinstance(params, nn.Module) else params)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise LayoutError(
            "give the model itself, or (name, parameter) pairs, as model.named_parameters() does"
        )
    return [(bare_name(name), param) for name, param in pairs]


@dataclass(frozen=True, slots=True)
class Place:
    """One parameter in canonical order. `start`: model-wide index of its first element."""

    name: str
    param: Tensor
    group: int
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.param.numel()


def canonical(groups: Sequence[Mapping[str, Any]]) -> list[Place]:
    """All parameters in canonical order.

    groups: parameter groups as in torch.optim, with `params` and `param_names`. Raises `LayoutError` for missing or
    repeated names and repeated parameters (empty tensors are passed over), `UnsupportedError` for dtypes other than
    float32 and float64.
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
            if param.numel() == 0:
                continue  # nothing to train, nothing to send
            found.append((str(param.device), str(param.dtype), number, name, param))
    _refuse_repeats([name for *_, name, _ in found], [param for *_, param in found])
    found.sort(key=lambda item: item[:3])
    places, start = [], 0
    for _, _, number, name, param in found:
        places.append(Place(name, param, number, start))
        start += param.numel()
    if not places:
        raise LayoutError("there is no parameter to train; pass model.named_parameters()")
    return places


def cut(places: Sequence[Place], bucket_bytes: int | None) -> list[list[Place]]:
    """Consecutive runs of parameters, one a shard.

    A run never mixes devices or dtypes. With `bucket_bytes` it also ends at a change of parameter group and before it
    would exceed that size, unless it is still smaller than a sixteenth of it: between large weights a bias would else
    be a shard of its own, and collectives have a price each. None puts everything into one shard.
    """
    runs: list[list[Place]] = []
    size = 0
    for place in places:
        nbytes = place.param.numel() * place.param.element_size()
        if runs:
            last = runs[-1][-1]
            same_memory = (last.param.device, last.param.dtype) == (place.param.device, place.param.dtype)
            fits = bucket_bytes is None or (
                last.group == place.group
                and (size + nbytes <= bucket_bytes or size < bucket_bytes // SMALL_SHARE)
            )
            if same_memory and fits:
                runs[-1].append(place)
                size += nbytes
                continue
            if bucket_bytes is None:
                raise UnsupportedError(
                    f"this method sees the whole model as one vector, but {last.name!r} and {place.name!r} differ in "
                    "device or dtype; keep all parameters in one dtype on one device"
                )
        runs.append([place])
        size = nbytes
    return runs


def flat_view(flat: Tensor, offset: int, like: Tensor) -> Tensor:
    """The part of `flat` at `offset` with the shape of `like`, and its strides if it is dense (channels-last, say)."""
    piece = flat[offset : offset + like.numel()]
    dense = like.is_contiguous() or _is_dense(like)
    return (
        piece.as_strided(like.shape, like.stride(), piece.storage_offset())
        if dense
        else piece.view(like.shape)
    )


def with_own_storage(view: Tensor) -> Tensor:
    """The same memory as a tensor whose storage ends where it ends, so that saving it does not write what lies around it.

    Args:
        view: Part of a larger storage, dense; as `flat_view` answers it.

    Returns:
        Tensor of the same shape, strides and memory, which it keeps alive; on the meta device, where there is none, `view`.
    """
    if view.is_meta:
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
