"""How workers that stepped locally meet: a carrier, an outer optimizer, and what becomes of the inner states.

The shape of every method of local steps. Workers keep an anchor A, the parameters with which the round began; they
average their progress A - x by any carrier (`reducers.carriers`), the outer optimizer (`optimizers.outer`) moves the
anchor, and all go on from there. Where the outcome is the plain mean in full precision (carrier fp32, outer sgd of rate
1), the parameters themselves are averaged and there is no anchor.

Differences: one anchor a worker, in the dtype of the parameters, on the device of the parameters (published codes keep
it on the host or on one rank). A carrier other than fp32 always takes the progress, never the parameters. Inner states
travel in full precision whatever carries the progress. Buffers (BatchNorm statistics) are not touched; a model wrapped
in DistributedDataParallel would broadcast them at every forward pass, and average gradients besides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Cost, Shard, Slot, View, option, replicated
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs.codec import Codec
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.optimizers.outer import Outer, OuterKind
from reference_impls.reducers.carriers import CARRIERS, Carrier, carrier

_BUFFERS = {"sgd": (0, 1), "adamw": (2, 2), "lion": (1, 1)}  # tensors a parameter: least and most
_PER_ELEMENT = 1 << 20  # elements over which a message's bits are averaged for `traits`


@dataclass(frozen=True)
class Meeting(WithLocalOptimizer):
    """Options and parts of a meeting; subclasses say when there is one."""

    carrier: str | Codec = option(
        "fp32",
        "how the mean travels: fp32, bf16, int16, int8, int4, e3m0, sign (1 bit, error feedback), a codec",
        choices=CARRIERS,
    )
    carrier_form: Literal["gather", "two-phase"] = option("gather", "of a codec: gather or two-phase")
    carrier_feedback: bool = option(False, "of a codec: add what the last message lost to the next one")
    outer: OuterKind = option(
        "sgd",
        "outer optimizer: sgd (rate 1: the mean), heavy-ball, nesterov, slowmo, bmuf, bmuf-nesterov",
    )
    outer_lr: float = option(1.0, "learning rate of the outer optimizer", ge=0)
    outer_momentum: float = option(0.0, "momentum of the outer optimizer", ge=0, lt=1)
    inner_state: Literal["keep", "average", "reset"] = option(
        "keep", "states of the local optimizer after a meeting: keep (local), average, reset"
    )

    def outer_optimizer(self) -> Outer:
        """The outer optimizer that the options describe; `UnsupportedError` if impossible."""
        return Outer(self.outer, self.outer_lr, self.outer_momentum)

    def carried(self) -> Carrier:
        """The carrier that the options describe; `UnsupportedError` if there is none."""
        return carrier(self.carrier, self.carrier_form, self.carrier_feedback)

    def inner_policy(self) -> str:
        """What becomes of inner states: keep, average or reset."""
        return self.inner_state

    @property
    def anchored(self) -> bool:
        """Whether there is an anchor: not where the parameters themselves are averaged."""
        return self.carrier != "fp32" or not self.outer_optimizer().is_average

    @property
    def slots(self) -> Mapping[str, Slot]:
        found = dict(self.carried().slots)
        if self.anchored:
            found["anchor"] = replicated()
        if self.outer_optimizer().keeps_momentum:
            found["outer_momentum"] = replicated()
        return found

    def check(self, world: Group) -> None:
        self.outer_optimizer()
        self.carried().check(world.size)
        if isinstance(self.carrier, str) and (self.carrier_form != "gather" or self.carrier_feedback):
            raise UnsupportedError(
                f"carrier_form and carrier_feedback are of codecs; carrier={self.carrier!r} has its own form: leave them out"
            )

    def reduce(self, shard: Shard) -> Exchange[Tensor] | Tensor:
        if shard.step == 0:
            self.follow(shard)
        return shard.grads

    def follow(self, shard: Shard) -> None:
        """A round begins here: the anchor is where the parameters are."""
        if self.anchored:
            shard.state["anchor"].copy_(shard.params)

    def meet(self, shard: Shard) -> Exchange[None]:
        """Mean progress, outer step, inner states; afterwards parameters and anchor are equal on all ranks."""
        if not self.anchored:
            yield from self.carried().mean(shard, shard.params, "parameters")  # in place
        elif self.outer_optimizer().is_average and shard.world.size == 1:
            pass  # the mean of one is itself, which anchor - (anchor - x) need not be
        else:
            progress = self.progress(shard)
            mean = yield from self.carried().mean(shard, progress, "progress")
            self.outer_step(shard, mean)
            shard.params.copy_(shard.state["anchor"])
        yield from self.settle_inner_states(shard)

    def progress(self, shard: Shard) -> Tensor:
        """What this worker has made of the anchor: anchor - parameters, in a buffer of the pool."""
        return torch.sub(shard.state["anchor"], shard.params, out=buffers.empty_like(shard.params))

    def outer_step(self, shard: Shard, progress: Tensor) -> None:
        """Move the anchor; consumes `progress`."""
        outer, momentum = self.outer_optimizer(), shard.state.get("outer_momentum")
        for part, h in shard.groups():
            own = None if momentum is None else momentum[part]
            outer.step(shard.state["anchor"][part], progress[part], own, float(h["lr"]))

    def settle_inner_states(self, shard: Shard) -> Exchange[None]:
        """Keep, average or forget what the inner optimizer keeps for the shard's parameters."""
        if self.inner_policy() == "reset":
            for view in shard.views:
                shard.inner_state(view).clear()
        elif self.inner_policy() == "average":
            kept = [x for view in shard.views for x in _tensors(shard, view)]
            if kept:
                own = buffers.empty(sum(x.numel() for x in kept), kept[0].dtype, kept[0].device)
                places = [
                    part.view(x.shape)
                    for x, part in zip(kept, torch.split(own, [x.numel() for x in kept]), strict=True)
                ]
                torch._foreach_copy_(places, kept)
                yield from shard.world.mean(own, "inner-state")
                torch._foreach_copy_(kept, places)

    def meeting(self) -> dict[str, Any]:
        """The options of a meeting and of the local optimizer: what a timed round must have in common with a real one."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(Meeting)}
        return {**found, "inner_state": self.inner_policy()}

    def met_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Cost:
        """Bytes that a rank sends in a meeting; a pair where it depends on the momentum of sgd."""
        sent = sum(self.carried().sent(shapes, n))
        if self.inner_policy() != "average":
            return sent
        if not isinstance(self.optimizer, str):
            raise UnsupportedError("what an optimizer of your own keeps is not known; give it by name")
        state = wire.all_reduce(4 * wire.elements(shapes), n)
        least, most = (sent + count * state for count in _BUFFERS[self.optimizer])
        return least if least == most else (least, most)

    def met_bits(self) -> str:
        """Bits a parameter of a meeting, as a formula in n."""
        own = self.carried()
        bits = 8 * sum(own.sent([(_PER_ELEMENT,)], 2)) / _PER_ELEMENT
        factor = "(n-1)" if getattr(own, "form", "") == "gather" else "2 (n-1)/n"
        return f"{factor} x {bits:.3g}" + (" + inner states" if self.inner_policy() == "average" else "")


def _tensors(shard: Shard, view: View) -> list[Tensor]:
    """What the inner optimizer keeps element by element for a parameter, by name."""
    state = shard.inner_state(view)
    return [
        value
        for _, value in sorted(state.items())
        if isinstance(value, Tensor) and value.shape == view.param.shape and value.is_floating_point()
    ]
