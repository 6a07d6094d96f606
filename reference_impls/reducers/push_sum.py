"""Push-sum gossip on the one-peer exponential graph: half of what a rank has goes to one other rank. arXiv 1811.10792.

At step k rank r sends to rank r + 2^(k mod ceil(log2 n)). With n a power of two, log2 n steps without gradients give
everybody the exact mean. `overlap` = 0 (SGP): what was sent in a step arrives in it. `overlap` = s > 0 (OSGP): a message
is used s steps after it was sent and travels in the background until then. What is under way is missing, so a rank
holds a numerator x and a push-sum weight w, and works with z = x / w; the local step moves x by as much as it moved z.

Every rank sends one message and hears one, so all ranks have the same weight at all times; it is computed from the
clock instead of being sent, and is 1 throughout for SGP, which then needs no numerator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import Clock, Shard, Slot, per_rank
from reference_impls.collectives import Exchange, finish, start

__all__ = ["PushSum"]


@dataclass(frozen=True)
class PushSum:
    """`overlap`: steps between sending a message and using it."""

    overlap: int = 0

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"numerator": per_rank()} if self.overlap else {}

    def count(self, clock: Clock, flush: bool) -> None:
        """Move the weights on for this step; called by `plan`. flush: all that is under way arrives, none is sent."""
        counters = clock.counters
        own = counters.get("weight", 1.0)
        counters["weight_before"] = own
        sent = [counters.pop(f"sent-{age}", 0.0) for age in range(1, self.overlap + 1)]  # weights under way
        if flush or clock.world.size == 1:
            counters["weight"] = 1.0  # n equal weights, and n is their sum
            return
        flying = [own / 2, *sent]
        counters["weight"] = own / 2 + flying.pop()
        counters.update({f"sent-{age}": weight for age, weight in enumerate(flying, start=1)})

    def begin(self, shard: Shard) -> None:
        """Before the first local step: the numerator is what the rank starts with."""
        if self.overlap:
            shard.state["numerator"].copy_(shard.params)

    def push(self, shard: Shard) -> Exchange[None]:
        """After the local step: send half, add what arrives; the shard's parameters become z."""
        world = shard.world
        if world.size == 1:
            return
        x = self._numerator(shard).mul_(0.5)
        half = buffers.empty_like(x).copy_(x)
        hop = 1 << shard.step % (world.size - 1).bit_length()
        sending = world.send_recv(
            half, "push", to=(world.rank + hop) % world.size, source=(world.rank - hop) % world.size
        )
        if not self.overlap:
            came = yield from sending
            assert came is not None  # everybody sends and hears
            x.add_(came)
            return
        shard.pending[f"push-{shard.step}"] = yield from start(sending)
        yield from self._arrive(shard, x, shard.step - self.overlap)
        self.settle(shard)

    def flush(self, shard: Shard) -> Exchange[None]:
        """Instead of `push`: all that is under way arrives, so weights are 1 and the parameters are the numerator."""
        if not self.overlap or shard.world.size == 1:
            return
        x = self._numerator(shard)
        for step in range(shard.step - self.overlap, shard.step):
            yield from self._arrive(shard, x, step)
        shard.params.copy_(x)

    def settle(self, shard: Shard) -> None:
        """Parameters z = x / w from the numerator."""
        shard.params.copy_(shard.state["numerator"]).div_(shard.clock.counters["weight"])

    def replace(self, shard: Shard) -> None:
        """The parameters were moved: the numerator follows, x = w z."""
        if self.overlap:
            shard.state["numerator"].copy_(shard.params).mul_(shard.clock.counters["weight"])

    def _numerator(self, shard: Shard) -> Tensor:
        """x after the local step; the parameters themselves where there is no numerator."""
        if not self.overlap:
            return shard.params
        x: Tensor = shard.state["numerator"]
        moved = torch.div(x, shard.clock.counters["weight_before"], out=buffers.empty_like(x))
        return x.add_(torch.sub(shard.params, moved, out=moved))

    @staticmethod
    def _arrive(shard: Shard, x: Tensor, step: int) -> Exchange[None]:
        """Add what was sent in `step`, if anything was."""
        name = f"push-{step}"
        if name in shard.pending:
            x.add_((yield from finish(shard.pending.pop(name))))
