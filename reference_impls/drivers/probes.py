"""Probes: points at which a method wants one more gradient, of the same samples; each is held in the slot of its name.

The gradient at a probe lies in ``shard.gradients[name]`` when `reduce` is called. Simulated workers are handed it; on a
process group the closure of a step is called once more, with the parameters standing at the probe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from reference_impls.algorithm import Shard
from reference_impls.errors import LayoutError
from reference_impls.layout import flat_view


class Probes:
    """The probes of one worker: where they are, and the gradients there."""

    def __init__(self, shards: Sequence[Shard], names: Sequence[str]) -> None:
        self._shards = shards
        self._points: dict[str, dict[str, Tensor]] = {name: {} for name in names}
        self._gradients: dict[str, dict[str, Tensor]] = {name: {} for name in names}
        for name in names:
            for shard in shards:
                shard.gradients[name] = torch.zeros_like(shard.grads)
                for view in shard.views:
                    place = view.part.start, view.param
                    self._points[name][view.name] = flat_view(shard.state[name], *place)
                    self._gradients[name][view.name] = flat_view(shard.gradients[name], *place)

    def point(self, name: str) -> Mapping[str, Tensor]:
        """Parameter name -> its value at the probe; views of the slot."""
        return self._points[name]

    def gather(self, name: str, gradients: Mapping[str, Tensor | None]) -> None:
        """Copy the gradients at a probe, by parameter name, into the flat buffers; a missing one counts as zeros."""
        for parameter, target in self._gradients[name].items():
            gradient = gradients[parameter]
            if gradient is None:
                target.zero_()
            elif gradient.is_sparse:
                raise LayoutError("sparse gradients are not supported; build the embedding with sparse=False")
            elif gradient.shape != target.shape:
                raise LayoutError(
                    f"gradient of {parameter!r} at probe {name!r} has shape {tuple(gradient.shape)}, the parameter "
                    f"{tuple(target.shape)}"
                )
            else:
                target.copy_(gradient)

    @contextmanager
    def standing_at(self, name: str) -> Iterator[None]:
        """The parameters are those of the probe inside, and what they were, to the bit, afterwards."""
        held = [shard.params.clone() for shard in self._shards]
        try:
            with torch.no_grad():
                for shard in self._shards:
                    shard.params.copy_(shard.state[name])
            yield
        finally:
            with torch.no_grad():
                for shard, values in zip(self._shards, held, strict=True):
                    shard.params.copy_(values)
