"""Runs phases of n simulated ranks one by one: plans, buckets without a model, local workers whose parameter groups differ."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from reference_impls import create
from reference_impls.core.algorithm import Bucket, TrainState, View
from reference_impls.core.collectives import Collective, Exchange, Group, Ledger
from reference_impls.runtime.alone import planned
from reference_impls.runtime.engine import Engine, SimulatedBackend
from reference_impls.runtime.step import LocalWorkers
from reference_impls.runtime.worker import Worker


def run(exchanges: Sequence[Any]) -> tuple[list[Any], list[Ledger]]:
    """Drive one exchange a rank to its end: the results and what was sent, both by rank."""
    ledgers = [Ledger(rank) for rank in range(len(exchanges))]
    return Engine(SimulatedBackend(len(exchanges)), ledgers).run(list(exchanges)), ledgers


def requests(exchange: Exchange[Any], answer: Callable[[Collective], Tensor]) -> list[Collective]:
    """What one rank asks for, when `answer` plays the others."""
    asked = []
    assert isinstance(exchange, Generator)
    try:
        request = next(exchange)
        while True:
            asked.append(request)
            request = exchange.send(answer(request))
    except StopIteration:
        return asked


def kinds_of(name: str, steps: int, n: int = 2, **options: Any) -> list[str]:
    """The kind of each step of a method that plans by options and step alone."""
    return [kind for kind, _ in planned(create(name, **options).algorithm, n, repeat(0.1, steps))]


def buckets(
    size: int,
    lengths: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    start: int = 0,
    step: int = 0,
    seed: int = 0,
) -> list[Bucket]:
    """One bucket a rank, with parameters of the given lengths, all zeros, no hyper-parameters and no declared state."""
    made = []
    for rank in range(size):
        params, views, place = torch.zeros(sum(lengths), dtype=dtype), [], 0
        for i, length in enumerate(lengths):
            part = slice(place, place + length)
            views.append(View(str(i), params[part], part, 0, start + place))
            place += length
        train_state = TrainState(Group("world", rank, size), seed=seed, step=step)
        made.append(
            Bucket(0, params, torch.zeros_like(params), tuple(views), train_state, lambda: [{}], start)
        )
    return made


def local_workers(algorithm, groups, size, *, seed=0, bucket_bytes=1 << 20, **options):
    """Workers with their own copies of `groups` (params, param_names and hyper-parameters), in lock-step."""
    method = create(algorithm, **options)
    workers = []
    for rank in range(size):
        own = [{**method.hyperparameters, **g, "params": [p.clone() for p in g["params"]]} for g in groups]
        workers.append(
            Worker(method.algorithm, own, rank=rank, size=size, seed=seed, bucket_bytes=bucket_bytes)
        )
    engine = Engine(SimulatedBackend(size), [Ledger(rank) for rank in range(size)])
    # gradients are set in place: nobody counts which have come
    return LocalWorkers(workers, engine, unused="zeros")


def train(members: LocalWorkers, gradients: Callable[[int], Tensor]) -> None:
    """One step; `gradients(rank)` is the whole model's flat gradient in canonical order."""
    for rank, worker in enumerate(members.workers):
        for bucket in worker.buckets:
            bucket.grads.copy_(gradients(rank)[bucket.start : bucket.start + bucket.d])
    members.plan()
    members.complete()


def flat(members: LocalWorkers, rank: int, slot: str | None = None) -> Tensor:
    """All parameters of a rank (or one tensor of its state) in canonical order, as a copy."""
    found = members.workers[rank].buckets
    return torch.cat([bucket.params if slot is None else bucket.state[slot] for bucket in found])
