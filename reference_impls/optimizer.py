"""DataParallelOptimizer: a method on a real process group, used like any torch.optim.Optimizer.

    optimizer = DataParallelOptimizer(model.named_parameters(), "lion-cub-1bit", lr=1e-3)
    loss.backward(); optimizer.step(); optimizer.zero_grad()

Gradients are collected by hooks while backward runs; a bucket whose gradients are complete is reduced at once, in one
fixed order on all ranks (last bucket first), so communication overlaps with backward. Do not wrap the model in
DistributedDataParallel: that would average the gradients a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # its stubs do not name it

from reference_impls.drivers.agreement import Agreement, Check
from reference_impls.drivers.elastic import Elastic, resized
from reference_impls.drivers.engine import Engine
from reference_impls.drivers.ledger import Ledger, Ledgers
from reference_impls.drivers.null import NullTransport
from reference_impls.drivers.process_group import ProcessGroup
from reference_impls.drivers.serial import Serial
from reference_impls.drivers.team import Team, Unused
from reference_impls.drivers.timeline import TimedTransport, Timeline
from reference_impls.drivers.trace import Trace
from reference_impls.drivers.worker import Worker
from reference_impls.errors import LayoutError, UsageError
from reference_impls.registry import Method, create


class DataParallelOptimizer(torch.optim.Optimizer):
    """Trains replicas of a model by a communication-efficient method.

    params: ``model.named_parameters()``, or groups of the form {"params": [(name, parameter), ...], **hyper}. algorithm:
    a registered name or a configured `Method`. lr and options: see `info`; options of the optimizer may differ by
    group. group: process group (default: the world). node_size: consecutive ranks that share a node, for methods that
    tell groups within and across nodes apart. seed: equal on all ranks. bucket_bytes: size of a bucket. clip_norm:
    clip the reduced gradient by its global norm, or set the method's own option for it. unused: a parameter for which no
    rank has ever had a gradient stays as it is (`stay`); with `zeros`, and after its first gradient on any rank, a
    missing one counts as zeros (torch's own optimizers would skip it). lag: see `reference_impls.drivers.engine`.
    check: compare what ranks ask for (`first`, `each`, `off`). broadcast: start from rank 0's parameters.

    Raises `UnknownAlgorithmError`, `UnknownOptionError`, `UnsupportedError`, `LayoutError`, `UsageError`; `step` raises
    `MismatchError` and `PeerError`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        algorithm: str | Method,
        lr: float = 1e-3,
        *,
        group: dist.ProcessGroup | None = None,
        node_size: int = 1,
        seed: int = 0,
        bucket_bytes: int = 4 << 20,
        clip_norm: float | None = None,
        unused: Unused = "stay",
        lag: int = 1,
        check: Check = "first",
        timeout_s: float = 60.0,
        broadcast: bool = True,
        **options: Any,
    ) -> None:
        transport = ProcessGroup(group, node_size=node_size)
        method, clip_norm = create(algorithm, **options).clipped(clip_norm)
        groups = _named_groups(params, method, lr)
        rank, size = transport.ranks[0], transport.sizes["world"]
        worker = Worker(
            method.algorithm,
            groups,
            rank=rank,
            size=size,
            node_size=node_size,
            seed=seed,
            bucket_bytes=bucket_bytes,
        )
        super().__init__(worker.optimizer.param_groups, {"lr": lr, **method.hyperparameters})
        self._share_groups(worker)
        members = "-".join(map(str, dist.get_process_group_ranks(group)))
        store = PrefixStore(f"bandwise/{members}", dist.distributed_c10d._get_default_store())
        number = store.add(
            f"optimizers/{rank}", 1
        )  # the same on all ranks: each optimizer has keys of its own
        store = PrefixStore(f"{number}", store)
        self._agreement = Agreement(store, rank, size, check, timeout_s)
        transport.agreement = self._agreement
        ledger = Ledger(rank)
        self.method = method
        self.ledger = Ledgers([ledger])
        self._worker = worker
        self._group = group
        self._transport = transport
        self._team = Team([worker], Engine(transport, [ledger], lag), clip_norm, unused)
        self._accumulating = False
        self._silent = False
        self._in_step = False
        self._probing = False
        self._complete = [0] * self._team.shards
        self._versions: dict[int, int] = {}
        self._place = {v.param: (s.index, v.name) for s in worker.shards for v in s.views}
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for p in self._place
            if p.requires_grad
        ]
        if broadcast:
            for shard in worker.shards:
                dist.broadcast(shard.params, group=group, group_src=0)

    @property
    def kind(self) -> str:
        """Kind of the step done last."""
        return self._worker.clock.kind

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients over the backward passes inside; the one after the block communicates."""
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    @contextmanager
    def traced(self) -> Iterator[Trace]:
        """Steps inside are measured phase by phase (see `PHASES` in `reference_impls.drivers.trace`).

        Every collective is waited for at its launch, so that phases do not overlap: a step takes longer than outside,
        and gives the same bits. Enter and leave it on all ranks alike. Raises `UsageError` within a step.
        """
        self._refuse_within_a_step()
        engine, trace = self._team.engine, Trace()
        held = engine.transport, engine.trace
        engine.transport, engine.trace = Serial(engine.transport, trace), trace
        try:
            yield trace
        finally:
            trace.enter(None)
            engine.transport, engine.trace = held

    @contextmanager
    def chrome_trace(self, path: Path | str) -> Iterator[None]:
        """What the steps inside do when goes into `path` as a Chrome trace (see `reference_impls.drivers.timeline`).

        Steps run as always, and give the same bits. Each rank writes a file, so give each a path of its own, or enter it
        on one rank only. Raises `UsageError` within a step.
        """
        self._refuse_within_a_step()
        engine = self._team.engine
        timeline = Timeline(self._transport.ranks[0], self._team.shards)
        held = engine.transport, engine.trace
        engine.transport, engine.trace = TimedTransport(engine.transport, timeline), timeline
        try:
            yield
        finally:
            timeline.enter(None)
            engine.transport, engine.trace = held
            timeline.write(Path(path))

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
        engine, clock = self._team.engine, self._worker.clock
        engine.drain()
        state, kind, observed = self.state_dict(), clock.kind, dict(clock.observed)
        held = engine.transport, engine.ledgers, self._silent
        engine.transport, self._silent = NullTransport(engine.transport), True
        engine.ledgers = [Ledger(rank) for rank in engine.transport.ranks]
        try:
            yield
        finally:
            engine.transport, engine.ledgers, self._silent = held
            self._team.abandon()
            self._begin_anew()
            self._worker.load_state_dict(state)
            self._share_groups(self._worker)
            clock.kind, clock.observed = kind, observed

    def observe(self, **scalars: float) -> None:
        """Tell scalars that a method may plan by (the loss, say)."""
        self._worker.clock.observed.update(scalars)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Finish communication, update, synchronize. With `closure`, it is called first to compute gradients.

        A method with `probes` needs the closure: it is called once for each probe, with the parameters standing there,
        and at last with the parameters as they are, all from the same state of torch's random generators, so that
        it must take the same samples each time. What a model counts in forward, BatchNorm's statistics say, counts all
        calls. Gradients are accumulated inside the closure or not at all.
        """
        loss = None
        if closure is not None:
            loss = self._evaluate(closure)
        elif self._worker.algorithm.probes:
            self._refuse_without_closure()
        before = self._team.engine.trace.enter("update")
        if not self._team.planned:
            self._plan()
        self._refuse_edits()
        for shard in reversed(self._worker.shards[: self._team.shards - self._team.launched]):
            self._launch(shard.index)
        self._team.complete()
        self._begin_anew()
        self._team.engine.trace.enter(before)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """This rank's state. May communicate (pending exchanges): call it on all ranks.

        Where a method keeps nothing by rank, rank 0's state resumes every rank; else every rank saves its own, or all
        together `consolidate`. Between rounds of local steps parameters are this rank's own, in ``model.state_dict()``
        too: save and evaluate a model inside `averaged`.
        """
        return self._team.state_dict()[0]

    def load_state_dict(
        self, state_dict: dict[str, Any] | Sequence[dict[str, Any]], *, elastic: Elastic = "refuse"
    ) -> None:
        """Go on from `state_dict`, parameters included. Raises `LayoutError` where it does not fit.

        With another number of ranks, give the list of the states of all old ranks. elastic: what then becomes of the
        state that single ranks keep: ``refuse``, ``zero`` or ``fold`` (see `reference_impls.drivers.elastic`).
        """
        world = self._worker.clock.world
        if not isinstance(state_dict, dict) or "workers" in state_dict:
            states = list(state_dict["workers"] if isinstance(state_dict, dict) else state_dict)
            same = len(states) == world.size and states[world.rank]["rank"] == world.rank
            state_dict = states[world.rank] if same else resized(states, self._worker, elastic)
        self._worker.load_state_dict(state_dict)
        self._share_groups(self._worker)
        self._agreement.reset()

    def consolidate(self) -> dict[str, Any] | None:
        """The states of all ranks in one dict, on rank 0; call it on all ranks, between steps.

        Returns:
            On rank 0 a dict that `load_state_dict` takes on every rank, also with another number of ranks (`elastic`);
            None on the others.
        """
        size, rank = self._worker.clock.world.size, self._worker.clock.world.rank
        states: list[Any] | None = [None] * size if rank == 0 else None
        dist.gather_object(self.state_dict(), states, group=self._group, group_dst=0)
        return None if states is None else {"workers": states}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, parameters are their mean over ranks: for evaluating or saving a model between rounds of local steps.

        Enter it on all ranks, between steps. Afterwards every rank has its own parameters again, to the bit. Raises
        `UsageError` within a step.
        """
        self._refuse_within_a_step()
        size = self._worker.clock.world.size
        with torch.no_grad():
            held = [shard.params.clone() for shard in self._worker.shards]
            for shard in self._worker.shards:
                dist.all_reduce(shard.params, group=self._group)
                shard.params.div_(size)
        try:
            yield
        finally:
            with torch.no_grad():
                for shard, own in zip(self._worker.shards, held, strict=True):
                    shard.params.copy_(own)

    def release(self) -> None:
        """Give the parameters memory of their own again and stop listening to backward; the optimizer is finished."""
        for hook in self._hooks:
            hook.remove()
        self._worker.release()
        self._transport.close()

    def _share_groups(self, worker: Worker) -> None:
        self.param_groups = worker.optimizer.param_groups  # the same dicts: schedulers on either reach both

    def _begin_anew(self) -> None:
        self._complete = [0] * self._team.shards
        self._versions.clear()

    def _plan(self) -> None:
        if self._silent:  # these steps are nobody's to compare
            self._team.plan()
            return
        self._agreement.begin_step(self._worker.clock.step, "plan")
        self._team.plan()
        self._agreement.begin_step(self._worker.clock.step, self._worker.clock.kind)

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """The gradients at the probes, then those of the parameters, whose communication begins in their backward."""
        wanted = self._worker.algorithm.probes_at(self._worker.clock.step)
        devices = {shard.params.device for shard in self._worker.shards if shard.params.is_cuda}
        with torch.enable_grad():
            for probe in wanted:
                with torch.random.fork_rng(devices=devices):
                    self._evaluate_at(probe, closure)
            self._in_step = True
            try:
                return closure()
            finally:
                self._in_step = False

    def _evaluate_at(self, probe: str, closure: Callable[[], Any]) -> None:
        probes, trace = self._worker.probes, self._team.engine.trace
        held = {param: param.grad for param in self._place}
        for param in held:
            param.grad = None
        self._probing = True
        before = trace.enter("encode")
        try:
            with probes.standing_at(probe):
                trace.enter(before)
                closure()
                trace.enter("encode")
            probes.gather(probe, {name: param.grad for param, (_, name) in self._place.items()})
        finally:
            self._probing = False
            for param, gradient in held.items():
                param.grad = gradient
            trace.enter(before)

    def _refuse_without_closure(self) -> None:
        names = ", ".join(self._worker.algorithm.probes)
        raise UsageError(
            f"{self.method.name} wants gradients of the same samples at further points ({names}): put forward and "
            "backward into a closure and call optimizer.step(closure)"
        )

    def _refuse_within_a_step(self) -> None:
        if self._team.under_way:
            raise UsageError(
                "a step is under way: enter this block after step() of the last step and before the next backward"
            )

    def _on_gradient(self, param: Tensor) -> None:
        if self._accumulating or self._probing:
            return
        if self._worker.algorithm.probes and not self._in_step:
            self._refuse_without_closure()
        index, name = self._place[param]
        shard = self._worker.shards[index]
        self._team.engine.trace.gradient()
        if self._team.launched >= self._team.shards - index:
            raise UsageError(
                f"parameter {name!r} got a gradient after its bucket had been sent: use no_sync() for all backward passes "
                "of a step but the last, and non-reentrant activation checkpointing"
            )
        grad = param.grad
        if grad is not None and grad.untyped_storage().data_ptr() != shard.grads.untyped_storage().data_ptr():
            self._versions[id(param)] = grad._version
        self._complete[index] += 1
        if not self._team.planned:
            self._plan()
        while self._team.launched < self._team.shards:
            following = self._team.shards - 1 - self._team.launched
            shard = self._worker.shards[following]
            if self._complete[following] < len(shard.views):
                break
            self._launch(following)

    def _launch(self, index: int) -> None:
        shard = self._worker.shards[index]
        trace = self._team.engine.trace
        before = trace.enter("encode")
        trace.at(self._team.launched)
        self._worker.gather_gradients(shard, [view.param.grad for view in shard.views])
        trace.at(None)
        self._team.submit_next()
        trace.enter(before)

    def _refuse_edits(self) -> None:
        for param, (_, name) in self._place.items():
            version = self._versions.get(id(param))
            if version is not None and (param.grad is None or param.grad._version != version):
                raise UsageError(
                    f"the gradient of {name!r} was changed between backward and step (clip_grad_norm_?), when part of the "
                    "model may have been sent already: use clip_norm= of this optimizer instead"
                )


def _named_groups(params: Iterable[Any], method: Method, lr: float) -> list[dict[str, Any]]:
    """Groups with `params` and `param_names`, each completed by lr and the method's hyper-parameters."""
    given = list(params)
    raw = given if given and isinstance(given[0], dict) else [{"params": given}]
    groups = []
    for group in raw:
        pairs = list(group["params"])
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise LayoutError("give (name, parameter) pairs, as model.named_parameters() does")
        own = {key: value for key, value in group.items() if key != "params"}
        trainable = [(name, p) for name, p in pairs if p.requires_grad]
        groups.append(
            {
                **method.group(**{"lr": lr, **own}),
                "params": [p for _, p in trainable],
                "param_names": [name for name, _ in trainable],
            }
        )
    return groups
