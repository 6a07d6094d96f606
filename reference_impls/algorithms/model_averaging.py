"""Averaging of local models: its options, what follows from them, and the functions that the methods' phases call.

Workers keep an anchor A, the parameters with which the round began; they average their pseudogradients A - x, compressed
or not (`reducers.compression`), the outer optimizer (`optimizers`) moves the anchor, and all go on from there. Where
the outcome is the plain mean in full precision (fp32, outer sgd of rate 1), the parameters themselves are averaged and
there is no anchor.

Differences: one anchor a worker, in the dtype of the parameters, on the device of the parameters (published codes keep
it on the host or on one rank). What is compressed is always the pseudogradient, never the parameters. Inner states
travel in full precision whatever compresses the pseudogradient. Buffers (BatchNorm statistics) are not touched; a model
wrapped in DistributedDataParallel would broadcast them at every forward pass, and average gradients besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Algorithm, Clock, Cost, Shard, Slot, View, option, replicated
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs.codec import Codec
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.optimizers import Outer, OuterKind
from reference_impls.reducers.compression import COMPRESSIONS, Compression, compression
from reference_impls.schedules.rules import Rule

ROUNDS: Final = (1, 4, 16, 64)
"""Lengths of the rounds that are timed, in steps."""
_BUFFERS = {"sgd": (0, 1), "adamw": (2, 2), "lion": (1, 1)}  # tensors a parameter: least and most


@dataclass(frozen=True)
class ModelAveraging(WithLocalOptimizer):
    """Options of an average of local models, and what a method of the plainest kind declares: ``local`` steps, which send
    nothing, and one ``average`` at the end of a round. Its phases are each method's own.
    """

    local_steps: ClassVar[bool] = True

    carrier: str | Codec = option(
        "fp32",
        "how the mean travels: fp32, bf16, int16, int8, int4, e3m0, sign (1 bit, error feedback), a codec",
        choices=COMPRESSIONS,
    )
    outer: OuterKind = option(
        "sgd",
        "outer optimizer: sgd (rate 1: the mean), heavy-ball, nesterov, slowmo, bmuf, bmuf-nesterov",
    )
    outer_lr: float = option(1.0, "learning rate of the outer optimizer", ge=0)
    outer_momentum: float = option(0.0, "momentum of the outer optimizer", ge=0, lt=1)
    inner_state: Literal["keep", "average", "reset"] = option(
        "keep", "states of the local optimizer after an average: keep (local), average, reset"
    )
    total_steps: int | None = option(
        None, "steps of the whole training; the last round then ends exactly there", ge=1
    )

    @property
    def compression(self) -> Compression:
        """How pseudogradients travel; `UnsupportedError` if the options say nothing that can be."""
        return compression(self.carrier)

    @property
    def outer_optimizer(self) -> Outer:
        """What moves the anchor; `UnsupportedError` if impossible."""
        return Outer(self.outer, self.outer_lr, self.outer_momentum)

    @property
    def inner_policy(self) -> str:
        """What becomes of the states of the local optimizer: keep, average or reset."""
        return self.inner_state

    @property
    def anchored(self) -> bool:
        """Whether there is an anchor: not where the parameters themselves are averaged."""
        return self.carrier != "fp32" or not self.outer_optimizer.is_average

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The state of an average: of its compression, the anchor, the outer momentum."""
        found = dict(self.compression.slots)
        if self.anchored:
            found["anchor"] = replicated()
        if self.outer_optimizer.keeps_momentum:
            found["outer_momentum"] = replicated()
        return found

    def check(self, world: Group) -> None:
        self.outer_optimizer  # noqa: B018 - refuses impossible options
        self.compression.check(world.size)

    def own_rounds(self) -> Mapping[str, Algorithm]:
        """`Algorithm.steady` of a method whose rounds are not those of local SGD, and which has an option `period`."""
        return {f"round-{h}": self.at_defaults("total_steps", period=h) for h in ROUNDS}

    def average_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Cost:
        """Bytes that a rank sends in an average; a pair where it depends on the momentum of sgd."""
        sent = sum(self.compression.sent(shapes, n))
        if self.inner_policy != "average":
            return sent
        if not isinstance(self.optimizer, str):
            raise UnsupportedError("what an optimizer of your own keeps is not known; give it by name")
        state = wire.all_reduce(4 * wire.elements(shapes), n)
        least, most = (sent + count * state for count in _BUFFERS[self.optimizer])
        return least if least == most else (least, most)

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        return {"local": 0.0, "average": self.average_bytes(shapes, n)}


# ---- what phases are made of ---------------------------------------------------------------------------------------


def round_kind(clock: Clock, rule: Rule) -> str:
    """``average`` for the last step of a round, else ``local``. The rule is asked once a round, at its first step."""
    left = int(clock.counters.get("left", 0)) or rule.period(clock.step, clock.lr)
    clock.counters["left"] = left - 1
    return "local" if left > 1 else "average"


def begin_round(own: ModelAveraging, shard: Shard) -> None:
    """The anchor is where the parameters are."""
    if own.anchored:
        shard.state["anchor"].copy_(shard.params)


def pseudogradient(shard: Shard) -> Tensor:
    """What this worker has made of the anchor: anchor - parameters, in a buffer of the pool."""
    return torch.sub(shard.state["anchor"], shard.params, out=buffers.empty_like(shard.params))


def outer_step(own: ModelAveraging, shard: Shard, mean: Tensor) -> None:
    """Move the anchor along the mean pseudogradient, which is consumed."""
    outer, momentum = own.outer_optimizer, shard.state.get("outer_momentum")
    for part, h in shard.groups():
        u = None if momentum is None else momentum[part]
        outer.step(shard.state["anchor"][part], mean[part], u, float(h["lr"]))


def average(own: ModelAveraging, shard: Shard) -> Exchange[None]:
    """Mean pseudogradient, outer step, inner states; afterwards parameters and anchor are equal on all ranks."""
    if not own.anchored:
        yield from own.compression.mean(shard, shard.params, "parameters")  # in place
    elif own.outer_optimizer.is_average and shard.world.size == 1:
        pass  # the mean of one is itself, which anchor - (anchor - x) need not be
    else:
        outer_step(own, shard, (yield from own.compression.mean(shard, pseudogradient(shard), "progress")))
        shard.params.copy_(shard.state["anchor"])
    yield from settle_inner_states(own, shard)


def settle_inner_states(own: ModelAveraging, shard: Shard) -> Exchange[None]:
    """Keep, average or forget what the inner optimizer keeps for the shard's parameters."""
    if own.inner_policy == "reset":
        for view in shard.views:
            shard.inner_state(view).clear()
    elif own.inner_policy == "average":
        kept = [x for view in shard.views for x in _tensors(shard, view)]
        if kept:
            flat = buffers.empty(sum(x.numel() for x in kept), kept[0].dtype, kept[0].device)
            places = [
                part.view(x.shape)
                for x, part in zip(kept, torch.split(flat, [x.numel() for x in kept]), strict=True)
            ]
            torch._foreach_copy_(places, kept)
            yield from shard.world.mean(flat, "inner-state")
            torch._foreach_copy_(kept, places)


def _tensors(shard: Shard, view: View) -> list[Tensor]:
    """What the inner optimizer keeps element by element for a parameter, by name."""
    state = shard.inner_state(view)
    return [
        value
        for _, value in sorted(state.items())
        if isinstance(value, Tensor) and value.shape == view.param.shape and value.is_floating_point()
    ]
