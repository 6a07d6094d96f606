"""simulate: n workers train any model by any method on one machine, in one process.

    result = simulate(model, loss, data, "qsr-adamw", workers=8, lr=3e-4, steps=500, alpha=0.01)
    result.frame                          # a row a step: loss, lr, kind, bytes on the wire, correlation of the workers' gradients
    result.seconds(rate="100mbit").sum()  # predicted, from the collectives that were asked for
    result.state_dict()                   # real ranks go on from it, to the bit

Gradients are taken worker by worker, by the very forward and backward that a real rank runs on its flat buffer: hence the same
bits, and any model works, whatever its control flow. (Batching the workers by `torch.func.vmap` gives other last bits, and is
sooner only where a model is so small that the method's own step takes longer than the gradients.)

What is not a parameter:

- *Random draws* (dropout, augmentation in `data`): each worker draws from torch's global generator, seeded for every step by
  `worker_seed`, and the generator of the caller is left as it was. A real rank that calls ``torch.manual_seed(worker_seed(seed,
  rank, step))`` at the head of each step draws the same.
- *Buffers* (BatchNorm's statistics): all workers take over rank 0's after every step, at the same bytes as with
  `DataParallelOptimizer`. What a module keeps elsewhere, as a plain attribute, is one for all workers.
- *Frozen parameters* stay as they are, and tied ones are one parameter.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import Dataset, IterableDataset, default_collate

from bandwise.costs import Link, at_least_zero, knows_its_length
from bandwise.presets import link_rate
from reference_impls.core.collectives import Ledgers
from reference_impls.core.errors import LayoutError, UnsupportedError, UsageError
from reference_impls.core.registry import AnyMethod
from reference_impls.core.units import parse_duration
from reference_impls.frontends.simulated import SimulatedCluster
from reference_impls.runtime.step import Unused
from reference_impls.runtime.worker import bare_model, bare_name, named

if TYPE_CHECKING:
    import pandas as pd

Loss = Callable[[Any, Any], Tensor]
"""(model, batch) -> scalar: the mean loss of one worker's batch."""
BatchOf = Callable[[int, int, int], Any]
"""(rank, workers, step) -> one worker's batch."""


class DataError(ValueError):
    """The data cannot be dealt to so many workers for so many steps; the message says what to give."""


def worker_seed(seed: int, rank: int, step: int) -> int:
    """The seed of torch's global generator for a worker's step.

    Args:
        seed: Of the training.
        rank: The worker.
        step: Completed steps.

    Returns:
        For ``torch.manual_seed``: a real rank that calls it before it takes a batch draws what the simulated one drew.
    """
    return _hashed("step", seed, rank, step)


def _hashed(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "little")


class Shards:
    """A data set cut into equal i.i.d. shards, one a worker: a function of rank, workers and step.

    The seed decides which examples are whose. Each worker goes through its shard in an order of its own in every epoch; what does
    not fill a batch waits for the next epoch, and up to ``workers - 1`` examples are nobody's.

    Args:
        dataset: With a length and examples by index.
        batch_size: Examples a worker and step.
        seed: Of the cut and the orders.
        collate: Makes a batch of a list of examples.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}: give at least 1")
        self._dataset: Any = dataset
        self._batch_size = batch_size
        self._seed = seed
        self._collate = collate
        self._orders: dict[tuple[int, int], tuple[int, Tensor]] = {}

    def __call__(self, rank: int, workers: int, step: int) -> Any:
        """The batch of a worker's step. Raises `DataError` where a shard does not fill one."""
        size = len(self._dataset) // workers
        if size < self._batch_size:
            raise DataError(
                f"{len(self._dataset)} examples for {workers} workers are {size} each, less than a batch of "
                f"{self._batch_size}: give a smaller batch_size or fewer workers"
            )
        epoch, number = divmod(step, size // self._batch_size)
        held = self._orders.get((rank, workers))
        if held is None or held[0] != epoch:
            whole = torch.randperm(len(self._dataset), generator=_generator("shards", self._seed))
            own = whole[rank * size : (rank + 1) * size]
            held = epoch, own[torch.randperm(size, generator=_generator("epoch", self._seed, rank, epoch))]
            self._orders[rank, workers] = held
        chosen = held[1][number * self._batch_size : (number + 1) * self._batch_size]
        return self._collate([self._dataset[i] for i in chosen.tolist()])


def _generator(*parts: object) -> torch.Generator:
    return torch.Generator().manual_seed(_hashed(*parts))


@dataclasses.dataclass(eq=False, repr=False)
class Simulation:
    """What `simulate` answers: a training that has been simulated, and can go on.

    Attributes:
        model: The model with the mean over workers of the parameters, and rank 0's buffers; a copy of the one that was given.
        diverged_at: The step whose loss was not finite, before which the simulation ended; None where there is none.
        compute_s: Seconds that one worker's forward and backward took here, the median over workers and steps.
    """

    model: nn.Module
    compute_s: float
    diverged_at: int | None
    _cluster: SimulatedCluster
    _names: Sequence[str]
    _rows: Sequence[Mapping[str, Any]]

    @property
    def ledger(self) -> Ledgers:
        """Every byte, by rank, step, stage and collective (`ledger.frame(rank)`)."""
        return self._cluster.ledger

    @property
    def frame(self) -> pd.DataFrame:
        """A row a step.

        Returns:
            Table of step; loss, the mean over workers, each with its own parameters and batch, before the step; lr; kind, of the
            step; wire_bytes, that a worker sends, the mean over workers; correlation (see `correlation`).
        """
        import pandas as pd  # here, since it takes half a second

        columns = ["step", "loss", "lr", "kind", "wire_bytes", "correlation"]
        sent = self.ledger.frame(rank=None).groupby("step")["wire_bytes"].sum() / self._cluster.world_size
        rows = [{**row, "wire_bytes": float(sent.get(row["step"], 0.0))} for row in self._rows]
        return pd.DataFrame(rows, columns=columns)

    @property
    def correlation(self) -> pd.Series[float]:
        """How alike the workers' gradients are, by step: 1 where all point one way, about 0 where they share nothing.

        The mean over all pairs of workers of the cosine between their local gradients of the whole model, each at its
        own parameters and batch. NaN for one worker and where a gradient is zero. The definition is ours, of no paper.

        Returns:
            Cosines by step.
        """
        return self.frame.set_index("step")["correlation"]

    @property
    def parameters(self) -> dict[str, Tensor]:
        """Name -> the mean over workers of a trained parameter; copies."""
        return dict(zip(self._names, self._cluster.averaged(), strict=True))

    def seconds(
        self,
        rate: float | str,
        delay: float | str = 0.0,
        compute_s: float | None = None,
        *,
        compressor_s: float = 0.0,
    ) -> pd.Series[float]:
        """What the steps would take on as many machines: computing, bytes over 0.91 of the rate, and the delays of one exchange.

        Nothing is hidden behind computing. docs/cost-model.md says how far off that is (`bandwise.costs`).

        Args:
            rate: Of each worker's link: bits a second, or words such as "100mbit" or "10gbe".
            delay: One way: seconds, or words such as "5ms".
            compute_s: Seconds of forward, backward and update on a worker; None: `compute_s`, which was measured here, without
                the update.
            compressor_s: Seconds a step that a worker encodes and decodes; 0: not counted (`bandwise advise`
                counts it for methods of which it was measured).

        Returns:
            Seconds by step, by what rank 0 sent or received in it.

        Raises:
            UnitError: A rate, a delay or a time cannot be.
        """
        import pandas as pd

        link = Link(
            link_rate(rate) if isinstance(rate, str) else rate,
            parse_duration(delay) if isinstance(delay, str) else delay,
        )
        local = self.compute_s if compute_s is None else compute_s
        at_least_zero("compute_s", local)
        at_least_zero("compressor_s", compressor_s)
        asked: dict[int, list[dict[str, Any]]] = {row["step"]: [] for row in self._rows}
        for row in self.ledger.frame(rank=0).to_dict("records"):
            asked[row["step"]].append({str(key): value for key, value in row.items()})
        n = self._cluster.world_size
        took = [local + compressor_s + link.step_seconds(rows, n) for rows in asked.values()]
        return pd.Series(took, index=pd.Index(list(asked), name="step"), name="seconds", dtype=float)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on to the bit, loadable with ``torch.load(weights_only=True)``.

        Returns:
            What `simulate` takes as `state`, and ``DataParallelOptimizer.load_state_dict`` on as many real ranks; `buffers` is
            the part that belongs to the model (``model.load_state_dict(state["buffers"], strict=False)``).
        """
        return {
            **self._cluster.state_dict(),
            "buffers": {bare_name(k): buffer.detach().clone() for k, buffer in self.model.named_buffers()},
        }


def simulate(
    model: nn.Module,
    loss: Loss,
    data: BatchOf | Dataset[Any] | Iterable[Any],
    algorithm: AnyMethod,
    *,
    workers: int = 4,
    lr: float | Callable[[int], float],
    steps: int,
    seed: int = 0,
    batch_size: int | None = None,
    state: Mapping[str, Any] | None = None,
    bucket_bytes: int = 4 << 20,
    clip_norm: float | None = None,
    unused: Unused = "stay",
    progress: Callable[[int], None] = lambda step: None,
    **options: Any,
) -> Simulation:
    """Train a model as so many workers would, by any method, in this process.

    Args:
        model: Any module; it is copied and left as it is. Its mode (train or eval) counts.
        loss: ``loss(model, batch)`` answers a scalar, the mean over one worker's batch. It is given the copy: use the argument.
        data: ``data(rank, workers, step)`` answers a worker's batch; or a data set with a length, cut into i.i.d. shards by the
            seed (`Shards`); or an iterable of batches, dealt to the workers in turn.
        algorithm: A registered name (``bandwise list``), an object of a method's class, or a configured `Method`.
        workers: How many.
        lr: The learning rate, or a function of the step.
        steps: Of the whole training, those behind `state` included.
        seed: Of the shards, the workers' draws, and the method's.
        batch_size: Examples a worker and step; for a data set alone.
        state: Where to go on from: `Simulation.state_dict`, or ``DataParallelOptimizer.consolidate`` of real ranks.
        bucket_bytes: Size of a bucket.
        clip_norm: Clip the reduced gradient by its global norm, or set the method's own option for it.
        unused: A parameter for which no worker has ever had a gradient stays as it is (``stay``), or has zeros (``zeros``).
        progress: Called with the completed steps.
        options: Of the method and its local optimizer (``bandwise info NAME``). `total_steps`, where a method has it, is `steps`
            unless given.

    Returns:
        The training.

    Raises:
        UnknownAlgorithmError: There is no such method.
        UnknownOptionError: The method has no such option.
        UnsupportedError: The model, or an option's value, cannot be served.
        LayoutError: Model, gradients and state do not fit together.
        DataError: The data do not suffice.
        UsageError: The loss is no scalar of the model that it is given, or an argument contradicts another.
    """
    if workers < 1 or steps < 1:
        raise UsageError(f"{workers} workers, {steps} steps: give at least 1 of each")
    replica = _Replica(model, loss)
    names = [name for name, _ in replica.trained]
    if isinstance(algorithm, str) and knows_its_length(algorithm):
        options.setdefault("total_steps", steps)
    cluster = SimulatedCluster(
        algorithm,
        [param for _, param in replica.trained],
        world_size=workers,
        lr=lr(0) if callable(lr) else lr,
        seed=seed,
        names=names,
        bucket_bytes=bucket_bytes,
        clip_norm=clip_norm,
        unused=unused,
        **options,
    )
    if state is not None:
        _take_over(cluster, replica, state, seed, steps)
    first = cluster.steps
    batch_of = _dealer(data, batch_size, seed, workers, first, steps)
    rows: list[dict[str, Any]] = []
    diverged_at = None
    for step in range(first, steps):
        answers, alike = _gradients(cluster, replica, batch_of, seed, step)
        mean = math.fsum(answer.loss for answer in answers) / workers
        if not math.isfinite(mean):
            diverged_at = step
            break
        cluster.observe(loss=mean)
        rate = lr(step) if callable(lr) else lr
        cluster.step(
            [answer.grads for answer in answers],
            lr=rate,
            reference_points={
                reference_point: [answer.reference_points[reference_point] for answer in answers]
                for reference_point in cluster.reference_points
            },
            buffers=[answer.buffers for answer in answers] if answers[0].buffers else None,
        )
        replica.take_buffers(answers[0].buffers)
        rows.append({"step": step, "loss": mean, "lr": rate, "kind": cluster.kind, "correlation": alike})
        progress(step + 1)
    replica.keep(cluster.averaged())
    compute_s = median(replica.seconds) if replica.seconds else math.nan
    return Simulation(replica.model, compute_s, diverged_at, cluster, names, rows)


# ---- the workers' gradients


@dataclasses.dataclass
class _Answer:
    """One worker's step before the method's: its loss, gradients at its parameters and at the reference points, its buffers
    afterwards."""

    loss: float
    grads: list[Tensor | None]
    reference_points: dict[str, list[Tensor | None]]
    buffers: list[Tensor]


class _Replica:
    """The copy of the user's model, in which one worker after another takes its place."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        _refuse(model)
        try:
            self.model = copy.deepcopy(model)
        except (RuntimeError, TypeError) as error:
            raise UnsupportedError(
                f"the model cannot be copied ({error}): give one as it is built, before any forward and without tensors that "
                "were computed from others among its attributes"
            ) from error
        self.trained = [(name, param) for name, param in named(self.model) if param.requires_grad]
        if not self.trained:
            raise UnsupportedError("no parameter of the model requires a gradient: there is nothing to train")
        self.seconds: list[float] = []
        self._loss = loss
        self.gpus = sorted({param.device.index for _, param in self.trained if param.is_cuda})

    @property
    def buffers(self) -> list[Tensor]:
        """Those of the model that hold anything, as `DataParallelOptimizer` sends them."""
        return [buffer for buffer in self.model.buffers() if buffer.numel()]

    def take_buffers(self, values: Sequence[Tensor]) -> None:
        """Give the buffers these values."""
        with torch.no_grad():
            for buffer, value in zip(self.buffers, values, strict=True):
                buffer.copy_(value)

    def backward(self, params: Sequence[Tensor], batch: Any) -> tuple[float, list[Tensor | None]]:
        """Loss and gradients with these parameters, which are used where they lie, as a real rank's are."""
        started = time.perf_counter()
        for (_, own), param in zip(self.trained, params, strict=True):
            own.data, own.grad = param, None
        value = self._loss(self.model, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = (
                f"a tensor of shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else type(value).__name__
            )
            raise UsageError(
                f"loss(model, batch) answered {kind}: answer the mean loss of the batch, a scalar"
            )
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        grads = [own.grad for _, own in self.trained]
        if all(grad is None for grad in grads):
            raise UsageError(
                "no parameter of the model got a gradient: compute the loss with the model that loss(model, batch) is given, "
                "not with the one outside, and without detach() or no_grad()"
            )
        for (name, own), grad in zip(self.trained, grads, strict=True):
            if grad is not None and grad.is_sparse:
                raise LayoutError(
                    f"the gradient of {name!r} is sparse: build the embedding with sparse=False"
                )
            own.grad = None
        self.seconds.append(time.perf_counter() - started)
        return float(value.detach()), grads

    def keep(self, params: Sequence[Tensor]) -> None:
        """The parameters that the model is left with."""
        for (_, own), param in zip(self.trained, params, strict=True):
            own.data = param


@contextlib.contextmanager
def _seeded(seed: int, gpus: Sequence[int]) -> Iterator[None]:
    """Within, torch's generators are seeded; afterwards they are as before."""
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield


def _refuse(model: nn.Module) -> None:
    """Raise for a model that cannot be simulated as it is."""
    bare_model(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UnsupportedError(
                f"{name or 'the model'} is a SyncBatchNorm, which talks to real ranks in forward, and whose bytes no ledger "
                "counts: simulate with BatchNorm (not converted), or with a norm that needs no batch"
            )
    lazy = [name for name, param in model.named_parameters() if is_lazy(param)]
    if lazy:
        raise UnsupportedError(
            f"parameter {lazy[0]!r} has no shape yet: run the model on a batch once before simulating"
        )


def _gradients(
    cluster: SimulatedCluster, replica: _Replica, batch_of: BatchOf, seed: int, step: int
) -> tuple[list[_Answer], float]:
    """What every worker brings to the step, and how alike their gradients are."""
    before = [buffer.detach().clone() for buffer in replica.buffers]
    answers = []
    for rank in range(cluster.world_size):
        replica.take_buffers(before)
        with _seeded(worker_seed(seed, rank, step), replica.gpus):
            batch = batch_of(rank, cluster.world_size, step)
            reference_points = {}
            for reference_point in cluster.reference_points:
                with torch.random.fork_rng(devices=replica.gpus):  # all of the same samples and draws
                    _, reference_points[reference_point] = replica.backward(
                        cluster.reference_parameters(rank, reference_point), batch
                    )
            loss, grads = replica.backward(cluster.parameters(rank), batch)
        answers.append(
            _Answer(loss, grads, reference_points, [buffer.detach().clone() for buffer in replica.buffers])
        )
    return answers, _alike([answer.grads for answer in answers])


def _alike(gradients: Sequence[Sequence[Tensor | None]]) -> float:
    """The mean cosine over pairs of gradients: (|sum of unit vectors|^2 - n) / (n (n - 1)); NaN where there is no pair."""
    n, sums = len(gradients), dict[int, Tensor]()
    if n < 2:
        return math.nan
    for grads in gradients:
        given = {i: grad for i, grad in enumerate(grads) if grad is not None}
        norm = math.sqrt(math.fsum(_square(grad) for grad in given.values()))
        for i, grad in given.items():
            unit = grad.float() if grad.dtype in (torch.float16, torch.bfloat16) else grad
            total = sums.setdefault(i, torch.zeros_like(unit))
            total.add_(unit, alpha=1 / norm if norm else math.nan)
    return (math.fsum(map(_square, sums.values())) - n) / (n * (n - 1))


def _square(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


# ---- state and data


def _take_over(
    cluster: SimulatedCluster,
    replica: _Replica,
    state: Mapping[str, Any],
    seed: int,
    steps: int,
) -> None:
    if "workers" not in state:
        raise LayoutError(
            "state holds no workers: give what state_dict() of a simulation, or consolidate() of real ranks, answered"
        )
    first = state["workers"][0]
    if first["seed"] != seed:
        raise UsageError(
            f"the state is of seed {first['seed']}, by which data are sharded and draws made: give seed={first['seed']}"
        )
    if first["step"] >= steps:
        raise UsageError(
            f"the state is of step {first['step']} already: steps counts the whole training, so give more"
        )
    cluster.load_state_dict(dict(state))
    held = {bare_name(name): buffer for name, buffer in replica.model.named_buffers()}
    for name, value in state.get("buffers", {}).items():
        if name not in held or held[name].shape != value.shape:
            raise LayoutError(f"buffer {name!r} of the state is not in the model, or has another shape there")
        with torch.no_grad():
            held[name].copy_(value)


def _dealer(data: Any, batch_size: int | None, seed: int, workers: int, first: int, steps: int) -> BatchOf:
    """The data as a function of rank, workers and step."""
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        if batch_size is None:
            raise DataError("a data set is cut into batches here: give batch_size=, of one worker")
        return Shards(data, batch_size, seed)
    if batch_size is not None:
        raise DataError("batch_size is for a data set; of a function or an iterable a batch is what it gives")
    if isinstance(data, Iterable):
        return _dealt(data, seed, workers, first, steps)
    if callable(data):
        return data  # type: ignore[no-any-return]
    raise DataError(
        f"data is a {type(data).__name__}: give data(rank, workers, step), a torch Dataset, or an iterable of batches"
    )


def _dealt(batches: Iterable[Any], seed: int, workers: int, first: int, steps: int) -> BatchOf:
    """An iterable of batches, dealt to the workers in turn; asked in the order of steps and ranks."""

    def too_short(size: int) -> DataError:
        return DataError(
            f"the data end after {size} batches, and {workers} workers for {steps} steps take {workers * steps}: give more, take "
            "fewer steps, or give a Dataset with batch_size= or a function data(rank, workers, step), which do not end"
        )

    def following(rank: int, workers: int, step: int) -> Any:
        for batch in left:
            return batch
        raise too_short(step * workers + rank)

    with contextlib.suppress(TypeError):  # a stream has no length
        if (size := len(batches)) < workers * steps:  # type: ignore[arg-type]
            raise too_short(size)
    with _seeded(_hashed("iterable", seed), ()):  # a DataLoader draws when it is asked for an iterator
        left = iter(batches)
        for before in range(workers * first):
            following(before % workers, workers, before // workers)
    return following
