"""Runs the phases of n simulated ranks one by one: shards without a model, and local workers whose parameter groups differ."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from reference_impls import create
from reference_impls.algorithm import Clock, Shard, View
from reference_impls.collectives import Collective, Exchange, Group, Ledger
from reference_impls.drivers.engine import Engine, Lockstep
from reference_impls.drivers.step import LocalWorkers
from reference_impls.drivers.worker import Worker


def run(exchanges: Sequence[Any]) -> tuple[list[Any], list[Ledger]]:
    """Drive one exchange a rank to its end: the results and what was sent, both by rank."""
    ledgers = [Ledger(rank) for rank in range(len(exchanges))]
    return Engine(Lockstep(len(exchanges)), ledgers).run(list(exchanges)), ledgers


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


def shards(
    size: int,
    lengths: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    hyper: dict[str, Any] | None = None,
    start: int = 0,
    step: int = 0,
    seed: int = 0,
) -> list[Shard]:
    """One shard a rank, with parameters of the given lengths, all zeros, and no declared state."""
    return [
        _shard(Group("world", rank, size), lengths, dtype, hyper or {}, start, step, seed)
        for rank in range(size)
    ]


def _shard(
    world: Group,
    lengths: Sequence[int],
    dtype: torch.dtype,
    hyper: dict[str, Any],
    start: int,
    step: int,
    seed: int,
) -> Shard:
    params, views, place = torch.zeros(sum(lengths), dtype=dtype), [], 0
    for i, length in enumerate(lengths):
        part = slice(place, place + length)
        views.append(View(str(i), params[part], part, 0, start + place))
        place += length
    clock = Clock(world, seed=seed, step=step)
    return Shard(0, params, torch.zeros_like(params), tuple(views), clock, lambda: [hyper], start)


def local_workers(
    algorithm: str,
    groups: Sequence[dict[str, Any]],
    size: int,
    *,
    seed: int = 0,
    bucket_bytes: int = 1 << 20,
    **options: Any,
) -> LocalWorkers:
    """Workers with their own copies of `groups` (params, param_names and hyper-parameters), in lock-step."""
    method = create(algorithm, **options)
    workers = []
    for rank in range(size):
        own = [{**method.hyperparameters, **g, "params": [p.clone() for p in g["params"]]} for g in groups]
        workers.append(
            Worker(method.algorithm, own, rank=rank, size=size, seed=seed, bucket_bytes=bucket_bytes)
        )
    engine = Engine(Lockstep(size), [Ledger(rank) for rank in range(size)])
    return LocalWorkers(
        workers, engine, unused="zeros"
    )  # gradients are set in place: nobody counts which have come


def train(members: LocalWorkers, gradients: Callable[[int], Tensor]) -> None:
    """One step; `gradients(rank)` is the whole model's flat gradient in canonical order."""
    for rank, worker in enumerate(members.workers):
        for shard in worker.shards:
            shard.grads.copy_(gradients(rank)[shard.start : shard.start + shard.d])
    members.plan()
    members.complete()


def flat(members: LocalWorkers, rank: int, slot: str | None = None) -> Tensor:
    """All parameters of a rank (or one slot of its state) in canonical order, as a copy."""
    found = members.workers[rank].shards
    return torch.cat([shard.params if slot is None else shard.state[slot] for shard in found])
