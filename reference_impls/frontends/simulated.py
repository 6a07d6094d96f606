"""SimulatedCluster: n workers of a method in one process, in lock-step, without threads or a network.

The same method code runs here and on a process group; bytes are counted by the same ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from reference_impls.core.collectives import Ledger, Ledgers
from reference_impls.core.errors import LayoutError, UsageError
from reference_impls.core.options import scalars
from reference_impls.core.registry import AnyMethod, create
from reference_impls.runtime.engine import Engine, SimulatedBackend
from reference_impls.runtime.replay import CudaGraphs, Replays
from reference_impls.runtime.step import LocalWorkers, Unused, from_first
from reference_impls.runtime.worker import Worker, bare_name


class SimulatedCluster:
    """`world_size` workers that train by one method, starting from the same parameters.

    Args:
        algorithm: A registered name, an object of a method's class, or a configured `Method`.
        params: The initial parameters, tensors of any shape, which are copied.
        world_size: Workers.
        lr: Learning rate; `step(lr=...)` overrides it for one step.
        seed: Of the random streams.
        names: Of the parameters, by default their numbers.
        bucket_bytes: Size of a bucket.
        clip_norm: See `DataParallelOptimizer`.
        unused: A parameter for which no rank has ever had a gradient stays as it is (``stay``), or has a gradient of zeros
            (``zeros``), by which weight decay and coins for zeros move it.
        storage: Pair of tensors [world_size, elements] (parameters, gradients) to live in, so that the gradients of all workers
            can come from one batched call; every parameter then counts as used.
        options: Of the method and of its local optimizer, see `info`.

    Raises:
        UnknownAlgorithmError: There is no such method.
        UnknownOptionError: The method has no such option.
        UnsupportedError: The request cannot be served.
        LayoutError: Parameters do not fit together.
    """

    def __init__(
        self,
        algorithm: AnyMethod,
        params: Sequence[Tensor],
        world_size: int = 4,
        lr: float = 1e-2,
        seed: int = 0,
        *,
        names: Sequence[str] | None = None,
        bucket_bytes: int = 4 << 20,
        clip_norm: float | None = None,
        unused: Unused = "stay",
        storage: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ) -> None:
        backend = SimulatedBackend(world_size)
        method, clip_norm = create(algorithm, **options).clipped(clip_norm)
        names = [str(i) for i in range(len(params))] if names is None else [bare_name(name) for name in names]
        if len(names) != len(params):
            raise LayoutError(f"{len(names)} names for {len(params)} parameters")
        workers = []
        for rank in range(world_size):
            copies = [p.detach().clone(memory_format=torch.preserve_format) for p in params]
            group = {"params": copies, "param_names": list(names), **method.group(lr=lr)}
            rows = None if storage is None else (storage[0][rank], storage[1][rank])
            workers.append(
                Worker(
                    method.algorithm,
                    [group],
                    rank=rank,
                    size=world_size,
                    seed=seed,
                    bucket_bytes=bucket_bytes,
                    storage=rows,
                )
            )
        ledgers = [Ledger(rank) for rank in range(world_size)]
        self.method = method
        self.world_size = world_size
        self.ledger = Ledgers(ledgers)
        self._names = names
        self._in_storage = storage is not None
        self._workers = workers
        engine = Engine(backend, ledgers)
        self._local_workers = LocalWorkers(workers, engine, clip_norm, unused)
        self._graphs: CudaGraphs | None = None
        if all(p.is_cuda and p.dtype == torch.float32 for p in params):
            self._graphs = CudaGraphs(params[0].device)
            self._local_workers.replays = Replays(workers, engine, self._graphs)
        empty = {name: p.detach().clone() for name, p in zip(names, params, strict=True) if p.numel() == 0}
        self._by_name = [{**empty, **{v.name: v.param for s in w.buckets for v in s.views}} for w in workers]

    @property
    def steps(self) -> int:
        """Completed steps."""
        return self._workers[0].train_state.step

    @property
    def kind(self) -> str:
        """Kind of the step done last."""
        return self._workers[0].train_state.kind

    @property
    def reference_points(self) -> tuple[str, ...]:
        """Points at which the next step wants gradients too, of the same samples; see `reference_parameters`."""
        return self.method.algorithm.reference_points_at(self.steps)

    def step(
        self,
        grads: Sequence[Sequence[Tensor | None]] | None = None,
        lr: float | None = None,
        *,
        reference_points: Mapping[str, Sequence[Sequence[Tensor | None]]] | None = None,
        buffers: Sequence[Sequence[Tensor]] | None = None,
    ) -> None:
        """One training step of all workers.

        grads: grads[rank][i] is the gradient of parameter i on that rank (None counts as zeros); leave it out if the
        gradient rows of `storage` are already filled. lr: learning rate of this step alone. reference points: for each name in
        `reference_points`, the gradients at that point, of the same samples. buffers: buffers[rank][i], which take over the
        values of rank 0, as `DataParallelOptimizer` does with those of a model, at the same bytes. Raises `UsageError` where
        gradients are missing.
        """
        given = reference_points or {}
        if missing := sorted(set(self.reference_points) - set(given)):
            raise UsageError(
                f"this step also wants the gradients at {', '.join(missing)}: compute them there, of the same samples "
                "(reference_parameters), and pass step(grads, reference_points={name: gradients})"
            )
        if grads is not None:
            self._fill(grads)
        elif not self._in_storage:
            raise UsageError(
                "step() without gradients would train on those of the step before: pass step(grads), grads[rank][i] being the "
                "gradient of parameter i on that rank, or build the cluster with storage=(parameters, gradients) and fill it"
            )
        for name in self.reference_points:
            for worker, own in zip(self._workers, given[name], strict=True):
                worker.gather_at(name, dict(zip(self._names, own, strict=True)))
        held = [[group["lr"] for group in worker.optimizer.param_groups] for worker in self._workers]
        if lr is not None:
            rate = self.method.group(lr=lr)["lr"]
            self._set_lr([[rate] * len(rates) for rates in held])
        self._local_workers.plan()
        if buffers is not None:
            exchanges = [
                from_first(w.train_state.world, b) for w, b in zip(self._workers, buffers, strict=True)
            ]
            self._local_workers.aside(self.kind, exchanges)
        self._local_workers.complete()
        if lr is not None:
            self._set_lr(held)

    def parameters(self, rank: int) -> list[Tensor]:
        """The parameters of one worker, in the order given at construction. Views: do not write into them."""
        return [self._by_name[rank][name].detach() for name in self._names]

    def averaged(self) -> list[Tensor]:
        """The mean over workers of the parameters, in the order given at construction: for evaluation between rounds."""
        ranks = [self.parameters(rank) for rank in range(self.world_size)]
        return [torch.stack(own).sum(0).div_(self.world_size) for own in zip(*ranks, strict=True)]

    def reference_parameters(self, rank: int, reference_point: str) -> list[Tensor]:
        """The parameters of one worker at a reference point, in the order given at construction. Views: do not write into
        them."""
        point = self._workers[rank].reference_point(reference_point)
        return [
            point.get(name, self._by_name[rank][name]) for name in self._names
        ]  # empty ones stand nowhere

    def state(self, rank: int, slot: str) -> list[Any]:
        """The method's state of one worker, one tensor a bucket (state per tensor: one dict by name a bucket). Views."""
        return [bucket.state[slot] for bucket in self._workers[rank].buckets]

    def observe(self, **values: float | Tensor) -> None:
        """Tell all workers scalars that a method may plan by (loss, ...); the same value for all."""
        for worker in self._workers:
            worker.train_state.observed.update(scalars(values))

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on to the bit; loadable with torch.load(weights_only=True)."""
        return {"workers": self._local_workers.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave. Raises `LayoutError` where it does not fit."""
        saved, n = state["workers"], self.world_size
        self._local_workers.load_state_dict(saved if len(saved) == n else [saved[0]] * n)

    def _fill(self, grads: Sequence[Sequence[Tensor | None]]) -> None:
        if len(grads) != self.world_size:
            raise LayoutError(
                f"grads has {len(grads)} ranks, the cluster {self.world_size}: give grads[rank][i]"
            )
        for worker, own in zip(self._workers, grads, strict=True):
            if len(own) != len(self._names):
                raise LayoutError(f"a rank has {len(own)} gradients for {len(self._names)} parameters")
            by_name = dict(zip(self._names, own, strict=True))
            for bucket in worker.buckets:
                worker.gather_gradients(bucket, [by_name[view.name] for view in bucket.views])

    def _set_lr(self, rates: Sequence[Sequence[float]]) -> None:
        for worker, own in zip(self._workers, rates, strict=True):
            for group, rate in zip(worker.optimizer.param_groups, own, strict=True):
                group["lr"] = rate


@contextmanager
def side_by_side(clusters: Iterable[SimulatedCluster]) -> Iterator[None]:
    """Repeated steps of different clusters overlap within, on a GPU; what comes after waits for all of them."""
    graphs = [cluster._graphs for cluster in clusters if cluster._graphs is not None]
    for own in graphs:
        own.joins = False
    try:
        yield
    finally:
        for own in graphs:
            own.joins = True
            own.join()
