"""The step of a method, phase by phase, for the workers that live in this process.

One worker on a process group, all n of them in a simulation; the engine knows which. Plan -> (backward, with `submit`
for every shard in one fixed order, the last first) -> finish -> clip -> update -> ``optimizer.step()`` -> background
exchanges -> synchronize.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from reference_impls.collectives import Exchange, Group, Ledger
from reference_impls.drivers.agreement import Agreement, Settings
from reference_impls.drivers.engine import Engine
from reference_impls.drivers.faults import digests
from reference_impls.drivers.worker import Worker
from reference_impls.errors import MismatchError, UnsupportedError, UsageError

Unused = Literal["stay", "zeros"]
"""What becomes of a parameter for which no rank has ever had a gradient: it stays, or has a gradient of zeros."""


class LocalWorkers:
    """The local workers of one training and the engine that carries out what they ask for."""

    def __init__(
        self,
        workers: Sequence[Worker],
        engine: Engine,
        clip_norm: float | None = None,
        unused: Unused = "stay",
    ) -> None:
        if unused not in ("stay", "zeros"):
            raise UnsupportedError(f"unused must be stay or zeros, got {unused!r}")
        if clip_norm is not None and not clip_norm > 0:
            raise UnsupportedError(f"clip_norm must be positive, got {clip_norm}")
        for worker in workers if unused == "zeros" else ():
            worker.given = None
        self.workers = workers
        self.engine = engine
        self.clip_norm = clip_norm
        self.last_grad_norm: Tensor | None = None
        self.launched = 0
        self.planned = False
        self._interrupted = False
        if (agreement := self._agreement) is not None:
            mine = weakref.WeakMethod(
                self._replicated
            )  # it outlives this object, until the rank has said goodbye
            agreement.replicated = lambda: {} if (own := mine()) is None else own()

    @property
    def _agreement(self) -> Agreement | None:
        """What compares this rank with the others; none in a simulation, nor while nothing is sent."""
        return getattr(self.engine.transport, "agreement", None)

    def _replicated(self) -> Settings:
        """The parameters' bits, where every step is common to all ranks and the parameters are here."""
        (worker,) = self.workers
        if worker.algorithm.local_steps or any(
            shard.params.data_ptr() == shard.grads.data_ptr() for shard in worker.shards
        ):
            return {}
        return digests({view.name: view.param for shard in worker.shards for view in shard.views})

    @property
    def shards(self) -> int:
        """Shards of each worker."""
        return len(self.workers[0].shards)

    @property
    def under_way(self) -> bool:
        """Whether a step has begun and is not complete."""
        return self._interrupted

    def plan(self) -> None:
        """Decide what kind of step this is; called once, before the first shard is submitted."""
        if self._interrupted:
            raise UsageError(
                "an earlier step broke off half-way (an exception in backward or in a collective), so ranks may have "
                "diverged: load a checkpoint into a fresh optimizer"
            )
        self._interrupted = True
        before = self.engine.trace.enter("plan")
        self._mark("plan")
        for worker in self.workers:
            worker.check_home()
            worker.clock.lr = float(worker.optimizer.param_groups[0]["lr"])
        kinds = self.engine.run([w.algorithm.plan(w.clock) for w in self.workers])
        if len(set(kinds)) != 1:
            raise MismatchError(
                f"workers plan steps of different kinds: {kinds}; plan must use agreed values only"
            )
        for worker in self.workers:
            worker.clock.kind = kinds[0]
        self._mark(kinds[0])
        self.planned = True
        self.engine.trace.enter(before)

    def aside(self, kind: str, exchanges: Sequence[Any]) -> list[Any]:
        """Carry out what belongs to no phase of the method, between steps; its bytes are counted as of `kind`."""
        self._mark(kind)
        return self.engine.run(exchanges)

    def submit_next(self) -> None:
        """Launch `reduce` of the next shard, in the fixed order: last shard first."""
        index = self.shards - 1 - self.launched
        self.launched += 1
        before = self.engine.trace.enter("encode")
        with torch.no_grad():
            self.engine.submit([w.algorithm.reduce(w.shards[index]) for w in self.workers])
        self.engine.trace.enter(before)

    @torch.no_grad()
    def complete(self) -> None:
        """Everything after backward: finish the reductions, update, synchronize, move the clock."""
        before = self.engine.trace.enter("update")
        while self.launched < self.shards:
            self.submit_next()
        results = self.engine.finish()[::-1]  # submissions came last shard first
        self._agree_on_unused()
        stay = [
            (view.param, view.param.clone())
            for worker in self.workers
            if (names := worker.never_used)
            for shard in worker.shards
            for view in shard.views
            if view.name in names
        ]
        for i, worker in enumerate(self.workers):
            reduced = [per_rank[i] for per_rank in results]
            worker.clock.counters.update(worker.algorithm.remember(worker.shards, reduced))
            self._clip(reduced)
            for shard, value in zip(worker.shards, reduced, strict=True):
                worker.algorithm.update(shard, value)
            if worker.algorithm.has_inner_optimizer:
                worker.step_optimizer()
        self.engine.advance_background()
        for index in range(self.shards):
            self.engine.run([w.algorithm.synchronize(w.shards[index]) for w in self.workers])
        for param, before_step in stay:
            param.copy_(before_step)
        for worker in self.workers:
            worker.clock.step += 1
        self.launched, self.planned, self._interrupted = 0, False, False
        self.engine.trace.enter(before)
        self.engine.trace.end_step()

    def abandon(self) -> None:
        """Forget a step that is under way and all exchanges that have not ended.

        Only where no rank waits for their messages, and before the state of an earlier step is loaded.
        """
        self.engine.discard()
        self.launched, self.planned, self._interrupted = 0, False, False

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of every local worker. Finishes what is pending, which may communicate: call it on all ranks."""
        if self._interrupted:
            raise UsageError("a step is under way; save between steps")
        for worker in self.workers:
            for shard in worker.shards:
                for pending in shard.pending.values():
                    self.engine.complete(pending)
        return [worker.state_dict() for worker in self.workers]

    def _agree_on_unused(self) -> None:
        """Find the parameters for which no rank has had a gradient so far.

        A maximum over ranks, a byte a parameter. The first time it sets up and is not counted, like the broadcast of the
        parameters; afterwards only what is still unused is asked about, and counted as steps of kind ``unused``. Where all
        parameters have been used, which is the rule from the first time on, nothing is asked any more. Later local steps
        ask nothing: until the next average every rank goes by its own gradients.
        """
        first = self.workers[0]
        known = first.unused
        local = known is not None and first.algorithm.local_steps and first.clock.kind == "local"
        if first.given is None or known == () or local:
            return
        names = [v.name for s in first.shards for v in s.views] if known is None else known
        ledgers = self.engine.ledgers
        if known is None:
            self.engine.ledgers = [Ledger(ledger.rank) for ledger in ledgers]
        self._mark("unused")
        used = self.engine.run([w.clock.world.max(self._used(w, names), "unused") for w in self.workers])
        self.engine.ledgers = ledgers
        self._mark(first.clock.kind)
        for worker, own in zip(self.workers, used, strict=True):
            worker.unused = tuple(
                name for name, any_rank in zip(names, own.tolist(), strict=True) if not any_rank
            )
            worker.given = set()

    @staticmethod
    def _used(worker: Worker, names: Sequence[str]) -> Tensor:
        """uint8 [names]: 1 for a parameter that has had a gradient on this rank since ranks last agreed."""
        given = worker.given or ()
        return torch.tensor([name in given for name in names], dtype=torch.uint8, device=worker.clock.device)

    def _clip(self, reduced: Sequence[Tensor]) -> None:
        if self.clip_norm is None:
            return
        norms = torch.stack([torch.linalg.vector_norm(value, dtype=torch.float64) for value in reduced])
        norm = self.last_grad_norm = torch.linalg.vector_norm(norms)
        if math.isinf(self.clip_norm):
            return
        factor = torch.clamp(self.clip_norm / (norm + 1e-6), max=1.0)
        for value in reduced:
            value.mul_(factor.to(value.dtype))

    def _mark(self, kind: str) -> None:
        for worker, ledger in zip(self.workers, self.engine.ledgers, strict=True):
            ledger.step, ledger.kind = worker.clock.step, kind


def from_first(
    world: Group, tensors: Sequence[Tensor], joined: bool = False, joins: bool = False
) -> Exchange[None]:
    """Fill `tensors` with the values of rank 0, or where ranks may have `joined`, of the first that has not.

    The bytes of that rank and the zeros of all others add up to its bytes, whatever they mean.
    """
    source = 0
    if joins:
        wish = torch.tensor([0 if joined else world.size - world.rank], device=tensors[0].device)
        source = world.size - int((yield from world.max(wish, "buffers")).item())
    own = torch.cat([as_bytes(tensor) for tensor in tensors])
    values = yield from world.sum(own if world.rank == source else torch.zeros_like(own), "buffers")
    if world.rank == source:
        return
    pieces = torch.split(values, [tensor.numel() * tensor.element_size() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        put_bytes(tensor, piece)


def as_bytes(tensor: Tensor) -> Tensor:
    """The values of a strided tensor of any dtype, uint8 [bytes]; its own memory where they lie there in this order."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def put_bytes(tensor: Tensor, values: Tensor) -> None:
    """Fill `tensor` with what `as_bytes` gave of one like it."""
    once(tensor).copy_(once(values.clone().view(tensor.dtype).view(tensor.shape), tensor))


def once(x: Tensor, like: Tensor | None = None) -> Tensor:
    """The elements of `x` that an expanded tensor (`like`, or x itself) holds once in memory."""
    return x[
        tuple(
            slice(0, 1) if stride == 0 else slice(None) for stride in (x if like is None else like).stride()
        )
    ]
