"""Steps as a GPU takes them, on the meta device: a value that the host asks for is an error there, and what it sends shows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from reference_impls.core.collectives import Ledger
from reference_impls.core.registry import create
from reference_impls.runtime.alone import kinds
from reference_impls.runtime.engine import Engine, NoOpBackend
from reference_impls.runtime.step import LOOKS_EVERY, Gradients, LocalWorkers
from reference_impls.runtime.worker import Worker
from tests.reference_impls.recorded import place
from tests.reference_impls.table import A_CLASS, FIRST, STEPS, Row, tiered

SHAPES = ((32, 24), (24,), (4, 3, 3, 3))
ASKING = {
    "adacomm": "the loss decides when workers average",
    "adaqs": "norms of gradients decide how many bits are sent",
    "control-random-k": "draws decide how many elements are sent",
    "dq-sgd": "the norm of the gradient decides how many bits are sent",
    "gtop-k": "two messages are merged, of which equal places are looked for",
    "l-greco": "errors of compression decide the ranks of matrices",
    "lag": "every worker decides whether it sends",
    "pulse-loco": "what is seen in bfloat16 decides how many elements are sent",
    "sketched-sgd-theory": "estimates decide how many elements are sent",
    "swap": "the accuracy decides when workers part",
}
"""Rows whose steps ask for values, and why."""


class Sending(TorchDispatchMode):
    """Notes where the host sends a tensor to the device and waits until it is there."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten._to_copy.default:
            to, waits = torch.device(kwargs.get("device") or args[0].device), not kwargs.get("non_blocking")
            if waits and to.type != args[0].device.type:
                self.note()
        elif function is torch.ops.aten.copy_.default:
            waits = args[1].dim() > 0 and not (len(args) > 2 and args[2])
            if waits and args[0].device.type != args[1].device.type:
                self.note()
        return function(*args, **kwargs)

    def note(self) -> None:
        self.places.add(place())


class Making(TorchFunctionMode):
    """Notes where a tensor is made on the device of the host's numbers, which waits too."""

    def __init__(self, sending: Sending) -> None:
        super().__init__()
        self.sending = sending

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and str(kwargs.get("device") or "cpu") != "cpu":
            self.sending.note()
        return function(*args, **kwargs)


def rank_of_four(row: Row) -> LocalWorkers:
    """One that hears from nobody."""
    method = create(row.algorithm, **row.options)
    params = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES]
    group = {"params": params, "param_names": [str(i) for i in range(len(params))], **method.group(lr=1e-3)}
    worker = Worker(method.algorithm, [group], rank=0, size=4)
    worker.train_state.observed.update(loss=1.0, accuracy=0.0)
    return LocalWorkers([worker], Engine(NoOpBackend([0], 4), [Ledger(0)]), unused="zeros")


def take_step(workers: LocalWorkers) -> str:
    """Take a step with gradients that are there; answers its kind."""
    (worker,) = workers.workers
    workers.plan()
    for bucket in reversed(worker.buckets):
        worker.gather_gradients(bucket, [torch.empty_like(view.param) for view in bucket.views])
        workers.submit_next()
    workers.complete()
    return worker.train_state.kind


def waits_in_steps(row: Row) -> set[str]:
    """Where the host waits in the second step of a kind; what the first sends may stay there."""
    workers, taken, found = rank_of_four(row), Counter[str](), set[str]()
    coming = kinds(create(row.algorithm, **row.options).algorithm, 4)
    for _ in range(STEPS):
        sending = Sending()
        with Making(sending), sending:
            kind = take_step(workers)
        if taken[kind]:
            found |= sending.places
        taken[kind] += 1
        if all(taken[kind] > 1 for kind in coming):
            break
    return found


@pytest.mark.parametrize("row", tiered((row for row in FIRST if row.id not in ASKING), A_CLASS))
def test_the_host_waits_for_nothing_in_a_step(row: Row) -> None:
    assert not waits_in_steps(row)


def test_gradients_are_compared_without_a_wait_but_in_every_sixteenth_step() -> None:
    (worker,) = rank_of_four(FIRST[0]).workers
    gradients = Gradients(worker, {}, None, allow_empty_buckets=False)
    for bucket in worker.buckets:
        for view in bucket.views:
            view.param.grad = torch.empty_like(view.param)
            gradients.complete(view.param)
        gradients.gather(bucket)
        gradients.seal(bucket)
    worker.train_state.step = 2 * LOOKS_EVERY + 1
    gradients.refuse_edits([])
    worker.train_state.step = 2 * LOOKS_EVERY
    with pytest.raises((RuntimeError, NotImplementedError)):  # it asks
        gradients.refuse_edits([])


def test_buckets_are_larger_on_a_gpu() -> None:
    def bytes_of(device: str) -> int:
        method = create("allreduce-sgd")
        param = torch.nn.Parameter(torch.empty(3, device=device))
        group = {"params": [param], "param_names": ["p"], **method.group(lr=0.1)}
        return Worker(method.algorithm, [group], rank=0, size=1).bucket_bytes

    assert (bytes_of("cpu"), bytes_of("meta")) == (4 << 20, 25 << 20)
