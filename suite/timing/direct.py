"""A direct run: one training from end to end on the real link, by which composed times are checked.

It has the options, the batches and the learning rates of its spec. The clock runs from a barrier before the first step
to one after the last; batches are drawn before it and the result is evaluated after it. Requests of the first steps are
not compared between ranks (`check="off"`), since over a slow link that would cost time which no later step takes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer
from suite.runs.from_spec import learning_rate, task_of
from suite.runs.spec import RunSpec
from suite.runs.store import finite
from suite.timing.subject import no_collector


def train(spec: RunSpec) -> dict[str, Any]:
    """Train as one rank of the default group, whose size is the spec's.

    Answers seconds of this rank, steps, steps_by_kind, and on rank 0 the final scores (null where not finite; else None).
    """
    rank, task, rate = dist.get_rank(), task_of(spec), learning_rate(spec)
    module = task.workload.module(spec.seed)
    batches = [[part[rank].clone() for part in task.batch(step)] for step in range(spec.steps)]
    optimizer = DataParallelOptimizer(
        module.named_parameters(),
        spec.algorithm.name,
        lr=spec.lr.peak,
        seed=spec.seed,
        bucket_bytes=spec.bucket_bytes,
        check="off",
        **spec.algorithm.options,
    )
    kinds: Counter[str] = Counter()
    with no_collector():
        dist.barrier()
        started = time.perf_counter()
        for step, batch in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            if optimizer.method.algorithm.probes:
                optimizer.step(partial(_backward, module, batch))
            else:
                module(*batch).backward()
                optimizer.step()
            optimizer.zero_grad()
            kinds[optimizer.kind] += 1
        dist.barrier()
        seconds = time.perf_counter() - started
    final = None
    if rank == 0:
        scores = task.evaluate({name: parameter.detach() for name, parameter in module.named_parameters()})
        final = {name: finite(value) for name, value in scores.items()}
    optimizer.release()
    return {
        "seconds": seconds,
        "steps": spec.steps,
        "steps_by_kind": dict(sorted(kinds.items())),
        "final": final,
    }


def _backward(module: nn.Module, batch: Sequence[Tensor]) -> None:
    module(*batch).backward()
