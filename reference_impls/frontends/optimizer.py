"""DataParallelOptimizer: a method on a real process group, used like any torch.optim.Optimizer.

    optimizer = DataParallelOptimizer(model, "lion-cub-1bit", lr=1e-3)
    loss.backward(); optimizer.step(); optimizer.zero_grad()

Gradients are collected by hooks while backward runs; a bucket whose gradients are complete is reduced at once, in one
fixed order on all ranks (last bucket first), so communication overlaps with backward. Do not wrap the model in
DistributedDataParallel: that would average the gradients a second time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_impls.core.algorithm import Bucket
from reference_impls.core.collectives import KEPT_STEPS, Ledger, Ledgers
from reference_impls.core.errors import UnsupportedError, UsageError
from reference_impls.core.options import scalars
from reference_impls.core.registry import AnyMethod, Method, create
from reference_impls.runtime.checkpoints import packed, refuse_by_parameter, unpacked
from reference_impls.runtime.checks import Check, Settings, described
from reference_impls.runtime.engine import (
    Engine,
    NoOpBackend,
    ProcessGroupBackend,
    SerialBackend,
    Trace,
)
from reference_impls.runtime.step import (
    Gradients,
    LocalWorkers,
    Unused,
    as_bytes,
    from_first,
    put_bytes,
)
from reference_impls.runtime.worker import Worker, bare_model, bare_name, named

_SAVE: Final = "save and load the optimizer's state"


class DataParallelOptimizer(torch.optim.Optimizer):
    """Trains replicas of a model by a communication-efficient method.

    Args:
        params: The model; or ``model.named_parameters()``; or groups of the form {"params": [(name, parameter), ...],
            **hyper}. Only with the model itself are its buffers known (BatchNorm's statistics, say), and parameters that
            are replaced later named: otherwise start all ranks with equal buffers, and average or broadcast them
            yourself. Parameters that do not require gradients are not trained.
        algorithm: A registered name, an object of a method's class, or a configured `Method`.
        lr: Learning rate; may differ by group.
        group: Process group; by default the world. Two optimizers of one loss want one each: where ranks leave different
            parameters out, the order of their exchanges differs.
        seed: Equal on all ranks.
        bucket_bytes: Size of a bucket; by default 4 MiB on a CPU, 25 MiB on a GPU.
        clip_norm: Clip the reduced gradient by its global norm, in rounds of local steps each rank's own, or set the method's
            option for it. Infinity clips nothing, and `last_grad_norm` is there.
        unused: A parameter for which no rank has ever had a gradient stays as it is (``stay``). With ``zeros``, and after its
            first gradient on any rank, a missing one counts as zeros (torch's own optimizers would skip it).
        check: What ranks compare: ``first``, ``each`` or ``off`` (see `reference_impls.runtime.checks`).
        timeout_s: Seconds to wait for another rank (on gloo; other backends have torch's own watchdog).
        broadcast: Start from rank 0's parameters, the frozen ones among them, and from its buffers.
        broadcast_buffers: Take over rank 0's buffers after every step, which is before the next forward, as
            DistributedDataParallel does. It is a sum of bytes to which the other ranks give zeros, counted in the ledger.
        allow_empty_buckets: Whether a step may be taken in which no parameter of a bucket got a gradient on this rank;
            where some of a bucket's parameters did, the others need not.
        skippable: Gradients stay until `step`, so that `skip_step` may come in its place: communication does not overlap with
            backward then, and unless check is ``off`` a step begins with a small exchange in which ranks compare which it is.
        options: Of the method and its local optimizer, see `info`; those of the optimizer may differ by group.

    Raises:
        UnknownAlgorithmError: There is no such method.
        UnknownOptionError: The method has no such option.
        UnsupportedError: The request cannot be served.
        LayoutError: Parameters do not fit together.
        UsageError: A call would give wrong numbers. `step` raises it too.
        MismatchError: Ranks do, or are configured for, different things. `step` and ``backward()`` raise it too.
        PeerError: A rank is finished, has failed or stays silent. `step` and ``backward()`` raise it too.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        algorithm: AnyMethod,
        lr: float = 1e-3,
        *,
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
        bucket_bytes: int | None = None,
        clip_norm: float | None = None,
        unused: Unused = "stay",
        check: Check = "first",
        timeout_s: float = 600.0,
        broadcast: bool = True,
        broadcast_buffers: bool = True,
        allow_empty_buckets: bool = False,
        skippable: bool = False,
        **options: Any,
    ) -> None:
        module, params = self._model_of(params)
        backend = ProcessGroupBackend(group)
        method, clip_norm = create(algorithm, **options).clipped(clip_norm)
        groups, frozen = _named_groups(params, method, lr)
        rank, size = backend.ranks[0], backend.size
        worker = Worker(
            method.algorithm,
            groups,
            rank=rank,
            size=size,
            seed=seed,
            bucket_bytes=bucket_bytes,
        )
        self._worker, self._built = worker, False
        super().__init__(worker.optimizer.param_groups, {"lr": lr, **method.hyperparameters})
        self._built = True
        self._share_groups()
        # get_state_dict of torch.distributed.checkpoint steps on zeros where an optimizer has no state
        self.state.update({param: {} for group in self.param_groups for param in group["params"]})
        ledger = Ledger(rank, KEPT_STEPS)
        self.method = method
        self.ledger = Ledgers([ledger])
        self._group = group
        self._backend = backend
        self._local_workers = LocalWorkers([worker], Engine(backend, [ledger]), clip_norm, unused)
        self._gradients = Gradients(worker, frozen, module, allow_empty_buckets)
        self._module = module
        self._syncs_buffers = broadcast_buffers and module is not None
        self._skippable = skippable
        self._accumulating = False
        self._silent = False
        self._is_averaged = False
        self._in_step = False
        self._probing = False
        self._released = False
        self._task = -1
        self._complete = [0] * self._local_workers.buckets
        self._place = {v.param: (s.index, v.name) for s in worker.buckets for v in s.views}
        backend.begin(check, timeout_s, worker.train_state.device)
        self._agreement = backend.agreement
        place = self._place_in_node
        construction: Settings = {
            **({} if place is None else {"the place within its node": place}),
            "the method": f"{method.name} {described(method.algorithm)}",
            "check": check,
            "the seed": seed,
            "bucket_bytes": worker.bucket_bytes,
            "clip_norm": clip_norm,
            "unused": unused,
            "broadcast": broadcast,
            "broadcast_buffers": broadcast_buffers,
            "skippable": skippable,
        }
        brought = self._brought() if broadcast else {}
        layout = _layout(worker, frozen, module, brought)
        self._agreement.compare_by_collective({**construction, **layout}, always=True)
        if broadcast or self._syncs_buffers:
            _refuse_buffers({} if module is None else dict(module.named_buffers()))
        if broadcast:
            start = (bucket.params for bucket in worker.buckets)
            self._broadcast([*start, *frozen.values(), *self._buffers(), *brought.values()])
        # at last, and weakly: a construction that was refused, or an optimizer that nobody holds, hears of no backward
        hook = _weakly(self._on_gradient)
        hooks = [p.register_post_accumulate_grad_hook(hook) for p in self._place]  # type: ignore[no-untyped-call]
        self._unhook = weakref.finalize(self, _remove, hooks)
        self._unhook.atexit = False

    def __reduce__(self) -> Any:
        raise UsageError(
            "an optimizer belongs to a process group and is not pickled or copied: save its state_dict()"
        )

    def _model_of(self, params: nn.Module | Iterable[Any]) -> tuple[nn.Module | None, Iterable[Any]]:
        """The bare model, where it is known; and its parameters, or groups of them, by name."""
        if not isinstance(params, nn.Module):
            return None, params
        module = bare_model(params)
        return module, named(module)

    def _brought(self) -> dict[str, Tensor]:
        """What else all ranks must begin with, by name."""
        return {}

    _step_supports_amp_scaling = True
    """Read by `torch.amp.GradScaler`: it calls `step` on all ranks, which refuses it."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises `UnsupportedError`: what is trained is decided at construction."""
        if getattr(self, "_built", False):
            raise UnsupportedError(
                "parameter groups cannot be added, since buckets and the method's state are laid out at construction: "
                "build a new optimizer with all groups (release() this one first)"
            )
        super().add_param_group(param_group)

    @property
    def kind(self) -> str:
        """Kind of the step done last."""
        return self._worker.train_state.kind

    @property
    def last_grad_norm(self) -> Tensor | None:
        """2-norm of the reduced gradient of the whole model in the last step taken, before clipping.

        Returns:
            Tensor[] of float64 on the parameters' device, which nobody has waited for; in a local step this rank's own. None
            before the first step, without `clip_norm` (give infinity to clip nothing), and where the method clips by itself.
        """
        return self._local_workers.last_grad_norm

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients over the backward passes inside; the one after the block communicates."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    @contextmanager
    def traced(self) -> Iterator[Trace]:
        """Steps inside are measured phase by phase (see `PHASES` in `reference_impls.runtime.engine`).

        Every collective is waited for at its launch, so that phases do not overlap: a step takes longer than outside,
        and gives the same bits. Enter and leave it on all ranks alike. Raises `UsageError` within a step.
        """
        self._refuse_within_a_step()
        engine, trace = self._local_workers.engine, Trace()
        held = engine.backend, engine.trace
        engine.backend, engine.trace = SerialBackend(engine.backend, trace), trace
        try:
            yield trace
        finally:
            trace.enter(None)
            engine.backend, engine.trace = held

    @contextmanager
    def without_communication(self) -> Iterator[None]:
        """Steps inside send nothing: collectives are answered by local copies. For timing.

        What such steps compute is nonsense and differs between ranks; what is averaged over and over shrinks by 1/n
        each time, so keep a block to some tens of steps. Afterwards all is as it was before the block:
        parameters, state of method and local optimizer (learning rates included), step count, bytes; gradients are
        not, so zero them. Entering communicates where an exchange is pending: enter on all ranks alike. Raises
        `UsageError` within a step.
        """
        self._refuse_within_a_step()
        if any(bucket.pending for bucket in self._worker.buckets):
            self._all_at("without_communication()")
        engine, train_state = self._local_workers.engine, self._worker.train_state
        engine.drain()
        (state,), kind, observed = (
            self._local_workers.state_dict(),
            train_state.kind,
            dict(train_state.observed),
        )
        norm = self._local_workers.last_grad_norm
        held = engine.backend, engine.ledgers, self._silent
        engine.backend, self._silent = NoOpBackend(engine.backend.ranks, engine.backend.size), True
        engine.ledgers = [Ledger(rank) for rank in engine.backend.ranks]
        try:
            yield
        finally:
            engine.backend, engine.ledgers, self._silent = held
            self._local_workers.abandon()
            self._begin_anew()
            self._worker.load_state_dict(state)
            self._share_groups()
            train_state.kind, train_state.observed, self._local_workers.last_grad_norm = kind, observed, norm

    def observe(self, **values: float | Tensor) -> None:
        """Tell scalars that a method may plan by (the loss, say). Raises `UsageError` for a tensor of several elements."""
        self._worker.train_state.observed.update(scalars(values))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Finish communication, update, synchronize. With `closure`, it is called first to compute gradients.

        A method with `reference_points` needs the closure: it is called once for each reference point, with the parameters
        standing there, and at last with the parameters as they are, all from the same state of torch's random generators, so that
        it must take the same samples each time. What a model counts in forward, BatchNorm's statistics say, counts all
        calls. Gradients are accumulated inside the closure or not at all.
        """
        return self._whole_step(closure)

    def _whole_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """What subclasses call in the place of ``super().step()``, to which torch has tied the hooks of a step too."""
        with self._agreement.telling_the_others():
            self._refuse_released()
            self._refuse_averaged("take steps")
            refuse_scaler(self)
            loss = None
            if closure is not None:
                loss = self._evaluate(closure)
            elif self._worker.algorithm.reference_points:
                self._refuse_without_closure()
            before = self._local_workers.engine.trace.enter("update")
            self._gradients.refuse_strangers()
            self._gradients.refuse_unused()
            self._local_workers.engine.trace.enter("encode")
            self._gradients.refuse_edits(self._unsent)
            self._local_workers.engine.trace.enter("update")
            self._compare_end("step()")
            self._take_step()
            self._local_workers.engine.trace.enter(before)
        return loss

    def skip_step(self) -> None:
        """In the place of `step`: give up the gradients since the last one, on all ranks alike. Needs ``skippable=True``.

        Nothing of them was sent, so that parameters, the method's state, pending exchanges and the step count, by which random
        numbers are drawn, are what they were: the training goes on, to the bit, as if it never had the batch. What forward
        counted stays (BatchNorm's statistics; ranks take over rank 0's, as in a step). ``.grad`` is dropped. A scheduler that is
        stepped counts.

        Raises:
            UsageError: The optimizer was built without ``skippable=True``.
            MismatchError: Another rank calls `step`; both are named. `step` raises it too.
            PeerError: A rank is finished, has failed or stays silent.
        """
        with self._agreement.telling_the_others():
            self._refuse_released()
            if not self._skippable:
                raise UsageError(
                    "gradients leave while backward runs, so this step cannot be given up: build the optimizer with "
                    "skippable=True, which keeps them until step()"
                )
            self._compare_end("skip_step()")
            if self._syncs_buffers:
                self._sync_buffers("skip")
            self._begin_anew()
            if not self._silent:
                self._agreement.completed(self._worker.train_state.step)
            self.zero_grad()

    def _compare_end(self, call: str) -> None:
        """Raise `MismatchError` where some ranks skip this step and others do not; `call` is this rank's."""
        if self._skippable and not self._silent:
            self._agreement.begin_step(self._worker.train_state.step, "step or skip")
            self._agreement.compare_by_collective({"as the end of this step": call})

    def _take_step(self) -> None:
        """The step itself. The gradients of buckets that have not left lie in the flat buffers."""
        if not self._local_workers.planned:
            self._plan()
        for _ in self._unsent:
            self._local_workers.submit_next()
        if self._syncs_buffers:
            self._sync_buffers(self.kind)
        self._local_workers.complete()
        steps, engine = self._worker.train_state.step, self._local_workers.engine
        if not self._silent:
            self._agreement.end_step(steps, engine.launched, self._settings)
        self._begin_anew()

    @property
    def _unsent(self) -> Sequence[Bucket]:
        """Buckets that have not left yet in this step."""
        return self._worker.buckets[: self._local_workers.buckets - self._local_workers.launched]

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, parameters included. May communicate (pending exchanges): call it on all ranks.

        Where a method keeps nothing by rank, rank 0's state resumes every rank; else every rank saves its own, or all
        together by `torch.distributed.checkpoint` or `consolidate`. Between rounds of local steps parameters are this rank's
        own, in ``model.state_dict()`` too: save and evaluate a model inside `averaged`.

        Returns:
            ``state`` and ``param_groups``, as torch's functions expect; all is in the one group (see
            `reference_impls.runtime.checkpoints`), on the CPU.

        Raises:
            UsageError: A step is under way, or it is called inside `averaged`, where parameters are not this rank's own.
            UnsupportedError: It is called by torch's ``get_state_dict``, which would lose parts.
        """
        self._refuse_released()
        self._refuse_averaged(_SAVE)
        if any(bucket.pending for bucket in self._worker.buckets):
            self._all_at("state_dict()")
        refuse_by_parameter()
        part = packed(
            self._local_workers.state_dict()[0],
            local=self.method.algorithm.local_steps,
            place=self._place_in_node,
        )
        return {"state": {}, "param_groups": [{"params": [], **part}]}

    _place_in_node: int | None = None
    """Set where ranks at other places of a node hold other parts of the model."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict`, parameters included. Raises `LayoutError` where it does not fit.

        Frozen parameters are not in it. Of methods of local steps load it after the model, whose parameters it replaces. Load it
        on all ranks, after the same step: exchanges in the background are given up.
        """
        self._refuse_released()
        self._refuse_averaged(_SAVE)
        world, place = self._worker.train_state.world, self._place_in_node
        if "workers" in state_dict and place is None:
            states = state_dict["workers"]
            state = states[world.rank] if len(states) == world.size else states[0]
        else:
            groups = state_dict.get("param_groups") if isinstance(state_dict, dict) else None
            own = groups[0] if groups else state_dict
            state = unpacked(own, "a DataParallelOptimizer", rank=world.rank, place=place)
        self._local_workers.load_state_dict([state])
        self._share_groups()
        self._agreement.reset()

    def consolidate(self) -> dict[str, Any] | None:
        """The states of all ranks in one dict, on rank 0; call it on all ranks, between steps.

        Returns:
            On rank 0 a dict that `load_state_dict` takes on every rank, None on the
            others.
        """
        self._refuse_within_a_step()
        self._refuse_averaged(_SAVE)
        self._all_at("consolidate()")
        size, rank = self._worker.train_state.world.size, self._worker.train_state.world.rank
        states: list[Any] | None = [None] * size if rank == 0 else None
        dist.gather_object(self._local_workers.state_dict()[0], states, group=self._group, group_dst=0)
        return None if states is None else {"workers": states}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, parameters are their mean over ranks: for evaluating or saving a model between rounds of local steps.

        Enter it on all ranks, between steps. Afterwards every rank has its own parameters again, to the bit. Raises
        `UsageError` within a step; so do a step, and saving and loading this optimizer's state, inside.
        """
        self._refuse_within_a_step()
        self._all_at("averaged()")
        before, self._is_averaged = self._is_averaged, True
        try:
            with self._worker.parameters_kept():
                with torch.no_grad():
                    for bucket in self._worker.buckets:
                        dist.all_reduce(bucket.params, group=self._group)
                        bucket.params.div_(self._worker.train_state.world.size)
                yield
        finally:
            self._is_averaged = before

    def release(self) -> None:
        """Give the parameters memory of their own again and stop listening to backward; the optimizer is finished."""
        if self._released:
            return
        self._released = True
        self._backend.end()
        self._unhook()
        self._worker.release()

    def _all_at(self, call: str) -> None:
        """All ranks must be at `call`, which communicates outside of a step."""
        with self._agreement.telling_the_others():
            self._agreement.together(call)

    def _share_groups(self) -> None:
        """The same dicts, so that schedulers on either reach both."""
        self.param_groups = self._worker.optimizer.param_groups

    def _begin_anew(self) -> None:
        self._complete = [0] * self._local_workers.buckets
        self._gradients.begin_anew()

    def _refuse_released(self) -> None:
        if self._released:
            raise UsageError(
                "release() has finished this optimizer: build a new one to go on training (state_dict() comes before "
                "release())"
            )

    def _settings(self) -> Settings:
        """What must be equal on all ranks at any time: the hyper-parameters."""
        return {
            f"{name} of parameter group {i}": _plain(value)
            for i, group in enumerate(self.param_groups)
            for name, value in sorted(group.items())
            if name not in ("params", "param_names")
        }

    def _plan(self) -> None:
        if self._silent:  # these steps are nobody's to compare
            self._local_workers.plan()
            return
        self._agreement.begin_step(self._worker.train_state.step, "plan")
        self._agreement.first(self._settings)
        self._local_workers.plan()
        self._agreement.begin_step(self._worker.train_state.step, self._worker.train_state.kind)

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """The gradients at the reference points, then those of the parameters, whose communication begins in their backward."""
        wanted = self._worker.algorithm.reference_points_at(self._worker.train_state.step)
        devices = {bucket.params.device for bucket in self._worker.buckets if bucket.params.is_cuda}
        with torch.enable_grad():
            for reference_point in wanted:
                with torch.random.fork_rng(devices=devices):
                    self._evaluate_at(reference_point, closure)
            self._in_step = True
            try:
                return closure()
            finally:
                self._in_step = False

    def _evaluate_at(self, reference_point: str, closure: Callable[[], Any]) -> None:
        worker, trace = self._worker, self._local_workers.engine.trace
        held = {param: param.grad for param in self._place}
        for param in held:
            param.grad = None
        self._probing = True
        before = trace.enter("encode")
        try:
            with worker.parameters_kept():
                with torch.no_grad():
                    for bucket in worker.buckets:
                        bucket.params.copy_(bucket.state[reference_point])
                trace.enter(before)
                closure()
                trace.enter("encode")
            worker.gather_at(reference_point, {name: param.grad for param, (_, name) in self._place.items()})
        finally:
            self._probing = False
            for param, gradient in held.items():
                param.grad = gradient
            trace.enter(before)

    def _refuse_without_closure(self) -> None:
        names = ", ".join(self._worker.algorithm.reference_points)
        raise UsageError(
            f"{self.method.name} wants gradients of the same samples at further points ({names}): put forward and "
            "backward into a closure and call optimizer.step(closure)"
        )

    def _refuse_averaged(self, what: str) -> None:
        if self._is_averaged:
            raise UsageError(
                "inside averaged() parameters are the mean over ranks, and what is done to them is lost at its end: "
                f"{what} outside of the block"
            )

    def _refuse_within_a_step(self) -> None:
        self._refuse_released()
        if self._local_workers.under_way:
            raise UsageError(
                "a step is under way: enter this block after step() of the last step and before the next backward"
            )

    def _on_gradient(self, param: Tensor) -> None:
        if self._probing:
            return
        index, name = self._place[param]
        bucket = self._worker.buckets[index]
        self._gradients.arrived(bucket)
        if self._accumulating:
            return
        with self._agreement.telling_the_others():
            if self._worker.algorithm.reference_points and not self._in_step:
                self._refuse_without_closure()
            task = torch._C._current_graph_task_id()
            if task != self._task:
                self._task = task
                torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)
            if index >= self._local_workers.buckets - self._local_workers.launched:
                self._refuse_late(name)
            self._gradients.complete(param)
            self._complete[index] += 1
            if self._skippable:
                return
            if not self._local_workers.planned:
                self._plan()
            while self._local_workers.launched < self._local_workers.buckets:
                following = self._unsent[-1]
                if self._complete[following.index] < len(following.views):
                    break
                before = self._local_workers.engine.trace.enter("encode")
                self._gradients.gather(following)
                self._gradients.seal(following)
                self._local_workers.submit_next()
                self._local_workers.engine.trace.enter(before)

    def _backward_ends(self) -> None:
        """Called by autograd when the backward is over in which a gradient arrived."""
        self._task = -1
        with self._agreement.telling_the_others(), torch.no_grad():
            self._gradients.seal_unsent(self._unsent)

    def _refuse_late(self, name: str) -> None:
        raise UsageError(
            f"parameter {name!r} got a gradient after its bucket had left: this is a second backward since the last step (where "
            "the first broke off, ranks may have diverged: load a checkpoint into a fresh optimizer), or "
            "reentrant activation checkpointing, which runs backward in pieces. If gradients are accumulated, run all backward "
            "passes of a step but the last inside no_sync() of this optimizer, or of what attach() answered; else call step() "
            "after each, on all ranks; call torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )

    def _buffers(self) -> list[Tensor]:
        return [] if self._module is None else [b for b in self._module.buffers() if b.numel()]

    def _broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's values, at construction."""
        with torch.no_grad():
            for tensor in tensors:
                values = as_bytes(tensor).to(self._worker.train_state.device)
                work = dist.broadcast(values, group=self._group, group_src=0, async_op=True)
                self._agreement.await_work(work, ("broadcast",))
                if values.data_ptr() != tensor.data_ptr():
                    put_bytes(tensor, values)

    @torch.no_grad()
    def _sync_buffers(self, kind: str) -> None:
        """Rank 0's buffers, whose bytes are counted as of `kind`."""
        if buffers := self._buffers():
            self._local_workers.aside(kind, [from_first(self._worker.train_state.world, buffers)])


def _weakly(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """What calls `method` while its object lives, and does not keep it alive."""
    own = weakref.WeakMethod(method)

    def call(param: Tensor) -> None:
        if (alive := own()) is not None:
            alive(param)

    return call


def _remove(hooks: Iterable[Any]) -> None:
    for hook in hooks:
        hook.remove()


def refuse_scaler(optimizer: torch.optim.Optimizer) -> None:
    """Raise `UsageError` where `torch.amp.GradScaler` has called an optimizer's step, by whose scale gradients are multiplied."""
    if vars(optimizer).pop("found_inf", None) is not None:
        vars(optimizer).pop("grad_scale", None)
        raise UsageError(
            "a GradScaler scales the loss, and what methods keep of gradients would be in units of a scale that changes: train "
            "with bfloat16 autocast, which needs none, or in float32"
        )


def _refuse_buffers(buffers: Mapping[str, Tensor]) -> None:
    """Raise `UnsupportedError` for a buffer whose values are not the bytes of a tensor."""
    for name, buffer in buffers.items():
        what = str(buffer.layout).removeprefix("torch.") if buffer.layout != torch.strided else ""
        what = "quantized" if buffer.is_quantized else "on the meta device" if buffer.is_meta else what
        if what:
            raise UnsupportedError(
                f"buffer {name!r} is {what} and cannot be broadcast: make it a plain dense tensor; or start all ranks with equal "
                "buffers and give broadcast=False, broadcast_buffers=False"
            )


def _layout(
    worker: Worker, frozen: dict[str, Tensor], module: nn.Module | None, brought: dict[str, Tensor]
) -> Settings:
    """What ranks must have in common to be replicas: what is trained, frozen, kept in buffers, and brought along."""

    def described(named: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
        return {bare_name(name): f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for name, x in named}

    buffers = module.named_buffers() if module is not None else ()
    return {
        **{
            f"trained {k!r}": v
            for k, v in described((v.name, v.param) for s in worker.buckets for v in s.views).items()
        },
        **{f"frozen {k!r}": v for k, v in described(frozen.items()).items()},
        **{f"buffer {k!r}": v for k, v in described(buffers).items()},
        **described(brought.items()),
    }


def _plain(value: Any) -> Any:
    """A hyper-parameter as JSON holds it."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _named_groups(
    params: Iterable[Any], method: Method, lr: float
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Groups with `params` and `param_names`, each completed by lr and the method's hyper-parameters; and what is frozen."""
    given = list(params)
    raw = given if given and isinstance(given[0], dict) else [{"params": given}]
    groups: list[dict[str, Any]] = []
    frozen: dict[str, Tensor] = {}
    for group in raw:
        pairs = named(group["params"])
        if unborn := [name for name, p in pairs if p.is_meta]:
            raise UsageError(f"parameter {unborn[0]!r} lies on the meta device: materialise the model first")
        if parted := [name for name, p in pairs if hasattr(p, "to_local")]:
            raise UnsupportedError(
                f"parameter {parted[0]!r} is sharded (a DTensor), of which this rank holds a part: use fsdp_optimizer(model, "
                f"{method.name!r}, group=...), group being the ranks that hold the same parts in other nodes; or fsdp_hook"
            )
        own = {key: value for key, value in group.items() if key != "params"}
        trainable = [(name, p) for name, p in pairs if p.requires_grad]
        frozen.update({name: p for name, p in pairs if not p.requires_grad})
        groups.append(
            {
                **method.group(**{"lr": lr, **own}),
                "params": [p for _, p in trainable],
                "param_names": [name for name, _ in trainable],
            }
        )
    return groups, frozen
