"""The step of a method, phase by phase, for the workers that live in this process; and what became of their gradients.

One worker on a process group, all n of them in a simulation; the engine knows which. Plan -> (backward, with `submit`
for every bucket in one fixed order, the last first) -> finish -> clip -> update -> ``optimizer.step()`` -> background
exchanges -> synchronize.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reference_impls.core.algorithm import Bucket, View
from reference_impls.core.collectives import Exchange, Group, Ledger
from reference_impls.core.errors import MismatchError, UnsupportedError, UsageError, one_of
from reference_impls.runtime.engine import Engine
from reference_impls.runtime.replay import NotRecordedError, Replays
from reference_impls.runtime.worker import Worker, bare_name

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
        one_of("unused", unused, ("stay", "zeros"))
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
        self.under_way = False
        """Whether a step has begun and is not complete."""
        self.replays: Replays | None = None

    @property
    def buckets(self) -> int:
        """Buckets of each worker."""
        return len(self.workers[0].buckets)

    def plan(self) -> None:
        """Decide what kind of step this is; called once, before the first bucket is submitted."""
        if self.under_way:
            raise UsageError(
                "an earlier step broke off half-way (an exception in backward or in a collective), so ranks may have "
                "diverged: load a checkpoint into a fresh optimizer"
            )
        self.under_way = True
        before = self.engine.trace.enter("plan")
        self._mark("plan")
        for worker in self.workers:
            worker.check_home()
            # what methods plan by: a backbone that stands still at rate 0 says nothing
            groups = worker.optimizer.param_groups
            worker.train_state.lr = next((rate for group in groups if (rate := float(group["lr"]))), 0.0)
        kinds = self.engine.run([w.algorithm.plan(w.train_state) for w in self.workers])
        if len(set(kinds)) != 1:
            raise MismatchError(
                f"workers plan steps of different kinds: {kinds}; plan must use agreed values only"
            )
        for worker in self.workers:
            worker.train_state.kind = kinds[0]
        self._mark(kinds[0])
        self.planned = True
        self.engine.trace.enter(before)

    def aside(self, kind: str, exchanges: Sequence[Any]) -> list[Any]:
        """Carry out what belongs to no phase of the method, between steps; its bytes are counted as of `kind`."""
        self._mark(kind)
        return self.engine.run(exchanges)

    def submit_next(self) -> None:
        """Launch `reduce` of the next bucket, in the fixed order: last bucket first."""
        index = self.buckets - 1 - self.launched
        self.launched += 1
        before = self.engine.trace.enter("encode")
        with torch.no_grad():
            self.engine.submit([w.algorithm.reduce(w.buckets[index]) for w in self.workers])
        self.engine.trace.enter(before)

    @torch.no_grad()
    def complete(self) -> None:
        """Everything after backward: finish the reductions, update, synchronize, count the step."""
        before = self.engine.trace.enter("update")
        if self.replays is None:
            self._carry_out()
        else:
            try:
                self.replays.take(self._carry_out)
            except NotRecordedError:
                self.abandon()
                self.replays.take(self._carry_out)
        for worker in self.workers:
            worker.train_state.step += 1
        self.launched, self.planned, self.under_way = 0, False, False
        self.engine.trace.enter(before)

    def _carry_out(self) -> None:
        while self.launched < self.buckets:
            self.submit_next()
        results = self.engine.finish()[::-1]  # submissions came last bucket first
        self._agree_on_unused()
        stay = [(kept, kept.clone()) for worker in self.workers for kept in worker.staying()]
        with self.engine.lanes(len(self.workers)) as lanes:
            for i, (worker, lane) in enumerate(zip(self.workers, lanes, strict=True)):
                with lane:
                    self._update(worker, [per_rank[i] for per_rank in results])
        if self.replays is not None:
            self.replays.step_optimizers()
        self.engine.advance_background()
        for index in range(self.buckets):
            self.engine.run([w.algorithm.synchronize(w.buckets[index]) for w in self.workers])
        for kept, before_step in stay:
            kept.copy_(before_step)

    def _update(self, worker: Worker, reduced: Sequence[Tensor]) -> None:
        worker.train_state.counters.update(worker.algorithm.remember(worker.buckets, reduced))
        self._clip(reduced)
        for bucket, value in zip(worker.buckets, reduced, strict=True):
            worker.algorithm.update(bucket, value)
        if worker.algorithm.has_inner_optimizer and self.replays is None:
            worker.step_optimizer()

    def abandon(self) -> None:
        """Forget a step that is under way and all exchanges that have not ended.

        Only where no rank waits for their messages, and before the state of an earlier step is loaded.
        """
        self.engine.discard()
        self.launched, self.planned, self.under_way = 0, False, False

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of every local worker. Finishes what is pending, which may communicate: call it on all ranks."""
        if self.under_way:
            raise UsageError("a step is under way; save between steps")
        for worker in self.workers:
            for bucket in worker.buckets:
                for pending in bucket.pending.values():
                    self.engine.complete(pending)
        return [worker.state_dict() for worker in self.workers]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Give every local worker its state; what runs in the background would write into it, and is forgotten.

        Raises `LayoutError` where one does not fit.
        """
        for worker, own in zip(self.workers, states, strict=True):
            worker.load_state_dict(own)
        self.engine.discard_background()
        if self.replays is not None:
            self.replays.forget()

    def _agree_on_unused(self) -> None:
        """Find the parameters for which no rank has had a gradient so far.

        A maximum over ranks, a byte a parameter. The first time it sets up and is not counted, like the broadcast of the
        parameters; afterwards only what is still unused is asked about, and counted as steps of kind ``unused``. Where all
        parameters have been used, which is the rule from the first time on, nothing is asked any more. Later local steps
        that exchange nothing ask nothing: until the next average every rank goes by its own gradients.
        """
        first = self.workers[0]
        known = first.unused
        algorithm = first.algorithm
        apart = algorithm.local_steps and not algorithm.meets_locally and first.train_state.kind == "local"
        if first.given is None or known == () or (known is not None and apart):
            return
        names = [v.name for s in first.buckets for v in s.views] if known is None else known
        ledgers = self.engine.ledgers
        if known is None:
            self.engine.ledgers = [Ledger(ledger.rank) for ledger in ledgers]
        self._mark("unused")
        used = self.engine.run(
            [w.train_state.world.max(self._used(w, names), "unused") for w in self.workers]
        )
        self.engine.ledgers = ledgers
        self._mark(first.train_state.kind)
        for worker, own in zip(self.workers, used, strict=True):
            worker.unused = tuple(
                name for name, any_rank in zip(names, own.tolist(), strict=True) if not any_rank
            )
            worker.given = set()

    @staticmethod
    def _used(worker: Worker, names: Sequence[str]) -> Tensor:
        """uint8 [names]: 1 for a parameter that has had a gradient on this rank since ranks last agreed."""
        given = worker.given or ()
        return torch.tensor(
            [name in given for name in names], dtype=torch.uint8, device=worker.train_state.device
        )

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
            ledger.step, ledger.kind = worker.train_state.step, kind


def from_first(world: Group, tensors: Sequence[Tensor]) -> Exchange[None]:
    """Fill `tensors` with the values of rank 0: its bytes and the zeros of all others add up to its bytes, whatever they mean."""
    own = torch.cat([as_bytes(tensor) for tensor in tensors])
    values = yield from world.sum(own if world.rank == 0 else torch.zeros_like(own), "buffers")
    if world.rank == 0:
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


# ---- gradients, from backward to the update ---------------------------------------------------------------------------


LOOKS_EVERY = 16
"""Steps between two in which the gradients of all buckets are compared with what was sent; in as many first steps all are."""


class Gradients:
    """Watches the gradients of `worker`: are they what was sent?

    A bucket is sent while backward still runs, so whoever edits ``.grad`` afterwards edits a copy: clipping, unscaling,
    ``p.grad = ...``. In DistributedDataParallel such an edit acts on the mean; here it would be lost, or act on the buckets that
    had not left yet. So every bucket is fingerprinted when it leaves, or when backward ends, and once more when the step is taken
    where torch says that one of its gradients was written to or replaced; any bit that differs is an error that names the
    parameter. What torch does not see (``p.grad.data``, numpy) is looked for in the first steps, and in every sixteenth: such an
    edit is a habit of a loop. ``.grad`` is never the buffer that is sent. A parameter that was replaced, frozen or unfrozen
    behind the optimizer's back is named too, and so is a bucket none of whose parameters got a gradient.

    Args:
        worker: The rank's parameters and flat buffers.
        frozen: Parameters by name that the optimizer was given but does not train.
        module: The model, if the optimizer was given it: then replaced parameters are named.
        allow_empty_buckets: Whether a bucket none of whose parameters got a gradient counts as zeros.
    """

    def __init__(
        self,
        worker: Worker,
        frozen: Mapping[str, Tensor],
        module: nn.Module | None,
        allow_empty_buckets: bool,
    ) -> None:
        self._worker = worker
        self.frozen = dict(frozen)
        self._allow_empty_buckets = allow_empty_buckets
        self._homes = [] if module is None else list(_homes(module))
        self._used = [False] * len(worker.buckets)
        self._versions: dict[Tensor, tuple[Tensor, int]] = {}
        self._prints: dict[int, Tensor] = {}

    def begin_anew(self) -> None:
        """Forget the gradients of a step that is complete, or was skipped."""
        self._used = [False] * len(self._used)
        self._versions.clear()
        self._prints.clear()

    def arrived(self, bucket: Bucket) -> None:
        """Backward has added to the gradient of a parameter of `bucket`, be it one that is only accumulated."""
        self._used[bucket.index] = True

    def complete(self, param: Tensor) -> None:
        """From now on nobody may change the gradient of `param` before the step."""
        if param.grad is not None:
            self._versions[param] = param.grad, param.grad._version

    def gather(self, bucket: Bucket, counts: bool = True) -> None:
        """Copy the gradients of `bucket` into its flat buffer. counts: not if the step may still be skipped."""
        self._worker.gather_gradients(bucket, [view.param.grad for view in bucket.views], counts)

    def seal(self, bucket: Bucket) -> None:
        """What lies in the flat buffer of `bucket` is what the step must find."""
        self._prints[bucket.index] = fingerprint(bucket.grads)

    def seal_unsent(self, unsent: Iterable[Bucket]) -> None:
        """Backward has ended: the gradients of buckets that are still here are what the step must find too."""
        for bucket in unsent:
            if self._used[bucket.index]:
                self.gather(bucket, counts=False)
                self.seal(bucket)

    # ---- when the step is taken ------------------------------------------------------------------------------------

    def refuse_strangers(self) -> None:
        """Raise `UsageError` for a parameter that was replaced, frozen or unfrozen. A module added later is not looked for."""
        for parameters, key, param, name in self._homes:
            if parameters.get(key) is not param:
                raise UsageError(
                    f"parameter {name!r} was replaced after the optimizer had been built (load_state_dict(assign=True), "
                    "or an assignment), so what trains is not what the model uses: load with assign=False, or build the "
                    "optimizer afterwards"
                )
        for name, param in self.frozen.items():
            if param.requires_grad:
                raise UsageError(
                    f"parameter {name!r} was frozen when the optimizer was built and requires a gradient now, but is not "
                    "trained: call requires_grad_(True) before building the optimizer, or build it anew"
                )
        for view in (view for bucket in self._worker.buckets for view in bucket.views):
            param = view.param
            # one with a gradient was frozen after backward, and torch's optimizers would step it too
            if not param.requires_grad and param.grad is None and view.name not in self._worker.never_used:
                raise UsageError(
                    f"parameter {view.name!r} was trained when the optimizer was built and is frozen now, but would go on moving "
                    "(momentum, weight decay): call requires_grad_(False) before building the optimizer, or build it anew"
                )

    def refuse_unused(self) -> None:
        """Raise `UsageError` if no parameter of a bucket got a gradient since the last step, unless that is allowed."""
        unused = [
            bucket for bucket in self._worker.buckets if not self._used[bucket.index] and not _holds(bucket)
        ]
        if not unused:
            return
        views = [view for bucket in self._worker.buckets for view in bucket.views]
        if len(unused) == len(self._used):
            if not self._allow_empty_buckets:
                raise UsageError(
                    f"no parameter got a gradient since the last step ({_some(views)}): call backward() first; if "
                    "load_state_dict(assign=True) or an assignment has replaced the parameters, build the optimizer "
                    "anew; if such steps are meant, pass allow_empty_buckets=True"
                )
        elif not self._allow_empty_buckets:
            views = [view for bucket in unused for view in bucket.views]
            raise UsageError(
                f"none of the {len(views)} parameters of a bucket got a gradient on this rank: {_some(views)}. If the "
                "model leaves them out in some steps, pass allow_empty_buckets=True (they count as zeros); if they should not "
                "train, call requires_grad_(False) before building the optimizer; if they were replaced, build it anew"
            )

    def refuse_edits(self, unsent: Sequence[Bucket]) -> None:
        """Raise `UsageError` if a gradient is not what it was when its bucket left or backward ended.

        Afterwards the flat buffers of `unsent` hold the gradients.
        """
        for bucket in self._worker.buckets:
            if lost := [v for v in bucket.views if v.param in self._versions and v.param.grad is None]:
                self._refuse_edit(_some(lost))
        step = self._worker.train_state.step
        looks = step < LOOKS_EVERY or step % LOOKS_EVERY == 0
        looked_at = []
        for bucket in self._worker.buckets:
            if is_unsent := bucket in unsent:
                self.gather(bucket)
            if bucket.index in self._prints and (looks or self._written(bucket)):
                now = bucket.grads if is_unsent else self._worker.gathered_aside(bucket)
                looked_at.append((bucket, fingerprint(now)))
        if not looked_at:
            return
        found, expected = [own for _, own in looked_at], [self._prints[b.index] for b, _ in looked_at]
        differ = (
            (torch.stack(found) != torch.stack(expected)).any(-1).tolist()
        )  # the one thing that waits for a GPU
        for (bucket, _), differs in zip(looked_at, differ, strict=True):
            if differs:
                self._refuse_edit(_some(self._written(bucket) or bucket.views))

    def _written(self, bucket: Bucket) -> list[View]:
        """Whose gradient is another tensor or was written to, as far as torch can tell; be it with the same bits."""
        found = []
        for view in bucket.views:
            own, (held, version) = view.param.grad, self._versions.get(view.param, (None, 0))
            if own is not held or (own is not None and own._version != version):
                found.append(view)
        return found

    def _refuse_edit(self, names: str) -> None:
        raise UsageError(
            f"the gradient of {names} was changed between backward and step, when part of the model may have been sent "
            "already: to clip (clip_grad_norm_) give clip_norm= to DataParallelOptimizer or attach(); in the place of a "
            "GradScaler use bfloat16 autocast; what shall act on the reduced gradient is, with attach(), a step pre-hook of your "
            "optimizer; anything else belongs before backward (a hook on the parameter) or into the loss. A model in "
            "DistributedDataParallel averages its gradients a second time: train the bare one"
        )


def fingerprint(flat: Tensor) -> Tensor:
    """Sums of `flat` and of its bits as integers, by which an edit of any element shows.

    The sum of bits sees every change of one element, however small; that of values sees what cancels in the former (elements
    that change sign in pairs). Both run at the speed of memory.

    Args:
        flat: Tensor[d], float32 or float64, contiguous.

    Returns:
        Tensor[3] of int64.
    """
    even = flat.numel() * flat.element_size() // 8 * 8 // flat.element_size()
    bits, rest = flat[:even].view(torch.int64).sum(), flat[even:].view(torch.int32).sum()
    return torch.stack([bits, rest, flat.sum(dtype=flat.dtype).double().view(torch.int64)])


def _homes(module: nn.Module) -> Iterable[tuple[Mapping[str, Tensor | None], str, Tensor, str]]:
    for prefix, part in module.named_modules():
        for key, param in part._parameters.items():
            if param is not None:
                yield part._parameters, key, param, bare_name(f"{prefix}.{key}" if prefix else key)


def _holds(bucket: Bucket) -> bool:
    """Whether somebody has put a gradient there without backward."""
    return any(view.param.grad is not None and bool(view.param.grad.any()) for view in bucket.views)


def _some(views: Sequence[View]) -> str:
    names = [repr(view.name) for view in views[:4]]
    return ", ".join(names) + (f" and {len(views) - 4} more" if len(views) > 4 else "")
